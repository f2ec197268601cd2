//! Scoring rows of a file outside of any training: how a reward is tried.
//!
//! Rows are read, scored and written one after another, a bounded number at once, so that memory does not grow with the file. What a row
//! makes of an error is its error: the others go on.
//!
//! Where a reward scores whole groups, a column says which rows are of one. The file is then read twice, first to count the rows of each
//! group: a group is scored once its last row is, wherever in the file that stands, and no sooner are its rows written.

mod group;
mod row;
mod summary;
mod window;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use rollpacker_dataflow::clock::Clock;
use rollpacker_datasets::{DatasetError, Records};
use rollpacker_stages::reward::{Context, Limits, Router, Sample, Score};

pub use row::{Columns, RowError};
pub use summary::{SourceSummary, Summary};

use group::{Groups, Key, Member};
use row::Object;
use summary::Scored;
use window::{Done, Window};

/// How rows are scored.
pub struct Scoring {
    /// The rewards.
    pub router: Router,
    /// Which column is what.
    pub columns: Columns,
    /// Rows that are scored at once.
    pub concurrency: usize,
    /// How long test cases may run.
    pub limits: Limits,
    /// The clock of the rewards.
    pub clock: Arc<dyn Clock>,
}

impl Scoring {
    /// Scores every row of `input`, writes one JSON line for each to `output`, in order, and tells `progress` how many are done and how
    /// many there are, where the file says so.
    ///
    /// # Errors
    /// If the file cannot be read on, a column that was named is not there, a reward scores whole groups and no column says which rows are
    /// of one, or a line cannot be written.
    pub async fn run(
        mut self,
        input: &Path,
        output: &mut impl Write,
        mut progress: impl FnMut(u64, Option<u64>),
    ) -> anyhow::Result<Summary> {
        let begun = self.clock.now();
        let mut window = Window::new(self.groups(input)?);
        let mut records = Records::open(input)?;
        let rows = records.rows();
        let mut summary = Summary::default();
        let width = self.concurrency.max(1);
        let mut more = true;
        while more || !window.is_empty() {
            while more && window.has_room(width) {
                match records.next() {
                    Some(record) => window.admit(self.task(window.next_row(), record)?),
                    None => more = false,
                }
            }
            for group in window.wait().await? {
                summary.groups += 1;
                window.score_group(group::score(self.router.clone(), group, self.context()));
            }
            while let Some(scored) = window.pop() {
                writeln!(output, "{}", scored.line(summary.rows))
                    .context("cannot write a score")?;
                summary.add(&scored);
            }
            ensure!(
                more || window.is_running() || window.is_empty(),
                "{}: it has changed while it was read, and groups lack rows",
                input.display()
            );
            progress(summary.rows, rows);
        }
        output.flush().context("cannot write the scores")?;
        summary.seconds = self.clock.now().since(begun).as_secs_f64();
        Ok(summary)
    }

    fn context(&self) -> Context {
        Context::new(self.clock.clone()).with_limits(self.limits.clone())
    }

    /// Counts the rows of each group, where groups are scored.
    fn groups(&mut self, input: &Path) -> anyhow::Result<Groups> {
        let mut groups = Groups::default();
        if !self.router.scores_groups() {
            let unused = self.columns.group.is_none();
            ensure!(unused, "option `--group-key`: no reward scores whole groups");
            return Ok(groups);
        }
        Records::check_reopens(input)?;
        for record in Records::open(input)? {
            match record {
                Ok(record) => {
                    self.key(&record)?.into_iter().flatten().for_each(|key| groups.expect(key))
                }
                Err(error) if error.is_row() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(groups)
    }

    /// The group of a row, if it is scored with others.
    fn key(&mut self, row: &Object) -> anyhow::Result<Option<Result<Key, RowError>>> {
        let Ok(source) = self.columns.source(row).map(str::to_owned) else { return Ok(None) };
        let Ok(Some(reward)) = self.router.group_reward_of(&source) else { return Ok(None) };
        let scored = || format!("reward `{reward}` of data_source `{source}` scores whole groups");
        self.columns.settle_group(row).with_context(scored)?;
        Ok(Some(self.columns.group(row).map(|group| (source, group))))
    }

    fn task(
        &mut self,
        row: u64,
        record: Result<Object, DatasetError>,
    ) -> anyhow::Result<impl Future<Output = Done> + Send + use<>> {
        let (key, read) = match record {
            Ok(record) => match self.key(&record)?.transpose() {
                Ok(key) => (key, self.columns.sample(record)?),
                Err(error) => (None, Err(error)),
            },
            Err(error) if error.is_row() => (None, Err(RowError::input(error))),
            Err(error) => return Err(error.into()),
        };
        let (router, context) = (self.router.clone(), self.context());
        Ok(async move {
            let data_source = read.as_ref().ok().map(|sample| sample.data_source.clone());
            let own = score(&router, read, &context).await;
            match key {
                None => Done::Row(row, Scored { data_source, score: own.map(|(_, score)| score) }),
                Some(key) => {
                    let data_source = key.0.clone();
                    Done::Member(key, Box::new(Member { row, data_source, own }))
                }
            }
        })
    }
}

/// What the row's own reward says, where it has one.
async fn score(
    router: &Router,
    read: Result<Sample, RowError>,
    context: &Context,
) -> Result<(Sample, Score), RowError> {
    let sample = read?;
    let score = router.score(&sample, context).await?;
    let has_own = router.scores_samples(&sample.data_source).unwrap_or(false);
    let own_score = has_own.then(|| score.total());
    Ok((Sample { own_score, ..sample }, score))
}

#[cfg(test)]
mod tests;
