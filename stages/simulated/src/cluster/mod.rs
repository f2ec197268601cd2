//! Cost model of the simulated stages: the hardware, the model, and the time that work takes on them.
//!
//! All functions are pure. Data sheets are in [`hardware`], model shapes in [`model`], all fitted constants in [`calibration`], and the
//! formulas in [`cost`] and the private modules.
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
