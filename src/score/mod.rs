//! Scores the rows of a file without training, for example to try a reward.
//!
//! Rows are read, scored and written in order with bounded concurrency. Memory does not grow with the file, unless a reward scores whole
//! groups. An error affects only the row in which it occurs, or all rows of its group.
//!
//! If a reward scores whole groups, a column identifies the group of each row. The file is then read twice: the first pass counts the rows
//! of each group. A group is scored once its last row is scored. Until then, its rows and all scored rows after them are in memory.

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

pub use row::{RowError, ScoreColumns};
pub use summary::{ScoreSummary, SourceSummary};

use group::{GroupKey, GroupRow, PendingGroups};
use row::JsonObject;
use summary::ScoredRow;
use window::{TaskResult, Window};

/// Settings for scoring the rows of a file.
pub struct Scoring {
    /// The rewards by data source.
    pub router: Router,
    /// The names of the columns that contain the response, the prompt and the other parts of a row.
    pub columns: ScoreColumns,
    /// Maximum number of rows scored at once; 0 counts as 1.
    pub concurrency: usize,
    /// The time limits that rewards apply to test cases of code.
    pub limits: Limits,
    /// The clock of the rewards, which also measures the duration of the scoring.
    pub clock: Arc<dyn Clock>,
}

impl Scoring {
    /// Scores every row of `input` and writes one JSON line for each to `output`, in the order of the rows.
    ///
    /// Calls `progress` with the number of rows done, and with the total if the file states it.
    ///
    /// # Errors
    /// If the file cannot be read, has no rows or changes while it is read, the first readable row has no column for the response, no
    /// column identifies the groups of a reward that scores whole groups, a group column is named without such a reward, no row has a
    /// [required](ScoreColumns::required) column, the task of a reward panics, or a line cannot be written.
    pub async fn run(
        mut self,
        input: &Path,
        output: &mut impl Write,
        mut progress: impl FnMut(u64, Option<u64>),
    ) -> anyhow::Result<ScoreSummary> {
        let begun = self.clock.now();
        let mut window = Window::new(self.groups(input)?);
        let mut records = Records::open(input)?;
        let rows = records.rows();
        let mut summary = ScoreSummary::default();
        let width = self.concurrency.max(1);
        let mut more = true;
        let mut last_columns = Vec::new();
        // Each pass has three phases. It admits rows until the window is full or the file ends. It waits for at least one task; a group
        // whose last row has just been scored becomes a task. It writes the rows that are next in order. If no task is running although
        // rows still wait for their group, the file has fewer rows than in the first reading, and the run fails instead of waiting forever.
        while more || !window.is_empty() {
            while more && window.has_room(width) {
                match records.next() {
                    Some(record) => {
                        if let Ok(row) = &record
                            && !self.columns.required.is_empty()
                        {
                            self.columns.mark_found(row);
                            last_columns = row.keys().cloned().collect();
                        }
                        window.admit(self.task(window.next_row(), record)?);
                    }
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
                "{}: the file changed while it was read: groups are missing rows",
                input.display()
            );
            progress(summary.rows, rows);
        }
        if summary.rows == 0 {
            return Err(DatasetError::NoRows { file: input.to_owned() }.into());
        }
        self.columns.check_found(input, &last_columns)?;
        output.flush().context("cannot write the scores")?;
        summary.seconds = self.clock.now().since(begun).as_secs_f64();
        Ok(summary)
    }

    fn context(&self) -> Context {
        Context::new(self.clock.clone()).with_limits(self.limits.clone())
    }

    /// Counts the rows of each group. Returns no groups if no reward scores whole groups.
    fn groups(&mut self, input: &Path) -> anyhow::Result<PendingGroups> {
        let mut groups = PendingGroups::default();
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

    /// Returns the group of a row, or `None` if the data source of the row has no group reward or cannot be read. The inner error is the
    /// error of a row without a group.
    fn key(&mut self, row: &JsonObject) -> anyhow::Result<Option<Result<GroupKey, RowError>>> {
        let Ok(source) = self.columns.source(row).map(str::to_owned) else { return Ok(None) };
        let Ok(Some(reward)) = self.router.group_reward_of(&source) else { return Ok(None) };
        let scored = || format!("reward `{reward}` of data_source `{source}` scores whole groups");
        self.columns.resolve_group_column(row).with_context(scored)?;
        Ok(Some(self.columns.group(row).map(|group| (source, group))))
    }

    fn task(
        &mut self,
        row: u64,
        record: Result<JsonObject, DatasetError>,
    ) -> anyhow::Result<impl Future<Output = TaskResult> + Send + use<>> {
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
            let sample_result = score(&router, read, &context).await;
            match key {
                None => TaskResult::Row(
                    row,
                    ScoredRow { data_source, score: sample_result.map(|(_, score)| score) },
                ),
                Some(key) => {
                    let data_source = key.0.clone();
                    TaskResult::Member(key, Box::new(GroupRow { row, data_source, sample_result }))
                }
            }
        })
    }
}

/// Scores a row with its per-sample reward. The score is 0 if its data source has only a group reward.
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
