//! Forecasts of the end of a step, from the residual lengths of the running responses under alternative placements.

use rollpacker_dataflow::clock::Nanos;
use rollpacker_stages::rollout::Placement;

use super::cost::{Job, StepCost};
use super::round_progress::{Cohort, RoundLoad, RoundProgress};
use crate::survival::Curve;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Layout {
    pub(super) rollout: Placement,
    pub(super) training_devices: u32,
}

/// A change of layout after the first `after` rungs of a [`Forecast`] have ended. There is no change if `after` is the number of rungs or
/// more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) from: Layout,
    pub(super) to: Layout,
    pub(super) after: usize,
}

/// Responses that are expected to end together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rung {
    pub(super) count: f64,
    /// The number of tokens cached now per response, prompt included.
    pub(super) context: f64,
    /// The number of tokens still to be sampled per response.
    pub(super) residual: f64,
}

/// A forecast of the rest of a round.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Forecast {
    /// The rungs, in ascending order of residual length.
    rungs: Vec<Rung>,
    job: Job,
    /// The number of tokens of the groups that can be trained on now.
    ready: f64,
    /// The incomplete groups, by the number of responses that they lack. Each entry has this number and the tokens that the groups are
    /// expected to have when they are complete. The tokens are scaled by the share of the incomplete groups that is expected to be
    /// admitted.
    lacking: Vec<(u32, f64)>,
    /// The number of tokens that the trainer has processed.
    trained: f64,
}

/// The divisor by which the responses of an age are split into rungs: each rung takes 1 / `SPLIT` of those that are in no earlier rung,
/// rounded up.
const SPLIT: f64 = 4.0;
/// The maximum number of rungs of all ages together.
const MAX_RUNGS: usize = 24;

impl Forecast {
    /// Forecasts the rest of a round at `now`. Lengths are distributed as in `curve`. `last` is the load of the last round of the same
    /// kind. `trained` is the number of tokens that the trainer has processed.
    ///
    /// All responses of an age are assumed to have the same distribution of remaining lengths. The share of launched responses that end by
    /// themselves and the share of prompts that are admitted are taken from `last`; both are 1 without it. The expected number of further
    /// admissions scales the tokens of the incomplete groups, because some of these groups will be deferred.
    pub(super) fn new(
        progress: &RoundProgress,
        now: Nanos,
        curve: &Curve,
        job: Job,
        last: Option<RoundLoad>,
        trained: f64,
    ) -> Self {
        let rungs = rungs_of(curve, job, &progress.cohorts(now));
        let load = progress.load();
        let completed = last.map_or(1.0, RoundLoad::completed_share) * f64::from(load.launched);
        let groups = last.map_or(1.0, RoundLoad::admitted_share) * f64::from(load.prompts);
        let length = mean_length(&rungs);
        let incomplete = progress.incomplete();
        let open: f64 = incomplete.values().map(|some| some.groups).sum();
        let kept = ((groups - f64::from(load.admitted)) / open.max(1.0)).clamp(0.0, 1.0);
        let lacking = incomplete.into_iter().map(|(lack, some)| {
            (lack, kept * (some.tokens + f64::from(lack) * some.groups * length))
        });
        Self {
            lacking: lacking.collect(),
            rungs: without_surplus(rungs, completed - f64::from(load.completed)),
            job,
            ready: progress.admitted_tokens(),
            trained,
        }
    }

    /// Forecasts a round that has not begun. The round is assumed to have the `load` of the last round of its kind, and lengths distributed
    /// as in `curve`.
    pub(super) fn of_round(load: RoundLoad, curve: &Curve, job: Job) -> Self {
        let count = f64::from(load.launched);
        let prompt_length = load.prompt_tokens as f64 / count.max(1.0);
        let rungs = rungs_of(curve, job, &[Cohort { count, prompt_length, tokens: 0.0 }]);
        let rungs = without_surplus(rungs, f64::from(load.completed));
        Self { rungs, job, ready: 0.0, lacking: Vec::new(), trained: 0.0 }
    }

    pub(super) fn rungs(&self) -> usize {
        self.rungs.len()
    }

    /// Returns the number of tokens that the running responses have cached.
    pub(super) fn cached(&self) -> f64 {
        self.rungs.iter().map(|rung| rung.count * rung.context).sum()
    }

    /// Returns the seconds from now until all responses have ended and the gradient of all groups is computed.
    ///
    /// While the rollout runs, the trainer processes tokens at the speed of its devices, but no more than the complete groups contain at
    /// that time. After the rollout, all devices train on the remaining tokens. A layout that frees devices earlier thus has a slower
    /// rollout, but less training after it.
    pub(super) fn seconds<C: StepCost>(&self, cost: &C, change: Change) -> f64 {
        let total = self.ready(1.0);
        let all = self.job.training_beside(Placement { instances: 0, tensor_parallel: 1 });
        let speed = |devices| match devices {
            0 => 0.0,
            _ => total.max(1.0) / cost.training(devices, total.max(1.0)),
        };
        let (before, after) =
            (speed(change.from.training_devices), speed(change.to.training_devices));
        let mut trained = self.trained;
        let rollout = self.simulate_rollout(cost, change, |at, seconds, ended| {
            let speed = if at < change.after { before } else { after };
            trained = self.ready(ended).min(trained + speed * seconds).max(trained);
        });
        rollout + cost.training(all, (total - trained).max(0.0))
    }

    /// Returns the seconds until all responses have ended. Calls `stretch` for each rung with its index, the seconds since the end of the
    /// previous rung, and the share of responses that had ended before the rung.
    pub(super) fn simulate_rollout<C: StepCost>(
        &self,
        cost: &C,
        change: Change,
        mut stretch: impl FnMut(usize, f64, f64),
    ) -> f64 {
        let count: f64 = self.rungs.iter().map(|rung| rung.count).sum();
        let (mut alive, mut held, mut at, mut clock) = (count, self.cached(), 0.0, 0.0);
        for (index, rung) in self.rungs.iter().enumerate() {
            let rollout = if index < change.after { change.from } else { change.to }.rollout;
            let mut seconds = 0.0;
            if index == change.after {
                seconds += cost.reconfiguration(change.from.rollout, change.to.rollout, held);
            }
            let iterations = rung.residual - at;
            let grown = alive * iterations;
            seconds += iterations * iteration(cost, rollout, alive, held + grown / 2.0);
            stretch(index, seconds, 1.0 - alive / count);
            held += grown - rung.count * (rung.context + rung.residual);
            alive -= rung.count;
            (at, clock) = (rung.residual, clock + seconds);
        }
        clock
    }

    /// Returns the number of tokens that can be trained on when a share `ended` of the running responses has ended. Each response is
    /// assumed to be equally likely to have ended.
    fn ready(&self, ended: f64) -> f64 {
        self.lacking
            .iter()
            .map(|(lack, tokens)| tokens * ended.powi(i32::try_from(*lack).unwrap_or(i32::MAX)))
            .sum::<f64>()
            + self.ready
    }
}

/// Returns the seconds of an iteration with `alive` responses that hold `held` tokens, spread evenly over the instances. Responses that do
/// not fit into the caches wait, and their iterations are charged in addition.
fn iteration<C: StepCost>(cost: &C, rollout: Placement, alive: f64, held: f64) -> f64 {
    let running = (alive / f64::from(rollout.instances)).max(1.0);
    let tokens = held / alive * running;
    let capacity = cost.kv_capacity(rollout.tensor_parallel) as f64;
    let share = if tokens > capacity { capacity / tokens } else { 1.0 };
    cost.decode_iteration(rollout.tensor_parallel, running * share, tokens * share) / share
}

/// Groups the responses of each cohort by their residual length: coarsely where many responses end, and one by one at the end of the tail.
/// Neighboring rungs are merged if there are more than `MAX_RUNGS`. Returns the rungs in ascending order of residual length.
fn rungs_of(curve: &Curve, job: Job, cohorts: &[Cohort]) -> Vec<Rung> {
    let mut rungs: Vec<Rung> =
        cohorts.iter().flat_map(|cohort| split_cohort(curve, job, *cohort)).collect();
    rungs.sort_by(|one, other| one.residual.total_cmp(&other.residual));
    if rungs.len() > MAX_RUNGS {
        rungs.chunks(rungs.len().div_ceil(MAX_RUNGS)).map(merge).collect()
    } else {
        rungs
    }
}

fn split_cohort(curve: &Curve, job: Job, cohort: Cohort) -> Vec<Rung> {
    let sampled = (cohort.tokens as u32).min(job.response_length - 1);
    let (mut left, mut rungs) = (cohort.count, Vec::new());
    while left >= 1.0 {
        let count = (left / SPLIT).ceil();
        let share = 1.0 - (left - count / 2.0) / cohort.count;
        let length = length_beyond(curve, sampled, share, job.response_length);
        rungs.push(Rung {
            count,
            context: cohort.prompt_length + f64::from(sampled),
            residual: f64::from(length - sampled),
        });
        left -= count;
    }
    rungs
}

/// Returns the quantile at `share` of the lengths of responses that are longer than `sampled` tokens. The result is above `sampled` and at
/// most `longest`.
fn length_beyond(curve: &Curve, sampled: u32, share: f64, longest: u32) -> u32 {
    let survival = curve.survival(sampled) * (1.0 - share);
    let (mut low, mut high) = (sampled + 1, longest);
    while low < high {
        let middle = low.midpoint(high);
        if curve.survival(middle) <= survival {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// Merges rungs into one rung that ends with the last of the merged rungs.
fn merge(rungs: &[Rung]) -> Rung {
    let count: f64 = rungs.iter().map(|rung| rung.count).sum();
    let context = rungs.iter().map(|rung| rung.count * rung.context).sum::<f64>() / count;
    Rung { count, context, residual: rungs[rungs.len() - 1].residual }
}

/// Returns the rungs of a round that waits only for the `completing` shortest responses. All other responses form a last rung, which is
/// dropped when the last of the `completing` responses ends.
fn without_surplus(mut rungs: Vec<Rung>, completing: f64) -> Vec<Rung> {
    let mut before = 0.0;
    let last = rungs.iter().position(|rung| {
        before += rung.count;
        before >= completing
    });
    if let Some(last) = last {
        let (end, dropped) = (rungs[last].residual, rungs.split_off(last + 1));
        rungs.extend((!dropped.is_empty()).then(|| Rung { residual: end, ..merge(&dropped) }));
    }
    rungs
}

/// Returns the mean final length of the running responses, prompt included; 0 if no response runs.
fn mean_length(rungs: &[Rung]) -> f64 {
    let count: f64 = rungs.iter().map(|rung| rung.count).sum();
    let tokens: f64 = rungs.iter().map(|rung| rung.count * (rung.context + rung.residual)).sum();
    if count > 0.0 { tokens / count } else { 0.0 }
}

/// Returns the number of tokens that the running responses will have cached when each has its expected length: the projection of Algorithm
/// 1 (RollPacker, section 5). This is an upper bound of the peak, because some responses end before others have grown.
pub(super) fn projected(cohorts: &[Cohort], curve: &Curve, job: Job) -> f64 {
    let of = |cohort: &Cohort| {
        let sampled = (cohort.tokens as u32).min(job.response_length);
        let max = f64::from(job.response_length - sampled);
        let residual = curve.mean_residual(sampled).unwrap_or(max);
        cohort.count * (cohort.prompt_length + f64::from(sampled) + residual)
    };
    cohorts.iter().map(of).sum()
}
