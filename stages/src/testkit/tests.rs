//! Each check finds an implementation that breaks its rule, and passes one that keeps it.

mod engine;
mod reward;
mod trainer;
