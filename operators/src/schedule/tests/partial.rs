//! Timelines of partial rollouts.

use std::collections::BTreeMap;

use expect_test::{Expect, expect};

use super::timeline::play;
use crate::schedule::partial::Config;
use crate::schedule::{Partial, Schedule, TailBatching, tail_batching};

/// Returns a configuration that launches 3 prompts with 2 responses each and admits 2 of the prompts.
fn config() -> Config {
    Config { prompts: 2, responses: 2, oversubscription: 1.5, max_versions: 2, total_steps: None }
}

fn check(config: Config, script: &str, expect: Expect) {
    expect.assert_eq(&play(&mut Partial::new(config).unwrap(), script));
}

#[test]
fn the_tail_is_paused_with_its_ended_responses_and_resumed_first() {
    check(
        config(),
        "prompts 0..9
         policy 0
         stop @0 0:1 1..3:0..2
         pause @0 0:0
         policy 1",
        expect![[r#"
            > prompts 0..9
            > policy 0
              open 0 short (fresh)
              launch 0..2 of p0 p1 p2 (fresh)
            > stop @0 0:1 1..3:0..2
              admit p1 [0, 1] (finished)
              admit p2 [0, 1] (finished)
              pause p0.0@0 p0.1@0 (round full)
            > pause @0 0:0
              defer p0 (round full)
              close 0 (queue 1, age 0)
            > policy 1
              open 1 short (fresh)
              launch 0..2 of p0 (queued)
              launch 0..2 of p3 p4 (fresh)
        "#]],
    );
}

#[test]
fn a_round_closes_after_its_pauses_and_keeps_late_responses_whole() {
    check(
        config(),
        "prompts 0..9
         policy 0
         stop @0 1..3:0..2
         stop @0 0:1
         policy 1
         pause @0 0:0
         stop @1 0:1",
        expect![[r#"
            > prompts 0..9
            > policy 0
              open 0 short (fresh)
              launch 0..2 of p0 p1 p2 (fresh)
            > stop @0 1..3:0..2
              admit p1 [0, 1] (finished)
              admit p2 [0, 1] (finished)
              pause p0.0@0 p0.1@0 (round full)
            > stop @0 0:1
            > policy 1
            > pause @0 0:0
              defer p0 (round full)
              close 0 (queue 1, age 0)
              open 1 short (fresh)
              launch 0..2 of p0 (queued)
              launch 0..2 of p3 p4 (fresh)
            > stop @1 0:1
        "#]],
    );
}

#[test]
fn a_lost_paused_response_is_launched_again() {
    check(
        config(),
        "prompts 0..9
         policy 0
         abort @0 0:1
         stop @0 1..3:0..2
         abort @0 0:2
         pause @0 0:0
         policy 1",
        expect![[r#"
            > prompts 0..9
            > policy 0
              open 0 short (fresh)
              launch 0..2 of p0 p1 p2 (fresh)
            > abort @0 0:1
              launch 2..3 of p0 (lost)
            > stop @0 1..3:0..2
              admit p1 [0, 1] (finished)
              admit p2 [0, 1] (finished)
              pause p0.0@0 p0.2@0 (round full)
            > abort @0 0:2
            > pause @0 0:0
              defer p0 (round full)
              close 0 (queue 1, age 0)
            > policy 1
              open 1 short (fresh)
              launch 0..1 of p0 (queued)
              launch 3..4 of p0 (queued)
              launch 0..2 of p3 p4 (fresh)
        "#]],
    );
}

#[test]
fn a_round_waits_for_a_group_that_would_become_too_old() {
    check(
        config(),
        "prompts 0..9
         policy 0
         stop @0 1..3:0..2
         pause @0 0:0..2
         policy 1
         stop @1 3:0..2
         pause @1 4:0..2
         stop @1 0:0..2",
        expect![[r#"
            > prompts 0..9
            > policy 0
              open 0 short (fresh)
              launch 0..2 of p0 p1 p2 (fresh)
            > stop @0 1..3:0..2
              admit p1 [0, 1] (finished)
              admit p2 [0, 1] (finished)
              pause p0.0@0 p0.1@0 (round full)
            > pause @0 0:0..2
              defer p0 (round full)
              close 0 (queue 1, age 0)
            > policy 1
              open 1 short (fresh)
              launch 0..2 of p0 (queued)
              launch 0..2 of p3 p4 (fresh)
            > stop @1 3:0..2
              admit p3 [0, 1] (finished)
              pause p4.0@1 p4.1@1 (round full)
            > pause @1 4:0..2
            > stop @1 0:0..2
              admit p0 [0, 1] (finished)
              defer p4 (round full)
              close 1 (queue 1, age 0)
        "#]],
    );
}

#[test]
fn with_spare_versions_a_round_does_not_wait() {
    check(
        Config { max_versions: 3, ..config() },
        "prompts 0..9
         policy 0
         stop @0 1..3:0..2
         pause @0 0:0..2
         policy 1
         stop @1 3..5:0..2
         pause @1 0:0..2
         policy 2
         stop @2 5:0..2",
        expect![[r#"
            > prompts 0..9
            > policy 0
              open 0 short (fresh)
              launch 0..2 of p0 p1 p2 (fresh)
            > stop @0 1..3:0..2
              admit p1 [0, 1] (finished)
              admit p2 [0, 1] (finished)
              pause p0.0@0 p0.1@0 (round full)
            > pause @0 0:0..2
              defer p0 (round full)
              close 0 (queue 1, age 0)
            > policy 1
              open 1 short (fresh)
              launch 0..2 of p0 (queued)
              launch 0..2 of p3 p4 (fresh)
            > stop @1 3..5:0..2
              admit p3 [0, 1] (finished)
              admit p4 [0, 1] (finished)
              pause p0.0@1 p0.1@1 (round full)
            > pause @1 0:0..2
              defer p0 (round full)
              close 1 (queue 1, age 1)
            > policy 2
              open 2 short (fresh)
              launch 0..2 of p0 (queued)
              launch 0..2 of p5 p6 (fresh)
            > stop @2 5:0..2
              admit p5 [0, 1] (finished)
              pause p6.0@2 p6.1@2 (round full)
        "#]],
    );
}

#[test]
fn an_epoch_and_a_run_end_without_a_tail() {
    check(
        Config { total_steps: Some(3), ..config() },
        "prompts 0..3
         prompts 3..9 epoch 1
         policy 0
         stop @0 0..2:0..2
         pause @0 2:0..2
         policy 1
         stop @1 2:0..2
         policy 2",
        expect![[r#"
            > prompts 0..3
            > prompts 3..9 epoch 1
            > policy 0
              open 0 short (fresh)
              launch 0..2 of p0 p1 p2 (fresh)
            > stop @0 0..2:0..2
              admit p0 [0, 1] (finished)
              admit p1 [0, 1] (finished)
              pause p2.0@0 p2.1@0 (round full)
            > pause @0 2:0..2
              defer p2 (round full)
              close 0 (queue 1, age 0)
            > policy 1
              open 1 full (epoch end)
              launch 0..2 of p2 (queued)
            > stop @1 2:0..2
              admit p2 [0, 1] (finished)
              close 1 (queue 0, age 0)
            > policy 2
              open 2 full (fresh)
              launch 0..2 of p3 p4 (fresh)
        "#]],
    );
}

#[test]
fn more_oversubscription_than_versions_is_refused() {
    let refused = |config: Config| Partial::new(config).unwrap_err().to_string();
    expect!["`max_versions` is 2, expected at least 3, to keep up with `oversubscription`"]
        .assert_eq(&refused(Config { oversubscription: 2.5, ..config() }));
    expect!["`oversubscription` is 0.5, expected a number from 1 to 1000"]
        .assert_eq(&refused(Config { oversubscription: 0.5, ..config() }));
    assert!(!Partial::new(config()).unwrap().wants_scores());
}

#[test]
fn a_long_round_resumes_responses_that_its_short_round_paused() {
    let config = tail_batching::Config {
        prompts: 1,
        responses: 2,
        eta_prompts: 2.0,
        eta_responses: 1.5,
        quotas: BTreeMap::new(),
        max_queue_age: None,
        total_steps: None,
        filter_zero_variance: None,
        keep_partial: true,
        selection: tail_batching::Selection::Fastest,
        max_weight: tail_batching::MAX_WEIGHT,
    };
    let weighted = tail_batching::Selection::Weighted;
    let refused =
        tail_batching::Config { selection: weighted, eta_responses: 1.0, ..config.clone() };
    expect![[r#"`keep_partial` cannot be combined with `selection = "weighted"`: it weights only responses sampled again"#]].assert_eq(&TailBatching::new(refused).unwrap_err().to_string());
    let outcome = play(
        &mut TailBatching::new(config).unwrap(),
        "prompts 0..9
         policy 0
         stop @0 0:1 1:0..2
         pause @0 0:0 0:2
         abort @0 1:2
         policy 1
         stop @1 0:1 0:2",
    );
    expect![[r#"
        > prompts 0..9
        > policy 0
          open 0 short (fresh)
          launch 0..3 of p0 p1 (fresh)
        > stop @0 0:1 1:0..2
          admit p1 [0, 1] (finished)
          abort p1.2@0 (group full)
          pause p0.0@0 p0.1@0 p0.2@0 (round full)
        > pause @0 0:0 0:2
          defer p0 (round full)
          close 0 (queue 1, age 0)
        > abort @0 1:2
        > policy 1
          open 1 long (queue full)
          launch 0..3 of p0 (queued)
        > stop @1 0:1 0:2
          admit p0 [1, 2] (finished)
          abort p0.0@1 (group full)
          close 1 (queue 0, age 0)
    "#]]
    .assert_eq(&outcome);
}
