//! Profiling of the torch engine's iterations, on a small model.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollpacker_dataflow::clock::{Clock, Nanos, WallClock};
use rollpacker_stages::rollout::RolloutError;
use rollpacker_stages::rollout::profile::{Grid, Measure, Phase, Point, Row, measure};
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::train::config::Precision;
use rollpacker_torch::model::Decoder;
use rollpacker_torch::rollout::TorchEngineConfig;
use rollpacker_torch::rollout::profile::TorchMeasure;
use tch::Device;

fn engine(clock: Arc<dyn Clock>) -> TorchMeasure {
    let config = TorchEngineConfig {
        instances: 2,
        threads_per_instance: 1,
        max_running: 1,
        kv_cache_tokens: 1,
        dtype: Precision::Float32,
        sampling: Sampling::unrestricted(4),
        seed: 7,
        replay: None,
        deterministic: false,
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/qwen2_tied");
    TorchMeasure::start(config, Decoder::load(&folder, Device::Cpu).unwrap(), clock).unwrap()
}

#[test]
fn the_live_engine_is_measured_on_the_whole_grid() {
    let clock = Arc::new(WallClock::start());
    let grid = Grid {
        instances: vec![1, 2],
        tensor_parallel: 1,
        batch_sizes: vec![1, 64],
        prompt_lengths: vec![1, 200],
        context_lengths: vec![1, 200],
        kv_cache_tokens: 64 * 200,
    };
    let rows = measure(&grid, &mut engine(clock.clone()), &*clock, Nanos::from_secs_f64(60.0));
    let rows = rows.unwrap();
    assert_eq!(rows.len(), grid.points().len());
    for point in grid.points() {
        assert!(rows.iter().any(|row: &Row| row.point() == point), "{point:?}");
    }
    assert!(rows.iter().all(|row| row.seconds > 0.0 && row.seconds.is_finite()), "{rows:?}");
}

/// A clock that counts its readings.
#[derive(Default)]
struct Counting(AtomicU64);

impl Clock for Counting {
    fn now(&self) -> Nanos {
        Nanos(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

#[test]
fn every_instance_of_a_point_iterates() {
    let clock = Arc::new(Counting::default());
    let mut engine = engine(clock.clone());
    let mut readings = |instances| {
        let before = clock.0.load(Ordering::Relaxed);
        let point =
            Point { phase: Phase::Decode, instances, tensor_parallel: 1, batch_size: 2, tokens: 3 };
        engine.prepare(point).unwrap();
        engine.seconds().unwrap();
        clock.0.load(Ordering::Relaxed) - before
    };
    assert_eq!((readings(1), readings(2)), (4, 8), "begin and end of two iterations");
}

#[test]
fn an_instance_is_measured_on_several_devices_and_on_one_again() {
    let clock = Arc::new(WallClock::start());
    let mut engine = engine(clock);
    for tensor_parallel in [1, 2, 1] {
        for phase in [Phase::Prefill, Phase::Decode] {
            let point = Point { phase, instances: 1, tensor_parallel, batch_size: 2, tokens: 3 };
            engine.prepare(point).unwrap();
            assert!(engine.seconds().unwrap() > 0.0);
        }
    }
}

#[test]
fn points_beyond_the_instances_are_refused() {
    let mut engine = engine(Arc::new(WallClock::start()));
    for (instances, tensor_parallel) in [(3, 1), (2, 2), (1, 3), (1, 0)] {
        let point =
            Point { phase: Phase::Decode, instances, tensor_parallel, batch_size: 1, tokens: 8 };
        assert!(matches!(engine.prepare(point), Err(RolloutError::Placement { instances: 2, .. })));
    }
}
