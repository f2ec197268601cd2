//! Servers, an engine over them and its caller.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rollpacker_dataflow::clock::WallClock;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_servers::canary::CanaryConfig;
use rollpacker_servers::engine::{ServersConfig, ServersEngine, StartError};
use rollpacker_servers::sampling::LogprobsMode;
use rollpacker_servers::server::{Limits, Protocol};
use rollpacker_servers::vllm::protocol::PauseMode;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::rollout::{
    CheckedEngine, Completion, Request, RolloutEngine, RolloutError, RolloutEvent,
};
use tempfile::TempDir;

use super::server::Server;
use super::toy::{self, END, Trainer, weights_of};

pub(crate) const PACE: Duration = Duration::from_millis(2);
/// The longest time that a test waits for the engine. It only ends tests that would hang.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(60);

pub(crate) fn config(servers: &[&Server], folder: &TempDir) -> ServersConfig {
    let model = folder.path().join("model");
    std::fs::create_dir_all(&model).unwrap();
    std::fs::write(model.join("config.json"), "{}").unwrap();
    ServersConfig {
        protocol: Protocol::Vllm,
        servers: servers.iter().map(|server| server.url()).collect(),
        api_key_env: None,
        model: None,
        sampling: Sampling::unrestricted(24),
        logprobs_mode: LogprobsMode::Raw,
        eos_token_ids: [END].into(),
        max_prompt_length: 16,
        max_running: 8,
        pause: PauseMode::Abort,
        server_timeout: Duration::from_secs(5),
        limits: Limits {
            call: Duration::from_secs(5),
            load: Duration::from_secs(10),
            // Longer than a busy machine holds up a server.
            stall: Duration::from_secs(10),
        },
        canary: CanaryConfig::new((2..20).collect()),
        weights_folder: folder.path().join("weights"),
        model_folder: model,
    }
}

pub(crate) fn start(config: ServersConfig) -> Result<ServersEngine, StartError> {
    let detokenize = Arc::new(|ids: &[i32]| format!("{ids:?}"));
    ServersEngine::start(config, Box::new(Trainer), detokenize, Arc::new(WallClock::start()))
}

pub(crate) struct Caller {
    pub(crate) engine: CheckedEngine,
    pub(crate) measurements: rollpacker_servers::engine::Measurements,
    woken: Receiver<()>,
    _folder: TempDir,
}

pub(crate) fn id(step: u64, prompt: u64, sample: u32) -> SampleId {
    SampleId { step: Step(step), prompt: PromptId(prompt), sample }
}

pub(crate) fn prompt(prompt: u64) -> Arc<[i32]> {
    [5, 6, 7 + prompt as i32].into()
}

impl Caller {
    /// Starts an engine over the servers and loads version 0.
    pub(crate) fn start(servers: &[&Server], change: impl FnOnce(&mut ServersConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(servers, &folder);
        change(&mut config);
        Self::new(start(config).unwrap(), folder)
    }

    /// Loads version 0.
    pub(crate) fn new(engine: ServersEngine, folder: TempDir) -> Self {
        let measurements = engine.measurements();
        let mut engine = CheckedEngine::new(Box::new(engine));
        let (wake, woken) = channel();
        engine.wake_by(Arc::new(move || {
            let _gone = wake.send(());
        }));
        engine.load(&toy::policy(0));
        Self { engine, measurements, woken, _folder: folder }
    }

    pub(crate) fn request(&mut self, step: u64, number: u64, samples: u32) {
        self.engine.generate(Request {
            step: Step(step),
            prompt: PromptId(number),
            samples: 0..samples,
            prompt_ids: prompt(number),
            resumed: Vec::new(),
        });
    }

    pub(crate) fn next(&mut self) -> RolloutEvent {
        loop {
            if let Some(event) = self.engine.poll() {
                return event;
            }
            self.woken.recv_timeout(MAX_WAIT).expect("the engine reports in time");
        }
    }

    /// Returns the next `count` responses.
    pub(crate) fn collect(&mut self, count: usize) -> BTreeMap<SampleId, Completion> {
        let mut responses = BTreeMap::new();
        while responses.len() < count {
            match self.next() {
                RolloutEvent::Completed(response) => {
                    let again = responses.insert(response.id, response);
                    assert!(again.is_none());
                }
                RolloutEvent::Failed(error) => panic!("{error}"),
            }
        }
        responses
    }

    pub(crate) fn failure(&mut self) -> RolloutError {
        loop {
            if let RolloutEvent::Failed(error) = self.next() {
                return error;
            }
        }
    }

    /// Waits until all servers in rotation have the weights of `version`.
    pub(crate) fn wait_loaded(&self, version: u64) {
        let version = rollpacker_dataflow::step::PolicyVersion(version);
        wait_for(|| self.engine.loaded_at(version).is_some());
    }
}

/// Polls a condition until it holds, for conditions whose change is not reported.
pub(crate) fn wait_for(condition: impl Fn() -> bool) {
    let (_open, never) = channel::<()>();
    for _ in 0..4000 {
        if condition() {
            return;
        }
        let _timeout = never.recv_timeout(Duration::from_millis(5));
    }
    panic!("the condition does not hold in time");
}

/// Checks that every token was sampled by the policy of its version: that its log-probability is that of these weights.
pub(crate) fn check_tokens(responses: &BTreeMap<SampleId, Completion>) {
    for (id, response) in responses {
        let mut context = prompt(id.prompt.0).to_vec();
        let tokens = response.response_ids.iter().zip(&response.logprobs);
        for ((&token, &logprob), version) in tokens.zip(response.token_versions.iter()) {
            let expected = toy::logprob(weights_of(version.0), &context, token);
            assert_eq!(logprob, expected, "{id} {version} after {context:?}");
            context.push(token);
        }
    }
}
