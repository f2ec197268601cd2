//! What a reward says of a response.

use std::collections::BTreeMap;

use super::limits::Execution;
use super::{RewardError, Sample};
use crate::secret::redact_known;

/// What a reward says of a response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// The reward.
    pub value: f64,
    /// Its parts by name; averaged into the metrics `reward/<name>`.
    pub components: BTreeMap<String, f64>,
    /// What is to be read of it, by name: an outcome, the answer that was found. Written beside the response.
    pub labels: BTreeMap<String, String>,
    /// A reward for each token of the response, beside the value, which it is added to; empty for none.
    pub token_values: Vec<f32>,
    /// Executions of test cases, which limits of later ones follow from.
    pub executions: Vec<Execution>,
}

impl From<f64> for Score {
    fn from(value: f64) -> Self {
        Self { value, ..Self::default() }
    }
}

impl From<bool> for Score {
    /// 1 for right, 0 for wrong.
    fn from(right: bool) -> Self {
        f64::from(right).into()
    }
}

impl Score {
    /// The largest magnitude of a score. Sums over groups and their squares stay finite, also in single precision where they are divided.
    pub const LARGEST: f64 = 1e30;

    /// The reward with those of the tokens.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.value + self.token_values.iter().copied().map(f64::from).sum::<f64>()
    }

    /// The same with another score added: parts of one name are added, labels of one name replaced.
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

    /// The same, if it and its parts are numbers that can be trained on.
    ///
    /// # Errors
    /// If a part is not finite, or the score is beyond [`LARGEST`](Self::LARGEST).
    pub(crate) fn finite(self) -> Result<Self, RewardError> {
        let total = self.total();
        let parts = self.components.iter().map(|(name, value)| (name.as_str(), *value));
        let mut all = std::iter::once(("score", total)).chain(parts);
        if let Some((name, found)) = all.find(|(_, value)| !value.is_finite()) {
            let reason = format_args!("`{name}`: expected a finite number, found {found}");
            return Err(RewardError::fatal(reason));
        }
        if total.abs() > Self::LARGEST {
            let largest = Self::LARGEST;
            let reason = format_args!(
                "`score`: expected a number from -{largest:e} to {largest:e}, found {total:e}"
            );
            return Err(RewardError::fatal(reason));
        }
        Ok(self)
    }

    /// The same without [secrets](crate::secret) in names and labels, which whoever scores may have had from anywhere.
    pub(crate) fn redacted(self) -> Self {
        let text = |text: String| redact_known(&text).into_owned();
        let components = self.components.into_iter().map(|(name, value)| (text(name), value));
        let labels = self.labels.into_iter().map(|(name, label)| (text(name), text(label)));
        Self { components: components.collect(), labels: labels.collect(), ..self }
    }

    /// The same, if it is [finite](Self::finite), with a value for each token of the response or none.
    pub(crate) fn checked(self, sample: &Sample) -> Result<Self, RewardError> {
        let (values, tokens) = (self.token_values.len(), sample.tokens());
        if values > 0 && tokens > 0 && values != tokens as usize {
            return Err(RewardError::fatal(format_args!(
                "`token_values`: expected one for each of {tokens} tokens, found {values}"
            )));
        }
        self.finite()
    }

    /// The same, with a part.
    #[must_use]
    pub fn component(mut self, name: &str, value: f64) -> Self {
        self.components.insert(name.to_owned(), value);
        self
    }

    /// The same, with a label.
    #[must_use]
    pub fn label(mut self, name: &str, value: impl Into<String>) -> Self {
        self.labels.insert(name.to_owned(), value.into());
        self
    }
}
