//! Anchors: the longest correct execution of each test case, from which time limits are derived, and the results of audits of these limits.
//!
//! The anchor of a case accumulates under a difference type whose addition is the maximum. A case is therefore one record of the
//! arrangement, however often it ran. The executions of a step are reduced before they enter the arrangement, so their cost in the
//! arrangement depends on the number of distinct cases.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{UInt32Array, UInt64Array};
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::differential_dataflow::difference::Semigroup;
use rollpacker_dataflow::differential_dataflow::operators::CountTotal;
use rollpacker_dataflow::differential_dataflow::{AsCollection, VecCollection};
use rollpacker_dataflow::frontier::earliest;
use rollpacker_dataflow::operator::{Operator, Updates};
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::{Capability, Concat};
use rollpacker_stages::reward::Execution;
use rollpacker_stages::train::{Metrics, named_metrics};

use super::anchor_totals::{AnchorTotals, Case, Longest, PART};
use super::by_step::by_step;
use super::fact::{Fact, Sums};
use super::summaries::{self, summarize};
use crate::policy::metrics_batch;
use crate::resume::Resumable;

/// The output of [`anchors()`].
pub struct Anchors<'scope> {
    /// Batches of [`schema::ANCHORS`] with the anchors that changed in a step, emitted when the step is complete. The anchors of a snapshot
    /// from which the run resumes are left out.
    pub changes: BatchStream<'scope>,
    /// Batches of [`schema::METRICS`] about executions, anchors and audits, emitted when a step is complete. A step without executions has
    /// none.
    pub metrics: BatchStream<'scope>,
}

/// Maintains the longest correct execution of each test case, and counts the results of audits. `executions` are batches of
/// [`schema::EXECUTIONS`]; with several workers, they must be routed to the first worker, whose state the snapshots contain.
#[must_use]
pub fn anchors<'scope>(
    executions: BatchStream<'scope>,
    resumable: &Resumable<'scope>,
) -> Anchors<'scope> {
    let ExecutionCollections { longest, audits, metrics } = read(executions, resumable);
    let resumed = resumable.step();
    let anchors = longest.count_total_core::<i64>();
    let changes = by_step(anchors.clone(), "anchors", resumed, |_, changes| changes_batch(changes));
    let sums = anchors.explode(|(_, Longest(took))| {
        Some((Fact::Anchors, Sums::of([1, i64::try_from(took).unwrap_or(i64::MAX)])))
    });
    // The cap matters only for lengths, and these collections have no facts about lengths.
    let summaries = summarize(sums.concat(audits), 0);
    let summaries = by_step(summaries, "anchor_metrics", resumed, |step, changes| {
        metrics_batch(&summaries::metrics(step, changes))
    });
    Anchors { changes, metrics: metrics.concat(summaries) }
}

/// The longest correct executions of a step by test case, and counts of its executions.
#[derive(Debug, Default, PartialEq)]
struct ExecutionFacts {
    longest: BTreeMap<Case, Longest>,
    executions: u64,
    /// The sum of the executions' time limits, in nanoseconds.
    limits: u128,
    /// The number of executions that were ended at their time limit, or would have been without an audit.
    kills: u64,
    /// The number of audited executions among `kills`.
    audited_kills: i64,
    /// The number of correct executions among `audited_kills`.
    wrong_kills: i64,
}

impl ExecutionFacts {
    fn take(&mut self, batch: &Batch) {
        let rows = batch.values::<UInt64Type>(column::ROW).values();
        for (row, execution) in rows.iter().zip(executions(batch)) {
            self.add(*row, &execution);
        }
    }

    fn add(&mut self, row: u64, execution: &Execution) {
        self.executions += 1;
        self.limits += u128::from(execution.limit.0);
        self.kills += u64::from(execution.is_killed());
        self.audited_kills += i64::from(execution.is_killed() && execution.audited);
        self.wrong_kills += i64::from(execution.is_wrongly_killed());
        if execution.correct {
            let took = Longest(execution.took.0);
            let known = self.longest.entry((row, execution.case)).or_insert(took);
            known.plus_equals(&took);
        }
    }

    fn metrics(&self) -> Metrics {
        let mean_limit = self.limits as f64 / 1e9 / self.executions as f64;
        named_metrics([
            ("reward/mean_limit_s", mean_limit),
            ("reward/limit_kills", self.kills as f64),
            ("reward/audited_kills", self.audited_kills as f64),
            ("reward/wrong_kills", self.wrong_kills as f64),
        ])
    }
}

/// Returns the executions of a batch of [`schema::EXECUTIONS`], in order.
fn executions(batch: &Batch) -> impl Iterator<Item = Execution> {
    let cases = batch.values::<UInt32Type>(column::CASE);
    let [took, limit] = [column::TOOK, column::LIMIT].map(|name| batch.values::<UInt64Type>(name));
    let [correct, audited] = [column::CORRECT, column::AUDITED].map(|name| batch.booleans(name));
    (0..batch.num_rows()).map(move |at| Execution {
        case: cases.value(at),
        took: Nanos(took.value(at)),
        limit: Nanos(limit.value(at)),
        correct: correct.value(at),
        audited: audited.value(at),
    })
}

/// The facts as differential collections, and the metrics of single steps.
struct ExecutionCollections<'scope> {
    longest: VecCollection<'scope, Step, Case, Longest>,
    audits: VecCollection<'scope, Step, Fact, Sums>,
    metrics: BatchStream<'scope>,
}

/// Emits the state of the snapshot, if the run resumes. Then reduces the executions of each step and emits the result once the step is
/// complete.
fn read<'scope>(
    executions: BatchStream<'scope>,
    resumable: &Resumable<'scope>,
) -> ExecutionCollections<'scope> {
    let scope = executions.scope();
    let (worker, mut operator) = (scope.index(), Operator::new("executions", scope));
    let mut executions = operator.input(executions, Pipeline, &schema::EXECUTIONS);
    let (longest, longest_stream) = operator.updates(&[0]);
    let (audits, audit_stream) = operator.updates(&[0]);
    let (mut metrics, metrics_stream) = operator.output(&schema::METRICS, &[0]);
    let mut parts = resumable.register_first(PART, &mut operator);
    let mut restored = resumable.read_first::<AnchorTotals>(worker);
    let mut known = AnchorTotals::default();
    let mut outputs = Outputs { longest, audits };
    operator.build(move |capabilities| {
        parts.start(&capabilities);
        let mut capabilities = restored.as_ref().map(|_| capabilities);
        let mut steps: BTreeMap<Step, ([Capability<Step>; 3], ExecutionFacts)> = BTreeMap::new();
        move |frontiers| {
            if let Some((mut capabilities, (step, before))) =
                capabilities.take().zip(restored.take())
            {
                capabilities.iter_mut().for_each(|capability| capability.downgrade(&step));
                outputs.give(step, &capabilities, &before.longest, before.audits);
                known = before;
            }
            let indices = [outputs.longest.index(), outputs.audits.index(), metrics.index()];
            executions.for_each(|capability, batch| {
                let held =
                    || (indices.map(|output| capability.retain(output)), ExecutionFacts::default());
                steps.entry(*capability.time()).or_insert_with(held).1.take(&batch);
            });
            let is_complete = |step: &Step| !frontiers[0].less_equal(step);
            for (step, (held, facts)) in steps.extract_if(.., |step, _| is_complete(step)) {
                parts.begin_step(step, |_| known.part());
                let audits = (facts.audited_kills, facts.wrong_kills);
                if parts.is_enabled() {
                    known.add(&facts.longest, audits);
                }
                outputs.give(step, &held, &facts.longest, audits);
                metrics.give(&held[2], metrics_batch(&facts.metrics()));
            }
            parts.advance_to(earliest(frontiers), |_| known.part());
        }
    });
    ExecutionCollections {
        longest: longest_stream.as_collection(),
        audits: audit_stream.as_collection(),
        metrics: metrics_stream,
    }
}

struct Outputs {
    longest: Updates<(Case, Step, Longest)>,
    audits: Updates<(Fact, Step, Sums)>,
}

impl Outputs {
    fn give(
        &mut self,
        step: Step,
        held: &[Capability<Step>],
        longest: &BTreeMap<Case, Longest>,
        audits: (i64, i64),
    ) {
        self.longest.give(&held[0], longest.iter().map(|(case, took)| (*case, step, *took)));
        let audited = (audits.0 > 0).then_some((Fact::Audits, step, Sums::of(audits.into())));
        self.audits.give(&held[1], audited.into_iter());
    }
}

/// Returns a batch of the anchors that became valid. The replaced anchors are left out.
fn changes_batch(changes: &[((Case, Longest), i64)]) -> Batch {
    let now = || changes.iter().filter(|(_, change)| *change > 0).map(|(fact, _)| fact);
    Batch::from_columns(
        &schema::ANCHORS,
        vec![
            Arc::new(UInt64Array::from_iter_values(now().map(|((row, _), _)| *row))),
            Arc::new(UInt32Array::from_iter_values(now().map(|((_, case), _)| *case))),
            Arc::new(UInt64Array::from_iter_values(now().map(|(_, Longest(took))| *took))),
        ],
    )
}

#[cfg(test)]
mod tests;
