//! The fitted constants of the cost model, all of them, and the measured distributions that it draws from.
//!
//! Source: RollPacker, the numbers of its paper and those read off its figures; all sections, tables and figures below are its. The
//! constants were fitted together to Table 2, the totals of Fig. 10, Fig. 11c and Fig. 16; beside each is what it mostly follows from.
//! Kept out of the fit: the runs of the authors' repository, Figs. 4b, 12, 13, 14c and 15, Table 1 in its single tasks, Tables 3 and 4.
//!
//! The defaults describe an engine and a trainer without a slow controller. The serial work of RollPacker's own controller does not
//! transfer to other clusters: the authors' repository run shows none of it. The jobs of the evaluation in `configs/sim` therefore set
//! [`dispatch_interval`](Calibration::dispatch_interval), [`scoring_interval`](Calibration::scoring_interval),
//! [`padding_per_token`](Calibration::padding_per_token), [`rollout_overhead`](Calibration::rollout_overhead) and
//! [`optimizer_step`](Calibration::optimizer_step) themselves.

use serde::{Deserialize, Serialize};

/// Constants that no data sheet gives. [`Default`] is the fit; a recipe may change any of them for a sensitivity study.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Calibration {
    /// Share of a device's memory that an engine may use. vLLM's usual setting; not fitted.
    pub memory_share: f64,
    /// Bytes of a device that activations and graphs of an engine take. Not fitted.
    pub activation_bytes: f64,
    /// Share of the memory bandwidth at which weights are read. Fitted to the long rounds of Fig. 11c.
    pub weight_bandwidth: f64,
    /// Share of the memory bandwidth at which the KV cache is read. Fitted to the long rounds of Fig. 11c.
    pub kv_bandwidth: f64,
    /// Share of the peak that decoding reaches where it is bound by arithmetic. Not fitted.
    pub decode_utilisation: f64,
    /// Share of the peak that prefill reaches. Not fitted.
    pub prefill_utilisation: f64,
    /// Seconds of a prefill beside its arithmetic. Not fitted.
    pub prefill_overhead: f64,
    /// Seconds to launch the kernels of a layer in a decode iteration, which overlaps with the devices' own time. Fitted to the long
    /// rounds of Fig. 11c: their time a token is proportional to the layers of the model, not to its weights on a device.
    pub layer_launch: f64,
    /// Seconds of a decode iteration on the host, whatever runs. Fitted to the long rounds of Fig. 11c.
    pub iteration_overhead: f64,
    /// Seconds of a decode iteration on the host for each running response: sampling, scheduling, detokenisation. Fitted with the above.
    pub response_overhead: f64,
    /// Seconds that the all-reduces of a layer take between two devices, however little they carry; grows with the logarithm of the
    /// devices. Fitted to the long rollouts of the 32B job beside those of the 7B job.
    pub all_reduce_latency: f64,
    /// Seconds that the controller of a job takes to hand out a response; those launched together arrive when all are handed out. None by
    /// default.
    pub dispatch_interval: f64,
    /// Seconds of a rollout before its first token, whatever the model. None by default.
    pub rollout_overhead: f64,
    /// Seconds of weight synchronisation a parameter. Fitted to the synchronisation of Fig. 11c.
    pub weight_sync_per_parameter: f64,
    /// Seconds to restart engine instances with another tensor parallelism, beside loading the weights. Not fitted: none is
    /// seen in Table 2, whose planner never changes it.
    pub reconfiguration: f64,
    /// Seconds of an optimizer step, whatever the model. Not fitted.
    pub optimizer_step: f64,
    /// Seconds a token of the padded batch in the single controller, once for each of its responses. None by default.
    pub padding_per_token: f64,
    /// Model FLOP utilisation of a trainer whose devices are filled. Fitted to the training times of Fig. 11c.
    pub training_utilisation: f64,
    /// Seconds that a micro-batch takes in each layer beside its arithmetic, over all passes, where two devices share a sequence; grows with
    /// the logarithm of these devices. Fitted with the utilisation: it explains why of the three jobs the one that splits sequences over
    /// the most devices trains at the lowest utilisation.
    pub training_layer: f64,
    /// Arithmetic of training a token in multiples of the parameters: 6 for forward and backward, 2 for the log-probabilities of the
    /// reference, 2 for those of the old policy. Not fitted.
    pub training_flops_per_parameter: f64,
    /// Seconds from the decision that a trainer takes some of the devices to its first group. Not fitted.
    pub handover: f64,
    /// Seconds until a trainer that computes already computes on more devices. Not fitted.
    pub reassignment: f64,
    /// Seconds that the controller takes to have a response scored after the rollout; those scored together are handed out when all are
    /// taken in. None by default.
    pub scoring_interval: f64,
    /// Seconds that a reward adds to its own time when responses are scored as they end. Set by the exposed rewards of Fig. 11c.
    pub scoring_latency: f64,
    /// Seconds of checking a mathematical answer. Not fitted.
    pub math: f64,
    /// Seconds in which a judge has scored all responses of a step at once. Set by Table 1.
    pub judge_batch: f64,
    /// Seconds in which a judge with devices of its own scores a response. Not identified by the figures.
    pub judge_dedicated: f64,
    /// Seconds in which a judge that shares the devices of the rollout scores a response. Not identified by the figures.
    pub judge_colocated: f64,
    /// Factor on the time of decoding beside a colocated judge that runs at the same time (MPS). Not fitted.
    pub judge_slowdown: f64,
    /// The same factor where the judge and the engine take turns on a device (no MPS). Fitted to the short rounds of Fig. 14a.
    pub judge_time_slicing: f64,
    /// Correlation of the times of two runs for one task, in ranks of a normal. Not identified by the figures.
    pub sandbox_correlation: f64,
}

impl Default for Calibration {
    fn default() -> Self {
        Self {
            memory_share: 0.80,
            activation_bytes: 4e9,
            weight_bandwidth: 0.95,
            kv_bandwidth: 0.95,
            decode_utilisation: 0.60,
            prefill_utilisation: 0.50,
            prefill_overhead: 2e-3,
            layer_launch: 0.25e-3,
            iteration_overhead: 0.2e-3,
            response_overhead: 50e-6,
            all_reduce_latency: 65e-6,
            dispatch_interval: 0.0,
            rollout_overhead: 0.0,
            weight_sync_per_parameter: 0.75e-9,
            reconfiguration: 0.0,
            optimizer_step: 1.0,
            padding_per_token: 0.0,
            training_utilisation: 0.5,
            training_layer: 4.3e-3,
            training_flops_per_parameter: 10.0,
            handover: 3.0,
            reassignment: 2.0,
            scoring_interval: 0.0,
            scoring_latency: 1.0,
            math: 0.01,
            judge_batch: 7.0,
            judge_dedicated: 2.0,
            judge_colocated: 2.0,
            judge_slowdown: 1.04,
            judge_time_slicing: 1.6,
            sandbox_correlation: 0.5,
        }
    }
}

/// Tokens to which prompts are padded in a batch; veRL's setting in RollPacker's jobs.
pub const PADDED_PROMPT: f64 = 2048.0;

/// Execution times of a code sandbox: percentile and seconds. Fig. 8a; about 5 % run into the timeout of 30 s.
pub const SANDBOX_SECONDS: [(f64, f64); 15] = [
    (0.0, 0.13),
    (5.0, 0.15),
    (10.0, 0.17),
    (25.0, 0.23),
    (50.0, 0.31),
    (60.0, 0.36),
    (70.0, 0.45),
    (75.0, 0.54),
    (80.0, 0.66),
    (85.0, 0.74),
    (90.0, 0.87),
    (92.0, 0.96),
    (93.0, 1.05),
    (94.0, 1.94),
    (94.5, 12.6),
];

/// Share of sandbox runs that never end by themselves; Fig. 8a: the CDF reaches 94.8 % short of the timeout.
pub const SANDBOX_HANGS: f64 = 0.052;

/// Share of responses that never end among those to a prompt that has any. Set by the bars of Fig. 12 that launch more responses; values
/// from 0.12 to 0.25 do alike.
pub const ENDLESS_OF_HARD: f64 = 0.18;

/// Correlation of the lengths of two responses to a prompt that end, in ranks of a normal. Weakly identified by Figs. 11a and 12: 0.1 to
/// 0.3 do alike.
pub const LENGTH_CORRELATION: f64 = 0.15;

/// Name of a task, share of its responses that never end, and percentiles with their tokens.
pub type TaskLengths = (&'static str, f64, &'static [(f64, f64)]);

/// Response lengths of Qwen2.5-14B by task. Fig. 2a; between the last measured percentile and the responses that never end, up to the 16k of the measured run.
pub const LENGTHS: [TaskLengths; 3] = [
    (
        "math",
        0.0099,
        &[
            (0.0, 8.0),
            (1.0, 16.0),
            (5.0, 150.0),
            (10.0, 243.0),
            (25.0, 414.0),
            (50.0, 660.0),
            (75.0, 1128.0),
            (85.0, 1752.0),
            (90.0, 2554.0),
            (93.0, 3372.0),
            (95.0, 4091.0),
            (99.01, 16384.0),
        ],
    ),
    (
        "code",
        0.0091,
        &[
            (0.0, 8.0),
            (1.0, 195.0),
            (5.0, 286.0),
            (10.0, 348.0),
            (25.0, 481.0),
            (50.0, 663.0),
            (75.0, 945.0),
            (85.0, 1261.0),
            (90.0, 1620.0),
            (93.0, 2112.0),
            (95.0, 2783.0),
            (97.0, 4047.0),
            (99.09, 16384.0),
        ],
    ),
    (
        "judge",
        0.0017,
        &[
            (0.0, 8.0),
            (1.0, 8.0),
            (5.0, 12.0),
            (10.0, 91.0),
            (25.0, 295.0),
            (50.0, 520.0),
            (75.0, 755.0),
            (85.0, 914.0),
            (90.0, 1063.0),
            (93.0, 1219.0),
            (95.0, 1416.0),
            (97.0, 1962.0),
            (99.0, 3797.0),
            (99.83, 16384.0),
        ],
    ),
];
