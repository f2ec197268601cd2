//! Estimates which response lengths a speculative round leaves out, and the weights that correct for it.
//!
//! With speculation on prompts alone, a response trained in a short round is the first draw of its prompt and has weight 1. A prompt that a
//! short round cuts off is sampled again in a long round, and training uses the new draws instead of the lost ones. The lost draws are
//! longer on average, because the round cut the prompt off for their length. The new draws have the length distribution of the policy. A
//! new draw is therefore weighted by the ratio of lost to new draws at its length:
//!
//! ```text
//! weight(b) = P(lost draw in bucket b) / P(new draw in bucket b)
//! ```
//!
//! In each length bucket, the expected sum over first draws and weighted new draws then equals the sum under the policy, and the mean
//! weight of new draws is 1. Lost draws that had ended have a known length. For lost draws that were aborted at `c` tokens, [`Survival`]
//! estimates P(L in b | L > c); new draws of deferred prompts enter this estimate late. Only earlier rounds are used, so a group is
//! weighted as soon as it is complete. In the first long round each response has weight 1.
//!
//! A residual bias remains: within a bucket, prompts that are rarely cut off are sampled again too rarely, and their weights are too small.
//! On the distributions of `docs/bias.md`, the mean trained length divided by the policy's is 1.00 with weights and 0.88 to 0.99 without,
//! at a relative effective sample size of 0.93 to 1.
//!
//! Weights of single responses correct differences within a group only in part. The covariance of score and length, divided by the
//! covariance under the policy, is 0.93 to 1.04 with weights and 0.22 to 0.98 without. Weights of whole groups and weighted baselines are
//! not better; `docs/bias.md` compares them.

use std::collections::BTreeMap;

use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use serde::{Deserialize, Serialize};

use super::Decision;
use crate::length_buckets::{bucket, start};
use crate::survival::{Curve, Survival};

/// A pseudo-count: each bucket is treated as if this many more new draws were seen at weight 1, so that rare buckets are not trusted.
const PRIOR: f64 = 1.0;

/// An estimator of the weights of new draws by length, updated as rounds close.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Inclusion {
    /// The maximum weight, in units of 2^-16 like all weights here. Integers are read back from a snapshot unchanged.
    max_weight: u32,
    /// The estimate of the policy's length distribution.
    policy: Survival,
    /// The lost draws that had ended.
    lost: Draws,
    /// The number of lost draws that were aborted, by their tokens at the abort.
    cut: BTreeMap<u32, u64>,
    /// The new draws that ended.
    redrawn: Draws,
    /// The deferred prompts that were not sampled again yet.
    deferred: BTreeMap<PromptId, Cutoff>,
    /// The responses of the open round by prompt and sample.
    open: BTreeMap<PromptId, BTreeMap<u32, DrawnResponse>>,
    /// The weight of each bucket, as of the last opened round.
    weights: BTreeMap<u32, u32>,
}

/// The number of whole responses by bucket.
type Draws = BTreeMap<u32, u64>;

/// A deferred prompt: the step that cut it off, and the largest number of tokens at which it was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Cutoff {
    step: Step,
    longest: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DrawnResponse {
    tokens: u32,
    whole: bool,
}

impl Inclusion {
    /// Creates an estimator without observations. No weight exceeds `max_weight`, which is at least 1.
    pub(super) fn new(max_weight: f64) -> Self {
        Self {
            max_weight: units(max_weight),
            policy: Survival::default(),
            lost: Draws::new(),
            cut: BTreeMap::new(),
            redrawn: Draws::new(),
            deferred: BTreeMap::new(),
            open: BTreeMap::new(),
            weights: BTreeMap::new(),
        }
    }

    /// Records a response; `open` is the step of the open round, or `None` if no round is open. After a round has closed, late responses to
    /// the prompts that it deferred are recorded as lost draws. All other responses of closed rounds are ignored.
    pub(super) fn on_response(
        &mut self,
        open: Option<Step>,
        id: SampleId,
        tokens: u32,
        whole: bool,
    ) {
        let response = DrawnResponse { tokens, whole };
        if open == Some(id.step) {
            self.open.entry(id.prompt).or_default().insert(id.sample, response);
        } else if self.deferred.get(&id.prompt).is_some_and(|cut| cut.step == id.step) {
            self.record_lost(id.prompt, response);
        }
    }

    /// Opens a round. Its admissions are weighted by the estimate at this point.
    pub(super) fn open(&mut self) {
        self.weights = self.estimate().into_iter().map(|(b, weight)| (b, units(weight))).collect();
    }

    /// Sets the weights of an admission of new draws. An admission of first draws is not changed: each has weight 1.
    pub(super) fn weigh(&self, decision: &mut Decision) {
        if let Decision::Admit { prompt, samples, weights, .. } = decision
            && self.deferred.contains_key(prompt)
            && let Some(responses) = self.open.get(prompt)
        {
            let weight =
                |sample| responses.get(sample).map_or(1.0, |response| self.weight(response));
            *weights = samples.iter().map(weight).collect();
        }
    }

    fn weight(&self, response: &DrawnResponse) -> f32 {
        let weight = self.weights.get(&bucket(response.tokens));
        weight.map_or(1.0, |weight| (f64::from(*weight) / UNIT) as f32)
    }

    /// Closes the round of `step`, which defers `deferred`.
    ///
    /// Only now is it known which of the round's prompts were deferred, so its responses are classified here. The responses of a prompt
    /// that this round deferred are lost draws. The responses of a prompt that an earlier round deferred are new draws, and the prompt
    /// leaves the set of deferred prompts. All other responses are first draws.
    pub(super) fn close(&mut self, step: Step, deferred: &[PromptId]) {
        for prompt in deferred {
            self.deferred.entry(*prompt).or_insert(Cutoff { step, longest: 0 }).step = step;
        }
        for (prompt, responses) in std::mem::take(&mut self.open) {
            let cut = self.deferred.get(&prompt).copied();
            for response in responses.into_values() {
                match cut {
                    None => self.policy.observe(response.tokens, response.whole),
                    Some(cut) if cut.step == step => self.record_lost(prompt, response),
                    Some(cut) => self.redraw(cut, response),
                }
            }
            if cut.is_some_and(|cut| cut.step != step) {
                self.deferred.remove(&prompt);
            }
        }
    }

    fn record_lost(&mut self, prompt: PromptId, DrawnResponse { tokens, whole }: DrawnResponse) {
        self.policy.observe(tokens, whole);
        if whole {
            *self.lost.entry(bucket(tokens)).or_default() += 1;
        } else {
            *self.cut.entry(tokens).or_default() += 1;
        }
        if let Some(cut) = self.deferred.get_mut(&prompt) {
            cut.longest = cut.longest.max(tokens);
        }
    }

    fn redraw(&mut self, cut: Cutoff, DrawnResponse { tokens, whole }: DrawnResponse) {
        self.policy.observe_from(cut.longest, tokens, whole);
        if whole {
            *self.redrawn.entry(bucket(tokens)).or_default() += 1;
        }
    }

    /// Returns the weight of each bucket with losses or new draws, clipped, and with mean 1 over the new draws before the last clipping.
    /// Returns no weights if there are no losses or no new draws.
    fn estimate(&self) -> BTreeMap<u32, f64> {
        let lost = self.expected_losses();
        let (all_lost, redrawn) =
            (lost.values().sum::<f64>(), self.redrawn.values().sum::<u64>() as f64);
        if all_lost <= 0.0 || redrawn <= 0.0 {
            return BTreeMap::new();
        }
        let max = f64::from(self.max_weight) / UNIT;
        let weight = |bucket: &u32| {
            let expected = lost.get(bucket).copied().unwrap_or(0.0) / all_lost * redrawn;
            let seen = self.redrawn.get(bucket).copied().unwrap_or(0) as f64;
            ((expected + PRIOR) / (seen + PRIOR)).min(max)
        };
        let buckets = lost.keys().chain(self.redrawn.keys());
        let mut weights: BTreeMap<u32, f64> = buckets.map(|b| (*b, weight(b))).collect();
        let sum: f64 = self.redrawn.iter().map(|(b, seen)| *seen as f64 * weights[b]).sum();
        weights.values_mut().for_each(|weight| *weight = (*weight * redrawn / sum).min(max));
        weights
    }

    /// Returns the expected number of lost draws by bucket. A lost draw that ended counts in its bucket. A lost draw that was aborted is
    /// spread over the lengths at which it would have ended.
    fn expected_losses(&self) -> BTreeMap<u32, f64> {
        let mut lost: BTreeMap<u32, f64> =
            self.lost.iter().map(|(bucket, count)| (*bucket, *count as f64)).collect();
        let (curve, longest) = (self.policy.curve(), self.policy.longest().unwrap_or(0));
        for (tokens, count) in &self.cut {
            for (bucket, share) in beyond(&curve, *tokens, longest) {
                *lost.entry(bucket).or_default() += share * *count as f64;
            }
        }
        lost
    }
}

/// The fixed-point representation of weight 1.
const UNIT: f64 = 65_536.0;

fn units(weight: f64) -> u32 {
    (weight * UNIT).round() as u32
}

/// Returns, for each bucket from that of `tokens` to that of `longest`, the probability that a response with more than `tokens` tokens ends
/// in the bucket. If `longest` is less than `tokens`, returns only the bucket of `tokens`. The last bucket includes all greater lengths.
fn beyond(curve: &Curve, tokens: u32, longest: u32) -> impl Iterator<Item = (u32, f64)> {
    let alive = curve.survival(tokens);
    let last = bucket(longest.max(tokens));
    (bucket(tokens)..=last).map(move |bucket| {
        let from = curve.survival(tokens.max(start(bucket).saturating_sub(1)));
        let to = if bucket == last { 0.0 } else { curve.survival(start(bucket + 1) - 1) };
        let share =
            if alive > 0.0 { (from - to) / alive } else { f64::from(u8::from(bucket == last)) };
        (bucket, share)
    })
}

#[cfg(test)]
mod tests {
    use rollpacker_dataflow::step::{PromptId, SampleId, Step};

    use super::Inclusion;
    use crate::schedule::{Decision, Reason};

    fn observe(inclusion: &mut Inclusion, step: u64, prompt: u64, lengths: &[(u32, bool)]) {
        for (sample, (tokens, whole)) in (0..).zip(lengths) {
            let id = SampleId { step: Step(step), prompt: PromptId(prompt), sample };
            inclusion.on_response(Some(Step(step)), id, *tokens, *whole);
        }
    }

    fn weights(inclusion: &Inclusion, prompt: u64, count: u32) -> Vec<f32> {
        let samples = (0..count).collect();
        let mut admit = Decision::Admit {
            prompt: PromptId(prompt),
            samples,
            weights: Vec::new(),
            reason: Reason::Finished,
        };
        inclusion.weigh(&mut admit);
        let Decision::Admit { weights, .. } = admit else { unreachable!("it is an admission") };
        weights
    }

    /// Prompts 1 and 2 each lost a draw of 10 tokens and one beyond 100. Sampled again, prompt 1 gave three draws of 10 and one of 1000.
    /// Long draws are a quarter of the new draws and a half of the losses: weight (2 + 1) / (1 + 1) with the prior. Short draws
    /// have (2 + 1) / (3 + 1). Both are divided by the mean weight.
    #[test]
    fn a_new_draw_is_weighted_by_lost_over_new_draws() {
        let mut inclusion = Inclusion::new(16.0);
        inclusion.open();
        observe(&mut inclusion, 0, 0, &[(10, true), (10, true)]);
        observe(&mut inclusion, 0, 1, &[(10, true)]);
        observe(&mut inclusion, 0, 2, &[(10, true), (100, false)]);
        assert!(weights(&inclusion, 0, 2).is_empty(), "first draws count 1");
        inclusion.close(Step(0), &[PromptId(1), PromptId(2)]);
        // An abort that is answered after the round closed.
        let id = SampleId { step: Step(0), prompt: PromptId(1), sample: 1 };
        inclusion.on_response(None, id, 100, false);

        inclusion.open();
        observe(&mut inclusion, 1, 1, &[(10, true), (10, true), (10, true), (1000, true)]);
        assert_eq!(
            weights(&inclusion, 1, 2),
            [1.0, 1.0],
            "nothing is known before the first long round"
        );
        inclusion.close(Step(1), &[]);

        inclusion.open();
        observe(&mut inclusion, 2, 2, &[(10, true), (1000, true)]);
        let mean = (3.0 * 0.75 + 1.5) / 4.0;
        let found = weights(&inclusion, 2, 2);
        assert!((f64::from(found[0]) - 0.75 / mean).abs() < 1e-4, "{found:?}");
        assert!((f64::from(found[1]) - 1.5 / mean).abs() < 1e-4, "{found:?}");
        inclusion.close(Step(2), &[]);
        assert!(
            inclusion.deferred.is_empty(),
            "prompts that were sampled again are no longer deferred"
        );
    }
}
