//! A small trainer of a real model: REINFORCE with plain gradient descent and momentum.
//!
//! The trainer saves its state, so that a run with snapshots resumes exactly. It does not support replicas, so a run with several workers
//! is refused.

use std::collections::BTreeMap;
use std::path::Path;

use rollpacker::prelude::*;
use rollpacker::stages::catalog::CatalogError;
use rollpacker::stages::torch::model::Decoder;
use rollpacker::stages::torch::train::loss::log_probs;
use rollpacker::trainers::TrainerContext;
use serde::Deserialize;
use tch::{Kind, TchError, Tensor};

/// The options of the trainer: `actor.strategy_options`.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SgdOptions {
    /// The factor by which an update multiplies the velocity before it adds the gradient, from 0 to below 1. Default: 0.
    #[serde(default)]
    momentum: f64,
}

/// A response of the step, whose gradient the next update computes.
struct Response {
    ids: Vec<i64>,
    /// The number of tokens of the prompt, which do not contribute to the loss.
    prompt_length: usize,
    advantages: Vec<f32>,
    weight: f32,
}

/// A trainer that uses the learning rate of `[actor]` (`lr`, its warm-up and decay) and `rollout.temperature`.
pub(crate) struct Sgd {
    options: SgdOptions,
    context: TrainerContext,
    decoder: Decoder,
    velocity: Vec<Tensor>,
    version: PolicyVersion,
    /// The responses of the step, in an order that does not depend on their arrival, so that a run repeats bit by bit.
    responses: BTreeMap<(PromptId, u32), Response>,
}

impl Sgd {
    /// Loads the model.
    ///
    /// # Errors
    /// If `momentum` is out of its range, or the model cannot be loaded.
    pub(crate) fn start(
        options: SgdOptions,
        context: TrainerContext,
    ) -> Result<Self, CatalogError> {
        if !(0.0..1.0).contains(&options.momentum) {
            let found = options.momentum;
            return Err(CatalogError::out_of_range(
                "momentum",
                "a number from 0 to below 1",
                found,
            ));
        }
        let mut decoder =
            Decoder::load(&context.model, context.device).map_err(CatalogError::start)?;
        decoder.set_requires_grad(true);
        let velocity = decoder.parameters().iter().map(|(_, weights)| weights.zeros_like());
        let velocity = tch::no_grad(|| velocity.collect());
        let (version, responses) = (PolicyVersion(0), BTreeMap::new());
        Ok(Self { options, context, decoder, velocity, version, responses })
    }

    /// Adds the gradient of a response to those of the parameters, divided by the `tokens` of the step.
    fn backward(&self, response: &Response, tokens: f64) -> Result<(), TchError> {
        let length = response.ids.len() as i64;
        let first = response.prompt_length as i64;
        let ids = Tensor::from_slice(&response.ids).to_device(self.context.device);
        // The hidden state at a token predicts the token after it.
        let hidden = self.decoder.forward_packed(&ids, &[length])?;
        let hidden = hidden.f_narrow(0, first - 1, length - first)?;
        let logits = self.decoder.logits(&hidden)? / self.context.config.temperature;
        let (logprobs, _) = log_probs(&logits, &ids.f_narrow(0, first, length - first)?, false)?;
        let advantages = Tensor::from_slice(&response.advantages).to_device(self.context.device);
        let loss = logprobs.f_mul(&advantages)?.f_sum(Kind::Float)?;
        (loss * (-f64::from(response.weight) / tokens)).f_backward()
    }

    /// Moves the weights against the gradient with momentum, clears the gradient, and returns the L2 norm that the gradient had.
    fn descend(&mut self) -> Result<f64, TchError> {
        let rate = self.context.config.optimizer.learning_rate.at(self.version.0);
        let mut squares = 0.0;
        for ((_, weights), velocity) in self.decoder.parameters().iter().zip(&mut self.velocity) {
            let (mut weights, mut gradient) = (weights.shallow_clone(), weights.grad());
            if !gradient.defined() {
                continue;
            }
            squares += f64::try_from(gradient.f_square()?.f_sum(Kind::Double)?)?;
            let _ = velocity.f_mul_scalar_(self.options.momentum)?.f_add_(&gradient)?;
            let _ = weights.f_sub_(&(&*velocity * rate))?;
            let _ = gradient.f_zero_()?;
        }
        Ok(squares.sqrt())
    }

    /// Returns the tensors that updates change, by their names in a state. They share their memory with the trainer.
    fn tensors(&self) -> impl Iterator<Item = (String, Tensor)> {
        let parameters = self.decoder.parameters().iter();
        parameters.zip(&self.velocity).flat_map(|((name, weights), velocity)| {
            let velocity = (format!("velocity.{name}"), velocity.shallow_clone());
            [(format!("weights.{name}"), weights.shallow_clone()), velocity]
        })
    }
}

impl Trainer for Sgd {
    fn publish(&mut self, version: PolicyVersion) -> Result<Policy, TrainError> {
        self.version = version;
        Ok(self.context.weights.publish(version, self.decoder.snapshot()?))
    }

    fn accumulate(&mut self, _step: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError> {
        for one in sequences.iter().filter(|one| !one.response_ids.is_empty()) {
            let ids = one.prompt_ids.iter().chain(one.response_ids).map(|&id| i64::from(id));
            let response = Response {
                ids: ids.collect(),
                prompt_length: one.prompt_ids.len(),
                advantages: one.advantages.to_vec(),
                weight: one.weight,
            };
            self.responses.insert((one.prompt, one.sample), response);
        }
        Ok(())
    }

    fn update(&mut self, step: Step) -> Result<(Policy, Metrics), TrainError> {
        let responses = std::mem::take(&mut self.responses);
        let tokens: usize = responses.values().map(|one| one.advantages.len()).sum();
        for response in responses.values() {
            self.context.progress.record();
            let failed = TrainError::backend("computing the gradient");
            self.backward(response, tokens as f64).map_err(failed)?;
        }
        let norm = if responses.is_empty() { Ok(0.0) } else { tch::no_grad(|| self.descend()) };
        let norm = norm.map_err(TrainError::backend("updating weights"))?;
        let policy = self.publish(PolicyVersion(step.next().0))?;
        Ok((policy, Metrics::from([("actor/grad_norm".to_owned(), norm)])))
    }

    fn save(&mut self, folder: &Path) -> Result<(), TrainError> {
        Ok(self.decoder.save(folder)?)
    }

    fn save_state(&mut self, file: &Path) -> Result<(), TrainError> {
        let version = ("version".to_owned(), Tensor::from(self.version.0 as i64));
        let tensors: Vec<_> = self.tensors().chain([version]).collect();
        Tensor::write_safetensors(&tensors, file).map_err(TrainError::state)
    }

    /// Restores the state and publishes its weights, the only ones that engines may request with a staleness of 0.
    fn load_state(&mut self, file: &Path) -> Result<Vec<Policy>, TrainError> {
        let saved = Tensor::read_safetensors(file).map_err(TrainError::state)?;
        let saved: BTreeMap<_, _> = saved.into_iter().collect();
        const READING: &str = "reading its state";
        let find = |name: &str| {
            let missing = || format!("{} has no tensor `{name}`", file.display());
            saved.get(name).ok_or_else(missing).map_err(TrainError::backend(READING))
        };
        // Everything is found before anything is overwritten.
        let own = self.tensors().map(|(name, own)| Ok((own, find(&name)?)));
        let own: Vec<_> = own.collect::<Result<_, TrainError>>()?;
        let version = i64::try_from(find("version")?).map_err(TrainError::backend(READING))?;
        for (mut own, saved) in own {
            let copied = tch::no_grad(|| own.f_copy_(saved).map(drop));
            copied.map_err(TrainError::backend(READING))?;
        }
        Ok(vec![self.publish(PolicyVersion(version.unsigned_abs()))?])
    }
}
