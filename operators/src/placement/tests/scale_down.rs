//! Timelines of the stream trainer.

use expect_test::{Expect, expect};

use super::timeline::play;
use super::{Cost, cost, job};
use crate::placement::planner::Rule;
use crate::placement::{
    Job, PlacementError, Planner, RoundFilter, StreamTrainer, StreamTrainerOptions, Trigger,
};

fn trainer(
    options: StreamTrainerOptions,
    job: Job,
    cost: Cost,
    tensor_parallel: u32,
) -> StreamTrainer<Cost> {
    let planner = Planner::new(Rule::Fixed, job, tensor_parallel).unwrap();
    StreamTrainer::new(options, planner, cost).unwrap()
}

fn check(options: StreamTrainerOptions, job: Job, cost: Cost, script: &str, expect: Expect) {
    expect.assert_eq(&play(&mut trainer(options, job, cost, 1), script));
}

fn triggered(trigger: Trigger) -> StreamTrainerOptions {
    StreamTrainerOptions { trigger, ..StreamTrainerOptions::paper() }
}

/// A round of 20 responses that last 10 s and have 10 tokens each, except the last, which has 100.
const HISTORY: &str = "
    open 0 long
    launch @0 0..20 x 1 of 10
    at 10
    stop @0 0..19:0 tokens 10
    at 100
    length @0 19:0 tokens 100
    close 0
    drained 0";

/// Plays [`HISTORY`] and a second, similar round, both of kind `kind`. The responses of the second round end one second apart. Returns the
/// decisions of the second round, each after the number of responses that had ended.
fn second_round(policy: &mut StreamTrainer<Cost>, kind: &str) -> Vec<String> {
    play(policy, &HISTORY.replace("long", kind));
    let mut script = format!("open 1 {kind}\nlaunch @1 0..20 x 1 of 10\n");
    for at in 1..=20 {
        script += &format!(
            "at {}\nstop @1 {}:0 tokens {at}\nadmit @1 {} x 1\n",
            100 + at,
            at - 1,
            at - 1
        );
    }
    let mut ended = 0;
    let mut decisions = Vec::new();
    for line in play(policy, &(script + "close 1\ndrained 1")).lines() {
        ended += usize::from(line.starts_with("> stop"));
        if !line.starts_with('>') {
            decisions.push(format!("{ended}: {}", line.trim()));
        }
    }
    decisions
}

#[test]
fn algorithm_1_keeps_half_at_the_first_milestone_that_fits() {
    check(
        StreamTrainerOptions::paper(),
        job(),
        cost(),
        "policy 0
         open 0 long
         launch @0 0..10 x 2 of 10
         at 5
         stop @0 0:0 tokens 5
         stop @0 0:1 tokens 5
         admit @0 0 x 2
         stop @0 1:0 tokens 5
         stop @0 1:1 tokens 5
         stop @0 2..10:0..2 tokens 5
         close 0
         drained 0
         policy 1
         open 1 long",
        expect![[r#"
            > policy 0
            > open 0 long
              rollout 4 x tp1, training 0 (round)
            > launch @0 0..10 x 2 of 10
            > at 5
            > stop @0 0:0 tokens 5
            > stop @0 0:1 tokens 5
            > admit @0 0 x 2
            > stop @0 1:0 tokens 5
            > stop @0 1:1 tokens 5
              rollout 2 x tp1, training 2 (scale down)
            > stop @0 2..10:0..2 tokens 5
            > close 0
            > drained 0
              rollout 0 x tp1, training 4 (drained)
            > policy 1
            > open 1 long
              rollout 4 x tp1, training 0 (round)
        "#]],
    );
}

/// No lengths are known, so each running response may need 110 tokens: 10 of its prompt and 100 of its own. Two instances hold 2 x 690 x
/// 0.95 = 1311 tokens, enough for the 11 responses that run when 9 of 20 (45 %) have ended. Three instances hold 1966 tokens, enough for
/// the 16 responses that run when 4 of 20 (20 %) have ended.
#[test]
fn fewer_instances_are_freed_if_half_cannot_hold_the_rest() {
    let small = Cost { capacity: 690, ..cost() };
    let script = "open 0 long
         launch @0 0..20 x 1 of 10
         at 1
         stop @0 0..20:0 tokens 1";
    check(
        StreamTrainerOptions::paper(),
        job(),
        small,
        script,
        expect![[r#"
            > open 0 long
              rollout 4 x tp1, training 0 (round)
            > launch @0 0..20 x 1 of 10
            > at 1
            > stop @0 0..20:0 tokens 1
              rollout 3 x tp1, training 1 (scale down)
        "#]],
    );
    let replica = Job { training_replica: 2, ..job() };
    let mut policy = trainer(StreamTrainerOptions::paper(), replica, small, 1);
    let ended = scale_down_after(&mut policy);
    assert_eq!(ended, Some(9), "a replica of two leaves only when half can hold the rest");
    let mut policy =
        trainer(StreamTrainerOptions::paper(), replica, Cost { capacity: 100, ..cost() }, 1);
    assert_eq!(scale_down_after(&mut policy), None, "nothing fits until the last milestone");
}

/// Returns the number of responses, of 20, that had ended at the scale-down of a first long round; `None` without a scale-down.
fn scale_down_after(policy: &mut StreamTrainer<Cost>) -> Option<usize> {
    let mut script = String::from("open 0 long\nlaunch @0 0..20 x 1 of 10\nat 1\n");
    (0..20).for_each(|id| script += &format!("stop @0 {id}:0 tokens 1\n"));
    let played = play(policy, &script);
    let before =
        played.split("(scale down)").next().filter(|before| before.len() < played.len())?;
    Some(before.matches("> stop").count())
}

#[test]
fn short_rounds_keep_their_devices_unless_all_rounds_stream() {
    let mut paper = trainer(triggered(Trigger::Fixed { share: 0.3 }), job(), cost(), 1);
    assert_eq!(second_round(&mut paper, "short").len(), 2);
    let all = StreamTrainerOptions {
        rounds: RoundFilter::All,
        ..triggered(Trigger::Fixed { share: 0.3 })
    };
    let decisions = second_round(&mut trainer(all, job(), cost(), 1), "short");
    assert_eq!(decisions[1], "6: rollout 2 x tp1, training 2 (scale down)");
}

#[test]
fn a_fixed_trigger_fires_at_its_share_whether_the_rest_fits_or_not() {
    let full = Cost { capacity: 100, ..cost() };
    let mut policy = trainer(triggered(Trigger::Fixed { share: 0.4 }), job(), full, 1);
    assert_eq!(
        second_round(&mut policy, "long"),
        [
            "0: rollout 4 x tp1, training 0 (round)",
            "8: rollout 2 x tp1, training 2 (scale down)",
            "20: rollout 0 x tp1, training 4 (drained)",
        ]
    );
}

#[test]
fn without_a_trigger_training_follows_the_rollout() {
    let mut policy = trainer(triggered(Trigger::Never), job(), cost(), 1);
    assert_eq!(
        second_round(&mut policy, "long"),
        ["0: rollout 4 x tp1, training 0 (round)", "20: rollout 0 x tp1, training 4 (drained)"]
    );
}

fn predicted() -> StreamTrainerOptions {
    StreamTrainerOptions {
        rounds: RoundFilter::All,
        ..triggered(Trigger::Predicted { from: 0.2, every: 0.05 })
    }
}

/// If each response costs time, the slow-down of half the instances pays off only when few responses are left. Otherwise leaving early is
/// free, but there must be groups to train on.
#[test]
fn a_predicted_trigger_waits_until_training_hidden_outweighs_the_slow_down() {
    let at = |response: f64| {
        let cost = Cost { response, training: 2.0, ..cost() };
        let decisions = second_round(&mut trainer(predicted(), job(), cost, 1), "full");
        let found = decisions.iter().find(|decision| decision.contains("scale down"));
        found.map(|decision| decision.split(':').next().unwrap().parse::<u32>().unwrap())
    };
    let (free, dear) = (at(0.0).expect("fires"), at(0.1).expect("fires"));
    assert!(free < dear, "without cost at {free}, with cost at {dear}");
    assert!(free >= 4, "{free} is before the first share");
}

#[test]
fn a_predicted_trigger_does_not_fire_for_training_that_is_nearly_free() {
    let cost = Cost { response: 0.1, training: 1e6, ..cost() };
    let decisions = second_round(&mut trainer(predicted(), job(), cost, 1), "long");
    assert_eq!(decisions.len(), 2, "{decisions:?}");
}

/// Two devices decode twice as fast as one, so stragglers are merged onto the widest instance as soon as the gain exceeds the cost.
#[test]
fn stragglers_are_merged_onto_wider_instances_when_the_change_pays() {
    let options = StreamTrainerOptions { consolidate: true, ..triggered(Trigger::Never) };
    let merged = |change: f64| {
        let cost = Cost { change, response: 0.02, ..cost() };
        second_round(&mut trainer(options, job(), cost, 1), "long")
    };
    let decisions = merged(0.1);
    let last = &decisions[decisions.len() - 2];
    assert!(last.ends_with("rollout 1 x tp4, training 0 (consolidate)"), "{decisions:?}");
    assert_eq!(merged(1e3).len(), 2);
}

#[test]
fn a_consolidation_frees_devices_when_the_round_streams() {
    let options = StreamTrainerOptions { consolidate: true, ..predicted() };
    let two_servers = Job { devices: 8, ..job() };
    let cost = Cost { training: 2.0, response: 0.02, ..cost() };
    let decisions = second_round(&mut trainer(options, two_servers, cost, 1), "long");
    let expected = [
        "0: rollout 8 x tp1, training 0 (round)",
        "8: rollout 4 x tp1, training 4 (scale down)",
        "9: rollout 1 x tp2, training 6 (consolidate)",
        "20: rollout 0 x tp2, training 8 (drained)",
    ];
    assert_eq!(decisions, expected);
}

#[test]
fn a_late_end_of_an_older_step_takes_no_devices_from_the_open_round() {
    let mut policy = trainer(StreamTrainerOptions::paper(), job(), cost(), 1);
    let played = play(&mut policy, "open 0 long\nopen 1 long\ndrained 0\ndrained 1");
    assert!(
        played.ends_with("> drained 0\n> drained 1\n  rollout 0 x tp1, training 4 (drained)\n"),
        "{played}"
    );
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let refused = |options: StreamTrainerOptions| options.validated().unwrap_err().to_string();
    assert_eq!(
        refused(StreamTrainerOptions { keep: 0.0, ..StreamTrainerOptions::paper() }),
        "`keep` is 0, expected in (0, 1]"
    );
    assert_eq!(
        refused(triggered(Trigger::Adaptive { from: 0.5, to: 0.2, every: 0.05 })),
        "`to` is 0.2, expected at least `from`, at most 1"
    );
    let planner = Planner::new(Rule::Fixed, job(), 1).unwrap();
    let tiny = Cost { capacity: 50, ..cost() };
    assert_eq!(
        StreamTrainer::new(StreamTrainerOptions::paper(), planner, tiny).unwrap_err(),
        PlacementError::Capacity { tensor_parallel: 1, capacity: 50, response_length: 100 }
    );
}

/// The first round has 100 tokens per response, and later rounds have 10. While the lengths of the first round are kept, 16 responses with
/// 11 tokens each are expected to sample 20.25 more. Two instances of 200 tokens cannot hold these 500 tokens. Afterwards the responses are
/// expected to sample 9 more, 320 tokens in all.
#[test]
fn old_lengths_are_forgotten() {
    let tight = Cost { capacity: 200, ..cost() };
    let kept = |short: u64| {
        let mut policy = trainer(StreamTrainerOptions::paper(), job(), tight, 1);
        let mut played = String::new();
        for step in 0..=short + 1 {
            let tokens = [100, 10, 1][usize::from(step > 0) + usize::from(step > short)];
            let script = format!(
                "open {step} long
                 launch @{step} 0..20 x 1 of 10
                 at {}
                 stop @{step} 0..20:0 tokens {tokens}
                 drained {step}",
                step + 1
            );
            played = play(&mut policy, &script);
        }
        let fired = played.lines().find(|line| line.ends_with("(scale down)")).map(str::trim);
        fired.expect("it fires").to_owned()
    };
    assert_eq!(kept(7), "rollout 3 x tp1, training 1 (scale down)");
    assert_eq!(kept(8), "rollout 2 x tp1, training 2 (scale down)");
}
