//! Rows under way, and those that wait: for an earlier one to be written, or for the others of their group.

use std::collections::BTreeMap;

use anyhow::Context as _;
use tokio::task::JoinSet;

use super::group::{Groups, Key, Member};
use super::summary::Scored;

/// Rows that wait for an earlier one, for each that is scored at once: one slow row does not hold up the others for long.
const AHEAD: u64 = 16;

/// What a task has done.
pub(super) enum Done {
    /// Scored a row.
    Row(u64, Scored),
    /// Scored a row by its own reward; that of its group is to follow.
    Member(Key, Box<Member>),
    /// Scored a group.
    Group(Vec<(u64, Scored)>),
}

/// Rows under way, and those that wait.
pub(super) struct Window {
    running: JoinSet<Done>,
    groups: Groups,
    waiting: BTreeMap<u64, Scored>,
    admitted: u64,
    written: u64,
}

impl Window {
    /// Nothing is under way; `groups` are those that the file has.
    pub(super) fn new(groups: Groups) -> Self {
        Self { running: JoinSet::new(), groups, waiting: BTreeMap::new(), admitted: 0, written: 0 }
    }

    /// Whether another row may be begun. The rows that wait for the others of their group hold up what is behind them, so that there is no
    /// bound but the file's while there are any.
    pub(super) fn has_room(&self, width: usize) -> bool {
        let near = || self.admitted - self.written < AHEAD * width as u64;
        self.running.len() < width && (!self.groups.is_empty() || near())
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.is_running() && self.waiting.is_empty() && self.groups.is_empty()
    }

    pub(super) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// The number of the next row.
    pub(super) fn next_row(&self) -> u64 {
        self.admitted
    }

    /// Begins the next row.
    pub(super) fn admit(&mut self, task: impl Future<Output = Done> + Send + 'static) {
        self.admitted += 1;
        self.running.spawn(task);
    }

    /// Begins a group.
    pub(super) fn score_group(
        &mut self,
        task: impl Future<Output = Vec<(u64, Scored)>> + Send + 'static,
    ) {
        self.running.spawn(async { Done::Group(task.await) });
    }

    /// Waits for one task, and takes what all others have done; the groups that are whole with it.
    pub(super) async fn wait(&mut self) -> anyhow::Result<Vec<Vec<Member>>> {
        let mut whole = Vec::new();
        let mut next = self.running.join_next().await;
        while let Some(joined) = next {
            match joined.context("a reward ended without a score")? {
                Done::Row(row, scored) => self.waiting.extend([(row, scored)]),
                Done::Group(scored) => self.waiting.extend(scored),
                Done::Member(key, member) => whole.extend(self.groups.take(key, *member)),
            }
            next = self.running.try_join_next();
        }
        Ok(whole)
    }

    /// The next row in order, once it is scored.
    pub(super) fn pop(&mut self) -> Option<Scored> {
        let scored = self.waiting.remove(&self.written)?;
        self.written += 1;
        Some(scored)
    }
}
