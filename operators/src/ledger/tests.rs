//! The columns against hand counts, and the facts of steps against what they stand for.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float32Array, Float64Array, StringArray, UInt32Array, UInt64Array, new_empty_array,
};
use arrow::datatypes::{DataType, Float32Type, Schema, UInt32Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::{PromptId, Step};

use super::Lengths;
use super::bias::{Weighed, buckets};
use super::facts::{Facts, Gathering, Length, Waits};
use crate::columns::lists;

fn near(ours: f64, expected: f64) {
    assert!((ours - expected).abs() < 1e-6, "{ours} is not {expected}");
}

fn lengths(policy: &[u32], trained: &[(u32, f32)]) -> Lengths {
    let mut lengths = Lengths::default();
    for tokens in policy {
        lengths.policy.observe(*tokens, true);
        lengths.policy_low.observe(*tokens, true);
    }
    for (tokens, weight) in trained {
        lengths.trained.add(*tokens, Weighed::one(*weight));
    }
    lengths
}

/// The policy: 100, 300, 900, 2000. Trained: the first three.
#[test]
fn columns_are_what_a_hand_count_gives() {
    let metrics = lengths(&[100, 300, 900, 2000], &[(100, 1.0), (300, 1.0), (900, 1.0)]).bias(2000);
    near(metrics["bias/policy_mean"], 825.0);
    near(metrics["bias/mean_ratio"], 1300.0 / 3.0 / 825.0);
    near(metrics["bias/p90_ratio"], 900.0 / 2000.0);
    near(metrics["bias/share_above_500/policy"], 0.5);
    near(metrics["bias/share_above_500/trained"], 1.0 / 3.0);
    near(metrics["bias/share_above_2000/policy"], 0.25);
    near(metrics["bias/share_above_2000/trained"], 0.0);
    near(metrics["bias/inclusion/0_512"], 2.0 / 3.0 / 0.5);
    near(metrics["bias/inclusion/1024_2048"], 0.0);
    near(metrics["bias/ess"], 1.0);
    assert!(metrics.keys().all(|name| !name.contains("weighted")), "all weights are 1");
}

/// The response of 900 stands for the two that are longer than 512.
#[test]
fn weights_count_in_the_weighted_columns_alone() {
    let metrics = lengths(&[100, 300, 900, 900], &[(100, 1.0), (300, 1.0), (900, 2.0)]).bias(2000);
    near(metrics["bias/weighted_mean_ratio"], 1.0);
    near(metrics["bias/weighted_inclusion/512_1024"], 1.0);
    near(metrics["bias/mean_ratio"], 1300.0 / 3.0 / 550.0);
    near(metrics["bias/ess"], 16.0 / (3.0 * 6.0));
}

#[test]
fn nothing_trained_says_nothing() {
    assert!(lengths(&[100], &[]).bias(2000).is_empty());
    assert!(lengths(&[], &[]).bias(2000).is_empty());
}

#[test]
fn buckets_double_up_to_the_one_with_the_cap() {
    assert_eq!(buckets(2000).collect::<Vec<_>>(), [(0, 512), (512, 1024), (1024, 2048)]);
    assert_eq!(buckets(2048).last(), Some((2048, 4096)));
    assert_eq!(buckets(100).collect::<Vec<_>>(), [(0, 512)]);
}

/// A batch of `schema` in which only the named columns say something.
fn batch(schema: &Arc<Schema>, rows: usize, named: &[(&str, ArrayRef)]) -> Batch {
    let columns = schema.fields().iter().map(|field| {
        let given = named.iter().find(|(name, _)| *name == field.name());
        given.map_or_else(|| blank(field.data_type(), rows), |(_, column)| Arc::clone(column))
    });
    Batch::from_columns(schema, columns.collect())
}

fn blank(data_type: &DataType, rows: usize) -> ArrayRef {
    match data_type {
        DataType::Utf8 => Arc::new(StringArray::from(vec![""; rows])),
        DataType::UInt64 => Arc::new(UInt64Array::from(vec![0; rows])),
        DataType::UInt32 => Arc::new(UInt32Array::from(vec![0; rows])),
        DataType::Float64 => Arc::new(Float64Array::from(vec![0.0; rows])),
        DataType::Float32 => Arc::new(Float32Array::from(vec![1.0; rows])),
        list => {
            let DataType::List(item) = list else { panic!("no such column: {list}") };
            let offsets = arrow::buffer::OffsetBuffer::from_lengths(vec![0; rows]);
            Arc::new(arrow::array::ListArray::new(
                item.clone(),
                offsets,
                new_empty_array(item.data_type()),
                None,
            ))
        }
    }
}

/// Responses `(prompt, tokens, finish reason)`; the row is ten times the prompt.
fn responses(rows: &[(u64, u32, &str)]) -> Batch {
    let named: [(&str, ArrayRef); 4] = [
        (column::PROMPT_ID, Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.0)))),
        (column::ROW, Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.0 * 10)))),
        (
            column::RESPONSE_LENGTH,
            Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| row.1))),
        ),
        (
            column::FINISH_REASON,
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.2))),
        ),
    ];
    batch(&schema::RESPONSES, rows.len(), &named)
}

fn decisions(rows: &[(&str, u64)]) -> Batch {
    let empty = || rows.iter().map(|_| [].as_slice());
    let named: [(&str, ArrayRef); 4] = [
        (column::DECISION, Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0)))),
        (column::PROMPT_ID, Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.1)))),
        (column::ADMITTED, lists::<UInt32Type>(empty().map(|_: &[f32]| [].as_slice()))),
        (column::WEIGHTS, lists::<Float32Type>(empty())),
    ];
    batch(&schema::DECISIONS, rows.len(), &named)
}

fn close(
    step: u64,
    waits: &mut Waits,
    rows: &[(u64, u32, &str)],
    decided: &[(&str, u64)],
) -> Facts {
    let mut gathering = Gathering::default();
    gathering.responses(&responses(rows));
    gathering.decisions(&decisions(decided));
    gathering.close(Step(step), waits)
}

fn counts(facts: &Facts) -> Vec<(Length, i64)> {
    facts.lengths.iter().map(|(length, weighed)| (*length, weighed.count)).collect()
}

/// Prompt 1 is deferred at 50 tokens and drawn again; prompt 0 had a surplus response.
#[test]
fn a_prompt_that_is_launched_again_enters_where_it_was_cut() {
    let mut waits = Waits::default();
    let rows =
        [(0, 10, "stop"), (0, 10, "abort"), (1, 30, "stop"), (1, 50, "abort"), (2, 7, "pause")];
    let first = close(0, &mut waits, &rows, &[("admit", 0), ("defer", 1), ("close", 0)]);
    let expected = [
        (Length::Ended(10), 1),
        (Length::Ended(30), 1),
        (Length::Cut(50), 1),
        (Length::Surplus(10), 1),
    ];
    assert_eq!(counts(&first), expected);
    assert_eq!(first.waiting, [(PromptId(1), Step(0), 1)]);
    assert_eq!((first.rows[&10].launched, first.rows[&10].whole), (2, [1, 30, 900]));

    let rows = [(1, 40, "stop"), (1, 90, "length"), (3, 20, "stop")];
    let second = close(1, &mut waits, &rows, &[("admit", 1), ("admit", 3)]);
    let expected = [(Length::Entered(50), 1), (Length::Ended(20), 1), (Length::Ended(90), 1)];
    assert_eq!(counts(&second), expected);
    assert_eq!(second.waiting, [(PromptId(1), Step(0), -1)]);
}
