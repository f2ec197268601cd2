//! The outputs of a trainer's models that advantages depend on, and the check that a trainer returns them.

use rollpacker_stages::train::{Inferred, Sequence, TrainError};

/// The outputs of a trainer's models that advantages depend on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NeededOutputs {
    /// `true` if rewards have a KL penalty.
    pub(crate) reward_kl: bool,
    /// `true` if the advantage estimator needs the predictions of a critic.
    pub(crate) values: bool,
}

impl NeededOutputs {
    /// Returns an error if `inferred` does not have one item per sequence, or if a needed output is empty although the sequence has tokens.
    /// An output that is not empty must have one entry per token. Without the check, a trainer that infers nothing would silently train
    /// without the KL penalty of the recipe.
    pub(crate) fn check(
        self,
        sequences: &[Sequence<'_>],
        inferred: &[Inferred],
    ) -> Result<(), TrainError> {
        if inferred.len() != sequences.len() {
            let (expected, found) = (sequences.len(), inferred.len());
            let reason = format!("expected the outputs of {expected} sequences, found {found}");
            return Err(TrainError::Backend { operation: "inference", reason });
        }
        for (at, (sequence, one)) in sequences.iter().zip(inferred).enumerate() {
            let of_tokens = OutputLength { at, expected: sequence.response_ids.len() };
            of_tokens.check("reward_kl", &one.reward_kl, self.reward_kl.then_some(NO_KL))?;
            of_tokens.check("ref_logprobs", &one.ref_logprobs, None)?;
            of_tokens.check("values", &one.values, self.values.then_some(NO_VALUES))?;
        }
        Ok(())
    }
}

/// A sequence of a call, with the number of entries in each output that is present.
struct OutputLength {
    /// The index of the sequence in the call.
    at: usize,
    expected: usize,
}

impl OutputLength {
    /// Returns an error if `output` does not have the expected length. If `missing` is `None`, the output is not needed, and an empty
    /// output is accepted. Otherwise `missing` is the operation that the error about an empty output names.
    fn check(
        &self,
        field: &'static str,
        output: &[f32],
        missing: Option<&'static str>,
    ) -> Result<(), TrainError> {
        let &Self { at, expected } = self;
        match (output.len(), missing) {
            (found, _) if found == expected => Ok(()),
            (0, None) => Ok(()),
            (0, Some(operation)) => Err(TrainError::Unsupported { operation }),
            (found, _) => {
                Err(TrainError::Sequence { at, field, expected: expected.to_string(), found })
            }
        }
    }
}

/// The operation that a trainer without KL divergences does not support.
const NO_KL: &str = "infer the KL divergence that a penalty in the rewards needs";
/// The operation that a trainer without a critic does not support.
const NO_VALUES: &str = "infer the values that the advantage estimator needs";

#[cfg(test)]
mod tests {
    use super::*;

    fn error(needed: NeededOutputs, inferred: &[Inferred]) -> Option<String> {
        let response = Sequence { response_ids: &[7, 7], ..Sequence::default() };
        let checked = needed.check(&[response, Sequence::default()], inferred);
        checked.err().map(|error| error.to_string())
    }

    #[test]
    fn missing_inference_outputs_are_rejected() {
        let nothing = NeededOutputs::default();
        let kl = NeededOutputs { reward_kl: true, ..nothing };
        let values = NeededOutputs { values: true, ..nothing };
        let none = vec![Inferred::default(); 2];
        let both = Inferred { reward_kl: vec![0.1; 2], values: vec![0.5; 2], ..none[0].clone() };
        assert_eq!(error(nothing, &none), None);
        let all = NeededOutputs { reward_kl: true, values: true };
        assert_eq!(error(all, &[both.clone(), none[1].clone()]), None, "no output without tokens");
        assert_eq!(error(kl, &none), Some(format!("this trainer cannot {NO_KL}")));
        assert_eq!(error(values, &none), Some(format!("this trainer cannot {NO_VALUES}")));
        let found = "sequence 1: `reward_kl` has 2 entries, expected 0";
        assert_eq!(error(nothing, &[none[0].clone(), both]).as_deref(), Some(found));
        let found = "trainer failed in inference: expected the outputs of 2 sequences, found 1";
        assert_eq!(error(nothing, &none[..1]).as_deref(), Some(found));
    }
}
