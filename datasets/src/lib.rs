//! Prompt datasets for RL post-training: Parquet in the schema that verl and its relatives use, and JSONL.
//!
//! A [`Dataset`] is a list of files, checked when it is opened (only footers, or line ends, are read) and then streamed prompt by
//! prompt, epoch after epoch, in file order or shuffled. A [`Prompt`] is a handle on the decoded columns, so that reading costs no
//! allocation a row; [`Prompt::to_row`] makes the owned [`PromptRow`] where that is handier.
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
//! Memory does not grow with the number of rows, up to what [`DatasetConfig`] documents: in file order one batch of rows is held,
//! shuffled one window of at most [`DatasetConfig::window_rows`] rows and [`DatasetConfig::window_bytes`] bytes.
//!
//! Measured on 5 million prompts of the built-in task (1.2 GB as JSONL, 178 MB as Parquet), peak resident memory of the process: reading in
//! order 13 MiB, shuffled 32 MiB, `data inspect` 16 MiB (JSONL 14), `data convert` 25 MiB, `data validate` 89 MiB, of which 80 are the 16
//! bytes a row that finding duplicates takes. To repeat it: `rollpacker data generate --rows 5000000 --output big`, then
//! `/usr/bin/time -v rollpacker data validate big/train.parquet`, and for reading the bench `read` with `ROLLPACKER_BENCH_FILE`.
//!
//! # Around it
//!
//! [`validate()`] goes over every row and lists every kind of defect, [`inspect()`] tells what is in a dataset, [`convert()`] goes
//! from one format to another, and [`generate`] makes the built-in task.
//!
//! Architecture invariant: nothing here knows of timely, of tokens or of models.

mod chunk;
mod columns;
mod config;
pub mod convert;
mod dataset;
mod defect;
mod error;
mod file;
pub mod filter;
pub mod generate;
pub mod inspect;
mod json;
mod jsonl;
mod message;
mod messages;
mod order;
mod parquet;
mod prompt;
mod prompts;
mod records;
mod segment;
mod shape;
mod sources;
pub mod trace;
pub mod validate;
mod writer;

pub use crate::config::{Columns, DatasetConfig};
pub use crate::convert::convert;
pub use crate::dataset::Dataset;
pub use crate::error::DatasetError;
pub use crate::inspect::inspect;
pub use crate::message::{Message, MessageRef};
pub use crate::order::Cursor;
pub use crate::prompt::{Prompt, PromptRow};
pub use crate::prompts::Prompts;
pub use crate::records::Records;
pub use crate::shape::Shape;
pub use crate::sources::FirstRow;
pub use crate::trace::{Trace, TraceOptions, TraceRow};
pub use crate::validate::validate;
pub use crate::writer::{Compression, PromptWriter, WriteOptions};
