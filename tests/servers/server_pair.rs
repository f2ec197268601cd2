//! A workspace with two servers, each behind a proxy.

use std::process::Child;

use super::outcome::Outcome;
use super::proxy::Proxy;
use super::workspace::server::StartingServer;
use super::workspace::{ProcessEnd, TestWorkspace, wait_until};

/// The number of prompts in the data.
pub(crate) const ROWS: u64 = 16;
/// The number of responses to a prompt.
pub(crate) const SAMPLES: usize = 4;
/// The number of prompts of a step.
pub(crate) const PROMPTS: usize = 4;
/// The number of responses that a server runs at once: half of those of a step.
pub(crate) const SLOTS: usize = 8;
/// The number of steps of an epoch.
pub(crate) const STEPS: usize = 4;

/// A recipe of one epoch. Each response has at least eight tokens, so that a fault can be in its middle. The learning rate moves the scores
/// of the canary in each step by far more than rounding.
pub(crate) const RECIPE: &str = r#"
[data]
train_files = "data/train.parquet"
train_batch_size = 4
max_prompt_length = 64
max_response_length = 24

[model]
path = "model"

[rollout]
n = 4
min_response_length = 8
max_num_seqs = 8

[schedule]
name = "sync"

[reward.routes]
"*" = "repetition"

[reward.options.repetition]
ngram = 1

[actor]
lr = 1e-3
threads = 1

[trainer]
device = "cpu"
"#;

/// A workspace and its servers.
pub(crate) struct ServerPair {
    pub(crate) workspace: TestWorkspace,
    pub(crate) proxies: [Proxy; 2],
}

impl ServerPair {
    pub(crate) fn new() -> Self {
        let workspace = TestWorkspace::with_rows(RECIPE, ROWS);
        let peers = StartingServer::pair(&workspace);
        let proxies = peers.map(|peer| Proxy::start(peer.ready()));
        Self { workspace, proxies }
    }

    /// Starts a run over both servers, in the folder `run`.
    pub(crate) fn spawn(&self, more: &[&str]) -> Run {
        let urls = self.proxies.each_ref().map(Proxy::url);
        let servers = format!("rollout.servers={urls:?}");
        let args = ["--out", "run", "rollout.engine=vllm", &servers];
        Run(Some(self.workspace.train_command(&[&args[..], more].concat()).spawn().unwrap()))
    }

    /// Trains over both servers.
    pub(crate) fn train(&self, more: &[&str]) -> Outcome {
        self.finish(self.spawn(more))
    }

    /// Trains over both servers, and also returns the text on standard error.
    pub(crate) fn train_with_stderr(&self, more: &[&str]) -> (Outcome, String) {
        self.finish_with_stderr(self.spawn(more))
    }

    /// Waits for the end of a run that must succeed. Each prompt of the data was trained once, four in each step, and nothing was lost.
    pub(crate) fn finish(&self, run: Run) -> Outcome {
        self.finish_with_stderr(run).0
    }

    fn finish_with_stderr(&self, run: Run) -> (Outcome, String) {
        let end = run.end().success();
        let outcome = Outcome::read(&self.workspace.path("run"));
        assert_full(&outcome);
        (outcome, end.err)
    }
}

/// A running trainer. Dropping the value kills it.
pub(crate) struct Run(Option<Child>);

impl Run {
    /// Waits until `is_done` returns `true`. Panics if the trainer ends before.
    pub(crate) fn wait_until(&mut self, is_done: impl Fn() -> bool) {
        wait_until("the trainer got there", || {
            let child = self.0.as_mut().unwrap();
            if child.try_wait().unwrap().is_some() {
                panic!("the run ended early: {:?}", ProcessEnd::of(self.0.take().unwrap()));
            }
            is_done()
        });
    }

    /// Waits for the end of the trainer.
    pub(crate) fn end(mut self) -> ProcessEnd {
        ProcessEnd::of(self.0.take().unwrap())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

fn assert_full(outcome: &Outcome) {
    assert_eq!(outcome.trained_once(), (0..ROWS).collect::<Vec<_>>());
    assert_eq!(outcome.sizes(SAMPLES), [PROMPTS; STEPS]);
    assert!(outcome.rows().all(|row| row.trained && row.tokens >= 8), "no response is lost");
}
