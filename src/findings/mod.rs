//! Findings on why a run does not learn, from the metrics of its first and its last steps.
//!
//! `findings` judges a run that was read from its folder. `FindingMonitor` judges a run while it trains, with the rules that have
//! `warns_after`.

#[cfg(feature = "torch")]
mod monitor;
mod recent;
mod rule;

#[cfg(feature = "torch")]
pub(crate) use self::monitor::FindingMonitor;
#[cfg(feature = "cli")]
pub(crate) use self::recent::MetricLookup;
#[cfg(feature = "view")]
pub(crate) use self::recent::StepWindow;
pub(crate) use self::rule::Finding;
#[cfg(feature = "cli")]
pub(crate) use self::rule::{Severity, findings};
