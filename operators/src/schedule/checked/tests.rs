//! Tests that the message of a failure names the violated rule.

use std::ops::Range;

use rollpacker_dataflow::fault::Origin;
use rollpacker_dataflow::step::{SampleId, Step};
use rollpacker_stages::rollout::FinishReason;

use super::*;
use crate::schedule::{Offer, Queue, Reason, RoundKind};

/// Takes some decisions when it receives a policy, and the others when it receives the end of the second response.
struct Script {
    on_policy: Vec<Decision>,
    on_response: Vec<Decision>,
    decided: VecDeque<Decision>,
}

impl Schedule for Script {
    fn on(&mut self, _: Nanos, event: Event) {
        match event {
            Event::Policy { .. } => self.decided.extend(self.on_policy.drain(..)),
            Event::Response { id, .. } if id.sample == 1 => {
                self.decided.extend(self.on_response.drain(..));
            }
            _ => {}
        }
    }

    fn poll(&mut self) -> Option<Decision> {
        self.decided.pop_front()
    }

    fn wants_prompts(&self) -> bool {
        false
    }
}

const PROMPT: PromptId = PromptId(1);
const STEP: Step = Step(0);

fn id(sample: u32) -> SampleId {
    SampleId { step: STEP, prompt: PROMPT, sample }
}

fn open(step: u64) -> Decision {
    Decision::Open { step: Step(step), round: RoundKind::Full, reason: Reason::Fresh }
}

fn launch(samples: Range<u32>) -> Decision {
    Decision::Launch { prompt: PROMPT, samples, reason: Reason::Fresh }
}

fn admit(samples: &[u32]) -> Decision {
    let (samples, weights) = (samples.to_vec(), Vec::new());
    Decision::Admit { prompt: PROMPT, samples, weights, reason: Reason::Finished }
}

fn defer() -> Decision {
    Decision::Defer { prompt: PROMPT, reason: Reason::RoundFull }
}

fn close() -> Decision {
    Decision::Close { step: STEP, queue: Queue::default() }
}

fn abort(sample: u32) -> Decision {
    Decision::Abort { id: id(sample), reason: Reason::GroupFull }
}

/// Returns a schedule that has one prompt and the policy of step 0. It takes the first decisions at once, and the others after the first
/// two responses of the prompt have ended.
fn checked(first: usize, decisions: impl IntoIterator<Item = Decision>) -> Checked {
    let mut on_policy: Vec<_> = decisions.into_iter().collect();
    let on_response = on_policy.split_off(first);
    let script = Script { on_policy, on_response, decided: VecDeque::new() };
    let mut checked = Checked::new(Box::new(script));
    let domain = "".into();
    let offer = Offer { prompt: PROMPT, epoch: 0, row: 0, domain };
    checked.on(Nanos(0), Event::Prompt(offer));
    checked.on(Nanos(0), Event::Policy { step: STEP });
    checked
}

fn ended(sample: u32) -> Event {
    Event::Response { id: id(sample), tokens: 5, finish_reason: FinishReason::Stop }
}

/// Returns the message of the failure that the decisions end with. The first two responses of the prompt end after the `first` decisions.
fn failure(first: usize, decisions: impl IntoIterator<Item = Decision>) -> String {
    let mut checked = checked(first, decisions);
    (0..2).for_each(|sample| checked.on(Nanos(1), ended(sample)));
    let last = std::iter::from_fn(|| checked.poll()).last();
    let Some(Decision::Fail { message, .. }) = last else { panic!("no failure: {last:?}") };
    assert_eq!(checked.poll(), None, "nothing follows a failure");
    message.strip_prefix("the schedule violates its contract: ").expect("a violation").to_owned()
}

#[test]
fn a_round_that_keeps_the_contract_passes() {
    let round = [open(0), launch(0..3), abort(2), admit(&[0, 1]), close(), Decision::Finish];
    let mut checked = checked(2, round.clone());
    (0..2).for_each(|sample| checked.on(Nanos(1), ended(sample)));
    assert_eq!(std::iter::from_fn(|| checked.poll()).collect::<Vec<_>>(), round);
}

#[test]
fn rounds_out_of_order_are_named() {
    assert_eq!(
        failure(0, [open(1)]),
        "it opens step 2, whose policy is not published or was used before"
    );
    assert_eq!(
        failure(2, [open(0), launch(0..2), open(1)]),
        "it opens step 2 before it closes step 1"
    );
    assert!(failure(0, [launch(0..2)]).ends_with("and that round is not open"));
    assert!(failure(0, [close()]).ends_with("and that round is not open"));
    assert_eq!(
        failure(2, [open(0), launch(0..2), Decision::Finish]),
        "it finishes before it closes step 1"
    );
    let late = [open(0), launch(0..2), admit(&[0, 1]), close(), Decision::Finish, defer()];
    assert!(failure(2, late).ends_with("after it finished"));
}

#[test]
fn a_launch_has_samples() {
    let error = "it launches the samples 2 to 2 of p1, which are none";
    assert_eq!(failure(1, [open(0), launch(2..2)]), error);
    let error = "it launches the samples 3 to 1 of p1, which are none";
    assert_eq!(failure(1, [open(0), launch(Range { start: 3, end: 1 })]), error);
}

#[test]
fn prompts_are_decided_once() {
    let twice = [open(0), launch(0..2), admit(&[0, 1]), admit(&[0, 1])];
    assert!(failure(2, twice).contains("p1 was never offered, or was admitted or rejected before"));
    let twice = [open(0), launch(0..2), defer(), defer()];
    assert!(failure(2, twice).contains("p1 was deferred in this round before"));
    assert!(failure(1, [open(0), defer()]).contains("the round did not launch p1"));
    let undecided = failure(2, [open(0), launch(0..2), close()]);
    assert_eq!(undecided, "it closes step 1, and p1 was neither admitted, deferred nor rejected");
    let lost = failure(2, [open(0), launch(0..2), defer(), close(), Decision::Finish]);
    assert_eq!(lost, "it finishes, and the deferred prompt p1 was neither admitted nor rejected");
    let unknown_prompt = Decision::Reject { prompt: PromptId(9), reason: Reason::NoQuota };
    assert!(failure(0, [unknown_prompt]).contains("p9 was never offered"));
}

#[test]
fn groups_are_whole_responses_of_their_round() {
    assert!(failure(2, [open(0), launch(0..3), admit(&[0, 2])]).contains("it admits p1.2@0"));
    assert!(failure(2, [open(0), launch(0..2), admit(&[])]).contains("a group of p1"));
    assert!(failure(2, [open(0), launch(0..2), admit(&[1, 0])]).contains("a group of p1"));
    let weights = vec![1.0, f32::NAN];
    let (samples, reason) = (vec![0, 1], Reason::Finished);
    let weighted = Decision::Admit { prompt: PROMPT, samples, weights, reason };
    assert!(failure(2, [open(0), launch(0..2), weighted]).contains("invalid weights"));
}

#[test]
fn responses_run_once_and_are_stopped_while_they_run() {
    let twice = [open(0), launch(0..2), launch(1..3)];
    assert_eq!(failure(2, twice), "it launches p1.1@0 a second time");
    assert_eq!(
        failure(2, [open(0), launch(0..2), abort(0)]),
        "it stops p1.0@0, which is not in flight"
    );
    let paused = Decision::Pause { id: id(2), reason: Reason::RoundFull };
    assert!(failure(2, [open(0), launch(0..3), paused]).contains("its `pauses` returns false"));
    let open_end = [open(0), launch(0..3), admit(&[0, 1]), close()];
    assert!(failure(2, open_end).contains("p1.2@0, which is in flight and was not aborted"));
}

#[test]
fn the_failure_of_a_schedule_is_the_only_one() {
    let fail = || Decision::Fail { origin: Origin::User, message: "too few prompts".to_owned() };
    let decisions = [open(0), launch(0..2), fail()];
    let mut checked = checked(2, decisions.clone().into_iter().chain([fail(), close()]));
    (0..2).for_each(|sample| checked.on(Nanos(1), ended(sample)));
    assert_eq!(std::iter::from_fn(|| checked.poll()).collect::<Vec<_>>(), decisions);
}

#[test]
fn a_round_that_can_never_close_is_named() {
    assert_eq!(
        failure(2, [open(0), launch(0..2)]),
        "all responses of step 1 have ended, and it neither launches a response nor closes the round"
    );
    let mut waits = checked(2, [open(0), launch(0..2)]);
    assert!(waits.poll().is_some() && waits.poll().is_some());
    assert_eq!(waits.poll(), None, "responses are in flight");
}

/// A schedule that finishes when it receives an event.
struct Finished {
    is_out_of_steps: bool,
    decided: Option<Decision>,
}

impl Schedule for Finished {
    fn on(&mut self, _: Nanos, _: Event) {
        self.decided = Some(Decision::Finish);
    }

    fn poll(&mut self) -> Option<Decision> {
        self.decided.take()
    }

    fn wants_prompts(&self) -> bool {
        false
    }

    fn is_out_of_steps(&self) -> bool {
        self.is_out_of_steps
    }
}

#[test]
fn a_restored_schedule_keeps_its_deferred_prompts_only_without_a_step_left() {
    for (is_out_of_steps, held, is_lost) in [
        (true, (PROMPT, true), false),
        (false, (PROMPT, true), true),
        (false, (PROMPT, false), false),
    ] {
        let schedule = Box::new(Finished { is_out_of_steps, decided: None });
        let mut checked = Checked::with_held(schedule, [held]);
        checked.on(Nanos(0), Event::Policy { step: STEP });
        let violation = Violation::Lost { prompt: PROMPT }.failure();
        let expected = if is_lost { violation } else { Decision::Finish };
        assert_eq!(checked.poll(), Some(expected));
    }
}
