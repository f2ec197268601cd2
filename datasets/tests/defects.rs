//! Defects of a dataset are reported with file, row, column, expected and found.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

mod made;

use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder, StructBuilder};
use arrow_array::{
    Array, ArrayRef, Int64Array, LargeStringArray, ListArray, StringArray, StructArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Fields};
use expect_test::{Expect, expect};
use proptest::prelude::*;
use rollpacker_datasets::validate::{DefectKind, Validation, validate};
use rollpacker_datasets::{Cursor, Dataset, DatasetConfig, PromptColumns};
use serde_json::json;

use crate::made::{Folder, numbered, prompt, text};

type Chat<'a> = Option<Vec<(Option<&'a str>, Option<&'a str>)>>;

fn chats(rows: Vec<Chat<'_>>) -> ArrayRef {
    let fields: Fields = ["role", "content"]
        .into_iter()
        .map(|name| Field::new(name, DataType::Utf8, true))
        .collect();
    let mut builder = ListBuilder::new(StructBuilder::from_fields(fields, 8));
    for row in rows {
        for (role, content) in row.iter().flatten() {
            let message = builder.values();
            message.field_builder::<StringBuilder>(0).unwrap().append_option(*role);
            message.field_builder::<StringBuilder>(1).unwrap().append_option(*content);
            message.append(true);
        }
        builder.append(row.is_some());
    }
    Arc::new(builder.finish())
}

/// Returns chats of one message each, with names of called tools; `None` is a null list.
fn chats_with_calls(rows: &[Option<&[&str]>]) -> ArrayRef {
    let item = Arc::new(Field::new_list_field(DataType::Utf8, true));
    let fields: Fields = [
        ("role", DataType::Utf8),
        ("content", DataType::Utf8),
        ("tool_calls", DataType::List(item)),
    ]
    .map(|(name, data_type)| Field::new(name, data_type, true))
    .into_iter()
    .collect();
    let texts = |text: &str| Arc::new(StringArray::from(vec![text; rows.len()])) as ArrayRef;
    let mut calls = ListBuilder::new(StringBuilder::new());
    for row in rows {
        calls.append_option(row.map(|names| names.iter().map(|&name| Some(name))));
    }
    let columns = vec![texts("user"), texts("hi"), Arc::new(calls.finish())];
    let messages = StructArray::new(fields, columns, None);
    let item = Arc::new(Field::new_list_field(messages.data_type().clone(), true));
    let offsets = OffsetBuffer::from_lengths(rows.iter().map(|_| 1));
    Arc::new(ListArray::new(item, offsets, Arc::new(messages), None))
}

fn user(content: &str) -> Chat<'_> {
    Some(vec![(Some("user"), Some(content))])
}

/// Returns the first error of opening or reading a dataset.
fn first_error(folder: &Folder, config: DatasetConfig) -> String {
    let error = match Dataset::open(config) {
        Err(error) => error,
        Ok(dataset) => dataset
            .prompts(Cursor::default())
            .unwrap()
            .until_epoch(1)
            .find_map(Result::err)
            .unwrap(),
    };
    folder.strip(&error.to_string())
}

fn check(folder: &Folder, file: String, expect: Expect) {
    expect.assert_eq(&first_error(folder, DatasetConfig::of([file])));
}

#[test]
fn files_that_are_not_datasets() {
    let folder = Folder::new();
    let good = folder.prompts("good.parquet", (0..3).map(numbered));
    let bytes = std::fs::read(good).unwrap();
    check(
        &folder,
        folder.bytes("half.parquet", &bytes[..bytes.len() / 2]),
        expect![
            "half.parquet: truncated: expected `PAR1` at its end, found `esti` after 1095 bytes"
        ],
    );
    check(
        &folder,
        folder.bytes("text.parquet", b"hello, world"),
        expect!["text.parquet: not a Parquet file: expected `PAR1` at its beginning, found `hell`"],
    );
    check(
        &folder,
        folder.bytes("empty.parquet", b""),
        expect![
            "empty.parquet: not a Parquet file: expected `PAR1` at its beginning, found nothing"
        ],
    );
    check(
        &folder,
        folder.bytes("empty", b""),
        expect!["empty: expected a .parquet, .jsonl or .json file, found an empty file"],
    );
    check(
        &folder,
        folder.bytes("table.csv", b"a,b\n"),
        expect![
            "table.csv: expected a .parquet, .jsonl or .json file, found content that begins with 0x612c620a"
        ],
    );
    check(
        &folder,
        folder.bytes("rows.jsonl.gz", b"\x1f\x8b\x08\x00"),
        expect![
            "rows.jsonl.gz: expected a .parquet, .jsonl or .json file, found gzip data: decompress the file"
        ],
    );
    check(
        &folder,
        folder.bytes("zipped.parquet", b"PK\x03\x04"),
        expect![
            "zipped.parquet: not a Parquet file: expected `PAR1` at its beginning, found a zip archive: extract the file"
        ],
    );
    check(
        &folder,
        folder.bytes("wide.jsonl", b"\xff\xfe{\0}\0\n\0"),
        expect![
            "wide.jsonl: row 0: column `(the line)`: expected a JSON object, found UTF-16 text: convert the file to UTF-8"
        ],
    );
    check(
        &folder,
        folder.bytes("empty.jsonl", b"\n\n"),
        expect!["empty.jsonl: expected at least one row, found 0"],
    );
    check(
        &folder,
        folder.bytes("broken.jsonl", b"{\"prompt\": \n"),
        expect![
            "broken.jsonl: row 0: column `(the line)`: expected a JSON object, found EOF while parsing a value at line 1 column 10"
        ],
    );
    check(
        &folder,
        folder.prompts("none.parquet", std::iter::empty()),
        expect!["none.parquet: expected at least one row, found 0"],
    );
    check(
        &folder,
        folder.path("absent-*.parquet").display().to_string(),
        expect!["no file matches `absent-*.parquet`"],
    );
    let mut footer = bytes.clone();
    let end = footer.len() - 9;
    footer[end - 40..end].fill(0xff);
    let message =
        first_error(&folder, DatasetConfig::of([folder.bytes("footer.parquet", &footer)]));
    assert!(message.starts_with("footer.parquet: damaged footer"), "{message}");
}

#[test]
fn columns_that_are_absent_or_wrong() {
    let folder = Folder::new();
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    check(
        &folder,
        folder
            .columns("absent.parquet", vec![("id", numbers.clone()), ("tokens", numbers.clone())]),
        expect![
            "absent.parquet: column `prompt` is absent: expected `messages`, `prompt`, `question` or `problem`, or another column that `--prompt-key` or `data.prompt_key` names, found id, tokens"
        ],
    );
    check(
        &folder,
        folder.columns("numbers.parquet", vec![("prompt", numbers.clone())]),
        expect![
            "numbers.parquet: column `prompt`: expected list<struct<role: string, content: string>> or string, found int64"
        ],
    );
    let lists = Arc::new(ListArray::from_iter_primitive::<arrow_array::types::Int64Type, _, _>([
        Some([Some(1)]),
        None,
    ]));
    check(
        &folder,
        folder.columns("lists.parquet", vec![("prompt", lists)]),
        expect![
            "lists.parquet: column `prompt`: expected list<struct<role: string, content: string>> or string, found list<int64>"
        ],
    );
    let chat = || chats(vec![user("a"), user("b")]);
    check(
        &folder,
        folder.columns("source.parquet", vec![("prompt", chat()), ("data_source", numbers)]),
        expect!["source.parquet: column `data_source`: expected string, found int64"],
    );
    check(
        &folder,
        folder.columns("twice.parquet", vec![("prompt", chat()), ("prompt", chat())]),
        expect!["twice.parquet: column `prompt`: expected one column of this name, found 2"],
    );
    let columns = PromptColumns {
        ground_truth: Some("reward_model.solution".to_owned()),
        ..PromptColumns::default()
    };
    let file = folder.columns("renamed.parquet", vec![("prompt", chat())]);
    expect!["renamed.parquet: column `reward_model.solution` is absent: expected one of that name, found prompt"].assert_eq(&first_error(&folder, DatasetConfig { columns, ..DatasetConfig::of([file]) }));
}

#[test]
fn rows_that_cannot_be_used() {
    let folder = Folder::new();
    let file = |name, chat| folder.columns(name, vec![("prompt", chats(vec![user("fine"), chat]))]);
    check(
        &folder,
        file("null.parquet", None),
        expect![
            "null.parquet: row 1: column `prompt`: expected at least one message with role and content, found null"
        ],
    );
    check(
        &folder,
        file("none.parquet", Some(vec![])),
        expect![
            "none.parquet: row 1: column `prompt`: expected at least one message with role and content, found none"
        ],
    );
    check(
        &folder,
        file("blank.parquet", user(" \n")),
        expect![
            "blank.parquet: row 1: column `prompt`: expected a prompt that is not blank, found only blank content"
        ],
    );
    check(
        &folder,
        file("content.parquet", Some(vec![(Some("user"), None)])),
        expect![
            "content.parquet: row 1: column `prompt`: expected a role and a content in every message, found a null content"
        ],
    );
    check(
        &folder,
        file("role.parquet", Some(vec![(None, Some("x"))])),
        expect![
            "role.parquet: row 1: column `prompt`: expected a role and a content in every message, found no role"
        ],
    );
    let called: [Option<&[&str]>; 3] = [None, Some(&[]), Some(&["add"])];
    check(
        &folder,
        folder.columns("calls.parquet", vec![("prompt", chats_with_calls(&called))]),
        expect![
            "calls.parquet: row 2: column `prompt`: expected messages without `tool_calls`, which are not supported, found calls of tools"
        ],
    );
    let lines = [
        json!({"messages": "[{\"role\": \"user\", \"content\": \"x\"}]"}),
        json!({"messages": "[{\"role"}),
    ];
    check(
        &folder,
        folder.lines("messages.jsonl", &lines),
        expect![
            "messages.jsonl: row 1: column `messages`: expected a JSON array of messages, found EOF while parsing a string at line 1 column 7 of the text"
        ],
    );
    for (name, text, found) in
        [("plain", "x", "text"), ("numbers", "[1, 2]", "an array of other values")]
    {
        let message = r#"[{"role": "user", "content": "x"}]"#;
        let column: ArrayRef = Arc::new(StringArray::from(vec![text, message]));
        let alone: ArrayRef = Arc::new(StringArray::from(vec![text]));
        let lines = [json!({"messages": text})];
        for file in [
            folder.columns(&format!("{name}.parquet"), vec![("messages", column)]),
            folder.columns(&format!("{name}_alone.parquet"), vec![("messages", alone)]),
            folder.lines(&format!("{name}.jsonl"), &lines),
        ] {
            let error = first_error(&folder, DatasetConfig::of([file]));
            let expected = "row 0: column `messages`: expected a JSON array of messages, found";
            assert!(error.ends_with(&format!("{expected} {found}")), "{error}");
        }
    }
    let lines = [json!({"prompt": "x"}), json!({"prompt": {"a": 1}})];
    check(
        &folder,
        folder.lines("object.jsonl", &lines),
        expect![[
            r#"object.jsonl: row 1: column `prompt`: expected messages, JSON of messages, or text, found {"a":1}"#
        ]],
    );
    let lines =
        [json!({"prompt": "x", "extra_info": {}}), json!({"prompt": "x", "extra_info": [1]})];
    check(
        &folder,
        folder.lines("extra.jsonl", &lines),
        expect!["extra.jsonl: row 1: column `extra_info`: expected a JSON object, found [1]"],
    );
}

#[test]
fn every_variant_of_the_schema_reads() {
    let folder = Folder::new();
    let strings =
        |values: Vec<Option<&str>>| -> ArrayRef { Arc::new(LargeStringArray::from(values)) };
    let target: ArrayRef = Arc::new(StringArray::from(vec![Some("t"), None]));
    let truth = StructArray::new(
        vec![Field::new("target", DataType::Utf8, true)].into(),
        vec![target],
        None,
    );
    let fields = vec![Field::new("ground_truth", truth.data_type().clone(), true)];
    let reward =
        StructArray::new(fields.into(), vec![Arc::new(truth)], Some(vec![true, false].into()));
    let file = folder.columns(
        "variants.parquet",
        vec![
            (
                "prompt",
                chats(vec![
                    Some(vec![(Some("system"), Some("s")), (Some("user"), Some("u"))]),
                    user("b"),
                ]),
            ),
            ("data_source", strings(vec![Some("x"), None])),
            ("ability", strings(vec![None, Some("math")])),
            ("reward_model", Arc::new(reward)),
            ("extra_info", strings(vec![Some("{\"a\": 1}"), None])),
            ("question", strings(vec![Some("left over"), None])),
        ],
    );
    let dataset = Dataset::open(DatasetConfig {
        extra_columns: vec!["*".to_owned()],
        ..DatasetConfig::of([file])
    })
    .unwrap();
    let rows: Vec<_> = dataset
        .prompts(Cursor::default())
        .unwrap()
        .until_epoch(1)
        .map(|prompt| prompt.unwrap().to_row())
        .collect();
    expect![[r#"[{"row":0,"epoch":0,"data_source":"x","domain":"x","messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}],"ground_truth":"{\"target\":\"t\"}","extra_info":{"question":"left over","a":1}},{"row":1,"epoch":0,"data_source":"unknown","domain":"math","messages":[{"role":"user","content":"b"}],"ground_truth":null,"extra_info":{"question":null}}]"#]].assert_eq(&serde_json::to_string(&rows).unwrap());
}

fn report(folder: &Folder, validation: &Validation) -> String {
    let line = |defect: &rollpacker_datasets::validate::Defect| {
        let first = &defect.first[0];
        let file = folder.strip(&first.file.display().to_string());
        let found = folder.strip(&first.found);
        format!(
            "{:?} {:?} x{}: {file} {:?} expected {} found {found}\n",
            defect.kind, defect.column, defect.count, first.row, defect.expected
        )
    };
    let Validation { files, rows, errors, warnings, defects } = validation;
    format!("{files} files {rows} rows {errors} errors {warnings} warnings\n")
        + &defects.iter().map(line).collect::<String>()
}

#[test]
fn validation_lists_every_kind() {
    let folder = Folder::new();
    folder.bytes("a.parquet", b"not this");
    let bad = vec![
        user("a"),
        None,
        Some(vec![]),
        Some(vec![(Some("robot"), Some("x"))]),
        Some(vec![(Some("user"), None)]),
        user("a"),
    ];
    folder.columns("b.parquet", vec![("prompt", chats(bad))]);
    folder
        .bytes("c.jsonl", b"{\"prompt\": \"a\", \"answer\": 3}\n{\"prompt\n{\"prompt\": \"c\"}\n");
    folder.columns("d.parquet", vec![("id", Arc::new(Int64Array::from(vec![1])))]);
    let files = ["*.parquet", "*.jsonl"].map(|name| folder.path(name).display().to_string());
    let validation = validate(&DatasetConfig::of(files), 3).unwrap();
    expect![[r#"
        4 files 9 rows 6 errors 5 warnings
        UnreadableFile None x1: a.parquet None expected a Parquet or JSONL file found a.parquet: not a Parquet file: expected `PAR1` at its beginning, found `not `
        AbsentColumn Some("prompt") x1: d.parquet None expected `messages`, `prompt`, `question` or `problem`, or another column that `--prompt-key` or `data.prompt_key` names found id
        BadJson Some("(the line)") x1: c.jsonl Some(1) expected a JSON object found EOF while parsing a string at line 2 column 8
        NullPrompt Some("prompt") x1: b.parquet Some(1) expected at least one message with role and content found null
        EmptyPrompt Some("prompt") x1: b.parquet Some(2) expected at least one message with role and content found none
        NullContent Some("prompt") x1: b.parquet Some(4) expected a role and a content in every message found a null content
        UnknownRole Some("prompt") x1: b.parquet Some(3) expected system, user, assistant, tool or developer found robot
        MissingGroundTruth None x1: b.parquet None expected a column of reference answers, such as `answer`, or another one that `--ground-truth-key` or `data.ground_truth_key` names found prompt
        MissingGroundTruth Some("answer") x1: c.jsonl Some(2) expected a reference answer found null
        DuplicatePrompt None x2: b.parquet Some(5) expected prompts that differ found the prompt of b.parquet row 0
    "#]].assert_eq(&report(&folder, &validation));
    let back: Validation =
        serde_json::from_str(&serde_json::to_string(&validation).unwrap()).unwrap();
    assert_eq!(back, validation);
}

#[test]
fn damage_in_one_row_group_does_not_hide_the_others() {
    let folder = Folder::new();
    let file = folder.columns(
        "a.parquet",
        vec![("prompt", chats((0..300).map(|_| user("some words")).collect()))],
    );
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.windows(4).position(|window| window == b"PAR1").unwrap() + 4;
    bytes[middle..middle + 12].fill(0xff);
    let validation = validate(&DatasetConfig::of([folder.bytes("b.parquet", &bytes)]), 1).unwrap();
    let kinds: Vec<_> =
        validation.defects.iter().map(|defect| (defect.kind, defect.count)).collect();
    assert_eq!(kinds[0], (DefectKind::Damaged, 1), "{validation:?}");
    assert_eq!(
        validation
            .defects
            .iter()
            .find(|defect| defect.kind == DefectKind::DuplicatePrompt)
            .unwrap()
            .count,
        199
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Defects at arbitrary rows are all found, and nothing else is reported.
    #[test]
    fn seeded_defects_are_found(kinds in prop::collection::vec(0_u8..5, 1..300)) {
        let folder = Folder::new();
        let names: Vec<String> = (0..kinds.len()).map(|row| format!("row {row}")).collect();
        let chat = |(row, kind): (usize, &u8)| match kind {
            1 => None,
            2 => Some(vec![]),
            3 => Some(vec![(Some("user"), None)]),
            4 => Some(vec![(None, Some("x"))]),
            _ => Some(vec![(Some("user"), Some(names[row].as_str()))]),
        };
        let truths: ArrayRef = Arc::new(StringArray::from(vec!["1"; kinds.len()]));
        let prompts = chats(kinds.iter().enumerate().map(chat).collect());
        let file = folder.columns("a.parquet", vec![("prompt", prompts), ("answer", truths)]);
        let validation = validate(&DatasetConfig::of([file]), 400).unwrap();
        for (kind, defect) in [(1, DefectKind::NullPrompt), (2, DefectKind::EmptyPrompt), (3, DefectKind::NullContent), (4, DefectKind::MissingRole)] {
            let expected: Vec<_> = (0_u64..).zip(&kinds).filter(|(_, k)| **k == kind).map(|(row, _)| Some(row)).collect();
            let found = validation.defects.iter().find(|found| found.kind == defect);
            let found: Vec<_> = found.iter().flat_map(|defect| &defect.first).map(|place| place.row).collect();
            prop_assert_eq!(found, expected);
        }
        prop_assert_eq!(validation.errors, kinds.iter().filter(|kind| **kind > 0).count() as u64);
        prop_assert_eq!(validation.warnings, 0);
    }
}

#[test]
fn duplicates_are_warned_of_with_the_earlier_row() {
    let folder = Folder::new();
    let files = [
        folder.prompts("a.parquet", ["x", "y"].map(prompt).into_iter()),
        folder.prompts("b.parquet", ["z", "x"].map(prompt).into_iter()),
    ];
    let validation = validate(&DatasetConfig::of(files), 3).unwrap();
    expect![[r#"
        2 files 4 rows 0 errors 1 warnings
        DuplicatePrompt None x1: b.parquet Some(1) expected prompts that differ found the prompt of a.parquet row 0
    "#]].assert_eq(&report(&folder, &validation));
}

#[test]
fn every_row_is_checked_if_the_first_is_malformed() {
    let folder = Folder::new();
    let nan = "{\"prompt\":\"a2\",\"ground_truth\":NaN}\n";
    let content = format!("{nan}{nan}{{\"prompt\":5}}\n{{\"prompt\":\"a\",\"ground_truth\":1}}\n");
    let file = folder.bytes("a.jsonl", content.as_bytes());
    expect![[r#"
        1 files 4 rows 3 errors 0 warnings
        BadJson Some("(the line)") x2: a.jsonl Some(0) expected a JSON object found `NaN` at line 1 column 31, which is not JSON: write null
        WrongValue Some("prompt") x1: a.jsonl Some(2) expected messages, JSON of messages, or text found 5
    "#]].assert_eq(&report(&folder, &validate(&DatasetConfig::of([file.clone()]), 1).unwrap()));
    assert!(Dataset::open(DatasetConfig::of([file])).is_err());
    // The columns are found after any number of malformed rows.
    let late = format!("{}{{\"prompt\":\"a\",\"answer\":1}}\n", nan.repeat(200));
    let all = nan.repeat(200);
    for (content, errors, rows) in
        [(late, 200, 201), (all, 200, 200), ("[\n{},\n{}]\n".to_owned(), 1, 0)]
    {
        let file = folder.bytes("b.jsonl", content.as_bytes());
        let found = validate(&DatasetConfig::of([file]), 1).unwrap();
        assert_eq!((found.errors, found.rows, found.warnings), (errors, rows, 0), "{found:?}");
    }
}

#[test]
fn prompts_that_end_with_the_answer_are_warned_of() {
    let folder = Folder::new();
    let chat = json!([{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]);
    let row = json!({"problem": "1+1?", "answer": "2", "messages": chat});
    let lines = folder.lines("a.jsonl", std::slice::from_ref(&row));
    let columns = |prompt: &str| PromptColumns {
        prompt: Some(prompt.to_owned()),
        ..PromptColumns::default()
    };
    let named =
        DatasetConfig { columns: columns("messages"), ..DatasetConfig::of([lines.clone()]) };
    expect![[r#"
        1 files 1 rows 0 errors 1 warnings
        AssistantLast Some("messages") x1: a.jsonl Some(0) expected a last message of the user, since the model continues the answer of the assistant; to train on column `problem` instead, set `--prompt-key problem` or `data.prompt_key` found a message of the assistant
    "#]].assert_eq(&report(&folder, &validate(&named, 1).unwrap()));
    let alone = json!({"answer": "2", "messages": chat});
    let alone = folder.lines("b.jsonl", &[alone]);
    let validation = validate(&DatasetConfig::of([alone]), 1).unwrap();
    assert_eq!(validation.defects[0].kind, DefectKind::AssistantLast);

    // Without a named column, the prompt is the question.
    let text = |values: &[&str]| -> ArrayRef { Arc::new(StringArray::from(values.to_vec())) };
    let turns = || Some(vec![(Some("user"), Some("1+1?")), (Some("assistant"), Some("2"))]);
    let parquet = folder.columns(
        "c.parquet",
        vec![
            ("problem", text(&["1+1?"])),
            ("answer", text(&["2"])),
            ("messages", chats(vec![turns()])),
        ],
    );
    let as_text = json!({"problem": "1+1?", "answer": "2", "messages": chat.to_string()});
    let as_text = folder.lines("d.jsonl", &[as_text]);
    for file in [lines, parquet, as_text] {
        let validation = validate(&DatasetConfig::of([file.clone()]), 1).unwrap();
        assert_eq!(validation.warnings, 0, "{file}: {validation:?}");
        let dataset = Dataset::open(DatasetConfig::of([file])).unwrap();
        let mut prompts = dataset.prompts(Cursor::default()).unwrap().until_epoch(1);
        let messages = prompts.next().unwrap().unwrap().messages_json();
        assert_eq!(messages, r#"[{"role":"user","content":"1+1?"}]"#);
    }
    let user = json!({"problem": "1+1?", "answer": "2", "messages": [{"role": "user", "content": "One and one?"}]});
    let dataset = Dataset::open(DatasetConfig::of([folder.lines("e.jsonl", &[user])])).unwrap();
    let mut prompts = dataset.prompts(Cursor::default()).unwrap().until_epoch(1);
    assert!(prompts.next().unwrap().unwrap().messages_json().contains("One and one?"));
}

#[test]
fn a_list_of_messages_in_prompt_is_the_prompt_even_if_the_assistant_is_last() {
    let folder = Folder::new();
    let begun = "Let me think.\n<think>";
    let chat =
        json!([{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": begun}]);
    let row = json!({"prompt": chat, "question": "2+2?", "messages": chat});
    let turns = || Some(vec![(Some("user"), Some("2+2?")), (Some("assistant"), Some(begun))]);
    let question: ArrayRef = Arc::new(StringArray::from(vec!["2+2?"]));
    let parquet = folder.columns(
        "b.parquet",
        vec![
            ("prompt", chats(vec![turns()])),
            ("question", question.clone()),
            ("messages", chats(vec![turns()])),
        ],
    );
    let as_text = json!({"prompt": chat.to_string(), "question": "2+2?"});
    let files = [
        folder.lines("a.jsonl", &[row]),
        parquet,
        folder.lines("c.jsonl", &[as_text]),
        folder.columns(
            "d.parquet",
            vec![
                ("prompt", Arc::new(StringArray::from(vec![chat.to_string()])) as ArrayRef),
                ("question", question.clone()),
            ],
        ),
    ];
    let first = |file: String| {
        let dataset = Dataset::open(DatasetConfig::of([file])).unwrap();
        dataset.prompts(Cursor::default()).unwrap().next().unwrap().unwrap().messages_json()
    };
    for file in files {
        assert!(first(file.clone()).contains("<think>"), "{file}");
    }

    // The question as text in `prompt` replaces `messages`.
    let row = json!({"prompt": "2+2?", "messages": chat});
    let parquet =
        folder.columns("f.parquet", vec![("prompt", question), ("messages", chats(vec![turns()]))]);
    for file in [folder.lines("e.jsonl", &[row]), parquet] {
        assert_eq!(first(file.clone()), r#"[{"role":"user","content":"2+2?"}]"#, "{file}");
    }
}

/// Every prompt file in a folder of real ones can be read. Set `ROLLPACKER_SHARED` to the folder that contains `data`.
#[test]
fn real_files_can_be_read() {
    let Ok(shared) = std::env::var("ROLLPACKER_SHARED") else {
        println!("skipped: ROLLPACKER_SHARED is not set");
        return;
    };
    let files = ["parquet", "jsonl"].map(|extension| format!("{shared}/data/*.{extension}"));
    let validation = validate(&DatasetConfig::of(files.clone()), 1).unwrap();
    assert_eq!(validation.errors, 0, "{validation:#?}");
    let dataset =
        Dataset::open(DatasetConfig { shuffle: true, ..DatasetConfig::of(files) }).unwrap();
    let read = dataset
        .prompts(Cursor::default())
        .unwrap()
        .until_epoch(1)
        .filter(|prompt| !text(prompt.as_ref().unwrap()).is_empty());
    assert_eq!(read.count() as u64, validation.rows);
}
