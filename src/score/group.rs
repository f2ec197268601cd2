//! Groups of rows that are scored together: the responses to one prompt.

use std::collections::BTreeMap;

use rollpacker_stages::reward::{Context, Router, Sample, Score};

use super::row::RowError;
use super::summary::ScoredRow;

/// The key of a group: its data source and the text in the group column.
pub(super) type GroupKey = (String, String);

/// A row of a group with the score of its per-sample reward.
pub(super) struct GroupRow {
    pub(super) row: u64,
    pub(super) data_source: String,
    pub(super) sample_result: Result<(Sample, Score), RowError>,
}

/// Groups with missing rows. Their rows wait in memory until the last row of the group is scored, wherever in the file it is.
#[derive(Default)]
pub(super) struct PendingGroups {
    /// The number of rows that are still missing, by group.
    missing: BTreeMap<GroupKey, usize>,
    /// The rows that were scored, by group.
    open: BTreeMap<GroupKey, Vec<GroupRow>>,
}

impl PendingGroups {
    /// Counts a row of a group, before the rows are scored.
    pub(super) fn expect(&mut self, key: GroupKey) {
        *self.missing.entry(key).or_default() += 1;
    }

    /// Adds a scored row. Returns the rows of the group, ordered by row number, if this was the last missing row, and `None` otherwise.
    /// Drops a row that was not [expected](Self::expect).
    pub(super) fn take(&mut self, key: GroupKey, member: GroupRow) -> Option<Vec<GroupRow>> {
        let missing = self.missing.get_mut(&key)?;
        *missing -= 1;
        let is_whole = *missing == 0;
        let members = self.open.entry(key.clone()).or_default();
        members.push(member);
        if !is_whole {
            return None;
        }
        self.missing.remove(&key);
        let mut members = self.open.remove(&key)?;
        members.sort_unstable_by_key(|member| member.row);
        Some(members)
    }

    /// Returns `true` if no row waits for other rows of its group.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

/// Adds the scores of the group reward to the per-sample scores of the rows.
///
/// A row without a score leaves all rows of the group without a score, because a group reward compares responses with each other. An error
/// of the group reward also leaves all rows without a score.
pub(super) async fn score(
    router: Router,
    members: Vec<GroupRow>,
    context: Context,
) -> Vec<(u64, ScoredRow)> {
    if let Some(failed) =
        members.iter().find(|member| member.sample_result.is_err()).map(|one| one.row)
    {
        let missing = |member: GroupRow| {
            let error = member.sample_result.err().unwrap_or_else(|| RowError::incomplete(failed));
            (member.row, ScoredRow { data_source: Some(member.data_source), score: Err(error) })
        };
        return members.into_iter().map(missing).collect();
    }
    let rows: Vec<u64> = members.iter().map(|member| member.row).collect();
    let (samples, own): (Vec<Sample>, Vec<Score>) =
        members.into_iter().filter_map(|member| member.sample_result.ok()).unzip();
    let result = router.score_group(&samples, &context).await;
    let scores: Vec<Result<Score, RowError>> = match result {
        None => own.into_iter().map(Ok).collect(),
        Some(Ok(scores)) => own.into_iter().zip(scores).map(|(own, of)| Ok(own.plus(of))).collect(),
        Some(Err(error)) => own.iter().map(|_| Err(RowError::from(error.clone()))).collect(),
    };
    let sources = samples.into_iter().map(|sample| Some(sample.data_source));
    let scored = sources.zip(scores).map(|(data_source, score)| ScoredRow { data_source, score });
    rows.into_iter().zip(scored).collect()
}
