//! Rows that are scored together: the responses to one prompt.

use std::collections::BTreeMap;

use rollpacker_stages::reward::{Context, Router, Sample, Score};

use super::RowError;
use super::summary::Scored;

/// Which rows belong together: those of one data source with one text in the column of the group.
pub(super) type Key = (String, String);

/// A row with what its own reward said.
pub(super) struct Member {
    pub(super) row: u64,
    pub(super) data_source: String,
    pub(super) own: Result<(Sample, Score), RowError>,
}

/// Groups whose rows are not all here. They wait for each other in memory, however far apart the file has them.
#[derive(Default)]
pub(super) struct Groups {
    /// Rows that are still to come, by group.
    owed: BTreeMap<Key, usize>,
    open: BTreeMap<Key, Vec<Member>>,
}

impl Groups {
    /// The file has a further row of a group.
    pub(super) fn expect(&mut self, key: Key) {
        *self.owed.entry(key).or_default() += 1;
    }

    /// Takes a row in; with the last one of its group, all of them in their order.
    pub(super) fn take(&mut self, key: Key, member: Member) -> Option<Vec<Member>> {
        let owed = self.owed.get_mut(&key)?;
        *owed -= 1;
        let is_whole = *owed == 0;
        let members = self.open.entry(key.clone()).or_default();
        members.push(member);
        if !is_whole {
            return None;
        }
        self.owed.remove(&key);
        let mut members = self.open.remove(&key)?;
        members.sort_unstable_by_key(|member| member.row);
        Some(members)
    }

    /// Whether no row waits for another.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

/// Adds what the reward of the group says to what the rows' own said. A row without a score leaves the others without one: what they are
/// compared with is not known.
pub(super) async fn score(
    router: Router,
    members: Vec<Member>,
    context: Context,
) -> Vec<(u64, Scored)> {
    if let Some(failed) = members.iter().find(|member| member.own.is_err()).map(|one| one.row) {
        let missing = |member: Member| {
            let error = member.own.err().unwrap_or_else(|| RowError::incomplete(failed));
            (member.row, Scored { data_source: Some(member.data_source), score: Err(error) })
        };
        return members.into_iter().map(missing).collect();
    }
    let rows: Vec<u64> = members.iter().map(|member| member.row).collect();
    let (samples, own): (Vec<Sample>, Vec<Score>) =
        members.into_iter().filter_map(|member| member.own.ok()).unzip();
    let said = router.score_group(&samples, &context).await;
    let scores: Vec<Result<Score, RowError>> = match said {
        None => own.into_iter().map(Ok).collect(),
        Some(Ok(scores)) => own.into_iter().zip(scores).map(|(own, of)| Ok(own.plus(of))).collect(),
        Some(Err(error)) => own.iter().map(|_| Err(RowError::from(error.clone()))).collect(),
    };
    let sources = samples.into_iter().map(|sample| Some(sample.data_source));
    let scored = sources.zip(scores).map(|(data_source, score)| Scored { data_source, score });
    rows.into_iter().zip(scored).collect()
}
