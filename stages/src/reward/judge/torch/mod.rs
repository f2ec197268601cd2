//! A judge's model in process, on the generator of the torch engine.
//!
//! Questions wait in one line. A thread of the judge's own answers them, as many at once as the options say; where the judge is
//! colocated and an engine [hosts](crate::rollout::torch::TorchEngine::host) it, the engine's instances answer them in its place, beside
//! the actor's responses ([`guests`](crate::rollout::guests)). The thread takes over whenever no instance does: before the engine
//! starts, while all instances are given up, after it has ended, and where there is none, as in `score`. An answer that is cut short by
//! such a change goes on elsewhere from the tokens that it has.
//!
//! An answer depends on messages, seed and options only: its random numbers are keyed by the seed and the prompt, and logits are equal in
//! whatever company they are computed, up to the reassociation that [the engine](crate::rollout::torch) tells of.

mod answering;
mod models;
mod questions;
#[cfg(test)]
mod tests;
mod weights;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use sha2::{Digest, Sha256};

use self::answering::Answering;
pub(super) use self::models::Models;
use self::questions::{Answer, Questions};
use self::weights::Weights;
use super::TorchChatOptions;
use super::chat::{Chat, JudgeSampling};
use crate::catalog::CatalogError;
use crate::model::device::set_threads_of_this_thread;
use crate::model::{
    ChatTemplate, DeviceChoice, Encoded, Message, ModelConfig, ModelError, PromptEncoder, Tokenizer,
};
use crate::reward::RewardError;
use crate::rollout::generator::Capacity;
use crate::rollout::guests::{Guest, Guests, Tenant};
use crate::rollout::sampling::{RandomStream, Sampling};
use crate::rollout::{FinishReason, Waker};

/// A chat model in process. Clones are the same model; the last one that is dropped ends its thread.
#[derive(Clone)]
pub struct TorchChat(Arc<Model>);

struct Model {
    folder: PathBuf,
    encoder: PromptEncoder,
    capacity: Capacity,
    vocab_size: i32,
    share: usize,
    weights: Mutex<Weights>,
    questions: Arc<Questions>,
    thread: Option<JoinHandle<()>>,
}

impl TorchChat {
    /// Loads a model and starts its thread.
    ///
    /// # Errors
    /// If an option is out of its bounds, the folder cannot be used, or the device has no room.
    pub fn open(options: &TorchChatOptions) -> Result<Self, CatalogError> {
        options.check()?;
        let folder = &options.model_path;
        let device = options.device.parse::<DeviceChoice>().and_then(DeviceChoice::resolve);
        let device = device.map_err(refuse)?;
        let config = ModelConfig::from_folder(folder).map_err(refuse)?;
        let encoder = PromptEncoder {
            tokenizer: Arc::new(Tokenizer::from_folder(folder).map_err(refuse)?),
            template: ChatTemplate::from_folder(folder).map_err(refuse)?,
        };
        let capacity = options.capacity(&config);
        let weights = Weights::load(options, capacity, device).map_err(refuse)?;
        let mut model = Model {
            folder: folder.clone(),
            encoder,
            capacity,
            vocab_size: i32::try_from(config.vocab_size).unwrap_or(i32::MAX),
            share: options.share(),
            weights: Mutex::new(weights),
            questions: Arc::default(),
            thread: None,
        };
        model.start(options.threads)?;
        Ok(Self(Arc::new(model)))
    }

    /// Has whatever engine hosts `guests` run this model.
    pub fn colocate(&self, guests: &Guests) {
        let model: Arc<dyn Guest> = Arc::clone(&self.0) as _;
        guests.invite(Arc::downgrade(&model));
    }

    /// Tokens that a prompt and its answer may have together.
    #[must_use]
    pub fn token_limit(&self) -> usize {
        self.0.capacity.token_limit
    }
}

impl Chat for TorchChat {
    async fn complete(
        &self,
        messages: &[Message],
        sampling: &JudgeSampling,
    ) -> Result<String, RewardError> {
        let model = &*self.0;
        let prompt = model.encode(messages, sampling)?;
        let stream = RandomStream::keyed(key(&prompt, sampling.seed));
        let sampling = Sampling {
            temperature: sampling.temperature,
            ..Sampling::unrestricted(sampling.max_tokens)
        };
        let asked = model.questions.ask(prompt.into(), sampling, stream);
        let answer = match asked {
            Ok(answer) => answer.await.unwrap_or_else(|_| Err("its thread is gone".into())),
            Err(reason) => Err(reason),
        };
        model.read(answer.map_err(|reason| model.fault(reason))?)
    }
}

impl Model {
    fn start(&mut self, threads: usize) -> Result<(), CatalogError> {
        let refuse = |error: String| CatalogError::Start(format!("the judge: {error}"));
        let answering = self.answering(None).map_err(|error| refuse(error.to_string()))?;
        let work = move || {
            set_threads_of_this_thread(threads);
            answering.serve();
        };
        let thread = std::thread::Builder::new().name("judge".to_owned()).spawn(work);
        self.thread = Some(thread.map_err(|error| refuse(error.to_string()))?);
        Ok(())
    }

    fn answering(&self, host: Option<Waker>) -> Result<Answering, tch::TchError> {
        let network = self.weights.lock().unwrap_or_else(PoisonError::into_inner).network();
        Answering::new(network, self.capacity, Arc::clone(&self.questions), host)
    }

    /// The prompt as token ids, if it and the longest answer fit.
    fn encode(
        &self,
        messages: &[Message],
        sampling: &JudgeSampling,
    ) -> Result<Vec<i32>, RewardError> {
        let limit = self.capacity.token_limit;
        let encoded = self.encoder.encode_within(messages, limit);
        let (prompt, tokens) = match encoded.map_err(|error| self.fault(error))? {
            Encoded::Ids(ids) => {
                let tokens = ids.len();
                (ids, tokens)
            }
            Encoded::TooLong(least) => (Vec::new(), least),
        };
        let JudgeSampling { temperature, max_tokens, .. } = *sampling;
        if max_tokens == 0 || !(temperature >= 0.0 && temperature.is_finite()) {
            let expected = "expected max_tokens above 0 and a temperature of at least 0";
            let reason = format!("{expected}, found {max_tokens} and {temperature}");
            return Err(self.fault(reason));
        }
        if tokens == 0 || tokens.saturating_add(max_tokens as usize) > limit {
            let room = limit.saturating_sub(max_tokens as usize);
            let beside = format!("of {limit} beside an answer of {max_tokens}");
            return Err(self.fault(format_args!(
                "a prompt of {tokens} tokens, expected 1 to {room}: all that its context {beside} holds"
            )));
        }
        match prompt.iter().find(|id| !(0..self.vocab_size).contains(*id)) {
            Some(id) => Err(self.fault(format_args!(
                "the tokenizer knows token {id}, the model only those below {}",
                self.vocab_size
            ))),
            None => Ok(prompt),
        }
    }

    fn read(&self, answer: Answer) -> Result<String, RewardError> {
        let Answer { ids, reason } = answer;
        if reason != FinishReason::Stop {
            let most = ids.len();
            // It would be cut off again: the same question has the same answer.
            let reason = format_args!("the judge's answer was cut off after {most} tokens");
            return Err(RewardError::fatal(reason));
        }
        self.encoder.tokenizer.decode(&ids, true).map_err(|error| self.fault(error))
    }

    fn fault(&self, reason: impl std::fmt::Display) -> RewardError {
        RewardError::fatal(format_args!("the judge `{}`: {reason}", self.folder.display()))
    }
}

impl Guest for Model {
    fn tenant(&self, wake: Waker) -> Option<Box<dyn Tenant>> {
        let can_be_shared =
            self.weights.lock().unwrap_or_else(PoisonError::into_inner).can_be_shared();
        if !can_be_shared && self.questions.is_hosted() {
            return None;
        }
        match self.answering(Some(wake)) {
            Ok(answering) => Some(Box::new(answering)),
            Err(error) => {
                self.questions.fail(&error.to_string());
                None
            }
        }
    }

    fn share(&self) -> usize {
        self.share
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.questions.close();
        if let Some(thread) = self.thread.take() {
            let _panic = thread.join();
        }
    }
}

/// An error of opening a model, as one of the option that asked for it.
fn refuse(error: ModelError) -> CatalogError {
    let key = match error {
        ModelError::Device { .. } => "device",
        ModelError::MemoryBudget { .. } => "memory_budget",
        _ => "model_path",
    };
    CatalogError::Option { key: key.to_owned(), reason: error.to_string() }
}

/// The key of an answer's random numbers: another for every prompt and seed.
fn key(prompt: &[i32], seed: u64) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update(seed.to_le_bytes());
    prompt.iter().for_each(|id| digest.update(id.to_le_bytes()));
    digest.finalize().into()
}
