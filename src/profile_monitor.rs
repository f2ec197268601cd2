//! Compares the profile of a live engine with the iterations measured in each step, and replaces the times that drifted (RollPacker,
//! section 7).

use std::path::PathBuf;

use rollpacker_dataflow::snapshot::RestoredSnapshot;
use rollpacker_operators::placement::drift::{DriftMonitor, DriftOptions};
use rollpacker_operators::placement::{PlacementError, Profile};
use rollpacker_operators::report::ObserverState;
use rollpacker_operators::resume::ResumeError;
use rollpacker_stages::rollout::profile::Row;
use rollpacker_stages::train::Metrics;
use serde::{Deserialize, Serialize};

use crate::profile::{self, ProfileError};

/// An error in reading, updating or writing a monitored profile.
#[derive(Debug, thiserror::Error)]
pub enum DriftError {
    /// The file cannot be read or written, or does not have the columns and values of a profile.
    #[error(transparent)]
    File(#[from] ProfileError),
    /// The rows of the file are not a valid profile, an option of the monitor is out of its range, or the time of a cell could not be
    /// replaced.
    #[error("{path}: {reason}")]
    Rows {
        /// The path of the profile.
        path: PathBuf,
        /// The row, the option or the cell that is wrong.
        reason: PlacementError,
    },
}

/// A profile that is kept up to date with a live engine.
///
/// A cell is one measurement of the profile. The time of a cell that drifted is multiplied by the mean ratio of measured to profiled times.
pub struct ProfileMonitor {
    path: PathBuf,
    profile: Profile,
    drift: DriftMonitor,
    renewed: usize,
    failed: Option<PlacementError>,
}

impl ProfileMonitor {
    /// Reads the profile at `path`.
    ///
    /// # Errors
    /// If the file cannot be read or lacks a column, a row is not a valid measurement, or an option is out of its range.
    pub fn open(path: PathBuf, options: DriftOptions) -> Result<Self, DriftError> {
        let rows = profile::read(&path)?;
        let wrong = |reason| DriftError::Rows { path: path.clone(), reason };
        let profile = Profile::new(rows).map_err(wrong)?;
        let drift = DriftMonitor::new(options).map_err(wrong)?;
        Ok(Self { path, profile, drift, renewed: 0, failed: None })
    }

    /// Returns the profile with the times of the renewed cells.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Compares the live iterations of a step with the profile, renews the cells that drifted, and returns up to two metrics. Renewing a
    /// cell multiplies its profiled time by its mean ratio and discards its ratios. If a cell cannot be renewed, [`finish`](Self::finish)
    /// returns the error.
    ///
    /// `profile/drift/max_ratio` is the largest ratio between the measured and the profiled time of a cell, in either direction, as a
    /// moving mean over steps. It is absent until a cell is compared, and again after every compared cell was renewed.
    /// `profile/drifted_cells` is the number of cells renewed in this step.
    pub fn step(&mut self, live: &[Row]) -> Metrics {
        self.drift.observe_step(&self.profile, live);
        let max_ratio = self.drift.max_ratio();
        let renewed = self.drift.update_profile(&mut self.profile).unwrap_or_else(|reason| {
            self.failed.get_or_insert(reason);
            0
        });
        self.renewed += renewed;
        let ratio = max_ratio.map(|ratio| ("profile/drift/max_ratio".to_owned(), ratio));
        let cells = ("profile/drifted_cells".to_owned(), renewed as f64);
        ratio.into_iter().chain([cells]).collect()
    }

    /// Adds the profile and the measured ratios of its cells to a snapshot, for [`resume`](Self::resume).
    pub fn save(&self, saved: &mut ObserverState) {
        let Self { profile, drift, renewed, .. } = self;
        let kept =
            MonitorSnapshot { profile: profile.clone(), drift: drift.clone(), renewed: *renewed };
        saved.keep(STATE_NAME, &kept);
    }

    /// Restores the state of the monitor from a snapshot. Does nothing if the snapshot does not contain it.
    ///
    /// # Errors
    /// If the snapshot cannot be read.
    pub fn resume(&mut self, restored: &RestoredSnapshot) -> Result<(), ResumeError> {
        if let Some(MonitorSnapshot { profile, drift, renewed }) =
            ObserverState::read(restored, STATE_NAME)?
        {
            (self.profile, self.drift, self.renewed) = (profile, drift, renewed);
        }
        Ok(())
    }

    /// Rewrites the file that the profile was read from, if any cell was renewed.
    ///
    /// # Errors
    /// If a cell could not be renewed, in which case the file is not touched, or if the file cannot be written.
    pub fn finish(&self) -> Result<(), DriftError> {
        if let Some(reason) = self.failed.clone() {
            return Err(DriftError::Rows { path: self.path.clone(), reason });
        }
        match self.renewed {
            0 => Ok(()),
            _ => Ok(profile::write(&self.path, self.profile.rows())?),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct MonitorSnapshot {
    profile: Profile,
    drift: DriftMonitor,
    renewed: usize,
}

const STATE_NAME: &str = "profile";

#[cfg(test)]
mod tests {
    use rollpacker_stages::rollout::profile::Phase;

    use super::*;

    const OPTIONS: DriftOptions = DriftOptions { band: 1.25, smoothing: 0.5, min_measurements: 2 };

    fn row(batch_size: u32, seconds: f64) -> Row {
        let (phase, tokens, repeats) = (Phase::Decode, 64, 5);
        Row { phase, instances: 1, tensor_parallel: 1, batch_size, tokens, seconds, repeats }
    }

    #[test]
    fn drifted_cells_are_renewed_and_written_at_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("profile.parquet");
        profile::write(&path, &[row(1, 0.1), row(8, 0.2)]).expect("written");
        let mut monitor = ProfileMonitor::open(path.clone(), OPTIONS).expect("it reads back");
        let live = [row(8, 0.5), row(1, 0.11)];
        let first = monitor.step(&live);
        assert_eq!(first["profile/drifted_cells"], 0.0);
        assert!((first["profile/drift/max_ratio"] - 2.5).abs() < 1e-9);
        monitor.finish().expect("nothing to write");
        assert_eq!(profile::read(&path).expect("readable")[1], row(8, 0.2));
        assert_eq!(monitor.step(&live)["profile/drifted_cells"], 1.0);
        monitor.finish().expect("written");
        let rows = profile::read(&path).expect("readable");
        assert_eq!(rows[0], row(1, 0.1));
        assert!((rows[1].seconds - 0.5).abs() < 1e-9 && rows.len() == 2, "{rows:?}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn a_step_in_which_nothing_was_compared_has_no_ratio() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("profile.parquet");
        profile::write(&path, &[row(1, 0.1)]).expect("written");
        let mut monitor = ProfileMonitor::open(path, OPTIONS).expect("it reads back");
        let metrics = monitor.step(&[Row { instances: 3, ..row(1, 1.0) }]);
        assert_eq!(metrics, Metrics::from([("profile/drifted_cells".to_owned(), 0.0)]));
    }
}
