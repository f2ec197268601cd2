//! Rewards of a program of one's own.

mod worker;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::field::{Field, Fields, fields, object};
use super::{Context, Reward, RewardError, Sample, Score, answer};
use crate::catalog::CatalogError;
use worker::Worker;

/// A reward that a program computes, which stays alive from sample to sample.
///
/// The program reads a line of JSON from its standard input, `{"id": 0, "response": ...}` with the fields of the options, and writes a
/// line of JSON to its standard output: `{"id": 0, "score": 1.0}`, further numbers being components and further texts labels, or
/// `{"id": 0, "error": "...", "kind": "retryable"}`. What it writes to its standard error is repeated in errors.
///
/// Each process scores one sample at a time. It is killed, with all processes of its group, when its call is dropped or it breaks the
/// protocol, and replaced then and when it has ended.
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
    /// Processes at once, started as they are needed.
    #[serde(default = "processes")]
    pub processes: usize,
    /// Fields of a request and what they hold; by default `data_source`, `messages`, `response`, `ground_truth` and `extra_info`.
    #[serde(default = "all")]
    pub fields: Fields,
}

/// The most processes at once.
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

/// No call is longer: a program that never answers shall not hold a run for ever. Shorter limits are a [`Timeout`](super::Timeout)'s.
const LONGEST_CALL: Duration = Duration::from_secs(600);

impl ProcessReward {
    /// A reward of a program, which is started by the first call.
    ///
    /// # Errors
    /// If an option is out of its bounds.
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
            return bound("fields", "no field `id`, which numbers the requests", "one");
        }
        Ok(Self {
            command: options.command,
            fields: options.fields,
            turns: Semaphore::new(options.processes),
            idle: Mutex::default(),
            calls: AtomicU64::new(0),
        })
    }

    /// The answer to one request, from a process that is idle or a new one; it is idle again if it answered.
    async fn ask(&self, id: u64, line: &str) -> Result<Value, RewardError> {
        let mut worker = self.waiting().map_or_else(|| Worker::start(&self.command), Ok)?;
        let asked = tokio::time::timeout(LONGEST_CALL, worker.ask(id, line)).await;
        let late = || RewardError::timeout(format_args!("took longer than {LONGEST_CALL:?}"));
        let answer = asked.map_err(|_| late())??;
        self.idle().push(worker);
        Ok(answer)
    }

    /// A process that is idle; those that ended meanwhile are let go.
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
