//! Export of the steps of a sweep to Parquet, one row per step.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use arrow_array::{
    ArrayRef, Float64Array, RecordBatch, RecordBatchOptions, StringArray, UInt64Array,
};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use rollpacker_files::NewFile;

use super::configuration::ConfigurationRuns;
use super::outcome::StepOutcome;

/// Writes the steps of all runs to a Parquet file.
///
/// Columns: `configuration`, `settings` (one per line), `seed`, `step`, `round`, `step_s`, `sync_s`, `rollout_s`, `reward_s`, `training_s`,
/// `trained_tokens`, `trained_responses`, and every metric under its name, null where a step does not have it.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, runs: &[ConfigurationRuns]) -> anyhow::Result<()> {
    let batch = batch(runs).context("cannot build the columns of the steps")?;
    let file = NewFile::create(path)?;
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let written =
        ArrowWriter::try_new(file, batch.schema(), Some(properties)).and_then(|mut writer| {
            writer.write(&batch)?;
            writer.into_inner()
        });
    let file = written.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(file.finish()?)
}

/// A step with the configuration and the seed of its run.
struct SummaryRow<'a> {
    run: &'a ConfigurationRuns,
    seed: u64,
    step: &'a StepOutcome,
}

fn batch(runs: &[ConfigurationRuns]) -> Result<RecordBatch, arrow_schema::ArrowError> {
    let rows: Vec<SummaryRow<'_>> = runs
        .iter()
        .flat_map(|run| {
            let outcomes = run.seeds.iter().zip(&run.outcomes);
            outcomes.flat_map(move |(&seed, outcome)| {
                outcome.steps.iter().map(move |step| SummaryRow { run, seed, step })
            })
        })
        .collect();
    let metrics: BTreeSet<&String> = rows.iter().flat_map(|row| row.step.metrics.keys()).collect();
    let mut columns = named(&rows);
    columns.extend(metrics.into_iter().map(|name| {
        let values = rows.iter().map(|row| row.step.metrics.get(name).copied());
        (name.as_str(), Arc::new(values.collect::<Float64Array>()) as ArrayRef)
    }));
    let field = |(name, array): &(&str, ArrayRef)| {
        Field::new(*name, array.data_type().clone(), *array.data_type() == DataType::Float64)
    };
    let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    RecordBatch::try_new_with_options(schema, arrays, &options)
}

fn named(rows: &[SummaryRow<'_>]) -> Vec<(&'static str, ArrayRef)> {
    let text = |of: &dyn Fn(&SummaryRow<'_>) -> String| {
        Arc::new(rows.iter().map(|row| Some(of(row))).collect::<StringArray>()) as ArrayRef
    };
    let count = |of: &dyn Fn(&SummaryRow<'_>) -> u64| {
        Arc::new(rows.iter().map(of).collect::<Vec<_>>().into_iter().collect::<UInt64Array>())
            as ArrayRef
    };
    let number = |of: fn(&StepOutcome) -> f64| {
        Arc::new(rows.iter().map(|row| Some(of(row.step))).collect::<Float64Array>()) as ArrayRef
    };
    vec![
        ("configuration", text(&|row| row.run.label.clone())),
        ("settings", text(&|row| row.run.settings.join("\n"))),
        ("seed", count(&|row| row.seed)),
        ("step", count(&|row| row.step.step)),
        ("round", text(&|row| row.step.round.clone())),
        ("step_s", number(|step| step.seconds)),
        ("sync_s", number(|step| step.stages.sync)),
        ("rollout_s", number(|step| step.stages.rollout)),
        ("reward_s", number(|step| step.stages.reward)),
        ("training_s", number(|step| step.stages.training)),
        ("trained_tokens", number(|step| step.trained_tokens)),
        ("trained_responses", number(|step| step.trained_responses)),
    ]
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::Float64Type;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::super::configuration::tests::configured;
    use super::super::summary::tests::run;
    use super::*;

    #[test]
    fn every_step_is_a_row_and_every_metric_a_column() {
        let steps = [("short", 2.0), ("long", 3.0)];
        let configured =
            |label: &str, metrics: &[(&str, f64)]| configured(label, &[run(&steps, metrics)]);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("steps.parquet");
        write(&path, &[configured("a", &[("x/y", 0.5)]), configured("b", &[])]).expect("written");
        let file = std::fs::File::open(&path).expect("opened");
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("parquet");
        let batches: Vec<_> =
            reader.build().expect("a reader").collect::<Result<_, _>>().expect("rows");
        let [batch] = batches.as_slice() else { panic!("one batch") };
        let schema = batch.schema();
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names[..6], ["configuration", "settings", "seed", "step", "round", "step_s"]);
        assert_eq!(names[12..], ["x/y"]);
        let seconds = batch.column(5).as_primitive::<Float64Type>().values();
        assert_eq!(seconds.to_vec(), [2.0, 3.0, 2.0, 3.0]);
        let metric = batch.column(12).as_primitive::<Float64Type>();
        assert_eq!(metric.iter().collect::<Vec<_>>(), [Some(0.5), Some(0.5), None, None]);
    }
}
