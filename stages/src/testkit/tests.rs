//! Tests that each check rejects an implementation that breaks its rule and accepts one that keeps the rule.

mod engine;
mod reward;
mod trainer;
