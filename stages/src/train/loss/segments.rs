//! Which tokens of a pack are of one sequence.

use tch::{Device, TchError, Tensor};

/// Sequences that lie end to end, each of at least one token.
#[derive(Debug)]
pub struct Segments {
    /// Tokens of each sequence, `[sequences]`, int64.
    lengths: Tensor,
}

impl Segments {
    /// Sequences of so many tokens each, on `device`.
    ///
    /// # Errors
    /// If a sequence is empty, or the device has no room.
    pub fn new(lengths: &[i64], device: Device) -> Result<Self, TchError> {
        if lengths.iter().any(|&length| length < 1) {
            return Err(TchError::Shape("a sequence without tokens in a loss".to_owned()));
        }
        Ok(Self { lengths: Tensor::f_from_slice(lengths)?.f_to_device(device)? })
    }

    /// Sum over each sequence: `[tokens]` to `[sequences]`.
    ///
    /// # Errors
    /// If there are not as many tokens as the sequences have.
    pub fn sums(&self, tokens: &Tensor) -> Result<Tensor, TchError> {
        let none = None::<&Tensor>;
        Tensor::f_segment_reduce(tokens, "sum", Some(&self.lengths), none, none, 0, false, 0.0)
    }

    /// Mean over each sequence: `[tokens]` to `[sequences]`.
    ///
    /// # Errors
    /// If there are not as many tokens as the sequences have.
    pub fn means(&self, tokens: &Tensor) -> Result<Tensor, TchError> {
        self.sums(tokens)?.f_div(&self.lengths)
    }

    /// The number of each sequence at each of its tokens: `[sequences]` to `[tokens]`.
    ///
    /// # Errors
    /// If there are not as many numbers as sequences.
    pub fn spread(&self, sequences: &Tensor) -> Result<Tensor, TchError> {
        sequences.f_repeat_interleave_self_tensor(&self.lengths, 0, None::<i64>)
    }
}
