//! How long simulated responses are.
//!
//! What is known of a prompt follows from a seed and its dataset row, and the length of a response from these and its
//! [`SampleId`]: the same whatever else runs, in whatever order it is asked for.

mod empirical;
mod likeness;
mod pool;
mod population;
#[cfg(test)]
mod tests;
mod trace;
mod two_mode;

pub(crate) use crate::draw::{Draw, correlated, normal_cdf};
pub use empirical::{Empirical, EmpiricalConfig, EmpiricalDomain};
pub use likeness::Likeness;
pub use population::{LogNormal, PassRate, PopulationConfig};
pub use trace::{ENOUGH, Recorded, Trace, TraceConfig, TraceRecord};
pub use two_mode::{TwoMode, TwoModeConfig, TwoModeDomain};

use std::sync::Arc;

use rollpacker_dataflow::step::SampleId;
use serde::{Deserialize, Serialize};

/// What is known of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptTraits {
    /// What kind of task it is.
    pub domain: Arc<str>,
    /// Tokens of the prompt.
    pub prompt_length: u32,
    /// Chance that a response to it is right.
    pub pass_rate: f64,
}

/// Something that says how long responses are.
///
/// # Contract
/// The same arguments give the same answer. A response has at least one token and at most [`cap`](Self::cap).
pub trait LengthModel: Send + Sync {
    /// What is known of the prompt in dataset row `row`.
    fn prompt(&self, row: u64) -> PromptTraits;

    /// Tokens of the response `id` to the prompt in `row`, by the `draw`-th draw from its distribution, from 0.
    fn response(&self, row: u64, id: SampleId, draw: u32) -> u32;

    /// The longest response; one of this length was cut.
    fn cap(&self) -> u32;
}

/// Draws until a response is longer than what is there of it; after so many it is taken to reach the cap.
const DRAWS: u32 = 512;

/// Tokens of a response of which `kept` are there already: drawn from those of its distribution that are longer.
#[must_use]
pub fn response_beyond(model: &dyn LengthModel, row: u64, id: SampleId, kept: u32) -> u32 {
    let draws = if kept < model.cap() { 0..DRAWS } else { 0..0 };
    let longer = draws.map(|draw| model.response(row, id, draw)).find(|length| *length > kept);
    longer.unwrap_or(model.cap().max(kept.saturating_add(1)))
}

/// Why lengths cannot be drawn.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LengthModelError {
    /// A number is out of its bounds.
    #[error("lengths: `{field}`: expected {expected}, found {found}")]
    Field {
        /// Its name, with the domain where it belongs to one.
        field: String,
        /// The bounds.
        expected: &'static str,
        /// Its value.
        found: String,
    },
    /// There is nothing to draw from.
    #[error("lengths: `{0}` is empty")]
    Empty(&'static str),
}

/// Refuses a number unless `holds`.
fn check(
    holds: bool,
    field: impl FnOnce() -> String,
    expected: &'static str,
    found: impl std::fmt::Debug,
) -> Result<(), LengthModelError> {
    if holds {
        return Ok(());
    }
    Err(LengthModelError::Field { field: field(), expected, found: format!("{found:?}") })
}

/// The greatest length of a response or prompt, tokens.
const LONGEST: f64 = 1e9;

/// The greatest standard deviation of a logarithm: of more, all that is drawn is the shortest or the longest.
const WIDEST: f64 = 10.0;

/// A length model as a recipe writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "snake_case")]
pub enum LengthsConfig {
    /// Two log-normal modes.
    TwoMode(TwoModeConfig),
    /// A table of percentiles.
    Empirical(EmpiricalConfig),
}

impl LengthsConfig {
    /// The model, drawing by `seed`, its responses cut at `cap` tokens.
    ///
    /// # Errors
    /// If a number is out of its bounds.
    pub fn build(
        &self,
        population: &PopulationConfig,
        seed: u64,
        cap: u32,
    ) -> Result<Arc<dyn LengthModel>, LengthModelError> {
        Ok(match self {
            Self::TwoMode(config) => Arc::new(TwoMode::new(config, population, seed, cap)?),
            Self::Empirical(config) => Arc::new(Empirical::new(config, population, seed, cap)?),
        })
    }
}

/// No drawn response is shorter, tokens.
const SHORTEST: u32 = 8;

/// A drawn length as a number of tokens.
fn tokens(drawn: f64, cap: u32) -> u32 {
    (drawn as u32).clamp(SHORTEST.min(cap), cap)
}
