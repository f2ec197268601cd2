//! A validator with an engine that violates its contract.

use std::collections::VecDeque;
use std::sync::Arc;

use rollpacker_dataflow::clock::{Nanos, WallClock};
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId};
use rollpacker_operators::prompts::PromptRow;
use rollpacker_operators::validate::{ValidationError, ValidationResult, Validator};
use rollpacker_stages::reward::{Router, from_fn};
use rollpacker_stages::rollout::{
    Completion, FinishReason, Policy, Request, RolloutEngine, RolloutEvent, TokenVersions, Waker,
};

/// An engine that reports the first sample of each request, each with the prompt id that `reported` returns.
struct Misreporting {
    reported: fn(PromptId) -> PromptId,
    ended: VecDeque<SampleId>,
}

impl RolloutEngine for Misreporting {
    fn load(&mut self, _: &Policy) {}

    fn generate(&mut self, Request { step, prompt, samples, .. }: Request) {
        let prompt = (self.reported)(prompt);
        self.ended.push_back(SampleId { step, prompt, sample: samples.start });
    }

    fn abort(&mut self, _: SampleId) {}

    fn poll(&mut self) -> Option<RolloutEvent> {
        let id = self.ended.pop_front()?;
        Some(RolloutEvent::Completed(Completion {
            id,
            response_length: 1,
            response_ids: Vec::new(),
            logprobs: Vec::new(),
            token_versions: TokenVersions::default(),
            text: String::new(),
            finish_reason: FinishReason::Stop,
            started: Nanos(0),
            finished: Nanos(0),
            preemptions: 0,
            instance: 0,
        }))
    }

    fn wake_by(&mut self, _: Waker) {}
}

fn validated(reported: fn(PromptId) -> PromptId) -> Result<ValidationResult, ValidationError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("starts");
    let engine = Misreporting { reported, ended: VecDeque::new() };
    let router = Router::default().route("*", from_fn(|_| Ok(1.0.into())));
    let prompt = PromptRow { prompt_ids: vec![1], ..PromptRow::default() };
    let clock = Arc::new(WallClock::start());
    let handle = runtime.handle().clone();
    let prompts = vec![prompt; 2];
    let mut validator = Validator::new(Box::new(engine), router, handle, clock, prompts);
    let policy = Policy { version: PolicyVersion(0), location: "memory".to_owned(), digest: 0 };
    validator.validate(&policy)
}

#[test]
fn a_response_that_was_not_requested_or_is_reported_twice_is_an_error() {
    assert_eq!(validated(|prompt| prompt).expect("it keeps the contract").score, Some(1.0));
    for (reported, prompt) in [
        ((|_| PromptId(0)) as fn(PromptId) -> PromptId, PromptId(0)),
        (|_| PromptId(7), PromptId(7)),
    ] {
        let error = validated(reported).expect_err("a violation").to_string();
        let id = SampleId { prompt, ..SampleId::default() };
        let expected = format!("it reports {id}, which was not requested or was reported before");
        assert!(error.contains(&expected), "{error}");
    }
}
