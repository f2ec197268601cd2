//! The critic: a decoder with one output, which predicts the return from each token on.

use std::path::Path;

use rollpacker_dataflow::step::Step;
use rollpacker_files::NewFile;
use rollpacker_model::ModelError;
use rollpacker_model::tensor_file::TensorFile;
use tch::{Device, Kind, TchError, Tensor};

use super::accumulation::Accumulation;
use super::config::{CriticConfig, OptimizerConfig, Precision};
use super::loss::value_loss;
use super::micro_batch::MicroBatch;
use super::objective::{column, denominator, factors, tokens};
use super::optimizer::AdamW;
use super::step_updates::StepUpdates;
use super::tally::{StepSums, TermReduction, Terms};
use super::{Metrics, Sequence, TrainError};
use crate::model::{Decoder, TorchError};

/// The file of the value head, in the decoder's Hugging Face folder.
const HEAD_FILE: &str = "value_head.safetensors";

/// The model of a critic: a decoder, and a head with one output over its hidden states.
#[derive(Debug)]
pub struct ValueModel {
    decoder: Decoder,
    /// `[1, hidden]`
    weight: Tensor,
    /// `[1]`
    bias: Tensor,
    parameters: Vec<(String, Tensor)>,
}

impl ValueModel {
    /// The folder to which a trainer saves its critic, in the folder of the policy.
    pub const FOLDER: &str = "critic";

    /// The files that a trainer writes into [`FOLDER`](Self::FOLDER).
    pub const FILES: [&str; 4] =
        ["config.json", "generation_config.json", "model.safetensors", HEAD_FILE];

    /// Creates a model over the layers of `decoder`. Its initial prediction is 0.
    ///
    /// # Errors
    /// Returns an error if the device runs out of memory.
    pub fn over(decoder: Decoder) -> Result<Self, TrainError> {
        let options = (Kind::Float, decoder.device());
        let zeros = |size: &[i64]| {
            Tensor::f_zeros(size, options).map_err(TrainError::backend("making a value head"))
        };
        let (weight, bias) = (zeros(&[1, decoder.config().hidden_size])?, zeros(&[1])?);
        Ok(Self::of(decoder, weight, bias))
    }

    /// Loads a model from the folder of a critic that a trainer saved, or from the folder of a decoder. If the folder has no
    /// `value_head.safetensors`, the initial prediction is 0.
    ///
    /// # Errors
    /// Returns the errors of [`Decoder::load`]. Also returns an error if the file of the head cannot be read, does not consist of `weight`
    /// and `bias`, or has a tensor whose shape does not match the head.
    pub fn load(folder: &Path, device: Device) -> Result<Self, TrainError> {
        let mut model = Self::over(Decoder::load(folder, device)?)?;
        let path = folder.join(HEAD_FILE);
        if path.exists() {
            let failed = || TrainError::backend("loading a value head");
            TensorFile::open(&path)?.check_names(&["bias", "weight"].map(str::to_owned).into())?;
            for (name, tensor) in Tensor::read_safetensors(&path).map_err(failed())? {
                let parameter = if name == "weight" { &mut model.weight } else { &mut model.bias };
                // A copy would broadcast a smaller tensor.
                let (expected, found) = (parameter.size(), tensor.size());
                if found != expected {
                    let origin = path.display().to_string();
                    let shape = ModelError::Shape { origin, tensor: name, expected, found };
                    return Err(shape.into());
                }
                parameter.f_copy_(&tensor).map_err(failed())?;
            }
        }
        Ok(model)
    }

    pub(super) fn set_precision(&mut self, precision: Precision) {
        self.decoder.set_precision(precision);
    }

    fn of(decoder: Decoder, weight: Tensor, bias: Tensor) -> Self {
        let head = [("value_head.weight", &weight), ("value_head.bias", &bias)];
        let head = head.map(|(name, tensor)| (name.to_owned(), tensor.shallow_clone()));
        let of_decoder = decoder.parameters().iter();
        let of_decoder = of_decoder.map(|(name, tensor)| (name.clone(), tensor.shallow_clone()));
        let parameters = of_decoder.chain(head).collect();
        Self { decoder, weight, bias, parameters }
    }

    /// Returns another handle to the same model, with the same gradients.
    pub(crate) fn share(&self) -> Self {
        Self::of(self.decoder.share(), self.weight.shallow_clone(), self.bias.shallow_clone())
    }

    /// Returns a model with the same weights and [gradients of its own](Decoder::with_own_gradients).
    pub(crate) fn with_own_gradients(&self) -> Result<Self, TchError> {
        let leaf = |tensor: &Tensor| tensor.f_detach()?.f_set_requires_grad(true);
        let (weight, bias) = (leaf(&self.weight)?, leaf(&self.bias)?);
        Ok(Self::of(self.decoder.with_own_gradients(), weight, bias))
    }

    /// Returns the parameters of the decoder and of the head, by name.
    pub(crate) fn parameters(&self) -> &[(String, Tensor)] {
        &self.parameters
    }

    /// Returns the values of the response tokens of a micro-batch, without gradient; `[response tokens]`.
    pub(crate) fn values(&self, batch: &MicroBatch) -> Result<Tensor, TchError> {
        tch::no_grad(|| self.predict(batch))
    }

    fn predict(&self, batch: &MicroBatch) -> Result<Tensor, TchError> {
        let hidden = batch.hidden(&self.decoder)?;
        hidden.f_linear(&self.weight, Some(&self.bias))?.f_squeeze_dim(-1)
    }

    /// Adds the gradient of the value loss of a micro-batch to the gradients of the parameters. Returns the denominator of the loss and the
    /// sums for its metrics. Losses are divided by `scale` if their aggregation is `seq-mean-token-sum-norm`.
    pub(crate) fn backward(
        &self,
        config: &CriticConfig,
        sequences: &[Sequence<'_>],
        batch: &MicroBatch,
        scale: f64,
    ) -> Result<StepSums, TchError> {
        let (mode, device) = (config.loss_agg_mode, self.decoder.device());
        let predicted = self.predict(batch)?;
        let before = column(sequences, |s| s.values, device)?;
        let returns = column(sequences, |s| s.returns, device)?;
        let value = value_loss(&predicted, &before, &returns, config.cliprange_value)?;
        let loss = value.loss.f_mul(&factors(sequences, mode, scale, device)?)?;
        loss.f_sum(loss.kind())?.f_backward()?;
        let mut terms = Terms::default();
        terms.add("critic/vf_loss", TermReduction::Loss, &loss)?;
        terms.add("critic/vf_clipfrac", TermReduction::Tokens, &value.clipped)?;
        terms.add("critic/vpred_mean", TermReduction::Tokens, &predicted)?;
        StepSums::of(denominator(sequences, mode), tokens(sequences), &terms.reduce()?)
    }
}

/// A value model with its optimizer. The gradient of each update is accumulated and divided once, as for the policy.
#[derive(Debug)]
pub(crate) struct Critic {
    model: ValueModel,
    optimizer: AdamW,
    pub(crate) accumulated: Accumulation,
    step_updates: StepUpdates,
}

impl Critic {
    pub(crate) fn new(
        mut model: ValueModel,
        optimizer: OptimizerConfig,
        deterministic: bool,
    ) -> Result<Self, TchError> {
        model.decoder.set_requires_grad(true);
        for tensor in [&model.weight, &model.bias] {
            let _same_tensor = tensor.f_set_requires_grad(true)?;
        }
        let optimizer = AdamW::new(optimizer, model.parameters())?;
        let accumulated = Accumulation::new(deterministic);
        Ok(Self { model, optimizer, accumulated, step_updates: StepUpdates::default() })
    }

    pub(crate) fn model(&self) -> &ValueModel {
        &self.model
    }

    /// Applies the accumulated gradient and clears it. The model does not change if no response carries loss. Returns an error if the loss
    /// or the gradient is not finite, or an operation fails. Also returns the errors of [`Accumulation::tally`].
    pub(crate) fn update(&mut self, step: Step) -> Result<(), TrainError> {
        let failed = || TrainError::backend("updating the critic");
        let tally = self.accumulated.tally()?;
        if tally.denominator() <= 0.0 {
            return self.accumulated.clear(self.model.parameters()).map_err(failed());
        }
        if !tally.is_finite() {
            return Err(TrainError::NotFinite { step, quantity: "value loss" });
        }
        let parameters = self.model.parameters();
        let gradient = self.accumulated.mean(parameters, tally.denominator()).map_err(failed())?;
        self.accumulated.clear(parameters).map_err(failed())?;
        let update = self.optimizer.update_by(parameters, gradient).map_err(failed())?;
        if !update.is_applied() {
            return Err(TrainError::NotFinite { step, quantity: "gradient of the critic" });
        }
        self.step_updates.add(&tally, Some(update));
        Ok(())
    }

    /// Ends a step, and advances the learning-rate schedule if the step has changed the model. Returns the metrics of the step.
    pub(crate) fn end_step(&mut self) -> Metrics {
        let step_updates = std::mem::take(&mut self.step_updates);
        if step_updates.is_updated() {
            self.optimizer.end_step();
        }
        step_updates.metrics("critic")
    }

    pub(crate) fn optimizer(&mut self) -> &mut AdamW {
        &mut self.optimizer
    }

    pub(crate) fn accumulated(&mut self) -> (&mut Accumulation, &[(String, Tensor)]) {
        (&mut self.accumulated, self.model.parameters())
    }

    /// Writes the decoder as a Hugging Face folder, with the head in a file of its own.
    pub(crate) fn save(&self, folder: &Path) -> Result<(), TorchError> {
        let ValueModel { decoder, weight, bias, .. } = &self.model;
        decoder.save(folder)?;
        let head = [("weight", weight.f_detach()?), ("bias", bias.f_detach()?)];
        let file = NewFile::create(&folder.join(HEAD_FILE))?;
        Tensor::write_safetensors(&head, file.temporary_path())?;
        Ok(file.finish()?)
    }

    /// Returns the gradient that an update would apply, `[parameters]`.
    #[cfg(test)]
    pub(crate) fn gradient(&self) -> Tensor {
        let tally = self.accumulated.tally().expect("all units are accumulated");
        let denominator = tally.denominator().max(f64::MIN_POSITIVE);
        self.accumulated.mean(self.model.parameters(), denominator).expect("gradients fit")
    }
}
