//! Tests of panics, which are bugs of this project or of user code. The process stops and names the thread.
//!
//! A case that ends its process runs in a separate process: the test [`child`] of this program.

use std::process::Command;
use std::sync::Arc;

use rollpacker::dataflow::clock::WallClock;
use rollpacker::prelude::*;
use rollpacker::recipe::Recipe;
use rollpacker::session::Session;
use rollpacker::stages::rollout::sampling::Sampling;
use rollpacker::stages::torch::model::{Decoder, WeightStore};
use rollpacker::stages::torch::rollout::{TorchEngine, TorchEngineConfig};
use rollpacker::stages::torch::train::loss::{PolicyLoss, TokenLoss, Tokens};
use rollpacker_stages::train::config::Precision;
use tch::{Device, TchError};

use super::workspace::{ProcessEnd, RECIPE, TestWorkspace};

const CASE: &str = "ROLLPACKER_TEST_PANIC";

fn panic_in(case: &str) -> ProcessEnd {
    let workspace = TestWorkspace::new(RECIPE);
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "panics::child", "--nocapture"]).env(CASE, case);
    workspace.prepare(&mut command);
    ProcessEnd::of(command.spawn().expect("this program starts"))
}

fn check(case: &str, thread: &str, message: &str) {
    let end = panic_in(case);
    assert_eq!(end.code, Some(101), "{case}: {end:?}");
    let lines: Vec<&str> = end.err.lines().collect();
    let at = lines.iter().position(|line| line.contains(&format!("thread '{thread}'")));
    let at = at.unwrap_or_else(|| panic!("{case}: no thread `{thread}`: {end:?}"));
    assert_eq!(lines.get(at + 1), Some(&message), "{case}: {end:?}");
    assert_eq!(end.err.matches("panicked at").count(), 1, "{case}: {end:?}");
}

#[test]
fn a_panic_of_an_engine_thread_stops_the_process() {
    check("engine", "rollout-0", "no text for these tokens");
}

#[test]
fn a_panic_of_the_trainer_thread_stops_the_process() {
    check("trainer", "trainer", "no loss for these tokens");
}

#[test]
fn a_panic_of_a_reward_stops_the_process() {
    check("reward", "reward", "no score for this response");
}

#[test]
fn a_panic_of_logic_on_the_worker_stops_the_process() {
    check("worker", "panics::child", "no step for this observer");
}

/// Ends the process in which it runs, if the environment names a case.
#[test]
fn child() {
    let Ok(case) = std::env::var(CASE) else { return };
    rollpacker::stop_on_panic();
    if case == "engine" {
        return engine();
    }
    let recipe = Recipe::read("recipe.toml".as_ref(), &[]).expect("a recipe");
    let session = Session::open(recipe).expect("it opens");
    let session = match case.as_str() {
        "trainer" => session.with_policy_loss(Lossless),
        "reward" => session.with_reward("*", Scoreless),
        _ => session,
    };
    let observer = Observes(case == "worker");
    let ended = session.train(&Stop::default(), "model".as_ref(), observer, |_| {});
    unreachable!("the process goes on: {ended:?}");
}

#[derive(Debug)]
struct Lossless;

impl PolicyLoss for Lossless {
    fn tokens(&self, _: &Tokens<'_>) -> Result<TokenLoss, TchError> {
        panic!("no loss for these tokens");
    }
}

struct Scoreless;

impl Reward for Scoreless {
    async fn score(&self, _: &Sample, _: &Context) -> Result<Score, RewardError> {
        panic!("no score for this response");
    }
}

struct Observes(bool);

impl Observer for Observes {
    fn step(&mut self, _: StepReport) {
        assert!(!self.0, "no step for this observer");
    }
}

/// Waits for a response whose text cannot be decoded.
fn engine() {
    let config = TorchEngineConfig {
        instances: 1,
        threads_per_instance: 1,
        max_running: 4,
        kv_cache_tokens: 256,
        dtype: Precision::Float32,
        sampling: Sampling::unrestricted(4),
        seed: 1,
        replay: None,
        deterministic: false,
    };
    let mut engine = TorchEngine::start(
        config,
        Decoder::load("model".as_ref(), Device::Cpu).expect("a model"),
        WeightStore::new(2),
        Arc::new(|_: &[i32]| panic!("no text for these tokens")),
        Arc::new(WallClock::start()),
    )
    .expect("an engine");
    let waiting = std::thread::current();
    engine.wake_by(Arc::new(move || waiting.unpark()));
    let (step, prompt) = (Step(0), PromptId(0));
    engine.generate(Request {
        step,
        prompt,
        samples: 0..1,
        prompt_ids: [1, 2].into(),
        resumed: Vec::new(),
    });
    while engine.poll().is_none() {
        std::thread::park();
    }
    unreachable!("the process goes on");
}
