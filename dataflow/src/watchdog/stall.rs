//! Stalls: the report about a graph without progress.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use super::waits::OperatorWaits;
use crate::clock::Nanos;
use crate::fault::origin::Origin;
use crate::fault::record::Fault;
use crate::step::{PromptId, Step};

/// A wait of one operator for one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The name of the operator.
    pub operator: &'static str,
    /// The step for which the operator waits.
    pub step: Step,
    /// The awaited thing, as a noun phrase.
    pub what: Cow<'static, str>,
    /// The time waited so far; the maximum if the operator waits for the same thing several times.
    pub waited: Nanos,
    /// The prompts that the wait concerns, each with the index of a response or with `None` for the whole prompt. Empty if the wait
    /// concerns no prompt in particular.
    pub ids: Vec<(PromptId, Option<u32>)>,
}

/// The report about a graph without progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The time without progress.
    pub idle_time: Nanos,
    /// The waits on this worker, ordered by operators as they were built, then by steps.
    pub waits: Vec<Wait>,
    /// The name of each operator on this worker, with the frontiers of its inputs: `None` for an input that has ended. The list is empty if
    /// the operator has no inputs or has not run yet.
    pub frontiers: Vec<(&'static str, Vec<Option<Step>>)>,
}

impl Stall {
    pub(super) fn of(operators: &[Rc<OperatorWaits>], silent: Nanos, now: Nanos) -> Self {
        Self {
            idle_time: silent,
            waits: operators.iter().flat_map(|operator| waits(operator, now)).collect(),
            frontiers: operators
                .iter()
                .map(|operator| (operator.name, operator.frontiers.borrow().clone()))
                .collect(),
        }
    }

    /// Converts the report to a fault at the earliest awaited step, or without a step if no operator waits. Callers report the fault as a
    /// warning or end the run with it. Its origin is the environment, because the most frequent cause of a stall is a call that hangs.
    #[must_use]
    pub fn fault(&self) -> Fault {
        let step = self.waits.iter().map(|wait| wait.step).min();
        Fault { step, ..Fault::new("watchdog", Origin::Environment, self.to_string()) }
    }

    /// Returns the fault that ends a run which was asked to end after its open step.
    pub(super) fn fault_after_stop(&self) -> Fault {
        let message = format!("the run was asked to end, and its step is stuck: {self}");
        Fault { message, ..self.fault() }
    }
}

fn waits(operator: &OperatorWaits, now: Nanos) -> Vec<Wait> {
    let mut waits: BTreeMap<(Step, Cow<'static, str>), Wait> = BTreeMap::new();
    for set in operator.waits.borrow().iter() {
        for (awaited, (what, since)) in set.borrow().iter() {
            let wait = waits.entry((awaited.step, what.clone())).or_insert_with(|| Wait {
                operator: operator.name,
                step: awaited.step,
                what: what.clone(),
                waited: Nanos(0),
                ids: Vec::new(),
            });
            wait.waited = wait.waited.max(now.since(*since));
            wait.ids.extend(awaited.prompt.map(|prompt| (prompt, awaited.sample)));
        }
    }
    waits.into_values().collect()
}

/// The maximum number of ids that a message lists; the others are counted.
const NAMED: usize = 8;

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operator, step, what, waited, .. } = self;
        write!(f, "{operator}, step {}, has waited {waited} for {what}", step.ordinal())?;
        for (at, (prompt, sample)) in self.ids.iter().take(NAMED).enumerate() {
            write!(f, "{}{prompt}", if at == 0 { ": " } else { ", " })?;
            if let Some(sample) = sample {
                write!(f, ".{sample}")?;
            }
        }
        match self.ids.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no progress for {}: ", self.idle_time)?;
        if self.waits.is_empty() {
            write!(f, "no operator reports what it waits for; the input frontiers are")?;
            for (operator, frontiers) in &self.frontiers {
                let steps: Vec<_> = frontiers
                    .iter()
                    .map(|step| step.map_or("ended".to_owned(), |step| step.ordinal().to_string()))
                    .collect();
                write!(f, " {operator} [{}]", steps.join(", "))?;
            }
        }
        for (at, wait) in self.waits.iter().enumerate() {
            write!(f, "{}{wait}", if at == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}
