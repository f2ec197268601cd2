//! Rewards that a program computes.

mod pool;
mod worker;

use rollpacker_stages::catalog::{About, CatalogError};
use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};

use super::field::{Field, Fields, fields, object};
use super::{Context, Reward, RewardError, Sample, Score, answer};
pub(crate) use pool::Pool;

/// A reward that a program computes. Its processes stay alive from sample to sample.
///
/// The program reads a line of JSON from its standard input, `{"id": 0, "response": ...}` with the configured fields, and writes a line of
/// JSON to its standard output: `{"id": 0, "score": 1.0}`, where further numbers are components and further texts are labels, or `{"id": 0,
/// "error": "...", "kind": "retryable"}`. The kind is `retryable`, `timeout` or `not_applicable`; without it, the error is fatal. An answer
/// must have the id of its request and be at most 1 MiB long. The program should exit at the end of its standard input, which it also
/// reaches if this process is killed. If the program ends early or breaks the protocol, the error is retryable and quotes the end of its
/// standard error.
///
/// Each process scores one sample at a time. If the call is dropped or takes longer than 600 seconds, or if the process breaks the
/// protocol, the process is killed together with all processes of its group. A process that was killed or has ended is replaced by the next
/// call.
pub struct ProcessReward {
    pool: Pool,
    fields: Fields,
}

documented! {
    /// Options of a [`ProcessReward`].
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct ProcessOptions {
        /// The program and its arguments. They are not passed through a shell.
        pub command: Vec<String>,
        /// The maximum number of concurrent processes, which are started on demand. From 1 to 4096. Default: 1.
        #[serde(default = "processes")]
        pub processes: usize,
        /// The names and contents of the fields of a request. The name `id` is reserved. Default: `data_source`, `messages`, `response`,
        /// `ground_truth` and `extra_info`.
        #[serde(default = "all")]
        pub fields: Fields,
    }
}

fn processes() -> usize {
    1
}

fn all() -> Fields {
    fields([
        ("data_source", Field::DataSource),
        ("messages", Field::Messages),
        ("response", Field::Response),
        ("ground_truth", Field::GroundTruth),
        ("extra_info", Field::ExtraInfo),
    ])
}

impl ProcessReward {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About =
        About::new(&[], "the answer of a program that stays alive, as JSON lines", "this project");

    /// Creates a reward for a program, which the first call starts.
    ///
    /// # Errors
    /// If the command is empty, the number of processes is out of range, or a field is named `id`.
    pub fn new(options: ProcessOptions) -> Result<Self, CatalogError> {
        let bound = |key, expected, found| Err(CatalogError::out_of_range(key, expected, found));
        if options.command.is_empty() {
            return bound("command", "a program", "an empty list");
        }
        let pool = Pool::new(options.command, options.processes)?;
        if options.fields.contains_key("id") {
            return bound(
                "fields",
                "no field `id`, which is reserved for the request number",
                "one",
            );
        }
        Ok(Self { pool, fields: options.fields })
    }
}

impl Reward for ProcessReward {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let answer = self.pool.request(object(&self.fields, sample)?).await?;
        answer::score(&answer, None)
    }
}

#[cfg(test)]
mod tests;
