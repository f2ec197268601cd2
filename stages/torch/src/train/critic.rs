//! The critic: a decoder with one output, which predicts the return from each token on.

use std::path::Path;

use rollpacker_dataflow::step::Step;
use rollpacker_model::tensor_file::TensorFile;
use tch::{Device, Kind, TchError, Tensor};

use super::accumulation::Accumulation;
use super::config::CriticConfig;
use super::loss::value_loss;
use super::micro_batch::MicroBatch;
use super::objective::{column, denominator, factors, tokens};
use super::optimizer::AdamW;
use super::step_updates::StepUpdates;
use super::tally::{Over, StepSums, Terms, Unit};
use super::{Metrics, Sequence, TrainError};
use crate::model::{Decoder, TorchError};

/// The file of the value head, in the decoder's Hugging Face folder.
const HEAD_FILE: &str = "value_head.safetensors";

/// The initial model of a critic: a decoder, and a head with one output over its hidden states.
#[derive(Debug)]
pub struct ValueModel {
    decoder: Decoder,
    /// `[1, hidden]`
    weight: Tensor,
    /// `[1]`
    bias: Tensor,
}

impl ValueModel {
    /// Creates a model over the layers of `decoder`. Its initial prediction is 0.
    ///
    /// # Errors
    /// If the device runs out of memory.
    pub fn over(decoder: Decoder) -> Result<Self, TrainError> {
        let options = (Kind::Float, decoder.device());
        let zeros = |size: &[i64]| {
            Tensor::f_zeros(size, options).map_err(TrainError::backend("making a value head"))
        };
        let (weight, bias) = (zeros(&[1, decoder.config().hidden_size])?, zeros(&[1])?);
        Ok(Self { decoder, weight, bias })
    }

    /// Loads a folder: that of a decoder, whose initial prediction is 0, or one to which a trainer saved a critic.
    ///
    /// # Errors
    /// If a file cannot be read, or the head does not consist of `weight` and `bias` that fit the decoder.
    pub fn load(folder: &Path, device: Device) -> Result<Self, TrainError> {
        let mut model = Self::over(Decoder::load(folder, device)?)?;
        let path = folder.join(HEAD_FILE);
        if path.exists() {
            let failed = || TrainError::backend("loading a value head");
            TensorFile::open(&path)?.check_names(&["bias", "weight"].map(str::to_owned).into())?;
            for (name, tensor) in Tensor::read_safetensors(&path).map_err(failed())? {
                let place = if name == "weight" { &mut model.weight } else { &mut model.bias };
                place.f_copy_(&tensor).map_err(failed())?;
            }
        }
        Ok(model)
    }
}

/// A value model with its optimizer. The gradient of a step is accumulated and divided once, like that of the policy.
#[derive(Debug)]
pub(crate) struct Critic {
    config: CriticConfig,
    decoder: Decoder,
    /// Parameters of the head, `[1, hidden]` and `[1]`.
    weight: Tensor,
    bias: Tensor,
    /// Parameters of the decoder and of the head.
    parameters: Vec<(String, Tensor)>,
    optimizer: AdamW,
    accumulated: Accumulation,
    /// The updates of the current step.
    done: StepUpdates,
}

impl Critic {
    /// Creates a critic that starts from `model`.
    pub(crate) fn new(
        model: ValueModel,
        config: CriticConfig,
        deterministic: bool,
    ) -> Result<Self, TchError> {
        let ValueModel { mut decoder, weight, bias } = model;
        decoder.set_requires_grad(true);
        let (weight, bias) = (weight.f_set_requires_grad(true)?, bias.f_set_requires_grad(true)?);
        let shared = decoder
            .parameters()
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor.shallow_clone()));
        let parameters: Vec<_> = shared
            .chain([
                ("value_head.weight".to_owned(), weight.shallow_clone()),
                ("value_head.bias".to_owned(), bias.shallow_clone()),
            ])
            .collect();
        let optimizer = AdamW::new(config.optimizer, &parameters)?;
        let accumulated = Accumulation::new(deterministic);
        let done = StepUpdates::default();
        Ok(Self { config, decoder, weight, bias, parameters, optimizer, accumulated, done })
    }

    /// Returns the values of the response tokens of a micro-batch, without gradient; `[response tokens]`.
    pub(crate) fn values(&self, batch: &MicroBatch) -> Result<Tensor, TchError> {
        tch::no_grad(|| self.predict(batch))
    }

    fn predict(&self, batch: &MicroBatch) -> Result<Tensor, TchError> {
        let hidden = batch.hidden(&self.decoder)?;
        hidden.f_linear(&self.weight, Some(&self.bias))?.f_squeeze_dim(-1)
    }

    /// Adds the gradient of the value loss of a micro-batch.
    pub(crate) fn accumulate(
        &mut self,
        sequences: &[Sequence<'_>],
        batch: &MicroBatch,
        scale: f64,
        unit: Unit,
    ) -> Result<(), TrainError> {
        let failed = TrainError::backend("accumulating gradients of the critic");
        let tally = self.backward(sequences, batch, scale).map_err(failed)?;
        self.accumulated.add(&self.parameters, unit, &tally)
    }

    fn backward(
        &self,
        sequences: &[Sequence<'_>],
        batch: &MicroBatch,
        scale: f64,
    ) -> Result<StepSums, TchError> {
        let (mode, device) = (self.config.loss_agg_mode, self.decoder.device());
        let predicted = self.predict(batch)?;
        let before = column(sequences, |s| s.values, device)?;
        let returns = column(sequences, |s| s.returns, device)?;
        let value = value_loss(&predicted, &before, &returns, self.config.cliprange_value)?;
        let loss = value.loss.f_mul(&factors(sequences, mode, scale, device)?)?;
        loss.f_sum(loss.kind())?.f_backward()?;
        let mut terms = Terms::default();
        terms.add("critic/vf_loss", Over::Loss, &loss)?;
        terms.add("critic/vf_clipfrac", Over::Tokens, &value.clipped)?;
        terms.add("critic/vpred_mean", Over::Tokens, &predicted)?;
        StepSums::of(denominator(sequences, mode), tokens(sequences), &terms.reduce()?)
    }

    /// Applies the accumulated gradient. Does nothing if there is none.
    pub(crate) fn update(&mut self, step: Step) -> Result<(), TrainError> {
        let failed = || TrainError::backend("updating the critic");
        let tally = self.accumulated.tally()?;
        if tally.denominator() <= 0.0 {
            return self.accumulated.clear(&self.parameters).map_err(failed());
        }
        if !tally.is_finite() {
            return Err(TrainError::NotFinite { step, quantity: "value loss" });
        }
        let gradient =
            self.accumulated.mean(&self.parameters, tally.denominator()).map_err(failed())?;
        self.accumulated.clear(&self.parameters).map_err(failed())?;
        let update = self.optimizer.update_by(&self.parameters, gradient).map_err(failed())?;
        if !update.is_applied() {
            return Err(TrainError::NotFinite { step, quantity: "gradient of the critic" });
        }
        self.done.add(&tally, Some(update));
        Ok(())
    }

    /// Ends a step. Returns the metrics of its updates.
    pub(crate) fn end_step(&mut self) -> Metrics {
        let done = std::mem::take(&mut self.done);
        if done.is_updated() {
            self.optimizer.end_step();
        }
        done.metrics("critic")
    }

    /// Returns the parameters, including those of the head.
    pub(crate) fn parameters(&self) -> &[(String, Tensor)] {
        &self.parameters
    }

    pub(crate) fn optimizer(&mut self) -> &mut AdamW {
        &mut self.optimizer
    }

    /// Returns the accumulation of the step, and its parameters.
    pub(crate) fn accumulated(&mut self) -> (&mut Accumulation, &[(String, Tensor)]) {
        (&mut self.accumulated, &self.parameters)
    }

    /// Returns the number of initial steps in which only the critic is trained.
    pub(crate) fn warmup_steps(&self) -> u64 {
        self.config.warmup_steps
    }

    /// Writes the decoder as a Hugging Face folder, with the head in a file of its own.
    pub(crate) fn save(&self, folder: &Path) -> Result<(), TorchError> {
        self.decoder.save(folder)?;
        let head = [("weight", self.weight.f_detach()?), ("bias", self.bias.f_detach()?)];
        Ok(Tensor::write_safetensors(&head, folder.join(HEAD_FILE))?)
    }

    /// Returns the gradient that an update would apply, `[parameters]`.
    #[cfg(test)]
    pub(crate) fn gradient(&self) -> Tensor {
        let tally = self.accumulated.tally().expect("all units are accumulated");
        let denominator = tally.denominator().max(f64::MIN_POSITIVE);
        self.accumulated.mean(&self.parameters, denominator).expect("gradients fit")
    }
}
