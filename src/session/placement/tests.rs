use rollpacker_operators::placement::drift::DriftOptions;
use rollpacker_stages::rollout::profile::Row;

use super::*;
use crate::profile;

fn row(instances: u32, tensor_parallel: u32, batch_size: u32, seconds: f64) -> Row {
    let (phase, tokens, repeats) = (Phase::Decode, 64, 5);
    Row { phase, instances, tensor_parallel, batch_size, tokens, seconds, repeats }
}

fn cost(workers: usize, rows: &[Row]) -> LiveCost {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("profile.parquet");
    profile::write(&path, rows).expect("written");
    let monitor = ProfileMonitor::open(path, DriftOptions::default()).expect("it reads back");
    let settings = ["rollout.instances=4".to_owned(), "rollout.kv_cache_tokens=20000".to_owned()];
    let recipe = folder.path().join("recipe.toml");
    std::fs::write(&recipe, "").expect("written");
    let recipe = Recipe::read(&recipe, &settings).expect("valid");
    LiveCost::new(recipe.placement_context(workers), workers, Some(Rc::new(RefCell::new(monitor))))
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
