//! The rows that attend together where attention needs rows of one length: shorter rows are padded and masked.

use std::ops::Range;

/// Granularity of the positions that a row attends to with [`Grouping::Extents`], in tokens.
pub(super) const EXTENT: usize = 64;

/// Rows whose lengths differ by at most this attend together, whatever their length.
const PADDING: usize = 32;

/// The way to group adjacent rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grouping {
    /// Rows of similar length: within a group, lengths differ by at most 32 tokens or an eighth of the longest.
    Similar,
    /// Rows whose lengths, rounded up to [`EXTENT`], differ by at most `slack`. A row is then padded to one of few lengths.
    Extents {
        /// Maximum difference of the rounded lengths, in tokens.
        slack: usize,
    },
}

impl Grouping {
    /// Splits rows of the given lengths into groups, in order, each with the number of positions that its rows attend to.
    pub(super) fn groups(self, lengths: &[usize]) -> Vec<(Range<usize>, usize)> {
        let extents: Vec<usize> = lengths.iter().map(|length| self.extent(*length)).collect();
        let mut groups: Vec<(Range<usize>, usize)> = Vec::new();
        let mut shortest = 0;
        for (row, extent) in extents.into_iter().enumerate() {
            match groups.last_mut() {
                Some((rows, longest))
                    if self.unites(extent.min(shortest), extent.max(*longest)) =>
                {
                    rows.end = row + 1;
                    *longest = extent.max(*longest);
                    shortest = extent.min(shortest);
                }
                _ => {
                    groups.push((row..row + 1, extent));
                    shortest = extent;
                }
            }
        }
        groups
    }

    fn extent(self, length: usize) -> usize {
        match self {
            Self::Similar => length,
            Self::Extents { .. } => length.next_multiple_of(EXTENT),
        }
    }

    fn unites(self, shortest: usize, longest: usize) -> bool {
        let limit = match self {
            Self::Similar => PADDING.max(longest / 8),
            Self::Extents { slack } => slack,
        };
        longest - shortest <= limit
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rows_of_similar_lengths_are_grouped() {
        let groups = |lengths: &[usize]| Grouping::Similar.groups(lengths);
        assert_eq!(groups(&[300, 290, 100, 90, 20]), [(0..2, 300), (2..4, 100), (4..5, 20)]);
        assert_eq!(groups(&[40; 9]), [(0..9, 40)]);
        assert_eq!(groups(&[]), []);
    }

    #[test]
    fn rows_of_similar_extents_are_grouped() {
        let lengths = [250, 180, 256, 128, 60, 1];
        let groups = |slack| Grouping::Extents { slack }.groups(&lengths);
        assert_eq!(groups(64), [(0..3, 256), (3..6, 128)]);
        assert_eq!(groups(0), [(0..1, 256), (1..2, 192), (2..3, 256), (3..4, 128), (4..6, 64)]);
    }

    proptest! {
        #[test]
        fn groups_cover_the_rows_and_bound_the_padding(lengths in prop::collection::vec(1..600usize, 0..60)) {
            let groups = Grouping::Similar.groups(&lengths);
            let covered: Vec<usize> = groups.iter().flat_map(|(rows, _)| rows.clone()).collect();
            prop_assert_eq!(covered, (0..lengths.len()).collect::<Vec<_>>());
            for (rows, extent) in groups {
                let longest = *lengths[rows.clone()].iter().max().unwrap();
                let shortest = *lengths[rows].iter().min().unwrap();
                prop_assert_eq!(extent, longest);
                prop_assert!(longest - shortest <= PADDING.max(longest / 8));
            }
        }
    }
}
