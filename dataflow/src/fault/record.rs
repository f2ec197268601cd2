//! The record of an error.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::kind::FaultKind;
use super::origin::{HasOrigin, Origin};
use crate::step::{PromptId, Step};

/// An error of an operator, with the step, prompt and response that it concerns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The step at which the operator failed. `None` for a fault that belongs to no step, and until the receiver of the error row sets this
    /// field.
    pub step: Option<Step>,
    /// The name of the operator that failed. On several workers, the worker may follow, as in `reward on worker 1`.
    pub operator: String,
    /// The origin of the error, which decides if a retry can help.
    pub origin: Origin,
    /// The kind of the fault, which decides the exit status of every process of the run.
    #[serde(default)]
    pub kind: FaultKind,
    /// The prompt that the fault concerns, if any.
    pub prompt: Option<PromptId>,
    /// The index of the response among the responses to the prompt, from 0; `None` if the fault does not concern a single response.
    pub sample: Option<u32>,
    /// The text of the error; `Display` adds the operator, the step and the ids.
    pub message: String,
}

impl Fault {
    /// Creates a fault of the kind [`FaultKind::Failure`] that concerns no particular prompt.
    #[must_use]
    pub fn new(operator: &str, origin: Origin, message: impl Into<String>) -> Self {
        Self {
            step: None,
            operator: operator.to_owned(),
            origin,
            kind: FaultKind::Failure,
            prompt: None,
            sample: None,
            message: message.into(),
        }
    }

    /// Creates the fault of an operator from an error.
    #[must_use]
    pub fn of(operator: &str, error: &(impl HasOrigin + ?Sized)) -> Self {
        Self { kind: error.kind(), ..Self::new(operator, error.origin(), error.to_string()) }
    }

    /// Sets the prompt and the index of the response that the fault concerns.
    #[must_use]
    pub fn about(mut self, prompt: PromptId, sample: u32) -> Self {
        (self.prompt, self.sample) = (Some(prompt), Some(sample));
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operator)?;
        if let Some(step) = self.step {
            write!(f, ", step {}", step.ordinal())?;
        }
        if let Some(prompt) = self.prompt {
            write!(f, ", prompt {prompt}")?;
        }
        if let Some(sample) = self.sample {
            write!(f, ", sample {sample}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for Fault {}

impl HasOrigin for Fault {
    fn origin(&self) -> Origin {
        self.origin
    }

    fn kind(&self) -> FaultKind {
        self.kind
    }
}
