//! The assignment of packed tokens to sequences.

use tch::{Device, TchError, Tensor};

/// Concatenated sequences, each of at least one token.
#[derive(Debug)]
pub struct Segments {
    /// The number of tokens of each sequence, `[sequences]`, int64.
    lengths: Tensor,
}

impl Segments {
    /// Creates sequences with the given numbers of tokens on `device`.
    ///
    /// # Errors
    /// Returns an error if a sequence is empty, or the device runs out of memory.
    pub fn new(lengths: &[i64], device: Device) -> Result<Self, TchError> {
        if lengths.iter().any(|&length| length < 1) {
            return Err(TchError::Shape("a loss needs at least one token per sequence".to_owned()));
        }
        Ok(Self { lengths: Tensor::f_from_slice(lengths)?.f_to_device(device)? })
    }

    /// Returns the sum over each sequence: `[tokens]` to `[sequences]`.
    ///
    /// # Errors
    /// Returns an error if the number of tokens does not match the sequences.
    pub fn sums(&self, tokens: &Tensor) -> Result<Tensor, TchError> {
        let none = None::<&Tensor>;
        Tensor::f_segment_reduce(tokens, "sum", Some(&self.lengths), none, none, 0, false, 0.0)
    }

    /// Returns the mean over each sequence: `[tokens]` to `[sequences]`.
    ///
    /// # Errors
    /// Returns an error if the number of tokens does not match the sequences.
    pub fn means(&self, tokens: &Tensor) -> Result<Tensor, TchError> {
        self.sums(tokens)?.f_div(&self.lengths)
    }

    /// Repeats the value of each sequence for each of its tokens: `[sequences]` to `[tokens]`.
    ///
    /// # Errors
    /// Returns an error if the number of values differs from the number of sequences.
    pub fn spread(&self, sequences: &Tensor) -> Result<Tensor, TchError> {
        sequences.f_repeat_interleave_self_tensor(&self.lengths, 0, None::<i64>)
    }
}
