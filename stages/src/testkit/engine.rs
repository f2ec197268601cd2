//! Conformance of rollout engines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rollpacker_dataflow::clock::VirtualClock;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};

use super::Nonconformance;
use crate::rollout::{
    CheckedEngine, Completion, EngineViolation, FinishReason, Partial, Policy, Request,
    RolloutEngine, RolloutError, RolloutEvent,
};

const REPORTED: &str = "every sample of every request is reported";
const ONCE: &str = "a response is reported only once, and only if it was requested";
const WORKS: &str = "an engine answers every valid request without failing";
const FINISH: &str = "only an aborted response ends with `abort`, and none with `pause`";
const PER_TOKEN: &str =
    "a response has a log-probability and a policy version for each of its token ids";
const LOGPROBS: &str = "log-probabilities are finite and at most 0";
const BEGINS: &str = "a resumed response begins with the tokens and policy versions of its request";
const VERSIONS: &str = "a token is sampled by a policy that is loaded";
const WAKES: &str = "the waker is called when an event is ready";
const ABORTS: &str =
    "aborting a response that has ended, or that was never requested, has no effect";
const INDEPENDENT: &str =
    "the tokens of a response do not depend on the other responses, or on when those arrive";
const RESUMES: &str = "a resumed response ends as if it had not been stopped";

/// The world in which [`check_engine`] runs an engine.
#[derive(Clone, Debug)]
pub struct EngineWorld {
    /// Published weights, in ascending order of their versions. The checks load them one after the other; at least one is needed.
    pub policies: Vec<Policy>,
    /// Prompts as token ids; at least two are needed.
    pub prompts: Vec<Arc<[i32]>>,
    /// The number of responses to each prompt.
    pub samples: u32,
    /// The maximum time to wait for a report; unused in virtual time.
    pub timeout: Duration,
    /// `true` if the tokens of a response depend on seed, step, prompt, sample and weights alone, as the contract requires. `false` leaves
    /// out the checks of this rule, for engines that cannot guarantee it, such as a server that batches the requests of other clients.
    pub is_reproducible: bool,
    /// The clock of an engine in virtual time, which the checks advance. `None` for engines in wall time.
    pub virtual_time: Option<VirtualClock>,
}

/// Checks a rollout engine against its [contract](RolloutEngine). `start` starts an engine without requests; each check starts its own
/// engine.
///
/// The checks request responses, abort some, resume some, and load every policy.
///
/// # Errors
/// Returns the first rule that does not hold, with the behavior that breaks it.
///
/// # Panics
/// Panics if the world has no policy or fewer than two prompts.
pub fn check_engine<E: RolloutEngine + 'static>(
    mut start: impl FnMut() -> E,
    world: &EngineWorld,
) -> Result<(), Nonconformance> {
    assert!(!world.policies.is_empty(), "an engine is checked with at least one policy");
    assert!(world.prompts.len() >= 2, "an engine is checked with at least two prompts");
    let mut begin = || Session::begin(start(), world);
    let together = begin().all_at_once()?;
    if world.is_reproducible {
        begin().one_by_one(&together)?;
    }
    begin().aborts()?;
    begin().resumes(&together)?;
    begin().loads()
}

/// An engine under check, with the first policy loaded.
struct Session<'a> {
    world: &'a EngineWorld,
    engine: CheckedEngine,
    woken: Receiver<()>,
}

impl<'a> Session<'a> {
    fn begin(engine: impl RolloutEngine + 'static, world: &'a EngineWorld) -> Self {
        let mut engine = CheckedEngine::new(Box::new(engine));
        let (wake, woken) = channel();
        engine.wake_by(Arc::new(move || {
            // The receiver is gone once the check has ended; an engine may wake later.
            let _gone = wake.send(());
        }));
        engine.load(&world.policies[0]);
        Self { world, engine, woken }
    }

    /// Requests all responses together and returns them.
    fn all_at_once(mut self) -> Result<BTreeMap<SampleId, Completion>, Nonconformance> {
        for prompt in 0..self.world.prompts.len() {
            self.request(Step(0), prompt, 0..self.world.samples, Vec::new());
        }
        let responses = self.collect(self.world.prompts.len() * self.world.samples as usize)?;
        match responses.values().find(|response| !response.finish_reason.is_whole()) {
            Some(aborted) => {
                let found = format!("{} was not aborted and ended with `abort`", aborted.id);
                Err(Nonconformance::new(FINISH, found))
            }
            None => Ok(responses),
        }
    }

    /// Requests the responses one by one in the opposite order, and compares them with the responses that were requested together.
    fn one_by_one(
        mut self,
        together: &BTreeMap<SampleId, Completion>,
    ) -> Result<(), Nonconformance> {
        for (&id, expected) in together.iter().rev() {
            let prompt = usize::try_from(id.prompt.0).expect("invariant: an index of a prompt");
            self.request(id.step, prompt, id.sample..id.sample + 1, Vec::new());
            let alone = self.collect(1)?;
            check_same(INDEPENDENT, expected, &alone[&id])?;
        }
        Ok(())
    }

    /// Aborts responses that run, that have ended and that were never requested.
    fn aborts(mut self) -> Result<(), Nonconformance> {
        let id = |sample| SampleId { step: Step(0), prompt: PromptId(0), sample };
        self.engine.abort(id(0));
        let samples = self.world.samples;
        self.request(Step(0), 0, 0..samples, Vec::new());
        (0..samples).for_each(|sample| self.engine.abort(id(sample)));
        let aborted = self.collect(samples as usize)?;
        aborted.keys().for_each(|&ended| self.engine.abort(ended));
        self.request(Step(0), 1, 0..1, Vec::new());
        let after = self.collect(1)?;
        let whole = after.values().all(|response| response.finish_reason.is_whole());
        if whole && after.keys().all(|id| id.prompt == PromptId(1)) {
            return Ok(());
        }
        Err(Nonconformance::new(ABORTS, format!("{after:?}")))
    }

    /// Resumes each response from the first half of its tokens in the next step.
    fn resumes(mut self, whole: &BTreeMap<SampleId, Completion>) -> Result<(), Nonconformance> {
        for response in whole.values() {
            let SampleId { prompt, sample, .. } = response.id;
            let index = usize::try_from(prompt.0).expect("invariant: an index of a prompt");
            self.request(Step(1), index, sample..sample + 1, vec![first_half(response)]);
            let resumed = self.collect(1)?;
            let id = SampleId { step: Step(1), prompt, sample };
            if self.world.is_reproducible {
                check_same(RESUMES, response, &resumed[&id])?;
            }
        }
        Ok(())
    }

    /// Loads one policy after the other. The [`CheckedEngine`] checks the versions of the tokens.
    fn loads(mut self) -> Result<(), Nonconformance> {
        for (step, policy) in (0..).map(Step).zip(&self.world.policies) {
            self.engine.load(policy);
            self.request(step, 0, 0..self.world.samples, Vec::new());
            self.collect(self.world.samples as usize)?;
        }
        Ok(())
    }

    fn request(
        &mut self,
        step: Step,
        prompt: usize,
        samples: std::ops::Range<u32>,
        resumed: Vec<Partial>,
    ) {
        let prompt_ids = Arc::clone(&self.world.prompts[prompt]);
        let prompt = PromptId(prompt as u64);
        self.engine.generate(Request { step, prompt, samples, prompt_ids, resumed });
    }

    /// Waits for the next `count` responses.
    fn collect(&mut self, count: usize) -> Result<BTreeMap<SampleId, Completion>, Nonconformance> {
        let mut responses = BTreeMap::new();
        while responses.len() < count {
            match self.engine.poll() {
                Some(RolloutEvent::Completed(response)) => {
                    responses.insert(response.id, response);
                }
                Some(RolloutEvent::Failed(error)) => {
                    return Err(Nonconformance::new(broken_rule(&error), error));
                }
                None => self.wait(count - responses.len())?,
            }
        }
        Ok(responses)
    }

    /// Waits until the engine calls its waker, or advances the virtual time.
    fn wait(&mut self, missing: usize) -> Result<(), Nonconformance> {
        let is_woken = match &self.world.virtual_time {
            Some(clock) => self.woken.try_recv().is_ok() || clock.advance(),
            None => self.woken.recv_timeout(self.world.timeout).is_ok(),
        };
        if is_woken {
            return Ok(());
        }
        if self.engine.poll().is_some() {
            return Err(Nonconformance::new(WAKES, "an event was ready and the waker not called"));
        }
        let found = format!("{missing} responses were not reported in {:?}", self.world.timeout);
        Err(Nonconformance::new(REPORTED, found))
    }
}

/// Returns the rule that a failed engine breaks.
fn broken_rule(error: &RolloutError) -> &'static str {
    let RolloutError::Violation(violation) = error else { return WORKS };
    match **violation {
        EngineViolation::NotOutstanding { .. } => ONCE,
        EngineViolation::Paused { .. } => FINISH,
        EngineViolation::Length { .. } => PER_TOKEN,
        EngineViolation::Logprob { .. } => LOGPROBS,
        EngineViolation::Resumed { .. } => BEGINS,
        EngineViolation::Version { .. } => VERSIONS,
    }
}

/// Returns the first half of a response, as if it had been stopped there.
fn first_half(response: &Completion) -> Partial {
    let tokens = response.response_length / 2;
    let sampled = response.response_ids.len().min(tokens as usize);
    Partial {
        sample: response.id.sample,
        launched: response.id.step,
        response_length: tokens,
        response_ids: response.response_ids[..sampled].to_vec(),
        logprobs: response.logprobs[..sampled].to_vec(),
        token_versions: response.token_versions.prefix(sampled),
    }
}

fn check_same(
    rule: &'static str,
    expected: &Completion,
    found: &Completion,
) -> Result<(), Nonconformance> {
    fn tokens(response: &Completion) -> (u32, &[i32], FinishReason) {
        (response.response_length, &response.response_ids, response.finish_reason)
    }
    if tokens(expected) == tokens(found) {
        return Ok(());
    }
    let found = format!(
        "{} is {:?}: expected {:?} (number of tokens, tokens, finish reason)",
        found.id,
        tokens(found),
        tokens(expected)
    );
    Err(Nonconformance::new(rule, found))
}
