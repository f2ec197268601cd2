//! Timelines of the synchronous schedule.

use expect_test::{Expect, expect};

use super::timeline::play;
use crate::schedule::sync::Config;
use crate::schedule::{Schedule, ScheduleError, Synchronous};

fn schedule(total_steps: Option<u64>) -> Synchronous {
    Synchronous::new(Config { prompts: 3, responses: 2, total_steps }).unwrap()
}

fn check(total_steps: Option<u64>, script: &str, expect: Expect) {
    expect.assert_eq(&play(&mut schedule(total_steps), script));
}

#[test]
fn waits_for_all_and_admits_each_prompt_when_it_is_complete() {
    check(
        None,
        "prompts 0..3
         policy 0
         stop @0 1:0 2:0
         length @0 1:1
         stop @0 0:0..2 2:1",
        expect![[r#"
            > prompts 0..3
            > policy 0
              open 0 full (fresh)
              launch 0..2 of p0 p1 p2 (fresh)
            > stop @0 1:0 2:0
            > length @0 1:1
              admit p1 [0, 1] (finished)
            > stop @0 0:0..2 2:1
              admit p0 [0, 1] (finished)
              admit p2 [0, 1] (finished)
              close 0 (queue 0, age 0)
              ?
        "#]],
    );
}

#[test]
fn the_last_round_of_an_epoch_is_smaller_and_known_by_the_next_epoch_or_the_end() {
    check(
        None,
        "policy 0
         policy 1
         prompts 0..2
         prompts 2 epoch 1
         stop @0 0..2:0..2
         end
         stop @1 2:0..2",
        expect![[r#"
            > policy 0
              ?
            > policy 1
              ?
            > prompts 0..2
              ?
            > prompts 2 epoch 1
              open 0 full (epoch end)
              launch 0..2 of p0 p1 (fresh)
            > stop @0 0..2:0..2
              admit p0 [0, 1] (finished)
              admit p1 [0, 1] (finished)
              close 0 (queue 0, age 0)
              ?
            > end
              open 1 full (epoch end)
              launch 0..2 of p2 (fresh)
            > stop @1 2:0..2
              admit p2 [0, 1] (finished)
              close 1 (queue 0, age 0)
              finish
        "#]],
    );
}

#[test]
fn total_steps_end_the_run() {
    check(
        Some(1),
        "prompts 0..9
         policy 0
         stop @0 0..3:0..2
         policy 1",
        expect![[r#"
            > prompts 0..9
            > policy 0
              open 0 full (fresh)
              launch 0..2 of p0 p1 p2 (fresh)
            > stop @0 0..3:0..2
              admit p0 [0, 1] (finished)
              admit p1 [0, 1] (finished)
              admit p2 [0, 1] (finished)
              close 0 (queue 0, age 0)
              finish
            > policy 1
        "#]],
    );
}

#[test]
fn a_response_that_another_aborted_is_replaced() {
    check(
        None,
        "prompts 0..3
         policy 0
         abort @0 0:1
         stop @0 0:1
         stop @0 0:2 0:0",
        expect![[r#"
            > prompts 0..3
            > policy 0
              open 0 full (fresh)
              launch 0..2 of p0 p1 p2 (fresh)
            > abort @0 0:1
              launch 2..3 of p0 (lost)
            > stop @0 0:1
            > stop @0 0:2 0:0
              admit p0 [0, 2] (finished)
        "#]],
    );
}

#[test]
fn a_run_without_prompts_finishes_at_once() {
    check(
        None,
        "end\npolicy 0",
        expect![[r#"
        > end
          finish
        > policy 0
    "#]],
    );
}

#[test]
fn counts_of_zero_are_refused() {
    let zero = |key: &str| Err(ScheduleError::bound(key, "at least 1", 0));
    let config = Config { prompts: 1, responses: 1, total_steps: None };
    assert_eq!(Synchronous::new(Config { prompts: 0, ..config.clone() }), zero("prompts"));
    assert_eq!(Synchronous::new(Config { responses: 0, ..config.clone() }), zero("responses"));
    assert_eq!(Synchronous::new(Config { total_steps: Some(0), ..config }), zero("total_steps"));
}

#[test]
fn schedules_are_object_safe() {
    let mut boxed: Box<dyn Schedule> = Box::new(schedule(None));
    assert!(boxed.wants_prompts());
    assert_eq!(boxed.poll(), None);
}
