//! What a replica adds to the update of a step.
//!
//! Each replica accumulates the numerators and the denominators of its own responses, gives them out as a [`Partial`], and takes in the
//! sum over all replicas; then each divides by the same denominator and applies the same update. Nothing is averaged, so that shards may
//! be uneven, or empty.

use rollpacker_dataflow::step::PromptId;

use super::fixed;

/// What was accumulated of a step: sums, which add up over replicas.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Partial {
    /// Numerator of the gradient: the policy's parameters in their order, then the critic's. Empty if nothing was accumulated.
    pub gradient: Numbers,
    /// Sums of the loss and of metrics.
    pub totals: Vec<Total>,
}

/// Numbers that are added up one by one; 8 bytes each.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    /// Multiples of 2^-40. Their sums have no order: equal to the bit for any number of replicas.
    Fixed(Vec<i64>),
    /// Sums that depend on the order of the replicas by their rounding.
    Float(Vec<f64>),
}

/// One sum of some responses: that of a unit of computation where the order of sums matters, otherwise of all.
#[derive(Clone, Debug, PartialEq)]
pub struct Total {
    /// The prompt of the unit; the totals of a step are added up in the order of prompts and samples.
    pub prompt: PromptId,
    /// The first sample of the unit.
    pub sample: u32,
    /// What it is a sum of, in the trainer's own words.
    pub name: String,
    /// The sum.
    pub value: f64,
}

/// Why partials cannot be added up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartialError {
    /// A number is not finite, or its sum too large for fixed point.
    #[error("a gradient leaves the range of deterministic sums, 2^23 on either side of 0")]
    OutOfRange,
    /// They are of different models.
    #[error("a gradient of {found} numbers, expected {expected}")]
    Length {
        /// Numbers of the first.
        expected: usize,
        /// Numbers of the second.
        found: usize,
    },
    /// One is deterministic, the other not.
    #[error("a gradient of {found}, expected {expected}")]
    Kind {
        /// What the first is of.
        expected: &'static str,
        /// What the second is of.
        found: &'static str,
    },
    /// A total that the trainer did not name.
    #[error("a total `{name}` that no trainer gives")]
    Total {
        /// Its name.
        name: String,
    },
    /// A replica would update without a part of the sum.
    #[error("responses were accumulated after the last partial of the step was taken")]
    NotTaken,
    /// A unit came twice, so that its place in the order of sums is not known.
    #[error("the responses of {prompt} from sample {sample} on came twice")]
    Repeated {
        /// The prompt.
        prompt: PromptId,
        /// The first sample.
        sample: u32,
    },
}

impl Default for Numbers {
    /// None.
    fn default() -> Self {
        Self::Float(Vec::new())
    }
}

impl Numbers {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Fixed(numbers) => numbers.len(),
            Self::Float(numbers) => numbers.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds others of the same kind, one by one. None on either side stand for zeros.
    ///
    /// # Errors
    /// If there are not as many, or of another kind, or a fixed-point sum leaves its range.
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

    /// Refuses any but so many of the kind of `like`.
    pub(crate) fn check(&self, like: &Self, expected: usize) -> Result<(), PartialError> {
        if std::mem::discriminant(self) != std::mem::discriminant(like) {
            return Err(like.unlike(self));
        }
        if self.len() != expected {
            return Err(PartialError::Length { expected, found: self.len() });
        }
        Ok(())
    }

    /// Puts others of the same kind behind these.
    ///
    /// # Errors
    /// If they are of another kind.
    pub fn append(&mut self, mut others: Self) -> Result<(), PartialError> {
        match (self, &mut others) {
            (Self::Fixed(numbers), Self::Fixed(others)) => numbers.append(others),
            (Self::Float(numbers), Self::Float(others)) => numbers.append(others),
            (one, other) => return Err(one.unlike(other)),
        }
        Ok(())
    }

    /// What follows the first `at` numbers; these stay.
    ///
    /// # Panics
    /// If there are fewer.
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
    /// Adds the partial of another replica; in the same order on all of them.
    ///
    /// # Errors
    /// As [`Numbers::add`].
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
    fn none_stand_for_zeros() {
        let numbers = Numbers::Fixed(vec![1, -2]);
        let mut sum = Numbers::default();
        sum.add(numbers.clone()).unwrap();
        sum.add(Numbers::default()).unwrap();
        sum.add(numbers.clone()).unwrap();
        assert_eq!(sum, Numbers::Fixed(vec![2, -4]));
        assert_eq!(sum.split_off(1), Numbers::Fixed(vec![-4]));
    }

    #[test]
    fn strangers_are_refused() {
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
