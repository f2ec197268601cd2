//! Tests of history-sorted rounds: which prompts share a round, and the laws of the schedule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::FinishReason;

use super::timeline::play;
use crate::schedule::history_sorted::Config;
use crate::schedule::testkit::{Entry, World};
use crate::schedule::{Builtin, Decision, Event, HistorySorted, Offer, Schedule, ScheduleError};

fn config() -> Config {
    Config { prompts: 2, responses: 2, window: None, total_steps: None }
}

fn check(config: Config, script: &str, expect: Expect) {
    expect.assert_eq(&play(&mut HistorySorted::new(config).unwrap(), script));
}

#[test]
fn the_first_epoch_keeps_the_read_order_and_reads_at_most_one_round() {
    check(
        config(),
        "prompts 0..2
         policy 0
         stop @0 0..2:0..2
         prompts 2
         prompts 3 epoch 1
         policy 1",
        expect![[r#"
            > prompts 0..2
            > policy 0
              open 0 full (fresh)
              launch 0..2 of p0 p1 (fresh)
            > stop @0 0..2:0..2
              admit p0 [0, 1] (finished)
              admit p1 [0, 1] (finished)
              close 0 (queue 0, age 0)
              ?
            > prompts 2
              ?
            > prompts 3 epoch 1
            > policy 1
              open 1 full (epoch end)
              launch 0..2 of p2 (fresh)
        "#]],
    );
}

/// Runs one epoch for each list in `lengths`, which contains the response length of each row. Returns the rows of each round.
fn rounds(config: Config, lengths: &[&[u32]]) -> Vec<Vec<u64>> {
    let rows = lengths[0].len() as u64;
    let mut schedule = HistorySorted::new(config).unwrap();
    let mut on = |event| schedule.on(Nanos(0), event);
    for id in 0..rows * lengths.len() as u64 {
        let epoch = u32::try_from(id / rows).unwrap();
        on(Event::Prompt(Offer { prompt: PromptId(id), epoch, row: id % rows, domain: "".into() }));
    }
    on(Event::EndOfPrompts);
    (0..100).for_each(|step| on(Event::Policy { step: Step(step) }));
    let (mut rounds, mut step) = (Vec::new(), Step(0));
    while let Some(decision) = schedule.poll() {
        match decision {
            Decision::Open { step: opened, .. } => {
                step = opened;
                rounds.push(Vec::new());
            }
            Decision::Launch { prompt, samples, .. } => {
                let (epoch, row) = (prompt.0 / rows, prompt.0 % rows);
                rounds.last_mut().unwrap().push(row);
                let tokens =
                    lengths[usize::try_from(epoch).unwrap()][usize::try_from(row).unwrap()];
                for sample in samples {
                    let id = SampleId { step, prompt, sample };
                    let finish_reason = FinishReason::Stop;
                    schedule.on(Nanos(0), Event::Response { id, tokens, finish_reason });
                }
            }
            Decision::Abort { id, .. } => panic!("nothing is aborted: {id}"),
            _ => {}
        }
    }
    rounds
}

#[test]
fn from_the_second_epoch_on_rows_that_were_long_share_rounds() {
    let lengths: [&[u32]; 3] = [&[10, 900, 20, 800, 15], &[700, 10, 10, 10, 900], &[1; 5]];
    assert_eq!(
        rounds(config(), &lengths),
        [
            vec![vec![0, 1], vec![2, 3], vec![4]],
            // Sorted by length: 10 15 | 20 800 | 900, in the order of their first rows.
            vec![vec![0, 4], vec![1], vec![2, 3]],
            // By the last epoch alone: 10 10 | 10 700 | 900.
            vec![vec![0, 3], vec![1, 2], vec![4]],
        ]
        .concat()
    );
}

#[test]
fn a_window_bounds_what_is_sorted_together() {
    let lengths: [&[u32]; 2] = [&[10, 900, 20, 800, 15, 700, 25, 950], &[1; 8]];
    let windowed = rounds(Config { window: Some(2), ..config() }, &lengths);
    assert_eq!(windowed[4..], [vec![0, 2], vec![1, 3], vec![4, 6], vec![5, 7]]);
    let whole = rounds(config(), &lengths);
    assert_eq!(whole[4..], [vec![0, 4], vec![1, 7], vec![2, 6], vec![3, 5]]);
}

#[test]
fn counts_of_0_are_refused() {
    let refused = |config| HistorySorted::new(config).unwrap_err();
    let zero = |key: &str| ScheduleError::bound(key, "at least 1", 0);
    assert_eq!(refused(Config { prompts: 0, ..config() }), zero("prompts"));
    assert_eq!(refused(Config { responses: 0, ..config() }), zero("responses"));
    assert_eq!(refused(Config { window: Some(0), ..config() }), zero("window"));
    assert_eq!(refused(Config { total_steps: Some(0), ..config() }), zero("total_steps"));
}

prop_compose! {
    /// Generates runs whose epochs have the same rows, each epoch in an order of its own.
    fn worlds()(
        orders in (1..20_u64).prop_flat_map(|rows| prop::collection::vec(Just((0..rows).collect::<Vec<_>>()).prop_shuffle(), 1..4)),
        seed: u64,
        staleness in 0..3_u64,
        lossy: bool,
    ) -> World {
        let epochs: Vec<Vec<Arc<str>>> = orders.iter().map(|rows| vec!["".into(); rows.len()]).collect();
        let mut world = World { staleness, lossy, ..World::new(&epochs, seed) };
        world.prompts.iter_mut().zip(orders.concat()).for_each(|(offer, row)| offer.row = row);
        world
    }
}

fn schedule(config: &Config) -> Builtin {
    HistorySorted::new(config.clone()).unwrap().into()
}

proptest! {
    /// Fails on these mutations of the code: a window taken without its last prompt; rounds one prompt short; the next epoch begun while
    /// planned rounds remain.
    #[test]
    fn each_prompt_is_launched_once_and_all_of_it_trained(
        world in worlds(),
        prompts in 1..5_usize,
        window in prop::option::of(1..4_usize),
    ) {
        let config = Config { prompts, window, ..config() };
        let log = world.run(schedule(&config)).unwrap();
        let epochs: BTreeMap<PromptId, u32> = world.prompts.iter().map(|offer| (offer.prompt, offer.epoch)).collect();
        let mut admitted = BTreeSet::new();
        let mut epoch = 0;
        for entry in &log {
            let Entry::Decision(decision) = entry else { continue };
            match decision {
                Decision::Launch { prompt, .. } => {
                    assert!(epochs[prompt] >= epoch, "epochs are trained one after the other");
                    epoch = epochs[prompt];
                }
                Decision::Admit { prompt, samples, weights, .. } => {
                    assert!(admitted.insert(*prompt) && samples.len() == 2 && weights.is_empty());
                }
                Decision::Abort { .. } | Decision::Defer { .. } | Decision::Reject { .. } => panic!("{decision}"),
                _ => {}
            }
        }
        prop_assert_eq!(admitted.len(), world.prompts.len());
        prop_assert!(log.contains(&Entry::Decision(Decision::Finish)));
    }

    /// The composition of a round is fixed before its first response, so other lengths in the same step do not change it. Fails on this
    /// mutation of the code: rounds planned again at each opening while the previous round still reports.
    #[test]
    fn the_launches_of_a_round_do_not_depend_on_its_own_lengths(
        rows in prop::collection::vec((1..500_u32, 1..500_u32), 1..12),
        window in prop::option::of(1..4_usize),
    ) {
        let (one, other): (Vec<u32>, Vec<u32>) = rows.into_iter().unzip();
        let config = Config { window, ..config() };
        let first = rounds(config.clone(), &[&one, &one]);
        prop_assert_eq!(&first, &rounds(config, &[&one, &other]), "lengths of the last epoch decide nothing in it");
    }

    #[test]
    fn snapshots_and_reading_ahead_change_nothing(world in worlds(), window in prop::option::of(1..4_usize), at in 1..50_usize, read_ahead in 1..30_usize) {
        let config = Config { window, ..config() };
        let straight = world.run(schedule(&config)).unwrap();
        let mut event = 0;
        let resumed = world.run_with(schedule(&config), |schedule| {
            event += 1;
            if event % at == 0 { serde_json::from_str(&serde_json::to_string(&schedule).unwrap()).unwrap() } else { schedule }
        }).unwrap();
        prop_assert_eq!(&straight, &resumed);
        let decided = |log: Vec<Entry>| log.into_iter().filter(|entry| matches!(entry, Entry::Decision(_))).collect::<Vec<_>>();
        let ahead = World { read_ahead, ..world.clone() }.run(schedule(&config)).unwrap();
        prop_assert_eq!(decided(straight), decided(ahead));
    }
}
