//! Responses as files store them: with `List` and `Utf8` columns, and with the policy version of each token.

use std::sync::Arc;

use arrow_array::types::{ArrowPrimitiveType, Float32Type, Int32Type, UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, StringArray};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::{column, list_item};
use rollpacker_dataflow::shared_list::unshared_field;
use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_stages::rollout::TokenVersions;

use crate::wire::columns::lists;
use crate::wire::rows::{Row, gather};

/// Returns the fields that files have for a stream of `schema`: shared lists and texts as `List` and `Utf8` columns, and
/// [`TOKEN_VERSIONS`](column::TOKEN_VERSIONS) in place of the runs of versions.
#[must_use]
pub fn recorded_fields(schema: &SchemaRef) -> Vec<FieldRef> {
    let fields = schema.fields().iter();
    let fields = fields.filter(|field| field.name() != column::VERSION_TOKENS);
    fields
        .map(|field| match field.name().as_str() {
            column::VERSIONS => Arc::new(Field::new(
                column::TOKEN_VERSIONS,
                DataType::List(list_item(DataType::UInt64)),
                field.is_nullable(),
            )),
            _ => unshared_field(field),
        })
        .collect()
}

/// Copies rows into a record batch with the columns of [`recorded_fields`]; `None` if there are no rows.
pub(super) fn recorded(rows: &[Row]) -> Option<RecordBatch> {
    let schema = rows.first()?.batch.rows()?.schema();
    let fields = recorded_fields(&schema);
    let is_plain = |field: &&FieldRef| schema.fields().iter().any(|of| of == *field);
    let plain = fields.iter().filter(is_plain).map(|field| field.name().as_str());
    let mut plain = gather(rows, plain);
    let columns = fields.iter().map(|field| -> ArrayRef {
        let name = field.name().as_str();
        match field.data_type() {
            _ if is_plain(&field) => plain.next().expect("invariant: one for each plain field"),
            _ if name == column::TOKEN_VERSIONS => versions_by_token(rows),
            DataType::Utf8 => Arc::new(StringArray::from_iter_values(
                rows.iter().map(|row| row.batch.shared_text(name).value(row.index)),
            )),
            DataType::List(item) => match item.data_type() {
                DataType::Int32 => copied_lists::<Int32Type>(rows, name),
                DataType::UInt32 => copied_lists::<UInt32Type>(rows, name),
                _ => copied_lists::<Float32Type>(rows, name),
            },
            other => unreachable!("invariant: no stream has a shared column of {other}"),
        }
    });
    let columns = columns.collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    let recorded =
        RecordBatch::try_new_with_options(Arc::new(Schema::new(fields.clone())), columns, &options);
    Some(recorded.expect("invariant: the columns were made for the fields"))
}

fn copied_lists<T: ArrowPrimitiveType>(rows: &[Row], name: &str) -> ArrayRef {
    lists::<T>(rows.iter().map(|row| row.batch.lists::<T>(name).get(row.index)))
}

fn versions_by_token(rows: &[Row]) -> ArrayRef {
    let of_row = |row: &Row| {
        let versions = token_versions(&row.batch, row.index);
        versions.iter().map(|version| version.0).collect()
    };
    let by_token: Vec<Vec<u64>> = rows.iter().map(of_row).collect();
    lists::<UInt64Type>(by_token.iter().map(Vec::as_slice))
}

/// Returns the policy versions that sampled the tokens of the response in row `row`. The result is empty if the engine counts tokens
/// without sampling them. `responses` must have the columns of [`RESPONSES`](rollpacker_dataflow::schema::RESPONSES).
///
/// # Panics
/// If `responses` has no such row.
#[must_use]
pub fn token_versions(responses: &Batch, row: usize) -> TokenVersions {
    let versions = responses.lists::<UInt64Type>(column::VERSIONS).get(row);
    let tokens = responses.lists::<UInt32Type>(column::VERSION_TOKENS).get(row);
    versions
        .iter()
        .zip(tokens)
        .map(|(&version, &tokens)| (PolicyVersion(version), tokens))
        .collect()
}

#[cfg(test)]
mod tests {
    use arrow_array::UInt32Array;
    use arrow_array::cast::AsArray;
    use rollpacker_dataflow::schema;
    use rollpacker_dataflow::shared_list::shared_texts;

    use super::*;
    use crate::wire::blank;
    use crate::wire::columns::owned_lists;

    #[test]
    fn files_have_plain_columns_and_a_version_for_each_token() {
        let ids = [vec![5, 6, 7], vec![], (0..400).collect()];
        let logprobs = ids.clone().map(|ids| vec![-0.5; ids.len()]);
        let texts = ["five".to_owned(), String::new(), "x".repeat(2000)];
        let samples: ArrayRef = Arc::new(UInt32Array::from(vec![0, 1, 2]));
        let versions: [&[u64]; 3] = [&[3, 4], &[], &[9]];
        let tokens: [&[u32]; 3] = [&[1, 2], &[], &[400]];
        let given = [
            (column::SAMPLE, samples),
            (column::RESPONSE_IDS, owned_lists::<Int32Type>(ids.clone().into_iter())),
            (column::LOGPROBS, owned_lists::<Float32Type>(logprobs.into_iter())),
            (column::VERSIONS, lists::<UInt64Type>(versions.into_iter())),
            (column::VERSION_TOKENS, lists::<UInt32Type>(tokens.into_iter())),
            (column::RESPONSE_TEXT, shared_texts(texts.clone().into_iter())),
        ];
        let batch = blank::batch(&schema::RESPONSES, 3, &given);
        let rows: Vec<Row> = [2, 0, 1].map(|index| Row { batch: batch.clone(), index }).into();
        let recorded = recorded(&rows).expect("rows");
        assert_eq!(recorded.schema().fields().to_vec(), recorded_fields(&schema::RESPONSES));
        let column = |name| recorded.column_by_name(name).expect("a column");
        let text = column(column::RESPONSE_TEXT).as_string::<i32>();
        assert_eq!([text.value(0), text.value(1)], [texts[2].as_str(), "five"]);
        let batch = Batch::new(recorded.clone());
        let found = batch.lists::<Int32Type>(column::RESPONSE_IDS);
        assert_eq!([0, 1, 2].map(|row| found.get(row)), [&ids[2][..], &ids[0], &ids[1]]);
        let found = batch.lists::<UInt64Type>(column::TOKEN_VERSIONS);
        assert_eq!([0, 1, 2].map(|row| found.get(row)), [&[9; 400][..], &[3, 4, 4], &[]]);
        assert_eq!(batch.values::<UInt32Type>(column::SAMPLE).values(), &[2, 0, 1]);
    }
}
