//! Scoring rows of a file outside of any training: how a reward is tried.
//!
//! Rows are read, scored and written one after another, a bounded number at once, so that memory does not grow with the file. What a row
//! makes of an error is its error: the others go on.

mod row;
mod summary;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use rollpacker_dataflow::clock::Clock;
use rollpacker_datasets::Records;
use rollpacker_stages::reward::{Context, Router, Sample};
use tokio::task::JoinSet;

pub use row::{Columns, RowError};
pub use summary::{SourceSummary, Summary};

use summary::Scored;

/// Rows that wait for an earlier one, for each that is scored at once: one slow row does not hold up the others for long.
const AHEAD: u64 = 16;

/// How rows are scored.
pub struct Scoring {
    /// The rewards.
    pub router: Router,
    /// Which column is what.
    pub columns: Columns,
    /// Rows that are scored at once.
    pub concurrency: usize,
    /// The clock of the rewards.
    pub clock: Arc<dyn Clock>,
}

impl Scoring {
    /// Scores every row of `input`, writes one JSON line for each to `output`, in order, and tells `progress` how many are done and how
    /// many there are, where the file says so.
    ///
    /// # Errors
    /// If the file cannot be read on, a column that was named is not there, or a line cannot be written.
    pub async fn run(
        mut self,
        input: &Path,
        output: &mut impl Write,
        mut progress: impl FnMut(u64, Option<u64>),
    ) -> anyhow::Result<Summary> {
        let begun = self.clock.now();
        let mut records = Records::open(input)?;
        let rows = records.rows();
        let mut window = Window::default();
        let mut summary = Summary::default();
        let width = self.concurrency.max(1);
        let mut more = true;
        while more || !window.is_empty() {
            while more && window.has_room(width) {
                match records.next() {
                    Some(record) => window.admit(self.task(record)?),
                    None => more = false,
                }
            }
            window.wait().await?;
            while let Some(scored) = window.pop() {
                writeln!(output, "{}", scored.line(summary.rows))
                    .context("cannot write a score")?;
                summary.add(&scored);
            }
            progress(summary.rows, rows);
        }
        output.flush().context("cannot write the scores")?;
        summary.seconds = self.clock.now().since(begun).as_secs_f64();
        Ok(summary)
    }

    fn task(
        &mut self,
        record: Result<row::Object, rollpacker_datasets::DatasetError>,
    ) -> anyhow::Result<impl Future<Output = Scored> + Send + use<>> {
        let read = match record {
            Ok(record) => self.columns.sample(record)?,
            Err(error) if error.is_row() => Err(RowError::input(error)),
            Err(error) => return Err(error.into()),
        };
        Ok(score(self.router.clone(), read, Context::new(self.clock.clone())))
    }
}

async fn score(router: Router, read: Result<Sample, RowError>, context: Context) -> Scored {
    match read {
        Err(error) => Scored { data_source: None, score: Err(error) },
        Ok(sample) => {
            let score = match router.scores_samples(&sample.data_source) {
                Ok(false) => Err(RowError::group_only()),
                _ => router.score(&sample, &context).await.map_err(RowError::from),
            };
            Scored { data_source: Some(sample.data_source), score }
        }
    }
}

/// Rows under way, and those that wait for an earlier one to be written.
#[derive(Default)]
struct Window {
    running: JoinSet<(u64, Scored)>,
    waiting: BTreeMap<u64, Scored>,
    admitted: u64,
    written: u64,
}

impl Window {
    fn has_room(&self, width: usize) -> bool {
        self.running.len() < width && self.admitted - self.written < AHEAD * width as u64
    }

    fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    fn admit(&mut self, task: impl Future<Output = Scored> + Send + 'static) {
        let row = self.admitted;
        self.admitted += 1;
        self.running.spawn(async move { (row, task.await) });
    }

    /// Waits for one row, and takes all others that are done.
    async fn wait(&mut self) -> anyhow::Result<()> {
        let mut next = self.running.join_next().await;
        while let Some(joined) = next {
            let (row, scored) = joined.context("a reward ended without a score")?;
            self.waiting.insert(row, scored);
            next = self.running.try_join_next();
        }
        Ok(())
    }

    fn pop(&mut self) -> Option<Scored> {
        let scored = self.waiting.remove(&self.written)?;
        self.written += 1;
        Some(scored)
    }
}

#[cfg(test)]
mod tests;
