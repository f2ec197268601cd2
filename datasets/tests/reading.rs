//! Tests of reading: the order of rows, cursors, windows and columns.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod made;

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::basic::{BrotliLevel, Compression as Codec, GzipLevel, ZstdLevel};
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;
use rollpacker_datasets::validate::validate;
use rollpacker_datasets::{
    Cursor, Dataset, DatasetConfig, DatasetError, Prompt, PromptColumns, Records,
};
use serde_json::json;

use crate::made::{Folder, text};

fn config(files: Vec<String>, shuffle: bool) -> DatasetConfig {
    DatasetConfig { shuffle, seed: 3, window_rows: 64, ..DatasetConfig::of(files) }
}

fn rows(prompts: impl Iterator<Item = Result<Prompt, DatasetError>>) -> Vec<(u32, u64, String)> {
    prompts
        .map(|prompt| {
            let prompt = prompt.unwrap();
            (prompt.epoch(), prompt.row(), text(&prompt))
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_cursor_resumes_exactly(
        sizes in prop::collection::vec(1_usize..150, 1..4), at in 0_usize..600, shuffle: bool, jsonl: bool,
        max_samples in prop::option::of(1_u64..200)
    ) {
        let folder = Folder::new();
        let files = folder.numbered(&sizes, jsonl);
        let dataset = Dataset::open(DatasetConfig { max_samples, ..config(files, shuffle) }).unwrap();
        let mut prompts = dataset.prompts(Cursor::default()).unwrap().until_epoch(3);
        let head: Vec<_> = rows(prompts.by_ref().take(at));
        let cursor = serde_json::from_str(&serde_json::to_string(&prompts.cursor()).unwrap()).unwrap();
        let rest = rows(prompts);
        let resumed = rows(dataset.prompts(cursor).unwrap().until_epoch(3));
        prop_assert_eq!(&resumed, &rest);
        if let Some((epoch, row, _)) = head.last() {
            let cursor = dataset.cursor_after(*epoch, *row).unwrap();
            prop_assert_eq!(rows(dataset.prompts(cursor).unwrap().until_epoch(3)), rest.clone());
        }
        prop_assert!(dataset.cursor_after(0, 450).is_none());
        prop_assert_eq!(head.len() + rest.len(), 3 * dataset.len() as usize);
    }

    #[test]
    fn every_epoch_has_every_row_once(sizes in prop::collection::vec(1_usize..150, 1..4), shuffle: bool, jsonl: bool) {
        let folder = Folder::new();
        let dataset = Dataset::open(config(folder.numbered(&sizes, jsonl), shuffle)).unwrap();
        let all = rows(dataset.prompts(Cursor::default()).unwrap().until_epoch(2));
        let total: usize = sizes.iter().sum();
        for epoch in all.chunks(total) {
            let seen: HashSet<_> = epoch.iter().map(|(_, row, _)| *row).collect();
            prop_assert_eq!(seen.len(), total);
            let right = epoch.iter().all(|(_, row, text)| *text == format!("question {row}"));
            prop_assert!(right);
        }
        let in_order = all.iter().take(total).map(|(_, row, _)| *row).eq(0..total as u64);
        prop_assert!(in_order || shuffle);
    }
}

#[test]
fn a_row_group_may_be_larger_than_the_window_and_have_no_page_index() {
    let folder = Folder::new();
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..9000).map(|row| format!("question {row}"))));
    let file = folder.grouped("one.parquet", vec![("prompt", texts)], 9000);
    let dataset =
        Dataset::open(DatasetConfig { window_rows: 2000, ..config(vec![file], true) }).unwrap();
    let all = rows(dataset.prompts(Cursor::default()).unwrap().until_epoch(1));
    assert!(all.iter().all(|(_, row, text)| *text == format!("question {row}")));
    let first: HashSet<_> = all[..1900].iter().map(|row| row.1 / 1000).collect();
    assert_eq!(
        (all.iter().map(|row| row.1).collect::<HashSet<_>>().len(), first.len()),
        (9000, 9),
        "the first rows are from all parts of the file"
    );
}

#[test]
fn a_choice_of_rows_stays_the_same_over_epochs() {
    let folder = Folder::new();
    let dataset = Dataset::open(DatasetConfig {
        max_samples: Some(40),
        ..config(folder.numbered(&[200, 90], false), true)
    })
    .unwrap();
    let all = rows(dataset.prompts(Cursor::default()).unwrap().until_epoch(2));
    let set = |epoch: u32| {
        all.iter().filter(|row| row.0 == epoch).map(|row| row.1).collect::<HashSet<_>>()
    };
    assert_eq!((set(0).len(), set(0) == set(1)), (40, true));
    assert!(set(0).iter().any(|row| *row >= 40));
    assert!(all.iter().all(|(_, row, text)| *text == format!("question {row}")));
}

#[test]
fn epochs_are_unbounded_and_a_foreign_cursor_is_refused() {
    let folder = Folder::new();
    let files = folder.numbered(&[10], false);
    let dataset = Dataset::open(config(files.clone(), true)).unwrap();
    assert_eq!(
        dataset.prompts(Cursor::default()).unwrap().take(95).last().unwrap().unwrap().epoch(),
        9
    );
    let cursor = dataset.prompts(Cursor::default()).unwrap().cursor();
    let other = Dataset::open(DatasetConfig { seed: 4, ..config(files, true) }).unwrap();
    assert!(matches!(other.prompts(cursor), Err(DatasetError::ForeignCursor { .. })));
    let cursor = Cursor { offset: 11, ..Cursor::default() };
    assert!(matches!(
        dataset.prompts(cursor),
        Err(DatasetError::CursorRange { rows: 10, offset: 11 })
    ));
}

#[test]
fn reading_continues_after_a_bad_row() {
    let folder = Folder::new();
    let file = folder.lines(
        "a.jsonl",
        &[json!({"prompt": "a"}), json!({"prompt": null}), json!({"prompt": "c"})],
    );
    let dataset = Dataset::open(DatasetConfig::of([file])).unwrap();
    let prompts: Vec<_> = dataset.prompts(Cursor::default()).unwrap().until_epoch(1).collect();
    assert_eq!(prompts.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert!(prompts[1].as_ref().unwrap_err().is_row());
}

#[test]
fn columns_can_be_renamed_and_added() {
    let folder = Folder::new();
    let line = json!({"q": "why?", "prompt": "not this", "a": {"b": [1, 2]}, "from": "me", "kind": "code", "level": 5, "more": 1});
    let columns = PromptColumns {
        prompt: Some("q".into()),
        ground_truth: Some("a.b".into()),
        data_source: Some("from".into()),
        domain: Some("kind".into()),
        extra_info: None,
    };
    let config = DatasetConfig {
        columns,
        extra_columns: vec!["level".into()],
        ..DatasetConfig::of([folder.lines("a.jsonl", &[line])])
    };
    let prompt =
        Dataset::open(config).unwrap().prompts(Cursor::default()).unwrap().next().unwrap().unwrap();
    assert_eq!(text(&prompt), "why?");
    assert_eq!(prompt.ground_truth().as_deref(), Some("[1,2]"));
    assert_eq!((prompt.data_source(), prompt.domain()), ("me", "code"));
    assert_eq!(prompt.extra_info_json(), r#"{"level":5}"#);
}

#[test]
fn a_field_may_be_missing_in_the_first_row() {
    let folder = Folder::new();
    let row = |truth: serde_json::Value| json!({"prompt": "x", "reward_model": truth});
    let (none, null, seven) =
        (json!({}), json!({"ground_truth": null}), json!({"ground_truth": "7"}));
    let file = folder.lines("a.jsonl", &[row(none), row(null), row(seven)]);
    let dataset = Dataset::open(config(vec![file], false)).unwrap();
    let prompts = dataset.prompts(Cursor::default()).unwrap().until_epoch(1);
    let truth = |prompt: Prompt| prompt.ground_truth().map(std::borrow::Cow::into_owned);
    let truths: Vec<_> = prompts.map(|prompt| truth(prompt.unwrap())).collect();
    assert_eq!(truths, [None, None, Some("7".to_owned())]);
}

#[test]
fn settings_out_of_bounds_are_named_with_their_value() {
    let folder = Folder::new();
    let file = folder.lines("a.jsonl", &[json!({"prompt": "x"})]);
    for window_rows in [63, u64::from(u32::MAX), 1 << 40] {
        let config = DatasetConfig { window_rows, ..DatasetConfig::of([file.clone()]) };
        let error = Dataset::open(config).expect_err("refused").to_string();
        let expected = format!("`window_rows`: expected 64 to 4294967294, found {window_rows}");
        assert_eq!(error, expected);
    }
}

#[test]
fn a_text_prompt_that_is_json_but_no_messages_is_text() {
    let folder = Folder::new();
    let texts = ["[]", r#"[{"a": 1}]"#, "[1, 2]", r#"[{"role": "user", "content": "hi"}]"#];
    let lines = texts.map(|text| json!({"prompt": text}));
    let column: ArrayRef = Arc::new(StringArray::from(texts.to_vec()));
    for file in
        [folder.lines("a.jsonl", &lines), folder.columns("a.parquet", vec![("prompt", column)])]
    {
        let dataset = Dataset::open(config(vec![file], false)).unwrap();
        let prompts = dataset.prompts(Cursor::default()).unwrap().until_epoch(1);
        let read: Vec<_> = prompts.map(|prompt| text(&prompt.unwrap())).collect();
        assert_eq!(read, [texts[0], texts[1], texts[2], "hi"]);
    }
}

#[test]
fn missing_columns_have_defaults() {
    let folder = Folder::new();
    let file = folder.lines("a.jsonl", &[json!({"messages": [{"role": "user", "content": "x"}]})]);
    let row = Dataset::open(DatasetConfig::of([file]))
        .unwrap()
        .prompts(Cursor::default())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .to_row();
    let expected = json!({"row": 0, "epoch": 0, "data_source": "unknown", "domain": "unknown",
        "messages": [{"role": "user", "content": "x"}], "ground_truth": null, "extra_info": {}});
    assert_eq!(serde_json::to_value(row).unwrap(), expected);
}

#[test]
fn long_prompts_are_left_out_and_counted() {
    let folder = Folder::new();
    let dataset = Dataset::open(DatasetConfig::of(folder.numbered(&[120], false))).unwrap();
    let measure = |prompt: &Prompt| (prompt.chars(), ());
    let mut kept =
        dataset.prompts(Cursor::default()).unwrap().until_epoch(1).filter_by_length(11, measure);
    assert_eq!(kept.by_ref().map(Result::unwrap).count(), 100);
    assert_eq!((kept.stats().prompts, kept.stats().longest), (20, 12));
    assert_eq!(kept.stats().by_data_source.get("made"), Some(&20));
    let mut none = dataset.prompts(Cursor::default()).unwrap().filter_by_length(3, measure);
    assert!(matches!(
        none.next(),
        Some(Err(DatasetError::AllFiltered { epoch: 0, limit: 3, shortest: 10 }))
    ));
    assert!(matches!(none.next(), Some(Err(DatasetError::AllFiltered { epoch: 1, .. }))));
    assert_eq!(none.stats().prompts, 240);
    let mut none =
        dataset.prompts(Cursor::default()).unwrap().until_epoch(1).filter_by_length(3, measure);
    assert!(matches!(
        none.next(),
        Some(Err(DatasetError::AllFiltered { epoch: 0, limit: 3, shortest: 10 }))
    ));
    assert!(none.next().is_none());
}

#[test]
fn every_codec_of_other_writers_is_read() {
    let folder = Folder::new();
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..300).map(|row| format!("question {row}"))));
    let batch = RecordBatch::try_from_iter([("prompt", texts)]).unwrap();
    let codecs = [
        Codec::UNCOMPRESSED,
        Codec::SNAPPY,
        Codec::GZIP(GzipLevel::default()),
        Codec::BROTLI(BrotliLevel::default()),
        Codec::LZ4,
        Codec::LZ4_RAW,
        Codec::ZSTD(ZstdLevel::default()),
    ];
    for codec in codecs {
        let path = folder.path("codec.parquet");
        let properties = WriterProperties::builder().set_compression(codec).build();
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let files = vec![path.display().to_string()];
        let dataset = Dataset::open(config(files, false)).unwrap();
        let read = rows(dataset.prompts(Cursor::default()).unwrap().until_epoch(1));
        assert_eq!(read.len(), 300, "{codec:?}");
        assert_eq!(read[299].2, "question 299", "{codec:?}");
    }
}

/// Returns the first error of reading a dataset, without its folder.
fn first_error(folder: &Folder, config: DatasetConfig) -> String {
    let first = |dataset: Dataset| {
        let mut prompts = dataset.prompts(Cursor::default()).unwrap().until_epoch(1);
        prompts.find_map(Result::err).unwrap()
    };
    folder.strip(&Dataset::open(config).map_or_else(|error| error, first).to_string())
}

/// Rows count from 0 without blank lines; lines count from 1 with them.
#[test]
fn an_error_of_json_names_its_line_in_the_file() {
    let folder = Folder::new();
    let good = "\n{\"prompt\": \"x\"}\n".repeat(100);
    let file = folder.bytes("broken.jsonl", format!("{good}\n{{\"prompt\": }}\n").as_bytes());
    let expected = "broken.jsonl: row 100: column `(the line)`: expected a JSON object, found expected value at line 202 column 12";
    for shuffle in [false, true] {
        assert_eq!(first_error(&folder, config(vec![file.clone()], shuffle)), expected);
    }
    let error = Records::open(file.as_ref()).unwrap().find_map(Result::err).unwrap();
    assert_eq!(folder.strip(&error.to_string()), expected);

    let first = folder.bytes("first.jsonl", b"\n\n{]\n");
    let error = first_error(&folder, DatasetConfig::of([first]));
    assert!(error.ends_with("key must be a string at line 3 column 2"), "{error}");
    let info = folder.lines("info.jsonl", &[json!({"prompt": "x", "extra_info": "{]"})]);
    let error = first_error(&folder, DatasetConfig::of([info]));
    assert!(error.ends_with("key must be a string at line 1 column 2 of the text"), "{error}");
}

#[test]
fn messages_with_contents_that_are_no_text_are_refused() {
    let folder = Folder::new();
    let parts = r#"[{"role":"user","content":[1]}]"#;
    for column in ["prompt", "messages"] {
        let texts: ArrayRef = Arc::new(StringArray::from(vec![parts]));
        for file in [
            folder.lines("parts.jsonl", &[json!({ column: parts })]),
            folder.columns("parts.parquet", vec![(column, texts)]),
        ] {
            let error = first_error(&folder, DatasetConfig::of([file]));
            let expected = "expected messages whose `content` is text, or a list of parts of the type `text`, found [1]";
            assert!(error.ends_with(&format!("`{column}`: {expected}")), "{error}");
        }
    }
}

/// pandas marks missing values with NaN, and JSON has no infinite numbers.
#[test]
fn a_ground_truth_that_is_no_finite_number_is_missing() {
    let folder = Folder::new();
    let prompts: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c", "d"]));
    let floats = vec![Some(1.5), Some(f64::NAN), Some(f64::NEG_INFINITY), None];
    let truths: ArrayRef = Arc::new(Float64Array::from(floats));
    let file = folder.columns("floats.parquet", vec![("prompt", prompts), ("answer", truths)]);
    let dataset = Dataset::open(DatasetConfig::of([file.clone()])).unwrap();
    let read = dataset.prompts(Cursor::default()).unwrap().until_epoch(1);
    let truths: Vec<_> = read.map(|prompt| prompt.unwrap().to_row().ground_truth).collect();
    assert_eq!(truths, [Some("1.5".to_owned()), None, None, None]);
    let defects = validate(&DatasetConfig::of([file]), 3).unwrap().defects;
    let places = defects.iter().flat_map(|defect| &defect.first);
    let found: Vec<_> = places.map(|place| (place.row, place.found.as_str())).collect();
    assert_eq!(found, [(Some(1), "NaN"), (Some(2), "-inf"), (Some(3), "null")]);
}

/// A file with a column `prompt` and one row `aaaaaaaa`, uncompressed, with a page checksum, as pyarrow 26 writes it.
const WITH_CHECKSUM: &str = "504152311500152415241591bf93d60f1c15021500150615061c00000002000000020108000000616161616161616115\
    04192c35001806736368656d61150200150c2502180670726f6d707425004c1c0000001602191c191c26001c150c1925060019180670726f6d7074150016\
    02165616562608491c150015001502003c16101906192600020000001656160226081656002820706172717565742d6370702d6172726f77207665727369\
    6f6e2032362e302e31191c1c0000008c00000050415231";

#[test]
fn a_page_that_does_not_match_its_checksum_is_damaged() {
    let folder = Folder::new();
    let hex = WITH_CHECKSUM.as_bytes().chunks(2);
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let mut bytes: Vec<u8> = hex.map(digits).collect();
    let mut read = |at: usize, with: u8| {
        bytes[at] = with;
        let files = vec![folder.bytes("checked.parquet", &bytes)];
        let prompts = Dataset::open(config(files.clone(), false)).unwrap();
        let prompt = prompts.prompts(Cursor::default()).unwrap().next().unwrap();
        let record = Records::open(files[0].as_ref()).unwrap().next().unwrap();
        (prompt.map(|prompt| text(&prompt)), record.is_ok())
    };
    let text_at = 39;
    let (prompt, record) = read(text_at, b'a');
    assert_eq!((prompt.unwrap().as_str(), record), ("aaaaaaaa", true));
    let (prompt, record) = read(text_at, b'b');
    let error = prompt.unwrap_err();
    assert!(matches!(error, DatasetError::Damaged { row: 0, .. }) && !record, "{error}");
}
