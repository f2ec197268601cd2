//! Tests that each violation of the contract is reported as the error of the violated rule.

use std::collections::VecDeque;
use std::sync::Arc;

use rollpacker_dataflow::step::{PromptId, Step};

use super::*;
use crate::rollout::TokenVersions;

/// An engine that reports the events that a test has prepared.
struct Scripted(VecDeque<RolloutEvent>);

impl RolloutEngine for Scripted {
    fn load(&mut self, _: &Policy) {}

    fn generate(&mut self, _: Request) {}

    fn abort(&mut self, _: SampleId) {}

    fn poll(&mut self) -> Option<RolloutEvent> {
        self.0.pop_front()
    }

    fn wake_by(&mut self, _: Waker) {}
}

const ID: SampleId = SampleId { step: Step(3), prompt: PromptId(7), sample: 1 };

fn policy(version: u64) -> Policy {
    Policy { version: PolicyVersion(version), location: String::new(), digest: 0 }
}

fn versions(of: [u64; 4]) -> TokenVersions {
    of.into_iter().map(PolicyVersion).collect()
}

/// Returns a response of four tokens. The first two were sampled by policy 2 in an earlier step, the others by policy 3.
fn completion() -> Completion {
    Completion {
        id: ID,
        response_length: 4,
        response_ids: vec![10, 11, 12, 13],
        logprobs: vec![-0.5, -1.0, 0.0, -2.0],
        token_versions: versions([2, 2, 3, 3]),
        text: "text".to_owned(),
        finish_reason: FinishReason::Stop,
        started: Nanos(1),
        finished: Nanos(2),
        preemptions: 0,
        instance: 0,
    }
}

fn partial() -> Partial {
    let Completion { response_ids, logprobs, token_versions, .. } = completion();
    Partial {
        sample: ID.sample,
        launched: Step(2),
        response_length: 2,
        response_ids: response_ids[..2].to_vec(),
        logprobs: logprobs[..2].to_vec(),
        token_versions: token_versions.prefix(2),
    }
}

/// Requests two samples of a prompt from policy 3, the second of which is resumed, and polls an engine that reports these completions.
fn polled<const N: usize>(completions: [Completion; N]) -> Vec<RolloutEvent> {
    let scripted = Scripted(completions.map(RolloutEvent::Completed).into());
    let mut engine = CheckedEngine::new(Box::new(scripted));
    engine.load(&policy(3));
    let prompt_ids = Arc::new([1]);
    let SampleId { step, prompt, .. } = ID;
    engine.generate(Request { step, prompt, samples: 0..2, prompt_ids, resumed: vec![partial()] });
    std::iter::from_fn(|| engine.poll()).collect()
}

/// Returns the violation of a completion that differs from a valid one.
fn violation(change: impl FnOnce(&mut Completion)) -> String {
    let mut changed = completion();
    change(&mut changed);
    match &polled([changed, completion()])[..] {
        [RolloutEvent::Failed(error)] => {
            let message = error.to_string();
            let rest = message.strip_prefix("the rollout engine violates its contract: ");
            rest.expect("a violation").to_owned()
        }
        other => panic!("expected one failure, found {other:?}"),
    }
}

#[test]
fn reports_that_keep_the_contract_pass() {
    let fresh = Completion {
        id: SampleId { sample: 0, ..ID },
        token_versions: TokenVersions::of(PolicyVersion(3), 4),
        finish_reason: FinishReason::Abort,
        ..completion()
    };
    let reports = [completion(), fresh];
    assert_eq!(polled(reports.clone()), reports.map(RolloutEvent::Completed));
}

#[test]
fn an_engine_may_count_tokens_without_sampling_them() {
    let counted = Completion {
        id: SampleId { sample: 0, ..ID },
        response_ids: Vec::new(),
        logprobs: Vec::new(),
        token_versions: TokenVersions::default(),
        ..completion()
    };
    assert_eq!(polled([counted.clone()]), [RolloutEvent::Completed(counted)]);
}

#[test]
fn a_response_is_reported_once_and_only_if_it_was_requested() {
    let expected = "it reports p7.1@3, which was not requested or was reported before: expected one report for each requested response";
    let reports = polled([completion(), completion()]);
    let [RolloutEvent::Completed(_), RolloutEvent::Failed(error)] = &reports[..] else {
        panic!("expected a response and a failure, found {reports:?}")
    };
    assert!(error.to_string().ends_with(expected), "{error}");
    let unrequested = violation(|completion| completion.id.sample = 2);
    assert_eq!(unrequested, expected.replace("p7.1", "p7.2"));
}

#[test]
fn every_token_has_an_id_a_log_probability_and_a_version() {
    let without = violation(|completion| completion.logprobs.clear());
    assert_eq!(
        without,
        "`logprobs` of p7.1@3 has 0 entries: expected 4, one per token of the response"
    );
    let short = violation(|completion| completion.token_versions.truncate(3));
    assert!(short.starts_with("`token_versions` of p7.1@3 has 3 entries"), "{short}");
    let long = violation(|completion| completion.response_length = 3);
    assert!(long.starts_with("`response_ids` of p7.1@3 has 4 entries: expected 3"), "{long}");
}

#[test]
fn log_probabilities_are_finite_and_not_positive() {
    for (wrong, written) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf"), (0.5, "0.5")] {
        let message = violation(|completion| completion.logprobs[2] = wrong);
        assert_eq!(
            message,
            format!(
                "the log-probability of token 2 of p7.1@3 is {written}: expected a finite number of at most 0"
            )
        );
    }
}

#[test]
fn a_resumed_response_begins_with_its_tokens() {
    let expected = "p7.1@3 does not begin with the 2 tokens that it was resumed with";
    assert_eq!(violation(|completion| completion.response_ids[1] = 99), expected);
    assert_eq!(
        violation(|completion| completion.token_versions = versions([3, 2, 3, 3])),
        expected
    );
}

#[test]
fn new_tokens_are_sampled_by_a_policy_that_is_in_use() {
    let stale = violation(|completion| completion.token_versions = versions([2, 2, 2, 3]));
    assert!(
        stale.starts_with("token 2 of p7.1@3 was sampled by policy v2: expected v3"),
        "{stale}"
    );
    let early = violation(|completion| completion.token_versions = versions([2, 2, 3, 4]));
    assert!(early.starts_with("token 3 of p7.1@3 was sampled by policy v4"), "{early}");
}

#[test]
fn only_a_caller_pauses() {
    let paused = violation(|completion| completion.finish_reason = FinishReason::Pause);
    assert_eq!(paused, "it reports p7.1@3 as paused: expected stop, length or abort");
}
