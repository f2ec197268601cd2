use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, Int64Array, ListArray, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use expect_test::{Expect, expect};

use super::{Trace, TraceOptions, TraceRow};

fn written(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    std::fs::write(&path, text).expect("written");
    (folder, path)
}

fn parquet(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).expect("columns of one length");
    let file = std::fs::File::create(path).expect("made");
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).expect("a schema");
    writer.write(&batch).expect("written");
    writer.close().expect("closed");
}

fn tokens(trace: &Trace) -> Vec<u32> {
    trace.rows.iter().map(|row| row.tokens).collect()
}

fn check(name: &str, text: &str, expected: &[u32]) {
    let (_folder, path) = written(name, text);
    let trace = Trace::read(&path, &TraceOptions::default()).expect("read");
    assert_eq!(tokens(&trace), expected);
}

fn check_error(name: &str, text: &str, options: &TraceOptions<'_>, expected: Expect) {
    let (folder, path) = written(name, text);
    let error = Trace::read(&path, options).expect_err("refused").to_string();
    expected.assert_eq(&error.replace(&format!("{}/", folder.path().display()), ""));
}

fn named(column: &str) -> TraceOptions<'static> {
    TraceOptions { length_column: Some(column.to_owned()), ..TraceOptions::default() }
}

#[test]
fn common_names_of_length_columns_are_recognized() {
    check("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nx,374,44\ny,396,109\n", &[44, 109]);
    check("a.tsv", "id\toutput_tokens\n1\t7\n", &[7]);
    check("a.csv", "tokens\n374.0\n12\n1e3\n", &[374, 12, 1000]);
    check("a.jsonl", "{\"completion_tokens\": 3}\n\n{\"completion_tokens\": 4.0}\n", &[3, 4]);
    check("a.jsonl", "{\"response_ids\": [1, 2, 3], \"output\": \"x y\"}\n", &[3]);
}

#[test]
fn a_field_may_be_missing_in_the_first_line() {
    let text = "{\"response_length\": 3, \"finish_reason\": null}\n\
        {\"response_length\": 4, \"finish_reason\": \"abort\", \"prompt_id\": 7}\n";
    let (_folder, path) = written("a.jsonl", text);
    let trace = Trace::read(&path, &TraceOptions::default()).expect("read");
    let whole: Vec<_> = trace.rows.iter().map(|row| row.is_complete).collect();
    assert_eq!(whole, [true, false]);
    assert!(trace.rows[1].prompt.is_some(), "{trace:?}");
}

#[test]
fn own_rollouts_are_read_with_prompt_sample_step_and_aborts() {
    let folder = tempfile::tempdir().expect("a folder");
    let rollouts = folder.path().join("rollouts");
    std::fs::create_dir(&rollouts).expect("made");
    for (name, step) in [("step_00001.parquet", 1), ("step_00002.parquet", 2)] {
        parquet(
            &rollouts.join(name),
            vec![
                ("step", Arc::new(UInt64Array::from(vec![step; 2]))),
                ("prompt_id", Arc::new(UInt64Array::from(vec![70, 71]))),
                ("sample", Arc::new(UInt32Array::from(vec![0, 3]))),
                ("response_length", Arc::new(UInt32Array::from(vec![9, 5]))),
                ("finish_reason", Arc::new(StringArray::from(vec!["length", "abort"]))),
            ],
        );
    }
    let trace = Trace::read(folder.path(), &TraceOptions::default()).expect("read");
    let row = |step, prompt, sample, tokens, whole| TraceRow {
        prompt: Some(prompt),
        sample: Some(sample),
        step: Some(step),
        prompt_tokens: None,
        tokens,
        is_complete: whole,
    };
    assert_eq!(
        trace.rows,
        [
            row(1, 70, 0, 9, true),
            row(1, 71, 3, 5, false),
            row(2, 70, 0, 9, true),
            row(2, 71, 3, 5, false)
        ]
    );
    assert_eq!((trace.prompts(), trace.longest()), (2, 9));
    assert_eq!(trace.source.length_column, "response_length");
}

#[test]
fn a_paused_response_counts_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.jsonl");
    let row = |sample: u32, tokens: u32, reason: &str| {
        format!(
            r#"{{"prompt_id":1,"sample":{sample},"response_length":{tokens},"finish_reason":"{reason}"}}"#
        )
    };
    let rows = [
        row(0, 4, "pause"),
        row(1, 5, "abort"),
        row(2, 6, "pause"),
        row(0, 8, "pause"),
        row(1, 7, "stop"),
        row(0, 9, "stop"),
    ];
    std::fs::write(&path, rows.join("\n")).expect("written");
    let trace = Trace::read(&path, &TraceOptions::default()).expect("read");
    let found: Vec<_> = trace.rows.iter().map(|row| (row.tokens, row.is_complete)).collect();
    assert_eq!(found, [(5, false), (6, false), (7, true), (9, true)]);
}

#[test]
fn a_response_that_was_kept_whole_counts_once() {
    let row = |tokens: u32, resumed: u32, reason: &str| {
        format!(
            "{{\"prompt_id\":1,\"sample\":0,\"response_length\":{tokens},\"resumed_length\":{resumed},\"finish_reason\":\"{reason}\"}}\n"
        )
    };
    let kept = row(9, 0, "stop") + &row(9, 9, "stop");
    check("a.jsonl", &kept, &[9]);
    check("a.jsonl", &(kept + &row(9, 9, "length")), &[9]);
    check("a.jsonl", &row(9, 9, "stop"), &[9]);
    check("a.jsonl", &(row(9, 0, "pause") + &row(9, 9, "stop")), &[9]);
    check("a.jsonl", &(row(9, 0, "stop") + &row(9, 0, "stop")), &[9, 9]);
}

#[test]
fn files_of_other_programs_are_read() {
    check("a.jsonl", "\u{feff}{\"tokens\": 3}\r\n\r\n{\"tokens\": 4}\r\n", &[3, 4]);
    check("a.csv", "\u{feff}tokens\r\n3\r\n4\r\n", &[3, 4]);
    // serde_json rounds integers of more than 64 bits.
    let key = |key: &str| format!("{{\"uid\": {key}, \"tokens\": 3}}\n");
    let keys = key("100000000000000000000001") + &key("100000000000000000000002");
    assert_eq!(prompts("a.jsonl", &keys), [Some(0), Some(1)]);
}

#[test]
fn a_finish_reason_may_be_null_in_the_rows_that_determine_the_columns() {
    let null = "{\"tokens\": 3, \"finish_reason\": null}\n".repeat(64);
    let text = null + "{\"tokens\": 4, \"finish_reason\": \"abort\"}\n";
    let (_folder, path) = written("a.jsonl", &text);
    let trace = Trace::read(&path, &TraceOptions::default()).expect("read");
    assert!(trace.rows[0].is_complete && !trace.rows[64].is_complete);
}

#[test]
fn a_named_column_of_text_in_csv_is_counted() {
    let count = |text: &str| Ok(text.split(' ').count());
    let (_folder, path) = written("a.csv", "completion\none two\n42\n");
    let options = TraceOptions { count_tokens: Some(&count), ..named("completion") };
    assert_eq!(tokens(&Trace::read(&path, &options).expect("read")), [2, 1]);
}

#[test]
fn a_named_column_of_prompts_without_keys_is_refused() {
    let options = TraceOptions { prompt_column: Some("ids".to_owned()), ..Default::default() };
    check_error(
        "a.jsonl",
        "{\"ids\": [1], \"tokens\": 3}\n",
        &options,
        expect![
            "a.jsonl: column `ids`: expected a column of numbers or text that identifies prompts, found lists"
        ],
    );
}

#[test]
fn token_ids_are_counted_and_prompts_distinguished_by_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("completions.parquet");
    let ids = ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![Some(1); 4]),
        Some(vec![]),
        Some(vec![Some(1); 2]),
    ]);
    parquet(
        &path,
        vec![
            ("step", Arc::new(Int64Array::from(vec![1, 1, 1]))),
            ("prompt", Arc::new(StringArray::from(vec!["a", "b", "a"]))),
            ("completion_ids", Arc::new(ids)),
        ],
    );
    let trace = Trace::read(&path, &TraceOptions::default()).expect("read");
    assert_eq!(tokens(&trace), [4, 0, 2]);
    let prompts: Vec<_> = trace.rows.iter().map(|row| row.prompt).collect();
    assert_eq!(prompts, [Some(0), Some(1), Some(0)]);
}

fn prompts(name: &str, text: &str) -> Vec<Option<u64>> {
    let (_folder, path) = written(name, text);
    let trace = Trace::read(&path, &TraceOptions::default()).expect("read");
    trace.rows.iter().map(|row| row.prompt).collect()
}

// Text keys never get a number that is itself a key, whether it occurs before or after. The text of a number is equal to the number.
#[test]
fn keys_of_numbers_and_texts_do_not_collide() {
    let lines = ["\"b\"", "0", "\"1\"", "1", "1.0", "\"01\"", "\"b\"", "-1", "null"];
    let text: String =
        lines.iter().map(|key| format!("{{\"uid\": {key}, \"tokens\": 3}}\n")).collect();
    let expected = [Some(2), Some(0), Some(1), Some(1), Some(1), Some(3), Some(2), Some(4), None];
    assert_eq!(prompts("a.jsonl", &text), expected);
    assert_eq!(prompts("a.csv", "uid,tokens\nx,1\n0,1\n+0,1\n"), [Some(1), Some(0), Some(2)]);
}

#[test]
fn text_needs_a_tokenizer() {
    let dump = "{\"input\": \"1+1?\", \"output\": \"one two\", \"score\": 1.0, \"step\": 3}\n";
    let expected = expect![
        "3.jsonl: column `output`: expected a column of lengths in tokens such as `response_length`, token ids such as `response_ids`, or a tokenizer that counts the tokens of the text, found text"
    ];
    check_error("3.jsonl", dump, &TraceOptions::default(), expected);
    let (_folder, path) = written("3.jsonl", dump);
    let count = |text: &str| Ok(text.split(' ').count());
    let options = TraceOptions { count_tokens: Some(&count), ..TraceOptions::default() };
    let trace = Trace::read(&path, &options).expect("read");
    assert_eq!((trace.rows[0].tokens, trace.rows[0].step), (2, Some(3)));
    assert_eq!(trace.source.prompt_column.as_deref(), Some("input"));
}

#[test]
fn errors_name_file_row_and_column() {
    let expected =
        expect!["a.csv: row 1: column `tokens`: expected a whole number of tokens, found `many`"];
    check_error("a.csv", "tokens\n3\nmany\n", &TraceOptions::default(), expected);
    let expected =
        expect!["a.csv: row 0: column `tokens`: expected a whole number of tokens, found `-4`"];
    check_error("a.csv", "tokens\n-4\n", &TraceOptions::default(), expected);
    let expected =
        expect!["a.csv: column `lengths` is absent: expected one of that name, found a, b"];
    check_error("a.csv", "a,b\n1,2\n", &named("lengths"), expected);
    let expected =
        expect!["a.csv: column `response_length` is absent: expected one of that name, found a, b"];
    check_error("a.csv", "a,b\n1,2\n", &TraceOptions::default(), expected);
    let expected = expect!["a.jsonl: row 1: column `(the line)`: expected a JSON object, found 7"];
    check_error("a.jsonl", "{\"tokens\": 3}\n7\n", &TraceOptions::default(), expected);
    let expected = expect![
        "a.jsonl: row 1: column `tokens`: expected a whole number of tokens, found nothing"
    ];
    check_error("a.jsonl", "{\"tokens\": 3}\n{}\n", &TraceOptions::default(), expected);
    check_error(
        "a.csv",
        "tokens\n",
        &TraceOptions::default(),
        expect!["a.csv: expected at least one row, found 0"],
    );
    let expected =
        expect!["a.txt: expected a .parquet, .jsonl, .json, .csv or .tsv file, found `.txt`"];
    check_error("a.txt", "", &TraceOptions::default(), expected);
}

// Four responses end at 100, 200, 300 and 400; one is dropped at 150. By Kaplan-Meier, it becomes one of the last three with equal
// probability.
#[test]
fn dropped_responses_are_completed_from_longer_ones() {
    let row = |tokens, whole| TraceRow {
        prompt: None,
        sample: None,
        step: None,
        prompt_tokens: None,
        tokens,
        is_complete: whole,
    };
    let rows =
        vec![row(100, true), row(150, false), row(200, true), row(300, true), row(400, true)];
    let source = super::TraceSource {
        files: Vec::new(),
        length_column: String::new(),
        prompt_column: None,
        prompt_length_column: None,
    };
    let trace = Trace { rows, source };
    let mut grown = std::collections::BTreeMap::new();
    for seed in 0..600 {
        let rows = trace.uncensored(seed);
        assert_eq!((rows[0].tokens, rows[4].tokens), (100, 400));
        *grown.entry(rows[1].tokens).or_insert(0) += 1;
    }
    assert_eq!(grown.keys().copied().collect::<Vec<_>>(), [200, 300, 400]);
    assert!(grown.values().all(|&count| (150..=250).contains(&count)), "{grown:?}");
    let last = Trace { rows: vec![row(7, false)], ..trace };
    assert_eq!(last.uncensored(1), [row(7, true)]);
}

fn prompt_tokens(name: &str, text: &str, options: &TraceOptions<'_>) -> Vec<Option<u32>> {
    let (_folder, path) = written(name, text);
    let trace = Trace::read(&path, options).expect("read");
    trace.rows.iter().map(|row| row.prompt_tokens).collect()
}

#[test]
fn common_names_of_prompt_length_columns_are_recognized() {
    let found = |name: &str, text: &str| prompt_tokens(name, text, &TraceOptions::default());
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\nx,374,44\ny,,109\n";
    assert_eq!(found("a.csv", azure), [Some(374), None]);
    let ids = "{\"prompt_ids\": [1, 2, 3], \"prompt_id\": 7, \"completion_tokens\": 9}\n";
    assert_eq!(found("a.jsonl", ids), [Some(3)]);
    assert_eq!(found("a.csv", "tokens\n5\n"), [None]);
    // Text counts as a length only if its tokens can be counted.
    let text = "{\"prompt\": \"1 + 1\", \"tokens\": 9}\n";
    assert_eq!(found("a.jsonl", text), [None]);
    let count = |text: &str| Ok(text.split(' ').count());
    let counting = TraceOptions { count_tokens: Some(&count), ..TraceOptions::default() };
    assert_eq!(prompt_tokens("a.jsonl", text, &counting), [Some(3)]);
}

#[test]
fn a_named_column_of_prompt_lengths_is_read_or_refused() {
    let named = |column: &str| TraceOptions {
        prompt_length_column: Some(column.to_owned()),
        ..TraceOptions::default()
    };
    let text = "size,tokens,prompt_tokens\n12,3,4\n";
    assert_eq!(prompt_tokens("a.csv", text, &named("size")), [Some(12)]);
    check_error(
        "a.csv",
        text,
        &named("sizes"),
        expect![[
            r#"a.csv: column `sizes` is absent: expected one of that name, found size, tokens, prompt_tokens"#
        ]],
    );
    check_error(
        "a.csv",
        "size,tokens\nmany,3\n",
        &named("size"),
        expect!["a.csv: row 0: column `size`: expected a whole number of tokens, found `many`"],
    );
}

#[test]
fn azure_request_traces_are_read() {
    let Ok(shared) = std::env::var("ROLLPACKER_SHARED") else {
        let note = "skipped: ROLLPACKER_SHARED is not set";
        drop(writeln!(std::io::stderr(), "{note}"));
        return;
    };
    let path = Path::new(&shared).join("data/azure_llm_2023_conv.csv");
    let trace = Trace::read(&path, &TraceOptions::default()).expect("read");
    assert_eq!((trace.rows.len(), trace.rows[0].tokens), (19_366, 44));
}
