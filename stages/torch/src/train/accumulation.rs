//! The sums that a step accumulates for one model: the numerator of its gradient, and the totals.

use tch::{Device, Kind, TchError, Tensor};

use super::TrainError;
use super::fixed;
use super::optimizer::{clear_gradients, flat_gradient};
use super::tally::{StepSums, Tallies, Unit};
use super::{Numbers, PartialError, Total};

/// The sums of a step. The sums of this replica are kept apart from the sums over all replicas.
///
/// Without determinism, the sum is in the gradients of the parameters themselves. In deterministic mode, the gradient of each unit of
/// computation is removed from the parameters, rounded, and added in fixed point; see [`fixed`].
#[derive(Debug, Default)]
pub(crate) struct Accumulation {
    deterministic: bool,
    /// The gradient of this replica in fixed point, `[parameters]`. Empty until the first addition, and without determinism.
    sums: Vec<i64>,
    /// `true` if this replica has accumulated a unit since the last [`take`](Self::take).
    pending: bool,
    /// The totals of this replica.
    tallies: Tallies,
    /// The gradient and the totals of all replicas; `None` unless a sum over the replicas was received.
    reduced: Option<(Numbers, Tallies)>,
    /// A buffer for one gradient, kept to reuse its memory.
    scratch: Vec<f32>,
}

impl Accumulation {
    pub(crate) fn new(deterministic: bool) -> Self {
        Self { deterministic, ..Self::default() }
    }

    /// Adds a unit of computation, whose gradient has been added to the gradients of `parameters`. Returns an error in deterministic mode
    /// if the unit was added before, or its gradient leaves the range of fixed point.
    pub(crate) fn add(
        &mut self,
        parameters: &[(String, Tensor)],
        unit: Unit,
        tally: &StepSums,
    ) -> Result<(), TrainError> {
        self.pending = true;
        let unit = if self.deterministic { unit } else { Unit::default() };
        self.tallies.add(unit, tally, self.deterministic)?;
        if self.deterministic { self.take_gradients(parameters) } else { Ok(()) }
    }

    /// Moves the gradients of `parameters` into the fixed-point sum.
    fn take_gradients(&mut self, parameters: &[(String, Tensor)]) -> Result<(), TrainError> {
        let failed = || TrainError::backend("adding up gradients");
        let Self { sums, scratch, .. } = self;
        sums.resize(numel(parameters), 0);
        let mut rest = sums.as_mut_slice();
        for (_, parameter) in parameters {
            let (sums, later) = rest.split_at_mut(parameter.numel());
            rest = later;
            let gradient = parameter.f_grad().map_err(failed())?;
            if gradient.defined() {
                scratch.resize(parameter.numel(), 0.0);
                let gradient = gradient.f_contiguous().map_err(failed())?;
                gradient.f_copy_data(scratch, parameter.numel()).map_err(failed())?;
                fixed::add_rounded(sums, scratch)?;
            }
        }
        clear_gradients(parameters).map_err(failed())
    }

    /// Returns `true` if [`take`](Self::take) has something to return.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending
    }

    /// Removes and returns the gradient and the totals of this replica. If nothing was accumulated, the gradient is zero and there are no
    /// totals.
    pub(crate) fn take(
        &mut self,
        parameters: &[(String, Tensor)],
        model: &str,
    ) -> Result<(Numbers, Vec<Total>), TchError> {
        self.pending = false;
        let totals = std::mem::take(&mut self.tallies).totals(model);
        if self.deterministic {
            let mut sums = std::mem::take(&mut self.sums);
            sums.resize(numel(parameters), 0);
            return Ok((Numbers::Fixed(sums), totals));
        }
        let gradient = Vec::try_from(flat_gradient(parameters)?.f_to_kind(Kind::Double)?)?;
        clear_gradients(parameters)?;
        Ok((Numbers::Float(gradient), totals))
    }

    /// Adds a sum over all replicas: the gradient, and the totals that belong to `model`.
    pub(crate) fn put(
        &mut self,
        gradient: Numbers,
        totals: &[Total],
        model: &str,
    ) -> Result<(), PartialError> {
        let (sums, tallies) = self.reduced.get_or_insert_default();
        sums.add(gradient)?;
        tallies.add_totals(totals, model, self.deterministic)
    }

    /// Returns the totals over all units: of all replicas if a sum over the replicas was received, otherwise of this replica.
    ///
    /// # Errors
    /// Returns an error if a sum over replicas was received, but this replica has accumulated a unit since its last [`take`](Self::take).
    pub(crate) fn tally(&self) -> Result<StepSums, PartialError> {
        match &self.reduced {
            Some(_) if self.pending => Err(PartialError::NotTaken),
            Some((_, tallies)) => Ok(tallies.sum()),
            None => Ok(self.tallies.sum()),
        }
    }

    /// Returns the gradient of the units that [`tally`](Self::tally) covers, divided by `denominator`, `[parameters]`, of the kind and on
    /// the device of `parameters`.
    pub(crate) fn mean(
        &self,
        parameters: &[(String, Tensor)],
        denominator: f64,
    ) -> Result<Tensor, TchError> {
        let like = parameters.first().map(|(_, parameter)| (parameter.kind(), parameter.device()));
        let (kind, device) = like.unwrap_or((Kind::Float, Device::Cpu));
        let mean = match &self.reduced {
            Some((Numbers::Fixed(sums), _)) => fixed_mean(sums, denominator)?,
            Some((Numbers::Float(sums), _)) => {
                Tensor::f_from_slice(sums)?.f_div_scalar(denominator)?
            }
            None if self.deterministic => fixed_mean(&self.sums, denominator)?,
            None => return tch::no_grad(|| flat_gradient(parameters)?.f_div_scalar(denominator)),
        };
        mean.f_to_kind(kind)?.f_to_device(device)
    }

    /// Clears all sums and the gradients of `parameters`.
    pub(crate) fn clear(&mut self, parameters: &[(String, Tensor)]) -> Result<(), TchError> {
        *self =
            Self { scratch: std::mem::take(&mut self.scratch), ..Self::new(self.deterministic) };
        clear_gradients(parameters)
    }
}

pub(crate) fn numel(parameters: &[(String, Tensor)]) -> usize {
    parameters.iter().map(|(_, parameter)| parameter.numel()).sum()
}

fn fixed_mean(sums: &[i64], denominator: f64) -> Result<Tensor, TchError> {
    let mean: Vec<f32> = fixed::divided(sums, denominator).map(|number| number as f32).collect();
    Tensor::f_from_slice(&mean)
}
