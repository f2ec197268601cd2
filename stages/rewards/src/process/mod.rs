//! Rewards that a program computes.

mod worker;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollpacker_stages::catalog::CatalogError;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::field::{Field, Fields, fields, object};
use super::{Context, Reward, RewardError, Sample, Score, answer};
use worker::Worker;

/// A reward that a program computes. Its processes stay alive from sample to sample.
///
/// The program reads a line of JSON from its standard input, `{"id": 0, "response": ...}` with the configured fields, and writes a line of
/// JSON to its standard output: `{"id": 0, "score": 1.0}`, where further numbers are components and further texts labels, or
/// `{"id": 0, "error": "...", "kind": "retryable"}`. Errors quote its standard error.
///
/// Each process scores one sample at a time. If its call is dropped or it breaks the protocol, it is killed together with all processes of
/// its group. A process that was killed or has ended is replaced by the next call.
pub struct ProcessReward {
    command: Vec<String>,
    fields: Fields,
    turns: Semaphore,
    idle: Mutex<Vec<Worker>>,
    calls: AtomicU64,
}

/// Options of a [`ProcessReward`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessOptions {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Maximum number of concurrent processes, from 1 to 4096; 1 by default. They are started on demand.
    #[serde(default = "processes")]
    pub processes: usize,
    /// The names and contents of the fields of a request; by default `data_source`, `messages`, `response`, `ground_truth` and
    /// `extra_info`.
    #[serde(default = "all")]
    pub fields: Fields,
}

/// The maximum of `processes`.
const MOST_PROCESSES: usize = 4096;

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

/// The timeout of every call, so that a program that never answers cannot block a run forever. [`Timeout`](super::Timeout) sets shorter
/// limits.
const LONGEST_CALL: Duration = Duration::from_secs(600);

impl ProcessReward {
    /// Creates a reward for a program, which the first call starts.
    ///
    /// # Errors
    /// If an option is out of range.
    pub fn new(options: ProcessOptions) -> Result<Self, CatalogError> {
        let bound = |key, expected, found| Err(CatalogError::bound(key, expected, found));
        if options.command.is_empty() {
            return bound("command", "a program", "an empty list");
        }
        if options.processes == 0 {
            return bound("processes", "a number above 0", "0");
        }
        if options.processes > MOST_PROCESSES {
            let expected = format!("at most {MOST_PROCESSES}");
            return Err(CatalogError::bound("processes", &expected, options.processes));
        }
        if options.fields.contains_key("id") {
            return bound(
                "fields",
                "no field `id`, which is reserved for the request number",
                "one",
            );
        }
        Ok(Self {
            command: options.command,
            fields: options.fields,
            turns: Semaphore::new(options.processes),
            idle: Mutex::default(),
            calls: AtomicU64::new(0),
        })
    }

    /// Sends a request to an idle or new process and returns its answer. The process becomes idle again only if it answered; otherwise it
    /// is dropped, and thereby killed.
    async fn ask(&self, id: u64, line: &str) -> Result<Value, RewardError> {
        let mut worker = self.waiting().map_or_else(|| Worker::start(&self.command), Ok)?;
        let asked = tokio::time::timeout(LONGEST_CALL, worker.ask(id, line)).await;
        let late = || RewardError::timeout(format_args!("took longer than {LONGEST_CALL:?}"));
        let answer = asked.map_err(|_| late())??;
        self.idle().push(worker);
        Ok(answer)
    }

    /// Takes an idle process, and drops those that have ended meanwhile.
    fn waiting(&self) -> Option<Worker> {
        let mut idle = self.idle();
        std::iter::from_fn(|| idle.pop()).find(|worker| !worker.has_ended())
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Worker>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reward for ProcessReward {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let mut request = object(&self.fields, sample)?;
        let _turn = self.turns.acquire().await.expect("invariant: the semaphore is never closed");
        let id = self.calls.fetch_add(1, Ordering::Relaxed);
        request.insert("id".to_owned(), id.into());
        let line = format!("{}\n", Value::Object(request));
        let mut answer = self.ask(id, &line).await?;
        answer.as_object_mut().map(|answer| answer.remove("id"));
        answer::score(&answer, None)
    }
}

#[cfg(test)]
mod tests;
