//! Tests of pipelines that a program builds from stages of its own, without a recipe.

#[path = "../examples/bandit/mod.rs"]
mod bandit;

use std::cell::RefCell;
use std::rc::Rc;

use rollpacker::operators::prompts::{PromptRow, prompt_batch};
use rollpacker::operators::schedule::round_policy::*;
use serde::{Deserialize, Serialize};

use rollpacker::dataflow::feedback::MAX_STALENESS;
use rollpacker::pipeline::PipelineBuilder;
use rollpacker::prelude::*;

#[derive(Clone, Default)]
struct Steps(Rc<RefCell<Vec<Metrics>>>);

impl Observer for Steps {
    fn step(&mut self, report: StepReport) {
        self.0.borrow_mut().push(measure(&report));
    }
}

fn builder(schedule: impl Schedule + 'static) -> PipelineBuilder {
    builder_of(PromptSource::Thread(Box::new(bandit::prompts(12))), schedule)
}

fn builder_of(prompts: PromptSource, schedule: impl Schedule + 'static) -> PipelineBuilder {
    let logits = bandit::Logits::default();
    let trainer = bandit::trainer(logits.clone()).expect("a thread");
    Pipeline::builder(
        prompts,
        schedule,
        bandit::Arms::new(logits),
        Router::default().route("bandit", bandit::Sevens),
        Rc::new(trainer),
        1,
    )
}

fn synchronous() -> Synchronous {
    let rounds = sync::Config { prompts: 4, responses: 2, total_steps: None };
    Synchronous::new(rounds).expect("a schedule")
}

/// Runs a pipeline, and returns the metrics of its steps.
fn run(builder: PipelineBuilder) -> Vec<Metrics> {
    let steps = Steps::default();
    let pipeline = builder.build().unwrap_or_else(|fault| panic!("{fault}"));
    pipeline.run(steps.clone()).unwrap_or_else(|fault| panic!("{fault}"));
    steps.0.take()
}

#[test]
fn any_number_of_prompts_ahead_is_possible() {
    for ahead in [0, 1, usize::MAX] {
        assert_eq!(run(builder(synchronous()).prompts_ahead(ahead)).len(), 3, "{ahead}");
    }
}

#[test]
fn a_staleness_beyond_the_maximum_is_refused() {
    assert_eq!(run(builder(synchronous()).staleness(5)).len(), 3);
    for staleness in [MAX_STALENESS + 1, u64::MAX] {
        let fault = builder(synchronous()).staleness(staleness).build().err().expect("refused");
        let expected = format!("`staleness` is {staleness}, expected at most {MAX_STALENESS}");
        assert!(fault.to_string().ends_with(&expected), "{fault}");
    }
}

/// Returns the message of the fault that ends a run.
fn fault(builder: PipelineBuilder) -> String {
    let pipeline = builder.build().unwrap_or_else(|fault| panic!("{fault}"));
    pipeline.run(Steps::default()).expect_err("it fails").to_string()
}

#[test]
fn prompts_without_ascending_ids_are_refused() {
    for ids in [[0, 0, 0, 0, 0], [0, 2, 1, 3, 4]] {
        let row = |&id: &u64| PromptRow {
            prompt: PromptId(id),
            data_source: "bandit".to_owned(),
            prompt_ids: vec![0],
            prompt_length: 1,
            ..PromptRow::default()
        };
        let batch = prompt_batch(&ids.iter().map(row).collect::<Vec<_>>());
        let prompts = PromptSource::Thread(Box::new(move |emitter| {
            let _wanted = emitter.send(batch);
            Ok(())
        }));
        let message = fault(builder_of(prompts, synchronous()));
        assert!(message.contains("expected ascending ids"), "{message}");
    }
}

/// A policy that breaks the contract in [`RoundPolicy::open`]: it opens a round without prompts if `opens` is set, or else no round.
#[derive(Serialize, Deserialize)]
struct Opening {
    store: PromptStore,
    rounds: Rounds,
    opens: bool,
}

impl RoundPolicy for Opening {
    type Upcoming = RoundShare;

    fn rounds(&mut self) -> &mut Rounds {
        &mut self.rounds
    }

    fn rounds_ref(&self) -> &Rounds {
        &self.rounds
    }

    fn pool(&mut self) -> &mut Pool {
        self.store.pool()
    }

    fn next(&self) -> NextAction<RoundShare> {
        self.store.next(&self.rounds, 0, 4)
    }

    fn open(&mut self, share: RoundShare) {
        if self.opens {
            self.rounds.open(Plan::new(share.epoch, self.store.take(share), 4, 2));
        }
    }

    fn close(&mut self, round: OpenRound) {
        self.store.close(round, &mut self.rounds);
    }
}

#[test]
fn a_round_without_prompts_is_refused() {
    for opens in [false, true] {
        let (store, rounds) = (PromptStore::default(), Rounds::new(None));
        let message = fault(builder(Opening { store, rounds, opens }));
        assert!(message.ends_with("it opens step 1 without a plan that has a prompt"), "{message}");
    }
}
