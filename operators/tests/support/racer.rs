//! An engine of several instances whose speeds come from a seeded generator.

use std::collections::BTreeMap;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PolicyVersion, SampleId, Step, Tick};
use rollpacker_stages::rollout::lockstep::{End, Lockstep, Reached};
use rollpacker_stages::rollout::{
    Completion, FinishReason, Partial, Policy, Request, RolloutEngine, RolloutEvent, Waker,
};

use super::length;

struct Running {
    instance: usize,
    launched: Tick,
    /// The step that first launched the response. Together with the prompt, it determines the sampled tokens; together with prompt and
    /// sample, the length.
    first: Step,
    partial: Partial,
    version: PolicyVersion,
    /// The number of tokens so far, including those of `partial`.
    tokens: u32,
    /// The number of tokens at the end.
    length: u32,
}

impl Running {
    fn tick(&self) -> Tick {
        Tick(self.launched.0 + u64::from(self.tokens - self.partial.response_length))
    }

    fn has_ended(&self) -> bool {
        self.tokens == self.length
    }
}

/// An engine in which a poll lets a random instance sample some tokens, and returns at most one of the ended responses, in any order. In
/// lockstep, a poll returns released responses first, without sampling.
pub struct Racer {
    instances: usize,
    dice: u64,
    version: PolicyVersion,
    running: BTreeMap<SampleId, Running>,
    /// Responses that have ended and were not reported; in lockstep only.
    ended: Vec<End>,
    out: Vec<Completion>,
    in_lockstep: bool,
    tick: Tick,
    waker: Option<Waker>,
}

impl Racer {
    pub fn new(instances: usize, dice: u64) -> Self {
        Self {
            instances,
            dice,
            version: PolicyVersion(0),
            running: BTreeMap::new(),
            ended: Vec::new(),
            out: Vec::new(),
            in_lockstep: false,
            tick: Tick(0),
            waker: None,
        }
    }

    fn roll(&mut self, sides: usize) -> usize {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(self.dice >> 33).expect("31 bits") % sides
    }

    /// Lets a random instance sample some tokens for its responses, except for at most one of them.
    fn decode(&mut self) {
        let (instance, tokens) = (self.roll(self.instances), 1 + self.roll(6));
        let idle = self.roll(8);
        let running = self.running.iter_mut().filter(|(_, it)| it.instance == instance);
        for (_, (&id, running)) in running.enumerate().filter(|(at, _)| *at != idle) {
            if !running.has_ended() {
                let gained = u32::try_from(tokens).expect("few");
                running.tokens = (running.tokens + gained).min(running.length);
                if running.has_ended() {
                    let (tick, tokens) = (running.tick(), running.length);
                    self.ended.push(End { tick, id, tokens, finish_reason: FinishReason::Stop });
                }
            }
        }
        if !self.in_lockstep {
            for end in std::mem::take(&mut self.ended) {
                self.complete(end.id, end.tokens, FinishReason::Stop);
            }
        }
    }

    fn complete(&mut self, id: SampleId, tokens: u32, finish_reason: FinishReason) {
        let Some(running) = self.running.remove(&id) else { return };
        let fresh = (tokens - running.partial.response_length) as usize;
        let partial = running.partial;
        let mut token_versions = partial.token_versions;
        token_versions.push_run(running.version, fresh);
        let mut response_ids = partial.response_ids;
        let seed = i32::try_from(running.first.0 * 31 + id.prompt.0 * 7).expect("small");
        response_ids.extend((partial.response_length..tokens).map(|at| (seed + at as i32) % 97));
        self.out.push(Completion {
            id,
            response_length: tokens,
            logprobs: response_ids.iter().map(|id| -0.01 * *id as f32).collect(),
            text: format!("{response_ids:?}"),
            response_ids,
            token_versions,
            finish_reason,
            started: Nanos(0),
            finished: Nanos(u64::from(tokens)),
            preemptions: 0,
            instance: u32::try_from(running.instance).expect("few"),
        });
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.as_ref().filter(|_| self.has_work()) {
            waker();
        }
    }

    fn has_work(&self) -> bool {
        !self.out.is_empty() || self.running.values().any(|running| !running.has_ended())
    }
}

impl RolloutEngine for Racer {
    fn load(&mut self, policy: &Policy) {
        self.version = policy.version;
    }

    fn generate(&mut self, Request { step, prompt, samples, resumed, .. }: Request) {
        for sample in samples {
            let id = SampleId { step, prompt, sample };
            let partial = resumed.iter().find(|partial| partial.sample == sample).cloned();
            let first = partial.as_ref().map_or(step, |partial| partial.launched);
            let partial = partial.unwrap_or_default();
            let tokens = partial.response_length;
            let length = length(SampleId { step: first, ..id });
            assert!(tokens < length, "{id} had ended");
            let instance = self.roll(self.instances);
            let (launched, version) = (self.tick, self.version);
            let running = Running { instance, launched, first, partial, version, tokens, length };
            self.running.insert(id, running);
        }
        self.wake();
    }

    fn abort(&mut self, id: SampleId) {
        if let Some(tokens) = self.running.get(&id).map(|running| running.tokens) {
            self.complete(id, tokens, FinishReason::Abort);
        }
        self.wake();
    }

    fn lockstep(&mut self) -> Option<&mut dyn Lockstep> {
        self.in_lockstep = true;
        Some(self)
    }

    fn poll(&mut self) -> Option<RolloutEvent> {
        // Reports may be late, except for responses that were released.
        let whole = self.out.iter().position(|it| self.in_lockstep && it.finish_reason.is_whole());
        let next = whole.or_else(|| {
            self.decode();
            let is_late = self.out.is_empty() || self.roll(3) == 0;
            (!is_late).then(|| self.roll(self.out.len()))
        });
        self.wake();
        next.map(|at| RolloutEvent::Completed(self.out.swap_remove(at)))
    }

    fn wake_by(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }
}

impl Lockstep for Racer {
    fn reached(&mut self) -> Reached {
        let unfinished = self.running.values().filter(|running| !running.has_ended());
        let floor = unfinished.map(Running::tick).min().unwrap_or(Tick::MAX);
        Reached { ended: std::mem::take(&mut self.ended), floor }
    }

    fn advance(&mut self, tick: Tick) {
        assert!(tick >= self.tick, "ticks ascend");
        self.tick = tick;
        let is_out = |running: &Running| running.has_ended() && running.tick() <= tick;
        let out: Vec<(SampleId, u32)> = self
            .running
            .iter()
            .filter(|(_, running)| is_out(running))
            .map(|(id, running)| (*id, running.length))
            .collect();
        out.into_iter().for_each(|(id, tokens)| self.complete(id, tokens, FinishReason::Stop));
    }

    fn abort_at(&mut self, id: SampleId, tick: Tick) {
        let Some(running) = self.running.get(&id) else { return };
        let own = u32::try_from(tick.0 - running.launched.0).expect("few");
        let tokens = running.partial.response_length + own;
        assert!(tokens <= running.tokens, "{id} has not come to the tick that it is dropped at");
        self.ended.retain(|end| end.id != id);
        self.complete(id, tokens, FinishReason::Abort);
        self.wake();
    }
}
