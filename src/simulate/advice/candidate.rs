//! Candidates of a job, and the choice among them.

use super::super::interval::SpeedupInterval;
use super::super::summary::Summary;

/// A configuration of a job, considered as the choice. If a trace only bounds the correlation of the lengths of responses to the same
/// prompt, the configuration is simulated at both ends of that interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    /// The index among all configurations.
    pub(super) index: usize,
    /// The summary at the lower end of the interval of correlations, or the only summary.
    pub(super) summary: &'a Summary,
    /// The summary at the upper end of the interval; `None` unless the trace only bounds the correlation.
    pub(super) upper: Option<&'a Summary>,
    /// `true` if this is the plain `sync` of its job, to which [`speed`](Self::speed) and [`interval`](Self::interval) are relative.
    pub(super) is_sync: bool,
}

/// The choice among the candidates of a job.
#[derive(Clone, Debug)]
pub(super) struct ChosenCandidate<'a> {
    pub(super) choice: Candidate<'a>,
    /// The other low-bias candidates whose interval overlaps the interval of the fastest low-bias candidate. The fastest candidate is among
    /// them unless it is the choice.
    pub(super) equivalent: Vec<Candidate<'a>>,
}

/// The error of the mean length is rounded to a multiple of this before it is compared.
const BIAS_RESOLUTION: f64 = 0.01;
/// The discarded share is rounded to a multiple of this before it is compared.
const WASTE_RESOLUTION: f64 = 0.05;

/// The costs of a configuration other than time, the most important first: the error of the mean length and the share of discarded tokens,
/// as rounded multiples of `BIAS_RESOLUTION` and `WASTE_RESOLUTION`, and the number of settings (0 for plain `sync`). The derived order
/// compares them in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CandidateCost {
    pub(super) bias: u32,
    pub(super) waste: u32,
    pub(super) settings: usize,
}

impl<'a> Candidate<'a> {
    /// Returns the candidate's name in tables.
    pub(super) fn label(&self) -> &'a str {
        &self.summary.label
    }

    /// Returns the candidate's summaries: one for each end of the interval of correlations if the trace only determines an interval, and
    /// otherwise a single one.
    pub(super) fn summaries(&self) -> impl Iterator<Item = &'a Summary> {
        std::iter::once(self.summary).chain(self.upper)
    }

    /// Returns the mean speed-up over plain `sync`: the lower of the speed-ups at both ends, and 0 if it is not known.
    pub(super) fn speed(&self) -> f64 {
        let speed = |summary: &Summary| summary.speedup_over_sync.map_or(0.0, |stat| stat.mean);
        self.summaries().map(speed).fold(f64::INFINITY, f64::min)
    }

    /// Returns the interval of the speed-up over plain `sync`. With two ends, it is the smallest interval that contains the intervals at
    /// both. Returns `[0, 0]` if no interval is known.
    pub(super) fn interval(&self) -> SpeedupInterval {
        let nothing = SpeedupInterval { low: 0.0, high: 0.0 };
        let intervals = self.summaries().filter_map(|summary| summary.over_sync_interval);
        intervals.reduce(SpeedupInterval::hull).unwrap_or(nothing)
    }

    /// Returns `true` if the candidate is on-policy and has low bias at both ends. The bias is low if the mean trained length differs from
    /// the mean length of the policy by at most the share `tolerance`, and the effective sample size is at least `MIN_ESS` or not known.
    pub(super) fn is_low(&self, tolerance: f64) -> bool {
        self.summaries().all(|summary| summary.on_policy && summary.bias.is_low(tolerance))
    }

    pub(super) fn cost(&self) -> CandidateCost {
        let worst = |of: &dyn Fn(&Summary) -> f64| self.summaries().map(of).fold(0.0, f64::max);
        let off = |summary: &Summary| {
            summary.bias.mean_ratio.map_or(0.0, |ratio| (ratio.mean - 1.0).abs())
        };
        let wasted = |summary: &Summary| summary.bias.discarded.map_or(0.0, |share| share.mean);
        CandidateCost {
            bias: (worst(&off) / BIAS_RESOLUTION).round() as u32,
            waste: (worst(&wasted) / WASTE_RESOLUTION).round() as u32,
            settings: if self.is_sync { 0 } else { self.summary.settings.len().max(1) },
        }
    }
}

/// Returns the cheapest of the candidates that are indistinguishable from the fastest candidate, or `None` if no candidate is on-policy
/// with low bias.
///
/// Only candidates that are on-policy with low bias count. A candidate is indistinguishable from the fastest if their intervals overlap. Of
/// candidates with equal [`CandidateCost`], the faster one is chosen.
pub(super) fn choose<'a>(
    candidates: &[Candidate<'a>],
    tolerance: f64,
) -> Option<ChosenCandidate<'a>> {
    let fit = || candidates.iter().filter(|candidate| candidate.is_low(tolerance));
    let fastest = *fit().max_by(|a, b| a.speed().total_cmp(&b.speed()))?;
    let near: Vec<Candidate<'a>> =
        fit().filter(|one| one.interval().overlaps(fastest.interval())).copied().collect();
    let cheapest = near
        .iter()
        .min_by(|a, b| a.cost().cmp(&b.cost()).then_with(|| b.speed().total_cmp(&a.speed())));
    let choice = *cheapest.unwrap_or(&fastest);
    let equivalent = near.iter().filter(|one| one.index != choice.index).copied().collect();
    Some(ChosenCandidate { choice, equivalent })
}
