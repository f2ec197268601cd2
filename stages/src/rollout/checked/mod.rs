//! Engines whose reports are checked against their contract during a run.

mod violation;

#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PolicyVersion, SampleId};
use rustc_hash::FxHashMap;

use super::{
    Completion, FinishReason, Lockstep, Partial, Placement, Policy, Request, RolloutEngine,
    RolloutError, RolloutEvent, Waker, Work,
};

pub use self::violation::EngineViolation;

/// An engine whose reports are checked against the [contract](RolloutEngine).
///
/// The first violation becomes [`RolloutEvent::Failed`], which ends the run with an error that names the rule and the response. Without the
/// check a violation would surface later, as a panic or as a step that trains on the wrong tokens. The rollout operator checks every
/// engine, built in or not. A missing report cannot be distinguished from a late one; the watchdog reports it.
pub struct CheckedEngine {
    engine: Box<dyn RolloutEngine>,
    /// The version of the weights that were loaded last.
    loaded: PolicyVersion,
    outstanding: FxHashMap<SampleId, Outstanding>,
    has_failed: bool,
}

/// A response that was requested and not reported yet.
#[derive(Debug)]
struct Outstanding {
    /// The version of the weights at the time of the request. Later versions may sample part of the response.
    version: PolicyVersion,
    /// The tokens that the response continues; `None` if the response is not resumed.
    resumed: Option<Partial>,
}

impl CheckedEngine {
    /// Creates the check of an engine that has not received any command.
    #[must_use]
    pub fn new(engine: Box<dyn RolloutEngine>) -> Self {
        let loaded = PolicyVersion::default();
        Self { engine, loaded, outstanding: FxHashMap::default(), has_failed: false }
    }

    fn check(&mut self, event: RolloutEvent) -> Result<RolloutEvent, EngineViolation> {
        if let RolloutEvent::Completed(completion) = &event {
            let id = completion.id;
            let outstanding =
                self.outstanding.remove(&id).ok_or(EngineViolation::NotOutstanding { id })?;
            check_completion(completion, &outstanding, self.loaded)?;
        }
        Ok(event)
    }
}

impl RolloutEngine for CheckedEngine {
    fn load(&mut self, policy: &Policy) {
        self.loaded = policy.version;
        self.engine.load(policy);
    }

    fn generate(&mut self, request: Request) {
        let Request { step, prompt, ref samples, ref resumed, .. } = request;
        for sample in samples.clone() {
            let resumed = resumed.iter().find(|partial| partial.sample == sample).cloned();
            let outstanding = Outstanding { version: self.loaded, resumed };
            self.outstanding.insert(SampleId { step, prompt, sample }, outstanding);
        }
        self.engine.generate(request);
    }

    fn abort(&mut self, id: SampleId) {
        self.engine.abort(id);
    }

    fn place(&mut self, placement: Placement) {
        self.engine.place(placement);
    }

    fn loaded_at(&self, version: PolicyVersion) -> Option<Nanos> {
        self.engine.loaded_at(version)
    }

    fn work(&self) -> Option<Work> {
        self.engine.work()
    }

    fn lockstep(&mut self) -> Option<&mut dyn Lockstep> {
        self.engine.lockstep()
    }

    fn poll(&mut self) -> Option<RolloutEvent> {
        if self.has_failed {
            return None;
        }
        let event = self.engine.poll()?;
        let event =
            self.check(event).unwrap_or_else(|violation| RolloutEvent::Failed(violation.into()));
        self.has_failed = matches!(event, RolloutEvent::Failed(_));
        Some(event)
    }

    fn wake_by(&mut self, waker: Waker) {
        self.engine.wake_by(waker);
    }
}

impl From<EngineViolation> for RolloutError {
    fn from(violation: EngineViolation) -> Self {
        Self::Violation(Box::new(violation))
    }
}

fn check_completion(
    completion: &Completion,
    outstanding: &Outstanding,
    loaded: PolicyVersion,
) -> Result<(), EngineViolation> {
    let id = completion.id;
    if completion.finish_reason == FinishReason::Pause {
        return Err(EngineViolation::Paused { id });
    }
    check_lengths(completion)?;
    check_logprobs(completion)?;
    let resumed = match &outstanding.resumed {
        Some(partial) => check_resumed(completion, partial)?,
        None => 0,
    };
    check_versions(completion, resumed, outstanding.version..=loaded)
}

/// Checks that the versions of the tokens from `resumed` on are `allowed`.
fn check_versions(
    completion: &Completion,
    resumed: usize,
    allowed: RangeInclusive<PolicyVersion>,
) -> Result<(), EngineViolation> {
    let mut end = 0;
    for &(found, tokens) in completion.token_versions.runs() {
        let token = resumed.max(end);
        end += tokens as usize;
        if token < end && !allowed.contains(&found) {
            let (oldest, newest) = allowed.into_inner();
            return Err(EngineViolation::Version {
                id: completion.id,
                token,
                found,
                oldest,
                newest,
            });
        }
    }
    Ok(())
}

/// Checks that there is a token id, a log-probability and a policy version for each token, or that there are none at all: an engine may
/// count tokens without sampling them.
fn check_lengths(completion: &Completion) -> Result<(), EngineViolation> {
    let lengths = [
        ("response_ids", completion.response_ids.len()),
        ("logprobs", completion.logprobs.len()),
        ("token_versions", completion.token_versions.len()),
    ];
    if lengths.iter().all(|&(_, length)| length == 0) {
        return Ok(());
    }
    let expected = completion.response_length as usize;
    match lengths.into_iter().find(|&(_, length)| length != expected) {
        Some((field, found)) => {
            Err(EngineViolation::Length { id: completion.id, field, expected, found })
        }
        None => Ok(()),
    }
}

/// Checks that every log-probability is a finite number of at most 0, up to rounding.
fn check_logprobs(completion: &Completion) -> Result<(), EngineViolation> {
    /// The maximum accepted log-probability. It exceeds 0 because half-precision arithmetic may round the log-probability of a token that
    /// is certain to a little more than 0.
    const ROUNDING: f32 = 1e-2;
    let is_valid = |logprob: f32| logprob.is_finite() && logprob <= ROUNDING;
    match completion.logprobs.iter().position(|&logprob| !is_valid(logprob)) {
        Some(token) => {
            let found = completion.logprobs[token].to_string();
            Err(EngineViolation::Logprob { id: completion.id, token, found })
        }
        None => Ok(()),
    }
}

/// Checks that a response begins with the tokens and policy versions with which it was resumed. Returns the number of these tokens.
fn check_resumed(completion: &Completion, partial: &Partial) -> Result<usize, EngineViolation> {
    let begins = completion.response_length >= partial.response_length
        && completion.response_ids.starts_with(&partial.response_ids)
        && completion.token_versions.starts_with(&partial.token_versions);
    let tokens = partial.response_length as usize;
    if begins { Ok(tokens) } else { Err(EngineViolation::Resumed { id: completion.id, tokens }) }
}
