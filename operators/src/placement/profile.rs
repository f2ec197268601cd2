//! Measured times of an engine by batch size and length.

use std::collections::BTreeMap;

use rollpacker_stages::rollout::Placement;
pub use rollpacker_stages::rollout::profile::{Phase, Row};
use serde::{Deserialize, Serialize};

use super::PlacementError;

/// The measured times of an engine. The measurements of each phase, parallelism and number of instances form a grid of batch sizes and
/// tokens. Times between the points are interpolated linearly, over tokens and then over batch size.
///
/// Above the measured range, the line through the last two values is extrapolated, but not below a hundredth of the value before the last.
/// Below the range, the first value is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Row>", into = "Vec<Row>")]
pub struct Profile {
    rows: Vec<Row>,
    grids: BTreeMap<(Phase, u32), BTreeMap<u32, Grid>>,
}

/// Seconds by batch size, then by tokens.
type Grid = BTreeMap<u32, BTreeMap<u32, f64>>;

impl Profile {
    /// Creates a profile. If several rows differ only in their seconds, the last one counts.
    ///
    /// # Errors
    /// If there are no rows, a count is 0, or the time of a row is not positive and finite.
    pub fn new(rows: Vec<Row>) -> Result<Self, PlacementError> {
        if rows.is_empty() {
            return Err(PlacementError::EmptyProfile);
        }
        let mut grids: BTreeMap<_, BTreeMap<u32, Grid>> = BTreeMap::new();
        for (at, row) in rows.iter().enumerate() {
            check(row, at)?;
            let by_instances = grids.entry((row.phase, row.tensor_parallel)).or_default();
            let grid = by_instances.entry(row.instances).or_default();
            grid.entry(row.batch_size).or_default().insert(row.tokens, row.seconds);
        }
        Ok(Self { rows, grids })
    }

    /// Returns the measurements, in the order in which they were given.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns a copy in which `row` replaces the measurements at its point, which consists of the phase, the placement, the batch size and
    /// the number of tokens. If there are none, `row` is added. The rows of the copy are sorted by point.
    ///
    /// # Errors
    /// If [`new`](Self::new) rejects the rows.
    pub fn with(&self, row: Row) -> Result<Self, PlacementError> {
        let others = self.rows.iter().filter(|known| known.point() != row.point());
        let mut rows: Vec<Row> = others.copied().chain([row]).collect();
        rows.sort_by_key(Row::point);
        Self::new(rows)
    }

    /// Returns the seconds of an iteration of one instance of `placement` over `batch_size` sequences of `tokens` tokens. Both are means
    /// and need not be integers. Uses the measurements of the smallest measured instance count that is at least the instance count of
    /// `placement`, or of the largest if there is none. Returns `None` if nothing was measured for the phase at the parallelism of
    /// `placement`.
    #[must_use]
    pub fn seconds(
        &self,
        phase: Phase,
        placement: Placement,
        batch_size: f64,
        tokens: f64,
    ) -> Option<f64> {
        let by_instances = self.grids.get(&(phase, placement.tensor_parallel))?;
        let (_, grid) = by_instances
            .range(placement.instances..)
            .next()
            .or_else(|| by_instances.last_key_value())?;
        let near = neighbors(grid, batch_size);
        let points =
            near.iter().filter_map(|(batch, row)| Some((*batch, interpolate_row(row, tokens)?)));
        interpolate(&points.collect::<Vec<_>>(), batch_size)
    }

    /// Returns the measurement that is nearest to `to`, by the ratios of batch sizes and of tokens, among those with the same phase,
    /// parallelism and number of instances. Returns `None` if there are none.
    #[must_use]
    pub fn nearest(&self, to: &Row) -> Option<&Row> {
        let same = |row: &&Row| {
            (row.phase, row.instances, row.tensor_parallel)
                == (to.phase, to.instances, to.tensor_parallel)
        };
        let ratio = |one: u32, other: u32| (f64::from(one) / f64::from(other.max(1))).ln().abs();
        let distance =
            |row: &Row| ratio(row.batch_size, to.batch_size) + ratio(row.tokens, to.tokens);
        self.rows.iter().filter(same).min_by(|one, other| distance(one).total_cmp(&distance(other)))
    }
}

impl TryFrom<Vec<Row>> for Profile {
    type Error = PlacementError;

    fn try_from(rows: Vec<Row>) -> Result<Self, Self::Error> {
        Self::new(rows)
    }
}

impl From<Profile> for Vec<Row> {
    fn from(profile: Profile) -> Self {
        profile.rows
    }
}

/// Returns an error if a count of the row is 0, or its time is not positive and finite.
fn check(row: &Row, at: usize) -> Result<(), PlacementError> {
    let wrong =
        |field, expected, found| Err(PlacementError::Profile { row: at, field, expected, found });
    let counts = [
        ("instances", row.instances),
        ("tensor_parallel", row.tensor_parallel),
        ("batch_size", row.batch_size),
        ("tokens", row.tokens),
    ];
    if let Some((field, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
        return wrong(field, "at least 1", 0.0);
    }
    if row.seconds > 0.0 && row.seconds.is_finite() {
        Ok(())
    } else {
        wrong("seconds", "more than 0", row.seconds)
    }
}

/// Returns the two entries between which `x` lies, or the last two if `x` lies beyond them. Returns only the first entry if there is no
/// other, or if none lies at or below `x`.
fn neighbors<T>(points: &BTreeMap<u32, T>, x: f64) -> Vec<(f64, &T)> {
    let below = points.range(..=(x as u32)).next_back();
    let Some((low, _)) = below else {
        return points.iter().take(1).map(|(x, y)| (f64::from(*x), y)).collect();
    };
    let above = points.range(low + 1..).next();
    let pair = match above {
        Some(above) => vec![below, Some(above)],
        None => vec![points.range(..low).next_back(), below],
    };
    pair.into_iter().flatten().map(|(x, y)| (f64::from(*x), y)).collect()
}

fn interpolate_row(row: &BTreeMap<u32, f64>, tokens: f64) -> Option<f64> {
    let points: Vec<_> = neighbors(row, tokens).into_iter().map(|(x, y)| (x, *y)).collect();
    interpolate(&points, tokens)
}

/// Returns the value at `x` of the line through two points, bounded below by a hundredth of the first value: noise must not extrapolate to
/// negative times. Returns the value of a single point, and `None` if there is no point.
fn interpolate(points: &[(f64, f64)], x: f64) -> Option<f64> {
    match *points {
        [] => None,
        [(_, y)] => Some(y),
        [(x0, y0), (x1, y1), ..] => Some((y0 + (y1 - y0) * (x - x0) / (x1 - x0)).max(y0 * 0.01)),
    }
}
