//! What a reward says of a response.

use std::collections::BTreeMap;

use super::limits::Execution;
use super::{RewardError, Sample};

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
    pub(crate) fn finite(self) -> Result<Self, RewardError> {
        let parts = self.components.iter().map(|(name, value)| (name.as_str(), *value));
        let mut all = std::iter::once(("score", self.total())).chain(parts);
        let Some((name, found)) = all.find(|(_, value)| !value.is_finite()) else {
            return Ok(self);
        };
        let reason = format_args!("`{name}`: expected a finite number, found {found}");
        Err(RewardError::fatal(reason))
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
