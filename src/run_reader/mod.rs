//! Readers of a run folder, which work while the run writes it, after it was killed and after it has ended.

mod error;
mod metrics;
mod rollouts;
mod settings;

pub(crate) use self::error::ReadError;
pub(crate) use self::metrics::{MetricsFile, MetricsSink, StepMetrics};
pub(crate) use self::rollouts::{Rollouts, dialogue, number, rollout_steps, text};
#[cfg(feature = "view")]
pub(crate) use self::settings::read_optional;
pub(crate) use self::settings::{settings, summary};
