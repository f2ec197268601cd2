//! Tests of pipelines that a program builds from stages of its own, without a recipe.

#[path = "../examples/bandit/mod.rs"]
mod bandit;

use std::cell::RefCell;
use std::rc::Rc;

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
    let logits = bandit::Logits::default();
    let trainer = bandit::trainer(logits.clone()).expect("a thread");
    Pipeline::builder(
        PromptSource::Thread(Box::new(bandit::prompts(12))),
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

/// Returns the metrics of the steps.
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
