//! Timelines of the schedule that launches the longest groups first.

use expect_test::{Expect, expect};

use super::timeline::play;
use crate::schedule::Synchronous;
use crate::schedule::longest_first::Config;

fn config(slots: usize) -> Config {
    Config { prompts: 3, responses: 3, slots, total_steps: None }
}

fn check(slots: usize, script: &str, expect: Expect) {
    expect.assert_eq(&play(&mut Synchronous::longest_first(config(slots)).unwrap(), script));
}

#[test]
fn probes_run_first_and_then_the_longest_group() {
    check(
        3,
        "prompts 0..3
         policy 0
         stop 10 @0 0:0
         stop 30 @0 1:0
         stop 20 @0 2:0
         stop 40 @0 2:1
         stop 5 @0 1:1",
        expect![[r#"
            > prompts 0..3
            > policy 0
              open 0 full (fresh)
              launch 0..1 of p0 p1 p2 (fresh)
            > stop 10 @0 0:0
              launch 1..2 of p1 (fresh)
            > stop 30 @0 1:0
              launch 1..2 of p2 (fresh)
            > stop 20 @0 2:0
              launch 2..3 of p1 (fresh)
            > stop 40 @0 2:1
              launch 2..3 of p2 (fresh)
            > stop 5 @0 1:1
              launch 1..2 of p0 (fresh)
        "#]],
    );
}

#[test]
fn free_slots_take_groups_whose_probe_still_runs() {
    check(
        5,
        "prompts 0..3
         policy 0
         stop 10 @0 0:0",
        expect![[r#"
            > prompts 0..3
            > policy 0
              open 0 full (fresh)
              launch 0..1 of p0 p1 p2 (fresh)
              launch 1..2 of p0 (fresh)
              launch 2..3 of p0 (fresh)
            > stop 10 @0 0:0
              launch 1..2 of p1 (fresh)
        "#]],
    );
}

#[test]
fn a_round_waits_for_every_response_of_every_prompt() {
    check(
        9,
        "prompts 0..3
         policy 0
         stop @0 0..2:0..3
         stop @0 2:0..2
         stop 90 @0 2:2",
        expect![[r#"
            > prompts 0..3
            > policy 0
              open 0 full (fresh)
              launch 0..1 of p0 p1 p2 (fresh)
              launch 1..2 of p0 (fresh)
              launch 2..3 of p0 (fresh)
              launch 1..2 of p1 (fresh)
              launch 2..3 of p1 (fresh)
              launch 1..2 of p2 (fresh)
              launch 2..3 of p2 (fresh)
            > stop @0 0..2:0..3
              admit p0 [0, 1, 2] (finished)
              admit p1 [0, 1, 2] (finished)
            > stop @0 2:0..2
            > stop 90 @0 2:2
              admit p2 [0, 1, 2] (finished)
              close 0 (queue 0, age 0)
              ?
        "#]],
    );
}

#[test]
fn a_lost_probe_is_replaced_and_leaves_no_estimate() {
    check(
        3,
        "prompts 0..3
         policy 0
         abort 7 @0 0:0
         stop 10 @0 1:0",
        expect![[r#"
            > prompts 0..3
            > policy 0
              open 0 full (fresh)
              launch 0..1 of p0 p1 p2 (fresh)
            > abort 7 @0 0:0
              launch 3..4 of p0 (lost)
            > stop 10 @0 1:0
              launch 1..2 of p0 (fresh)
        "#]],
    );
}

#[test]
fn no_slots_are_refused() {
    let refused = Synchronous::longest_first(config(0)).unwrap_err();
    expect!["`slots` is 0, expected at least 1"].assert_eq(&refused.to_string());
}
