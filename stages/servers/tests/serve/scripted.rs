//! An engine that follows a script: sample 0 repeats its prompt token by token, sample 1 repeats it from the second token on, and so on. A
//! response then ends with an end-of-sequence token.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rollpacker_stages::rollout::FinishReason;
use rollpacker_stages::serving::{
    Generation, GenerationId, Pause, ServedToken, ServingEngine, ServingError, ServingLimits,
    ServingStatistics, TokenLogprob,
};

/// The end-of-sequence token of the tokenizer.
pub(crate) const EOS: i32 = 1;

/// The longest time that a test waits for the engine. It only ends tests that would hang.
const MAX_WAIT: Duration = Duration::from_secs(300);

pub(crate) struct Scripted {
    limits: ServingLimits,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    open: Vec<Open>,
    /// `true` if responses run only when the test calls `step`.
    by_hand: bool,
    paused: Option<Pause>,
    /// `true` if each pause fails, as if the engine were resumed before the pause begins.
    resumes: bool,
    label: String,
    loaded: Vec<Option<PathBuf>>,
    /// The request of each abort, also of a single sample, that reached the engine while a sample of the request had not ended.
    aborted: Vec<GenerationId>,
    failure: Option<String>,
}

struct Open {
    generation: Generation,
    /// Number of tokens of each sample; `None` after its end.
    lengths: Vec<Option<usize>>,
}

impl Scripted {
    pub(crate) fn new(by_hand: bool) -> Arc<Self> {
        let limits = ServingLimits {
            context: 32,
            vocab_size: 12,
            max_running: 4,
            kv_cache_tokens: 128,
            eos_token_ids: vec![EOS],
        };
        let state = State { by_hand, label: "first".to_owned(), ..State::default() };
        Arc::new(Self { limits, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Samples one token of each response.
    pub(crate) fn step(&self) {
        let mut state = self.state.lock().unwrap();
        state.step();
        self.changed.notify_all();
    }

    /// Waits until this number of requests is in flight.
    pub(crate) fn wait_for(&self, count: usize) {
        self.wait(|state| state.open.len() == count);
    }

    /// Waits until `count` aborts, of requests or of single samples, have reached the engine while a sample of their request had not ended.
    pub(crate) fn wait_for_aborts(&self, count: usize) {
        self.wait(|state| state.aborted.len() == count);
    }

    fn wait(&self, is_done: impl Fn(&State) -> bool) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, MAX_WAIT, |state| !is_done(state));
        assert!(!waited.unwrap().1.timed_out(), "waited in vain");
    }

    /// Lets each further pause fail, as if the engine were resumed before the pause begins.
    pub(crate) fn resume_during_pauses(&self) {
        self.state.lock().unwrap().resumes = true;
    }

    pub(crate) fn paused(&self) -> Option<Pause> {
        self.state.lock().unwrap().paused
    }

    pub(crate) fn loaded(&self) -> Vec<Option<PathBuf>> {
        self.state.lock().unwrap().loaded.clone()
    }

    pub(crate) fn aborted(&self) -> usize {
        self.state.lock().unwrap().aborted.len()
    }

    pub(crate) fn fail(&self, reason: &str) {
        let mut state = self.state.lock().unwrap();
        state.failure = Some(reason.to_owned());
        state.open.drain(..).for_each(|mut open| open.generation.receiver.fail(reason));
    }
}

/// Returns the log-probability `-id / 8`, by which tests recognize the token, with `top` most likely tokens.
fn scored(id: i32, top: u32) -> TokenLogprob {
    let top = (0..top as i32).map(|rank| (rank, -1.0 - rank as f32)).collect();
    TokenLogprob { logprob: -(id as f32) / 8.0, rank: 3, top }
}

impl State {
    fn step(&mut self) {
        for Open { generation, lengths } in &mut self.open {
            for (sample, length) in (0..).zip(lengths) {
                let Some(now) = *length else { continue };
                let prompt = &generation.prompt_ids;
                let id = prompt.get(now + sample as usize).copied().unwrap_or(EOS);
                let logprob = generation.logprobs.map(|top| scored(id, top));
                let version = self.label.as_str().into();
                generation.receiver.token(sample, ServedToken { id, logprob, version });
                let is_eos = id == EOS && !generation.ends.ignore_eos;
                let reason = if is_eos || generation.ends.stop_token_ids.contains(&id) {
                    Some(FinishReason::Stop)
                } else {
                    let max = generation.sampling.max_new_tokens as usize;
                    (now + 1 == max).then_some(FinishReason::Length)
                };
                *length = reason.is_none().then_some(now + 1);
                if let Some(reason) = reason {
                    generation.receiver.end(sample, reason);
                }
            }
        }
        self.open.retain(|open| open.lengths.iter().any(Option::is_some));
    }

    fn abort(&mut self, id: GenerationId, only: Option<u32>) {
        let Some(open) = self.open.iter_mut().find(|open| open.generation.id == id) else { return };
        for (sample, length) in (0..).zip(&mut open.lengths) {
            if only.is_none_or(|only| only == sample) && length.take().is_some() {
                open.generation.receiver.end(sample, FinishReason::Abort);
            }
        }
        self.aborted.push(id);
        self.open.retain(|open| open.lengths.iter().any(Option::is_some));
    }
}

impl ServingEngine for Scripted {
    fn limits(&self) -> &ServingLimits {
        &self.limits
    }

    fn generate(&self, mut generation: Generation) {
        let mut state = self.state.lock().unwrap();
        if let Some(reason) = &state.failure {
            return generation.receiver.fail(reason);
        }
        if let Some(top) = generation.prompt_logprobs {
            let ids = generation.prompt_ids[1..].iter();
            let scores = ids.map(|id| scored(*id, top)).collect();
            generation.receiver.prompt(scores);
        }
        let lengths = vec![Some(0); generation.samples as usize];
        if !lengths.is_empty() {
            state.open.push(Open { generation, lengths });
        }
        while !state.by_hand && !state.open.is_empty() {
            state.step();
        }
        self.changed.notify_all();
    }

    fn abort(&self, id: GenerationId) {
        self.state.lock().unwrap().abort(id, None);
        self.changed.notify_all();
    }

    fn abort_sample(&self, id: GenerationId, sample: u32) {
        self.state.lock().unwrap().abort(id, Some(sample));
        self.changed.notify_all();
    }

    fn pause(&self, mode: Pause) -> BoxFuture<'static, Result<(), ServingError>> {
        let mut state = self.state.lock().unwrap();
        let paused = if state.resumes { Err(ServingError::Resumed) } else { Ok(()) };
        state.paused = paused.as_ref().ok().map(|()| mode);
        futures::future::ready(paused).boxed()
    }

    fn resume(&self) -> BoxFuture<'static, Result<(), ServingError>> {
        self.state.lock().unwrap().paused = None;
        futures::future::ready(Ok(())).boxed()
    }

    fn is_paused(&self) -> bool {
        self.paused().is_some()
    }

    fn load(&self, folder: Option<PathBuf>) -> BoxFuture<'static, Result<(), ServingError>> {
        self.state.lock().unwrap().loaded.push(folder.clone());
        let loaded = match folder {
            Some(folder) if folder.ends_with("missing") => {
                Err(ServingError::Load { folder, reason: "no such file".to_owned() })
            }
            _ => Ok(()),
        };
        futures::future::ready(loaded).boxed()
    }

    fn set_label(&self, label: Arc<str>) -> BoxFuture<'static, Result<(), ServingError>> {
        self.state.lock().unwrap().label = label.to_string();
        futures::future::ready(Ok(())).boxed()
    }

    fn label(&self) -> Arc<str> {
        self.state.lock().unwrap().label.as_str().into()
    }

    fn statistics(&self) -> ServingStatistics {
        let running = self.state.lock().unwrap().open.len() as u64;
        ServingStatistics { running, ..ServingStatistics::default() }
    }

    fn failure(&self) -> Option<String> {
        self.state.lock().unwrap().failure.clone()
    }
}
