//! Benchmark of reading prompts, compared with the raw Parquet reader with the same projection.
//!
//! `rows` is the public path that training uses: every prompt is checked, and its messages, labels and reference answer are accessed.
//! `rows_json` also builds the JSON of `extra_info`. `raw` only decodes. The default file holds prompts of the built-in task; set
//! `ROLLPACKER_BENCH_FILE` to read another file with verl's schema.
#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

use std::fs::File;
use std::path::PathBuf;
use std::sync::LazyLock;

use divan::Bencher;
use divan::counter::ItemsCount;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rollpacker_datasets::generate::{ChainConfig, generate};
use rollpacker_datasets::{Cursor, Dataset, DatasetConfig, Prompt, WriteOptions};

fn main() {
    divan::main();
}

static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| match std::env::var_os("ROLLPACKER_BENCH_FILE") {
        Some(file) => file.into(),
        None => {
            let folder = std::env::temp_dir().join("rollpacker-bench-read");
            let config =
                ChainConfig { rows: 100_000, validation_rows: 1, ..ChainConfig::default() };
            generate(&config, &folder, WriteOptions::default()).unwrap().train
        }
    });

const ROOTS: [&str; 3] = ["data_source", "ability", "extra_info"];
const LEAVES: [&str; 3] =
    ["prompt.list.element.role", "prompt.list.element.content", "reward_model.ground_truth"];

/// The number of rows per batch, in both readers.
const BATCH: usize = 2048;

fn dataset(shuffle: bool) -> Dataset {
    Dataset::open(DatasetConfig { shuffle, ..DatasetConfig::of([FILE.to_str().unwrap()]) }).unwrap()
}

fn read(bencher: Bencher<'_, '_>, shuffle: bool, look: impl Fn(&Prompt) -> usize + Sync) {
    let dataset = dataset(shuffle);
    let rows = ItemsCount::new(dataset.len());
    bencher.counter(rows).bench(|| {
        let prompts = dataset.prompts(Cursor::default()).unwrap().until_epoch(1);
        prompts.map(|prompt| look(&prompt.unwrap())).sum::<usize>()
    });
}

fn look(prompt: &Prompt) -> usize {
    let messages: usize =
        prompt.messages().map(|message| message.role.len() + message.content.len()).sum();
    messages
        + prompt.data_source().len()
        + prompt.domain().len()
        + prompt.ground_truth().map_or(0, |truth| truth.len())
}

#[divan::bench]
fn raw(bencher: Bencher<'_, '_>) {
    bencher.counter(ItemsCount::new(dataset(false).len())).bench(|| {
        let builder =
            ParquetRecordBatchReaderBuilder::try_new(File::open(&*FILE).unwrap()).unwrap();
        let used = |parts: &[String]| {
            ROOTS.contains(&parts[0].as_str()) || LEAVES.contains(&parts.join(".").as_str())
        };
        let columns = builder.parquet_schema().columns().iter().enumerate();
        let leaves: Vec<usize> = columns
            .filter(|(_, column)| used(column.path().parts()))
            .map(|(leaf, _)| leaf)
            .collect();
        let mask = ProjectionMask::leaves(builder.parquet_schema(), leaves);
        let reader = builder.with_projection(mask).with_batch_size(BATCH).build().unwrap();
        reader.map(|batch| batch.unwrap().num_rows()).sum::<usize>()
    });
}

#[divan::bench]
fn rows(bencher: Bencher<'_, '_>) {
    read(bencher, false, look);
}

#[divan::bench]
fn rows_shuffled(bencher: Bencher<'_, '_>) {
    read(bencher, true, look);
}

#[divan::bench]
fn rows_json(bencher: Bencher<'_, '_>) {
    read(bencher, false, |prompt| look(prompt) + prompt.extra_info_json().len());
}
