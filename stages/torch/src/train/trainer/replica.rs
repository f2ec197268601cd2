//! Support for a trainer that is one of several replicas.

use rollpacker_stages::train::{Numbers, Partial, PartialError, Total, TrainError};

use super::TorchTrainer;
use crate::train::accumulation::numel;

/// The prefix of the names of the policy's totals.
const POLICY: &str = "policy";
/// The prefix of the names of the critic's totals.
const CRITIC: &str = "critic";

impl TorchTrainer {
    /// Removes and returns the gradients and totals that this replica has accumulated; empty if there are none. Returns an error if a step
    /// has several updates.
    pub(super) fn take(&mut self) -> Result<Partial, TrainError> {
        let failed = || TrainError::backend("taking gradients out");
        if self.config.mini_batches.is_some() {
            let operation = "be one of several replicas with several updates per step";
            return Err(TrainError::Unsupported { operation });
        }
        self.threads.collect_gradients().map_err(failed())?;
        let critic = self.critic.as_mut().map(|critic| critic.accumulated());
        let critic_pending = critic.as_ref().is_some_and(|(sums, _)| sums.is_pending());
        if !self.accumulated.is_pending() && !critic_pending {
            return Ok(Partial::default());
        }
        let taken = self.accumulated.take(self.decoder.parameters(), POLICY);
        let (mut gradient, mut totals) = taken.map_err(failed())?;
        if let Some((sums, parameters)) = critic {
            let (numbers, more) = sums.take(parameters, CRITIC).map_err(failed())?;
            gradient.append(numbers)?;
            totals.extend(more);
        }
        Ok(Partial { gradient, totals })
    }

    /// Adds a sum over all replicas to the sums that were received in this step. Returns an error if the kind or the length of the gradient
    /// does not match this trainer, a sum leaves the range of fixed point, a total has an unknown name, or, in deterministic mode, a unit
    /// is repeated.
    pub(super) fn put(&mut self, sum: Partial) -> Result<(), TrainError> {
        let Partial { gradient, totals } = sum;
        let critic = self.critic.as_mut().map(|critic| critic.accumulated());
        let own = numel(self.decoder.parameters());
        let all = own + critic.as_ref().map_or(0, |(_, parameters)| numel(parameters));
        let (of_policy, of_critic) = split(gradient, &totals, own, all, self.config.deterministic)?;
        self.accumulated.put(of_policy, &totals, POLICY)?;
        if let Some((sums, _)) = critic {
            sums.put(of_critic, &totals, CRITIC)?;
        }
        Ok(())
    }
}

/// Splits a gradient of `all` numbers into the first `of_policy` numbers, which belong to the policy, and the others, which belong to the
/// critic. Both parts are empty if no replica has accumulated anything. Returns an error if the gradient has another length, or is not of
/// the kind that `deterministic` requires.
fn split(
    mut gradient: Numbers,
    totals: &[Total],
    of_policy: usize,
    all: usize,
    deterministic: bool,
) -> Result<(Numbers, Numbers), PartialError> {
    if gradient.is_empty() && totals.is_empty() {
        return Ok((Numbers::default(), Numbers::default()));
    }
    let like = if deterministic { Numbers::Fixed(Vec::new()) } else { Numbers::default() };
    gradient.check(&like, all)?;
    let of_critic = gradient.split_off(of_policy);
    Ok((gradient, of_critic))
}
