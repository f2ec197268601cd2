//! What a simulated engine is told.

use rollpacker_dataflow::clock::Nanos;
use serde::{Deserialize, Serialize};

use crate::rollout::Placement;

/// The options of a [`SimulatedEngine`](super::SimulatedEngine).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedEngineConfig {
    /// What it runs on until it is placed otherwise.
    pub placement: Placement,
    /// Responses that an instance runs at once; at least 1.
    #[serde(default = "max_running")]
    pub max_running: u32,
    /// Which instance gets which response.
    #[serde(default)]
    pub dispatch: Dispatch,
    /// When instances get the responses that are asked for at once.
    #[serde(default)]
    pub hand_out: HandOut,
    /// Which of the responses that ended the caller hears of.
    #[serde(default)]
    pub collect: Collect,
    /// Time between two looks of the caller for responses that ended; 0 reports each at once.
    #[serde(default = "report_interval")]
    pub report_interval: Nanos,
    /// Factor on the time of decoding: more than 1 where something else runs on the devices, as a colocated judge does.
    #[serde(default = "slowdown")]
    pub slowdown: f64,
}

/// Which instance gets which response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dispatch {
    /// One response after the other to one instance after the other.
    #[default]
    RoundRobin,
    /// All responses of a prompt to one instance, neighbouring prompts together, the prompts that are launched at once in as many parts
    /// as there are instances (veRL).
    PromptChunks,
}

/// When instances get the responses that are asked for at once. Handing one out takes the controller's time either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandOut {
    /// All when the last is handed out: a batch is one call (veRL, and RollPacker as its Fig. 11c shows it).
    #[default]
    Together,
    /// Each when it is handed out: the first are under way before the last.
    Streamed,
}

/// Which of the responses that ended are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collect {
    /// Each one.
    #[default]
    Streamed,
    /// None until all that were asked for have ended: a batch is one call (veRL).
    Together,
}

impl SimulatedEngineConfig {
    /// An engine on `placement`; everything else as usual.
    #[must_use]
    pub fn new(placement: Placement) -> Self {
        Self {
            placement,
            max_running: max_running(),
            dispatch: Dispatch::default(),
            hand_out: HandOut::default(),
            collect: Collect::default(),
            report_interval: report_interval(),
            slowdown: slowdown(),
        }
    }

    pub(super) fn check(&self) -> Result<(), SimulatedEngineError> {
        if self.max_running == 0 {
            return Err(SimulatedEngineError::Option {
                option: "max_running",
                expected: "at least 1",
                found: self.max_running.to_string(),
            });
        }
        if !(self.slowdown > 0.0 && self.slowdown.is_finite()) {
            return Err(SimulatedEngineError::Option {
                option: "slowdown",
                expected: "more than 0",
                found: self.slowdown.to_string(),
            });
        }
        Ok(())
    }
}

/// Why a simulated engine cannot start.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimulatedEngineError {
    /// An option is out of its bounds.
    #[error("simulated rollout option `{option}`: expected {expected}, found {found}")]
    Option {
        /// Its name.
        option: &'static str,
        /// The bounds.
        expected: &'static str,
        /// Its value.
        found: String,
    },
    /// The model does not fit.
    #[error(transparent)]
    Cost(#[from] crate::cluster::CostError),
}

/// vLLM's default.
fn max_running() -> u32 {
    256
}

/// The polling interval of a router.
fn report_interval() -> Nanos {
    Nanos(10_000_000)
}

fn slowdown() -> f64 {
    1.0
}
