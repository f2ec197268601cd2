//! The fitted constants of the cost model, and the measured distributions from which the simulation draws.
//!
//! The source is the RollPacker paper (NSDI '26): numbers in its text, and values read off its figures. All sections, tables and figures
//! named below are those of the paper. Most constants were fitted together to Table 2, the step times of veRL and RollPacker in Fig. 10,
//! Fig. 11c, and Fig. 16. A few were fitted alone: the time of the judge to its row of Table 1, the cost of time slicing to the short
//! rounds of Fig. 14a, and the share of endless responses to some bars of Fig. 12. The documentation of each constant names its
//! measurements, or states that it was not fitted. The run of the authors' repository, the rows for math and code of Table 1, Figs. 4b, 14c
//! and 15, and Tables 3 and 4 were held out.
//!
//! The defaults describe an engine and a trainer without a slow controller. The serial work of RollPacker's own controller does not
//! transfer to other clusters: the run of the authors' repository shows none of it. The jobs of the evaluation in `configs/sim` therefore
//! set [`dispatch_interval`](Calibration::dispatch_interval), [`scoring_interval`](Calibration::scoring_interval),
//! [`padding_per_token`](Calibration::padding_per_token), [`rollout_overhead`](Calibration::rollout_overhead) and
//! [`optimizer_step`](Calibration::optimizer_step) themselves.

use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};

documented! {
    /// Constants that no data sheet provides. [`Default`] has the fitted values; a recipe may change any of them for a sensitivity study.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Calibration {
        /// The share of a device's memory that an engine may use, like `gpu_memory_utilization` of vLLM. Not fitted.
        pub memory_share: f64,
        /// Bytes per device for the activations and graphs of an engine. Not fitted.
        pub activation_bytes: f64,
        /// The share of the memory bandwidth that reading weights achieves. Fitted to the long rounds of Fig. 11c.
        pub weight_bandwidth: f64,
        /// The share of the memory bandwidth that reading the KV cache achieves. Fitted to the long rounds of Fig. 11c.
        pub kv_bandwidth: f64,
        /// The share of peak FLOP/s that decoding achieves where it is compute-bound. Not fitted.
        pub decode_utilisation: f64,
        /// The share of peak FLOP/s that prefill achieves. Not fitted.
        pub prefill_utilisation: f64,
        /// Seconds of a prefill in addition to its arithmetic. Not fitted.
        pub prefill_overhead: f64,
        /// Seconds to launch the kernels of a layer in a decode iteration. The launch overlaps with the work of the device. Fitted to the
        /// long rounds of Fig. 11c, whose time per token is proportional to the number of layers of the model, not to the weights on a
        /// device.
        pub layer_launch: f64,
        /// Seconds per decode iteration on the host, independent of the batch. Fitted to the long rounds of Fig. 11c.
        pub iteration_overhead: f64,
        /// Seconds per decode iteration on the host for each running response: sampling, scheduling, detokenization. Fitted together with
        /// `layer_launch` and `iteration_overhead`, to the long rounds of Fig. 11c.
        pub response_overhead: f64,
        /// Latency of the all-reduces of a layer between two devices, in seconds, regardless of their size. The latency grows with the
        /// logarithm of the number of devices. Fitted to the long rollouts of the 32B job relative to the 7B job.
        pub all_reduce_latency: f64,
        /// Seconds that the controller of a job takes to hand out a response. Unless responses are streamed to the instances, responses
        /// that are launched together arrive when all of them are handed out. 0 by default.
        pub dispatch_interval: f64,
        /// Seconds of a rollout before its first token, independent of the model. 0 by default.
        pub rollout_overhead: f64,
        /// Seconds of weight synchronization per parameter. Fitted to the synchronization in Fig. 11c.
        pub weight_sync_per_parameter: f64,
        /// Seconds to restart engine instances with another tensor parallelism, in addition to loading the weights. Not fitted: Table 2
        /// shows no restart, because the planner of its jobs never changes the parallelism.
        pub reconfiguration: f64,
        /// Seconds of an optimizer step, independent of the model. Not fitted.
        pub optimizer_step: f64,
        /// Seconds that the single controller takes per token of the padded batch. In this batch, each response has the length of the
        /// longest response and each prompt has 2048 tokens. 0 by default.
        pub padding_per_token: f64,
        /// Model FLOP utilization of a trainer whose devices are fully loaded. Fitted to the training times of Fig. 11c.
        pub training_utilisation: f64,
        /// Seconds per layer of a micro-batch in addition to its arithmetic, over all passes, where two devices share a sequence. This time
        /// grows with the logarithm of the number of devices that share a sequence. Fitted together with `training_utilisation`: it
        /// explains why the job that splits sequences over the most devices trains at the lowest utilization of the three jobs.
        pub training_layer: f64,
        /// FLOPs of training per token, in multiples of the number of parameters: 6 for forward and backward, 2 for the log-probabilities
        /// of the reference, 2 for the log-probabilities of the old policy. Not fitted.
        pub training_flops_per_parameter: f64,
        /// Seconds from the decision to move devices to the trainer until its first group. Not fitted.
        pub handover: f64,
        /// Seconds until a trainer that is already computing uses a changed number of devices. Not fitted.
        pub reassignment: f64,
        /// Seconds that the controller takes to submit a response for scoring after the rollout. Responses that are scored together are
        /// handed out when all of them are submitted. 0 by default. RollPacker's jobs set it to their
        /// [`dispatch_interval`](Self::dispatch_interval), a cost of 28 ms for each response in either direction. Table 2 and Figs. 10 and
        /// 16 are matched best by 25 to 30 ms, and the row of the judge in Table 1 by 16 ms.
        pub scoring_interval: f64,
        /// Seconds of latency in addition to the scoring time if responses are scored as they end. Chosen to match the exposed rewards of
        /// Fig. 11c.
        pub scoring_latency: f64,
        /// Seconds to check a mathematical answer. Not fitted.
        pub math: f64,
        /// Seconds in which a judge scores all responses of a step at once. Chosen to match Table 1.
        pub judge_batch: f64,
        /// Seconds in which a judge on its own devices scores a response. Not identified by the figures.
        pub judge_dedicated: f64,
        /// Seconds in which a judge on the devices of the rollout scores a response. Not identified by the figures.
        pub judge_colocated: f64,
        /// Factor on the time of decoding while a colocated judge runs concurrently (MPS). Not fitted.
        pub judge_slowdown: f64,
        /// Factor on the time of decoding while a colocated judge takes turns with the engine (no MPS). Fitted to the short rounds of Fig.
        /// 14a.
        pub judge_time_slicing: f64,
        /// Correlation of the execution times of two runs for one task, as the correlation of their normal scores (Gaussian copula). Not
        /// identified by the figures.
        pub sandbox_correlation: f64,
    }
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
            response_overhead: 25e-6,
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

/// Execution times in a code sandbox: percentile and seconds. Fig. 8a; about 5 % reach the timeout of 30 s.
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

/// The share of sandbox runs that never end by themselves. In Fig. 8a the CDF reaches 94.8 % before the timeout.
pub const SANDBOX_HANGS: f64 = 0.052;

/// The share of endless responses among the responses to a prompt that has endless responses. Chosen so that the mean times of simulated
/// rounds match those bars of Fig. 12 for which more responses are launched; values from 0.12 to 0.25 fit about as well. The bars show the
/// longest of several rounds. A value of about 0.08 is best if the longest simulated rounds are compared with them.
pub const ENDLESS_OF_HARD: f64 = 0.18;

/// Correlation of the lengths of two responses to a prompt that both end, as the correlation of their normal scores (Gaussian copula).
/// Weakly identified by Figs. 11a and 12: 0.1 to 0.3 fit about as well.
pub const LENGTH_CORRELATION: f64 = 0.15;

/// The name of a task, the share of its responses that never end, and percentiles with their lengths in tokens.
pub type TaskLengths = (&'static str, f64, &'static [(f64, f64)]);

/// Response lengths of Qwen2.5-14B by task, from Fig. 2a. Above the last measured percentile, the lengths of the responses that end extend
/// to 16,384 tokens, the maximum of the measured run.
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
