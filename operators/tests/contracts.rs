//! A stage that violates its contract ends the run with an error that names the rule.

mod support;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::SampleId;
use rollpacker_operators::advantage::{
    Advantage, Estimate, EstimateError, Estimator, ScoredResponse, TokenAdvantage, Trajectory,
};
use rollpacker_operators::placement::{PlacementPolicy, Separate};
use rollpacker_operators::schedule::sync::Config;
use rollpacker_operators::schedule::{Decision, Event, Schedule, Synchronous};
use rollpacker_stages::rollout::{
    Completion, Placement, Policy, Request, RolloutEngine, RolloutEvent, Waker,
};

use support::{Run, ShortestFirst};

fn synchronous() -> Synchronous {
    let config = Config { prompts: 4, responses: 2, total_steps: None };
    Synchronous::new(config).expect("valid")
}

/// A schedule that replaces each decision of a correct schedule by the decisions that `change` returns.
struct Altered<F> {
    rounds: Synchronous,
    change: F,
    decided: Vec<Decision>,
}

impl<F: FnMut(Decision) -> Vec<Decision>> Schedule for Altered<F> {
    fn on(&mut self, now: Nanos, event: Event) {
        self.rounds.on(now, event);
        let decisions = std::iter::from_fn(|| self.rounds.poll());
        self.decided.extend(decisions.flat_map(&mut self.change));
    }

    fn poll(&mut self) -> Option<Decision> {
        (!self.decided.is_empty()).then(|| self.decided.remove(0))
    }

    fn wants_prompts(&self) -> bool {
        self.rounds.wants_prompts()
    }
}

/// Returns the error of a run with an [`Altered`] schedule.
fn with_schedule(change: impl FnMut(Decision) -> Vec<Decision> + 'static) -> String {
    let altered = Altered { rounds: synchronous(), change, decided: Vec::new() };
    Run::of(altered).run().expect_err("a violation").to_string()
}

#[test]
fn a_prompt_admitted_twice_is_a_fault() {
    let error = with_schedule(|decision| match decision {
        Decision::Admit { .. } => vec![decision.clone(), decision],
        other => vec![other],
    });
    assert!(error.starts_with("schedule, step 1: the schedule violates its contract: "), "{error}");
    assert!(error.ends_with("was never offered, or was admitted or rejected before"), "{error}");
}

#[test]
fn an_undecided_prompt_is_a_fault() {
    let mut admitted = 0;
    let error = with_schedule(move |decision| {
        admitted += u32::from(matches!(decision, Decision::Admit { .. }));
        let is_second = admitted == 2 && matches!(decision, Decision::Admit { .. });
        if is_second { Vec::new() } else { vec![decision] }
    });
    assert!(error.ends_with("was neither admitted, deferred nor rejected"), "{error}");
}

#[test]
fn a_round_that_is_never_closed_is_a_fault() {
    let error = with_schedule(|decision| match decision {
        Decision::Close { .. } => Vec::new(),
        other => vec![other],
    });
    let expected = "all responses of step 1 have ended, and it neither launches a response nor closes the round";
    assert!(error.ends_with(expected), "{error}");
}

#[test]
fn a_lost_prompt_is_a_fault() {
    let error = with_schedule(|decision| match decision {
        Decision::Admit { prompt, reason, .. } => vec![Decision::Defer { prompt, reason }],
        other => vec![other],
    });
    assert!(error.contains("the deferred prompt"), "{error}");
}

/// An engine that replaces each response of a correct engine by the responses that `change` returns.
struct Misreporting {
    engine: ShortestFirst,
    change: fn(Completion) -> Vec<Completion>,
    reports: Vec<RolloutEvent>,
}

impl RolloutEngine for Misreporting {
    fn load(&mut self, policy: &Policy) {
        self.engine.load(policy);
    }

    fn generate(&mut self, request: Request) {
        self.engine.generate(request);
    }

    fn abort(&mut self, id: SampleId) {
        self.engine.abort(id);
    }

    fn poll(&mut self) -> Option<RolloutEvent> {
        if let Some(RolloutEvent::Completed(completion)) = self.engine.poll() {
            self.reports.extend((self.change)(completion).into_iter().map(RolloutEvent::Completed));
        }
        (!self.reports.is_empty()).then(|| self.reports.remove(0))
    }

    fn wake_by(&mut self, waker: Waker) {
        self.engine.wake_by(waker);
    }
}

/// Returns the error of a run with a [`Misreporting`] engine.
fn with_engine(change: fn(Completion) -> Vec<Completion>) -> String {
    let engine = ShortestFirst::instant();
    let engine = Misreporting { engine, change, reports: Vec::new() };
    Run::with(synchronous(), engine).run().expect_err("a violation").to_string()
}

#[test]
fn a_response_reported_twice_is_a_fault() {
    let error = with_engine(|completion| vec![completion.clone(), completion]);
    let expected = "rollout, step 1: the rollout engine violates its contract: it reports ";
    assert!(error.starts_with(expected), "{error}");
    assert!(
        error.contains("which was not requested or was reported before: expected one report"),
        "{error}"
    );
}

#[test]
fn a_response_without_log_probabilities_is_a_fault() {
    let error = with_engine(|completion| vec![Completion { logprobs: Vec::new(), ..completion }]);
    assert!(error.contains("`logprobs` of "), "{error}");
}

#[test]
fn an_unrequested_response_is_a_fault() {
    let error = with_engine(|completion| {
        let id = SampleId { sample: 99, ..completion.id };
        vec![Completion { id, ..completion }]
    });
    assert!(
        error.contains("which was not requested or was reported before: expected one report"),
        "{error}"
    );
}

/// Returns the error of a run whose estimator returns these advantages for each group.
fn with_advantages(advantages: &'static [f64]) -> String {
    struct Constant(&'static [f64]);

    impl Advantage for Constant {
        fn advantages(&self, _group: &[ScoredResponse]) -> Vec<f64> {
            self.0.to_vec()
        }
    }

    let estimator = Constant(advantages).into();
    let run = Run { estimator, ..Run::of(synchronous()) };
    run.run().expect_err("a violation").to_string()
}

#[test]
fn an_estimator_with_too_few_or_infinite_advantages_is_a_fault() {
    let expected = "advantage, step 1: the advantage estimator violates its contract: expected ";
    let error = with_advantages(&[1.0]);
    assert_eq!(error, format!("{expected}one estimate for each of 2 responses, found 1"));
    for (advantages, found) in [([0.5, f64::NAN], "NaN"), ([1e300, 0.5], "1e300")] {
        let error = with_advantages(advantages.to_vec().leak());
        let prefix = format!("{expected}finite numbers in `advantages` for a response to prompt ");
        assert!(
            error.starts_with(&prefix) && error.ends_with(&format!(", found {found}")),
            "{error}"
        );
    }
}

#[test]
fn an_estimator_with_a_wrong_number_of_token_advantages_or_returns_is_a_fault() {
    /// An estimator that returns no advantages instead of one per token or, if `is_complete` is `true`, no returns.
    struct Short {
        is_complete: bool,
    }

    impl TokenAdvantage for Short {
        fn estimate(&self, trajectories: &[Trajectory]) -> Vec<Estimate> {
            let tokens = |one: &Trajectory| if self.is_complete { one.rewards.len() } else { 0 };
            let estimate =
                |one| Estimate { advantages: vec![1.0; tokens(one)], returns: Vec::new() };
            trajectories.iter().map(estimate).collect()
        }

        fn needs_values(&self) -> bool {
            true
        }
    }

    let trajectory = Trajectory { group: 7, score: 1.0, rewards: vec![0.0, 1.0], values: vec![] };
    for (is_complete, field) in [(false, "advantages"), (true, "returns")] {
        let estimator = Estimator::of_tokens(Short { is_complete });
        let error = estimator.estimate(std::slice::from_ref(&trajectory)).expect_err("a violation");
        assert_eq!(error, EstimateError::Tokens { field, prompt: 7, expected: 2, found: 0 });
    }
}

#[test]
fn a_placement_with_more_devices_than_the_job_has_is_a_fault() {
    let rollout = Placement { instances: 3, tensor_parallel: 1 };
    let with = |devices| {
        let policy: Box<dyn PlacementPolicy> = Box::new(Separate::new(rollout, 2));
        Run { placement: Some((policy, devices)), ..Run::of(synchronous()) }.run()
    };
    assert!(with(5).is_ok());
    let error = with(4).expect_err("a violation").to_string();
    let expected = "placement, step 1: the placement policy violates its contract: expected at most 4 devices in all, found rollout 3 x tp1, training 2 (round)";
    assert_eq!(error, expected);
}
