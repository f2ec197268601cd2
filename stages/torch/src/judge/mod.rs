//! A judge model that runs in this process, on the generator of the torch engine.
//!
//! Questions wait in one queue. By default, the judge's own thread answers them, up to `max_running` at once. If the judge is colocated and
//! an engine [runs](crate::rollout::TorchEngine::colocate) it, the engine's instances answer them instead, together with the actor's
//! responses ([`colocated`](crate::rollout::colocated)). A judge with a memory budget runs on one instance only, because its layer buffers
//! cannot be shared. The thread takes over whenever no instance hosts the judge: before the engine starts, while all instances are
//! released, after the engine has ended, and without an engine, as in `score`. An answer that such a change interrupts keeps its tokens and
//! continues after them.
//!
//! An answer depends only on the model, the messages and the sampling parameters. Its random numbers are keyed by the seed and the prompt.
//! Its logits may differ in their last bits if other sequences are computed with it, because matrix kernels may sum in a different order
//! for a different number of rows. Such a difference rarely changes a token.

mod bytes;
mod models;
mod options;
mod questions;
#[cfg(test)]
mod tests;
mod weights;
mod worker;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rollpacker_model::{ChatTemplate, Encoded, ModelConfig, PromptEncoder, Tokenizer};
use rollpacker_stages::catalog::CatalogError;
use rollpacker_stages::reward::RewardError;
use rollpacker_stages::reward::chat::{Chat, ChatError, JudgeSampling, Message};
use rollpacker_stages::rollout::sampling::{RandomStream, Sampling};
use rollpacker_stages::rollout::{FinishReason, Waker};
use sha2::{Digest, Sha256};

pub use self::bytes::{Bytes, ParseBytesError};
pub use self::models::JudgeModels;
pub use self::options::TorchChatOptions;
use self::questions::{JudgeAnswer, Questions};
use self::weights::JudgeWeights;
use self::worker::JudgeWorker;
use crate::model::TorchError;
use crate::model::device::{resolve_device, set_threads_of_this_thread};
use crate::rollout::colocated::{ColocatedModel, ColocatedModels, ColocatedWorkload};
use crate::rollout::generator::Capacity;

/// A chat model that runs in this process. Clones share the model. Dropping the last one ends the model's thread after its current
/// iteration, and waits for it.
#[derive(Clone)]
pub struct TorchChat(Arc<JudgeModel>);

/// The model that all clones of a [`TorchChat`] share.
struct JudgeModel {
    folder: PathBuf,
    encoder: PromptEncoder,
    capacity: Capacity,
    vocab_size: i32,
    share: usize,
    weights: Mutex<JudgeWeights>,
    questions: Arc<Questions>,
    thread: Option<JoinHandle<()>>,
}

impl TorchChat {
    /// Loads a model and starts its thread.
    ///
    /// # Errors
    /// Returns an error if an option is out of range, the device does not exist, the model, tokenizer or chat template of the folder cannot
    /// be loaded, the memory is too small, or the system cannot create a thread.
    pub fn open(options: &TorchChatOptions) -> Result<Self, CatalogError> {
        options.check()?;
        let folder = &options.model_path;
        let device = resolve_device(options.device).map_err(option_error)?;
        let config = ModelConfig::from_folder(folder).map_err(option_error)?;
        let encoder = PromptEncoder {
            tokenizer: Arc::new(Tokenizer::from_folder(folder).map_err(option_error)?),
            template: ChatTemplate::from_folder(folder).map_err(option_error)?,
        };
        let capacity = options.capacity(&config);
        let weights = JudgeWeights::load(options, capacity, device).map_err(option_error)?;
        let mut model = JudgeModel {
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

    /// Adds this model to `colocated`, a list of models that an engine can run on its instances. The list does not keep the model alive.
    pub fn register_in(&self, colocated: &ColocatedModels) {
        let model: Arc<dyn ColocatedModel> = Arc::clone(&self.0) as _;
        colocated.add(Arc::downgrade(&model));
    }

    /// Returns the maximum number of tokens of a prompt and its answer together.
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
    ) -> Result<String, ChatError> {
        let model = &*self.0;
        let prompt = model.encode(messages, sampling)?;
        let stream = RandomStream::from_key(stream_key(&prompt, sampling.seed));
        let sampling = Sampling {
            temperature: sampling.temperature,
            ..Sampling::unrestricted(sampling.max_tokens)
        };
        let pending = model.questions.push(prompt.into(), sampling, stream);
        let answer = match pending {
            Ok(answer) => answer.await.unwrap_or_else(|_| Err("its thread has ended".into())),
            Err(reason) => Err(reason),
        };
        model.decode_answer(answer.map_err(|reason| model.fatal_error(reason))?)
    }
}

impl JudgeModel {
    fn start(&mut self, threads: usize) -> Result<(), CatalogError> {
        let refuse = |error: String| CatalogError::Start(format!("the judge: {error}"));
        let worker = self.worker(None).map_err(|error| refuse(error.to_string()))?;
        let work = move || {
            set_threads_of_this_thread(threads);
            worker.serve();
        };
        let thread = std::thread::Builder::new().name("judge".to_owned()).spawn(work);
        self.thread = Some(thread.map_err(|error| refuse(error.to_string()))?);
        Ok(())
    }

    fn weights(&self) -> MutexGuard<'_, JudgeWeights> {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn worker(&self, instance: Option<Waker>) -> Result<JudgeWorker, tch::TchError> {
        let network = self.weights().network();
        JudgeWorker::new(network, self.capacity, Arc::clone(&self.questions), instance)
    }

    /// Returns the token ids of the prompt. Returns an error if the messages cannot be encoded, the sampling options are out of range, the
    /// prompt is empty or has a token outside of the model's vocabulary, or prompt and longest answer together exceed the context.
    fn encode(
        &self,
        messages: &[Message],
        sampling: &JudgeSampling,
    ) -> Result<Vec<i32>, RewardError> {
        let limit = self.capacity.token_limit;
        let encoded = self.encoder.encode_within(messages, limit);
        let (prompt, tokens) = match encoded.map_err(|error| self.fatal_error(error))? {
            Encoded::Ids(ids) => {
                let tokens = ids.len();
                (ids, tokens)
            }
            Encoded::TooLong(min) => (Vec::new(), min),
        };
        let JudgeSampling { temperature, max_tokens, .. } = *sampling;
        if max_tokens == 0 || !(temperature >= 0.0 && temperature.is_finite()) {
            let expected = "expected max_tokens above 0 and a temperature of at least 0";
            let reason = format!("{expected}, found {max_tokens} and {temperature}");
            return Err(self.fatal_error(reason));
        }
        if tokens == 0 || tokens.saturating_add(max_tokens as usize) > limit {
            let room = limit.saturating_sub(max_tokens as usize);
            let with_answer = format!("of {limit} tokens with an answer of {max_tokens}");
            return Err(self.fatal_error(format_args!(
                "the prompt has {tokens} tokens, expected 1 to {room} to fit a context {with_answer}"
            )));
        }
        match prompt.iter().find(|id| !(0..self.vocab_size).contains(*id)) {
            Some(id) => Err(self.fatal_error(format_args!(
                "token {id} of the tokenizer is outside of the model's vocabulary of {} tokens",
                self.vocab_size
            ))),
            None => Ok(prompt),
        }
    }

    fn decode_answer(&self, answer: JudgeAnswer) -> Result<String, ChatError> {
        let JudgeAnswer { ids, reason } = answer;
        if reason != FinishReason::Stop {
            return Err(ChatError::CutOff { tokens: ids.len() });
        }
        let text = self.encoder.tokenizer.decode(&ids, true);
        text.map_err(|error| self.fatal_error(error).into())
    }

    fn fatal_error(&self, reason: impl std::fmt::Display) -> RewardError {
        RewardError::fatal(format_args!("the judge `{}`: {reason}", self.folder.display()))
    }
}

impl ColocatedModel for JudgeModel {
    fn workload(&self, wake: Waker, instance: u32) -> Option<Box<dyn ColocatedWorkload>> {
        // The first instance is the last one that is released.
        if instance != 0 && !self.weights().can_be_shared() {
            return None;
        }
        match self.worker(Some(wake)) {
            Ok(worker) => Some(Box::new(worker)),
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

impl Drop for JudgeModel {
    fn drop(&mut self) {
        self.questions.close();
        if let Some(thread) = self.thread.take() {
            let _panic = thread.join();
        }
    }
}

/// Converts an error of opening a model to an error of the option that caused it.
fn option_error(error: impl Into<TorchError>) -> CatalogError {
    let error = error.into();
    let key = match error {
        TorchError::Device { .. } => "device",
        TorchError::MemoryBudget { .. } => "memory_budget",
        _ => "model_path",
    };
    CatalogError::Option { key: key.to_owned(), reason: error.to_string() }
}

/// Returns the key of an answer's random numbers, which differs for every prompt and seed.
fn stream_key(prompt: &[i32], seed: u64) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update(seed.to_le_bytes());
    prompt.iter().for_each(|id| digest.update(id.to_le_bytes()));
    digest.finalize().into()
}
