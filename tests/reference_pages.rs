//! Compares pages of the book's reference with the program: the columns of its files in `docs/files.md`, and its commands in
//! `docs/commands.md`.
#![cfg(feature = "torch")]

mod workspace;

use std::fs::{self, File};
use std::path::Path;

use arrow_schema::{DataType, Field};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rollpacker::cli;
use serde_json::Value;
use workspace::{RECIPE, TestWorkspace};

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    fs::read_to_string(path).expect("the page")
}

/// Returns the rows of the first table of `docs/files.md` after the comment `<!-- mark -->`, without the header. Each row is its first
/// `columns` cells, without backticks.
fn table(mark: &str, columns: usize) -> Vec<Vec<String>> {
    let page = page("files.md");
    let (_, after) = page.split_once(&format!("<!-- {mark} -->")).expect("the mark");
    let rows = after.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    let cell = |cell: &str| cell.trim().replace('`', "");
    rows.map(|row| row.split('|').skip(1).take(columns).map(cell).collect()).collect()
}

/// Returns the name of a type as the page has it.
fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::List(item) => format!("List({})", type_name(item.data_type())),
        DataType::Struct(fields) => {
            let field =
                |field: &Field| format!("{}: {}", field.name(), type_name(field.data_type()));
            let fields: Vec<_> = fields.iter().map(|one| field(one)).collect();
            format!("Struct({})", fields.join(", "))
        }
        other => other.to_string(),
    }
}

/// Returns name, type and nullability of the columns of a Parquet file.
fn columns(path: &Path) -> Vec<Vec<String>> {
    let file = File::open(path).expect("the file");
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
    let null = |field: &Field| if field.is_nullable() { "yes" } else { "no" };
    let row = |field: &Field| {
        vec![field.name().clone(), type_name(field.data_type()), null(field).to_owned()]
    };
    reader.schema().fields().iter().map(|field| row(field)).collect()
}

/// Returns the dotted names of the fields of an object.
fn fields(prefix: &str, object: &Value) -> Vec<String> {
    let object = object.as_object().expect("an object");
    let names = object.iter().flat_map(|(name, value)| match value {
        Value::Object(_) => fields(&format!("{prefix}{name}."), value),
        _ => vec![format!("{prefix}{name}")],
    });
    names.collect()
}

#[test]
fn the_page_of_files_has_the_columns_of_every_parquet_file() {
    let workspace = TestWorkspace::new(RECIPE);
    workspace
        .train_ok(&["data.val_files=data/validation.parquet", "trainer.total_training_steps=1"]);
    workspace.ok(&[
        "profile",
        "--config",
        "recipe.toml",
        "--budget",
        "0.1",
        "--output",
        "profile.parquet",
    ]);
    workspace.ok(&["data", "convert", "data/train.parquet", "--output", "converted.parquet"]);
    for (mark, file) in [
        ("columns of rollouts/step_NNNNN.parquet", "run/rollouts/step_00001.parquet"),
        ("columns of validation/step_NNNNN.parquet", "run/validation/step_00001.parquet"),
        ("columns of a profile", "profile.parquet"),
        ("columns of prompts", "data/train.parquet"),
        ("columns of prompts", "converted.parquet"),
    ] {
        assert_eq!(table(mark, 3), columns(&workspace.path(file)), "{file}");
    }
}

#[test]
fn the_page_of_files_has_the_columns_of_simulated_steps() {
    let workspace = TestWorkspace::new(RECIPE);
    workspace.write("job.toml", "[sim]\nsteps = 1\nseeds = 1\n[data]\ntrain_batch_size = 16\n");
    workspace.ok(&["simulate", "--config", "job.toml", "--output", "steps.parquet"]);
    let (own, metrics): (Vec<_>, Vec<_>) = columns(&workspace.path("steps.parquet"))
        .into_iter()
        .partition(|column| !column[0].contains('/'));
    assert_eq!(table("columns of simulated steps", 3), own);
    assert!(metrics.iter().all(|column| column[1..] == ["Float64", "yes"]), "{metrics:?}");
}

#[test]
fn the_page_of_files_has_the_fields_of_the_summary() {
    let workspace = TestWorkspace::new(RECIPE);
    workspace.train_ok(&[
        "data.curriculum={}",
        "trainer.total_epochs=2",
        "trainer.total_training_steps=1",
    ]);
    let rows = table("fields of summary.json", 1).concat();
    let mut documented: Vec<_> =
        rows.iter().flat_map(|cell| cell.split(", ")).map(str::to_owned).collect();
    let mut found = fields("", &workspace.summary("run"));
    documented.sort();
    found.sort();
    assert_eq!(documented, found);
}

#[test]
fn the_page_of_commands_has_every_command() {
    let page = page("commands.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `rollpacker "));
    let documented: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    let command = cli::command();
    let commands: Vec<&str> = command.get_subcommands().map(|one| one.get_name()).collect();
    assert_eq!(documented, commands);
}
