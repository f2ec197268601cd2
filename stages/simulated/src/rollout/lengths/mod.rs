//! Length models, which determine the lengths of simulated responses.
//!
//! The traits of a prompt depend on a seed and its dataset row. The length of a response depends on these traits and on its [`SampleId`].
//! Neither depends on the other responses or on the order of the calls.

mod correlation_estimate;
mod empirical;
mod pool;
mod population;
#[cfg(test)]
mod tests;
mod trace;
mod two_mode;

pub use correlation_estimate::CorrelationEstimate;
pub use empirical::{Empirical, EmpiricalConfig, EmpiricalDomain};
pub use population::{LogNormal, PassRate, PopulationConfig};
pub(crate) use rollpacker_stages::draw::{Draw, correlated, normal_cdf};
pub use trace::{MIN_RECORDED_RESPONSES, Recorded, Trace, TraceConfig, TraceRecord};
pub use two_mode::{TwoMode, TwoModeConfig, TwoModeDomain};

use std::sync::Arc;

use rollpacker_dataflow::step::SampleId;
use serde::{Deserialize, Serialize};

/// The traits of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptTraits {
    /// The kind of task, such as `math`.
    pub domain: Arc<str>,
    /// Number of tokens of the prompt.
    pub prompt_length: u32,
    /// Probability that a response is correct.
    pub pass_rate: f64,
}

/// A model of prompt traits and response lengths.
///
/// # Contract
/// The same arguments give the same result. A response has at least one token and at most [`cap`](Self::cap) tokens.
///
/// # Example
/// ```
/// use rollpacker_dataflow::step::SampleId;
/// use rollpacker_simulated::rollout::lengths::{LengthModel, PromptTraits, response_beyond};
///
/// /// Responses of 100 tokens per sample, and twice as many at each further draw.
/// struct Growing;
///
/// impl LengthModel for Growing {
///     fn prompt(&self, _row: u64) -> PromptTraits {
///         PromptTraits { domain: "math".into(), prompt_length: 50, pass_rate: 0.5 }
///     }
///
///     fn response(&self, _row: u64, id: SampleId, draw: u32) -> u32 {
///         let tokens = 100_u32.saturating_mul(id.sample + 1);
///         tokens.saturating_mul(2_u32.saturating_pow(draw)).min(self.cap())
///     }
///
///     fn cap(&self) -> u32 {
///         1000
///     }
/// }
///
/// let id = SampleId { sample: 1, ..SampleId::default() };
/// assert_eq!(Growing.response(7, id, 0), 200);
/// // A response that was stopped after 300 tokens ends with the first draw that is longer.
/// assert_eq!(response_beyond(&Growing, 7, id, 300), 400);
/// ```
pub trait LengthModel: Send + Sync {
    /// Returns the traits of the prompt in dataset row `row`.
    fn prompt(&self, row: u64) -> PromptTraits;

    /// Returns the number of tokens of the response `id` to the prompt in `row`, as the `draw`-th draw from its distribution, from 0.
    fn response(&self, row: u64, id: SampleId, draw: u32) -> u32;

    /// Returns the maximum length of a response; a response of this length was cut.
    fn cap(&self) -> u32;
}

/// Maximum number of draws until a response is longer than the part that was kept. After that it is assumed to reach the cap.
const MAX_DRAWS: u32 = 512;

/// Returns the final number of tokens of a response that already has `kept` tokens. The number is drawn from the part of the distribution
/// above `kept`. It is the cap if no such length was drawn, or `kept + 1` if the response has already reached the cap.
#[must_use]
pub fn response_beyond(model: &dyn LengthModel, row: u64, id: SampleId, kept: u32) -> u32 {
    let draws = if kept < model.cap() { 0..MAX_DRAWS } else { 0..0 };
    let longer = draws.map(|draw| model.response(row, id, draw)).find(|length| *length > kept);
    longer.unwrap_or(model.cap().max(kept.saturating_add(1)))
}

/// The reason why lengths cannot be drawn.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LengthModelError {
    /// A number is out of bounds.
    #[error("lengths: `{field}`: expected {expected}, found {found}")]
    Field {
        /// The name of the field, with its domain if it belongs to one.
        field: String,
        /// The allowed values.
        expected: &'static str,
        /// The value that was found.
        found: String,
    },
    /// The list with this name is empty: `domains` or `trace`.
    #[error("lengths: `{0}` is empty")]
    Empty(&'static str),
}

/// Returns an error for a field unless `holds`.
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

/// Maximum of a median or percentile in a configuration, in tokens.
const MAX_TOKENS: f64 = 1e9;

/// Maximum spread in a configuration: of lengths, the standard deviation of the logarithm; of pass rates, the factor of the difficulty. At
/// 10, most drawn lengths are already the minimum or the maximum.
const MAX_SPREAD: f64 = 10.0;

/// A length model, as written in a recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "snake_case")]
pub enum LengthsConfig {
    /// Two log-normal modes.
    TwoMode(TwoModeConfig),
    /// A table of percentiles.
    Empirical(EmpiricalConfig),
}

impl LengthsConfig {
    /// Builds the model. It draws by `seed` and cuts responses at `cap` tokens.
    ///
    /// # Errors
    /// Returns an error if a number is out of bounds or there are no domains.
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

/// Minimum length of a drawn response, in tokens.
const MIN_RESPONSE_TOKENS: u32 = 8;

/// Converts a drawn length to a number of tokens of at most `cap`, and at least `MIN_RESPONSE_TOKENS` if `cap` allows it.
fn tokens(drawn: f64, cap: u32) -> u32 {
    (drawn as u32).clamp(MIN_RESPONSE_TOKENS.min(cap), cap)
}
