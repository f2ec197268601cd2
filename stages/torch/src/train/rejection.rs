//! Rejection of tokens and responses whose log-probabilities differ too much between engine and trainer.

use rollpacker_stages::train::config::{Aggregation, RolloutRs};
use tch::{Device, Kind, TchError, Tensor};

use super::Sequence;

/// The result of rejection: a flag for each token of some responses. Only kept tokens carry loss.
#[derive(Debug)]
pub(crate) struct RejectionMask {
    /// A flag for each token, `true` if the token is kept; `[tokens]`.
    flags: Vec<bool>,
    /// The number of tokens kept of each response.
    counts: Vec<usize>,
}

impl RejectionMask {
    /// Applies `rules` to responses with the trainer's log-probabilities `logprobs`, `[tokens]`. Returns `None` without rules.
    pub(crate) fn of(
        rules: &[RolloutRs],
        sequences: &[Sequence<'_>],
        logprobs: &Tensor,
    ) -> Result<Option<Self>, TchError> {
        if rules.is_empty() {
            return Ok(None);
        }
        let logprobs = numbers(logprobs)?;
        let (mut flags, mut counts) = (Vec::new(), Vec::new());
        for (sequence, trainer) in sequences.iter().zip(by_sequence(sequences, &logprobs)) {
            let log_ratios = log_ratios(sequence.logprobs, trainer);
            let mut kept = vec![true; log_ratios.len()];
            rules.iter().for_each(|rule| rule.reject(&log_ratios, &mut kept));
            counts.push(kept.iter().filter(|&&kept| kept).count());
            flags.extend(kept);
        }
        Ok(Some(Self { flags, counts }))
    }

    pub(crate) fn flags(&self) -> &[bool] {
        &self.flags
    }

    /// Returns `true` if every token is rejected.
    pub(crate) fn is_empty(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    /// Returns the indices of the tokens that are kept, int64.
    pub(crate) fn indices(&self, device: Device) -> Result<Tensor, TchError> {
        let kept = (0_i64..).zip(&self.flags).filter_map(|(at, &kept)| kept.then_some(at));
        Tensor::f_from_slice(&kept.collect::<Vec<_>>())?.f_to_device(device)
    }

    /// Returns the number of kept tokens of each response that has any.
    pub(crate) fn lengths(&self) -> Vec<i64> {
        self.counts.iter().filter(|&&count| count > 0).map(|&count| count as i64).collect()
    }

    /// Returns the factor of each kept token in the numerator of the loss. The mean of a response is over its kept tokens. `scale` is the
    /// divisor of `seq-mean-token-sum-norm`; other aggregations ignore it.
    pub(crate) fn factors(
        &self,
        sequences: &[Sequence<'_>],
        mode: Aggregation,
        scale: f64,
        device: Device,
    ) -> Result<Tensor, TchError> {
        let factors = sequences.iter().zip(&self.counts).flat_map(|(sequence, &count)| {
            let factor = f64::from(sequence.weight) * mode.coefficient(count, scale);
            std::iter::repeat_n(factor as f32, count)
        });
        Tensor::f_from_slice(&factors.collect::<Vec<_>>())?.f_to_device(device)
    }

    /// Returns the denominator of the loss, as in verl: with `token-mean` only the kept tokens count, otherwise a response counts even if
    /// all its tokens are rejected.
    pub(crate) fn denominator(&self, sequences: &[Sequence<'_>], mode: Aggregation) -> f64 {
        let counted = |(sequence, &kept): (&Sequence<'_>, &usize)| {
            let tokens =
                if mode == Aggregation::TokenMean { kept } else { sequence.logprobs.len() };
            f64::from(sequence.weight) * mode.measure(tokens)
        };
        sequences.iter().zip(&self.counts).map(counted).sum()
    }
}

/// Returns the trainer's minus the engine's log-probability of each token of a response, in nats.
pub(crate) fn log_ratios(engine: &[f32], trainer: &[f64]) -> Vec<f64> {
    engine.iter().zip(trainer).map(|(&engine, trainer)| trainer - f64::from(engine)).collect()
}

/// Splits the values of all tokens into one slice for each sequence.
pub(crate) fn by_sequence<'a, T>(
    sequences: &'a [Sequence<'_>],
    tokens: &'a [T],
) -> impl Iterator<Item = &'a [T]> {
    let mut rest = tokens;
    sequences.iter().map(move |sequence| {
        let (own, later) = rest.split_at(sequence.response_ids.len());
        rest = later;
        own
    })
}

/// Returns the numbers of a tensor in float64. If the device is not the CPU, this takes one transfer.
pub(crate) fn numbers(tensor: &Tensor) -> Result<Vec<f64>, TchError> {
    Vec::try_from(tensor.f_to_kind(Kind::Double)?)
}
