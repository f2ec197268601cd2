//! Profile of the iteration times of a job's simulated engine.

use rollpacker_dataflow::clock::{Clock, Nanos, VirtualClock};
use rollpacker_simulated::cluster::Cost;
use rollpacker_simulated::profile::SimulatedMeasure;
use rollpacker_stages::rollout::profile::grid::{MIN_SEQUENCE_TOKENS, doublings};
use rollpacker_stages::rollout::profile::{self, Grid, Row};

use super::Job;

/// Measured iteration times, with the number of requested points and the duration of the measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Profiled {
    /// The measurements, sorted by point.
    pub rows: Vec<Row>,
    /// The number of points that were requested. With a budget, `rows` may have fewer.
    pub points: usize,
    /// The duration of the measurement in seconds: simulated time for a simulated engine, wall-clock time for a real engine.
    pub seconds: f64,
}

/// Measures the cluster of `job` at several tensor-parallel sizes: the number of GPUs of a server, or of the cluster if it is smaller, and
/// all powers of two below this number. Sizes that do not divide the GPUs of the cluster, and sizes at which the model does not fit, are
/// left out. `budget` limits the simulated time in seconds and is shared equally among the sizes; with `None`, every point is measured.
///
/// Prompt lengths range up to `data.max_response_length`, because a preempted response is prefilled again together with the tokens that it
/// already has.
///
/// # Errors
/// If the model fits at no size, or a measurement fails.
pub fn measure(job: &Job, budget: Option<f64>) -> anyhow::Result<Profiled> {
    let (cost, clock) = (job.cost(), VirtualClock::default());
    let grids = grids(job, &cost)?;
    let budget = budget
        .map_or(Nanos(u64::MAX), |budget| Nanos::from_secs_f64(budget / grids.len().max(1) as f64));
    let mut engine = SimulatedMeasure::new(cost, clock.clone());
    let mut rows = Vec::new();
    for grid in &grids {
        rows.extend(profile::measure(grid, &mut engine, &clock, budget)?);
    }
    rows.sort_by_key(Row::point);
    let points = grids.iter().map(|grid| grid.points().len()).sum();
    Ok(Profiled { rows, points, seconds: clock.now().as_secs_f64() })
}

/// Returns a grid for each tensor-parallel size that divides the GPUs of the cluster and at which the model fits, ascending. Returns an
/// error if the model fits at no size.
fn grids(job: &Job, cost: &Cost) -> anyhow::Result<Vec<Grid>> {
    let gpus = job.raw.cluster.gpus;
    let sizes = doublings(1, job.hardware.devices_per_server.min(gpus));
    let mut grids = Vec::new();
    let mut refused = None;
    for size in sizes.into_iter().filter(|size| gpus.is_multiple_of(*size)) {
        match cost.kv_capacity(size) {
            Ok(capacity) => grids.push(grid(job, size, capacity)),
            Err(error) => refused = Some(error),
        }
    }
    match refused.filter(|_| grids.is_empty()) {
        Some(error) => Err(error.into()),
        None => Ok(grids),
    }
}

fn grid(job: &Job, tensor_parallel: u32, capacity: u64) -> Grid {
    let rollout = &job.raw.rollout;
    let lengths = doublings(MIN_SEQUENCE_TOKENS, job.raw.data.max_response_length);
    Grid {
        instances: doublings(1, job.raw.cluster.gpus / tensor_parallel),
        tensor_parallel,
        batch_sizes: doublings(1, rollout.max_num_seqs),
        prompt_lengths: lengths.clone(),
        context_lengths: lengths,
        kv_cache_tokens: usize::try_from(capacity).unwrap_or(usize::MAX),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn job(settings: &[&str]) -> Job {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("job.toml");
        std::fs::write(&path, "").expect("written");
        let small = ["cluster.gpus=8", "rollout.max_num_seqs=4", "data.max_response_length=64"];
        let settings: Vec<_> = small.iter().chain(settings).map(ToString::to_string).collect();
        Job::read(&path, &settings).expect("a job")
    }

    #[test]
    fn every_size_that_fits_has_the_time_of_the_cost_model() {
        let job = job(&[
            "model.name=Qwen2.5-32B",
            "rollout.tensor_parallel=2",
            "training.tensor_parallel=8",
        ]);
        let Profiled { rows, points, seconds } = measure(&job, None).expect("it fits on two");
        let sizes: BTreeSet<_> =
            rows.iter().map(|row| (row.tensor_parallel, row.instances)).collect();
        let (two, four, eight) = ([1, 2, 4], [1, 2], [1]);
        let expected = [(2, &two[..]), (4, &four), (8, &eight)];
        let expected = expected
            .into_iter()
            .flat_map(|(size, counts)| counts.iter().map(move |count| (size, *count)));
        let fits_on_one = job.cost().kv_capacity(1).is_ok();
        assert!(!fits_on_one, "{sizes:?}");
        assert_eq!(sizes, expected.collect());
        // 6 placements x 2 phases x batches of 1, 2 and 4 x lengths of 16, 32 and 64.
        assert_eq!((rows.len(), points), (108, 108));
        assert!(rows.is_sorted_by_key(Row::point));
        let model = job.cost();
        for row in &rows {
            let (batch, tokens) = (row.batch_size, f64::from(row.tokens));
            let expected = match row.phase {
                profile::Phase::Prefill => {
                    f64::from(batch) * model.prefill(row.tensor_parallel, tokens)
                }
                profile::Phase::Decode => model
                    .decode(row.tensor_parallel)
                    .iteration(batch, u64::from(batch * row.tokens)),
            };
            assert!((row.seconds - expected).abs() < 1e-12, "{row:?}: {expected}");
        }
        let took: f64 = rows.iter().map(|row| row.seconds * f64::from(row.repeats)).sum();
        assert!((seconds - took).abs() < 1e-3 * took);
    }

    #[test]
    fn a_time_budget_leaves_out_expensive_measurements() {
        let whole = measure(&job(&[]), None).expect("it fits");
        let part = measure(&job(&[]), Some(whole.seconds / 20.0)).expect("it fits");
        assert!(part.rows.len() < whole.rows.len());
        assert!(part.seconds < whole.seconds / 10.0, "{} of {}", part.seconds, whole.seconds);
    }

    #[test]
    fn a_model_that_fits_nowhere_is_refused() {
        let mut job =
            job(&["cluster.gpus=1", "training.tensor_parallel=1", "model.name=Qwen3-1.7B"]);
        job.hardware.memory = 1e9;
        let error = measure(&job, None).unwrap_err();
        assert!(error.to_string().contains("does not fit on 1 x"), "{error}");
    }
}
