//! Compares the lengths of the trained responses with the lengths of the policy's responses.

use std::collections::BTreeMap;

use rollpacker_stages::train::{Metrics, named_metrics};
use serde::{Deserialize, Serialize};

use crate::survival::{Curve, Survival};

/// The fixed-point scale: weights and scores are summed as integers in units of 2^-20. Integer sums do not depend on the order and can be
/// retracted exactly.
pub(super) const UNIT: f64 = 1_048_576.0;

/// A number of responses, the sum of their weights, and the sum of their squared weights. Both sums are 0 for responses that are counted
/// without weights.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct WeightSums {
    /// The number of responses.
    pub count: i64,
    /// The sum of weights, in units of 2^-20.
    pub weight: i64,
    /// The sum of squared weights, in units of 2^-20.
    pub square: i64,
}

impl WeightSums {
    /// Creates the sums of one response. The weight and its square are each limited to 2^20.
    #[must_use]
    pub fn one(weight: f32) -> Self {
        let weight = f64::from(weight);
        Self { count: 1, weight: units(weight), square: units(weight * weight) }
    }

    /// Adds the sums of `other`.
    pub fn add(&mut self, other: Self) {
        self.count += other.count;
        self.weight += other.weight;
        self.square += other.square;
    }
}

/// The maximum absolute value that is summed, in units of 2^-20: 2^20, about a million. It keeps the extreme scores of a faulty reward from
/// overflowing the sums, unless there are more than eight million of them.
const MAX: f64 = (1u64 << 40) as f64;

/// Returns a value in units of 2^-20. The value is clamped to [-2^20, 2^20]; NaN becomes 0.
pub(super) fn units(value: f64) -> i64 {
    (value * UNIT).round().clamp(-MAX, MAX) as i64
}

/// The lengths of the responses that were trained on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainedLengths {
    lengths: BTreeMap<u32, WeightSums>,
    all: WeightSums,
}

/// The measure by which responses are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Count,
    Weight,
}

impl By {
    fn of(self, weighed: WeightSums) -> f64 {
        match self {
            Self::Count => weighed.count as f64,
            Self::Weight => weighed.weight as f64 / UNIT,
        }
    }
}

impl TrainedLengths {
    /// Adds responses of `tokens` tokens each. `weighed` has the number of the responses and the sums of their weights.
    pub fn add(&mut self, tokens: u32, weighed: WeightSums) {
        self.lengths.entry(tokens).or_default().add(weighed);
        self.all.add(weighed);
    }

    /// Returns the number of responses.
    #[must_use]
    pub fn count(&self) -> i64 {
        self.all.count
    }

    /// Returns the number of tokens of all responses.
    #[must_use]
    pub fn tokens(&self) -> i64 {
        self.lengths.iter().map(|(tokens, weighed)| i64::from(*tokens) * weighed.count).sum()
    }

    /// Returns the effective sample size divided by the number of responses, `(sum w)^2 / (n sum w^2)` (L. Kish, Survey Sampling, 1965).
    /// The value is NaN if there are no responses or all weights are 0, and otherwise in (0, 1]. It is inaccurate, and may exceed 1, if
    /// weights are above 1024 or below 0.01, because their squares are limited to 2^20 and rounded to multiples of 2^-20.
    #[must_use]
    pub fn effective(&self) -> f64 {
        let weight = self.all.weight as f64 / UNIT;
        weight * weight / (self.all.count as f64 * self.all.square as f64 / UNIT)
    }

    /// Returns `true` if any weight differs from 1.
    #[must_use]
    pub fn is_weighted(&self) -> bool {
        // The mean and the mean square are both 1 only if every weight is 1.
        let units = self.all.count * WeightSums::one(1.0).weight;
        self.all.weight != units || self.all.square != units
    }

    fn mean(&self, by: By) -> f64 {
        let sum: f64 =
            self.lengths.iter().map(|(l, weighed)| f64::from(*l) * by.of(*weighed)).sum();
        sum / by.of(self.all)
    }

    fn quantile(&self, p: f64, by: By) -> Option<u32> {
        let mut below = 0.0;
        let covers = self.lengths.iter().find(|(_, weighed)| {
            below += by.of(**weighed);
            below >= (p - 1e-9) * by.of(self.all)
        });
        covers.map(|(length, _)| *length)
    }

    /// Returns the share of the responses, by number or by weight, that have at least `from` tokens.
    fn from(&self, from: u32, by: By) -> f64 {
        let sum: f64 = self.lengths.range(from..).map(|(_, weighed)| by.of(*weighed)).sum();
        sum / by.of(self.all)
    }
}

/// The length distribution of the policy and the lengths of the trained responses, for a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LengthComparison {
    /// Lengths of the policy. The length of a response that was cut is only known to exceed its tokens.
    pub policy: Survival,
    /// Lengths of the policy if each response that was aborted because its group was full had ended with the next token: a lower bound.
    pub policy_low: Survival,
    /// Lengths of the responses that were trained on.
    pub trained: TrainedLengths,
}

impl LengthComparison {
    /// Returns the metrics `bias/...` about lengths, except `bias/step_mean_ratio`. Returns no metrics until a response was trained on and
    /// the policy's mean length is known and above 0. Leaves out ratios without a value, such as those of weights that are all 0. `cap` is
    /// the maximum response length in tokens.
    #[must_use]
    pub fn bias(&self, cap: u32) -> Metrics {
        let (Some(mean), Some(low)) = (self.policy.mean(), self.policy_low.mean()) else {
            return Metrics::new();
        };
        if self.trained.count() == 0 || mean <= 0.0 {
            return Metrics::new();
        }
        let trained = self.trained.mean(By::Count);
        let mut metrics = named_metrics([
            ("bias/policy_mean", mean),
            ("bias/policy_mean_low", low),
            ("bias/mean_ratio_high", trained / low),
            ("bias/ess", self.trained.effective()),
        ]);
        let curve = self.policy.curve();
        self.shares(&curve, cap, &mut metrics);
        self.ratios("bias/", By::Count, &curve, cap, &mut metrics);
        if self.trained.is_weighted() {
            self.ratios("bias/weighted_", By::Weight, &curve, cap, &mut metrics);
        }
        metrics.retain(|_, value| value.is_finite());
        metrics
    }

    fn ratios(&self, prefix: &str, by: By, curve: &Curve, cap: u32, metrics: &mut Metrics) {
        let mut put = |name: String, value: f64| metrics.insert(format!("{prefix}{name}"), value);
        if let Some(mean) = curve.mean() {
            put("mean_ratio".to_owned(), self.trained.mean(by) / mean);
        }
        for (name, p) in [("p90_ratio", 0.9), ("p99_ratio", 0.99)] {
            if let (Some(ours), Some(policy)) =
                (self.trained.quantile(p, by), quantile(&self.policy, p))
            {
                put(name.to_owned(), f64::from(ours) / policy);
            }
        }
        for (low, high) in buckets(cap) {
            let share = share_at_least(curve, low) - share_at_least(curve, high);
            if share > 0.0 {
                let ours = self.trained.from(low, by) - self.trained.from(high, by);
                put(format!("inclusion/{low}_{high}"), ours / share);
            }
        }
    }

    fn shares(&self, curve: &Curve, cap: u32, metrics: &mut Metrics) {
        // At the cap itself, count the responses that reach it: none exceeds it.
        for (limit, from) in [(cap / 4, 1), (cap / 2, 1), (cap / 4 * 3, 1), (cap, 0)] {
            let from = limit.saturating_add(from);
            let name = format!("bias/share_above_{limit}");
            metrics.insert(format!("{name}/trained"), self.trained.from(from, By::Count));
            metrics.insert(format!("{name}/policy"), share_at_least(curve, from));
        }
    }
}

fn quantile(policy: &Survival, p: f64) -> Option<f64> {
    policy.quantile(p).filter(|length| *length > 0).map(f64::from)
}

/// Returns the probability that a response has at least `tokens` tokens.
fn share_at_least(curve: &Curve, tokens: u32) -> f64 {
    tokens.checked_sub(1).map_or(1.0, |before| curve.survival(before))
}

/// Returns length buckets `[low, high)`: the first is 512 tokens wide, each later edge doubles, and the last bucket contains the cap.
pub(crate) fn buckets(cap: u32) -> impl Iterator<Item = (u32, u32)> {
    let edges = std::iter::successors(Some(512u32), |edge| edge.checked_mul(2));
    let mut low = 0;
    edges
        .take_while(move |edge| edge / 2 <= cap || *edge == 512)
        .map(move |high| (std::mem::replace(&mut low, high), high))
}
