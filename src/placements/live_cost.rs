//! The costs that the placement policy of a live run compares.

use std::cell::RefCell;
use std::rc::Rc;

use rollpacker_operators::placement::StepCost;
use rollpacker_operators::placement::profile::Phase;
use rollpacker_stages::rollout::Placement;

use super::context::PlacementContext;
use super::live::LiveRun;
use crate::profile_monitor::ProfileMonitor;

/// The costs of a live run: the KV budgets of the recipe, and the decode times of the profile. Decode times that the profile does not
/// determine are infinite, and all decode times are infinite without a profile.
///
/// The policy observes the responses of all workers, but places the instances of one worker. An instance of the policy therefore represents
/// one instance of each worker. Training times are unknown; the triggers that a recipe can choose do not compare them.
pub(super) struct LiveCost {
    /// The number of devices of a worker.
    devices: u32,
    workers: u32,
    /// The number of tokens that a device caches, summed over the workers.
    kv_tokens: u64,
    /// The monitor of the profile; `None` without a profile.
    monitor: Option<Rc<RefCell<ProfileMonitor>>>,
}

impl LiveCost {
    pub(super) fn new(LiveRun { context, workers, monitor }: LiveRun) -> Self {
        let PlacementContext { devices, kv_cache_tokens, .. } = context;
        let workers = u32::try_from(workers).unwrap_or(u32::MAX);
        let kv_tokens = u64::try_from(kv_cache_tokens).unwrap_or(u64::MAX);
        Self { devices, workers, kv_tokens, monitor }
    }
}

impl StepCost for LiveCost {
    fn decode_iteration(&self, tensor_parallel: u32, running: f64, kv_tokens: f64) -> f64 {
        let placement = Placement { instances: self.devices / tensor_parallel, tensor_parallel };
        let (batch_size, tokens) = (running / f64::from(self.workers), kv_tokens / running);
        let seconds = self.monitor.as_ref().and_then(|monitor| {
            monitor.borrow().profile().seconds(Phase::Decode, placement, batch_size, tokens)
        });
        seconds.unwrap_or(f64::INFINITY)
    }

    fn training(&self, _devices: u32, _tokens: f64) -> f64 {
        f64::INFINITY
    }

    fn kv_capacity(&self, tensor_parallel: u32) -> u64 {
        self.kv_tokens.saturating_mul(tensor_parallel.into())
    }

    /// Returns 0 if no tokens are cached, and infinity otherwise. Instances change only between rounds, when they hold no responses, and
    /// keep their weights.
    fn reconfiguration(&self, _from: Placement, _to: Placement, kv_tokens: f64) -> f64 {
        if kv_tokens == 0.0 { 0.0 } else { f64::INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use rollpacker_operators::placement::drift::DriftOptions;
    use rollpacker_stages::rollout::profile::Row;

    use super::*;
    use crate::profile;
    use crate::recipe::Recipe;

    fn row(instances: u32, tensor_parallel: u32, batch_size: u32, seconds: f64) -> Row {
        let (phase, tokens, repeats) = (Phase::Decode, 64, 5);
        Row { phase, instances, tensor_parallel, batch_size, tokens, seconds, repeats }
    }

    fn cost(workers: usize, rows: &[Row]) -> LiveCost {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("profile.parquet");
        profile::write(&path, rows).expect("written");
        let monitor = ProfileMonitor::open(path, DriftOptions::default()).expect("it reads back");
        let settings =
            ["rollout.instances=4".to_owned(), "rollout.kv_cache_tokens=20000".to_owned()];
        let recipe = folder.path().join("recipe.toml");
        std::fs::write(&recipe, "").expect("written");
        let recipe = Recipe::read(&recipe, &settings).expect("valid");
        let monitor = Some(Rc::new(RefCell::new(monitor)));
        LiveCost::new(LiveRun { context: recipe.placement_context(workers), workers, monitor })
    }

    #[test]
    fn an_instance_of_the_policy_is_one_instance_on_each_worker() {
        let rows = [row(4, 1, 1, 0.1), row(4, 1, 8, 0.8), row(2, 2, 1, 0.06), row(2, 2, 8, 0.5)];
        let alone = cost(1, &rows);
        assert_eq!(alone.decode_iteration(1, 8.0, 8.0 * 64.0), 0.8);
        assert_eq!(alone.decode_iteration(2, 8.0, 8.0 * 64.0), 0.5);
        assert_eq!(alone.decode_iteration(4, 8.0, 8.0 * 64.0), f64::INFINITY, "not measured");
        assert_eq!((alone.kv_capacity(1), alone.kv_capacity(4)), (20_000, 80_000));
        let two = cost(2, &rows);
        assert_eq!(two.decode_iteration(1, 16.0, 16.0 * 64.0), 0.8);
        assert_eq!(two.kv_capacity(2), 80_000);
    }
}
