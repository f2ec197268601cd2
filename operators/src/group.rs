//! Groups: gathers the admitted responses of a prompt, scored, into one.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array};
use arrow::datatypes::{Float32Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::Capability;

use crate::overlap::Fetch;
use crate::reward::Scored;
use crate::rows::{Row, gather};
use crate::schedule::encode::ADMIT;

/// Complete groups, and what formed their rounds.
pub struct Groups<'scope> {
    /// Batches of [`schema::SCORED`], each a whole number of groups: the rows of a prompt are neighbours, in the order of samples.
    pub groups: BatchStream<'scope>,
    /// Batches of [`schema::DECISIONS`].
    pub decisions: BatchStream<'scope>,
    /// Batches of [`schema::PLACEMENTS`], if a policy places.
    pub placements: Option<BatchStream<'scope>>,
    /// Errors so far.
    pub errors: BatchStream<'scope>,
    pub(crate) fetch: Fetch,
}

impl Groups<'_> {
    /// Hands groups to the trainer when `fetch` says; without it, as they become complete.
    #[must_use]
    pub fn fetched(self, fetch: Fetch) -> Self {
        Self { fetch, ..self }
    }
}

/// Forms groups.
pub trait GroupExt<'scope> {
    /// Gives the group of a prompt as soon as the prompt is admitted and its admitted responses are scored. Scores of responses that
    /// are not admitted are dropped when the step ends.
    fn group(self) -> Groups<'scope>;
}

impl<'scope> GroupExt<'scope> for Scored<'scope> {
    fn group(self) -> Groups<'scope> {
        let groups = group(self.samples, self.decisions.clone());
        Groups {
            groups,
            decisions: self.decisions,
            placements: self.placements,
            errors: self.errors,
            fetch: Fetch::default(),
        }
    }
}

fn group<'scope>(
    samples: BatchStream<'scope>,
    decisions: BatchStream<'scope>,
) -> BatchStream<'scope> {
    let mut operator = Operator::new("group", samples.scope());
    let mut samples = operator.input(samples, Pipeline, &schema::SCORED);
    let mut decisions = operator.input(decisions, Pipeline, &schema::DECISIONS);
    let (mut groups, stream) = operator.output(&schema::SCORED, &[0, 1]);
    let stream = operator.spanned(stream);
    operator.build(move |_capabilities| {
        let mut steps: BTreeMap<Step, (Capability<Step>, Gathering)> = BTreeMap::new();
        move |frontiers| {
            let index = groups.index();
            decisions.for_each(|capability, batch| {
                let step = steps.entry(*capability.time());
                step.or_insert_with(|| (capability.retain(index), Gathering::default()))
                    .1
                    .admit(&batch);
            });
            samples.for_each(|capability, batch| {
                let step = steps.entry(*capability.time());
                step.or_insert_with(|| (capability.retain(index), Gathering::default()))
                    .1
                    .score(&batch);
            });
            for (capability, gathering) in steps.values_mut() {
                groups.give(capability, gathering.complete());
            }
            steps.retain(|step, (_, gathering)| {
                let open = frontiers.iter().any(|frontier| frontier.less_equal(step));
                debug_assert!(
                    open || gathering.admitted.is_empty(),
                    "every admitted response is scored within its step"
                );
                open
            });
        }
    });
    stream
}

/// The groups of one step that are not complete.
#[derive(Default)]
struct Gathering {
    admitted: BTreeMap<PromptId, Admitted>,
    scored: BTreeMap<PromptId, BTreeMap<u32, Row>>,
    /// Prompts that something arrived for since the last time.
    touched: Vec<PromptId>,
}

impl Gathering {
    fn admit(&mut self, batch: &Batch) {
        let (prompts, admitted, weights) = (
            batch.values::<UInt64Type>(column::PROMPT_ID),
            batch.lists::<UInt32Type>(column::ADMITTED),
            batch.lists::<Float32Type>(column::WEIGHTS),
        );
        for (row, decision) in batch.text(column::DECISION).iter().enumerate() {
            if decision == Some(ADMIT) {
                let prompt = PromptId(prompts.value(row));
                let admitted = Admitted {
                    samples: admitted.get(row).to_vec(),
                    weights: weights.get(row).to_vec(),
                };
                self.admitted.insert(prompt, admitted);
                self.touched.push(prompt);
            }
        }
    }

    fn score(&mut self, batch: &Batch) {
        let (prompts, samples) = (
            batch.values::<UInt64Type>(column::PROMPT_ID),
            batch.values::<UInt32Type>(column::SAMPLE),
        );
        for row in Row::all(batch) {
            let prompt = PromptId(prompts.value(row.index));
            self.scored.entry(prompt).or_default().insert(samples.value(row.index), row);
            self.touched.push(prompt);
        }
    }

    /// The groups that have become complete, in one batch; the default if there is none.
    fn complete(&mut self) -> Batch {
        let touched = std::mem::take(&mut self.touched);
        let (rows, weights): (Vec<Row>, Vec<f32>) =
            touched.into_iter().filter_map(|prompt| self.take(prompt)).flatten().unzip();
        if rows.is_empty() {
            return Batch::default();
        }
        let names = schema::SCORED.fields().iter().map(|field| field.name().as_str());
        let names: Vec<&str> = names.filter(|name| *name != column::WEIGHT).collect();
        let mut columns: Vec<ArrayRef> = gather(&rows, names).collect();
        let at = schema::SCORED
            .index_of(column::WEIGHT)
            .expect("invariant: scored responses have a weight");
        columns.insert(at, Arc::new(Float32Array::from(weights)));
        Batch::from_columns(&schema::SCORED, columns)
    }

    /// The rows of a group with their weights, if it is complete.
    fn take(&mut self, prompt: PromptId) -> Option<Vec<(Row, f32)>> {
        let (admitted, scored) = (self.admitted.get(&prompt)?, self.scored.get(&prompt)?);
        let rows: Option<Vec<(Row, f32)>> = admitted
            .weighted()
            .map(|(sample, weight)| Some((scored.get(&sample)?.clone(), weight)))
            .collect();
        if rows.is_some() {
            self.admitted.remove(&prompt);
            self.scored.remove(&prompt);
        }
        rows
    }
}

/// What a group is made of.
struct Admitted {
    samples: Vec<u32>,
    /// How much each counts in the loss; empty: 1 each.
    weights: Vec<f32>,
}

impl Admitted {
    fn weighted(&self) -> impl Iterator<Item = (u32, f32)> {
        let weights = self.weights.iter().copied().chain(std::iter::repeat(1.0));
        self.samples.iter().copied().zip(weights)
    }
}
