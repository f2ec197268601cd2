//! The stream trainer: devices that become idle in the tail of a rollout train on the groups that are complete.
//!
//! The policy follows RollPacker, section 5 and Algorithm 1. At milestones of a round, it projects the tokens of the responses that still
//! run. If the caches of fewer instances can hold them, the other instances are freed. Their responses continue on the kept instances, with
//! recomputed caches. Complete groups stream to the trainer on the freed devices, and the update waits for the end of the round. There are
//! two extensions of the paper. The trigger may weigh the predicted slow-down of the rollout against the training time that it hides, and
//! the last stragglers may be merged onto fewer, wider instances.

use std::collections::{BTreeMap, VecDeque};

use rollpacker_dataflow::BoxError;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::Step;
use rollpacker_stages::rollout::Placement;
use serde::{Deserialize, Serialize};

use super::cost::{Job, StepCost};
use super::forecast::{Forecast, Layout, projected};
use super::options::{StreamTrainerOptions, Trigger};
use super::planner::{Outlook, Planner, PlannerState};
use super::round_progress::{EndedResponse, RoundLoad, RoundProgress};
use super::tail::{DueDecisions, Tail};
use super::{Decision, Event, PlacementError, PlacementPolicy, Reason};
use crate::survival::{Curve, Survival};
use crate::wire::decision::RoundKind;

/// A placement policy after RollPacker's stream trainer, with a [`Planner`] for the rounds.
///
/// Each round starts on all devices. At most one scale-down follows, and possibly consolidations, each onto wider instances than before.
/// When the rollout is drained, all devices train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamTrainer<C> {
    options: StreamTrainerOptions,
    planner: Planner,
    cost: C,
    /// The rounds that have opened and are not drained.
    rounds: BTreeMap<Step, RoundProgress>,
    /// The step of the round that opened last; `None` before the first round.
    latest: Option<Step>,
    state: RoundPlacement,
    history: BTreeMap<RoundKind, History>,
    decisions: VecDeque<Decision>,
}

/// The placement state of the round that opened last.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
struct RoundPlacement {
    layout: Option<Layout>,
    is_scaled_down: bool,
    /// The number of milestones passed.
    reached: u32,
    /// The number of responses that had ended by themselves when a comparison of predictions was last due; `None` if none was due yet.
    compared: Option<u32>,
    /// The time at which the first devices began to train; `None` if no devices were freed in the round.
    training_since: Option<Nanos>,
}

/// The lengths and the load of the last rounds of a kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct History {
    /// The lengths of the last rounds, the newest last.
    rounds: VecDeque<Survival>,
    /// The lengths of all `rounds` together.
    lengths: Survival,
    last: RoundLoad,
}

/// The state of the policy that a snapshot contains.
#[derive(Serialize, Deserialize)]
struct LearnedState<K, H> {
    kinds: K,
    history: H,
    /// The last layout that generated; `None` if none has.
    layout: Option<Layout>,
}

/// The number of rounds of a kind whose lengths are kept. Training changes the lengths of responses, so the lengths of much earlier rounds
/// no longer apply.
const MAX_REMEMBERED_ROUNDS: usize = 8;
/// Predictions are compared again at the latest when the number of responses that ended since the last comparison is 1 / `TAIL_DIVISOR` of
/// the number that still run.
const TAIL_DIVISOR: u32 = 8;

impl<C: StepCost> StreamTrainer<C> {
    /// Creates the policy for the job of `planner`. Predictions use the times and capacities of `cost`.
    ///
    /// # Errors
    /// If an option is out of range, or the planner's initial instances cannot hold a response of maximum length.
    pub fn new(
        options: StreamTrainerOptions,
        planner: Planner,
        cost: C,
    ) -> Result<Self, PlacementError> {
        let options = options.validated()?;
        let (tensor_parallel, response_length) = (planner.start(), planner.job().response_length);
        let capacity = cost.kv_capacity(tensor_parallel);
        if capacity < u64::from(response_length) {
            return Err(PlacementError::Capacity { tensor_parallel, capacity, response_length });
        }
        Ok(Self {
            options,
            planner,
            cost,
            rounds: BTreeMap::new(),
            latest: None,
            state: RoundPlacement::default(),
            history: BTreeMap::new(),
            decisions: VecDeque::new(),
        })
    }

    fn update(&mut self, step: Step, with: impl FnOnce(&mut RoundProgress)) {
        if let Some(progress) = self.rounds.get_mut(&step) {
            with(progress);
        }
    }

    fn job(&self) -> Job {
        self.planner.job()
    }

    fn on_opened(&mut self, step: Step, round: RoundKind) {
        let curve = self.length_curve(round);
        let outlook = Outlook {
            last: self.history.get(&round).map(|history| history.last),
            lengths: &curve,
            current: self.state.layout.map(|layout| layout.rollout),
        };
        let (tensor_parallel, reason) = self.planner.plan(round, outlook, &self.cost);
        self.rounds.insert(step, RoundProgress::new(round));
        self.latest = Some(step);
        self.state = RoundPlacement::default();
        let rollout = self.job().rollout(tensor_parallel);
        self.decide(Layout { rollout, training_devices: 0 }, reason);
    }

    fn on_drained(&mut self, step: Step) {
        let Some(progress) = self.rounds.remove(&step) else { return };
        let (round, load) = (progress.round, progress.load());
        self.planner.observe(round, load.preemptions, &self.cost);
        self.history.entry(round).or_insert_with(|| History::new(load)).add(progress.lengths, load);
        if self.latest == Some(step)
            && let Some(Layout { rollout, .. }) = self.state.layout
        {
            self.train_on_all(Placement { instances: 0, ..rollout });
        }
    }

    /// Lets all devices train. The recorded layout stays the last layout that generated, because the next round is reconfigured from it.
    fn train_on_all(&mut self, rollout: Placement) {
        let training_devices = self.job().training_beside(rollout);
        self.decisions.push_back(Decision { rollout, training_devices, reason: Reason::Drained });
    }

    fn decide(&mut self, layout: Layout, reason: Reason) {
        self.state.layout = Some(layout);
        let Layout { rollout, training_devices } = layout;
        self.decisions.push_back(Decision { rollout, training_devices, reason });
    }

    /// Returns the length distribution of the remembered rounds of kind `round`, or of all kinds if no round of the kind is over.
    fn length_curve(&self, round: RoundKind) -> Curve {
        match self.history.get(&round) {
            Some(history) => history.lengths.curve(),
            None => {
                let mut all = Survival::default();
                self.history.values().for_each(|history| all.merge(&history.lengths));
                all.curve()
            }
        }
    }

    /// Decides on the round of `step` after one of its responses ended.
    ///
    /// Only the round that opened last is considered, and only while it is open: the recorded layout belongs to it. A scale-down is tried
    /// first and happens at most once per round. Otherwise a consolidation is tried whenever predictions are due. Predictions need the
    /// lengths of an earlier round, so none are compared before the first round has ended.
    fn decide_after_response(&mut self, now: Nanos, step: Step) {
        let Some(layout) = self.state.layout.filter(|_| self.latest == Some(step)) else { return };
        let Some(progress) = self.rounds.get(&step).filter(|progress| progress.is_open()) else {
            return;
        };
        let last = self.history.get(&progress.round).map(|history| history.last);
        let mut due = self.state.due_decisions(self.options.trigger, progress.load(), last);
        let streams = self.options.allows_scale_down(progress.round);
        let leaves = streams && !self.state.is_scaled_down;
        due.milestone &= leaves;
        due.comparison &= !self.history.is_empty() && self.options.compares_predictions(leaves);
        if due == DueDecisions::default() {
            return;
        }
        let tail = self.tail(now, progress, layout);
        if let Some(next) = leaves.then(|| tail.scale_down(due)).flatten() {
            self.state.is_scaled_down = true;
            self.change(now, next, Reason::ScaleDown);
        } else if due.comparison
            && let Some(next) = tail.consolidate(streams)
        {
            self.change(now, next, Reason::Consolidate);
        }
    }

    fn tail(&self, now: Nanos, progress: &RoundProgress, layout: Layout) -> Tail<'_, C> {
        let (job, curve) = (self.job(), self.length_curve(progress.round));
        let last = self.history.get(&progress.round).map(|history| history.last);
        let trained = self.trained_tokens(now, progress);
        Tail {
            job,
            options: self.options,
            cost: &self.cost,
            projected: projected(&progress.cohorts(now), &curve, job),
            forecast: Forecast::new(progress, now, &curve, job, last, trained),
            layout,
        }
    }

    /// Returns the number of tokens that the trainer is assumed to have processed since devices were freed for it.
    fn trained_tokens(&self, now: Nanos, progress: &RoundProgress) -> f64 {
        let ready = progress.admitted_tokens();
        let (Some(since), Some(layout)) = (self.state.training_since, self.state.layout) else {
            return 0.0;
        };
        let seconds = self.cost.training(layout.training_devices, ready.max(1.0));
        ready * (now.since(since).as_secs_f64() / seconds).min(1.0)
    }

    fn change(&mut self, now: Nanos, layout: Layout, reason: Reason) {
        if layout.training_devices > 0 {
            self.state.training_since.get_or_insert(now);
        }
        self.decide(layout, reason);
    }
}

impl RoundPlacement {
    /// Returns the decisions that are due, given the current `load` of the round and the load of the `last` round of its kind. Records the
    /// milestones that were reached and, if a comparison is due, the number of completed responses.
    fn due_decisions(
        &mut self,
        trigger: Trigger,
        load: RoundLoad,
        last: Option<RoundLoad>,
    ) -> DueDecisions {
        let expected = f64::from(load.launched) * last.map_or(1.0, RoundLoad::completed_share);
        let share = f64::from(load.completed) / expected.max(1.0);
        let reached = trigger.milestones_reached(share).max(self.reached);
        let (from, every) = trigger.comparison_cadence();
        let left = load.launched.saturating_sub(load.completed);
        let stride = ((every * expected) as u32).min(left / TAIL_DIVISOR).max(1);
        let is_next = self.compared.is_none_or(|at| load.completed >= at + stride);
        let due = DueDecisions {
            milestone: reached > self.reached,
            comparison: share >= from && is_next,
        };
        self.reached = reached;
        if due.comparison {
            self.compared = Some(load.completed);
        }
        due
    }
}

impl History {
    fn new(last: RoundLoad) -> Self {
        Self { rounds: VecDeque::new(), lengths: Survival::default(), last }
    }

    fn add(&mut self, lengths: Survival, load: RoundLoad) {
        self.last = load;
        self.rounds.push_back(lengths);
        if self.rounds.len() > MAX_REMEMBERED_ROUNDS {
            self.rounds.pop_front();
        }
        self.lengths = Survival::default();
        self.rounds.iter().for_each(|round| self.lengths.merge(round));
    }
}

impl<C: StepCost> PlacementPolicy for StreamTrainer<C> {
    fn on(&mut self, now: Nanos, event: Event) {
        match event {
            Event::Policy { .. } => {}
            Event::Opened { step, round } => self.on_opened(step, round),
            Event::Launched { step, prompt, samples, prompt_length } => {
                self.update(step, |round| round.launch(now, prompt, samples, prompt_length));
            }
            Event::Response { id, tokens, resumed, finish_reason, preemptions } => {
                let response = EndedResponse { tokens, resumed, finish_reason, preemptions };
                self.update(id.step, |round| round.end(now, id.prompt, response));
                self.decide_after_response(now, id.step);
            }
            Event::Admitted { step, prompt, samples } => {
                self.update(step, |round| round.admit(prompt, samples));
            }
            Event::Closed { step } => self.update(step, RoundProgress::close),
            Event::Drained { step } => self.on_drained(step),
        }
    }

    fn poll(&mut self) -> Option<Decision> {
        self.decisions.pop_front()
    }

    fn save(&self) -> Option<Vec<u8>> {
        let (kinds, history, layout) = (self.planner.kinds(), &self.history, self.state.layout);
        let learned = LearnedState { kinds, history, layout };
        Some(
            serde_json::to_vec(&learned)
                .expect("invariant: the keys of every map are numbers or text"),
        )
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let learned: LearnedState<PlannerState, BTreeMap<RoundKind, History>> =
            serde_json::from_slice(saved)?;
        self.planner.resume(learned.kinds, &self.cost);
        self.history = learned.history;
        self.state.layout = learned.layout.filter(|layout| {
            let (job, rollout) = (self.job(), layout.rollout);
            job.allows(rollout.tensor_parallel) && rollout.devices() <= job.devices
        });
        Ok(())
    }
}
