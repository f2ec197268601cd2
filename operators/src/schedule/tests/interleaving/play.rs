//! Runs the real drivers over models of engines, in an order of actions chosen by a seeded generator.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::types::{UInt8Type, UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, BooleanArray, Float64Array, RecordBatch, UInt32Array, UInt64Array};
use arrow_select::filter::filter_record_batch;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::clock::WallClock;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step, Tick};
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_stages::rollout::{FinishReason, Policy};

use super::engine::ModelEngine;
use crate::policy::policy_batch;
use crate::prompts::{PromptRow, prompt_batch};
use crate::rollout::driver::RolloutDriver as Rollout;
use crate::rollout::port::{Port, RolloutCapabilities};
use crate::schedule::Schedule;
use crate::schedule::driver::{ScheduleDriver, SchedulePort};
use crate::schedule::operator::Stop;
use crate::schedule::prompt_affinity::PromptAffinity;
use crate::schedule::published::OpenStep;
use crate::schedule::snapshot::HeldPrompts;
use crate::schedule::testkit::mix;
use crate::schedule::tests::lockstep::schedules;
use crate::wire::notice;

/// The parameters of a run, except the order of actions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Race {
    /// The index in [`schedules`].
    pub(super) schedule: usize,
    pub(super) workers: usize,
    /// The number of engine instances of a worker.
    pub(super) instances: usize,
    /// The number of prompts of an epoch; there are two epochs.
    pub(super) prompts: u64,
    pub(super) staleness: u64,
    /// The number of prompts that the reader may read ahead.
    pub(super) ahead: usize,
    /// The seed of the lengths and scores of responses.
    pub(super) seed: u64,
    /// `true` to withhold the last floor of an idle worker, like an engine that publishes late; the schedule may then hang.
    pub(super) loses_floors: bool,
}

/// The decisions, requests and responses of a run.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) decided: Vec<String>,
    requested: Vec<String>,
    /// The number of tokens and the finish reason of each response.
    responses: BTreeMap<SampleId, (u32, String)>,
}

/// The reason why a run did not end.
#[derive(Debug)]
pub(super) struct Hang(#[expect(dead_code, reason = "for the message of a failed test")] String);

/// A channel that keeps the order of messages: those in transit, and those that its receiver finds when it runs.
struct Channel<T> {
    sent: VecDeque<T>,
    arrived: VecDeque<T>,
}

impl<T> Default for Channel<T> {
    fn default() -> Self {
        Self { sent: VecDeque::new(), arrived: VecDeque::new() }
    }
}

impl<T> Channel<T> {
    fn send(&mut self, message: T) {
        self.sent.push_back(message);
    }

    fn deliver(&mut self) {
        self.arrived.extend(self.sent.pop_front());
    }

    fn take(&mut self) -> VecDeque<T> {
        std::mem::take(&mut self.arrived)
    }

    fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.arrived.is_empty()
    }
}

/// A worker with its channels from and to the schedule.
struct Worker {
    driver: Rollout,
    engine: ModelEngine,
    woken: Arc<AtomicBool>,
    policies: Channel<(Step, Batch)>,
    requests: Channel<(Step, Batch)>,
    announced: Channel<Step>,
    notices: Channel<Batch>,
    scores: Channel<(Step, Batch)>,
}

impl Worker {
    fn new(race: &Race, index: usize, pauses: bool) -> Self {
        let engine = ModelEngine::new(race.instances, race.seed, length);
        let clock = Arc::new(WallClock::start());
        let mut driver = Rollout::new(Box::new(engine.clone()), pauses, clock);
        let woken = Arc::new(AtomicBool::new(false));
        let wakes = Arc::clone(&woken);
        driver.engine().wake_by(Arc::new(move || wakes.store(true, Ordering::Relaxed)));
        driver.race_in_lockstep(index);
        let (policies, requests) = (Channel::default(), Channel::default());
        let (announced, notices, scores) =
            (Channel::default(), Channel::default(), Channel::default());
        Self { driver, engine, woken, policies, requests, announced, notices, scores }
    }

    /// Returns `true` if the operator would be activated.
    fn is_active(&self) -> bool {
        let has_input = !self.policies.arrived.is_empty() || !self.requests.arrived.is_empty();
        has_input || self.woken.load(Ordering::Relaxed)
    }

    /// Returns `true` if work of the step, or of an earlier one, remains.
    fn is_at(&self, step: Step) -> bool {
        let mut requests = self.requests.sent.iter().chain(&self.requests.arrived);
        requests.any(|(of, _)| *of <= step) || self.driver.open().is_some_and(|open| open <= step)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    /// The reader delivers prompts, or reports that there are no more.
    Read,
    /// The trainer publishes the policy that follows from a step.
    Publish,
    Schedule,
    Rollout(usize),
    Instance(usize, usize),
    Deliver(Message, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Message {
    Policy,
    Request,
    Announcement,
    Notice,
    Score,
}

const MESSAGES: [Message; 5] =
    [Message::Policy, Message::Request, Message::Announcement, Message::Notice, Message::Score];

/// A seeded generator that chooses the next action: usually by random priorities, which last for a while so that some actors fall far
/// behind, and sometimes uniformly.
struct Dice {
    state: u64,
    priorities: u64,
}

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.state = mix(self.state.wrapping_add(1));
        usize::try_from(self.state % sides as u64).expect("small")
    }

    fn choose(&mut self, actions: &[Action]) -> Action {
        if self.roll(24) == 0 {
            self.priorities = self.state;
        }
        if self.roll(4) == 0 {
            return actions[self.roll(actions.len())];
        }
        let priority = |action: &Action| mix(self.priorities ^ mix(number(*action)));
        *actions.iter().max_by_key(|action| priority(action)).expect("there is one")
    }
}

/// Returns a number that identifies the actor or the channel of an action.
fn number(action: Action) -> u64 {
    let (kind, actor) = match action {
        Action::Read => (0, 0),
        Action::Publish => (1, 0),
        Action::Schedule => (2, 0),
        Action::Rollout(worker) => (3, worker),
        Action::Instance(worker, instance) => (4, worker * 8 + instance),
        Action::Deliver(message, worker) => (5 + message as u64, worker),
    };
    kind << 8 | actor as u64
}

/// Returns the length of a response; many are equal and some are long.
fn length(id: SampleId, seed: u64) -> u32 {
    let hash = mix(seed ^ mix(id.prompt.0 << 8 | u64::from(id.sample)));
    let tail = if hash.is_multiple_of(5) { 20 } else { 0 };
    1 + tail + u32::try_from(hash >> 8 & 7).expect("small")
}

struct Play {
    race: Race,
    dice: Dice,
    /// A capability of each output of the schedule and of rollouts, at the first step.
    rights: Vec<Capability<Step>>,
    driver: ScheduleDriver,
    stop: Stop,
    budget: Budget,
    workers: Vec<Worker>,
    read: u64,
    is_read: bool,
    prompts: VecDeque<Batch>,
    /// Steps whose rounds have closed and whose update is still to come.
    closed: BTreeSet<Step>,
    outcome: Outcome,
}

impl Race {
    /// Plays the run in an order of actions from the seed `dice`. `rights` has a capability of each output of the schedule and of the
    /// rollouts, at the first step. Returns an error if the run hangs, or does not end within 100,000 actions.
    pub(super) fn play(self, rights: &[Capability<Step>], dice: u64) -> Result<Outcome, Hang> {
        let mut play = Play::new(self, rights, dice);
        for _ in 0..100_000 {
            let actions = play.actions();
            if actions.is_empty() {
                return play.end();
            }
            let action = play.dice.choose(&actions);
            play.perform(action);
        }
        Err(Hang("the run does not end".to_owned()))
    }
}

impl Play {
    fn new(race: Race, rights: &[Capability<Step>], dice: u64) -> Self {
        let schedule: Box<dyn Schedule> = Box::new(schedules().swap_remove(race.schedule));
        let pauses = schedule.pauses();
        let (stop, budget) = (Stop::default(), Budget::new(race.ahead));
        let clock = Arc::new(WallClock::start());
        let stocked = HeldPrompts::default();
        let driver = ScheduleDriver::new(schedule, stocked, budget.clone(), stop.clone(), clock);
        let mut driver = driver.with_affinity(PromptAffinity::new(race.workers));
        driver.race_in_lockstep();
        let mut play = Self {
            race,
            dice: Dice { state: dice, priorities: dice },
            rights: rights.to_vec(),
            driver,
            stop,
            budget,
            workers: (0..race.workers).map(|index| Worker::new(&race, index, pauses)).collect(),
            read: 0,
            is_read: false,
            prompts: VecDeque::new(),
            closed: BTreeSet::new(),
            outcome: Outcome::default(),
        };
        (0..=race.staleness).for_each(|step| play.publish(Step(step)));
        play
    }

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        let all_read = self.read == 2 * self.race.prompts;
        if (self.budget.available() > 0 || all_read) && !self.is_read && !self.stop.is_complete() {
            actions.push(Action::Read);
        }
        if self.trained().is_some() {
            actions.push(Action::Publish);
        }
        if self.has_input() {
            actions.push(Action::Schedule);
        }
        for (at, worker) in self.workers.iter().enumerate() {
            actions.extend(worker.is_active().then_some(Action::Rollout(at)));
            let instances = 0..self.race.instances;
            let instances = instances.filter(|instance| worker.engine.may_turn(*instance));
            actions.extend(instances.map(|instance| Action::Instance(at, instance)));
            let sent = MESSAGES.into_iter().filter(|message| match message {
                Message::Policy => !worker.policies.sent.is_empty(),
                Message::Request => !worker.requests.sent.is_empty(),
                Message::Announcement => !worker.announced.sent.is_empty(),
                Message::Notice => !worker.notices.sent.is_empty(),
                Message::Score => !worker.scores.sent.is_empty(),
            });
            actions.extend(sent.map(|message| Action::Deliver(message, at)));
        }
        actions
    }

    /// Returns `true` if the operator of the schedule would be activated.
    fn has_input(&self) -> bool {
        let has_arrivals = |worker: &Worker| {
            let Worker { announced, notices, scores, .. } = worker;
            !(announced.arrived.is_empty()
                && notices.arrived.is_empty()
                && scores.arrived.is_empty())
        };
        !self.prompts.is_empty() || self.workers.iter().any(has_arrivals)
    }

    /// Returns the first closed step if no worker has work of the step, or of an earlier one, left. Returns `None` otherwise, or if no step
    /// is closed.
    fn trained(&self) -> Option<Step> {
        let step = *self.closed.first()?;
        (!self.workers.iter().any(|worker| worker.is_at(step))).then_some(step)
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Read => self.read(),
            Action::Publish => {
                let step = self.closed.pop_first().expect("one is trained");
                self.publish(Step(step.0 + 1 + self.race.staleness));
            }
            Action::Schedule => self.schedule(),
            Action::Rollout(worker) => self.rollout(worker),
            Action::Instance(worker, instance) => {
                let tokens = 1 + u32::try_from(self.dice.roll(6)).expect("small");
                self.workers[worker].engine.turn(instance, tokens);
            }
            Action::Deliver(message, worker) => {
                let worker = &mut self.workers[worker];
                match message {
                    Message::Policy => worker.policies.deliver(),
                    Message::Request => worker.requests.deliver(),
                    Message::Announcement => worker.announced.deliver(),
                    Message::Notice => worker.notices.deliver(),
                    Message::Score => worker.scores.deliver(),
                }
            }
        }
    }

    fn read(&mut self) {
        let left = usize::try_from(2 * self.race.prompts - self.read).expect("few");
        if left == 0 {
            self.is_read = true;
            self.prompts.push_back(Batch::default());
            return;
        }
        let max = 1 + self.dice.roll(left);
        let rows: Vec<PromptRow> = (0..self.budget.try_acquire(max) as u64)
            .map(|at| self.read + at)
            .map(|id| PromptRow {
                prompt: PromptId(id),
                epoch: u32::from(id >= self.race.prompts),
                row: id % self.race.prompts,
                prompt_ids: vec![1],
                prompt_length: 1,
                ..PromptRow::default()
            })
            .collect();
        self.read += rows.len() as u64;
        self.prompts.push_back(prompt_batch(&rows));
    }

    /// Announces a policy to every worker, and by every worker to the schedule.
    fn publish(&mut self, step: Step) {
        for worker in &mut self.workers {
            worker.policies.send((step, policy_batch(&policy(step))));
            worker.announced.send(step);
        }
    }

    /// Activates the schedule's operator.
    fn schedule(&mut self) {
        for batch in std::mem::take(&mut self.prompts) {
            if batch.num_rows() == 0 {
                self.driver.on_end_of_prompts();
            } else {
                self.driver.on_prompts(&batch);
            }
        }
        for worker in &mut self.workers {
            for step in worker.announced.take() {
                let [requests, texts, decisions, errors] =
                    [0, 1, 2, 3].map(|output| self.rights[output].delayed(&step));
                let policy = policy(step);
                let open = OpenStep { policy, requests, texts, decisions, errors, metrics: None };
                self.driver.on_policy(step, open);
            }
            worker.notices.take().iter().for_each(|batch| self.driver.on_notice(batch));
            let scores = worker.scores.take();
            scores.iter().for_each(|(step, batch)| self.driver.on_scores(*step, batch));
        }
        loop {
            self.decide();
            let Some(step) = self.driver.next_due_policy() else { break };
            self.driver.deliver_policy(step);
        }
    }

    fn decide(&mut self) {
        let Self { driver, workers, closed, outcome, .. } = self;
        let requested = &mut outcome.requested;
        let decided = &mut outcome.decided;
        driver.decide(|port, capability, batch| match port {
            SchedulePort::Texts => {}
            SchedulePort::Requests => send(workers, *capability.time(), &batch, requested),
            SchedulePort::Decisions => {
                let step = *capability.time();
                let rows = batch.text(column::DECISION).iter().flatten();
                closed.extend(rows.filter(|decision| *decision == "close").map(|_| step));
                decided.extend(lines(step, &batch));
            }
        });
    }

    /// Activates a rollout's operator.
    fn rollout(&mut self, at: usize) {
        let Self { workers, rights, outcome, race, .. } = self;
        let Worker { driver, engine, woken, policies, requests, notices, scores, .. } =
            &mut workers[at];
        woken.store(false, Ordering::Relaxed);
        for (step, batch) in policies.take() {
            driver.on_policy(step, &batch);
        }
        for (step, capabilities, batch) in driver.take_ready() {
            driver.request(step, || capabilities, &batch);
        }
        for (step, batch) in requests.take() {
            let retained = || capabilities(rights, step);
            if driver.has_policy(step) {
                driver.request(step, retained, &batch);
            } else {
                driver.hold((step, retained(), batch));
            }
        }
        driver.report(|port, capability, batch| match port {
            Port::Notices if batch.num_rows() > 0 => {
                notices.send(if race.loses_floors { late(&batch, engine) } else { batch });
            }
            Port::Responses => {
                let step = *capability.time();
                scores.send((step, scored(step, &batch, race.seed)));
                let all = responses(step, &batch);
                for (id, response) in all {
                    assert_eq!(outcome.responses.insert(id, response), None, "{id} ends once");
                }
            }
            Port::Errors => panic!("a fault: {batch:?}"),
            _ => {}
        });
    }

    /// Checks the end, when no action is possible any more: the run is over, or it hangs.
    fn end(self) -> Result<Outcome, Hang> {
        let is_over = self.stop.is_complete()
            && self.workers.iter().all(|worker| {
                worker.driver.open().is_none()
                    && worker.requests.is_empty()
                    && worker.notices.is_empty()
            });
        if is_over {
            return Ok(self.outcome);
        }
        Err(Hang(format!(
            "after {:?}, with {} responses",
            self.outcome.decided.last(),
            self.outcome.responses.len(),
        )))
    }
}

pub(super) fn policy(step: Step) -> Policy {
    Policy { version: PolicyVersion(step.0), location: "nowhere".to_owned(), digest: 0 }
}

pub(super) fn capabilities(rights: &[Capability<Step>], step: Step) -> RolloutCapabilities {
    Port::ALL.map(|port| rights[4 + port as usize].delayed(&step))
}

/// Sends each row of requests to its worker, and appends a description of each row to `requested`.
fn send(workers: &mut [Worker], step: Step, batch: &Batch, requested: &mut Vec<String>) {
    let receivers = batch.values::<UInt32Type>(column::WORKER);
    let rows = batch.rows().expect("requests have rows");
    for (at, worker) in (0..).zip(workers) {
        let of: BooleanArray =
            receivers.iter().map(|receiver| Some(receiver == Some(at))).collect();
        if of.true_count() > 0 {
            let rows = filter_record_batch(rows, &of).expect("a mask of the same length");
            worker.requests.send((step, Batch::new(rows)));
        }
    }
    let actions = batch.values::<UInt8Type>(column::ACTION);
    let prompts = batch.values::<UInt64Type>(column::PROMPT_ID);
    let samples = batch.values::<UInt32Type>(column::SAMPLE);
    let counts = batch.values::<UInt32Type>(column::SAMPLES);
    let ticks = batch.values::<UInt64Type>(column::TICK).iter();
    requested.extend(ticks.enumerate().map(|(row, tick)| {
        let (prompt, sample) = (prompts.value(row), samples.value(row));
        let (action, count) = (actions.value(row), counts.value(row));
        let receiver = receivers.value(row);
        format!("{step} {action} p{prompt}.{sample} {count} {tick:?} at {receiver}")
    }));
}

fn lines(step: Step, batch: &Batch) -> Vec<String> {
    let prompts = batch.values::<UInt64Type>(column::PROMPT_ID).iter();
    let samples = batch.lists::<UInt32Type>(column::ADMITTED);
    let decisions = batch.text(column::DECISION).iter().zip(batch.text(column::REASON));
    let rows = prompts.zip(decisions).enumerate();
    rows.map(|(row, (prompt, decision))| {
        format!("{step} {prompt:?} {:?} {decision:?}", samples.get(row))
    })
    .collect()
}

fn ids(step: Step, batch: &Batch) -> Vec<SampleId> {
    let prompts = batch.values::<UInt64Type>(column::PROMPT_ID).values();
    let samples = batch.values::<UInt32Type>(column::SAMPLE).values();
    let ids = prompts.iter().zip(samples);
    ids.map(|(&prompt, &sample)| SampleId { step, prompt: PromptId(prompt), sample }).collect()
}

fn responses(step: Step, batch: &Batch) -> Vec<(SampleId, (u32, String))> {
    let lengths = batch.values::<UInt32Type>(column::RESPONSE_LENGTH).values();
    let reasons = batch.text(column::FINISH_REASON).iter().flatten().map(str::to_owned);
    let ended = lengths.iter().copied().zip(reasons);
    ids(step, batch).into_iter().zip(ended).collect()
}

/// Returns the scores of whole responses.
fn scored(step: Step, batch: &Batch, seed: u64) -> Batch {
    let reasons = batch.text(column::FINISH_REASON).iter().flatten();
    let ids = ids(step, batch).into_iter().zip(reasons);
    let is_whole = |reason: &str| reason.parse().is_ok_and(FinishReason::is_whole);
    let whole: Vec<SampleId> =
        ids.filter(|(_, reason)| is_whole(reason)).map(|(id, _)| id).collect();
    let is_right =
        |id: &SampleId| mix(seed ^ mix(id.prompt.0 << 9 | u64::from(id.sample))).is_multiple_of(3);
    let scores = whole.iter().map(|id| f64::from(u8::from(is_right(id))));
    let columns: [(&str, ArrayRef); 3] = [
        (
            column::PROMPT_ID,
            Arc::new(UInt64Array::from_iter_values(whole.iter().map(|id| id.prompt.0))),
        ),
        (column::SAMPLE, Arc::new(UInt32Array::from_iter_values(whole.iter().map(|id| id.sample)))),
        (column::SCORE, Arc::new(Float64Array::from_iter_values(scores))),
    ];
    Batch::new(RecordBatch::try_from_iter(columns).expect("of one length"))
}

/// Returns the notice, with a floor of [`Tick::MAX`] replaced by the [known floor](ModelEngine::known_floor) of the engine.
fn late(batch: &Batch, engine: &ModelEngine) -> Batch {
    let notice = notice::read(batch);
    if notice.floor < Tick::MAX {
        return batch.clone();
    }
    let worker = u32::try_from(notice.worker).expect("few");
    notice::write(worker, notice.received, engine.known_floor(), &notice.ends)
}
