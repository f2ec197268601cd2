//! A model of an engine whose instances run on separate threads.
//!
//! Each instance takes commands from a queue or decodes, reports the responses that end, and then publishes its floor. One call of
//! [`ModelEngine::turn`] takes a command, decodes, or publishes, so a test controls what happens between any two of these actions.
//! Responses that end are reported in the same call.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PolicyVersion, SampleId, Step, Tick};
use rollpacker_stages::rollout::lockstep::{End, Lockstep, Reached};
use rollpacker_stages::rollout::{
    Completion, FinishReason, Policy, Request, RolloutEngine, RolloutEvent, TokenVersions, Waker,
};

/// A function that returns the length of a response, given its id and a seed. The length does not depend on the step.
pub(super) type LengthOf = fn(SampleId, u64) -> u32;

/// A response on an instance, or on its way to one.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    launched: Tick,
    /// The step that first launched the response.
    first: Step,
    /// The policy version that was loaded when the response was requested.
    version: PolicyVersion,
    resumed_tokens: u32,
    tokens: u32,
    length: u32,
}

impl Sequence {
    fn tick(&self) -> Tick {
        Tick(self.launched.0 + u64::from(self.tokens - self.resumed_tokens))
    }
}

#[derive(Clone, Copy, Debug)]
enum Command {
    Run(SampleId, Sequence),
    Stop(SampleId),
}

#[derive(Default)]
struct Instance {
    commands: VecDeque<Command>,
    running: BTreeMap<SampleId, Sequence>,
    /// The number of responses taken up since the floor was published.
    taken: usize,
    must_publish: bool,
    floor: Option<Tick>,
    /// The launch ticks of responses that the published floor does not cover.
    uncovered: VecDeque<Tick>,
}

/// The state that the engine shares with the threads of its instances.
#[derive(Default)]
pub(super) struct Shared {
    seed: u64,
    instances: Vec<Instance>,
    /// Responses that instances have reported and the engine has not gathered.
    reports: VecDeque<(SampleId, Sequence)>,
    waker: Option<Waker>,
    /// `true` if the engine was woken for a floor that it has not read.
    nudged: bool,
    now: Tick,
    /// The instance of each response that was not reported to the driver.
    launched: BTreeMap<SampleId, usize>,
    /// Whole responses that wait for their tick.
    ended: BTreeMap<(Tick, SampleId), Sequence>,
    unreported: Vec<End>,
    aborted: BTreeMap<SampleId, Tick>,
    events: VecDeque<Completion>,
    /// The policy version that was loaded last.
    version: PolicyVersion,
    /// The policy versions of the tokens that responses were resumed with.
    resumed: BTreeMap<SampleId, TokenVersions>,
}

/// A handle to the engine. The driver has one, and the test another.
#[derive(Clone)]
pub(super) struct ModelEngine {
    shared: Rc<RefCell<Shared>>,
    length_of: LengthOf,
}

impl ModelEngine {
    pub(super) fn new(instances: usize, seed: u64, length_of: LengthOf) -> Self {
        let instances = (0..instances).map(|_| Instance::default()).collect();
        let shared = Shared { seed, instances, ..Shared::default() };
        Self { shared: Rc::new(RefCell::new(shared)), length_of }
    }

    /// Returns `true` if an instance has work.
    pub(super) fn may_turn(&self, instance: usize) -> bool {
        let instance = &self.shared.borrow().instances[instance];
        instance.must_publish || !instance.commands.is_empty() || !instance.running.is_empty()
    }

    /// Lets an instance perform one action; a decode advances each response by at most `tokens` tokens.
    pub(super) fn turn(&self, instance: usize, tokens: u32) {
        let woken = self.shared.borrow_mut().turn(instance, tokens);
        self.wake(woken);
    }

    /// Returns the minimum of the published floors and of the launch ticks that they do not cover.
    pub(super) fn known_floor(&self) -> Tick {
        self.shared.borrow().floor()
    }

    fn wake(&self, woken: bool) {
        let waker = self.shared.borrow().waker.clone();
        if let Some(waker) = waker.filter(|_| woken) {
            waker();
        }
    }
}

impl Shared {
    /// Performs one action of an instance. Returns `true` if the engine must be woken.
    fn turn(&mut self, at: usize, tokens: u32) -> bool {
        let instance = &mut self.instances[at];
        if std::mem::take(&mut instance.must_publish) {
            return instance.publish() && !std::mem::replace(&mut self.nudged, true);
        }
        instance.must_publish = true;
        let reported = match instance.commands.pop_front() {
            Some(Command::Run(id, sequence)) => {
                instance.taken += 1;
                instance.running.insert(id, sequence);
                Vec::new()
            }
            Some(Command::Stop(id)) => instance.running.remove_entry(&id).into_iter().collect(),
            None => instance.decode(tokens),
        };
        let woken = !reported.is_empty();
        self.reports.extend(reported);
        woken
    }

    fn floor(&self) -> Tick {
        let known = self.instances.iter().flat_map(|it| it.floor.iter().chain(&it.uncovered));
        known.min().copied().unwrap_or(Tick::MAX)
    }

    /// Processes the reports of instances. A response that was aborted in the meantime is cut at the tick of the abort.
    fn gather(&mut self) {
        while let Some((id, sequence)) = self.reports.pop_front() {
            if let Some(tick) = self.aborted.remove(&id) {
                self.report_cut(id, sequence, tick);
                continue;
            }
            let (tick, tokens) = (sequence.tick(), sequence.tokens);
            self.unreported.push(End { tick, id, tokens, finish_reason: FinishReason::Stop });
            self.ended.insert((tick, id), sequence);
        }
    }

    /// Reports the responses that have ended at or before the current tick.
    fn return_ended(&mut self) {
        let now = self.now;
        let out: Vec<_> = self.ended.extract_if(.., |(tick, _), _| *tick <= now).collect();
        for ((_, id), sequence) in out {
            self.report(id, sequence, FinishReason::Stop);
        }
    }

    fn report_cut(&mut self, id: SampleId, sequence: Sequence, tick: Tick) {
        let own = u32::try_from(tick.0 - sequence.launched.0).expect("few");
        let tokens = sequence.resumed_tokens + own;
        assert!(tokens <= sequence.tokens, "{id} is cut at a tick that it has not reached");
        self.report(id, Sequence { tokens, ..sequence }, FinishReason::Abort);
    }

    fn report(&mut self, id: SampleId, sequence: Sequence, finish_reason: FinishReason) {
        let instance =
            self.launched.remove(&id).expect("a launched response that was not reported");
        let tokens = sequence.tokens as usize;
        let mut token_versions = self.resumed.remove(&id).unwrap_or_default();
        token_versions.resize(tokens, sequence.version);
        self.events.push_back(Completion {
            id,
            response_length: sequence.tokens,
            response_ids: vec![i32::try_from(sequence.first.0).expect("few"); tokens],
            logprobs: vec![0.0; tokens],
            token_versions,
            text: String::new(),
            finish_reason,
            started: Nanos(0),
            finished: Nanos(0),
            preemptions: 0,
            instance: u32::try_from(instance).expect("few"),
        });
    }
}

impl Instance {
    /// Publishes the floor. Returns `true` if the floor changed, or covers responses that the last one did not cover.
    fn publish(&mut self) -> bool {
        let floor = self.running.values().map(Sequence::tick).min();
        let taken = std::mem::take(&mut self.taken);
        self.uncovered.drain(..taken);
        std::mem::replace(&mut self.floor, floor) != floor || taken > 0
    }

    /// Decodes up to `tokens` tokens for every running response, and returns those that end.
    fn decode(&mut self, tokens: u32) -> Vec<(SampleId, Sequence)> {
        for sequence in self.running.values_mut() {
            sequence.tokens = (sequence.tokens + tokens).min(sequence.length);
        }
        self.running.extract_if(.., |_, sequence| sequence.tokens == sequence.length).collect()
    }
}

impl RolloutEngine for ModelEngine {
    fn load(&mut self, policy: &Policy) {
        self.shared.borrow_mut().version = policy.version;
    }

    fn generate(&mut self, Request { step, prompt, samples, resumed, .. }: Request) {
        let mut shared = self.shared.borrow_mut();
        for sample in samples {
            let id = SampleId { step, prompt, sample };
            let partial = resumed.iter().find(|partial| partial.sample == sample);
            let first = partial.map_or(step, |partial| partial.launched);
            let resumed_tokens = partial.map_or(0, |partial| partial.response_length);
            let (launched, length) = (shared.now, (self.length_of)(id, shared.seed));
            assert!(resumed_tokens < length, "{id} had ended");
            let version = shared.version;
            let sequence = Sequence {
                launched,
                first,
                version,
                resumed_tokens,
                tokens: resumed_tokens,
                length,
            };
            let kept = partial.map(|partial| partial.token_versions.clone()).unwrap_or_default();
            shared.resumed.insert(id, kept);
            let loads = shared.instances.iter().map(|it| it.running.len() + it.commands.len());
            let (at, _) = loads.enumerate().min_by_key(|(_, load)| *load).expect("an instance");
            shared.launched.insert(id, at);
            shared.instances[at].commands.push_back(Command::Run(id, sequence));
            shared.instances[at].uncovered.push_back(launched);
        }
    }

    fn abort(&mut self, _id: SampleId) {
        unreachable!("races in lockstep abort at a tick");
    }

    fn lockstep(&mut self) -> Option<&mut dyn Lockstep> {
        Some(self)
    }

    fn poll(&mut self) -> Option<RolloutEvent> {
        let mut shared = self.shared.borrow_mut();
        shared.gather();
        shared.return_ended();
        shared.events.pop_front().map(RolloutEvent::Completed)
    }

    fn wake_by(&mut self, waker: Waker) {
        self.shared.borrow_mut().waker = Some(waker);
    }
}

impl Lockstep for ModelEngine {
    fn reached(&mut self) -> Reached {
        let mut shared = self.shared.borrow_mut();
        shared.nudged = false;
        let floor = shared.floor();
        shared.gather();
        Reached { ended: std::mem::take(&mut shared.unreported), floor }
    }

    fn advance(&mut self, tick: Tick) {
        let mut shared = self.shared.borrow_mut();
        assert!(tick >= shared.now, "ticks ascend");
        shared.now = tick;
        shared.return_ended();
        let woken = !shared.events.is_empty();
        drop(shared);
        self.wake(woken);
    }

    fn abort_at(&mut self, id: SampleId, tick: Tick) {
        let mut shared = self.shared.borrow_mut();
        let Some(&instance) = shared.launched.get(&id) else { return };
        let held = shared.ended.keys().find(|(_, ended)| *ended == id).copied();
        if let Some(sequence) = held.and_then(|key| shared.ended.remove(&key)) {
            shared.unreported.retain(|end| end.id != id);
            shared.report_cut(id, sequence, tick);
            drop(shared);
            return self.wake(true);
        }
        if shared.aborted.insert(id, tick).is_none() {
            shared.instances[instance].commands.push_back(Command::Stop(id));
        }
    }
}
