//! The texts of prompts, which rewards and reports join with responses by the id of the prompt.
//!
//! A worker receives a text once per prompt and step, not with each response, and drops it when the step ends. When a deferred prompt is
//! launched again in a later step, the schedule sends its text again.

use std::collections::BTreeMap;

use arrow_array::types::UInt64Type;
use arrow_array::{ArrayRef, RecordBatch, new_empty_array};
use arrow_schema::DataType;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::frontier::may_arrive;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_dataflow::timely::progress::frontier::MutableAntichain;
use rustc_hash::FxHashMap;

use crate::wire::rows::{Row, gather};

/// The columns of [`TEXTS`](rollpacker_dataflow::schema::TEXTS) that are joined with responses.
const JOINED: [&str; 3] = [column::MESSAGES, column::GROUND_TRUTH, column::EXTRA_INFO];

/// The texts of the prompts of one step, by prompt.
#[derive(Clone, Debug, Default)]
pub struct PromptTexts(FxHashMap<PromptId, Row>);

impl PromptTexts {
    /// Adds the rows of a batch of [`TEXTS`](rollpacker_dataflow::schema::TEXTS). No text is copied.
    pub fn add(&mut self, batch: &Batch) {
        let prompts = batch.values::<UInt64Type>(column::PROMPT_ID).values();
        let rows = Row::all(batch).map(|row| (PromptId(prompts[row.index]), row));
        self.0.extend(rows);
    }

    /// Returns the row of a prompt; `None` if it was not added.
    pub(crate) fn get(&self, prompt: PromptId) -> Option<&Row> {
        self.0.get(&prompt)
    }

    /// Returns the columns `messages`, `ground_truth` and `extra_info` for `rows`, which have a column `prompt_id`.
    ///
    /// # Panics
    /// If the text of one of the prompts was not added. All texts of a step have arrived when the step is complete.
    #[must_use]
    pub fn columns(&self, rows: &RecordBatch) -> [(&'static str, ArrayRef); 3] {
        let batch = Batch::new(rows.clone());
        let prompts = batch.values::<UInt64Type>(column::PROMPT_ID).values();
        let sent = "invariant: the schedule sends the text of a prompt that it launches";
        let text = |id: &u64| self.get(PromptId(*id)).expect(sent).clone();
        let texts: Vec<Row> = prompts.iter().map(text).collect();
        if texts.is_empty() {
            return JOINED.map(|name| (name, new_empty_array(&DataType::Utf8)));
        }
        let mut columns = gather(&texts, JOINED);
        JOINED.map(|name| (name, columns.next().expect("invariant: one column for each name")))
    }
}

/// The texts of prompts by step, for the steps that still need them.
#[derive(Debug, Default)]
pub(crate) struct TextsByStep(BTreeMap<Step, PromptTexts>);

impl TextsByStep {
    pub(crate) fn add(&mut self, step: Step, batch: &Batch) {
        self.0.entry(step).or_default().add(batch);
    }

    /// Returns the row of a prompt; `None` if it has not arrived. On several workers, responses may arrive before the text.
    pub(crate) fn get(&self, step: Step, prompt: PromptId) -> Option<&Row> {
        self.0.get(&step)?.get(prompt)
    }

    /// Drops the texts of steps that all frontiers have passed, except steps for which `is_needed` returns `true`.
    pub(crate) fn drop_complete_steps(
        &mut self,
        frontiers: &[MutableAntichain<Step>],
        is_needed: impl Fn(&Step) -> bool,
    ) {
        self.0.retain(|step, _| may_arrive(frontiers, step) || is_needed(step));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::{StringArray, UInt64Array};
    use rollpacker_dataflow::schema;

    use super::*;
    use crate::wire::blank::batch;

    /// Returns the texts of prompts, with ground truths.
    fn texts(rows: &[(u64, Option<&str>)]) -> Batch {
        let prompts = UInt64Array::from_iter_values(rows.iter().map(|row| row.0));
        let truths = StringArray::from_iter(rows.iter().map(|row| row.1));
        let named: [(&str, ArrayRef); 2] =
            [(column::PROMPT_ID, Arc::new(prompts)), (column::GROUND_TRUTH, Arc::new(truths))];
        batch(&schema::TEXTS, rows.len(), &named)
    }

    fn responses(prompts: &[u64]) -> RecordBatch {
        let prompts: ArrayRef = Arc::new(UInt64Array::from_iter_values(prompts.iter().copied()));
        RecordBatch::try_from_iter([(column::PROMPT_ID, prompts)]).expect("a batch")
    }

    #[test]
    fn each_response_gets_the_texts_of_its_prompt() {
        let mut known = PromptTexts::default();
        known.add(&texts(&[(7, Some("a")), (3, None)]));
        known.add(&texts(&[(5, Some("c"))]));
        let joined = known.columns(&responses(&[5, 7, 3, 7]));
        assert_eq!(joined.each_ref().map(|(name, _)| *name), JOINED);
        let truths: Vec<_> = joined[1].1.as_string::<i32>().iter().collect();
        assert_eq!(truths, [Some("c"), Some("a"), None, Some("a")]);
        assert_eq!(joined[0].1.len(), 4);
        let none = known.columns(&responses(&[]));
        assert!(none.iter().all(|(_, column)| column.is_empty()));
    }

    #[test]
    fn texts_are_dropped_with_their_step() {
        let mut known = TextsByStep::default();
        (0..4).for_each(|step| known.add(Step(step), &texts(&[(step, None)])));
        let frontiers = [3, 2].map(|step| MutableAntichain::from_elem(Step(step)));
        known.drop_complete_steps(&frontiers, |step| *step == Step(0));
        let kept = [0, 1, 2, 3].map(|step| known.get(Step(step), PromptId(step)).is_some());
        assert_eq!(kept, [true, false, true, true]);
    }
}
