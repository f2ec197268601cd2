//! Tests of the section `[placement]`.

use rollpacker_operators::placement::Colocated;
use rollpacker_stages::catalog::{CatalogError, NoOptions};
use rollpacker_stages::rollout::Placement;

use super::*;
use crate::placements::PlacementContext;

#[test]
fn trainer_threads_have_a_default_per_placement() {
    let threads = |keys: &[&str]| read("", keys).expect("valid").trainer.threads;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(threads(&[]), cores);
    assert_eq!(threads(&["trainer.workers=2"]), (cores / 2).max(1));
    assert_eq!(threads(&["trainer.workers=256"]), (cores / 256).max(1));
    assert_eq!(threads(&["actor.threads=3", "trainer.workers=2"]), 3);
    assert_eq!(threads(&["placement.kind=stream_trainer", "pipeline.reward=streamed"]), 1);
    assert_eq!(threads(&["placement.kind=time_sharing", "rollout.instances=6"]), 6);
}

#[test]
fn a_placement_of_the_program_may_have_the_name_of_a_simulated_one() {
    let own = |_: NoOptions, context: PlacementContext| {
        Ok(Colocated::new(Placement { instances: context.devices, tensor_parallel: 1 }))
    };
    let placements = Placements::default().with("colocated", own);
    let read = |placements: &Placements| {
        let names =
            KnownNames { schedules: &Schedules::default(), placements, others: &|_, _| Vec::new() };
        let settings = "placement.kind = \"colocated\"".parse().expect("TOML");
        Recipe::from_settings(settings, Vec::new(), names, |_| {})
    };
    read(&placements).expect("valid");
    let error = read(&Placements::default()).expect_err("refused").to_string();
    assert!(error.contains("did you mean `time_sharing`?"), "{error}");
}

#[test]
fn a_placement_is_checked_with_the_workers_of_the_run() {
    let own = |_: NoOptions, context: PlacementContext| match context.kv_cache_tokens {
        3_000_000 => Ok(Colocated::new(Placement { instances: 2, tensor_parallel: 1 })),
        found => Err(CatalogError::start(format!("found {found}"))),
    };
    let placements = Placements::default().with("own", own);
    let names = KnownNames {
        schedules: &Schedules::default(),
        placements: &placements,
        others: &|_, _| Vec::new(),
    };
    let settings = "placement.kind = \"own\"\nrollout.kv_cache_tokens = 1_000_000";
    let settings = settings.parse().expect("TOML");
    let recipe = Recipe::from_settings(settings, Vec::new(), names, |run| run.workers = 3);
    let recipe = recipe.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(recipe.placement_context(3).kv_cache_tokens, 3_000_000);
}
