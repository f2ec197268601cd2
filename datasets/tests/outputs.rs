//! Outputs and inputs that are not ordinary files.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod made;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rollpacker_datasets::convert::{OutputFormat, convert};
use rollpacker_datasets::generate::{ChainConfig, generate};
use rollpacker_datasets::{Dataset, DatasetConfig, DatasetError, Records, WriteOptions};
use serde_json::json;

use crate::made::Folder;

const FORMATS: [OutputFormat; 3] = [OutputFormat::Verl, OutputFormat::Roll, OutputFormat::Messages];

fn converted(input: &str, output: &Path, format: OutputFormat) -> Result<u64, DatasetError> {
    convert(&DatasetConfig::of([input]), output, format, WriteOptions::default())
}

fn pipe(folder: &Folder, name: &str) -> PathBuf {
    let path = folder.path(name);
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

#[test]
fn a_conversion_refuses_its_input_under_every_name() {
    let folder = Folder::new();
    let input = folder.lines("in.jsonl", &[json!({"prompt": "x"})]);
    fs::hard_link(&input, folder.path("hard.jsonl")).unwrap();
    symlink(&input, folder.path("soft.jsonl")).unwrap();
    let before = fs::read(&input).unwrap();
    let glob = folder.path("i*.jsonl").display().to_string();
    for (from, to) in [
        (&input, "in.jsonl"),
        (&input, "hard.jsonl"),
        (&input, "soft.jsonl"),
        (&glob, "in.jsonl"),
        (&folder.path("soft.jsonl").display().to_string(), "in.jsonl"),
        (&folder.path("hard.jsonl").display().to_string(), "in.jsonl"),
    ] {
        for format in FORMATS {
            let error = converted(from, &folder.path(to), format).unwrap_err().to_string();
            assert!(error.contains("found the input"), "{from} to {to}: {error}");
        }
    }
    assert_eq!(fs::read(&input).unwrap(), before);
    assert_eq!(fs::read_dir(folder.path("")).unwrap().count(), 3, "nothing is left behind");
}

#[test]
fn only_regular_files_are_replaced() {
    let folder = Folder::new();
    let input = folder.lines("in.jsonl", &[json!({"prompt": "x"})]);
    fs::write(folder.path("target"), "kept").unwrap();
    symlink(folder.path("target"), folder.path("link")).unwrap();
    let places = [folder.path("link"), pipe(&folder, "pipe"), PathBuf::from("/dev/null")];
    for (place, format) in places.iter().flat_map(|place| FORMATS.map(|format| (place, format))) {
        let error = converted(&input, place, format).unwrap_err().to_string();
        assert!(error.contains("expected a regular file"), "{error}");
    }
    assert_eq!(fs::read(folder.path("target")).unwrap(), b"kept");
    let kind = |path: &Path| fs::symlink_metadata(path).unwrap().file_type();
    assert!(kind(&places[0]).is_symlink() && kind(&places[1]).is_fifo());
    assert!(kind(&places[2]).is_char_device());
}

#[test]
fn generating_replaces_both_files_or_none() {
    let folder = Folder::new();
    let made = |rows| ChainConfig { rows, validation_rows: 1, ..ChainConfig::default() };
    fs::write(folder.path("validation.parquet"), "kept").unwrap();
    symlink("elsewhere", folder.path("train.parquet")).unwrap();
    let error = generate(&made(2), &folder.path(""), WriteOptions::default()).unwrap_err();
    assert!(error.to_string().contains("train.parquet: expected a regular file"), "{error}");
    assert_eq!(fs::read(folder.path("validation.parquet")).unwrap(), b"kept");
    assert!(fs::symlink_metadata(folder.path("train.parquet")).unwrap().is_symlink());
}

#[test]
fn a_pipe_of_lines_is_read_from_its_first_byte() {
    let folder = Folder::new();
    for name in ["pipe", "pipe.jsonl"] {
        let path = pipe(&folder, name);
        let writer = std::thread::spawn({
            let path = path.clone();
            move || {
                let mut pipe = fs::File::options().write(true).open(path).unwrap();
                pipe.write_all(b"\n{\"a\": 1}\n{\"a\": 2}\n").unwrap();
            }
        });
        let rows: Vec<_> = Records::open(&path).unwrap().map(|row| row.unwrap()).collect();
        writer.join().unwrap();
        assert_eq!(json!(rows), json!([{"a": 1}, {"a": 2}]), "{name}");
    }
}

#[test]
fn a_pipe_is_refused_if_rows_are_read_again() {
    let folder = Folder::new();
    for name in ["pipe", "pipe.jsonl", "pipe.parquet"] {
        let path = pipe(&folder, name);
        let error = Dataset::open(DatasetConfig::of([path.display().to_string()])).unwrap_err();
        assert!(error.to_string().contains("found a pipe, which can be read only once"), "{error}");
    }
    let error = Records::check_reopens(&folder.path("pipe")).unwrap_err();
    assert!(matches!(error, DatasetError::ReadOnce { .. }), "{error}");
}
