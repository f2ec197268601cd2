//! Advantages: how much better each response is than its group.

mod grpo;

use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Float32Type, Float64Type, Int32Type, UInt64Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;

use crate::columns::lists;
use crate::group::Groups;

pub use grpo::{Grpo, Rloo};

/// One response of a group, for an estimator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// The reward.
    pub score: f64,
    /// Sampled tokens.
    pub tokens: usize,
}

/// An estimator of advantages that looks at one group at a time.
///
/// # Contract
/// One number a response, in their order; each counts for every token of its response. Must not depend on other groups: groups are
/// trained on while later ones are still being generated.
pub trait Advantage {
    /// The advantages of a group.
    fn advantages(&self, group: &[Scored]) -> Vec<f64>;
}

impl Advantage for Rc<dyn Advantage> {
    fn advantages(&self, group: &[Scored]) -> Vec<f64> {
        self.as_ref().advantages(group)
    }
}

/// Adds advantages.
pub trait AdvantageExt {
    /// Adds the advantages that `estimator` sees in each group: batches become those of [`schema::GROUPS`].
    #[must_use]
    fn advantage(self, estimator: impl Advantage + 'static) -> Self;
}

impl AdvantageExt for Groups<'_> {
    fn advantage(self, estimator: impl Advantage + 'static) -> Self {
        let mut operator = Operator::new("advantage", self.groups.scope());
        let mut input = operator.input(self.groups, Pipeline, &schema::SCORED);
        let (mut output, groups) = operator.output(&schema::GROUPS, &[0]);
        let groups = operator.spanned(groups);
        operator.build(move |_capabilities| {
            move |_frontiers| {
                input.for_each(|capability, batch| {
                    output.give(
                        &capability.retain(output.index()),
                        with_advantages(&batch, &estimator),
                    );
                });
            }
        });
        Self { groups, ..self }
    }
}

fn with_advantages(batch: &Batch, estimator: &impl Advantage) -> Batch {
    let (scores, tokens) = (
        batch.values::<Float64Type>(column::SCORE),
        batch.lists::<Int32Type>(column::RESPONSE_IDS),
    );
    let scored: Vec<Scored> = (0..batch.num_rows())
        .map(|row| Scored { score: scores.value(row), tokens: tokens.get(row).len() })
        .collect();
    let mut advantages: Vec<Vec<f32>> = Vec::with_capacity(scored.len());
    let mut rest = scored.as_slice();
    for group in
        batch.values::<UInt64Type>(column::PROMPT_ID).values().chunk_by(|one, next| one == next)
    {
        let (group, later) = rest.split_at(group.len());
        let estimated = estimator.advantages(group);
        assert_eq!(
            estimated.len(),
            group.len(),
            "invariant: an estimator gives one advantage a response"
        );
        advantages.extend(
            group.iter().zip(estimated).map(|(one, advantage)| vec![advantage as f32; one.tokens]),
        );
        rest = later;
    }
    let rows = batch.rows().map(RecordBatch::columns).unwrap_or_default();
    let column = lists::<Float32Type>(advantages.iter().map(Vec::as_slice));
    Batch::from_columns(
        &schema::GROUPS,
        rows.iter().map(Arc::clone).chain([column as ArrayRef]).collect(),
    )
}
