//! The finding of a check.

use super::report::{Check, CheckReport, CheckResult, Figure};
use crate::canary::CanaryFigures;
use crate::http::ServerError;

/// The result of a check, with details in words and measured values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    result: CheckResult,
    details: String,
    figures: Vec<Figure>,
}

/// The finding with which a check ends. `Err` has a finding as well, so that `?` ends the check.
pub(super) type Checked = Result<Finding, Finding>;

impl Finding {
    pub(super) fn passed(details: impl Into<String>) -> Self {
        Self::new(CheckResult::Passed, details)
    }

    pub(super) fn failed(details: impl Into<String>) -> Self {
        Self::new(CheckResult::Failed, details)
    }

    pub(super) fn missing(details: impl Into<String>) -> Self {
        Self::new(CheckResult::Missing, details)
    }

    pub(super) fn unchecked(details: impl Into<String>) -> Self {
        Self::new(CheckResult::NotChecked, details)
    }

    pub(super) fn not_run() -> Self {
        Self::unchecked("not run")
    }

    /// Returns a passed finding if `passes`, or else a failed one.
    pub(super) fn passed_if(passes: bool, details: impl Into<String>) -> Self {
        Self::new(if passes { CheckResult::Passed } else { CheckResult::Failed }, details)
    }

    fn new(result: CheckResult, details: impl Into<String>) -> Self {
        Self { result, details: details.into(), figures: Vec::new() }
    }

    pub(super) fn figure(mut self, name: &'static str, value: f64) -> Self {
        self.figures.push(Figure { name, value });
        self
    }

    pub(super) fn with_scores(self, figures: &CanaryFigures) -> Self {
        self.figure("max", figures.max).figure("mean", figures.mean).figure("kl", figures.kl)
    }

    pub(super) fn has_passed(&self) -> bool {
        self.result == CheckResult::Passed
    }

    pub(super) fn report(self, check: Check) -> CheckReport {
        let advice = match self.result {
            CheckResult::Passed => None,
            CheckResult::NotChecked => {
                Some("see the other checks and the details, and probe again")
            }
            CheckResult::Missing | CheckResult::Failed => Some(check.advice()),
        };
        // Texts of the server may have several lines.
        let mut details = self.details.replace(['\n', '\r'], " ");
        if !self.figures.is_empty() {
            let figures: Vec<_> = self.figures.iter().map(format_figure).collect();
            details = format!("{details} ({})", figures.join(", "));
        }
        let (needed, figures) = (check.is_needed(), self.figures);
        CheckReport { check, result: self.result, needed, figures, details, advice }
    }
}

fn format_figure(Figure { name, value }: &Figure) -> String {
    let is_plain = *value == 0.0 || (1e-3..1e6).contains(&value.abs());
    if is_plain {
        // At most four decimals, without zeros at the end.
        format!("{name} {}", (value * 1e4).round() / 1e4)
    } else {
        format!("{name} {value:.1e}")
    }
}

impl From<ServerError> for Finding {
    fn from(error: ServerError) -> Self {
        let result = if error.is_missing() { CheckResult::Missing } else { CheckResult::Failed };
        Self::new(result, error.to_string())
    }
}
