//! Tests of profiles, of the values between measurements, and of the detection of drift.

use rollpacker_stages::rollout::Placement;
use rollpacker_stages::rollout::profile::MIN_REPEATS;

use crate::placement::drift::{Cell, DriftMonitor, DriftOptions};
use crate::placement::profile::{Phase, Profile, Row};

fn row(batch_size: u32, tokens: u32, seconds: f64) -> Row {
    let phase = Phase::Decode;
    Row {
        phase,
        instances: 1,
        tensor_parallel: 1,
        batch_size,
        tokens,
        seconds,
        repeats: MIN_REPEATS,
    }
}

/// The function that the profile samples on its grid. It is bilinear, so interpolation is exact.
fn truth(batch: f64, tokens: f64) -> f64 {
    1.0 + batch / 8.0 + batch * tokens / 1024.0
}

fn profile() -> Profile {
    let seconds = |batch, tokens| truth(f64::from(batch), f64::from(tokens));
    let grid = [1, 8, 16].into_iter().flat_map(|batch| [10, 100].map(|tokens| (batch, tokens)));
    Profile::new(grid.map(|(batch, tokens)| row(batch, tokens, seconds(batch, tokens))).collect())
        .unwrap()
}

fn seconds(batch: f64, tokens: f64) -> Option<f64> {
    let one = Placement { instances: 1, tensor_parallel: 1 };
    profile().seconds(Phase::Decode, one, batch, tokens)
}

#[track_caller]
fn near(found: Option<f64>, expected: f64) {
    let found = found.expect("a value");
    assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
}

#[test]
fn times_are_interpolated_and_extrapolated_linearly() {
    near(seconds(8.0, 100.0), truth(8.0, 100.0));
    near(seconds(4.5, 55.0), truth(4.5, 55.0));
    near(seconds(32.0, 200.0), truth(32.0, 200.0));
    near(seconds(0.5, 5.0), truth(1.0, 10.0));
}

#[test]
fn an_unmeasured_placement_has_no_time() {
    let two = Placement { instances: 1, tensor_parallel: 2 };
    assert_eq!(profile().seconds(Phase::Decode, two, 1.0, 10.0), None);
}

#[test]
fn an_unmeasured_count_uses_the_next_larger_or_the_largest() {
    let counts = [1, 4].map(|count| Row { instances: count, ..row(1, 10, f64::from(count)) });
    let profile = Profile::new(counts.to_vec()).unwrap();
    let at = |instances| {
        let placement = Placement { instances, tensor_parallel: 1 };
        profile.seconds(Phase::Decode, placement, 1.0, 10.0)
    };
    assert_eq!([1, 2, 4, 9].map(at), [Some(1.0), Some(4.0), Some(4.0), Some(4.0)]);
}

#[test]
fn rows_round_trip_and_bad_ones_are_named() {
    let text = serde_json::to_string(&profile()).unwrap();
    assert_eq!(serde_json::from_str::<Profile>(&text).unwrap(), profile());
    let error = Profile::new(vec![row(1, 10, 1.0), row(0, 10, 1.0)]).unwrap_err().to_string();
    assert_eq!(error, "row 1 of the profile: `batch_size` is 0, expected at least 1");
    let error = Profile::new(Vec::new()).unwrap_err().to_string();
    assert_eq!(
        error,
        "the profile has no rows, expected at least one measurement: measure the engine again"
    );
    let error = Profile::new(vec![row(1, 10, -1.0)]).unwrap_err().to_string();
    assert_eq!(error, "row 0 of the profile: `seconds` is -1, expected more than 0");
}

#[test]
fn only_the_cell_that_became_slower_is_named_until_it_is_measured_again() {
    let mut drift =
        DriftMonitor::new(DriftOptions { band: 1.25, smoothing: 0.5, min_measurements: 3 })
            .unwrap();
    let slow =
        Cell { phase: Phase::Decode, instances: 1, tensor_parallel: 1, batch_size: 8, tokens: 100 };
    for count in 1..=3 {
        drift.observe_step(&profile(), &[row(7, 90, 1.5 * seconds(7.0, 90.0).unwrap())]);
        drift.observe_step(&profile(), &[row(16, 10, 1.2 * seconds(16.0, 10.0).unwrap())]);
        drift.observe_step(&profile(), &[Row { tensor_parallel: 2, ..row(1, 10, 100.0) }]);
        assert_eq!(drift.drifted().count(), usize::from(count == 3));
    }
    let drifted: Vec<_> = drift.drifted().collect();
    assert_eq!(drifted[0].0, slow);
    near(Some(drifted[0].1), 1.5);
    let text = serde_json::to_string(&drift).unwrap();
    assert_eq!(
        serde_json::from_str::<DriftMonitor>(&text).unwrap().drifted().next().unwrap().0,
        slow
    );
    assert_eq!(drift.update_profile(&mut profile()), Ok(1));
    assert_eq!(drift.drifted().next(), None);
}

#[test]
fn a_faster_cell_is_drifted_until_it_returns_to_the_profile() {
    let mut drift =
        DriftMonitor::new(DriftOptions { band: 1.25, smoothing: 0.5, min_measurements: 1 })
            .unwrap();
    drift.observe_step(&profile(), &[row(8, 100, truth(8.0, 100.0) / 2.0)]);
    near(drift.drifted().next().map(|(_, ratio)| ratio), 0.5);
    (0..4).for_each(|_| drift.observe_step(&profile(), &[row(8, 100, truth(8.0, 100.0))]));
    assert_eq!(drift.drifted().next(), None, "it is as fast as profiled again");
}

/// Five iterations of a cell, with two batch sizes, are 1.5 times as slow as profiled. Two iterations of another cell are too few to judge.
#[test]
fn a_step_is_one_measurement_per_cell_and_renews_drifted_cells() {
    let mut drift =
        DriftMonitor::new(DriftOptions { band: 1.25, smoothing: 0.5, min_measurements: 2 })
            .unwrap();
    let mut profile = profile();
    let slow = |batch: u32, tokens: u32, repeats| Row {
        repeats,
        ..row(batch, tokens, 1.5 * truth(f64::from(batch), f64::from(tokens)))
    };
    let step = [slow(7, 90, 4), slow(9, 80, 1), slow(1, 10, 2)];
    assert_eq!(drift.max_ratio(), None);
    drift.observe_step(&profile, &step);
    assert_eq!(
        drift.update_profile(&mut profile),
        Ok(0),
        "several iterations of a step count as one measurement"
    );
    near(drift.max_ratio(), 1.5);
    drift.observe_step(&profile, &step);
    let before = profile.clone();
    assert_eq!(drift.update_profile(&mut profile), Ok(1));
    let changed: Vec<_> =
        profile.rows().iter().filter(|row| !before.rows().contains(row)).collect();
    assert_eq!(changed.len(), 1);
    assert_eq!((changed[0].batch_size, changed[0].tokens, profile.rows().len()), (8, 100, 6));
    near(Some(changed[0].seconds), 1.5 * truth(8.0, 100.0));
    assert_eq!((drift.max_ratio(), drift.drifted().next()), (None, None));
}

#[test]
fn an_update_that_fails_changes_nothing() {
    let options = DriftOptions { band: 1.25, smoothing: 0.5, min_measurements: 1 };
    let mut drift = DriftMonitor::new(options).unwrap();
    let rows = vec![row(1, 10, 1.0), row(8, 10, 5e307), row(16, 10, 1.0)];
    let mut profile = Profile::new(rows).unwrap();
    // The second row is nearest to a batch of 8, but compared with 1.4e307 seconds.
    drift.observe_step(&profile, &[row(1, 10, 2.0), row(3, 10, 5.9e307)]);
    let before = (drift.clone(), profile.clone());
    let error = drift.update_profile(&mut profile).unwrap_err().to_string();
    assert_eq!(error, "row 1 of the profile: `seconds` is inf, expected more than 0");
    assert_eq!((drift, profile), before);
}

#[test]
fn an_iteration_without_a_finite_ratio_is_ignored() {
    let mut drift = DriftMonitor::new(DriftOptions::default()).unwrap();
    let profile = Profile::new(vec![row(1, 10, 1e-300)]).unwrap();
    for seconds in [0.0, 1e300, f64::INFINITY, f64::NAN] {
        drift.observe_step(&profile, &[row(1, 10, seconds)]);
    }
    assert_eq!(drift.max_ratio(), None);
}
