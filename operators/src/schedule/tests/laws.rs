//! The laws of a schedule, checked on random runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::oracle::Oracle;
use crate::schedule::tail_batching::{MAX_WEIGHT, Selection};
use crate::schedule::testkit::{Entry, World};
use crate::schedule::{
    Builtin, Decision, Event, Schedule, Synchronous, TailBatching, sync, tail_batching,
};

/// A run: its configuration and its environment.
#[derive(Clone, Debug)]
struct Case {
    world: World,
    config: tail_batching::Config,
    /// The factors of `config`, in twentieths.
    factors: (u64, u64),
}

impl Case {
    fn tail_batching(&self) -> Builtin {
        TailBatching::new(self.config.clone()).unwrap().into()
    }

    fn synchronous(&self) -> Builtin {
        let tail_batching::Config { prompts, responses, total_steps, .. } = self.config;
        Synchronous::new(sync::Config { prompts, responses, total_steps }).unwrap().into()
    }

    fn oracle(&self) -> Oracle {
        let one = BTreeMap::from([("".into(), self.config.prompts)]);
        Oracle {
            prompts: self.world.prompts.clone(),
            quotas: if self.config.quotas.is_empty() { one } else { self.config.quotas.clone() },
            responses: self.config.responses,
            eta_prompts: self.factors.0,
            eta_responses: self.factors.1,
            max_queue_age: self.config.max_queue_age,
            total_steps: self.config.total_steps,
            is_sync: false,
        }
    }

    /// Returns the case without quotas, speculation and age limit.
    fn without_speculation(mut self) -> Self {
        self.factors = (20, 20);
        self.config.eta_prompts = 1.0;
        self.config.eta_responses = 1.0;
        self.config.quotas.clear();
        self.config.max_queue_age = None;
        self
    }
}

const DOMAINS: [&str; 3] = ["code", "math", "poetry"];

/// Generates no quotas, or quotas of the first one to three domains.
fn quotas() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![3 => Just(Vec::new()), 4 => prop::collection::vec(1..4_usize, 1..=3)]
}

fn epochs() -> impl Strategy<Value = Vec<Vec<Arc<str>>>> {
    let domain = prop::sample::select(&DOMAINS[..]).prop_map(Arc::from);
    prop::collection::vec(prop::collection::vec(domain, 0..22), 1..3)
}

prop_compose! {
    fn cases()(
        epochs in epochs(),
        seed: u64,
        staleness in 0..3_u64,
        read_ahead in 0..4_usize,
        lossy: bool,
        quotas in quotas(),
        prompts in 1..6_usize,
        responses in 1..4_u32,
        factors in (20..70_u64, 20..50_u64),
        max_queue_age in prop::option::of(0..4_u64),
        total_steps in prop::option::of(1..9_u64),
    ) -> Case {
        let quotas: BTreeMap<Arc<str>, usize> = DOMAINS.into_iter().map(Arc::from).zip(quotas).collect();
        let config = tail_batching::Config {
            prompts: if quotas.is_empty() { prompts } else { quotas.values().sum() },
            responses,
            eta_prompts: factors.0 as f64 / 20.0,
            eta_responses: factors.1 as f64 / 20.0,
            quotas,
            max_queue_age,
            total_steps,
            filter_zero_variance: None,
            keep_partial: false,
            selection: Selection::Fastest,
            max_weight: MAX_WEIGHT,
        };
        Case { world: World { staleness, read_ahead, lossy, ..World::new(&epochs, seed) }, config, factors }
    }
}

pub(super) fn decisions(log: Vec<Entry>) -> Vec<Decision> {
    let decided = |entry| match entry {
        Entry::Decision(decision) => Some(decision),
        Entry::Event(_) => None,
    };
    log.into_iter().filter_map(decided).collect()
}

/// Delivers the events of `log` to a schedule, in an order that follows from `seed`.
pub(super) fn deliver_in_any_order(log: Vec<Entry>, mut schedule: Builtin, seed: u64) {
    let event_of = |entry| match entry {
        Entry::Event(event) => Some(event),
        Entry::Decision(_) => None,
    };
    let mut events: Vec<Event> = log.into_iter().filter_map(event_of).collect();
    let mut random = seed;
    while !events.is_empty() {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = usize::try_from(random >> 33).unwrap() % events.len();
        schedule.on(Default::default(), events.swap_remove(index));
        while schedule.poll().is_some() {}
    }
}

/// Serializes the schedule as JSON and reads it back. Checks that the result equals the schedule.
pub(super) fn restored(schedule: Builtin) -> Builtin {
    let restored = serde_json::from_str(&serde_json::to_string(&schedule).unwrap()).unwrap();
    assert_eq!(schedule, restored);
    restored
}

/// Property tests. The comment of a test may list mutations of the code on which the test has failed.
mod law {
    use super::*;

    proptest! {
        /// Fails on these mutations of the code: responses of earlier steps counted; lost responses counted or not replaced; surplus of a
        /// group not aborted; admitted prompts deferred; long rounds with surplus responses; the queue taken from its tail; the age limit
        /// off by one, checked only for the oldest prompt, or not applied to launched prompts; the end of the run ignored, or off by one; a
        /// last quota of fresh prompts treated as spent; the next epoch begun while a queue exists.
        #[test]
        fn tail_batching_decides_as_the_oracle(case in cases()) {
            case.oracle().check(&case.world.run(case.tail_batching()).unwrap());
        }

        /// Fails on these mutations of the code: a round opened before its prompts are available; an epoch treated as complete when its
        /// first prompt is seen.
        #[test]
        fn sync_decides_as_the_oracle(case in cases()) {
            let case = case.without_speculation();
            let log = case.world.run(case.synchronous()).unwrap();
            Oracle { is_sync: true, ..case.oracle() }.check(&log);
        }

        /// Fails on these mutations of the code: a new draw left without weight in the snapshot; weights assigned to first draws.
        #[test]
        fn weights_change_no_other_decision(case in cases(), at in 1..60_usize) {
            let mut config = tail_batching::Config { eta_responses: 1.0, ..case.config.clone() };
            let fastest: Builtin = TailBatching::new(config.clone()).unwrap().into();
            config.selection = Selection::Weighted;
            let weighted: Builtin = TailBatching::new(config).unwrap().into();
            let mut event = 0;
            let log = case.world.run_with(weighted.clone(), |schedule| {
                event += 1;
                if event % at == 0 { restored(schedule) } else { schedule }
            }).unwrap();
            prop_assert_eq!(&log, &case.world.run(weighted).unwrap());
            let mut deferred = BTreeSet::new();
            let plain = decisions(log).into_iter().map(|decision| match decision {
                Decision::Defer { prompt, .. } => {
                    deferred.insert(prompt);
                    decision
                }
                Decision::Admit { prompt, samples, weights, reason } => {
                    assert_eq!(weights.is_empty(), !deferred.contains(&prompt), "first draws count 1");
                    assert!(weights.iter().all(|weight| (0.0..=16.0).contains(weight)), "{weights:?}");
                    Decision::Admit { prompt, samples, weights: Vec::new(), reason }
                }
                decision => decision,
            });
            let plain: Vec<Decision> = plain.collect();
            prop_assert_eq!(plain, decisions(case.world.run(fastest).unwrap()));
        }

        #[test]
        fn sync_launches_and_admits_like_tail_batching_without_speculation(case in cases()) {
            let case = case.without_speculation();
            let unnamed = |schedule| {
                let all = decisions(case.world.run(schedule).unwrap());
                all.into_iter().filter(|decision| !matches!(decision, Decision::Open { .. })).collect::<Vec<_>>()
            };
            prop_assert_eq!(unnamed(case.synchronous()), unnamed(case.tail_batching()));
        }

        /// Fails on these mutations of the code: a round opened with the prompts that are available; the next epoch begun because it is on
        /// offer.
        #[test]
        fn reading_ahead_changes_no_decision(case in cases(), read_ahead in 1..50_usize) {
            let run = |read_ahead| {
                let world = World { read_ahead, ..case.world.clone() };
                let all = decisions(world.run(case.tail_batching()).unwrap());
                all.into_iter().filter(|decision| !matches!(decision, Decision::Reject { .. })).collect::<Vec<_>>()
            };
            prop_assert_eq!(run(0), run(read_ahead));
        }

        #[test]
        fn the_scale_of_time_changes_no_decision(case in cases(), scale in 2..1000_u64) {
            let run = |scale| World { scale, ..case.world.clone() }.run(case.tail_batching()).unwrap();
            prop_assert_eq!(run(1), run(scale));
        }

        /// Fails on this mutation of the code: published policies left out of the snapshot.
        #[test]
        fn a_restored_snapshot_continues_like_the_original(case in cases(), at in 0..200_usize) {
            for make in [Case::tail_batching, Case::synchronous] {
                let mut event = 0;
                let resumed = case.world.run_with(make(&case), |schedule| {
                    event += 1;
                    if event % (at + 1) == 0 { restored(schedule) } else { schedule }
                }).unwrap();
                prop_assert_eq!(resumed, case.world.run(make(&case)).unwrap());
            }
        }

        /// Events that break the contract do not cause a panic.
        #[test]
        fn any_order_of_events_causes_no_panic(case in cases(), seed: u64) {
            let log = case.world.run(case.tail_batching()).unwrap();
            deliver_in_any_order(log, case.tail_batching(), seed);
        }
    }
}
