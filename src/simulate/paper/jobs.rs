//! The jobs of RollPacker's evaluation (section 6.1), and the compared systems as settings.

/// A job in `configs/sim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Base {
    /// The path of the job file, relative to the repository.
    pub(super) path: &'static str,
    /// The contents of the job file.
    pub(super) text: &'static str,
    /// The name of the job in the names of cells.
    pub(super) label: &'static str,
}

macro_rules! base {
    ($label:literal, $file:literal) => {
        Base {
            path: concat!("configs/sim/", $file),
            text: include_str!(concat!("../../../configs/sim/", $file)),
            label: $label,
        }
    };
}

pub(super) const QWEN_7B: Base = base!("7B/8k", "7b.toml");
pub(super) const QWEN_14B: Base = base!("14B/16k", "14b.toml");
pub(super) const QWEN_32B: Base = base!("32B/32k", "32b.toml");
/// The thinking model of Fig. 7.
pub(super) const THINKING_8B: Base = base!("Qwen3-8B/32k", "thinking_8b.toml");
/// SortedRL: 512 samples on 128 slots.
pub(super) const SORTED_RL: Base = base!("512 samples/8k", "sorted_rl.toml");
/// The run of the authors' repository.
pub(super) const REPOSITORY: Base = base!("7B/4k, A100", "repository_7b.toml");
/// RolloutPipe: separate GPUs for generation and for training.
pub(super) const ROLLOUT_PIPE: Base = base!("Qwen3-1.7B", "rollout_pipe.toml");

/// The jobs of the paper's evaluation.
pub(super) const EVALUATION: [Base; 3] = [QWEN_7B, QWEN_14B, QWEN_32B];

/// The settings that turn a job into a compared system.
pub(super) type System = &'static [&'static str];

/// veRL, the baseline.
pub(super) const VERL: System = &["schedule.name=sync"];
/// RLHFuse as section 6.1 strengthens it: rewards concurrent with the rollout, and the stream trainer.
pub(super) const RLHFUSE: System = &["schedule.name=fused", "pipeline.placement=stream"];
/// Tail batching only: rewards after the rollout, training after the rewards.
pub(super) const TAIL_BATCHING: System = &[
    "pipeline.reward=after_rollout",
    "pipeline.gradient=whole_step",
    "pipeline.placement=colocated",
];
/// [`TAIL_BATCHING`] with the reward scheduler: rewards concurrent with the rollout, adaptive time limits, the judge on the GPUs of the
/// rollout.
pub(super) const REWARD_SCHEDULER: System =
    &["pipeline.gradient=whole_step", "pipeline.placement=colocated"];
/// [`REWARD_SCHEDULER`] with the parallelism planner.
pub(super) const PLANNER: System =
    &["pipeline.gradient=whole_step", "pipeline.placement=colocated", "planner.rule=paper"];
/// [`PLANNER`] with the stream trainer: all of RollPacker.
pub(super) const ROLLPACKER: System = &["planner.rule=paper"];

/// A800 in place of the A100-40G of [`REPOSITORY`]. The repository's README offers "eight A800/A100" for its scripts. With two of the
/// scripts, the longest rounds take 79 and 75 s for 8192 tokens. An A100-40G would need 75 s to read the 14.2 GB of multiplied weights as
/// often, at the bandwidth of its data sheet and with no other work.
pub(super) const A800: System = &[
    "cluster.hardware.name=A800",
    "cluster.hardware.memory_bandwidth=2.039e12",
    "cluster.hardware.memory=80e9",
    "cluster.hardware.interconnect_bandwidth=200e9",
];

/// Math tasks only.
pub(super) const MATH: System = &["tasks.math=1", "tasks.code=0", "tasks.judge=0"];
/// Code tasks only.
pub(super) const CODE: System = &["tasks.math=0", "tasks.code=1", "tasks.judge=0"];
/// Judged tasks only.
pub(super) const JUDGED: System = &["tasks.math=0", "tasks.code=0", "tasks.judge=1"];
