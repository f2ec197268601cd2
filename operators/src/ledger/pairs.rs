//! Pairs of responses to one prompt. From the pairs, the ledger estimates the part of the group-relative gradient that remains when a
//! schedule selects responses by length.
//!
//! With the group's mean as baseline, the advantages of a group of `n` responses with scores `s` and lengths `l` satisfy
//!
//! ```text
//! 1/(n-1) sum_i (s_i - mean s) l_i  =  mean over pairs i < j of (s_i - s_j) (l_i - l_j) / 2
//! ```
//!
//! The left side is the mean product of advantage and length, which determines how the policy's length changes. Its expectation is the
//! covariance of score and length within a prompt. The right side is a mean over pairs. The longer response of a pair determines if the
//! pair is whole or cut. The distribution of the longer length of a pair is therefore estimated like the distribution of lengths (product
//! limit, new draws enter late). For each longer length, the trained pairs have a mean product. The policy's mean product is the mean of
//! these products under the estimated distribution.

use std::collections::BTreeMap;

use rollpacker_stages::train::{Metrics, named_metrics};
use serde::{Deserialize, Serialize};

use crate::length_buckets::{bucket, start};
use crate::survival::Survival;

/// The fixed-point scale: products of score and length, and weights, are summed as integers in units of 2^-10. Integer sums do not depend
/// on the order and can be retracted exactly.
const UNIT: f64 = 1024.0;

/// The maximum absolute value of a product or weight that is summed, in units of 2^-10: 2^28. It keeps the extreme scores of a faulty
/// reward from overflowing the sums.
const MAX: f64 = (1u64 << 38) as f64;

/// The ratio of the policy's mean product to its standard error that must be exceeded. Otherwise, ratios to the mean product are not
/// reported.
const SIGNIFICANT: f64 = 3.0;

facts! {
    /// A fact about pairs of responses to one prompt, by the tokens of the longer response.
    Pair {
        /// The pair is observed only if its longer response has more tokens than this (left truncation).
        Entered = "entered",
        /// Both responses ended by themselves.
        Ended = "ended",
        /// At least one response was aborted, and the prompt was not admitted, for example because the round was full.
        Cut = "cut",
        /// At least one response was aborted, and the prompt was admitted: the group was full.
        Surplus = "surplus",
        /// Both responses were trained on, and the pair is also counted as `Ended`.
        Scored = "scored",
        /// Both responses were trained on. The pairs of all lengths are counted together, with 0 as their number of tokens.
        Trained = "trained",
    }
}

/// Sums over pairs. Except for `pairs`, the sums include only pairs whose responses were both trained on. Products and weights are in units
/// of 2^-10.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Products {
    pub(super) pairs: i64,
    /// Differences of score times differences of length, divided by 2.
    pub(super) product: i64,
    /// Differences of score times differences of weighted length, divided by 2. A weighted length is a length times the weight of its
    /// response.
    pub(super) weighted: i64,
    /// Mean weights of the pairs.
    pub(super) weight: i64,
    /// The number of groups with a pair that was trained on. Only [`Pair::Trained`] counts groups.
    pub(super) groups: i64,
    /// Absolute values of the groups' mean products. Only [`Pair::Trained`] has this sum.
    pub(super) size: i64,
}

impl Products {
    pub(super) fn add(&mut self, other: &Self) {
        let Self { pairs, product, weighted, weight, groups, size } = self;
        let sums = [pairs, product, weighted, weight, groups, size];
        sums.into_iter().zip(other.sums()).for_each(|(sum, more)| *sum += more);
    }

    /// Returns the sums in the order of the fields.
    pub(super) fn sums(&self) -> [i64; 6] {
        let Self { pairs, product, weighted, weight, groups, size } = *self;
        [pairs, product, weighted, weight, groups, size]
    }

    pub(super) fn of(sums: [i64; 6]) -> Self {
        let [pairs, product, weighted, weight, groups, size] = sums;
        Self { pairs, product, weighted, weight, groups, size }
    }
}

/// A response to a prompt, reduced to what its pairs depend on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Member {
    pub(super) tokens: u32,
    /// `true` if the response ended by itself.
    pub(super) whole: bool,
    /// Score and weight if the response was trained on, `None` otherwise.
    pub(super) trained: Option<(f64, f32)>,
}

/// The responses of a prompt as they were observed in a step.
pub(super) struct ObservedGroup {
    pub(super) members: Vec<Member>,
    /// The maximum length, in tokens, at which earlier steps that deferred the prompt observed it. `None` if the prompt was not deferred
    /// before. Only pairs whose longer response exceeds `entry` add information.
    pub(super) entry: Option<u32>,
    /// `true` if the schedule admitted the prompt in the step, so that its aborted responses were surplus.
    pub(super) is_admitted: bool,
}

impl ObservedGroup {
    /// Adds the pairs of the group to `facts`.
    pub(super) fn count(mut self, facts: &mut BTreeMap<Pair, Products>) {
        self.members.sort_by_key(|member| member.tokens);
        let mut trained = Products::default();
        for (at, longer) in self.members.iter().enumerate() {
            for shorter in &self.members[..at] {
                let products = products(shorter, longer);
                self.observe(shorter, longer, products, facts);
                trained.add(&products.unwrap_or_default());
            }
        }
        if trained.pairs > 0 {
            trained.groups = 1;
            trained.size = (trained.product / trained.pairs).abs();
            facts.entry(Pair::Trained(0)).or_default().add(&trained);
        }
    }

    fn observe(
        &self,
        shorter: &Member,
        longer: &Member,
        products: Option<Products>,
        facts: &mut BTreeMap<Pair, Products>,
    ) {
        let tokens = longer.tokens;
        let mut add = |fact, products: &Products| facts.entry(fact).or_default().add(products);
        let once = Products { pairs: 1, ..Products::default() };
        if let Some(entry) = self.entry {
            if tokens <= entry {
                return;
            }
            add(Pair::Entered(entry), &once);
        }
        match (shorter.whole && longer.whole, self.is_admitted) {
            (true, _) => add(Pair::Ended(tokens), &once),
            (false, true) => add(Pair::Surplus(tokens), &once),
            (false, false) => add(Pair::Cut(tokens), &once),
        }
        if let Some(products) = products {
            add(Pair::Scored(tokens), &products);
        }
    }
}

/// Returns the products of a pair; `None` unless both responses were trained on.
fn products(one: &Member, other: &Member) -> Option<Products> {
    let ((one_score, one_weight), (other_score, other_weight)) = one.trained.zip(other.trained)?;
    let (one_length, other_length) = (f64::from(one.tokens), f64::from(other.tokens));
    let (one_weight, other_weight) = (f64::from(one_weight), f64::from(other_weight));
    let scores = (one_score - other_score) / 2.0;
    Some(Products {
        pairs: 1,
        product: units(scores * (one_length - other_length)),
        weighted: units(scores * (one_weight * one_length - other_weight * other_length)),
        weight: units(f64::midpoint(one_weight, other_weight)),
        ..Products::default()
    })
}

fn units(value: f64) -> i64 {
    (value * UNIT).round().clamp(-MAX, MAX) as i64
}

/// All facts about pairs up to a step.
#[derive(Clone, Debug, Default)]
pub(super) struct Pairs {
    /// The distribution of the longer length of a pair.
    policy: Survival,
    /// The distribution of the longer length if each pair that was cut by its own group had ended with the next token.
    policy_low: Survival,
    /// Products of the pairs that were trained on and whose longer response exceeds the group's `entry`, by half-octave bucket of the
    /// longer length.
    scored: BTreeMap<u32, Products>,
    /// Products of all pairs whose responses were both trained on.
    trained: Products,
}

impl Pairs {
    /// Adds the pairs with the fact `pair` to the distributions or sums that they belong to. `products` has the number of these pairs and
    /// their sums.
    pub(super) fn add(&mut self, pair: Pair, products: &Products) {
        let times = u64::try_from(products.pairs).unwrap_or(0);
        let policies = [&mut self.policy, &mut self.policy_low];
        match pair {
            Pair::Entered(at) => {
                policies.into_iter().for_each(|policy| policy.enter_many(at, times));
            }
            Pair::Ended(at) => {
                policies.into_iter().for_each(|policy| policy.observe_many(at, true, times));
            }
            Pair::Cut(at) => {
                policies.into_iter().for_each(|policy| policy.observe_many(at, false, times));
            }
            Pair::Surplus(at) => {
                self.policy.observe_many(at, false, times);
                self.policy_low.observe_many(at + 1, true, times);
            }
            Pair::Scored(at) => self.scored.entry(bucket(at)).or_default().add(products),
            Pair::Trained(_) => self.trained.add(products),
        }
    }

    /// Returns the metrics `bias/length_advantage...`, `bias/gradient_ratio...` and `bias/weighted_gradient_ratio`. Returns none until a
    /// pair was observed and a pair was trained on. Leaves out a ratio whose denominator is not significant, and the weighted ratio if the
    /// weights change nothing.
    pub(super) fn metrics(&self) -> Metrics {
        let Products { pairs, product, weighted, weight, groups, size } = self.trained;
        let (Some(policy), Some(low)) =
            (self.product(&self.policy), self.product(&self.policy_low))
        else {
            return Metrics::new();
        };
        if pairs == 0 {
            return Metrics::new();
        }
        let trained = product as f64 / UNIT / pairs as f64;
        let mut metrics = named_metrics([
            ("bias/length_advantage", policy),
            ("bias/length_advantage_trained", trained),
        ]);
        let error = size as f64 / UNIT / (groups as f64).powf(1.5);
        let mut put = |name: &str, trained: f64, policy: f64| {
            if policy.abs() > SIGNIFICANT * error {
                metrics.insert(format!("bias/{name}"), trained / policy);
            }
        };
        put("gradient_ratio", trained, policy);
        put("gradient_ratio_high", trained, low);
        if weight > 0 && (weight != pairs * units(1.0) || weighted != product) {
            put("weighted_gradient_ratio", weighted as f64 / weight as f64, policy);
        }
        metrics
    }

    /// Returns the mean product of the pairs of a policy; `None` if no pair was observed.
    ///
    /// The mean is an integral over the longer length of a pair, in half-octave buckets. Each bucket contributes its probability under the
    /// estimated distribution, times the mean product of the trained pairs in the bucket. Schedules cut long pairs, so a bucket may have
    /// probability but no trained pair. Such a bucket takes the mean product of the nearest shorter bucket with a trained pair, or 0 if
    /// there is none. The last bucket takes all remaining probability.
    fn product(&self, policy: &Survival) -> Option<f64> {
        let (curve, last) = (policy.curve(), bucket(policy.longest()?));
        let (mut sum, mut mean) = (0.0, 0.0);
        let mut reaching = 1.0;
        for at in 0..=last {
            if let Some(scored) = self.scored.get(&at).filter(|scored| scored.pairs > 0) {
                mean = scored.product as f64 / UNIT / scored.pairs as f64;
            }
            let beyond = if at == last { 0.0 } else { curve.survival(start(at + 1) - 1) };
            sum += (reaching - beyond) * mean;
            reaching = beyond;
        }
        Some(sum)
    }
}
