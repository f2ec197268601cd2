//! Candidate layouts for the tail of a round, and the choice among them.

use rollpacker_stages::rollout::Placement;

use super::cost::{Job, StepCost};
use super::forecast::{Change, Forecast, Layout};
use super::options::{StreamTrainerOptions, Trigger};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DueDecisions {
    /// `true` if a milestone of the trigger was passed.
    pub(super) milestone: bool,
    /// `true` if predictions must be compared: enough responses have ended, both in the round and since the last comparison.
    pub(super) comparison: bool,
}

/// The rest of a round and the layout on which it runs.
#[derive(Clone, Debug)]
pub(super) struct Tail<'a, C> {
    pub(super) job: Job,
    pub(super) options: StreamTrainerOptions,
    pub(super) cost: &'a C,
    /// The projected number of cached tokens of the running responses.
    pub(super) projected: f64,
    pub(super) forecast: Forecast,
    pub(super) layout: Layout,
}

/// The minimum predicted gain, as a share of the predicted time to the end of the step. Smaller gains are within the prediction error.
const MIN_GAIN: f64 = 0.01;
/// The maximum number of layouts compared for a scale-down, so that a decision over thousands of instances costs as much as one over eight.
const MAX_CANDIDATES: usize = 8;
/// The maximum number of later moments with which a change now is compared.
const MAX_LATER_TIMES: usize = 6;

impl<C: StepCost> Tail<'_, C> {
    /// Returns the layout after a scale-down now, or `None` if devices should not leave yet.
    pub(super) fn scale_down(&self, due: DueDecisions) -> Option<Layout> {
        match self.options.trigger {
            Trigger::Fixed { .. } if due.milestone => self.smaller_layouts().next(),
            Trigger::Adaptive { .. } if due.milestone => {
                self.smaller_layouts().find(|layout| self.fits(layout.rollout))
            }
            Trigger::Predicted { .. } if due.comparison => {
                let candidates: Vec<Layout> = self.smaller_layouts().collect();
                let stride = candidates.len().div_ceil(MAX_CANDIDATES).max(1);
                self.fastest_layout(candidates.into_iter().step_by(stride))
            }
            _ => None,
        }
    }

    /// Returns a layout with fewer and wider instances for the last responses. Returns `None` if consolidation is disabled, no such layout
    /// is predicted to end the step sooner, or a later change is predicted to be better. Devices are freed for training if `streams` is
    /// `true`.
    pub(super) fn consolidate(&self, streams: bool) -> Option<Layout> {
        let is_wanted = self.options.consolidate;
        is_wanted.then(|| self.fastest_layout(self.wider_layouts(streams))).flatten()
    }

    /// Returns layouts with fewer instances, the fewest first. At least the share `keep` of the instances stays. Each layout frees at least
    /// one training replica, and more replicas than if one more instance stayed.
    fn smaller_layouts(&self) -> impl Iterator<Item = Layout> {
        let (job, Placement { instances, tensor_parallel }) = (self.job, self.layout.rollout);
        let min = (f64::from(instances) * self.options.keep).ceil().max(1.0) as u32;
        let training =
            move |instances| job.training_beside(Placement { instances, tensor_parallel });
        (min..instances)
            .filter(move |kept| training(*kept) > 0 && training(*kept) > training(kept + 1))
            .map(move |kept| Layout {
                rollout: Placement { instances: kept, tensor_parallel },
                training_devices: training(kept),
            })
    }

    /// Returns layouts with wider instances on no more devices than now. Devices are freed for training only if `streams` is `true`.
    fn wider_layouts(&self, streams: bool) -> impl Iterator<Item = Layout> {
        let (job, now) = (self.job, self.layout);
        let width = move |power: u32| now.rollout.tensor_parallel << power;
        (1..)
            .map(width)
            .take_while(move |width| *width <= job.devices_per_server)
            .filter(move |width| job.allows(*width) && self.holds_longest_response(*width))
            .flat_map(move |width| {
                successive_halves(now.rollout.devices() / width)
                    .map(move |instances| Placement { instances, tensor_parallel: width })
            })
            .map(move |rollout| Layout {
                rollout,
                training_devices: if streams { job.training_beside(rollout) } else { 0 },
            })
    }

    fn holds_longest_response(&self, tensor_parallel: u32) -> bool {
        self.cost.kv_capacity(tensor_parallel) >= u64::from(self.job.response_length)
    }

    /// Returns `true` if the projected tokens fill at most the share `headroom` of the caches of `rollout`.
    fn fits(&self, rollout: Placement) -> bool {
        let capacity = self.cost.kv_capacity(rollout.tensor_parallel) as f64;
        self.projected <= self.options.headroom * capacity * f64::from(rollout.instances)
    }

    /// Returns the candidate with which the step is predicted to end soonest. Returns `None` if there is no candidate, the gain is too
    /// small, or a later change to the candidate is predicted to be better.
    fn fastest_layout(&self, candidates: impl Iterator<Item = Layout>) -> Option<Layout> {
        let rungs = self.forecast.rungs();
        let seconds =
            |to, after| self.forecast.seconds(self.cost, Change { from: self.layout, to, after });
        let stay = seconds(self.layout, rungs);
        let (to, soonest) = candidates
            .map(|to| (to, seconds(to, 0)))
            .min_by(|(_, one), (_, other)| one.total_cmp(other))
            .filter(|(_, soonest)| *soonest < stay * (1.0 - MIN_GAIN))?;
        let mut later = (1..rungs).step_by(rungs.div_ceil(MAX_LATER_TIMES).max(1));
        later.all(|after| seconds(to, after) >= soonest).then_some(to)
    }
}

/// Returns `max`, its half, and so on down to 1; empty for 0.
fn successive_halves(max: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(max), |instances| Some(instances / 2)).take_while(|left| *left > 0)
}
