// Stages for the documentation examples of this crate, which include this file as a module. The stages are an engine, a trainer and a
// reward without a model. The functions build and run a graph over them. A step has two prompts with two responses each.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use arrow_array::types::{ArrowPrimitiveType, Float64Type};
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::bridge::{Executor, produce_inline};
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::clock::{Clock, Nanos, WallClock};
use rollpacker_dataflow::fault::Faults;
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step};
use rollpacker_dataflow::timely::dataflow::Scope;
use rollpacker_dataflow::timely::dataflow::operators::InspectCore;
use rollpacker_dataflow::timely::dataflow::operators::generic::operator::empty;
use rollpacker_dataflow::{feedback, runtime, schema};
use rollpacker_operators::group::Groups;
use rollpacker_operators::policy::policy_batch;
use rollpacker_operators::prompts::{PromptRow, prompt_batch};
use rollpacker_operators::rollout::Rollouts;
use rollpacker_operators::schedule::operator::Prompts;
use rollpacker_operators::schedule::{Synchronous, sync};
use rollpacker_operators::trainer::TrainerThread;
use rollpacker_operators::{GroupExt, RewardExt, RolloutExt, ScheduleExt};
use rollpacker_stages::reward::{Limits, Router, from_fn};
use rollpacker_stages::rollout::{
    Completion, FinishReason, Policy, Request, RolloutEngine, RolloutEvent, Waker, TokenVersions};
use rollpacker_stages::train::{
    Inferred, Metrics, Numbers, Partial, Sequence, TrainError, Trainer,
};

/// An engine that answers at once: sample `s` of each prompt has `s + 1` tokens.
#[derive(Default)]
pub struct Engine {
    version: PolicyVersion,
    ended: VecDeque<RolloutEvent>,
    waker: Option<Waker>,
}

impl RolloutEngine for Engine {
    fn load(&mut self, policy: &Policy) {
        self.version = policy.version;
    }

    fn generate(&mut self, Request { step, prompt, samples, .. }: Request) {
        for sample in samples {
            let tokens = sample as usize + 1;
            self.ended.push_back(RolloutEvent::Completed(Completion {
                id: SampleId { step, prompt, sample },
                response_length: sample + 1,
                response_ids: vec![7; tokens],
                logprobs: vec![-0.5; tokens],
                token_versions: TokenVersions::of(self.version, tokens),
                text: "7".repeat(tokens),
                finish_reason: FinishReason::Stop,
                started: Nanos(0),
                finished: Nanos(0),
                preemptions: 0,
                instance: 0,
            }));
        }
        self.waker.iter().for_each(|wake| wake());
    }

    fn abort(&mut self, _: SampleId) {}

    fn poll(&mut self) -> Option<RolloutEvent> {
        self.ended.pop_front()
    }

    fn wake_by(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }
}

/// A trainer whose gradient is the number of responses. It sends the gradient of each update to `sent`.
struct Counter {
    gradient: i64,
    updates: u64,
    sent: Sender<i64>,
}

impl Counter {
    fn policy(&self) -> Policy {
        let version = PolicyVersion(self.updates);
        Policy { version, location: "memory".to_owned(), digest: self.updates }
    }
}

impl Trainer for Counter {
    fn publish(&mut self, _: PolicyVersion) -> Result<Policy, TrainError> {
        Ok(self.policy())
    }

    /// The critic predicts 0.5 at each token.
    fn infer(&mut self, _: Step, sequences: &[Sequence<'_>]) -> Result<Vec<Inferred>, TrainError> {
        let values = |one: &Sequence<'_>| vec![0.5; one.response_ids.len()];
        Ok(sequences
            .iter()
            .map(|one| Inferred { values: values(one), ..Inferred::default() })
            .collect())
    }

    fn accumulate(&mut self, _: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError> {
        self.gradient += sequences.len() as i64;
        Ok(())
    }

    fn update(&mut self, _: Step) -> Result<(Policy, Metrics), TrainError> {
        self.updates += 1;
        let gradient = std::mem::take(&mut self.gradient);
        self.sent.send(gradient).expect("the example reads it");
        Ok((self.policy(), Metrics::from([("actor/grad_norm".to_owned(), gradient as f64)])))
    }

    fn take_partial(&mut self, _: Step) -> Result<Partial, TrainError> {
        let gradient = Numbers::Fixed(vec![std::mem::take(&mut self.gradient)]);
        Ok(Partial { gradient, totals: Vec::new() })
    }

    fn put_sum(&mut self, _: Step, sum: Partial) -> Result<(), TrainError> {
        if let Numbers::Fixed(gradient) = sum.gradient {
            self.gradient = gradient.iter().sum();
        }
        Ok(())
    }

    fn save(&mut self, _: &Path) -> Result<(), TrainError> {
        Ok(())
    }
}

/// Starts a trainer, and returns it with a receiver for the number of responses of each update.
pub fn trainer() -> (Rc<TrainerThread>, Receiver<i64>) {
    let (sent, gradients) = channel();
    let trainer = TrainerThread::spawn(clock(), || {
        Ok::<_, Infallible>(Box::new(Counter { gradient: 0, updates: 0, sent }) as Box<dyn Trainer>)
    });
    (Rc::new(trainer.expect("it always starts")), gradients)
}

/// Returns the policy of version 0, with which the first step samples.
pub fn initial_policy() -> Batch {
    let version = PolicyVersion(0);
    policy_batch(&Policy { version, location: "memory".to_owned(), digest: 0 })
}

/// Returns a wall clock that starts now.
pub fn clock() -> Arc<dyn Clock> {
    Arc::new(WallClock::start())
}

/// Returns `count` prompts, which the first worker reads.
pub fn prompts(scope: Scope<'_, Step>, count: u64) -> Prompts<'_> {
    let row = |id| PromptRow {
        prompt: PromptId(id),
        row: id,
        prompt_ids: vec![1],
        prompt_length: 1,
        data_source: "math".to_owned(),
        messages: "[]".to_owned(),
        ..PromptRow::default()
    };
    let read = prompt_batch(&(0..count).map(row).collect::<Vec<_>>());
    let batches = (scope.index() == 0).then_some(read).into_iter();
    let budget = Budget::new(64);
    let (rows, errors) =
        produce_inline(scope, "prompts", &schema::PROMPTS, budget.clone(), batches);
    Prompts { rows, errors, budget }
}

/// Returns a schedule with rounds of two prompts and two responses to each.
pub fn rounds() -> Synchronous {
    let config = sync::Config { prompts: 2, responses: 2, total_steps: None };
    Synchronous::new(config).expect("the counts are positive")
}

/// Returns a router whose only reward is the length of the response.
pub fn lengths() -> Router {
    Router::default().route("*", from_fn(|sample| Ok(f64::from(sample.response_length).into())))
}

/// Returns the policy of the first step. No later step has one.
pub fn policies(scope: Scope<'_, Step>) -> BatchStream<'_> {
    let (policies, weights) = feedback::policies(scope, 0, initial_policy());
    weights.connect(empty(scope));
    policies
}

/// Returns the responses of one step.
pub fn rollouts(scope: Scope<'_, Step>) -> Rollouts<'_> {
    prompts(scope, 2).schedule(rounds()).rollout(Engine::default(), &policies(scope), clock())
}

/// Returns the groups of one step. Their responses score 1 and 2.
pub fn groups(scope: Scope<'_, Step>) -> Groups<'_> {
    rollouts(scope).reward(lengths(), Limits::default(), Executor::Inline, clock()).group()
}

/// Runs the graph that `build` builds, and returns the batches of the stream that `build` returns.
pub fn run(build: impl for<'a> FnOnce(Scope<'a, Step>, &Faults) -> BatchStream<'a>) -> Vec<Batch> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let batches = seen.clone();
    let result = runtime::run(|scope, faults| {
        build(scope, faults).inspect_container(move |event| {
            if let Ok((_, batch)) = event {
                batches.lock().expect("no panic").push(batch.clone());
            }
        });
    });
    result.expect("the example raises no fault");
    let batches = std::mem::take(&mut *seen.lock().expect("no panic"));
    batches
}

/// Returns the values of a numeric column over all batches.
pub fn numbers<T: ArrowPrimitiveType>(batches: &[Batch], column: &str) -> Vec<T::Native> {
    let values = |batch: &Batch| batch.values::<T>(column).values().to_vec();
    batches.iter().flat_map(values).collect()
}

/// Returns the values of a metric over all batches of a stream of metrics.
pub fn metric(batches: &[Batch], name: &str) -> Vec<f64> {
    let values = numbers::<Float64Type>(batches, schema::column::VALUE);
    let names = batches.iter().flat_map(|batch| batch.text(schema::column::NAME));
    names.zip(values).filter(|(found, _)| *found == Some(name)).map(|(_, value)| value).collect()
}

/// Returns the rows of a list column over all batches.
pub fn lists<T: ArrowPrimitiveType>(batches: &[Batch], column: &str) -> Vec<Vec<T::Native>> {
    let rows = |batch: &Batch| -> Vec<Vec<T::Native>> {
        let lists = batch.lists::<T>(column);
        (0..batch.num_rows()).map(|row| lists.get(row).to_vec()).collect()
    };
    batches.iter().flat_map(rows).collect()
}
