//! The contribution of a replica to the update of a step.
//!
//! Each replica accumulates the numerators and denominators of its own responses, returns them as a [`Partial`], and receives the sum over
//! all replicas. All replicas then divide by the same denominator and apply the same update. Nothing is averaged, so shards may be uneven
//! or empty.

use rollpacker_dataflow::fault::{HasOrigin, Origin};
use rollpacker_dataflow::step::PromptId;

use super::fixed;

/// The accumulated sums of a step. They can be added over replicas.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Partial {
    /// The numerator of the gradient: the policy's parameters in their order, then the critic's parameters. Empty if nothing was
    /// accumulated.
    pub gradient: Numbers,
    /// Sums of the loss and of metrics.
    pub totals: Vec<Total>,
}

/// A vector of numbers that are added element by element, 8 bytes each.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    /// Multiples of 2^-40. Their sums do not depend on the order: they are bit-identical for any number of replicas.
    Fixed(Vec<i64>),
    /// Floating-point numbers. The rounding of their sums depends on the order of the replicas.
    Float(Vec<f64>),
}

/// One sum over some responses: over a unit of computation if the order of additions matters, otherwise over all responses of a replica.
#[derive(Clone, Debug, PartialEq)]
pub struct Total {
    /// The prompt of the unit; 0 for a sum over all responses. The totals of a step are added in the order of prompts and samples.
    pub prompt: PromptId,
    /// The first sample of the unit; 0 for a sum over all responses.
    pub sample: u32,
    /// The name of the quantity, defined by the trainer.
    pub name: String,
    /// The sum over the responses.
    pub value: f64,
}

/// The reason why partials cannot be added or applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartialError {
    /// A number is not finite, or a number or a sum is too large for fixed point.
    #[error("a gradient leaves the range of deterministic sums, 2^23 on either side of 0")]
    OutOfRange,
    /// A gradient does not have the expected number of elements, for example because it belongs to another model.
    #[error("a gradient of {found} numbers, expected {expected}")]
    Length {
        /// The expected number of elements.
        expected: usize,
        /// The number of elements of the gradient.
        found: usize,
    },
    /// A gradient is in fixed point where floating-point numbers were expected, or the reverse.
    #[error("a gradient of {found}, expected {expected}")]
    Kind {
        /// The expected kind of numbers.
        expected: &'static str,
        /// The kind of the numbers that the gradient has.
        found: &'static str,
    },
    /// The name of a total is unknown to the trainer.
    #[error("unknown total `{name}` in a partial gradient")]
    Total {
        /// The name of the total.
        name: String,
    },
    /// A replica was about to update although a part of its gradient is missing from the sum.
    #[error("responses were accumulated after the last partial of the step was taken")]
    NotTaken,
    /// A unit was received twice, so its place in the order of additions is undefined.
    #[error("received the responses of {prompt}, beginning with sample {sample}, twice")]
    Repeated {
        /// The prompt of the unit.
        prompt: PromptId,
        /// The first sample of the unit.
        sample: u32,
    },
}

impl HasOrigin for PartialError {
    fn origin(&self) -> Origin {
        match self {
            Self::OutOfRange => Origin::User,
            _ => Origin::Program,
        }
    }
}

impl Default for Numbers {
    /// Creates an empty vector of floating-point numbers.
    fn default() -> Self {
        Self::Float(Vec::new())
    }
}

impl Numbers {
    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Fixed(numbers) => numbers.len(),
            Self::Float(numbers) => numbers.len(),
        }
    }

    /// Returns `true` if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds numbers of the same kind, element by element. An empty vector, `self` or `others`, counts as zeros.
    ///
    /// # Errors
    /// Returns an error if the lengths or kinds differ, or a fixed-point sum leaves its range. In the last case, the numbers in `self` are
    /// invalid.
    pub fn add(&mut self, others: Self) -> Result<(), PartialError> {
        if others.is_empty() {
            return Ok(());
        }
        if self.is_empty() {
            *self = others;
            return Ok(());
        }
        others.check(self, self.len())?;
        match (self, &others) {
            (Self::Fixed(sums), Self::Fixed(others)) => fixed::add(sums, others),
            (Self::Float(sums), Self::Float(others)) => {
                sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
                Ok(())
            }
            (one, other) => Err(one.unlike(other)),
        }
    }

    /// Checks that this vector has `expected` elements of the kind of `like`.
    ///
    /// # Errors
    /// Returns an error if the number or the kind of the elements differs.
    pub fn check(&self, like: &Self, expected: usize) -> Result<(), PartialError> {
        if std::mem::discriminant(self) != std::mem::discriminant(like) {
            return Err(like.unlike(self));
        }
        if self.len() != expected {
            return Err(PartialError::Length { expected, found: self.len() });
        }
        Ok(())
    }

    /// Appends numbers of the same kind.
    ///
    /// # Errors
    /// Returns an error if one of the two is [`Fixed`](Self::Fixed) and the other [`Float`](Self::Float).
    pub fn append(&mut self, mut others: Self) -> Result<(), PartialError> {
        match (self, &mut others) {
            (Self::Fixed(numbers), Self::Fixed(others)) => numbers.append(others),
            (Self::Float(numbers), Self::Float(others)) => numbers.append(others),
            (one, other) => return Err(one.unlike(other)),
        }
        Ok(())
    }

    /// Removes and returns the elements after the first `at`.
    ///
    /// # Panics
    /// Panics if there are fewer than `at` elements.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        match self {
            Self::Fixed(numbers) => Self::Fixed(numbers.split_off(at)),
            Self::Float(numbers) => Self::Float(numbers.split_off(at)),
        }
    }

    fn unlike(&self, other: &Self) -> PartialError {
        PartialError::Kind { expected: self.kind(), found: other.kind() }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Fixed(_) => "fixed-point numbers",
            Self::Float(_) => "floating-point numbers",
        }
    }
}

impl Partial {
    /// Adds the partial of another replica. All replicas must add partials in the same order.
    ///
    /// # Errors
    /// Returns the errors of [`Numbers::add`].
    pub fn add(&mut self, other: Self) -> Result<(), PartialError> {
        self.gradient.add(other.gradient)?;
        self.totals.extend(other.totals);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_partial_counts_as_zeros() {
        let numbers = Numbers::Fixed(vec![1, -2]);
        let mut sum = Numbers::default();
        sum.add(numbers.clone()).unwrap();
        sum.add(Numbers::default()).unwrap();
        sum.add(numbers.clone()).unwrap();
        assert_eq!(sum, Numbers::Fixed(vec![2, -4]));
        assert_eq!(sum.split_off(1), Numbers::Fixed(vec![-4]));
    }

    #[test]
    fn partials_of_another_kind_or_length_are_refused() {
        let mut sum = Numbers::Fixed(vec![1, 2]);
        let refused = |result: Result<(), PartialError>| result.unwrap_err().to_string();
        let longer = Numbers::Fixed(vec![1; 3]);
        assert_eq!(refused(sum.add(longer)), "a gradient of 3 numbers, expected 2");
        let floats = Numbers::Float(vec![1.0; 2]);
        let expect = "a gradient of floating-point numbers, expected fixed-point numbers";
        assert_eq!(refused(sum.add(floats.clone())), expect);
        assert_eq!(refused(sum.append(floats)), expect);
    }
}
