//! Timelines of sorted batches.

use expect_test::{Expect, expect};

use super::timeline::play;
use crate::schedule::Sorted;
use crate::schedule::sorted::{Config, Mode};

/// Returns a configuration that loads 4 prompts with one response each, admits 2 of them per round, and runs 3 at a time.
fn config(mode: Mode) -> Config {
    Config {
        prompts: 2,
        responses: 1,
        group_size: 2,
        slots: 3,
        harvest: None,
        mode,
        carry_over: false,
        total_steps: None,
    }
}

fn check(config: Config, script: &str, expect: Expect) {
    expect.assert_eq(&play(&mut Sorted::new(config).unwrap(), script));
}

#[test]
fn on_policy_mode_aborts_at_the_harvest_and_relaunches_aborted_prompts_last() {
    check(
        config(Mode::OnPolicy),
        "prompts 0..9
         policy 0
         stop @0 1:0
         stop @0 3:0
         policy 1
         stop @1 0:0 2:0
         policy 2",
        expect![[r#"
            > prompts 0..9
            > policy 0
              open 0 short (fresh)
              launch 0..1 of p0 p1 p2 (fresh)
            > stop @0 1:0
              admit p1 [0] (finished)
              launch 0..1 of p3 (fresh)
            > stop @0 3:0
              admit p3 [0] (finished)
              abort p0.0@0 p2.0@0 (round full)
              defer p0 p2 (round full)
              close 0 (queue 2, age 0)
            > policy 1
              open 1 full (queued)
              launch 0..1 of p0 p2 (queued)
            > stop @1 0:0 2:0
              admit p0 [0] (finished)
              admit p2 [0] (finished)
              close 1 (queue 0, age 0)
            > policy 2
              open 2 short (fresh)
              launch 0..1 of p4 p5 p6 (fresh)
        "#]],
    );
}

#[test]
fn on_policy_mode_launches_prompts_that_have_not_run_first() {
    check(
        Config { group_size: 3, ..config(Mode::OnPolicy) },
        "prompts 0..9
         policy 0
         stop @0 1:0 2:0
         policy 1",
        expect![[r#"
            > prompts 0..9
            > policy 0
              open 0 short (fresh)
              launch 0..1 of p0 p1 p2 (fresh)
            > stop @0 1:0 2:0
              admit p1 [0] (finished)
              launch 0..1 of p3 (fresh)
              admit p2 [0] (finished)
              abort p0.0@0 p3.0@0 (round full)
              defer p0 p3 (round full)
              close 0 (queue 2, age 0)
            > policy 1
              open 1 short (queued)
              launch 0..1 of p4 p5 (fresh)
              launch 0..1 of p0 (queued)
        "#]],
    );
}

#[test]
fn partial_mode_resumes_first_and_loads_nothing_before_the_load_is_consumed() {
    check(
        config(Mode::Partial),
        "prompts 0..9
         policy 0
         stop @0 1:0
         stop @0 3:0
         pause @0 0:0 2:0
         policy 1
         stop @1 2:0
         stop @1 0:0
         policy 2",
        expect![[r#"
            > prompts 0..9
            > policy 0
              open 0 short (fresh)
              launch 0..1 of p0 p1 p2 (fresh)
            > stop @0 1:0
              admit p1 [0] (finished)
              launch 0..1 of p3 (fresh)
            > stop @0 3:0
              admit p3 [0] (finished)
              pause p0.0@0 p2.0@0 (round full)
            > pause @0 0:0 2:0
              defer p0 p2 (round full)
              close 0 (queue 2, age 0)
            > policy 1
              open 1 full (queued)
              launch 0..1 of p0 p2 (queued)
            > stop @1 2:0
              admit p2 [0] (finished)
            > stop @1 0:0
              admit p0 [0] (finished)
              close 1 (queue 0, age 0)
            > policy 2
              open 2 short (fresh)
              launch 0..1 of p4 p5 p6 (fresh)
        "#]],
    );
}

#[test]
fn carry_over_fills_slots_with_the_next_load_which_waits_for_its_turn() {
    check(
        Config { carry_over: true, ..config(Mode::Partial) },
        "prompts 0..9
         policy 0
         stop @0 0:0
         stop @0 1:0
         prompts 9..20
         policy 1
         pause @0 2:0 3:0 4:0
         stop @1 4:0
         stop @1 2:0 3:0
         pause @1 5:0
         policy 2",
        expect![[r#"
            > prompts 0..9
            > policy 0
              open 0 short (fresh)
              launch 0..1 of p0 p1 p2 (fresh)
            > stop @0 0:0
              admit p0 [0] (finished)
              launch 0..1 of p3 (fresh)
            > stop @0 1:0
              admit p1 [0] (finished)
              pause p2.0@0 p3.0@0 (round full)
            > prompts 9..20
            > policy 1
            > pause @0 2:0 3:0 4:0
              defer p2 p3 (round full)
              close 0 (queue 2, age 0)
              open 1 full (queued)
              launch 0..1 of p2 p3 (queued)
              launch 0..1 of p4 (fresh)
            > stop @1 4:0
              launch 0..1 of p5 (fresh)
            > stop @1 2:0 3:0
              admit p2 [0] (finished)
              launch 0..1 of p6 (fresh)
              admit p3 [0] (finished)
              pause p4.0@1 p5.0@1 p6.0@1 (round full)
            > pause @1 5:0
            > policy 2
        "#]],
    );
}

#[test]
fn a_larger_harvest_admits_the_shortest_and_keeps_the_others_whole() {
    check(
        Config { harvest: Some(3), slots: 9, ..config(Mode::Partial) },
        "prompts 0..4
         policy 0
         stop 30 @0 2:0
         stop 10 @0 1:0
         stop 20 @0 0:0
         pause @0 3:0
         policy 1
         end
         stop 30 @1 2:0
         stop 70 @1 3:0",
        expect![[r#"
            > prompts 0..4
            > policy 0
              open 0 short (fresh)
              launch 0..1 of p0 p1 p2 p3 (fresh)
            > stop 30 @0 2:0
            > stop 10 @0 1:0
            > stop 20 @0 0:0
              admit p1 [0] (finished)
              admit p0 [0] (finished)
              pause p2.0@0 p3.0@0 (round full)
            > pause @0 3:0
              defer p2 p3 (round full)
              close 0 (queue 2, age 0)
            > policy 1
              open 1 full (queued)
              launch 0..1 of p2 p3 (queued)
            > end
            > stop 30 @1 2:0
            > stop 70 @1 3:0
              admit p2 [0] (finished)
              admit p3 [0] (finished)
              close 1 (queue 0, age 0)
              finish
        "#]],
    );
}

#[test]
fn a_load_is_no_larger_than_the_rest_of_the_run() {
    check(
        Config { total_steps: Some(1), slots: 9, ..config(Mode::Partial) },
        "prompts 0..4
         policy 0
         stop @0 0..2:0",
        expect![[r#"
            > prompts 0..4
            > policy 0
              open 0 full (fresh)
              launch 0..1 of p0 p1 (fresh)
            > stop @0 0..2:0
              admit p0 [0] (finished)
              admit p1 [0] (finished)
              close 0 (queue 0, age 0)
              finish
        "#]],
    );
}

#[test]
fn options_without_meaning_are_refused() {
    let refused = |config: Config| Sorted::new(config).unwrap_err().to_string();
    let (on_policy, partial) = (config(Mode::OnPolicy), config(Mode::Partial));
    expect![[r#"`carry_over` cannot be combined with `mode = "on_policy"`: the next load would be aborted"#]]
    .assert_eq(&refused(Config { carry_over: true, ..on_policy.clone() }));
    expect![[
        r#"`harvest` cannot be combined with `mode = "on_policy"`: complete groups would be lost"#
    ]]
    .assert_eq(&refused(Config { harvest: Some(3), ..on_policy }));
    expect!["`harvest` is 1, expected at least 2, the groups that a round admits"]
        .assert_eq(&refused(Config { harvest: Some(1), ..partial.clone() }));
    expect!["`group_size` is 2, expected at least 3, for a load to hold the harvest"]
        .assert_eq(&refused(Config { harvest: Some(5), ..partial.clone() }));
    expect!["`slots` is 0, expected at least 1"]
        .assert_eq(&refused(Config { slots: 0, ..partial }));
}
