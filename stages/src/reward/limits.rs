//! Time limits of test cases.

use std::sync::Arc;

use rollpacker_dataflow::clock::Nanos;
use serde::{Deserialize, Serialize};

/// The rule that sets the time limit of a test case from its longest correct execution (RollPacker, section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitRule {
    /// The minimum limit. Default: 2 s.
    pub min: Nanos,
    /// The maximum limit, which also applies to cases without a known execution time. Default: 30 s.
    pub max: Nanos,
    /// The factor applied to the longest correct execution. Default: 1.5.
    pub slack: f64,
}

impl Default for LimitRule {
    /// Returns 2 s, 30 s and 1.5, as in the paper.
    fn default() -> Self {
        Self { min: Nanos(2_000_000_000), max: Nanos(30_000_000_000), slack: 1.5 }
    }
}

impl LimitRule {
    /// Returns the limit of a test case whose longest correct execution took `anchor`: `slack * anchor`, but at least `min` and at most
    /// `max`. Without an anchor, the limit is `max`.
    #[must_use]
    pub fn limit(&self, anchor: Option<Nanos>) -> Nanos {
        let scaled = |anchor: Nanos| Nanos::from_secs_f64(self.slack * anchor.as_secs_f64());
        anchor.map_or(self.max, |anchor| scaled(anchor).max(self.min).min(self.max))
    }
}

/// The limits of the test cases of one prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// The rule that sets a limit from an anchor.
    pub rule: LimitRule,
    /// The longest correct execution of each case so far, in the order of the cases. `None` and missing entries are unknown.
    pub anchors: Arc<[Option<Nanos>]>,
    /// `true` if an execution continues past its limit up to the maximum, to measure whether ending it at its limit would have been wrong.
    /// The execution still counts as ended at its limit.
    pub audit: bool,
}

impl Limits {
    /// Returns limits that are `limit` for every case.
    #[must_use]
    pub fn fixed(limit: Nanos) -> Self {
        let rule = LimitRule { min: limit, max: limit, ..LimitRule::default() };
        Self { rule, ..Self::default() }
    }

    /// Returns the limit of a case. `reference` is the duration stated by the dataset; it serves as the anchor until a correct execution is
    /// known.
    #[must_use]
    pub fn of(&self, case: usize, reference: Option<Nanos>) -> Nanos {
        self.rule.limit(self.anchors.get(case).copied().flatten().or(reference))
    }

    /// Returns the time after which an execution of the case is ended: its limit, or the maximum limit if `audit` is `true`.
    #[must_use]
    pub fn max_run_time(&self, case: usize, reference: Option<Nanos>) -> Nanos {
        if self.audit { self.rule.max } else { self.of(case, reference) }
    }

    /// Returns the record of an execution of the case that took `took`. `reference` is as in [`of`](Self::of); `correct` is `true` if the
    /// execution ended with the right result.
    #[must_use]
    pub fn execution(
        &self,
        case: usize,
        reference: Option<Nanos>,
        took: Nanos,
        correct: bool,
    ) -> Execution {
        let limit = self.of(case, reference);
        let audited = self.max_run_time(case, reference) > limit;
        let case = u32::try_from(case).unwrap_or(u32::MAX);
        Execution { case, took, limit, correct, audited }
    }
}

/// An execution of a test case, from which limits are learned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Execution {
    /// The index of the test case within the prompt, from 0.
    pub case: u32,
    /// The duration, without the time spent waiting for a processor. At least `limit` if the execution was ended there.
    pub took: Nanos,
    /// The limit at the time of the execution.
    pub limit: Nanos,
    /// `true` if the execution ended with the right result, including after its limit in an audit.
    pub correct: bool,
    /// `true` if the execution was allowed to run past its limit.
    pub audited: bool,
}

impl Execution {
    /// Returns `true` if the execution was ended at its limit, or would have been without an audit.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        self.took > self.limit || (self.took == self.limit && !self.correct)
    }

    /// Returns `true` if an audit found the limit to be too short: the execution ended with the right result after its limit.
    #[must_use]
    pub fn is_wrongly_killed(&self) -> bool {
        self.audited && self.is_killed() && self.correct
    }

    /// Returns `true` if the execution counts as passed: it ended within its limit with the right result.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.correct && !self.is_killed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_scaled_and_bounded() {
        let limits = Limits {
            anchors: [Some(0.5), None, Some(4.0), Some(100.0)]
                .map(|anchor| anchor.map(Nanos::from_secs_f64))
                .into(),
            ..Limits::default()
        };
        let limit =
            |case, reference: Option<f64>| limits.of(case, reference.map(Nanos::from_secs_f64));
        let seconds = Nanos::from_secs_f64;
        let unaided = [0, 1, 2, 3, 4].map(|case| limit(case, None));
        assert_eq!(unaided, [2.0, 30.0, 6.0, 30.0, 30.0].map(seconds));
        assert_eq!([0, 1, 4].map(|case| limit(case, Some(8.0))), [2.0, 12.0, 12.0].map(seconds));
    }

    #[test]
    fn an_audit_runs_to_the_greatest_limit() {
        let limits = Limits { anchors: [Some(Nanos(1))].into(), audit: true, ..Limits::default() };
        assert_eq!(limits.max_run_time(0, None), LimitRule::default().max);
        assert_eq!(limits.of(0, None), LimitRule::default().min);
        let late = limits.execution(0, None, Nanos(2_000_000_001), true);
        assert!(late.audited && late.is_killed() && late.is_wrongly_killed() && !late.is_right());
        let at_the_limit = limits.execution(0, None, Nanos(2_000_000_000), true);
        assert!(at_the_limit.is_right());
        let unknown = limits.execution(1, None, LimitRule::default().max, false);
        assert!(!unknown.audited && unknown.is_killed() && !unknown.is_wrongly_killed());
    }
}
