//! A pool of processes that answer requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollpacker_stages::catalog::CatalogError;
use rollpacker_stages::reward::RewardError;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use super::worker::Worker;

/// Processes that answer a line of JSON with a line of JSON. They are started on demand and stay alive from request to request.
///
/// Each process answers one request at a time. If the future of a request is dropped, the answer takes too long or the process breaks the
/// protocol, the process is killed together with all processes of its group. A process that was killed or has ended is replaced by the next
/// request.
pub(crate) struct Pool {
    command: Vec<String>,
    setup: Option<Setup>,
    limit: Duration,
    permits: Semaphore,
    idle: Mutex<Vec<Worker>>,
    requests: AtomicU64,
}

/// The first request to every process, with the id 0. The process answers it when it is ready.
struct Setup {
    /// The name, in errors, of the object that the process loads.
    subject: String,
    line: String,
}

const MAX_PROCESSES: usize = 4096;

/// The timeout of the first request of a process and, unless [`Pool::with_limit`] sets another one, of every request. It prevents a program
/// that never answers from blocking a run forever. [`Timeout`](crate::Timeout) sets shorter limits.
const MAX_CALL: Duration = Duration::from_secs(600);

impl Pool {
    /// Creates a pool of up to `processes` processes, which requests start.
    ///
    /// # Errors
    /// If the number of processes is out of range.
    pub(crate) fn new(command: Vec<String>, processes: usize) -> Result<Self, CatalogError> {
        if processes == 0 {
            return Err(CatalogError::out_of_range("processes", "a number above 0", "0"));
        }
        if processes > MAX_PROCESSES {
            let expected = format!("at most {MAX_PROCESSES}");
            return Err(CatalogError::out_of_range("processes", &expected, processes));
        }
        Ok(Self {
            command,
            setup: None,
            limit: MAX_CALL,
            permits: Semaphore::new(processes),
            idle: Mutex::default(),
            requests: AtomicU64::new(0),
        })
    }

    /// Sets the first request of every process. Errors name `subject` as the object that could not be loaded.
    pub(crate) fn with_setup(self, subject: &str, mut request: Map<String, Value>) -> Self {
        request.insert("id".to_owned(), 0.into());
        let line = format!("{}\n", Value::Object(request));
        Self { setup: Some(Setup { subject: subject.to_owned(), line }), ..self }
    }

    /// Sets the maximum time between a request and its answer; 600 seconds by default. The start of a process does not count.
    pub(crate) fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Starts a process, reads its answer to the first request, ends the process, and returns the answer; null if no first request is set.
    pub(crate) async fn probe(&self) -> Result<Value, RewardError> {
        let (worker, answer) = self.start().await?;
        worker.end().await;
        Ok(answer)
    }

    /// Waits until fewer processes than the maximum are busy, sends the request to an idle or new process, and returns its answer without
    /// the id. The process becomes idle again only if it answered; otherwise it is dropped, and thereby killed.
    pub(crate) async fn request(
        &self,
        mut request: Map<String, Value>,
    ) -> Result<Value, RewardError> {
        let _permit =
            self.permits.acquire().await.expect("invariant: the semaphore is never closed");
        let id = self.requests.fetch_add(1, Ordering::Relaxed);
        request.insert("id".to_owned(), id.into());
        let line = format!("{}\n", Value::Object(request));
        let mut worker = match self.idle_worker() {
            Some(worker) => worker,
            // Boxed, because it is large and most requests need no new process.
            None => Box::pin(self.start()).await?.0,
        };
        let answered = tokio::time::timeout(self.limit, worker.request(id, &line)).await;
        let mut answer = answered.map_err(|_| timeout_error(self.limit))??;
        self.idle().push(worker);
        answer.as_object_mut().map(|answer| answer.remove("id"));
        Ok(answer)
    }

    /// Starts a process and returns it with its answer to the first request; null if there is no such request.
    async fn start(&self) -> Result<(Worker, Value), RewardError> {
        let Some(Setup { subject, line }) = &self.setup else {
            return Ok((Worker::start(&self.command)?, Value::Null));
        };
        let loaded = async {
            let mut worker = Worker::start(&self.command)?;
            let answered = tokio::time::timeout(MAX_CALL, worker.request(0, line)).await;
            let answer = answered.map_err(|_| timeout_error(MAX_CALL))??;
            match answer["error"].as_str() {
                Some(error) => Err(RewardError::fatal(error)),
                None => Ok((worker, answer)),
            }
        };
        let named = |error: RewardError| RewardError {
            reason: format!("cannot load {subject}: {}", error.reason),
            ..error
        };
        loaded.await.map_err(named)
    }

    /// Takes an idle process, and drops idle processes that have ended meanwhile. Returns `None` if no idle process is left.
    fn idle_worker(&self) -> Option<Worker> {
        let mut idle = self.idle();
        std::iter::from_fn(|| idle.pop()).find(|worker| !worker.has_ended())
    }

    pub(super) fn idle(&self) -> MutexGuard<'_, Vec<Worker>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn timeout_error(limit: Duration) -> RewardError {
    RewardError::timeout(format_args!("took longer than {limit:?}"))
}
