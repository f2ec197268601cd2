//! Figures at both ends of a within-prompt correlation that a trace does not determine.

use serde::Serialize;

use super::interval::SpeedupInterval;

/// The value of a figure at the lower and at the upper end of the correlation; not sorted by size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LowHigh {
    /// Value at the lower end.
    pub low: f64,
    /// Value at the upper end.
    pub high: f64,
}

/// The means of the figures of a configuration at both ends of the interval of correlations that a trace allows. A figure is `None` unless
/// it is known at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CorrelationEnds {
    /// The mean duration of a step in seconds.
    pub step_s: LowHigh,
    /// Trained response tokens per second.
    pub tokens_per_s: LowHigh,
    /// Speed-up of a step over the baseline: the step time of the baseline divided by the step time of the configuration.
    pub speedup: Option<LowHigh>,
    /// The smallest interval that contains the speed-up's intervals at both ends.
    pub speedup_interval: Option<SpeedupInterval>,
    /// Speed-up over the baseline in trained tokens per second.
    pub token_speedup: Option<LowHigh>,
    /// Speed-up of a step over the plain `sync` of the job.
    pub speedup_over_sync: Option<LowHigh>,
    /// The weighted mean of the trained lengths divided by the mean length of the policy's responses.
    pub mean_ratio: Option<LowHigh>,
    /// The 90th percentile of the trained lengths divided by the 90th percentile of the policy's lengths.
    pub p90_ratio: Option<LowHigh>,
    /// The 99th percentile of the trained lengths divided by the 99th percentile of the policy's lengths.
    pub p99_ratio: Option<LowHigh>,
    /// The minimum inclusion over all buckets of length. The inclusion of a bucket is its share of the trained responses divided by its
    /// share of the policy's responses.
    pub least_inclusion: Option<LowHigh>,
    /// The effective sample size divided by the number of responses.
    pub ess: Option<LowHigh>,
    /// The tokens of responses that were neither trained on nor kept for a later step, divided by all sampled tokens.
    pub discarded: Option<LowHigh>,
}
