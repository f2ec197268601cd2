//! Runs in virtual time that record the rewards.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use super::in_virtual_time::{SECOND, Spending, Timed};
use super::{Reports, check_truth, prompts};
use rollpacker_dataflow::bridge::{Executor, produce_inline};
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::clock::{Clock, Nanos, VirtualClock};
use rollpacker_dataflow::fault::{Fault, raise, warn};
use rollpacker_dataflow::runtime::run_virtual;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_dataflow::{feedback, schema};
use rollpacker_operators::advantage::Grpo;
use rollpacker_operators::overlap::Scoring;
use rollpacker_operators::policy::policy_batch;
use rollpacker_operators::report::{Observer, ReportInputs, StepReport, observe};
use rollpacker_operators::resume::Resumable;
use rollpacker_operators::reward::TimeLimit;
use rollpacker_operators::schedule::operator::Prompts;
use rollpacker_operators::schedule::{Decision, Event, Queue, Reason, RoundKind, Schedule};
use rollpacker_operators::trainer::TrainerThread;
use rollpacker_operators::{
    AdvantageExt, GradientExt, GroupExt, RewardExt, RolloutExt, ScheduleExt, UpdateExt,
};
use rollpacker_stages::reward::{
    Context, GroupReward, Limits, Reward, RewardError, Router, Sample, Score,
};
use rollpacker_stages::train::Trainer;

/// The log of events with their times.
#[derive(Clone)]
pub struct Log {
    pub clock: VirtualClock,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Log {
    pub fn new() -> Self {
        Self { clock: VirtualClock::default(), lines: Arc::default() }
    }

    pub fn line(&self, line: impl std::fmt::Display) {
        let seconds = self.clock.now().0 / SECOND;
        self.lines.lock().expect("unpoisoned").push(format!("t={seconds:<3} {line}"));
    }

    pub fn text(&self) -> String {
        self.lines.lock().expect("unpoisoned").iter().map(|line| format!("{line}\n")).collect()
    }
}

/// A schedule that logs its decisions, except those that open a round or finish the run, and the scores that it receives.
pub struct Logged<S>(pub S, pub Log);

impl<S: Schedule> Schedule for Logged<S> {
    fn on(&mut self, now: Nanos, event: Event) {
        if let Event::Scored { id, score } = &event {
            self.1.line(format_args!("received for {id}: {score}"));
        }
        self.0.on(now, event);
    }

    fn poll(&mut self) -> Option<Decision> {
        let decision = self.0.poll();
        if let Some(decision) = &decision
            && !matches!(decision, Decision::Open { .. } | Decision::Finish)
        {
            self.1.line(decision);
        }
        decision
    }

    fn wants_prompts(&self) -> bool {
        self.0.wants_prompts()
    }

    fn wants_scores(&self) -> bool {
        self.0.wants_scores()
    }

    fn pauses(&self) -> bool {
        self.0.pauses()
    }
}

/// A schedule of one round of `launches`, each a prompt with a number of responses; `then` maps the end of a response to decisions.
#[derive(Default)]
pub struct Script {
    pub launches: Vec<(u64, u32)>,
    pub then: BTreeMap<(u64, u32), Vec<Decision>>,
    pub offered: usize,
    pub policy: bool,
    pub decided: Vec<Decision>,
}

impl Script {
    pub fn new<const N: usize>(
        launches: &[(u64, u32)],
        then: [((u64, u32), Vec<Decision>); N],
    ) -> Self {
        Self { launches: launches.to_vec(), then: then.into(), ..Self::default() }
    }
}

impl Script {
    /// Opens the round once the policy and all prompts have arrived.
    fn open(&mut self) {
        if !self.policy || self.offered != self.launches.len() {
            return;
        }
        let (step, round, reason) = (Step(0), RoundKind::Short, Reason::Fresh);
        self.decided.push(Decision::Open { step, round, reason });
        let launch = |&(prompt, samples)| Decision::Launch {
            prompt: PromptId(prompt),
            samples: 0..samples,
            reason,
        };
        self.decided.extend(self.launches.iter().map(launch));
    }
}

pub fn admit(prompt: u64, samples: &[u32]) -> Decision {
    let (prompt, samples) = (PromptId(prompt), samples.to_vec());
    Decision::Admit { prompt, samples, weights: Vec::new(), reason: Reason::Finished }
}

pub fn defer(prompt: u64) -> Decision {
    Decision::Defer { prompt: PromptId(prompt), reason: Reason::RoundFull }
}

pub fn reject(prompt: u64) -> Decision {
    Decision::Reject { prompt: PromptId(prompt), reason: Reason::NoQuota }
}

pub fn abort(prompt: u64, sample: u32) -> Decision {
    let id = SampleId { step: Step(0), prompt: PromptId(prompt), sample };
    Decision::Abort { id, reason: Reason::RoundFull }
}

pub fn close() -> Decision {
    Decision::Close { step: Step(0), queue: Queue::default() }
}

impl Schedule for Script {
    fn on(&mut self, _: Nanos, event: Event) {
        match event {
            Event::Prompt(_) => {
                self.offered += 1;
                self.open();
            }
            Event::Policy { step: Step(0) } => {
                self.policy = true;
                self.open();
            }
            Event::Response { id, .. } => {
                let then = self.then.remove(&(id.prompt.0, id.sample)).unwrap_or_default();
                let closes = then.contains(&close());
                self.decided.extend(then);
                self.decided.extend(closes.then_some(Decision::Finish));
            }
            _ => {}
        }
    }

    fn poll(&mut self) -> Option<Decision> {
        (!self.decided.is_empty()).then(|| self.decided.remove(0))
    }

    fn wants_prompts(&self) -> bool {
        self.offered < self.launches.len()
    }
}

/// A reward that takes a given time and returns a given result.
#[derive(Clone)]
pub struct Watched {
    pub log: Log,
    pub seconds: Arc<dyn Fn(SampleId) -> u64 + Send + Sync>,
    pub score: fn(SampleId) -> Result<Score, RewardError>,
}

struct Begun(Log, Option<SampleId>);

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(id) = self.1 {
            self.0.line(format_args!("{id} dropped"));
        }
    }
}

impl Reward for Watched {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        check_truth(sample);
        let mut begun = Begun(self.log.clone(), Some(sample.id));
        context.metric("told", 1.0);
        self.log.clock.sleep(Nanos((self.seconds)(sample.id) * SECOND)).await;
        begun.1 = None;
        self.log.line(format_args!("{} scored", sample.id));
        (self.score)(sample.id)
    }
}

impl GroupReward for Watched {
    async fn score(&self, group: &[Sample], _: &Context) -> Result<Vec<Score>, RewardError> {
        group.iter().for_each(check_truth);
        self.log.clock.sleep(Nanos((self.seconds)(group[0].id) * SECOND)).await;
        self.log.line(format_args!("group of {} scored", group[0].id.prompt));
        group.iter().map(|sample| (self.score)(sample.id)).collect()
    }
}

/// A run in virtual time whose rewards are logged.
pub struct Rewarded {
    pub log: Log,
    pub schedule: Box<dyn Schedule>,
    pub router: Router,
    pub limit: Box<dyn TimeLimit>,
    pub scoring: Scoring,
    pub seconds: Box<dyn Fn(SampleId) -> u64>,
    pub prompts: u64,
    pub staleness: u64,
    pub cancels: bool,
}

impl Rewarded {
    /// Creates a run in which sample `s` of prompt `p` takes `10 p + s + 1` seconds.
    pub fn of(log: &Log, schedule: impl Schedule + 'static, router: Router) -> Self {
        Self {
            log: log.clone(),
            schedule: Box::new(schedule),
            router,
            limit: Box::new(Limits::default()),
            scoring: Scoring::Streamed,
            seconds: Box::new(|id| 10 * id.prompt.0 + u64::from(id.sample) + 1),
            prompts: 2,
            staleness: 0,
            cancels: true,
        }
    }

    pub fn run(self) -> Result<Vec<StepReport>, Fault> {
        let clock = self.log.clock.clone();
        let time: Arc<dyn Clock> = Arc::new(clock.clone());
        let reports = Reports::default();
        let (observer, log) = (Closing(reports.clone(), self.log.clone()), self.log.clone());
        run_virtual(&clock, |scope, faults| {
            let trainer: Box<dyn Trainer> = Box::new(Spending::on(&clock, 8));
            let trainer = Rc::new(TrainerThread::in_virtual_time(clock.clone(), trainer));
            let budget = Budget::new(64);
            let batches = (0..self.prompts).map(|id| prompts(id..id + 1, |_| 0, "slow"));
            let (rows, errors) =
                produce_inline(scope, "prompts", &schema::PROMPTS, budget.clone(), batches);
            let initial = policy_batch(&trainer.publish_initial().expect("published"));
            let (policies, edge) = feedback::policies(scope, self.staleness, initial);
            let mut rollouts = Prompts { rows, errors, budget }
                .schedule(self.schedule)
                .rollout(Timed::new(&clock, self.seconds), &policies, time.clone())
                .score_when(self.scoring);
            if !self.cancels {
                rollouts = rollouts.without_cancellation();
            }
            let (responses, decisions) = (rollouts.responses.clone(), rollouts.decisions.clone());
            let texts = rollouts.texts.clone();
            let gradients = rollouts
                .reward(self.router, self.limit, Executor::Inline, time.clone())
                .group()
                .advantage(Grpo::default())
                .gradient(trainer);
            let groups = gradients.accumulated.clone();
            let updates = gradients.update();
            warn(updates.warnings, move |warning| log.line(format_args!("warning: {warning}")));
            raise(updates.errors, faults);
            let (metrics, resumable) = (updates.metrics, Resumable::default());
            let observed = ReportInputs { responses, groups, decisions, texts, metrics, resumable };
            observe(observed, time, observer);
            edge.connect(updates.policies);
        })?;
        Ok(reports.0.take())
    }
}

/// Logs the end of each step.
struct Closing(Reports, Log);

impl Observer for Closing {
    fn step(&mut self, report: StepReport) {
        self.1.line(format_args!("step {} over", report.step));
        self.0.step(report);
    }
}
