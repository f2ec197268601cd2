//! The trainer on libtorch.

mod accumulation;
mod critic;
mod head;
pub mod loss;
mod micro_batch;
mod mismatch;
mod objective;
pub mod optimizer;
mod rejection;
pub mod sft;
mod shared_prompts;
mod step_updates;
mod tally;
mod trainer;

use rollpacker_stages::train::{
    Inferred, Metrics, Numbers, Partial, PartialError, Sequence, Total, TrainError, Trainer,
    config, fixed,
};

pub use critic::ValueModel;
pub use objective::Objective;
pub use trainer::TorchTrainer;
