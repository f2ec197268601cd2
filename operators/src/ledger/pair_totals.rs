//! The snapshot part with the facts about pairs of responses.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use arrow_array::types::{Int64Type, UInt32Type};
use arrow_array::{ArrayRef, Int64Array, StringArray, UInt32Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::snapshot::Part;

use super::pairs::{Pair, Products};
use crate::resume::part::rows;

/// The name of the snapshot part with the facts about pairs.
pub(super) const PAIRS: &str = "ledger_pairs";

const KIND: &str = "kind";
const TOKENS: &str = "tokens";
const SUMS: [&str; 6] = ["pairs", "product", "weighted_product", "weight", "groups", "size"];

pub(super) static PAIR_ROWS: LazyLock<SchemaRef> = LazyLock::new(|| {
    let keys = [(KIND, DataType::Utf8), (TOKENS, DataType::UInt32)];
    let fields = keys.into_iter().chain(SUMS.map(|name| (name, DataType::Int64)));
    Arc::new(Schema::new(fields.map(|(name, of)| Field::new(name, of, false)).collect::<Vec<_>>()))
});

pub(super) fn part(pairs: &BTreeMap<Pair, Products>) -> Part {
    let kinds = pairs.keys().map(|pair| pair.parts().0);
    let tokens = pairs.keys().map(|pair| pair.parts().1);
    let keys = [
        Arc::new(StringArray::from_iter_values(kinds)) as ArrayRef,
        Arc::new(UInt32Array::from_iter_values(tokens)),
    ];
    let sums = (0..SUMS.len()).map(|at| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(pairs.values().map(|products| products.sums()[at])))
    });
    rows(&PAIR_ROWS, keys.into_iter().chain(sums).collect())
}

pub(super) fn read(batch: &Batch) -> BTreeMap<Pair, Products> {
    let (kinds, tokens) = (batch.text(KIND), batch.values::<UInt32Type>(TOKENS));
    let sums = SUMS.map(|name| batch.values::<Int64Type>(name));
    let products = |row| Products::of(std::array::from_fn(|at| sums[at].value(row)));
    (0..batch.num_rows())
        .filter_map(|row| Some((Pair::of(kinds.value(row), tokens.value(row))?, products(row))))
        .collect()
}
