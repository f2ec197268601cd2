//! Counts of the scoring of a step, as metrics.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use rollpacker_dataflow::batch::BatchStream;
use rollpacker_dataflow::frontier::may_arrive;
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema;
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_stages::reward::{ErrorKind, MAX_TOLERATED, OnError, RewardError};
use rollpacker_stages::train::Metrics;

use super::load::ScoringLoad;
use crate::policy::metrics_batch;

/// The counts of the scoring of one step.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// The numbers of responses that are queued and that are being scored.
    pub(crate) load: Arc<ScoringLoad>,
    /// The number of scorings in flight that were cancelled.
    pub(crate) cancelled: u64,
    /// The number of responses that ended by themselves and were not scored, because their scores were not needed when the scoring would
    /// have begun.
    pub(crate) skipped: u64,
    /// The number of groups that are not trained on because of an error.
    pub(crate) dropped_groups: u64,
    /// The number of errors that did not end the run, by kind and reward.
    errors: BTreeMap<(ErrorKind, String), u64>,
    /// The metrics that rewards reported, by name.
    reported: BTreeMap<String, Vec<f64>>,
}

impl Tally {
    /// Counts an error that does not end the run. Returns `true` if it is the first error of its reward and kind in the step.
    pub(crate) fn error(&mut self, error: &RewardError) -> bool {
        let count = self.errors.entry((error.kind, error.reward.clone())).or_default();
        *count += 1;
        *count == 1
    }

    pub(crate) fn add_metrics(&mut self, metrics: Vec<(String, f64)>) {
        for (name, value) in metrics {
            self.reported.entry(name).or_default().push(value);
        }
    }

    fn metrics(&self) -> Metrics {
        let reported =
            self.reported.iter().map(|(name, values)| (name.clone(), mean(values.clone())));
        let of_kind = |kind| {
            let errors = self.errors.iter().filter(move |((of, _), _)| *of == kind);
            errors.map(|(_, count)| *count).sum::<u64>() as f64
        };
        let kinds = ErrorKind::ALL
            .map(|kind| (format!("errors/{kind}", kind = kind.as_str()), of_kind(kind)));
        let by_reward = self.errors.iter().map(|((kind, reward), count)| {
            (format!("errors/{}/{reward}", kind.as_str()), *count as f64)
        });
        let [queue_max, in_flight_max] = self.load.max();
        let counts = [
            ("queue_max", queue_max),
            ("in_flight_max", in_flight_max),
            ("cancelled", self.cancelled as f64),
            ("skipped", self.skipped as f64),
            ("dropped_groups", self.dropped_groups as f64),
        ];
        let counts = counts.map(|(name, value)| (name.to_owned(), value));
        let all = reported.chain(kinds).chain(by_reward).chain(counts);
        all.map(|(name, value)| (format!("reward/{name}"), value)).collect()
    }
}

/// Returns the mean of the values. The result is bit-identical for every order of the values.
fn mean(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.iter().sum::<f64>() / values.len() as f64
}

/// The tallies of steps that are not complete. Shared by the scoring operators of one worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tallies {
    steps: Rc<RefCell<BTreeMap<Step, Tally>>>,
    /// The number of consecutive errors of each reward on this worker, over all steps.
    streaks: Rc<RefCell<BTreeMap<String, u32>>>,
}

impl Tallies {
    pub(crate) fn with<R>(&self, step: Step, change: impl FnOnce(&mut Tally) -> R) -> R {
        change(self.steps.borrow_mut().entry(step).or_default())
    }

    /// Records that a reward returned a score, which resets its number of consecutive errors.
    pub(crate) fn scored(&self, reward: &str) {
        self.streaks.borrow_mut().remove(reward);
    }

    /// Counts an error of a reward and returns its effect, given the setting `on_error` of its route. A tolerated error becomes fatal when
    /// it is at least the [`MAX_TOLERATED`]-th consecutive error of the reward.
    pub(crate) fn effective_on_error(&self, on_error: OnError, reward: &str) -> OnError {
        let mut streaks = self.streaks.borrow_mut();
        let streak = streaks.entry(reward.to_owned()).or_default();
        *streak += 1;
        let is_broken = on_error == OnError::Tolerate && *streak >= MAX_TOLERATED;
        if is_broken { OnError::Fail } else { on_error }
    }

    fn take(&self, step: Step) -> Tally {
        self.steps.borrow_mut().remove(&step).unwrap_or_default()
    }

    /// Emits the metrics of each step once the frontiers of `scored` and `decisions` have passed the step. `scored` is the output of the
    /// last operator that scores.
    pub(crate) fn report<'scope>(
        self,
        scored: BatchStream<'scope>,
        decisions: BatchStream<'scope>,
    ) -> BatchStream<'scope> {
        let mut operator = Operator::new("reward_metrics", scored.scope());
        let mut scored = operator.input(scored, Pipeline, &schema::SCORED);
        let mut decisions = operator.input(decisions, Pipeline, &schema::DECISIONS);
        let (mut metrics, stream) = operator.output(&schema::METRICS, &[0, 1]);
        operator.build(move |_capabilities| {
            let mut open: BTreeMap<Step, Capability<Step>> = BTreeMap::new();
            move |frontiers| {
                let index = metrics.index();
                scored.for_each(|_, _| {});
                // Decisions open steps without scores.
                decisions.for_each(|capability, _| {
                    let step = *capability.time();
                    open.entry(step).or_insert_with(|| capability.retain(index));
                });
                let passed = |step: &Step| !may_arrive(frontiers, step);
                for (step, capability) in open.extract_if(.., |step, _| passed(step)) {
                    metrics.give(&capability, metrics_batch(&self.take(step).metrics()));
                }
            }
        });
        stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_errors_are_tolerated_up_to_a_bound() {
        let tallies = Tallies::default();
        let judge = |reward| tallies.effective_on_error(OnError::Tolerate, reward);
        for _ in 1..MAX_TOLERATED {
            assert_eq!(judge("a"), OnError::Tolerate);
        }
        assert_eq!(judge("b"), OnError::Tolerate, "each reward is judged by itself");
        assert_eq!(judge("a"), OnError::Fail);
        tallies.scored("a");
        assert_eq!(judge("a"), OnError::Tolerate);
        for on_error in [OnError::Fail, OnError::Zero, OnError::DropGroup] {
            let judged: Vec<_> =
                (0..100).map(|_| tallies.effective_on_error(on_error, "c")).collect();
            assert!(judged.iter().all(|it| *it == on_error));
        }
    }

    #[test]
    fn the_mean_does_not_depend_on_the_order() {
        let values = [0.1, 0.2, 0.3, 1e9, -7.7];
        let bits = |order: [usize; 5]| mean(order.map(|at| values[at]).to_vec()).to_bits();
        assert_eq!(bits([0, 1, 2, 3, 4]), bits([3, 0, 4, 2, 1]));
    }
}
