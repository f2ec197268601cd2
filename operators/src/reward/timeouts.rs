//! Adaptive time limits of test cases (RollPacker, section 4.3).
//!
//! `T = min(max(T_min, slack * T_anchor), T_max)`, where `T_anchor` is the longest correct execution of the case. Until a correct execution
//! is known, `T_anchor` is the reference time of the dataset; without a reference time, the limit is `T_max`. Anchors are learned as scores
//! arrive, so that the other responses of the group benefit immediately. The ledger keeps the anchors as well and reports them at the end
//! of each step ([`crate::ledger::anchors`]).
//!
//! # Measurement
//! Limits and execution times are seconds as charged by the sandbox: time spent computing or sleeping counts, time spent waiting for a busy
//! processor does not. An anchor therefore does not depend on the load of the machine, and neither does the set of executions that are
//! killed.
//!
//! # Audits
//! A limit that kills an execution hides its result. A share of the responses is therefore executed up to `T_max`. If such an execution
//! turns out to be correct, it is a wrong kill. It still counts as killed at its limit, but raises the anchor. The choice of audited
//! responses depends only on seed and response, in live and simulated runs. The share of wrong kills among the audited responses therefore
//! estimates the share among all responses. An audited execution delays its score until it ends, up to `T_max`, and so delays the step. In
//! the simulated 7B job of the paper, where 5 % of the executions hang, one audit in a thousand responses costs 0.6 s of a step of 100 s.
//! One audit in a hundred costs 3 s.
//!
//! # Determinism
//! An anchor is a maximum, so the state does not depend on the order of executions, nor on duplicates. The limits of a response follow from
//! the anchors that are known when its scoring begins. In each activation, the reward operator first requests the limits of all responses
//! whose scoring begins. It then reports the executions that arrived. In virtual time a run therefore repeats bit for bit. In a live run,
//! the order of executions depends on the machine, and so do the limits.

use rollpacker_stages::documented;
use std::collections::BTreeMap;
use std::sync::Arc;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::draw::Draw;
use rollpacker_stages::reward::{Execution, LimitRule, Limits};
use serde::{Deserialize, Serialize};

use super::TimeLimit;
use crate::option_error::{OptionError, within};

documented! {
    /// The settings for time limits of test cases.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(
        default,
        deny_unknown_fields,
        expecting = "a table of `mode`, `min_s`, `max_s`, `slack` and `audit_share`"
    )]
    pub struct LimitOptions {
        /// `fixed` for constant limits, `adaptive` for limits that follow the longest correct execution. Default: `adaptive`.
        pub mode: LimitMode,
        /// The minimum adaptive limit, in seconds. Above 0, at most `max_s`. Default: 2.
        pub min_s: f64 [seconds],
        /// The fixed limit, in seconds. In adaptive mode, the maximum limit, and the limit of a test case without a known correct execution
        /// or reference time. Above 0, at most 86400. Default: 30.
        pub max_s: f64 [seconds],
        /// The factor on the longest correct execution, from 1 to 1000. Default: 1.5.
        pub slack: f64,
        /// The share of the responses that are audited: their executions run up to `max_s`. In [0, 1]. Default: 0.001.
        pub audit_share: f64,
    }
}

/// The rule for the time limit of a test case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitMode {
    /// The limit is constant.
    Fixed,
    /// The limit follows the longest correct execution known.
    Adaptive,
}

/// Separates the random draws of audits from other draws with the same seed.
const AUDIT_SALT: u64 = u64::from_be_bytes(*b"an audit");

/// The maximum of `max_s`, in seconds: one day. Sums of such times fit into a clock of nanoseconds.
const MAX_S: f64 = 86_400.0;

impl Default for LimitOptions {
    /// Returns adaptive limits from 2 s to 30 s, with 1.5 times the longest correct execution, as in the paper. One response in a thousand
    /// is audited.
    fn default() -> Self {
        let LimitRule { min, max, slack } = LimitRule::default();
        Self {
            mode: LimitMode::Adaptive,
            min_s: min.as_secs_f64(),
            max_s: max.as_secs_f64(),
            slack,
            audit_share: 0.001,
        }
    }
}

impl LimitOptions {
    /// Returns the options if they are in range.
    ///
    /// # Errors
    /// If an option is out of range; the error names it.
    pub fn validated(self) -> Result<Self, OptionError> {
        let Self { min_s: min, max_s: max, slack, audit_share: share, .. } = self;
        let adapts = self.mode == LimitMode::Adaptive;
        let max_is_in = max > 0.0 && max <= MAX_S;
        within("max_s", max, max_is_in, "seconds above 0, at most 86400")?;
        let min_is_in = min > 0.0 && (min <= max || !adapts);
        within("min_s", min, min_is_in, "seconds above 0, at most `max_s`")?;
        within("slack", slack, (1.0..=1e3).contains(&slack), "a number from 1 to 1000")?;
        within("audit_share", share, (0.0..=1.0).contains(&share), "a number in [0, 1]")?;
        Ok(self)
    }

    /// Returns limits that do not depend on earlier executions, for use outside of training. In adaptive mode, they follow the reference
    /// times of the dataset. No execution is audited.
    ///
    /// # Errors
    /// If an option is out of range; the error names it.
    pub fn fixed_limits(self) -> Result<Limits, OptionError> {
        Ok(Limits { rule: self.validated()?.rule(), ..Limits::default() })
    }

    fn rule(&self) -> LimitRule {
        let max = Nanos::from_secs_f64(self.max_s);
        match self.mode {
            LimitMode::Fixed => LimitRule { min: max, max, slack: self.slack },
            LimitMode::Adaptive => {
                let min = Nanos::from_secs_f64(self.min_s);
                LimitRule { min, max, slack: self.slack }
            }
        }
    }
}

/// The time limits of the test cases of each dataset row. In [adaptive mode](LimitMode::Adaptive), they follow the longest correct
/// execution of each case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdaptiveLimits {
    rule: LimitRule,
    audit_share: f64,
    seed: u64,
    /// The longest correct execution of each case, by row. Rows without correct executions are absent.
    anchors: BTreeMap<u64, Arc<[Option<Nanos>]>>,
}

impl AdaptiveLimits {
    /// Creates limits without known executions. `seed` selects the responses that are audited.
    ///
    /// # Errors
    /// If an option is out of range.
    pub fn new(options: LimitOptions, seed: u64) -> Result<Self, OptionError> {
        let rule = options.validated()?.rule();
        Ok(Self { rule, audit_share: options.audit_share, seed, anchors: BTreeMap::new() })
    }

    /// Returns `true` if a response is audited, so that its executions may exceed their limits.
    fn audits(&self, id: SampleId) -> bool {
        Draw::new(self.seed).of(AUDIT_SALT).of_sample(id).uniform() < self.audit_share
    }

    /// Records a correct execution of test case `case` of row `row`, which took `took`.
    fn learn(&mut self, row: u64, case: u32, took: Nanos) {
        let anchors = self.anchors.entry(row).or_default();
        let case = case as usize;
        if case >= anchors.len() {
            let more = std::iter::repeat_n(None, case + 1 - anchors.len());
            *anchors = anchors.iter().copied().chain(more).collect();
        }
        if anchors[case] < Some(took) {
            Arc::make_mut(anchors)[case] = Some(took);
        }
    }
}

impl TimeLimit for AdaptiveLimits {
    fn limits(&mut self, id: SampleId, row: u64) -> Limits {
        Limits {
            rule: self.rule,
            anchors: self.anchors.get(&row).cloned().unwrap_or_default(),
            audit: self.audits(id),
        }
    }

    fn executed(&mut self, _: SampleId, row: u64, executions: &[Execution]) {
        for Execution { case, took, .. } in executions.iter().filter(|it| it.correct) {
            self.learn(row, *case, *took);
        }
    }

    fn set_anchor(&mut self, row: u64, case: u32, longest: Nanos) {
        self.learn(row, case, longest);
    }
}

#[cfg(test)]
mod tests;
