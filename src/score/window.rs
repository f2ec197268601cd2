//! The rows in flight, and the rows that wait until an earlier row is written or until their group is complete.

use std::collections::BTreeMap;

use anyhow::Context as _;
use tokio::task::JoinSet;

use super::group::{GroupKey, GroupRow, PendingGroups};
use super::summary::ScoredRow;

/// The maximum number of rows that are admitted and not yet written, per concurrently scored row. The other rows can thus continue for a
/// while during a slow row.
const MAX_UNWRITTEN_PER_TASK: u64 = 16;

/// The result of a task that scored a row or a group. Rows are numbered from 0.
pub(super) enum TaskResult {
    Row(u64, ScoredRow),
    /// A row with the score of its per-sample reward. The score of its group follows.
    Member(GroupKey, Box<GroupRow>),
    Group(Vec<(u64, ScoredRow)>),
}

/// The rows in flight, and the finished rows that wait to be written.
pub(super) struct Window {
    running: JoinSet<TaskResult>,
    groups: PendingGroups,
    waiting: BTreeMap<u64, ScoredRow>,
    admitted: u64,
    written: u64,
}

impl Window {
    /// Creates an empty window. `groups` contains the number of rows of each group of the file.
    pub(super) fn new(groups: PendingGroups) -> Self {
        Self { running: JoinSet::new(), groups, waiting: BTreeMap::new(), admitted: 0, written: 0 }
    }

    /// Returns `true` if another row may be admitted. `width` is the number of running tasks at which no further row is admitted.
    ///
    /// Rows of incomplete groups hold up all rows after them, and only further rows can complete these groups. Therefore the number of
    /// waiting rows is not bounded while there are incomplete groups.
    pub(super) fn has_room(&self, width: usize) -> bool {
        let near = || self.admitted - self.written < MAX_UNWRITTEN_PER_TASK * width as u64;
        self.running.len() < width && (!self.groups.is_empty() || near())
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.is_running() && self.waiting.is_empty() && self.groups.is_empty()
    }

    pub(super) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Returns the number of the next row to admit, from 0.
    pub(super) fn next_row(&self) -> u64 {
        self.admitted
    }

    /// Starts to score the next row.
    pub(super) fn admit(&mut self, task: impl Future<Output = TaskResult> + Send + 'static) {
        self.admitted += 1;
        self.running.spawn(task);
    }

    pub(super) fn score_group(
        &mut self,
        task: impl Future<Output = Vec<(u64, ScoredRow)>> + Send + 'static,
    ) {
        self.running.spawn(async { TaskResult::Group(task.await) });
    }

    /// Waits for one task, if any is running, and collects the results of all other finished tasks. Returns the groups that became
    /// complete.
    ///
    /// # Errors
    /// If a task panicked.
    pub(super) async fn wait(&mut self) -> anyhow::Result<Vec<Vec<GroupRow>>> {
        let mut whole = Vec::new();
        let mut next = self.running.join_next().await;
        while let Some(joined) = next {
            match joined.context("the task of a reward failed")? {
                TaskResult::Row(row, scored) => self.waiting.extend([(row, scored)]),
                TaskResult::Group(scored) => self.waiting.extend(scored),
                TaskResult::Member(key, member) => whole.extend(self.groups.take(key, *member)),
            }
            next = self.running.try_join_next();
        }
        Ok(whole)
    }

    /// Removes and returns the next row in order, if it is scored.
    pub(super) fn pop(&mut self) -> Option<ScoredRow> {
        let scored = self.waiting.remove(&self.written)?;
        self.written += 1;
        Some(scored)
    }
}
