//! The program's own forward pass, with which the answers of servers are compared.

use std::collections::BTreeSet;
use std::path::Path;

use rollpacker_model::Tokenizer;
use rollpacker_servers::probe::ReferenceModel;
use rollpacker_servers::weights::PublishedWeights;
use rollpacker_torch::model::{Decoder, TorchError};
use tch::{Device, Kind, TchError, Tensor, no_grad};

/// The text of the canary, which servers and the program both score: ordinary language, code and numbers.
const CANARY: &str = "The sum of the first n odd numbers is n squared: 1 + 3 + 5 + 7 = 16. \
    def add(a, b):\n    return a + b\n";
/// The maximum number of tokens of the canary.
const CANARY_TOKENS: usize = 48;
/// The minimum number of different tokens in the encoded [`CANARY`], which has 30 different characters.
const MIN_DISTINCT: usize = 12;

/// Returns the tokens of the canary, a short text that servers and the program both score. There are at most `max` and at most 48 tokens,
/// but at least 2. The tokens encode a fixed text. If the tokenizer encodes it with too few tokens or too few different ones, tokens spread
/// over the vocabulary are returned instead.
#[must_use]
pub fn canary_tokens(tokenizer: &Tokenizer, max: usize) -> Vec<i32> {
    let max = max.min(CANARY_TOKENS);
    let mut tokens = tokenizer.encode(CANARY).unwrap_or_default();
    let distinct: BTreeSet<i32> = tokens.iter().copied().collect();
    // A tokenizer may have one token for all text that it cannot represent.
    if tokens.len() < max.min(CANARY_TOKENS / 2) || distinct.len() < MIN_DISTINCT {
        let vocabulary = i32::try_from(tokenizer.vocab_size()).unwrap_or(1).max(1);
        tokens = (0..CANARY_TOKENS as i32).map(|at| (at * 7919 + 3) % vocabulary).collect();
    }
    tokens.truncate(max.max(2));
    tokens
}

/// Returns the log-probability of each token after the first in nats, given the tokens before it. `tokens` must not be empty.
pub(super) fn score(decoder: &Decoder, tokens: &[i32]) -> Result<Vec<f32>, TchError> {
    let logprobs = logprobs(decoder, &tokens[..tokens.len() - 1])?;
    let next = ids(decoder, &tokens[1..])?.f_unsqueeze(1)?;
    values(&logprobs.f_gather(1, &next, false)?.f_squeeze_dim(1)?)
}

/// Returns the log-probabilities of the token that follows each of `tokens`, in nats, for all tokens of the vocabulary: `[tokens,
/// vocabulary]`.
fn logprobs(decoder: &Decoder, tokens: &[i32]) -> Result<Tensor, TchError> {
    let hidden = decoder.forward_packed(&ids(decoder, tokens)?, &[tokens.len() as i64])?;
    decoder.logits(&hidden)?.f_log_softmax(-1, Kind::Float)
}

fn ids(decoder: &Decoder, tokens: &[i32]) -> Result<Tensor, TchError> {
    let ids: Vec<i64> = tokens.iter().copied().map(i64::from).collect();
    Tensor::f_from_slice(&ids)?.f_to_device(decoder.device())
}

fn values(tensor: &Tensor) -> Result<Vec<f32>, TchError> {
    Vec::<f32>::try_from(tensor.f_to_device(Device::Cpu)?)
}

/// A model folder on libtorch, as the reference of a [probe](rollpacker_servers::probe::probe).
#[derive(Debug)]
pub struct ReferenceDecoder(Decoder);

impl ReferenceDecoder {
    /// Loads a model folder.
    ///
    /// # Errors
    /// If the folder cannot be read, its model is not supported, or the device is out of memory.
    pub fn load(folder: &Path, device: Device) -> Result<Self, TorchError> {
        Ok(Self(Decoder::load(folder, device)?))
    }

    fn add_noise(&self, strength: f64) -> Result<(), TchError> {
        for (_, parameter) in self.0.parameters() {
            let size = parameter.f_square()?.f_mean(Kind::Float)?.f_sqrt()?;
            let noise = parameter.f_randn_like()?.f_mul(&size)?.f_mul_scalar(strength)?;
            let _same_tensor = parameter.shallow_clone().f_add_(&noise)?;
        }
        Ok(())
    }
}

impl PublishedWeights for ReferenceDecoder {
    fn write(&self, folder: &Path) -> Result<(), String> {
        self.0.save(folder).map_err(|error| error.to_string())
    }

    fn score(&self, tokens: &[i32]) -> Result<Vec<f32>, String> {
        no_grad(|| score(&self.0, tokens)).map_err(|error| error.to_string())
    }
}

impl ReferenceModel for ReferenceDecoder {
    fn best_logprobs(&self, tokens: &[i32]) -> Result<Vec<f32>, String> {
        let best = || {
            let logprobs = logprobs(&self.0, &tokens[..tokens.len() - 1])?;
            values(&logprobs.f_amax([-1_i64].as_slice(), false)?)
        };
        no_grad(best).map_err(|error| error.to_string())
    }

    fn next_logprobs(&self, tokens: &[i32]) -> Result<Vec<f32>, String> {
        let next = || values(&logprobs(&self.0, tokens)?.f_select(0, -1)?);
        no_grad(next).map_err(|error| error.to_string())
    }

    fn perturb(&mut self, strength: f64) -> Result<(), String> {
        no_grad(|| self.add_noise(strength)).map_err(|error| error.to_string())
    }
}
