//! The length distribution of a policy, estimated from responses, some of which were aborted.
//!
//! The length of an aborted response is known only to exceed the tokens that it had: a right-censored observation. Leaving it out, or using
//! its tokens as its length, underestimates the lengths of the policy, most of all in the tail that schedules are designed for. The
//! estimator is the product-limit estimator (E. L. Kaplan and P. Meier, "Nonparametric estimation from incomplete observations", JASA 53,
//! 1958): with `d(t)` responses that ended at `t` tokens and `n(t)` that reached `t`,
//!
//! ```text
//! P(L > t) = product over u <= t of (1 - d(u) / n(u))
//! ```
//!
//! A response that reaches the length cap is whole: under the cap, the policy's response *is* that long. A response that is paused and
//! continued by a schedule is observed once, when it ends.
//!
//! The estimate is consistent if the time of an abort carries no information about the remaining length. An abort because *other* responses
//! of the same prompt were shorter does carry information, since lengths within a prompt are correlated. A prompt that is launched again
//! because it was long is counted twice. The documentation of the ledger describes the size of these effects, and their treatment.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Observed lengths, whole and right-censored, with the product-limit estimate over them.
///
/// Counts are kept per exact length. With `d` distinct lengths, an observation costs O(log d), and a query costs one pass of O(d). The
/// number of responses does not matter: 600,000 responses under a cap of 16,384 tokens are at most 16,384 counts. For frequent queries, use
/// a [`Curve`], which answers in O(log d).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survival {
    tallies: BTreeMap<u32, LengthCounts>,
    /// The number of left-truncated responses by entry, the length beyond which they are observed.
    entries: BTreeMap<u32, u64>,
    count: u64,
}

/// The number of responses observed at one length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct LengthCounts {
    /// Responses that ended at the length.
    whole: u64,
    /// Responses that were aborted at the length; their true length exceeds it.
    cut: u64,
}

impl Survival {
    /// Observes a response of `tokens` tokens. If `whole` is `true`, the length of the response is `tokens`; otherwise its length exceeds
    /// `tokens`.
    pub fn observe(&mut self, tokens: u32, whole: bool) {
        self.observe_many(tokens, whole, 1);
    }

    /// Observes `count` responses of `tokens` tokens each; see [`Survival::observe`].
    pub fn observe_many(&mut self, tokens: u32, whole: bool, count: u64) {
        if count == 0 {
            return;
        }
        let tally = self.tallies.entry(tokens).or_default();
        if whole {
            tally.whole += count;
        } else {
            tally.cut += count;
        }
        self.count += count;
    }

    /// Observes `count` responses that carry no information about the first `entry` tokens (left truncation). They replace the continuation
    /// of responses that were cut at `entry`. The caller must also call [`Survival::observe_many`] for the same number of responses, each
    /// of more than `entry` tokens.
    ///
    /// The responses are at risk only at lengths above `entry` (delayed entry; W.-Y. Tsai, N. P. Jewell and M.-C. Wang, Biometrika 74,
    /// 1987). Entries and ends are counted separately, because the estimate needs only these counts.
    pub fn enter_many(&mut self, entry: u32, count: u64) {
        if count > 0 {
            *self.entries.entry(entry).or_default() += count;
        }
    }

    /// Observes a left-truncated response: it carries information only about lengths beyond `entry` tokens, because an earlier response to
    /// its prompt was cut at `entry`. `tokens` and `whole` are as in [`observe`](Self::observe). A response that is not longer than `entry`
    /// is ignored.
    pub fn observe_from(&mut self, entry: u32, tokens: u32, whole: bool) {
        if tokens > entry {
            self.enter_many(entry, 1);
            self.observe(tokens, whole);
        }
    }

    /// Adds the observations of another estimate.
    pub fn merge(&mut self, other: &Self) {
        for (tokens, tally) in &other.tallies {
            self.observe_many(*tokens, true, tally.whole);
            self.observe_many(*tokens, false, tally.cut);
        }
        for (entry, count) in &other.entries {
            self.enter_many(*entry, *count);
        }
    }

    /// Returns the number of observed responses, whole and censored. A response with late entry counts as one.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the longest observation, whole or censored, in tokens; `None` if nothing was observed.
    #[must_use]
    pub fn longest(&self) -> Option<u32> {
        self.tallies.last_key_value().map(|(length, _)| *length)
    }

    /// Returns the `p` quantile, with `p` in (0, 1]: the smallest length, in tokens, that at least a share `p` of the responses do not
    /// exceed. Returns `None` if nothing was observed, or if too many of the longest responses are censored.
    #[must_use]
    pub fn quantile(&self, p: f64) -> Option<u32> {
        self.falls().find(|(_, survival)| *survival <= 1.0 - p + ROUNDING).map(|(length, _)| length)
    }

    /// Returns the mean length up to the longest observation `T`, E\[min(L, T)\], in tokens; `None` if nothing was observed.
    ///
    /// If the longest observation is censored, the lengths beyond it are unknown and count as `T`: the mean is a lower bound.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        self.curve().mean()
    }

    /// Returns the estimate with precomputed sums, for many queries between observations. Takes O(d).
    #[must_use]
    pub fn curve(&self) -> Curve {
        let mut steps = Vec::with_capacity(self.tallies.len());
        let (mut at, mut survival, mut area) = (0, 1.0, 0.0);
        for (length, fallen) in self.falls() {
            area += survival * f64::from(length - at);
            (at, survival) = (length, fallen);
            steps.push(CurveStep { length, survival, area });
        }
        let last = self.longest();
        Curve { steps, last, area: area + survival * f64::from(last.unwrap_or(at) - at) }
    }

    /// Returns the lengths at which responses ended, in ascending order, each with P(L > length).
    ///
    /// The risk set at a length is the number of responses known to have reached it. It starts with the responses that did not enter late;
    /// late entries join it at the first observed length above their entry. At a length with `d` whole responses among `n` at risk, the
    /// estimate is multiplied by `1 - d / n`. Responses aborted at the length leave the risk set only afterwards, because they did reach
    /// the length. Lengths at which responses were only aborted do not change the estimate and are left out.
    fn falls(&self) -> impl Iterator<Item = (u32, f64)> {
        let late: u64 = self.entries.values().sum();
        let mut entries = self.entries.iter().peekable();
        let mut at_risk = self.count.saturating_sub(late);
        let mut survival = 1.0;
        self.tallies.iter().filter_map(move |(length, tally)| {
            while let Some((_, count)) = entries.next_if(|(entry, _)| *entry < length) {
                at_risk += count;
            }
            let reached = at_risk;
            at_risk = at_risk.saturating_sub(tally.whole + tally.cut);
            if tally.whole == 0 || reached == 0 {
                return None;
            }
            survival *= share(reached.saturating_sub(tally.whole), reached);
            Some((*length, survival))
        })
    }
}

/// Absorbs the rounding of a product of thousands of ratios, so that the 0.9 quantile of ten whole responses is the ninth.
const ROUNDING: f64 = 1e-9;

fn share(part: u64, of: u64) -> f64 {
    part as f64 / of as f64
}

/// A [`Survival`] estimate prepared for many queries. It does not include later observations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    steps: Vec<CurveStep>,
    /// The longest observation, in tokens; `None` if nothing was observed.
    last: Option<u32>,
    /// The integral of P(L > t) up to the longest observation.
    area: f64,
}

/// A length at which the curve falls, because responses ended there.
#[derive(Clone, Copy, Debug, PartialEq)]
struct CurveStep {
    length: u32,
    /// P(L > length).
    survival: f64,
    /// The integral of P(L > t) from 0 to `length`.
    area: f64,
}

impl Curve {
    /// Returns the estimated probability P(L > `tokens`) that the length L of a response exceeds `tokens`. It is 1 if nothing was observed,
    /// and constant beyond the longest whole response. Takes O(log d).
    #[must_use]
    pub fn survival(&self, tokens: u32) -> f64 {
        self.before(tokens).map_or(1.0, |fall| fall.survival)
    }

    /// Returns the expected number of remaining tokens of a response that has `tokens` tokens, E\[min(L, T) - `tokens` | L > `tokens`\],
    /// with `T` the longest observation.
    ///
    /// Returns `None` if no observation allows an estimate: at and beyond `T`, and where the estimate of P(L > `tokens`) is 0. The caller
    /// should then fall back to its cap. Takes O(log d).
    #[must_use]
    pub fn mean_residual(&self, tokens: u32) -> Option<f64> {
        let survival = self.survival(tokens);
        (Some(tokens) < self.last && survival > 0.0)
            .then(|| (self.area - self.area_to(tokens)) / survival)
    }

    /// Returns the same value as [`Survival::mean`], in O(1).
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        self.last.map(|_| self.area)
    }

    fn area_to(&self, tokens: u32) -> f64 {
        match self.before(tokens) {
            None => f64::from(tokens),
            Some(fall) => fall.area + fall.survival * f64::from(tokens - fall.length),
        }
    }

    /// Returns the last step at or before a length.
    fn before(&self, tokens: u32) -> Option<&CurveStep> {
        self.steps[..self.steps.partition_point(|fall| fall.length <= tokens)].last()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Survival;

    fn observed(observations: &[(u32, bool)]) -> Survival {
        let mut survival = Survival::default();
        for (tokens, whole) in observations {
            survival.observe(*tokens, *whole);
        }
        survival
    }

    fn near(ours: f64, expected: f64) {
        assert!((ours - expected).abs() < 1e-9, "{ours} is not {expected}");
    }

    /// Freireich's 6-MP arm, the standard textbook table: S(6) = .857, S(10) = .753, S(13) = .690, S(16) = .627, S(22) = .538, S(23) =
    /// .448.
    #[test]
    fn survival_matches_the_textbook_table() {
        let whole = [6, 6, 6, 7, 10, 13, 16, 22, 23].map(|t| (t, true));
        let cut = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35].map(|t| (t, false));
        let survival = observed(&[&whole[..], &cut[..]].concat());
        let table = [
            (5, 1.0),
            (6, 0.857),
            (7, 0.807),
            (10, 0.753),
            (13, 0.690),
            (16, 0.627),
            (22, 0.538),
            (23, 0.448),
            (40, 0.448),
        ];
        let curve = survival.curve();
        for (tokens, expected) in table {
            assert!(
                (curve.survival(tokens) - expected).abs() < 5e-4,
                "{tokens}: {}",
                curve.survival(tokens)
            );
        }
        assert_eq!(survival.quantile(0.5), Some(23));
        assert_eq!(survival.quantile(0.6), None, "censoring hides it");
        assert_eq!(survival.count(), 21);
    }

    /// At 2, one of four ends; at 3, one is aborted; at 5, one of two ends; at 9, the last: S = 3/4, 3/8, 0.
    #[test]
    fn means_match_a_manual_computation() {
        let survival = observed(&[(2, true), (3, false), (5, true), (9, true)]);
        near(survival.mean().unwrap(), 2.0 + 3.0 * 0.75 + 4.0 * 0.375);
        let curve = survival.curve();
        near(curve.mean_residual(0).unwrap(), 5.75);
        near(curve.mean_residual(2).unwrap(), (3.0 * 0.75 + 4.0 * 0.375) / 0.75);
        near(curve.mean_residual(4).unwrap(), (0.75 + 4.0 * 0.375) / 0.75);
        near(curve.mean_residual(6).unwrap(), 3.0);
        assert_eq!(curve.mean_residual(9), None, "no observation is longer than the last");
    }

    #[test]
    fn a_censored_end_bounds_the_mean_from_below() {
        let survival = observed(&[(2, true), (10, false)]);
        near(survival.mean().unwrap(), 2.0 + 8.0 * 0.5);
        near(survival.curve().mean_residual(4).unwrap(), 6.0);
        assert_eq!(survival.curve().mean_residual(10), None, "no observation is longer");
    }

    /// One of two responses ends at 2, the other is cut at 4 and drawn again: 8, at risk only beyond 4. A new draw of 3 carries no
    /// information.
    #[test]
    fn a_new_draw_counts_only_beyond_the_cut_of_the_first() {
        let mut survival = observed(&[(2, true), (4, false)]);
        survival.observe_from(4, 8, true);
        survival.observe_from(4, 3, true);
        near(survival.curve().survival(4), 0.5);
        near(survival.mean().unwrap(), 2.0 + 6.0 * 0.5);
        near(observed(&[(2, true), (4, false), (8, true)]).mean().unwrap(), 2.0 + 6.0 * 2.0 / 3.0);
    }

    #[test]
    fn statistics_are_none_without_observations() {
        let survival = Survival::default();
        near(survival.curve().survival(100), 1.0);
        assert_eq!(
            (survival.mean(), survival.quantile(0.5), survival.curve().mean_residual(0)),
            (None, None, None)
        );
    }

    #[test]
    fn without_censoring_statistics_are_those_of_the_sample() {
        let survival = observed(&(1..=10).map(|t| (t, true)).collect::<Vec<_>>());
        near(survival.mean().unwrap(), 5.5);
        assert_eq!(
            (survival.quantile(0.9), survival.quantile(1.0), survival.quantile(0.01)),
            (Some(9), Some(10), Some(1))
        );
    }

    /// Counts every observation at every token: simple and slow.
    fn naive(observations: &[(u32, bool)], tokens: u32) -> f64 {
        let mut survival = 1.0;
        for at in 0..=tokens {
            let reached = observations.iter().filter(|(length, _)| *length >= at).count();
            let ended =
                observations.iter().filter(|(length, whole)| *length == at && *whole).count();
            if reached > 0 {
                survival *= 1.0 - ended as f64 / reached as f64;
            }
        }
        survival
    }

    proptest! {
        #[test]
        fn the_curve_matches_a_naive_implementation(observations in prop::collection::vec((0u32..40, any::<bool>()), 1..60), at in 0u32..45, split in 0usize..60) {
            let split = split.min(observations.len());
            let mut survival = observed(&observations[..split]);
            survival.merge(&observed(&observations[split..]));
            prop_assert_eq!(&survival, &observed(&observations));
            let curve = survival.curve();
            near(curve.survival(at), naive(&observations, at));

            let last = observations.iter().map(|(length, _)| *length).max().unwrap();
            near(survival.mean().unwrap(), (0..last).map(|t| naive(&observations, t)).sum());
            prop_assert_eq!(curve.mean(), survival.mean());
            let alive = naive(&observations, at);
            match curve.mean_residual(at) {
                None => prop_assert!(at >= last || alive < 1e-12),
                Some(residual) => near(residual, (at..last).map(|t| naive(&observations, t)).sum::<f64>() / alive),
            }
        }

        #[test]
        fn a_quantile_is_the_first_length_that_covers_the_share(observations in prop::collection::vec((0u32..40, any::<bool>()), 1..60), p in 0.01f64..1.0) {
            let survival = observed(&observations);
            let first = (0..40).find(|t| naive(&observations, *t) <= 1.0 - p + 1e-9);
            prop_assert_eq!(survival.quantile(p), first);
        }
    }

    #[test]
    fn a_snapshot_round_trips() {
        let survival = observed(&[(2, true), (3, false), (5, true)]);
        let text = serde_json::to_string(&survival).unwrap();
        assert_eq!(serde_json::from_str::<Survival>(&text).unwrap(), survival);
    }
}
