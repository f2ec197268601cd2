//! Tests of conversion and generation.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod made;

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, ListArray, StringArray};
use rollpacker_datasets::convert::{OutputFormat, convert};
use rollpacker_datasets::generate::{ChainConfig, ChainLengths, DATA_SOURCE, generate};
use rollpacker_datasets::validate::validate;
use rollpacker_datasets::{
    Compression, Cursor, Dataset, DatasetConfig, DatasetError, PromptRow, WriteOptions, inspect,
};
use serde_json::{Map, Value, json};

use crate::made::Folder;

fn all(file: &str) -> DatasetConfig {
    DatasetConfig { extra_columns: vec!["*".to_owned()], ..DatasetConfig::of([file]) }
}

fn rows(config: DatasetConfig) -> Vec<PromptRow> {
    let dataset = Dataset::open(config).unwrap();
    dataset
        .prompts(Cursor::default())
        .unwrap()
        .until_epoch(1)
        .map(|prompt| prompt.unwrap().to_row())
        .collect()
}

fn roll_line(id: u32) -> Value {
    let messages = json!([{"role": "system", "content": "\"think\""}, {"role": "user", "content": format!("é {id}")}]);
    json!({"id": id.to_string(), "domain": "math", "source": "here", "difficulty": "2.0", "prompt": format!("é {id}"),
        "messages": messages.to_string(), "ground_truth": "x", "case_type": "", "test_case_function": "", "test_cases": "",
        "tag": "t", "level": id})
}

#[test]
fn rows_survive_every_format_and_back() {
    let folder = Folder::new();
    let lines: Vec<Value> = (0..70).map(roll_line).collect();
    let start = folder.lines("roll.jsonl", &lines);
    let options = WriteOptions { compression: Compression::Zstd, row_group_rows: 32 };
    let to = |from: &str, name: &str, format| {
        let output = folder.path(name);
        assert_eq!(convert(&all(from), &output, format, options).unwrap(), 70);
        output.to_str().unwrap().to_owned()
    };
    let verl = to(&start, "a.parquet", OutputFormat::Verl);
    let messages = to(&verl, "b.jsonl", OutputFormat::Messages);
    let verl_again = to(&messages, "c.parquet", OutputFormat::Verl);
    let roll = to(&verl_again, "d.jsonl", OutputFormat::Roll);
    let expected = rows(all(&start));
    for file in [&verl, &messages, &verl_again] {
        assert_eq!(rows(all(file)), expected, "{file}");
    }
    let text = std::fs::read_to_string(roll).unwrap();
    let back: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let same_messages =
        |line: &Value| serde_json::from_str::<Value>(line["messages"].as_str().unwrap()).unwrap();
    for (line, back) in lines.iter().zip(&back) {
        assert_eq!(same_messages(line), same_messages(back));
        let rest = |line: &Value| {
            line.as_object().unwrap().iter().filter(|(name, _)| *name != "messages").count()
        };
        assert!(
            line.as_object()
                .unwrap()
                .iter()
                .all(|(name, value)| name == "messages" || back[name] == *value),
            "{back}"
        );
        assert_eq!(rest(line), rest(back));
    }
}

/// Converts a file of the given JSON lines to a format, and returns the rows of the converted file.
fn converted(folder: &Folder, lines: &[Value], format: OutputFormat) -> Vec<PromptRow> {
    let start = folder.lines("start.jsonl", lines);
    let name = if format == OutputFormat::Verl { "end.parquet" } else { "end.jsonl" };
    let output = folder.path(name);
    convert(&all(&start), &output, format, WriteOptions::default()).unwrap();
    rows(all(output.to_str().unwrap()))
}

#[test]
fn columns_that_only_later_rows_have_are_kept() {
    let line = |row: u64| match row {
        0..70 => json!({"prompt": row.to_string()}),
        _ => {
            json!({"prompt": row.to_string(), "data_source": "late", "answer": row, "tag": "t", "late": row,
            "extra_info": {"index": row}})
        }
    };
    let folder = Folder::new();
    let lines: Vec<Value> = (0..100).map(line).collect();
    for format in [OutputFormat::Verl, OutputFormat::Messages] {
        let rows = converted(&folder, &lines, format);
        assert_eq!(
            (rows[69].ground_truth.as_deref(), rows[69].data_source.as_str()),
            (None, "unknown")
        );
        let last = &rows[99];
        assert_eq!((last.data_source.as_str(), last.domain.as_str()), ("late", "t"));
        assert_eq!(last.ground_truth.as_deref(), Some("99"));
        assert_eq!(Value::Object(last.extra_info.clone()), json!({"late": 99, "index": 99}));
    }
}

#[test]
fn a_null_answer_and_a_nested_extra_info_survive_the_columns_of_roll() {
    let folder = Folder::new();
    let extra = json!({"extra_info": {"x": 1}, "domain": "d"});
    let lines = [
        json!({"prompt": "a", "answer": null, "extra_info": extra}),
        json!({"prompt": "b", "answer": ""}),
    ];
    let rows = converted(&folder, &lines, OutputFormat::Roll);
    assert_eq!(rows[0].ground_truth, None);
    assert_eq!(rows[1].ground_truth.as_deref(), Some(""));
    assert_eq!(rows[0].extra_info["extra_info"], json!({"x": 1}));
    assert_eq!(rows[0].extra_info["domain"], json!("d"));
}

#[test]
fn an_extra_info_with_too_many_fields_is_json_text() {
    let folder = Folder::new();
    let line =
        |row: usize| json!({"prompt": row.to_string(), "extra_info": {format!("key{row}"): row}});
    let lines: Vec<Value> = (0..1100).map(line).collect();
    let rows = converted(&folder, &lines, OutputFormat::Verl);
    assert_eq!(Value::Object(rows[1099].extra_info.clone()), json!({"key1099": 1099}));

    // One object alone may have too many fields.
    let wide: Map<String, Value> = (0..1100).map(|key| (key.to_string(), json!(key))).collect();
    let line = json!({"prompt": "x", "extra_info": wide});
    let read = converted(&folder, std::slice::from_ref(&line), OutputFormat::Verl);
    assert_eq!(Value::Object(read[0].extra_info.clone()), line["extra_info"]);
    let output = folder.path("end.parquet");
    let columns = inspect(&all(output.to_str().unwrap()), 0).unwrap().files[0].columns.clone();
    assert!(columns.contains(&("extra_info".to_owned(), "string".to_owned())), "{columns:?}");
}

#[test]
fn long_integers_in_json_text_keep_their_digits() {
    let folder = Folder::new();
    let long = "1267650600228229401496703205376";
    let extra: ArrayRef = Arc::new(StringArray::from(vec![format!("{{\"n\":{long}}}")]));
    let prompts: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    let file = folder.columns("a.parquet", vec![("prompt", prompts), ("extra_info", extra)]);
    assert_eq!(rows(all(&file))[0].extra_info["n"], json!(long));
}

#[test]
fn a_list_of_tags_is_no_domain() {
    let folder = Folder::new();
    let tags: ArrayRef =
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([Some([Some(1)])]));
    let text = |text: &str| -> ArrayRef { Arc::new(StringArray::from(vec![text])) };
    let columns = vec![("problem", text("a")), ("domain", tags), ("ability", text("math"))];
    let parquet = folder.columns("tags.parquet", columns);
    let line = json!({"problem": "a", "domain": [1], "ability": "math"});
    for file in [parquet, folder.lines("tags.jsonl", &[line])] {
        let row = rows(all(&file)).remove(0);
        assert_eq!(
            (row.domain.as_str(), &row.extra_info["domain"]),
            ("math", &json!([1])),
            "{file}"
        );
    }
}

#[test]
fn a_bad_row_leaves_no_partial_file() {
    let folder = Folder::new();
    let file = folder.lines("a.jsonl", &[json!({"prompt": "a"}), json!({"prompt": ""})]);
    let output = folder.path("b.jsonl");
    let error =
        convert(&all(&file), &output, OutputFormat::Messages, WriteOptions::default()).unwrap_err();
    assert!(matches!(error, DatasetError::BadRow { row: 1, .. }), "{error}");
    assert_eq!(
        std::fs::read_dir(output.parent().unwrap()).unwrap().count(),
        1,
        "the folder contains only the input"
    );
}

fn demonstration(row: &PromptRow) -> &str {
    row.extra_info["demonstration"].as_str().unwrap()
}

#[test]
fn the_built_in_task_is_valid() {
    let folder = Folder::new();
    let config =
        ChainConfig { rows: 4000, validation_rows: 500, seed: 5, ..ChainConfig::default() };
    let made = generate(&config, &folder.path("task"), WriteOptions::default()).unwrap();
    assert!(made.longest_solution_chars >= 8 * made.median_solution_chars, "{made:?}");
    let files = [&made.train, &made.validation].map(|file| file.to_str().unwrap());
    let report = validate(&DatasetConfig::of(files), 1).unwrap();
    assert_eq!(
        (report.rows, report.errors, report.warnings),
        (4500, 0, 0),
        "no prompt comes twice"
    );

    let (train, validation) = (rows(all(files[0])), rows(all(files[1])));
    let answer = |row: &PromptRow| format!("A:{}", row.ground_truth.clone().unwrap());
    assert!(train.iter().all(|row| demonstration(row).ends_with(&answer(row)) && row.data_source == DATA_SOURCE));
    let direct = train.iter().filter(|row| demonstration(row) == answer(row)).count();
    assert!((2450..2750).contains(&direct), "{direct} of 4000, standard deviation 30");
    assert!(validation.iter().all(|row| !row.extra_info.contains_key("demonstration")));
    let answers: HashSet<_> = train.iter().map(|row| row.ground_truth.clone()).collect();
    assert_eq!(answers.len(), 10);
}

/// Short prompts run out, so later draws are longer. The held-out prompts must represent all draws, and any part of their file must
/// represent the whole.
#[test]
fn validation_has_the_distribution_of_training() {
    let folder = Folder::new();
    let config = ChainConfig { rows: 12_000, validation_rows: 4_000, ..ChainConfig::default() };
    let made = generate(&config, &folder.path("task"), WriteOptions::default()).unwrap();
    let steps = |file: &std::path::Path| -> Vec<f64> {
        let rows = rows(DatasetConfig { shuffle: false, ..all(file.to_str().unwrap()) });
        rows.iter().map(|row| row.extra_info["steps"].as_f64().unwrap()).collect()
    };
    let (train, validation) = (steps(&made.train), steps(&made.validation));
    let mean = |steps: &[f64]| steps.iter().sum::<f64>() / steps.len() as f64;
    let (expected, whole, half) = (mean(&train), mean(&validation), mean(&validation[..2_000]));
    // The standard deviation of a prompt is 8.5 maps; that of the means is 0.16 and 0.2.
    assert!((whole - expected).abs() < 0.5, "{whole} maps against {expected}");
    assert!((half - expected).abs() < 0.6, "{half} maps in the first half against {expected}");
}

#[test]
fn the_same_seed_makes_the_same_files() {
    let folder = Folder::new();
    let make = |name: &str, seed| {
        let config = ChainConfig { rows: 300, validation_rows: 20, seed, ..ChainConfig::default() };
        let made = generate(&config, &folder.path(name), WriteOptions::default()).unwrap();
        std::fs::read(made.train).unwrap()
    };
    assert_eq!(make("a", 1), make("b", 1));
    assert_ne!(make("a", 1), make("c", 2));
}

#[test]
fn invalid_generator_settings_are_refused() {
    let folder = Folder::new();
    let error = |config| {
        generate(&config, &folder.path("no"), WriteOptions::default()).unwrap_err().to_string()
    };
    let share = ChainConfig { direct_share: 1.5, ..ChainConfig::default() };
    assert_eq!(error(share), "`direct_share`: expected 0 to 1, found 1.5");
    let none = ChainConfig {
        lengths: ChainLengths { max: 0, ..ChainLengths::default() },
        ..ChainConfig::default()
    };
    assert_eq!(error(none), "`lengths.max`: expected 1 to 4096, found 0");
    let short = ChainLengths { median: 1.0, sigma: 0.0, max: 1 };
    let few = error(ChainConfig {
        rows: 200,
        validation_rows: 1,
        lengths: short,
        ..ChainConfig::default()
    });
    assert_eq!(
        few,
        "`rows`: expected fewer rows or longer prompts, found 200, but no more than 120 short prompts differ"
    );
}
