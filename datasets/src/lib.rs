//! Prompt datasets for RL post-training: Parquet with the schema of verl and related frameworks, and JSONL.
//!
//! A [`Dataset`] is a list of files. They are checked on opening, which reads only footers or line ends, and then streamed prompt by
//! prompt, epoch after epoch, in file order or shuffled. A [`Prompt`] is a handle to the decoded columns, so no text is copied to return
//! it. [`Prompt::to_row`] converts it to an owned [`PromptRow`].
//!
//! ```no_run
//! use rollpacker_datasets::{Cursor, Dataset, DatasetConfig};
//!
//! let dataset = Dataset::open(DatasetConfig { shuffle: true, seed: 7, ..DatasetConfig::of(["train-*.parquet"]) })?;
//! let mut prompts = dataset.prompts(Cursor::default())?;
//! for prompt in prompts.by_ref().take(128) {
//!     let prompt = prompt?;
//!     let question = prompt.messages().last().map(|message| message.content.to_owned());
//!     println!("{} {question:?} {:?}", prompt.data_source(), prompt.ground_truth());
//! }
//! let resume_here = serde_json::to_string(&prompts.cursor())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Memory
//!
//! Memory does not grow with the number of rows, except as [`DatasetConfig`] documents. File order holds one batch of rows; shuffling holds
//! one window of at most [`DatasetConfig::window_rows`] rows and [`DatasetConfig::window_bytes`] bytes.
//!
//! Peak resident memory, measured on 5 million prompts of the built-in task (1.2 GB as JSONL, 178 MB as Parquet): 13 MiB for reading in
//! order, 32 MiB shuffled, 16 MiB for `data inspect` (JSONL 14), 25 MiB for `data convert`, and 89 MiB for `data validate`, of which 76 MiB
//! are the 16 bytes per row for the detection of duplicates. To reproduce: run `rollpacker data generate --rows 5000000 --output big`, then
//! `/usr/bin/time -v rollpacker data validate big/train.parquet`; for reading, run the bench `read` with `ROLLPACKER_BENCH_FILE`.
//!
//! # Related functions
//!
//! [`validate()`] checks every row and reports all defects, [`inspect()`] summarizes a dataset, [`convert()`] converts between formats, and
//! [`generate`] creates the built-in task.
//!
//! Architecture invariant: this crate does not depend on timely, tokenizers or models.

mod chunk;
mod columns;
mod config;
pub mod convert;
mod data_sources;
mod dataset;
mod defect;
mod error;
mod file;
pub mod filter;
pub mod generate;
pub mod inspect;
mod json;
mod json_object;
mod jsonl;
mod message;
mod messages;
mod order;
mod parquet;
mod prompt;
mod prompts;
mod records;
mod reopen;
mod segment;
mod shape;
pub mod trace;
pub mod validate;
mod writer;

pub use crate::config::{DatasetConfig, PromptColumns};
pub use crate::convert::convert;
pub use crate::data_sources::FirstRow;
pub use crate::dataset::Dataset;
pub use crate::error::{DatasetError, without_position};
pub use crate::inspect::inspect;
pub use crate::message::{Message, MessageRef};
pub use crate::messages::messages_in_text;
pub use crate::order::Cursor;
pub use crate::prompt::{Prompt, PromptRow};
pub use crate::prompts::Prompts;
pub use crate::records::Records;
pub use crate::shape::Shape;
pub use crate::trace::{Trace, TraceOptions, TraceRow};
pub use crate::validate::validate;
pub use crate::writer::{Compression, PromptWriter, WriteOptions};
