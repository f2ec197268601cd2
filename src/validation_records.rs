//! The files with the responses of validations.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, ListArray, RecordBatch, StringArray, UInt32Array,
    UInt64Array,
};
use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_operators::validate::{ValidatedResponse, ValidationError, ValidationResult};
use serde::Serialize;

use crate::run_files::step_file;
use crate::run_folder::{RecordError, write_rows};

/// A writer of the responses of validations: one file per policy, `step_NNNNN.parquet`, with the number of the step that produced the
/// policy; 0 is the policy before the first step.
#[derive(Clone, Debug)]
pub(crate) struct ValidationRecords {
    folder: PathBuf,
}

impl ValidationRecords {
    /// Creates a writer into a folder, which is created with the first file.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Writes the sampled and the greedy responses of a policy.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write(
        &self,
        version: PolicyVersion,
        sampled: &ValidationResult,
        greedy: &ValidationResult,
    ) -> Result<(), ValidationError> {
        let all = [(false, sampled), (true, greedy)];
        let rows: Vec<Row<'_>> = all
            .into_iter()
            .flat_map(|(greedy, result)| result.responses.iter().map(move |one| (greedy, one)))
            .map(|(greedy, response)| Row { greedy, response })
            .collect();
        self.write_file(version, &rows)
            .map_err(|error| ValidationError::Record { reason: error.to_string() })
    }

    fn write_file(&self, version: PolicyVersion, rows: &[Row<'_>]) -> Result<(), RecordError> {
        let path = self.folder.join(step_file(version.0, "parquet"));
        let failed = RecordError::of(&path);
        fs::create_dir_all(&self.folder).map_err(|error| failed(&error))?;
        let rows = batch(version, rows).map_err(|error| failed(&error))?;
        write_rows(&path, rows.schema(), [rows])
    }
}

/// A response, with `greedy` set if it was decoded greedily.
struct Row<'a> {
    greedy: bool,
    response: &'a ValidatedResponse,
}

/// Returns the rows as a batch. Columns that also exist in the files of rollouts have the same names there.
fn batch(
    version: PolicyVersion,
    rows: &[Row<'_>],
) -> Result<RecordBatch, arrow_schema::ArrowError> {
    let samples = || rows.iter().map(|row| &row.response.sample);
    let scores = || rows.iter().map(|row| row.response.score.as_ref());
    let ids = samples().map(|sample| Some(sample.response_ids.iter().map(|&id| Some(id))));
    let texts = |text: &dyn Fn(&Row<'_>) -> Option<String>| -> ArrayRef {
        Arc::new(rows.iter().map(text).collect::<StringArray>())
    };
    let columns: [(&str, ArrayRef); 16] = [
        ("policy_version", Arc::new(UInt64Array::from(vec![version.0; rows.len()]))),
        ("greedy", Arc::new(rows.iter().map(|row| Some(row.greedy)).collect::<BooleanArray>())),
        (
            "prompt_id",
            Arc::new(UInt64Array::from_iter_values(samples().map(|one| one.id.prompt.0))),
        ),
        ("sample", Arc::new(UInt32Array::from_iter_values(samples().map(|one| one.id.sample)))),
        ("row", Arc::new(UInt64Array::from_iter_values(samples().map(|sample| sample.row)))),
        ("data_source", texts(&|row| Some(row.response.sample.data_source.clone()))),
        ("messages", texts(&|row| Some(row.response.sample.messages.clone()))),
        ("ground_truth", texts(&|row| row.response.sample.ground_truth.clone())),
        ("extra_info", texts(&|row| row.response.sample.extra_info.clone())),
        ("response_text", texts(&|row| Some(row.response.sample.response.clone()))),
        ("response_ids", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(ids))),
        (
            "response_length",
            Arc::new(UInt32Array::from_iter_values(samples().map(|one| one.response_length))),
        ),
        ("finish_reason", texts(&|row| Some(row.response.sample.finish_reason.to_string()))),
        (
            "score",
            Arc::new(scores().map(|score| score.ok().map(|s| s.total())).collect::<Float64Array>()),
        ),
        ("labels", texts(&|row| row.response.score.as_ref().ok().map(|score| json(&score.labels)))),
        ("reward_error", texts(&|row| row.response.score.as_ref().err().map(ToString::to_string))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| {
        let nullable =
            matches!(name, "ground_truth" | "extra_info" | "score" | "labels" | "reward_error");
        (name, column, nullable)
    }))
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("invariant: a map of texts is JSON")
}

#[cfg(test)]
mod tests {
    use rollpacker_datasets::Records;
    use rollpacker_stages::reward::{RewardError, Sample, Score};

    use super::*;

    #[test]
    fn responses_and_errors_are_rows() {
        let directory = tempfile::tempdir().expect("a folder");
        let response = |text: &str, score| ValidatedResponse {
            sample: Sample {
                response_ids: vec![4, 5],
                response_length: 2,
                ..Sample::of("math", text, Some("3"))
            },
            score,
        };
        let right =
            Score { labels: [("answer".to_owned(), "3".to_owned())].into(), ..Score::from(1.0) };
        let sampled = ValidationResult {
            responses: vec![
                response("3", Ok(right)),
                response("4", Err(RewardError::timeout("too slow"))),
            ],
            ..ValidationResult::default()
        };
        let greedy = ValidationResult {
            responses: vec![response("5", Ok(Score::from(0.0)))],
            ..ValidationResult::default()
        };
        let folder = directory.path().join("validation");
        ValidationRecords::new(folder.clone())
            .write(PolicyVersion(40), &sampled, &greedy)
            .expect("written");
        let rows = Records::open(&folder.join("step_00040.parquet")).expect("it opens");
        let rows: Vec<_> = rows.map(|row| row.expect("a row")).collect();
        assert_eq!(rows.len(), 3);
        assert_eq!(
            (&rows[0]["score"], &rows[0]["labels"]),
            (&1.0.into(), &r#"{"answer":"3"}"#.into())
        );
        assert!(
            rows[1]["score"].is_null()
                && rows[1]["reward_error"].as_str().is_some_and(|why| why.contains("too slow"))
        );
        assert_eq!((&rows[2]["greedy"], &rows[2]["response_text"]), (&true.into(), &"5".into()));
        assert_eq!(rows[2]["policy_version"], 40);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let directory = tempfile::tempdir().expect("a folder");
        fs::write(directory.path().join("file"), "").expect("written");
        let records = ValidationRecords::new(directory.path().join("file"));
        let none = ValidationResult::default();
        let error =
            records.write(PolicyVersion(1), &none, &none).expect_err("no folder").to_string();
        assert!(error.contains("step_00001.parquet"), "{error}");
    }
}
