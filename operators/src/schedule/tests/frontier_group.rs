//! Timelines of the frontier group schedule.

use expect_test::{Expect, expect};

use super::timeline::play;
use crate::schedule::FrontierGroup;
use crate::schedule::frontier_group::{Config, Order};

fn config(order: Order) -> Config {
    Config { prompts: 3, responses: 2, slots: 3, order, total_steps: None }
}

fn check(order: Order, script: &str, expect: Expect) {
    expect.assert_eq(&play(&mut FrontierGroup::new(config(order)).unwrap(), script));
}

const SCRIPT: &str = "prompts 0..3
    policy 0
    stop @0 0:0
    stop @0 1:0
    stop @0 0:1
    stop @0 1:1
    stop @0 2:0..2";

#[test]
fn group_major_serves_the_group_that_is_closest_to_completion() {
    check(
        Order::GroupMajor,
        SCRIPT,
        expect![[r#"
        > prompts 0..3
        > policy 0
          open 0 full (fresh)
          launch 0..2 of p0 (fresh)
          launch 0..1 of p1 (fresh)
        > stop @0 0:0
          launch 1..2 of p1 (fresh)
        > stop @0 1:0
          launch 0..1 of p2 (fresh)
        > stop @0 0:1
          admit p0 [0, 1] (finished)
          launch 1..2 of p2 (fresh)
        > stop @0 1:1
          admit p1 [0, 1] (finished)
        > stop @0 2:0..2
          admit p2 [0, 1] (finished)
          close 0 (queue 0, age 0)
          ?
    "#]],
    );
}

#[test]
fn sample_major_starts_every_group() {
    check(
        Order::SampleMajor,
        SCRIPT,
        expect![[r#"
        > prompts 0..3
        > policy 0
          open 0 full (fresh)
          launch 0..1 of p0 p1 p2 (fresh)
        > stop @0 0:0
          launch 1..2 of p0 (fresh)
        > stop @0 1:0
          launch 1..2 of p1 (fresh)
        > stop @0 0:1
          admit p0 [0, 1] (finished)
          launch 1..2 of p2 (fresh)
        > stop @0 1:1
          admit p1 [0, 1] (finished)
        > stop @0 2:0..2
          admit p2 [0, 1] (finished)
          close 0 (queue 0, age 0)
          ?
    "#]],
    );
}

#[test]
fn a_lost_response_keeps_its_slot() {
    check(
        Order::GroupMajor,
        "prompts 0..3
         policy 0
         abort @0 0:1
         stop @0 0:0",
        expect![[r#"
            > prompts 0..3
            > policy 0
              open 0 full (fresh)
              launch 0..2 of p0 (fresh)
              launch 0..1 of p1 (fresh)
            > abort @0 0:1
              launch 2..3 of p0 (lost)
            > stop @0 0:0
              launch 1..2 of p1 (fresh)
        "#]],
    );
}

#[test]
fn no_slots_are_refused() {
    let refused = FrontierGroup::new(Config { slots: 0, ..config(Order::GroupMajor) });
    expect!["`slots` is 0, expected at least 1"].assert_eq(&refused.unwrap_err().to_string());
}
