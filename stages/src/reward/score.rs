//! What a reward says of a response.

use std::collections::BTreeMap;

use super::limits::Execution;

/// What a reward says of a response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// The reward.
    pub value: f64,
    /// Its parts by name; averaged into the metrics `reward/<name>`.
    pub components: BTreeMap<String, f64>,
    /// What is to be read of it, by name: an outcome, the answer that was found. Written beside the response.
    pub labels: BTreeMap<String, String>,
    /// A reward for each token of the response, beside the value; empty for none.
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
