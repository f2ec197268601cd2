//! Detection of drift: an engine that is faster or slower than its profile.

use std::collections::BTreeMap;

use rollpacker_stages::rollout::Placement;
use rollpacker_stages::rollout::profile::MIN_REPEATS;
use serde::{Deserialize, Serialize};

use super::PlacementError;
use super::error::within;
use super::profile::{Phase, Profile, Row};

/// A cell of a profile: a point at which the engine was measured. Live iterations are attributed to the nearest cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cell {
    /// The phase of the engine.
    pub phase: Phase,
    /// The number of running instances.
    pub instances: u32,
    /// The number of devices of an instance.
    pub tensor_parallel: u32,
    /// The number of sequences of an iteration, per instance.
    pub batch_size: u32,
    /// The number of tokens of each sequence.
    pub tokens: u32,
}

/// The criteria by which a cell counts as drifted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriftOptions {
    /// The maximum tolerated factor between measured and profiled seconds, in either direction. More than 1; default: 1.25.
    pub band: f64,
    /// The weight of the newest measurement in the exponentially weighted mean, in (0, 1]. Default: 0.1.
    pub smoothing: f64,
    /// The minimum number of live measurements of a cell before it can count as drifted. At least 1; default: 8.
    pub min_measurements: u32,
}

/// A monitor that compares live iterations with a profile. Each cell has an exponentially weighted mean of the ratios of measured to
/// profiled seconds.
///
/// A live iteration rarely has the batch size and length of a cell. Its time is therefore compared with the profile, interpolated at the
/// iteration's batch size and length, and the ratio is attributed to the nearest cell. The mean is taken over logarithms, so that twice as
/// slow and twice as fast have equal weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriftMonitor {
    options: DriftOptions,
    /// Ascending by cell.
    cells: Vec<(Cell, Ratio)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Ratio {
    /// The weighted mean of the logarithms of the ratios.
    mean: f64,
    count: u32,
}

impl Default for DriftOptions {
    fn default() -> Self {
        Self { band: 1.25, smoothing: 0.1, min_measurements: 8 }
    }
}

impl DriftMonitor {
    /// Creates a monitor without observations.
    ///
    /// # Errors
    /// If an option is out of range.
    pub fn new(options: DriftOptions) -> Result<Self, PlacementError> {
        within("band", "more than 1", 1.0 + f64::EPSILON..=f64::MAX, options.band)?;
        within("smoothing", "in (0, 1]", f64::MIN_POSITIVE..=1.0, options.smoothing)?;
        match options.min_measurements {
            0 => Err(PlacementError::Zero { field: "min_measurements" }),
            _ => Ok(Self { options, cells: Vec::new() }),
        }
    }

    /// Compares the live iterations of a step with `profile`. Each row represents `repeats` similar iterations, with their mean seconds.
    /// For each cell, the total measured time divided by the total profiled time counts as one measurement.
    ///
    /// Rows of a phase, parallelism or instance count that was not profiled, rows whose time is not positive, and cells with fewer than
    /// [`MIN_REPEATS`] iterations are ignored. So are measurements that are not a positive, finite number.
    pub fn observe_step(&mut self, profile: &Profile, live: &[Row]) {
        let mut sums: BTreeMap<Cell, (f64, f64, u32)> = BTreeMap::new();
        for row in live {
            let Some((cell, profiled)) = compare(profile, row) else { continue };
            let (measured, expected, repeats) = sums.entry(cell).or_default();
            *measured += f64::from(row.repeats) * row.seconds;
            *expected += f64::from(row.repeats) * profiled;
            *repeats += row.repeats;
        }
        for (cell, (measured, expected, repeats)) in sums {
            if repeats >= MIN_REPEATS {
                self.count(cell, measured / expected);
            }
        }
    }

    /// Adds a ratio to the mean of its cell. Ignores a ratio that is not a positive, finite number, because the mean would keep it forever.
    fn count(&mut self, cell: Cell, ratio: f64) {
        let (ratio, smoothing) = (ratio.ln(), self.options.smoothing);
        if !ratio.is_finite() {
            return;
        }
        let entry = self.entry(cell, ratio);
        entry.mean += smoothing * (ratio - entry.mean);
        entry.count += 1;
    }

    fn entry(&mut self, cell: Cell, first: f64) -> &mut Ratio {
        let at = self.cells.binary_search_by_key(&cell, |(cell, _)| *cell).unwrap_or_else(|at| {
            self.cells.insert(at, (cell, Ratio { mean: first, count: 0 }));
            at
        });
        &mut self.cells[at].1
    }

    /// Returns the cells that have drifted and must be measured again, each with its mean ratio of measured to profiled seconds.
    pub fn drifted(&self) -> impl Iterator<Item = (Cell, f64)> {
        let DriftOptions { band, min_measurements, .. } = self.options;
        self.cells
            .iter()
            .filter(move |(_, ratio)| {
                ratio.count >= min_measurements && ratio.mean.abs() > band.ln()
            })
            .map(|(cell, ratio)| (*cell, ratio.mean.exp()))
    }

    /// Returns the largest mean factor between measured and profiled seconds of all observed cells, also of those with few measurements. A
    /// factor below 1 counts as its inverse, so the result is at least 1. Returns `None` if no cell was observed.
    #[must_use]
    pub fn max_ratio(&self) -> Option<f64> {
        let ratios = self.cells.iter().map(|(_, ratio)| ratio.mean.abs().exp());
        ratios.max_by(f64::total_cmp)
    }

    /// Updates the drifted cells from their observations: multiplies their seconds in `profile` by the mean ratio, and removes their
    /// observations. A drifted cell that is not in `profile` only loses its observations. Returns the number of drifted cells.
    ///
    /// # Errors
    /// If the updated time of a cell is not positive and finite. Nothing is updated in that case.
    pub fn update_profile(&mut self, profile: &mut Profile) -> Result<usize, PlacementError> {
        let drifted: Vec<_> = self.drifted().collect();
        let mut updated = profile.clone();
        for (cell, ratio) in &drifted {
            let rows = updated.rows().iter();
            // If several rows have the same point, the last one counts.
            if let Some(row) = rows.rev().find(|row| Cell::of(row) == *cell) {
                updated = updated.with(Row { seconds: row.seconds * ratio, ..*row })?;
            }
        }
        *profile = updated;
        self.cells.retain(|(cell, _)| drifted.iter().all(|(known, _)| known != cell));
        Ok(drifted.len())
    }
}

/// Returns the cell to which a live iteration is attributed, and the profiled seconds of such an iteration. `None` if no similar iteration
/// was profiled, or if the live iteration took no time.
fn compare(profile: &Profile, live: &Row) -> Option<(Cell, f64)> {
    let Row { phase, instances, tensor_parallel, batch_size, tokens, seconds, .. } = *live;
    let placement = Placement { instances, tensor_parallel };
    let profiled = profile.seconds(phase, placement, f64::from(batch_size), f64::from(tokens))?;
    let cell = profile.nearest(live)?;
    (seconds > 0.0).then_some((Cell::of(cell), profiled))
}

impl Cell {
    fn of(row: &Row) -> Self {
        let Row { phase, instances, tensor_parallel, batch_size, tokens, .. } = *row;
        Self { phase, instances, tensor_parallel, batch_size, tokens }
    }
}
