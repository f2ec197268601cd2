//! Combination of several verdicts.

use std::collections::BTreeMap;

use rollpacker_stages::reward::Score;
use serde::{Deserialize, Serialize};

use super::verdict::Verdict;

/// The way to combine several verdicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Votes {
    /// The most frequent verdict; among equally frequent ones, the one with the lowest value.
    #[default]
    Majority,
    /// The mean of the values.
    Mean,
}

impl Votes {
    /// Returns the score of one or more verdicts. Components: `votes`, the number of verdicts, and `agreement`, the fraction of the
    /// verdicts that equal the most frequent verdict. Label: `verdict`, the most frequent verdict. Returns `Score::default()` if there are
    /// no verdicts.
    #[must_use]
    pub fn score(self, verdicts: &[Verdict]) -> Score {
        let mut counts: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
        for Verdict { value, text } in verdicts {
            counts.entry(text).or_insert((0, *value)).0 += 1;
        }
        let first = counts.iter().max_by(|(_, (a, worth_a)), (_, (b, worth_b))| {
            a.cmp(b).then(worth_b.total_cmp(worth_a))
        });
        let Some((text, (count, worth))) = first else { return Score::default() };
        let votes = verdicts.len() as f64;
        let mean = verdicts.iter().map(|verdict| verdict.value).sum::<f64>() / votes;
        let value = match self {
            Self::Majority => *worth,
            Self::Mean => mean,
        };
        Score::from(value)
            .component("votes", votes)
            .component("agreement", *count as f64 / votes)
            .label("verdict", *text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(votes: Votes, verdicts: &[(&str, f64)]) -> (f64, f64, String) {
        let verdict = |&(text, value): &(&str, f64)| Verdict { value, text: text.to_owned() };
        let verdicts: Vec<_> = verdicts.iter().map(verdict).collect();
        let score = votes.score(&verdicts);
        (score.value, score.components["agreement"], score.labels["verdict"].clone())
    }

    #[test]
    fn the_most_frequent_wins_and_a_tie_is_no() {
        let (yes, no) = (("YES", 1.0), ("NO", 0.0));
        assert_eq!(score(Votes::Majority, &[yes, no, yes]), (1.0, 2.0 / 3.0, "YES".to_owned()));
        assert_eq!(score(Votes::Majority, &[yes, no]), (0.0, 0.5, "NO".to_owned()));
        let (three, five) = (("3", 0.5), ("5", 1.0));
        assert_eq!(score(Votes::Majority, &[five, three]).0, 0.5);
    }

    #[test]
    fn the_mean_is_of_all() {
        let verdicts = [("1", 0.0), ("4", 0.75), ("4", 0.75)];
        assert_eq!(score(Votes::Mean, &verdicts), (0.5, 2.0 / 3.0, "4".to_owned()));
    }
}
