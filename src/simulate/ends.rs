//! The figures at both ends of the within-prompt correlation that a trace leaves open.

use serde::Serialize;

use super::interval::Interval;
use super::stat::Stat;
use super::summary::Summary;

/// A figure at the lower and at the upper end of the correlation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Both {
    /// At the lower end.
    pub low: f64,
    /// At the upper end.
    pub high: f64,
}

/// The means of the figures at both ends; the correlations are those of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ends {
    /// Seconds of a step.
    pub step_s: Both,
    /// Response tokens trained on in a second.
    pub tokens_per_s: Both,
    /// Steps in the time of one of the baseline.
    pub speedup: Option<Both>,
    /// The interval of the speed-up at both ends together.
    pub speedup_interval: Option<Interval>,
    /// Trained tokens in the time of one of the baseline.
    pub token_speedup: Option<Both>,
    /// Steps in the time of one of the job's plain `sync`.
    pub speedup_over_sync: Option<Both>,
    /// Mean length trained on over the policy's.
    pub mean_ratio: Option<Both>,
    /// The same of the 90th percentiles.
    pub p90_ratio: Option<Both>,
    /// The same of the 99th.
    pub p99_ratio: Option<Both>,
    /// Trained share over the policy's share, of the bucket of lengths where it is least.
    pub least_inclusion: Option<Both>,
    /// Effective sample size over responses.
    pub ess: Option<Both>,
    /// Share of sampled tokens that were not trained on.
    pub discarded: Option<Both>,
}

impl Ends {
    /// The figures of a configuration at both ends.
    #[must_use]
    pub fn of(low: &Summary, high: &Summary) -> Self {
        let both = |of: fn(&Summary) -> Option<Stat>| {
            Some(Both { low: of(low)?.mean, high: of(high)?.mean })
        };
        let intervals = low.speedup_interval.zip(high.speedup_interval);
        Self {
            step_s: Both { low: low.step_s.mean, high: high.step_s.mean },
            tokens_per_s: Both { low: low.tokens_per_s.mean, high: high.tokens_per_s.mean },
            speedup: both(|summary| summary.speedup),
            speedup_interval: intervals.map(|(low, high)| low.hull(high)),
            token_speedup: both(|summary| summary.token_speedup),
            speedup_over_sync: both(|summary| summary.speedup_over_sync),
            mean_ratio: both(|summary| summary.bias.mean_ratio),
            p90_ratio: both(|summary| summary.bias.p90_ratio),
            p99_ratio: both(|summary| summary.bias.p99_ratio),
            least_inclusion: both(|summary| summary.bias.least_inclusion),
            ess: both(|summary| summary.bias.ess),
            discarded: both(|summary| summary.bias.discarded),
        }
    }
}
