//! An engine that generates over HTTP: a server draws the arms of the bandit that learns to draw 7.
//!
//! The server (`arm_server/mod.rs`) shares the weights of this process, so `load` has nothing to deliver. An engine is driven without
//! blocking: each request is a task, its answer arrives on a channel, and the task then calls the waker.
//! `cargo run --no-default-features --example 8_http_engine`

#[path = "arm_server/mod.rs"]
mod arm_server;
#[path = "bandit/mod.rs"]
mod bandit;

use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rollpacker::prelude::*;
use rollpacker::stages::rollout::RolloutError;

struct Remote {
    url: String,
    client: reqwest::Client,
    tasks: tokio::runtime::Handle,
    version: PolicyVersion,
    ended: (Sender<RolloutEvent>, Receiver<RolloutEvent>),
    waker: Option<Waker>,
}

fn failed(error: anyhow::Error) -> RolloutEvent {
    RolloutEvent::Failed(RolloutError::Engine { instance: 0, reason: error.to_string() })
}

impl RolloutEngine for Remote {
    fn load(&mut self, policy: &Policy) {
        self.version = policy.version;
    }

    fn generate(&mut self, Request { step, prompt, samples, .. }: Request) {
        for id in samples.map(|sample| SampleId { step, prompt, sample }) {
            let drawn = arm_server::request(self.client.clone(), self.url.clone(), id);
            let (ended, waker, version) = (self.ended.0.clone(), self.waker.clone(), self.version);
            self.tasks.spawn(async move {
                let drawn = drawn.await.map(|drawn| drawn.completion(id, version));
                // Sending fails only if the engine is gone, and then nothing waits for the answer.
                let _ = ended.send(drawn.map_or_else(failed, RolloutEvent::Completed));
                waker.iter().for_each(|wake| wake());
            });
        }
    }

    /// Does nothing: a response of one token is not worth aborting. It ends by itself.
    fn abort(&mut self, _id: SampleId) {}

    fn poll(&mut self) -> Option<RolloutEvent> {
        self.ended.1.try_recv().ok()
    }

    fn wake_by(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let logits = bandit::Logits::default();
    let url = arm_server::start(&runtime, logits.clone())?;
    let engine = Remote {
        url,
        client: reqwest::Client::new(),
        tasks: runtime.handle().clone(),
        version: PolicyVersion(0),
        ended: channel(),
        waker: None,
    };
    let rounds = Synchronous::new(sync::Config { prompts: 4, responses: 8, total_steps: None })?;
    let prompts = PromptSource::Thread(Box::new(bandit::prompts(30 * 4)));
    let router = Router::default().route("bandit", bandit::Sevens);
    let trainer = Rc::new(bandit::trainer(logits)?);
    let pipeline = Pipeline::builder(prompts, rounds, engine, router, trainer, 1);
    Ok(pipeline.build()?.run(bandit::Print)?)
}
