//! The score of a response.

use std::collections::BTreeMap;

use super::limits::Execution;
use super::{RewardError, Sample};
use crate::secret::redact_known;

/// The score of a response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// The score, without the rewards of single tokens.
    pub value: f64,
    /// The components of the score by name. The metrics `reward/<name>` are their means.
    pub components: BTreeMap<String, f64>,
    /// Labels by name, such as the outcome or the extracted answer. They are written with the response.
    pub labels: BTreeMap<String, String>,
    /// A reward for each token of the response, in addition to `value`; empty if there are no token rewards.
    pub token_values: Vec<f32>,
    /// Executions of test cases, from which later limits are learned.
    pub executions: Vec<Execution>,
}

impl From<f64> for Score {
    fn from(value: f64) -> Self {
        Self { value, ..Self::default() }
    }
}

impl From<bool> for Score {
    /// Returns 1 for `true` and 0 for `false`.
    fn from(right: bool) -> Self {
        f64::from(right).into()
    }
}

impl Score {
    /// The maximum magnitude of the [total](Self::total) of a score. With this bound, sums of squared scores are finite in double
    /// precision, and advantages (differences of scores divided by their standard deviation plus an epsilon) are finite in single
    /// precision.
    pub const MAX_MAGNITUDE: f64 = 1e30;

    /// Returns the score including the token rewards.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.value + self.token_values.iter().copied().map(f64::from).sum::<f64>()
    }

    /// Adds another score. Components of the same name are added, labels of the same name are replaced, token rewards are added token by
    /// token, and executions are appended.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        self.value += other.value;
        for (name, value) in other.components {
            *self.components.entry(name).or_default() += value;
        }
        self.labels.extend(other.labels);
        let tokens = self.token_values.len().max(other.token_values.len());
        self.token_values.resize(tokens, 0.0);
        self.token_values.iter_mut().zip(other.token_values).for_each(|(sum, value)| *sum += value);
        self.executions.extend(other.executions);
        self
    }

    /// Returns the score, if its values are usable for training.
    ///
    /// # Errors
    /// Returns an error if the total or a component is not finite, or the magnitude of the total exceeds
    /// [`MAX_MAGNITUDE`](Self::MAX_MAGNITUDE).
    pub fn finite(self) -> Result<Self, RewardError> {
        let total = self.total();
        let parts = self.components.iter().map(|(name, value)| (name.as_str(), *value));
        let mut all = std::iter::once(("score", total)).chain(parts);
        if let Some((name, found)) = all.find(|(_, value)| !value.is_finite()) {
            let reason = format_args!("`{name}`: expected a finite number, found {found}");
            return Err(RewardError::fatal(reason));
        }
        if total.abs() > Self::MAX_MAGNITUDE {
            let max = Self::MAX_MAGNITUDE;
            let reason = format_args!(
                "`score`: expected a number from -{max:e} to {max:e}, found {total:e}"
            );
            return Err(RewardError::fatal(reason));
        }
        Ok(self)
    }

    /// Redacts [secrets](crate::secret) in names and labels, since a scorer may have included them.
    pub(crate) fn redacted(self) -> Self {
        let text = |text: String| redact_known(&text).into_owned();
        let components = self.components.into_iter().map(|(name, value)| (text(name), value));
        let labels = self.labels.into_iter().map(|(name, label)| (text(name), text(label)));
        Self { components: components.collect(), labels: labels.collect(), ..self }
    }

    /// Returns the score, if it is [finite](Self::finite) and has either no token rewards or one token reward for each token of the
    /// response. The number of token rewards is not checked if the number of tokens is unknown.
    pub(crate) fn checked(self, sample: &Sample) -> Result<Self, RewardError> {
        let (values, tokens) = (self.token_values.len(), sample.tokens());
        if values > 0 && tokens > 0 && values != tokens as usize {
            return Err(RewardError::fatal(format_args!(
                "`token_values`: expected one for each of {tokens} tokens, found {values}"
            )));
        }
        self.finite()
    }

    /// Sets a component without changing the score. Replaces a component of the same name.
    #[must_use]
    pub fn component(mut self, name: &str, value: f64) -> Self {
        self.components.insert(name.to_owned(), value);
        self
    }

    /// Sets a label. Replaces a label of the same name.
    #[must_use]
    pub fn label(mut self, name: &str, value: impl Into<String>) -> Self {
        self.labels.insert(name.to_owned(), value.into());
        self
    }
}
