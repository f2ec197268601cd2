//! Supervised fine-tuning: a warm start, so that reinforcement learning begins with some correct responses.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rollpacker_dataflow::step::Step;
use serde::{Deserialize, Serialize};
use tch::{Kind, TchError, Tensor};

use super::TrainError;
use super::config::OptimizerConfig;
use super::head::Head;
use super::micro_batch::{MicroBatch, PromptResponse, plan};
use super::optimizer::{AdamW, clear_gradients};
use crate::model::Decoder;
use crate::model::device::set_threads_of_this_thread;

/// A demonstration. Only its response carries loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// The prompt, with the chat template applied. At least one token.
    pub prompt_ids: Vec<i32>,
    /// The response. It includes the end-of-sequence token if the model should learn to stop.
    pub response_ids: Vec<i32>,
}

/// The settings of a fine-tuning run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SftConfig {
    /// The settings of the optimizer, with the learning-rate schedule.
    pub optimizer: OptimizerConfig,
    /// The number of updates. At least 1; default 1200.
    pub steps: u64,
    /// The number of examples per update. At least 1; default 48.
    pub batch_size: usize,
    /// The seed of the order of the examples. Default 0.
    pub seed: u64,
    /// The maximum number of tokens of a packed micro-batch; a longer example is a micro-batch of its own. At least 1; default 4096.
    pub micro_batch_tokens: usize,
    /// The number of threads of a tensor operation on the CPU. At least 1; default 1.
    pub threads: usize,
}

impl Default for SftConfig {
    fn default() -> Self {
        Self {
            optimizer: OptimizerConfig::default(),
            steps: 1200,
            batch_size: 48,
            seed: 0,
            micro_batch_tokens: 4096,
            threads: 1,
        }
    }
}

/// The result of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SftStep {
    /// The index of the update, from 0.
    pub step: Step,
    /// Mean cross-entropy of the response tokens before the update, in nats.
    pub loss: f64,
    /// The number of response tokens, over which the loss is averaged.
    pub response_tokens: usize,
    /// The number of tokens of the prompts and responses, without the last token of each response, which is only predicted.
    pub tokens: usize,
    /// Gradient norm before clipping.
    pub grad_norm: f64,
    /// The learning rate of the update.
    pub learning_rate: f64,
}

/// Minimizes the mean cross-entropy of the response tokens. Each epoch has a new order of examples, which depends on the seed alone.
///
/// `on_step` is called after every update. This function sets the number of torch threads of the calling thread to `config.threads`. It
/// enables the gradients of the decoder, and disables them at the end.
///
/// # Errors
/// Returns an error if no example has a response token, an example has an empty prompt, the loss or the gradient is not finite, or the
/// backend fails. If the examples are valid, the decoder keeps the updates that were made before the error, and its gradients stay enabled.
pub fn fine_tune(
    decoder: &mut Decoder,
    examples: &[Example],
    config: &SftConfig,
    on_step: &mut dyn FnMut(&SftStep),
) -> Result<(), TrainError> {
    check(examples)?;
    set_threads_of_this_thread(config.threads);
    decoder.set_requires_grad(true);
    let mut optimizer = AdamW::new(config.optimizer, decoder.parameters())
        .map_err(TrainError::backend("setting up"))?;
    let head = Head::new(decoder, 1.0, false);
    let mut order = ExampleOrder::new(examples.len(), config.seed);
    for step in 0..config.steps {
        let pairs: Vec<_> = order
            .by_ref()
            .take(config.batch_size.max(1))
            .map(|at| prompt_response(&examples[at]))
            .collect();
        on_step(&train(
            decoder,
            &mut optimizer,
            &head,
            &pairs,
            config.micro_batch_tokens,
            Step(step),
        )?);
    }
    decoder.set_requires_grad(false);
    Ok(())
}

fn train(
    decoder: &Decoder,
    optimizer: &mut AdamW,
    head: &Head,
    pairs: &[PromptResponse<'_>],
    budget: usize,
    step: Step,
) -> Result<SftStep, TrainError> {
    let failed = || TrainError::backend("fine-tuning");
    let total = plan(pairs, budget, |_| 1)
        .into_iter()
        .map(|members| {
            cross_entropy(
                decoder,
                head,
                &members.into_iter().map(|at| pairs[at]).collect::<Vec<_>>(),
            )
        })
        .try_fold(0.0, |sum, loss| loss.map(|loss| sum + loss))
        .map_err(failed())?;
    let response_tokens = pairs.iter().map(|pair| pair.response.len()).sum::<usize>();
    let loss = total / response_tokens.max(1) as f64;
    finite(loss, step, "loss")?;
    let update =
        optimizer.update(decoder.parameters(), response_tokens.max(1) as f64).map_err(failed())?;
    finite(update.grad_norm, step, "gradient")?;
    clear_gradients(decoder.parameters()).map_err(failed())?;
    Ok(SftStep {
        step,
        loss,
        response_tokens,
        tokens: pairs.iter().map(PromptResponse::fed_tokens).sum(),
        grad_norm: update.grad_norm,
        learning_rate: update.learning_rate,
    })
}

/// Adds the gradient of the summed cross-entropy of a micro-batch, and returns the sum.
fn cross_entropy(
    decoder: &Decoder,
    head: &Head,
    pairs: &[PromptResponse<'_>],
) -> Result<f64, TchError> {
    let batch = MicroBatch::pack(pairs, decoder.device())?;
    let total = head.backward(decoder, &batch, |scores| {
        let total: Tensor = scores.logprobs.f_sum(Kind::Float)?.f_neg()?;
        let value = total.f_detach()?;
        Ok((total, value))
    })?;
    total.f_double_value(&[])
}

fn finite(value: f64, step: Step, quantity: &'static str) -> Result<(), TrainError> {
    if value.is_finite() { Ok(()) } else { Err(TrainError::NotFinite { step, quantity }) }
}

fn prompt_response(example: &Example) -> PromptResponse<'_> {
    PromptResponse { prompt: &example.prompt_ids, response: &example.response_ids }
}

fn check(examples: &[Example]) -> Result<(), TrainError> {
    if examples.iter().all(|example| example.response_ids.is_empty()) {
        return Err(TrainError::NoExamples);
    }
    match examples.iter().position(|example| example.prompt_ids.is_empty()) {
        Some(at) => Err(TrainError::Sequence {
            at,
            field: "prompt_ids",
            expected: "at least 1".to_owned(),
            found: 0,
        }),
        None => Ok(()),
    }
}

/// An endless iterator over the indices of the examples: one permutation per epoch.
struct ExampleOrder {
    random: ChaCha8Rng,
    permutation: Vec<usize>,
    next: usize,
}

impl ExampleOrder {
    fn new(examples: usize, seed: u64) -> Self {
        Self {
            random: ChaCha8Rng::seed_from_u64(seed),
            permutation: (0..examples).collect(),
            next: examples,
        }
    }
}

impl Iterator for ExampleOrder {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.next == self.permutation.len() {
            self.permutation.shuffle(&mut self.random);
            self.next = 0;
        }
        let index = self.permutation.get(self.next).copied();
        self.next += 1;
        index
    }
}

#[cfg(test)]
mod tests;
