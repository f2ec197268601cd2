//! Adaptive time limits of test cases (RollPacker, section 4.3).
//!
//! `T = min(max(T_min, slack * T_anchor), T_max)`, where `T_anchor` is the longest correct execution of the case; until there is one,
//! the reference time of its dataset stands for it, and without one the limit is `T_max`. Anchors are learned as scores arrive, so that
//! the siblings of a response profit at once; the ledger keeps them too, and tells what is true at the end of each step
//! ([`crate::ledger::anchors`]).
//!
//! # What is measured
//! Limits and executions are seconds as the sandbox charges them: computing and sleeping count, and waiting for a processor that others use
//! does not. So an anchor does not depend on what else the machine did, and neither does who is ended by it.
//!
//! # Audits
//! A limit that ends an execution hides what it would have become. A share of the responses is therefore let run on to `T_max`: one that
//! would have been right is a wrong kill. It still counts as ended at its limit, but raises the anchor. Which responses are audited
//! follows from seed and response alone, the same live and simulated, so the share of wrong kills among them is that among all. An
//! audited execution holds its score back until it ends, up to `T_max`, and so the step: in the simulated 7B job of the paper, where 5 % of
//! the executions hang, one audit in a thousand responses costs 0.6 s of a step of 100 s, one in a hundred 3 s.
//!
//! # Determinism
//! An anchor is a maximum, so the state after some executions does not depend on their order, nor on hearing of one twice. The limits of
//! a response are those known when its scoring begins: the reward operator asks for the limits of all that begins in an activation before
//! it tells what has arrived in it. In virtual time a run therefore repeats bit for bit; live, which executions came first is up to the
//! machine, and the limits with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::draw::Draw;
use rollpacker_stages::reward::{Execution, LimitRule, Limits};
use serde::{Deserialize, Serialize};

use super::Limit;

/// How time limits of test cases are set, as a recipe writes it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a table of `mode`, `min_s`, `max_s`, `slack` and `audit_share`"
)]
pub struct LimitOptions {
    /// Whether limits follow what correct executions took.
    pub mode: Timeout,
    /// The least adaptive limit, seconds.
    pub min_s: f64,
    /// The fixed limit, seconds; of adaptive ones the greatest, and that of a case of which nothing is known.
    pub max_s: f64,
    /// Factor on the longest correct execution, at least 1.
    pub slack: f64,
    /// Share of the responses whose executions run on to the greatest limit, in [0, 1].
    pub audit_share: f64,
}

/// How long a test case is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timeout {
    /// Always as long.
    Fixed,
    /// By the longest correct execution known.
    Adaptive,
}

/// An option of time limits is out of its bounds.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{key}` is {found}, expected {expected}")]
pub struct LimitError {
    /// The option.
    pub key: &'static str,
    /// What was given.
    pub found: f64,
    /// What it may be.
    pub expected: &'static str,
}

/// Tells the draws of audits from others of the same seed.
const AUDIT: u64 = u64::from_be_bytes(*b"an audit");

/// The longest `T_max`, a day: what a clock of nanoseconds can add up.
const LONGEST_S: f64 = 86_400.0;

impl Default for LimitOptions {
    /// Adaptive, 2 s to 30 s, 1.5 times the longest correct execution, as in the paper; one response in a thousand is audited.
    fn default() -> Self {
        let LimitRule { min, max, slack } = LimitRule::default();
        Self {
            mode: Timeout::Adaptive,
            min_s: min.as_secs_f64(),
            max_s: max.as_secs_f64(),
            slack,
            audit_share: 0.001,
        }
    }
}

impl LimitOptions {
    /// The options, if they are in range.
    ///
    /// # Errors
    /// Names the option that is not.
    pub fn validated(self) -> Result<Self, LimitError> {
        let within = |key, found: f64, is_in: bool, expected| match is_in {
            true => Ok(()),
            false => Err(LimitError { key, found, expected }),
        };
        let Self { min_s: min, max_s: max, slack, audit_share: share, .. } = self;
        let adapts = self.mode == Timeout::Adaptive;
        let max_is_in = max > 0.0 && max <= LONGEST_S;
        within("max_s", max, max_is_in, "seconds above 0, at most 86400")?;
        let min_is_in = min > 0.0 && (min <= max || !adapts);
        within("min_s", min, min_is_in, "seconds above 0, at most `max_s`")?;
        within("slack", slack, (1.0..=1e3).contains(&slack), "a number from 1 to 1000")?;
        within("audit_share", share, (0.0..=1.0).contains(&share), "a number in [0, 1]")?;
        Ok(self)
    }

    /// The limits where nothing is learned: outside of training.
    ///
    /// # Errors
    /// Names the option that is out of its bounds.
    pub fn unlearned(self) -> Result<Limits, LimitError> {
        Ok(Limits { rule: self.validated()?.rule(), ..Limits::default() })
    }

    fn rule(&self) -> LimitRule {
        let max = Nanos::from_secs_f64(self.max_s);
        match self.mode {
            Timeout::Fixed => LimitRule { min: max, max, slack: self.slack },
            Timeout::Adaptive => {
                let min = Nanos::from_secs_f64(self.min_s);
                LimitRule { min, max, slack: self.slack }
            }
        }
    }
}

/// The limits of the test cases of each dataset row, and what they follow from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeouts {
    rule: LimitRule,
    audit_share: f64,
    seed: u64,
    /// The longest correct execution of each case, by row. Rows without any are not in it.
    anchors: BTreeMap<u64, Arc<[Option<Nanos>]>>,
}

impl Timeouts {
    /// Nothing learned; `seed` decides what is audited.
    ///
    /// # Errors
    /// If an option is out of its bounds.
    pub fn new(options: LimitOptions, seed: u64) -> Result<Self, LimitError> {
        let rule = options.validated()?.rule();
        Ok(Self { rule, audit_share: options.audit_share, seed, anchors: BTreeMap::new() })
    }

    /// The longest correct execution of each case of a row, in the order of the cases.
    #[must_use]
    pub fn anchors_of(&self, row: u64) -> &[Option<Nanos>] {
        self.anchors.get(&row).map_or(&[], |anchors| anchors)
    }

    /// Whether the executions of a response run on beyond their limits.
    fn audits(&self, id: SampleId) -> bool {
        Draw::new(self.seed).of(AUDIT).of_sample(id).uniform() < self.audit_share
    }

    /// Takes in a correct execution.
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

impl Limit for Timeouts {
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

    fn anchored(&mut self, row: u64, case: u32, longest: Nanos) {
        self.learn(row, case, longest);
    }
}

#[cfg(test)]
mod tests;
