use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PolicyVersion, SampleId};

use crate::rollout::{
    Completion, FinishReason, Partial, Policy, Request, RolloutEngine, RolloutEvent, Waker,
};
use crate::testkit::{EngineWorld, check_engine};

#[derive(Clone, Copy, PartialEq)]
enum Breaks {
    Nothing,
    Reports,
    Waker,
    Independence,
    Aborts,
    Resuming,
    Versions,
    Lengths,
    Logprobs,
    Finish,
}

/// An engine that counts up from a number that depends on step, prompt and sample. A response has four tokens.
struct Counting {
    breaks: Breaks,
    version: PolicyVersion,
    requests: u64,
    ready: VecDeque<Completion>,
    waker: Option<Waker>,
}

impl Counting {
    fn that_breaks(breaks: Breaks) -> Self {
        let version = PolicyVersion::default();
        Self { breaks, version, requests: 0, ready: VecDeque::new(), waker: None }
    }

    fn respond(&mut self, id: SampleId, partial: Option<&Partial>) {
        const TOKENS: u32 = 4;
        let partial =
            partial.cloned().unwrap_or(Partial { launched: id.step, ..Partial::default() });
        let first = partial.launched.0 * 1000 + id.prompt.0 * 100 + u64::from(id.sample) * 10;
        let shift = if self.breaks == Breaks::Independence { self.requests } else { 0 };
        let mut response_ids = partial.response_ids;
        let kept = if self.breaks == Breaks::Resuming { 0 } else { partial.response_length };
        let new = (kept..).take((TOKENS - partial.response_length) as usize);
        response_ids.extend(new.map(|token| i32::try_from(first + shift).unwrap() + token as i32));
        let mut token_versions = partial.token_versions;
        let version = if self.breaks == Breaks::Versions { PolicyVersion(0) } else { self.version };
        token_versions.resize(TOKENS as usize, version);
        self.ready.push_back(Completion {
            id,
            response_length: TOKENS,
            logprobs: match self.breaks {
                Breaks::Lengths => Vec::new(),
                Breaks::Logprobs => vec![f32::NAN; TOKENS as usize],
                _ => vec![-1.0; TOKENS as usize],
            },
            response_ids,
            token_versions,
            text: String::new(),
            finish_reason: match self.breaks {
                Breaks::Finish => FinishReason::Abort,
                _ => FinishReason::Stop,
            },
            started: Nanos(0),
            finished: Nanos(1),
            preemptions: 0,
            instance: 0,
        });
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.as_ref().filter(|_| self.breaks != Breaks::Waker) {
            waker();
        }
    }
}

impl RolloutEngine for Counting {
    fn load(&mut self, policy: &Policy) {
        self.version = policy.version;
    }

    fn generate(&mut self, request: Request) {
        let Request { step, prompt, samples, resumed, .. } = request;
        let lost = u32::from(self.breaks == Breaks::Reports);
        for sample in samples.skip(lost as usize) {
            let partial = resumed.iter().find(|partial| partial.sample == sample);
            self.respond(SampleId { step, prompt, sample }, partial);
            self.requests += 1;
        }
        self.wake();
    }

    fn abort(&mut self, id: SampleId) {
        if self.breaks == Breaks::Aborts {
            self.respond(id, None);
            self.wake();
        }
    }

    fn poll(&mut self) -> Option<RolloutEvent> {
        // Nothing is ready in the call that requests, as with a real engine.
        let is_woken = self.breaks != Breaks::Waker || self.requests % 2 == 1;
        self.requests += u64::from(self.breaks == Breaks::Waker);
        is_woken.then(|| self.ready.pop_front().map(RolloutEvent::Completed)).flatten()
    }

    fn wake_by(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }
}

fn world() -> EngineWorld {
    let policy = |version| Policy {
        version: PolicyVersion(version),
        location: String::new(),
        digest: version,
    };
    EngineWorld {
        policies: vec![policy(1), policy(2)],
        prompts: vec![Arc::new([1, 2]), Arc::new([3])],
        samples: 3,
        timeout: Duration::from_millis(50),
        is_reproducible: true,
        virtual_time: None,
    }
}

#[test]
fn an_engine_that_keeps_its_contract_passes() {
    check_engine(|| Counting::that_breaks(Breaks::Nothing), &world()).unwrap();
}

#[test]
fn each_broken_rule_is_named() {
    let rules = BTreeMap::from([
        ("every sample of every request is reported: ", Breaks::Reports),
        ("the waker is called when an event is ready: ", Breaks::Waker),
        ("the tokens of a response do not depend on the other responses", Breaks::Independence),
        (
            "a response is reported only once, and only if it was requested: the rollout engine violates its contract: it reports p0.0@0",
            Breaks::Aborts,
        ),
        ("a resumed response ends as if it had not been stopped: p0.0@1", Breaks::Resuming),
        (
            "a token is sampled by a policy that is loaded: the rollout engine violates its contract: token 0",
            Breaks::Versions,
        ),
        (
            "a response has a log-probability and a policy version for each of its token ids: ",
            Breaks::Lengths,
        ),
        ("log-probabilities are finite and at most 0: ", Breaks::Logprobs),
        ("only an aborted response ends with `abort`, and none with `pause`: ", Breaks::Finish),
    ]);
    for (rule, breaks) in rules {
        let error = check_engine(|| Counting::that_breaks(breaks), &world()).unwrap_err();
        assert!(error.to_string().starts_with(rule), "expected {rule}, found {error}");
    }
}

#[test]
fn undeclared_properties_of_an_engine_are_not_checked() {
    let world = EngineWorld { is_reproducible: false, ..world() };
    check_engine(|| Counting::that_breaks(Breaks::Independence), &world).unwrap();
}

#[test]
#[should_panic(expected = "at least two prompts")]
fn a_world_with_one_prompt_panics() {
    let world = EngineWorld { prompts: vec![Arc::new([1])], ..world() };
    drop(check_engine(|| Counting::that_breaks(Breaks::Nothing), &world));
}
