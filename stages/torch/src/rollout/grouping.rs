//! Groups of rows that attend together. Attention by libtorch needs rows of one length, so shorter rows of a group are padded and masked.

use std::ops::Range;

use tch::Device;

/// Granularity of the positions that a row attends to with [`Grouping::Extents`], in tokens.
pub(super) const EXTENT: usize = 64;

/// Maximum difference of the lengths of a group of [`Grouping::Similar`], in tokens, if its rows are short. Longer rows may differ by more.
const PADDING: usize = 32;

/// Maximum number of masked positions of a group of [`Grouping::Few`]. An estimate: a group of a layer launches about ten kernels, which
/// takes about 50 us. In that time a recent GPU gathers and attends to this many positions of a layer with 4 key heads of 128 numbers.
const MASKED: usize = 16_384;

/// The way to group adjacent rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grouping {
    /// Rows of similar length: within a group, lengths differ by at most 32 tokens or an eighth of the longest length, whichever is more.
    Similar,
    /// Few groups, for devices on which the launch of a kernel takes as long as its work: a group has at most [`MASKED`] masked positions.
    Few,
    /// Rows whose lengths, rounded up to [`EXTENT`], differ by at most `slack`. A row is then padded to one of few lengths.
    Extents {
        /// Maximum difference of the rounded lengths, in tokens.
        slack: usize,
    },
}

/// The extents of the rows of a group: the shortest, the longest, and the sum. An extent is the number of positions that a row attends to,
/// rounded up with [`Grouping::Extents`].
#[derive(Clone, Copy)]
struct GroupLengths {
    shortest: usize,
    longest: usize,
    total: usize,
}

impl Grouping {
    /// Returns the grouping of the rows of a decode iteration on `device`.
    pub(super) fn on(device: Device) -> Self {
        if device == Device::Cpu { Self::Similar } else { Self::Few }
    }

    /// Splits rows of the given lengths, in order, into groups of adjacent rows. Returns the rows of each group, and the number of
    /// positions that each of these rows attends to, including masked positions.
    pub(super) fn groups(self, lengths: &[usize]) -> Vec<(Range<usize>, usize)> {
        let mut groups: Vec<(Range<usize>, GroupLengths)> = Vec::new();
        for (row, length) in lengths.iter().enumerate() {
            let extent = self.extent(*length);
            let own = GroupLengths { shortest: extent, longest: extent, total: extent };
            if let Some((rows, extents)) = groups.last_mut() {
                let united = extents.with(extent);
                if self.allows(united, rows.len() + 1) {
                    (rows.end, *extents) = (row + 1, united);
                    continue;
                }
            }
            groups.push((row..row + 1, own));
        }
        groups.into_iter().map(|(rows, extents)| (rows, extents.longest)).collect()
    }

    fn extent(self, length: usize) -> usize {
        match self {
            Self::Similar | Self::Few => length,
            Self::Extents { .. } => length.next_multiple_of(EXTENT),
        }
    }

    /// Returns `true` if a group may have `rows` rows of these extents.
    fn allows(self, lengths: GroupLengths, rows: usize) -> bool {
        let GroupLengths { shortest, longest, total } = lengths;
        match self {
            Self::Similar => longest - shortest <= PADDING.max(longest / 8),
            Self::Few => rows * longest - total <= MASKED,
            Self::Extents { slack } => longest - shortest <= slack,
        }
    }
}

impl GroupLengths {
    /// Returns the lengths of the group with a further row.
    fn with(self, extent: usize) -> Self {
        Self {
            shortest: self.shortest.min(extent),
            longest: self.longest.max(extent),
            total: self.total + extent,
        }
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

    #[test]
    fn few_groups_have_a_bounded_number_of_masked_positions() {
        let groups = |lengths: &[usize]| Grouping::Few.groups(lengths);
        assert_eq!(groups(&[300, 10, 290, 8000, 20]), [(0..3, 300), (3..5, 8000)]);
        assert_eq!(groups(&[MASKED + 1, 1]), [(0..2, MASKED + 1)]);
        assert_eq!(groups(&[MASKED + 2, 1]), [(0..1, MASKED + 2), (1..2, 1)]);
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
