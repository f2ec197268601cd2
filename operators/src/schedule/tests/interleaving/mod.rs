//! Races in lockstep with the real drivers of schedule and rollouts. A run must end, with the same decisions, for any order in which
//! messages arrive, operators are activated and engine instances work.
//!
//! The search is random: each race is played in many orders, drawn by seeds, in which some actors fall far behind for a while. A run in
//! which no action is possible before its schedule has finished is a hang.

mod engine;
mod play;

use std::sync::Arc;

use rollpacker_dataflow::clock::WallClock;
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::runtime::run;
use rollpacker_dataflow::schema;
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step, Tick};
use rollpacker_dataflow::timely::dataflow::operators::Capability;

use self::engine::ModelEngine;
use self::play::{Race, capabilities, policy};
use super::lockstep::schedules;
use crate::policy::policy_batch;
use crate::prompts::{PromptRow, prompt_batch};
use crate::rollout::driver::RolloutDriver as Rollout;
use crate::rollout::port::Port;
use crate::schedule::{Decision, Reason, encode};
use crate::wire::notice;
use crate::wire::notice::Notice;
use crate::wire::rows::Row;

/// The number of orders in which each race is played.
const ORDERS: u64 = 60;

/// Runs `test` with capabilities of the outputs of all drivers, at the first step.
fn with_rights(test: impl FnOnce(&[Capability<Step>]) + 'static) {
    run(|scope, _| {
        let mut operator = Operator::new("interleaving", scope);
        let schemas = [
            &schema::REQUESTS,
            &schema::TEXTS,
            &schema::DECISIONS,
            &schema::ERRORS,
            &schema::RESPONSES,
            &schema::ERRORS,
            &schema::METRICS,
            &schema::NOTICES,
        ];
        let _outputs = schemas.map(|schema| operator.output(schema, &[]).0);
        operator.build(move |rights| {
            test(&rights);
            |_| {}
        });
    })
    .expect("no fault");
}

/// Returns races of every schedule over `workers` workers.
fn races(workers: usize) -> impl Iterator<Item = Race> {
    (0..schedules().len()).map(move |schedule| Race {
        schedule,
        workers,
        instances: 1 + schedule % 2,
        prompts: 7,
        staleness: schedule as u64 % 2,
        ahead: 4,
        seed: schedule as u64,
        loses_floors: false,
    })
}

#[test]
fn every_schedule_ends_and_decides_the_same_in_every_order() {
    with_rights(|rights| {
        for race in [1, 2, 3].into_iter().flat_map(races) {
            let first = race.play(rights, 0).expect("it ends");
            assert!(first.decided.len() > 10, "{race:?}: {first:?}");
            for dice in 1..ORDERS {
                let other = race.play(rights, dice);
                let other = other.unwrap_or_else(|hang| panic!("{race:?}, dice {dice}: {hang:?}"));
                assert_eq!(other, first, "{race:?}, dice {dice}");
            }
        }
    });
}

#[test]
fn the_search_detects_a_lost_floor() {
    with_rights(|rights| {
        let hangs = |workers, orders: u64| {
            let mut plays = (0..orders).flat_map(|dice| {
                races(workers).map(move |race| (Race { loses_floors: true, ..race }, dice))
            });
            plays.any(|(race, dice)| race.play(rights, dice).is_err())
        };
        assert!(!hangs(1, ORDERS), "a single worker waits for no other");
        for workers in [2, 3] {
            assert!(hangs(workers, 4 * ORDERS), "on {workers} workers no order hangs");
        }
    });
}

#[test]
fn a_worker_without_responses_does_not_delay_the_others() {
    with_rights(|rights| {
        let (step, prompt, reason) = (Step(0), PromptId(0), Reason::Fresh);
        let engine = ModelEngine::new(1, 0, |_, _| 9);
        let mut driver =
            Rollout::new(Box::new(engine.clone()), false, Arc::new(WallClock::start()));
        driver.race_in_lockstep(0);
        driver.on_policy(step, &policy_batch(&policy(step)));
        let prompts = prompt_batch(&[PromptRow { prompt_ids: vec![1], ..PromptRow::default() }]);
        let row = |_: PromptId| Row { batch: prompts.clone(), index: 0 };
        let mut notices_for = |decision: Decision| -> Vec<Notice> {
            for batch in encode::requests(&[decision], &[Some(0)], PolicyVersion(0), &row) {
                driver.request(step, || capabilities(rights, step), &batch);
            }
            // The instance takes the command, and publishes its effect later.
            engine.turn(0, 1);
            let mut notices = Vec::new();
            driver.report(|port, _, batch| {
                if port == Port::Notices && batch.num_rows() > 0 {
                    notices.push(notice::read(&batch));
                }
            });
            notices
        };
        let launched = notices_for(Decision::Launch { prompt, samples: 0..1, reason });
        assert_eq!(launched.last().map(|notice| notice.floor), Some(Tick(0)));
        engine.turn(0, 1);
        let id = SampleId { step, prompt, sample: 0 };
        let aborted = notices_for(Decision::Abort { id, reason });
        assert_eq!(engine.known_floor(), Tick(0), "the instance has not published");
        let last = aborted.last().expect("the abort is answered");
        assert_eq!((last.floor, last.ends.len()), (Tick::MAX, 1));
    });
}
