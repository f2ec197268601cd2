//! The options of a simulated engine.

use rollpacker_dataflow::clock::Nanos;
use serde::{Deserialize, Serialize};

use rollpacker_stages::rollout::Placement;

/// The options of a [`SimulatedEngine`](super::SimulatedEngine).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedEngineConfig {
    /// The initial placement.
    pub placement: Placement,
    /// Maximum number of responses that an instance runs at once; at least 1, default 256. (verl: `rollout.max_num_seqs`)
    #[serde(default = "max_running")]
    pub max_running: u32,
    /// The assignment of responses to instances; default `round_robin`.
    #[serde(default)]
    pub dispatch: Dispatch,
    /// The time at which instances receive responses that are requested together; default `together`.
    #[serde(default)]
    pub hand_out: HandOut,
    /// The time at which the caller receives responses that ended; default `streamed`.
    #[serde(default)]
    pub collect: Collect,
    /// Interval at which the caller polls for responses that ended, in nanoseconds; default 10 ms. 0 reports each immediately.
    #[serde(default = "report_interval")]
    pub report_interval: Nanos,
    /// Factor on the decoding time; finite and more than 0, default 1. Values above 1 model other work on the devices, such as a colocated
    /// judge.
    #[serde(default = "slowdown")]
    pub slowdown: f64,
    /// Bandwidth at which an instance sends the KV caches of its running responses to other instances, in bytes/s; finite and more than 0.
    /// If `None` (the default), responses that move are computed again.
    #[serde(default)]
    pub kv_transfer_bandwidth: Option<f64>,
}

/// The assignment of responses to instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dispatch {
    /// Responses are assigned to the instances in turn.
    #[default]
    RoundRobin,
    /// All responses of a prompt go to one instance. The prompts that are launched together are divided into as many parts of adjacent
    /// prompts as there are instances (veRL).
    PromptChunks,
    /// Each response goes to the instance with the fewest running and waiting responses, and to the first of several such instances (Seer).
    LeastLoaded,
}

/// The time at which instances receive responses that are requested together. Sending a response takes time of the controller in either
/// case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandOut {
    /// Instances receive all responses of a batch when its last response is sent: a batch is one call (veRL, and RollPacker according to
    /// its Fig. 11c).
    #[default]
    Together,
    /// An instance receives each response when it is sent, so the first responses run before the last response is sent.
    Streamed,
}

/// The time at which the caller receives responses that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collect {
    /// The caller receives each response when it ends.
    #[default]
    Streamed,
    /// The caller receives all responses when the last requested response has ended: a batch is one call (veRL).
    Together,
}

impl SimulatedEngineConfig {
    /// Returns the default options with this placement.
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
            kv_transfer_bandwidth: None,
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
        let bandwidth = self.kv_transfer_bandwidth.unwrap_or(1.0);
        for (option, value) in [("slowdown", self.slowdown), ("kv_transfer_bandwidth", bandwidth)] {
            if !(value > 0.0 && value.is_finite()) {
                let (expected, found) = ("more than 0", value.to_string());
                return Err(SimulatedEngineError::Option { option, expected, found });
            }
        }
        Ok(())
    }
}

/// The reason why a simulated engine cannot start.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimulatedEngineError {
    /// An option is out of bounds.
    #[error("simulated rollout option `{option}`: expected {expected}, found {found}")]
    Option {
        /// The name of the option.
        option: &'static str,
        /// The allowed values.
        expected: &'static str,
        /// The configured value.
        found: String,
    },
    /// The model does not fit on an instance, or no instance has this tensor parallelism.
    #[error(transparent)]
    Cost(#[from] crate::cluster::CostError),
}

/// Returns vLLM's default of `max_num_seqs`.
fn max_running() -> u32 {
    256
}

/// Returns a typical polling interval of a router.
fn report_interval() -> Nanos {
    Nanos(10_000_000)
}

fn slowdown() -> f64 {
    1.0
}
