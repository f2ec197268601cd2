//! The RL step as one graph, over stages given by value.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::bridge::{Emitter, Executor, produce, produce_inline};
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::clock::{Clock, VirtualClock};
use rollpacker_dataflow::cluster::Seat;
use rollpacker_dataflow::fault::{Fault, Faults, raise, warn};
use rollpacker_dataflow::snapshot::{SnapshotPlan, Snapshots};
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::Scope;
use rollpacker_dataflow::timely::dataflow::operators::Concat;
use rollpacker_dataflow::watchdog::{Stall, Watch, Watchdog};
use rollpacker_dataflow::{feedback, route, runtime, schema};
use rollpacker_operators::advantage::{Estimator, KlController};
use rollpacker_operators::ledger::{Recorded, ledger};
use rollpacker_operators::merge::merged;
use rollpacker_operators::overlap::{Fetch, Scoring};
use rollpacker_operators::placement::Place;
use rollpacker_operators::policy::policy_batch;
use rollpacker_operators::report::{Observed, Observer, observe, observe_snapshots};
use rollpacker_operators::resume::{Resumable, Resumed};
use rollpacker_operators::reward::Limit;
use rollpacker_operators::schedule::Schedule;
use rollpacker_operators::schedule::operator::{Prompts, Stop};
use rollpacker_operators::trainer::TrainerThread;
use rollpacker_operators::validate::{ValidateExt, ValidatorThread};
use rollpacker_operators::{
    AdvantageExt, GradientExt, GroupExt, InferenceExt, ReduceExt, RewardExt, RolloutExt,
    ScheduleExt, UpdateExt,
};
use rollpacker_stages::reward::Router;
use rollpacker_stages::rollout::{Policy, RolloutEngine};

/// Emits prompts until it has no more, or nobody wants them.
pub type Produce = Box<dyn FnOnce(&Emitter) -> Result<(), String> + Send>;

/// What hands over the prompts of a run, as batches of [`schema::PROMPTS`].
pub enum PromptSource {
    /// A thread of its own, which may wait for files.
    Thread(Produce),
    /// The worker's own thread: for runs in virtual time.
    Inline(Box<dyn Iterator<Item = Batch>>),
}

/// The time that a run goes by.
#[derive(Clone)]
pub enum Time {
    /// That of the machine.
    Wall(Arc<dyn Clock>),
    /// One that passes as the stages say.
    Virtual(VirtualClock),
}

impl Time {
    /// What tells it.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        match self {
            Self::Wall(clock) => clock.clone(),
            Self::Virtual(clock) => Arc::new(clock.clone()),
        }
    }
}

/// Where a run begins.
pub enum Begin {
    /// At the first step, with this policy.
    Anew(Policy),
    /// Behind the last step of a snapshot. The schedule and the trainer are as they are made: the snapshot has their states.
    Resumed(Rc<Resumed>),
}

impl Begin {
    fn resumed(&self) -> Option<&Rc<Resumed>> {
        match self {
            Self::Anew(_) => None,
            Self::Resumed(resumed) => Some(resumed),
        }
    }
}

/// The stages of an RL step, ready to be run.
pub struct Pipeline {
    /// Where prompts come from.
    pub prompts: PromptSource,
    /// Prompts that the source may be ahead of the schedule.
    pub prompts_ahead: usize,
    /// What a round launches and keeps.
    pub schedule: Box<dyn Schedule>,
    /// What generates responses.
    pub engine: Box<dyn RolloutEngine>,
    /// The longest response it samples, tokens: what the ledger's shares go by.
    pub max_response_length: u32,
    /// Steps at the start that the ledger's columns leave out.
    pub warmup_steps: u64,
    /// What generates and what trains, when; none: the engine as it is, and the trainer beside it.
    pub placement: Option<Box<dyn Place>>,
    /// What scores responses.
    pub router: Router,
    /// How long test cases may run; [`Limits`](rollpacker_stages::reward::Limits) are the same for all.
    pub limit: Box<dyn Limit>,
    /// When they are scored.
    pub scoring: Scoring,
    /// How much better a response is than its group.
    pub advantage: Estimator,
    /// The factor of the KL divergence that rewards are lessened by, if they are; the trainer estimates it.
    pub reward_kl: Option<KlController>,
    /// What learns from groups.
    pub trainer: Rc<TrainerThread>,
    /// When it is given them.
    pub fetch: Fetch,
    /// What tries policies on other prompts, and every how many steps; 0 for never.
    pub validator: Option<(u64, Rc<ValidatorThread>)>,
    /// Where the run begins.
    pub begin: Begin,
    /// How snapshots of the run are taken; none: there are none.
    pub snapshots: Option<SnapshotPlan>,
    /// Steps that the sampling policy may lag behind the trained one.
    pub staleness: u64,
    /// Whether races of responses are decided by tokens instead of by time, so that every run launches, admits and trains on the same. The
    /// engine must be one that can race in [lockstep](rollpacker_stages::rollout::lockstep), and the trainer deterministic.
    pub deterministic: bool,
    /// Where rewards run.
    pub rewards: Executor,
    /// What time it is. In virtual time no stage may wait for a thread.
    pub time: Time,
    /// Ends the run after the round that is open.
    pub stop: Stop,
    /// Tells the observer, or ends the run, when nothing moves any more; not in virtual time. A run that `stop` asks to end does in any case.
    pub watchdog: Option<Watch>,
}

impl Pipeline {
    /// Runs steps until the schedule finishes, or `stop` is requested; `observer` is told of each.
    ///
    /// # Errors
    /// The first fault of any stage, which names operator, step and response; or that the run cannot go on from its snapshot.
    pub fn run(mut self, observer: impl Observer + 'static) -> Result<(), Fault> {
        let policies = self.policies()?;
        let observer = Rc::new(RefCell::new(observer));
        match self.time.clone() {
            Time::Wall(clock) => {
                let watchdog = self.watchdog(clock, &observer);
                runtime::run_watched(watchdog, |scope, faults| {
                    self.build(&policies, scope, faults, observer)
                })
            }
            Time::Virtual(clock) => runtime::run_virtual(&clock, |scope, faults| {
                self.build(&policies, scope, faults, observer)
            }),
        }
    }

    /// Runs the share of one worker of several, each of which has stages of its own and the same options; the first one's `observer` is told
    /// of each step, as its schedule, prompts and validator are the ones that count.
    ///
    /// # Errors
    /// The first fault of any stage of any worker, that a process was lost, or that the time is virtual: workers share the machine's.
    pub fn run_at(mut self, seat: Seat, observer: impl Observer + 'static) -> Result<(), Fault> {
        let Time::Wall(clock) = self.time.clone() else {
            return Err(Fault::new("pipeline", "virtual time is that of a single worker"));
        };
        let policies = self.policies()?;
        let observer = Rc::new(RefCell::new(observer));
        let watchdog = self.watchdog(clock, &observer);
        seat.run(watchdog, |scope, faults| self.build(&policies, scope, faults, observer))
    }

    fn watchdog<O: Observer + 'static>(
        &self,
        clock: Arc<dyn Clock>,
        observer: &Rc<RefCell<O>>,
    ) -> Option<Watchdog> {
        let mut told = observer.clone();
        let tell = move |stall: &Stall| told.warning(&stall.fault());
        let stop = self.stop.clone();
        let watchdog = self.watchdog.as_ref().map(|watch| watch.on(clock, tell));
        watchdog.map(|watchdog| watchdog.ending_if(move || stop.is_requested()))
    }

    /// The policies that the first steps sample with. Schedule and trainer take their states up.
    fn policies(&mut self) -> Result<Vec<Policy>, Fault> {
        let resumed = match &self.begin {
            Begin::Anew(initial) => return Ok(vec![initial.clone()]),
            Begin::Resumed(resumed) => resumed.clone(),
        };
        let failed = |message: String| Fault::new("resume", message);
        resumed.restore(&mut self.schedule).map_err(|error| failed(error.to_string()))?;
        if let Some(placement) = &mut self.placement {
            resumed.restore_placement(placement).map_err(|error| failed(error.to_string()))?;
        }
        let file = resumed.trainer_file().map_err(|error| failed(error.to_string()))?;
        let mut policies = self.trainer.load_state(file).map_err(failed)?;
        let earlier = policies.len().saturating_sub(self.lag() + 1);
        Ok(policies.split_off(earlier))
    }

    fn lag(&self) -> usize {
        usize::try_from(self.staleness).unwrap_or(usize::MAX - 1)
    }

    /// What operators take part in.
    fn resumable<'scope>(&self, scope: Scope<'scope, Step>) -> Resumable<'scope> {
        let resumed = self.begin.resumed().cloned();
        let plan = self.snapshots.clone().map(|plan| {
            let resumed = resumed.as_ref().map(|resumed| resumed.step());
            SnapshotPlan { resumed, ..plan }
        });
        let snapshots = plan.map(|plan| match &self.time {
            Time::Wall(_) => Snapshots::new(scope, &plan),
            Time::Virtual(clock) => Snapshots::in_virtual_time(scope, &plan, clock.clone()),
        });
        Resumable::new(snapshots, resumed)
    }

    /// Lays out the graph of the RL step.
    fn build(
        self,
        policies: &[Policy],
        scope: Scope<'_, Step>,
        faults: &Faults,
        observer: impl Observer + 'static,
    ) {
        let clock = self.time.clock();
        let resumable = self.resumable(scope);
        let budget = Budget::new(self.prompts_ahead);
        if let Some(resumed) = self.begin.resumed() {
            resumed.reserve(&budget);
        }
        let (rows, errors) = match self.prompts {
            PromptSource::Thread(body) => {
                produce(scope, "prompts", &schema::PROMPTS, budget.clone(), body)
            }
            PromptSource::Inline(batches) => {
                produce_inline(scope, "prompts", &schema::PROMPTS, budget.clone(), batches)
            }
        };
        let first = self.begin.resumed().map_or(Step(0), |resumed| resumed.step().next());
        let policies = policies.iter().map(policy_batch).collect();
        let (policies, weights) = feedback::policies_from(scope, self.staleness, first, policies);

        let mut scheduled = Prompts { rows, errors, budget }
            .schedule(self.schedule)
            .until(&self.stop)
            .in_lockstep(self.deterministic)
            .resumable(&resumable);
        if let Some(placement) = self.placement {
            scheduled = scheduled.placed(placement);
        }
        let rollouts = scheduled.rollout(self.engine, &policies, clock.clone());
        let (responses, decisions) = (rollouts.responses.clone(), rollouts.decisions.clone());
        let mut grouped = rollouts
            .scored(self.scoring)
            .reward(self.router, self.limit, self.rewards, clock.clone())
            .group()
            .fetched(self.fetch);
        if self.reward_kl.is_some() || self.advantage.needs_values() {
            grouped = grouped.infer(&self.trainer);
        }
        if let Some(controller) = self.reward_kl {
            grouped = grouped.penalised(controller);
        }
        let gradients = grouped.advantage(self.advantage).gradient(self.trainer);
        let groups = gradients.accumulated.clone();
        let gradients = gradients.reduce(clock.clone());
        let updates = match self.validator {
            Some((every, validator)) => gradients.update().validate(every, validator),
            None => gradients.update(),
        };

        let observer = Rc::new(RefCell::new(observer));
        let mut warned = observer.clone();
        let warnings = route::first("warnings_to_first", updates.warnings, &schema::ERRORS);
        warn(warnings, move |warning| warned.warning(&warning));
        let mut failing = observer.clone();
        faults.before_the_end(move |fault| failing.failed(fault));
        raise(updates.errors, faults);
        let responses = route::first("responses_to_first", responses, &schema::RESPONSES);
        let groups = route::first("trained_to_first", groups, &schema::GROUPS);
        let recorded = Recorded {
            responses: responses.clone(),
            groups: groups.clone(),
            decisions: decisions.clone(),
            warmup_steps: self.warmup_steps,
            resumable: resumable.clone(),
        };
        let metrics = updates.metrics.concat(ledger(recorded, self.max_response_length));
        let metrics = merged(metrics);
        let observed =
            Observed { responses, groups, decisions, metrics, resumable: resumable.clone() };
        observe(observed, clock, observer.clone());
        if let Some(commits) = resumable.commit() {
            raise(commits.errors, faults);
            let mut warned = observer.clone();
            warn(commits.warnings, move |warning| warned.warning(&warning));
            observe_snapshots(commits.metrics, observer);
        }
        weights.connect(updates.policies);
    }
}
