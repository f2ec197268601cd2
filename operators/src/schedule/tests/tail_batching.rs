//! Timelines of tail batching.

use std::collections::BTreeMap;

use expect_test::{Expect, expect};

use super::timeline::play;
use crate::schedule::tail_batching::{Config, MAX_WEIGHT, Selection};
use crate::schedule::{ScheduleError, TailBatching};

/// Returns the paper's configuration, scaled down: 4 prompts with 2 responses each, and factors of 1.5.
fn config() -> Config {
    Config {
        prompts: 4,
        responses: 2,
        eta_prompts: 1.5,
        eta_responses: 1.5,
        quotas: BTreeMap::new(),
        max_queue_age: None,
        total_steps: None,
        filter_zero_variance: None,
        keep_partial: false,
        selection: Selection::Fastest,
        max_weight: MAX_WEIGHT,
    }
}

fn domains() -> Config {
    Config {
        eta_responses: 1.0,
        quotas: BTreeMap::from([("code".into(), 2), ("math".into(), 2)]),
        ..config()
    }
}

fn check(config: Config, script: &str, expect: Expect) {
    expect.assert_eq(&play(&mut TailBatching::new(config).unwrap(), script));
}

#[test]
fn section_3_short_round_admits_the_first_to_finish_and_defers_the_rest_in_launch_order() {
    check(
        config(),
        "prompts 0..6
         policy 0
         stop @0 5:2 5:0
         length @0 3:0..2
         stop @0 1:0 2:0
         stop @0 2:1
         abort @0 1:1
         stop @0 0:0..2",
        expect![[r#"
            > prompts 0..6
            > policy 0
              open 0 short (fresh)
              launch 0..3 of p0 p1 p2 p3 p4 p5 (fresh)
            > stop @0 5:2 5:0
              admit p5 [0, 2] (finished)
              abort p5.1@0 (group full)
            > length @0 3:0..2
              admit p3 [0, 1] (finished)
              abort p3.2@0 (group full)
            > stop @0 1:0 2:0
            > stop @0 2:1
              admit p2 [0, 1] (finished)
              abort p2.2@0 (group full)
            > abort @0 1:1
            > stop @0 0:0..2
              admit p0 [0, 1] (finished)
              abort p0.2@0 (group full)
              abort p1.2@0 p4.0@0 p4.1@0 p4.2@0 (round full)
              defer p1 p4 (round full)
              close 0 (queue 2, age 0)
              ?
        "#]],
    );
}

#[test]
fn section_3_long_round_runs_when_the_queue_holds_a_round_without_speculation() {
    check(
        config(),
        "prompts 0..18
         policy 0
         stop @0 2..6:0..2
         policy 1
         stop @1 6..10:0..2
         policy 2
         stop @0 0:0..2
         stop @2 0:0..2 1:0..2 10:0..2 11:0..2
         policy 3",
        expect![[r#"
            > prompts 0..18
            > policy 0
              open 0 short (fresh)
              launch 0..3 of p0 p1 p2 p3 p4 p5 (fresh)
            > stop @0 2..6:0..2
              admit p2 [0, 1] (finished)
              abort p2.2@0 (group full)
              admit p3 [0, 1] (finished)
              abort p3.2@0 (group full)
              admit p4 [0, 1] (finished)
              abort p4.2@0 (group full)
              admit p5 [0, 1] (finished)
              abort p5.2@0 (group full)
              abort p0.0@0 p0.1@0 p0.2@0 p1.0@0 p1.1@0 p1.2@0 (round full)
              defer p0 p1 (round full)
              close 0 (queue 2, age 0)
            > policy 1
              open 1 short (fresh)
              launch 0..3 of p6 p7 p8 p9 p10 p11 (fresh)
            > stop @1 6..10:0..2
              admit p6 [0, 1] (finished)
              abort p6.2@1 (group full)
              admit p7 [0, 1] (finished)
              abort p7.2@1 (group full)
              admit p8 [0, 1] (finished)
              abort p8.2@1 (group full)
              admit p9 [0, 1] (finished)
              abort p9.2@1 (group full)
              abort p10.0@1 p10.1@1 p10.2@1 p11.0@1 p11.1@1 p11.2@1 (round full)
              defer p10 p11 (round full)
              close 1 (queue 4, age 1)
            > policy 2
              open 2 long (queue full)
              launch 0..2 of p0 p1 p10 p11 (queued)
            > stop @0 0:0..2
            > stop @2 0:0..2 1:0..2 10:0..2 11:0..2
              admit p0 [0, 1] (finished)
              admit p1 [0, 1] (finished)
              admit p10 [0, 1] (finished)
              admit p11 [0, 1] (finished)
              close 2 (queue 0, age 0)
            > policy 3
              open 3 short (fresh)
              launch 0..3 of p12 p13 p14 p15 p16 p17 (fresh)
        "#]],
    );
}

#[test]
fn figure_12_prompts_only_launches_no_surplus_responses() {
    check(
        Config { eta_responses: 1.0, ..config() },
        "prompts 0..6
         policy 0
         stop @0 0..4:0..2",
        expect![[r#"
            > prompts 0..6
            > policy 0
              open 0 short (fresh)
              launch 0..2 of p0 p1 p2 p3 p4 p5 (fresh)
            > stop @0 0..4:0..2
              admit p0 [0, 1] (finished)
              admit p1 [0, 1] (finished)
              admit p2 [0, 1] (finished)
              admit p3 [0, 1] (finished)
              abort p4.0@0 p4.1@0 p5.0@0 p5.1@0 (round full)
              defer p4 p5 (round full)
              close 0 (queue 2, age 0)
              ?
        "#]],
    );
}

#[test]
fn figure_12_responses_only_defers_nothing() {
    check(
        Config { eta_prompts: 1.0, ..config() },
        "prompts 0..4
         policy 0
         stop @0 0..4:1..3",
        expect![[r#"
            > prompts 0..4
            > policy 0
              open 0 short (fresh)
              launch 0..3 of p0 p1 p2 p3 (fresh)
            > stop @0 0..4:1..3
              admit p0 [1, 2] (finished)
              abort p0.0@0 (group full)
              admit p1 [1, 2] (finished)
              abort p1.0@0 (group full)
              admit p2 [1, 2] (finished)
              abort p2.0@0 (group full)
              admit p3 [1, 2] (finished)
              abort p3.0@0 (group full)
              close 0 (queue 0, age 0)
              ?
        "#]],
    );
}

#[test]
fn prompts_are_requested_until_the_next_round_can_be_decided() {
    check(
        config(),
        "prompts 0..5
         policy 0
         prompts 5
         stop @0 0..4:0..2
         policy 1
         prompts 6..9
         prompts 9 epoch 1",
        expect![[r#"
            > prompts 0..5
              ?
            > policy 0
              ?
            > prompts 5
              open 0 short (fresh)
              launch 0..3 of p0 p1 p2 p3 p4 p5 (fresh)
            > stop @0 0..4:0..2
              admit p0 [0, 1] (finished)
              abort p0.2@0 (group full)
              admit p1 [0, 1] (finished)
              abort p1.2@0 (group full)
              admit p2 [0, 1] (finished)
              abort p2.2@0 (group full)
              admit p3 [0, 1] (finished)
              abort p3.2@0 (group full)
              abort p4.0@0 p4.1@0 p4.2@0 p5.0@0 p5.1@0 p5.2@0 (round full)
              defer p4 p5 (round full)
              close 0 (queue 2, age 0)
              ?
            > policy 1
              ?
            > prompts 6..9
              ?
            > prompts 9 epoch 1
              open 1 long (epoch end)
              launch 0..2 of p4 p5 (queued)
              launch 0..2 of p6 p7 (fresh)
        "#]],
    );
}

#[test]
fn an_epoch_drains_before_the_next_begins() {
    check(
        config(),
        "prompts 0..8
         prompts 8..14 epoch 1
         policy 0
         stop @0 2..6:0..2
         policy 1
         stop @1 0..2:0..2 6..8:0..2
         policy 2
         stop @2 8..12:0..2
         end
         policy 3
         stop @3 12..14:0..2",
        expect![[r#"
            > prompts 0..8
            > prompts 8..14 epoch 1
            > policy 0
              open 0 short (fresh)
              launch 0..3 of p0 p1 p2 p3 p4 p5 (fresh)
            > stop @0 2..6:0..2
              admit p2 [0, 1] (finished)
              abort p2.2@0 (group full)
              admit p3 [0, 1] (finished)
              abort p3.2@0 (group full)
              admit p4 [0, 1] (finished)
              abort p4.2@0 (group full)
              admit p5 [0, 1] (finished)
              abort p5.2@0 (group full)
              abort p0.0@0 p0.1@0 p0.2@0 p1.0@0 p1.1@0 p1.2@0 (round full)
              defer p0 p1 (round full)
              close 0 (queue 2, age 0)
            > policy 1
              open 1 long (epoch end)
              launch 0..2 of p0 p1 (queued)
              launch 0..2 of p6 p7 (fresh)
            > stop @1 0..2:0..2 6..8:0..2
              admit p0 [0, 1] (finished)
              admit p1 [0, 1] (finished)
              admit p6 [0, 1] (finished)
              admit p7 [0, 1] (finished)
              close 1 (queue 0, age 0)
            > policy 2
              open 2 short (fresh)
              launch 0..3 of p8 p9 p10 p11 p12 p13 (fresh)
            > stop @2 8..12:0..2
              admit p8 [0, 1] (finished)
              abort p8.2@2 (group full)
              admit p9 [0, 1] (finished)
              abort p9.2@2 (group full)
              admit p10 [0, 1] (finished)
              abort p10.2@2 (group full)
              admit p11 [0, 1] (finished)
              abort p11.2@2 (group full)
              abort p12.0@2 p12.1@2 p12.2@2 p13.0@2 p13.1@2 p13.2@2 (round full)
              defer p12 p13 (round full)
              close 2 (queue 2, age 0)
              ?
            > end
            > policy 3
              open 3 long (epoch end)
              launch 0..2 of p12 p13 (queued)
            > stop @3 12..14:0..2
              admit p12 [0, 1] (finished)
              admit p13 [0, 1] (finished)
              close 3 (queue 0, age 0)
              finish
        "#]],
    );
}

#[test]
fn only_the_very_last_round_of_an_epoch_is_smaller() {
    check(
        config(),
        "prompts 0..9
         end
         policy 0
         stop @0 0..4:0..2
         policy 1
         stop @1 4..8:0..2
         policy 2
         stop @2 8:0..2",
        expect![[r#"
            > prompts 0..9
            > end
            > policy 0
              open 0 short (fresh)
              launch 0..3 of p0 p1 p2 p3 p4 p5 (fresh)
            > stop @0 0..4:0..2
              admit p0 [0, 1] (finished)
              abort p0.2@0 (group full)
              admit p1 [0, 1] (finished)
              abort p1.2@0 (group full)
              admit p2 [0, 1] (finished)
              abort p2.2@0 (group full)
              admit p3 [0, 1] (finished)
              abort p3.2@0 (group full)
              abort p4.0@0 p4.1@0 p4.2@0 p5.0@0 p5.1@0 p5.2@0 (round full)
              defer p4 p5 (round full)
              close 0 (queue 2, age 0)
            > policy 1
              open 1 long (epoch end)
              launch 0..2 of p4 p5 (queued)
              launch 0..2 of p6 p7 (fresh)
            > stop @1 4..8:0..2
              admit p4 [0, 1] (finished)
              admit p5 [0, 1] (finished)
              admit p6 [0, 1] (finished)
              admit p7 [0, 1] (finished)
              close 1 (queue 0, age 0)
            > policy 2
              open 2 long (epoch end)
              launch 0..2 of p8 (fresh)
            > stop @2 8:0..2
              admit p8 [0, 1] (finished)
              close 2 (queue 0, age 0)
              finish
        "#]],
    );
}

#[test]
fn a_queue_at_its_age_limit_forces_a_long_round_filled_up_with_fresh_prompts() {
    check(
        Config { prompts: 4, eta_prompts: 1.25, max_queue_age: Some(1), ..config() },
        "prompts 0..20
         policy 0
         stop @0 0..4:0..2
         policy 1
         stop @1 5..9:0..2
         policy 2
         stop @2 4:0..2 9..12:0..2",
        expect![[r#"
            > prompts 0..20
            > policy 0
              open 0 short (fresh)
              launch 0..3 of p0 p1 p2 p3 p4 (fresh)
            > stop @0 0..4:0..2
              admit p0 [0, 1] (finished)
              abort p0.2@0 (group full)
              admit p1 [0, 1] (finished)
              abort p1.2@0 (group full)
              admit p2 [0, 1] (finished)
              abort p2.2@0 (group full)
              admit p3 [0, 1] (finished)
              abort p3.2@0 (group full)
              abort p4.0@0 p4.1@0 p4.2@0 (round full)
              defer p4 (round full)
              close 0 (queue 1, age 0)
            > policy 1
              open 1 short (fresh)
              launch 0..3 of p5 p6 p7 p8 p9 (fresh)
            > stop @1 5..9:0..2
              admit p5 [0, 1] (finished)
              abort p5.2@1 (group full)
              admit p6 [0, 1] (finished)
              abort p6.2@1 (group full)
              admit p7 [0, 1] (finished)
              abort p7.2@1 (group full)
              admit p8 [0, 1] (finished)
              abort p8.2@1 (group full)
              abort p9.0@1 p9.1@1 p9.2@1 (round full)
              defer p9 (round full)
              close 1 (queue 2, age 1)
            > policy 2
              open 2 long (queue age)
              launch 0..2 of p4 p9 (queued)
              launch 0..2 of p10 p11 (fresh)
            > stop @2 4:0..2 9..12:0..2
              admit p4 [0, 1] (finished)
              admit p9 [0, 1] (finished)
              admit p10 [0, 1] (finished)
              admit p11 [0, 1] (finished)
              close 2 (queue 0, age 0)
        "#]],
    );
}

#[test]
fn the_age_limit_bounds_how_many_a_short_round_may_defer() {
    check(
        Config { prompts: 2, eta_prompts: 4.0, max_queue_age: Some(0), ..config() },
        "prompts 0..20
         policy 0
         stop @0 0..2:0..2
         policy 1",
        expect![[r#"
            > prompts 0..20
            > policy 0
              open 0 short (fresh)
              launch 0..3 of p0 p1 p2 p3 (fresh)
            > stop @0 0..2:0..2
              admit p0 [0, 1] (finished)
              abort p0.2@0 (group full)
              admit p1 [0, 1] (finished)
              abort p1.2@0 (group full)
              abort p2.0@0 p2.1@0 p2.2@0 p3.0@0 p3.1@0 p3.2@0 (round full)
              defer p2 p3 (round full)
              close 0 (queue 2, age 0)
            > policy 1
              open 1 long (queue full)
              launch 0..2 of p2 p3 (queued)
        "#]],
    );
}

#[test]
fn nothing_is_deferred_that_the_run_cannot_drain() {
    check(
        Config {
            prompts: 2,
            eta_prompts: 3.0,
            eta_responses: 1.0,
            total_steps: Some(2),
            ..config()
        },
        "prompts 0..20
         policy 0
         stop @0 0..2:0..2
         policy 1
         stop @1 2..4:0..2",
        expect![[r#"
            > prompts 0..20
            > policy 0
              open 0 short (fresh)
              launch 0..2 of p0 p1 p2 p3 (fresh)
            > stop @0 0..2:0..2
              admit p0 [0, 1] (finished)
              admit p1 [0, 1] (finished)
              abort p2.0@0 p2.1@0 p3.0@0 p3.1@0 (round full)
              defer p2 p3 (round full)
              close 0 (queue 2, age 0)
            > policy 1
              open 1 long (queue full)
              launch 0..2 of p2 p3 (queued)
            > stop @1 2..4:0..2
              admit p2 [0, 1] (finished)
              admit p3 [0, 1] (finished)
              close 1 (queue 0, age 0)
              finish
        "#]],
    );
}

#[test]
fn the_last_round_of_a_run_takes_what_is_queued_and_fills_up_with_fresh_prompts() {
    check(
        Config { eta_responses: 1.0, total_steps: Some(2), ..config() },
        "prompts 0..20
         policy 0
         stop @0 0..4:0..2
         policy 1
         stop @1 4..8:0..2",
        expect![[r#"
            > prompts 0..20
            > policy 0
              open 0 short (fresh)
              launch 0..2 of p0 p1 p2 p3 p4 p5 (fresh)
            > stop @0 0..4:0..2
              admit p0 [0, 1] (finished)
              admit p1 [0, 1] (finished)
              admit p2 [0, 1] (finished)
              admit p3 [0, 1] (finished)
              abort p4.0@0 p4.1@0 p5.0@0 p5.1@0 (round full)
              defer p4 p5 (round full)
              close 0 (queue 2, age 0)
            > policy 1
              open 1 long (run end)
              launch 0..2 of p4 p5 (queued)
              launch 0..2 of p6 p7 (fresh)
            > stop @1 4..8:0..2
              admit p4 [0, 1] (finished)
              admit p5 [0, 1] (finished)
              admit p6 [0, 1] (finished)
              admit p7 [0, 1] (finished)
              close 1 (queue 0, age 0)
              finish
        "#]],
    );
}

#[test]
fn the_last_round_of_a_run_launches_no_surplus_prompts() {
    check(
        Config { total_steps: Some(1), ..config() },
        "prompts 0..4\npolicy 0\nstop @0 0..4:0..2",
        expect![[r#"
        > prompts 0..4
        > policy 0
          open 0 short (fresh)
          launch 0..3 of p0 p1 p2 p3 (fresh)
        > stop @0 0..4:0..2
          admit p0 [0, 1] (finished)
          abort p0.2@0 (group full)
          admit p1 [0, 1] (finished)
          abort p1.2@0 (group full)
          admit p2 [0, 1] (finished)
          abort p2.2@0 (group full)
          admit p3 [0, 1] (finished)
          abort p3.2@0 (group full)
          close 0 (queue 0, age 0)
          finish
    "#]],
    );
}

#[test]
fn quotas_hold_in_both_kinds_of_round() {
    check(
        domains(),
        "prompts 0..8 math
         prompts 8..16 code
         policy 0
         stop @0 0..2:0..2
         stop @0 8..10:0..2
         policy 1
         stop @1 3..5:0..2 11..13:0..2
         policy 2
         stop @2 2:0..2 5:0..2 10:0..2 13:0..2",
        expect![[r#"
            > prompts 0..8 math
              ?
            > prompts 8..16 code
            > policy 0
              open 0 short (fresh)
              launch 0..2 of p0 p1 p2 p8 p9 p10 (fresh)
            > stop @0 0..2:0..2
              admit p0 [0, 1] (finished)
              admit p1 [0, 1] (finished)
              abort p2.0@0 p2.1@0 (round full)
            > stop @0 8..10:0..2
              admit p8 [0, 1] (finished)
              admit p9 [0, 1] (finished)
              abort p10.0@0 p10.1@0 (round full)
              defer p2 p10 (round full)
              close 0 (queue 2, age 0)
            > policy 1
              open 1 short (fresh)
              launch 0..2 of p3 p4 p5 p11 p12 p13 (fresh)
            > stop @1 3..5:0..2 11..13:0..2
              admit p3 [0, 1] (finished)
              admit p4 [0, 1] (finished)
              abort p5.0@1 p5.1@1 (round full)
              admit p11 [0, 1] (finished)
              admit p12 [0, 1] (finished)
              abort p13.0@1 p13.1@1 (round full)
              defer p5 p13 (round full)
              close 1 (queue 4, age 1)
            > policy 2
              open 2 long (queue full)
              launch 0..2 of p2 p5 p10 p13 (queued)
            > stop @2 2:0..2 5:0..2 10:0..2 13:0..2
              admit p2 [0, 1] (finished)
              admit p5 [0, 1] (finished)
              admit p10 [0, 1] (finished)
              admit p13 [0, 1] (finished)
              close 2 (queue 0, age 0)
              ?
        "#]],
    );
}

#[test]
fn a_domain_that_ran_out_leaves_its_places_empty() {
    check(
        domains(),
        "prompts 0..3 math
         prompts 3..10 code
         end
         policy 0
         stop @0 0..2:0..2 3..5:0..2
         policy 1
         stop @1 6..8:0..2
         policy 2
         stop @2 2:0..2 5:0..2 8:0..2
         policy 3
         stop @3 9:0..2",
        expect![[r#"
            > prompts 0..3 math
              ?
            > prompts 3..10 code
            > end
            > policy 0
              open 0 short (fresh)
              launch 0..2 of p0 p1 p2 p3 p4 p5 (fresh)
            > stop @0 0..2:0..2 3..5:0..2
              admit p0 [0, 1] (finished)
              admit p1 [0, 1] (finished)
              abort p2.0@0 p2.1@0 (round full)
              admit p3 [0, 1] (finished)
              admit p4 [0, 1] (finished)
              abort p5.0@0 p5.1@0 (round full)
              defer p2 p5 (round full)
              close 0 (queue 2, age 0)
            > policy 1
              open 1 short (fresh)
              launch 0..2 of p6 p7 p8 (fresh)
            > stop @1 6..8:0..2
              admit p6 [0, 1] (finished)
              admit p7 [0, 1] (finished)
              abort p8.0@1 p8.1@1 (round full)
              defer p8 (round full)
              close 1 (queue 3, age 1)
            > policy 2
              open 2 long (queue full)
              launch 0..2 of p2 p5 p8 (queued)
            > stop @2 2:0..2 5:0..2 8:0..2
              admit p2 [0, 1] (finished)
              admit p5 [0, 1] (finished)
              admit p8 [0, 1] (finished)
              close 2 (queue 0, age 0)
            > policy 3
              open 3 long (epoch end)
              launch 0..2 of p9 (fresh)
            > stop @3 9:0..2
              admit p9 [0, 1] (finished)
              close 3 (queue 0, age 0)
              finish
        "#]],
    );
}

#[test]
fn a_prompt_without_a_quota_is_rejected() {
    check(
        domains(),
        "prompts 0 poetry",
        expect![[r#"
        > prompts 0 poetry
          reject p0 (no quota)
          ?
    "#]],
    );
}

#[test]
fn late_reports_of_an_earlier_round_do_not_touch_the_same_prompt_in_a_later_one() {
    check(
        Config { prompts: 1, eta_prompts: 2.0, ..config() },
        "prompts 0..2
         policy 0
         policy 1
         stop @0 0:0..2
         stop @0 1:0..3
         abort @0 1:0..3
         stop @1 1:0 1:0
         stop @1 1:1",
        expect![[r#"
            > prompts 0..2
            > policy 0
              open 0 short (fresh)
              launch 0..3 of p0 p1 (fresh)
            > policy 1
            > stop @0 0:0..2
              admit p0 [0, 1] (finished)
              abort p0.2@0 (group full)
              abort p1.0@0 p1.1@0 p1.2@0 (round full)
              defer p1 (round full)
              close 0 (queue 1, age 0)
              open 1 long (queue full)
              launch 0..2 of p1 (queued)
            > stop @0 1:0..3
            > abort @0 1:0..3
            > stop @1 1:0 1:0
            > stop @1 1:1
              admit p1 [0, 1] (finished)
              close 1 (queue 0, age 0)
              ?
        "#]],
    );
}

#[test]
fn a_lost_response_is_replaced_only_when_the_others_cannot_fill_the_group() {
    check(
        Config { prompts: 1, eta_prompts: 1.0, ..config() },
        "prompts 0
         policy 0
         abort @0 0:0
         abort @0 0:2
         stop @0 0:3 0:1",
        expect![[r#"
            > prompts 0
            > policy 0
              open 0 short (fresh)
              launch 0..3 of p0 (fresh)
            > abort @0 0:0
            > abort @0 0:2
              launch 3..4 of p0 (lost)
            > stop @0 0:3 0:1
              admit p0 [1, 3] (finished)
              close 0 (queue 0, age 0)
              ?
        "#]],
    );
}

#[test]
fn a_run_resumed_past_its_end_finishes() {
    check(
        Config { total_steps: Some(5), ..config() },
        "prompts 0..6\npolicy 5",
        expect![[r#"
        > prompts 0..6
        > policy 5
          finish
    "#]],
    );
}

#[test]
fn configurations_out_of_bounds_are_refused() {
    let factor = |eta_prompts| {
        TailBatching::new(Config { eta_prompts, ..config() }).unwrap_err().to_string()
    };
    assert_eq!(factor(0.9), "`eta_prompts` is 0.9, expected a number from 1 to 1000");
    assert_eq!(factor(f64::NAN), "`eta_prompts` is NaN, expected a number from 1 to 1000");
    let quotas = Config { quotas: BTreeMap::from([("math".into(), 3)]), ..config() };
    assert_eq!(TailBatching::new(quotas), Err(ScheduleError::Quotas { found: 3, expected: 4 }));
    let zero = Config { quotas: BTreeMap::from([("math".into(), 0)]), ..config() };
    assert_eq!(TailBatching::new(zero), Err(ScheduleError::bound("quotas.math", "at least 1", 0)));
}

#[test]
fn weights_with_surplus_responses_are_refused_by_name() {
    let config = Config { selection: Selection::Weighted, ..config() };
    let refused = TailBatching::new(config.clone()).unwrap_err();
    assert_eq!(refused, ScheduleError::Weighted { eta_responses: 1.5 });
    assert!(refused.to_string().contains("`eta_responses` = 1.5"), "{refused}");
    let refused = Config { eta_responses: 1.0, max_weight: 0.5, ..config };
    assert_eq!(
        TailBatching::new(refused).unwrap_err().to_string(),
        "`max_weight` is 0.5, expected a number from 1 to 1000"
    );
}
