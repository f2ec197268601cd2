//! What the simulated stages cost: the hardware, the model, and the time that work takes on them.
//!
//! Everything here is a pure function of a few numbers. Data sheets are in [`hardware`], model shapes in [`model`], fitted constants in
//! [`calibration`] and nowhere else, formulas in [`cost`] and beside it.
//!
//! Architecture invariant: no clock, no randomness, no state.

pub mod calibration;
pub mod cost;
mod decode;
pub mod hardware;
pub mod model;
mod training;

pub use calibration::Calibration;
pub use cost::{Cost, CostError};
pub use decode::Decode;
pub use hardware::Hardware;
pub use model::ModelShape;
pub use training::TrainingLayout;
