//! Timelines of dynamic sampling, alone and in tail batching.

use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use serde::{Deserialize, Serialize};

use super::timeline::play;
use crate::schedule::dynamic::Config;
use crate::schedule::round_policy::{
    NextAction, OpenRound, PlannedPrompt, Pool, RoundPolicy, RoundShare, Rounds, Vacancy,
};
use crate::schedule::{
    Checked, Dynamic, OnExhausted, Schedule, ScheduleError, TailBatching, ZeroVarianceFilter,
    tail_batching,
};

fn config() -> Config {
    Config {
        prompts: 2,
        responses: 2,
        gen_prompts: None,
        max_generated_batches: 2,
        on_exhausted: OnExhausted::Fail,
        total_steps: None,
    }
}

fn check(config: Config, script: &str, expect: Expect) {
    expect.assert_eq(&play(&mut Dynamic::new(config).unwrap(), script));
}

#[test]
fn a_group_without_variance_is_rejected_and_replaced_at_once() {
    check(
        config(),
        "prompts 0..4
         policy 0
         stop @0 0:0..2 1:0..2
         score 1 @0 0:0 1:0
         score 0 @0 0:1
         score 1 @0 1:1
         stop @0 2:0..2
         score 0.5 @0 2:0
         score 0.25 @0 2:1",
        expect![[r#"
            > prompts 0..4
            > policy 0
              open 0 full (fresh)
              launch 0..2 of p0 p1 (fresh)
            > stop @0 0:0..2 1:0..2
            > score 1 @0 0:0 1:0
            > score 0 @0 0:1
              admit p0 [0, 1] (finished)
            > score 1 @0 1:1
              reject p1 (zero variance)
              launch 0..2 of p2 (fresh)
            > stop @0 2:0..2
            > score 0.5 @0 2:0
            > score 0.25 @0 2:1
              admit p2 [0, 1] (finished)
              close 0 (queue 0, age 0)
              ?
        "#]],
    );
}

#[test]
fn a_replacement_that_is_not_offered_yet_is_requested() {
    check(
        config(),
        "prompts 0..2
         policy 0
         stop @0 0..2:0..2
         score 1 @0 0:0..2
         prompts 2
         score 0 @0 1:0..2
         end
         stop @0 2:0..2
         score 0 @0 2:0
         score 1 @0 2:1",
        expect![[r#"
            > prompts 0..2
            > policy 0
              open 0 full (fresh)
              launch 0..2 of p0 p1 (fresh)
            > stop @0 0..2:0..2
            > score 1 @0 0:0..2
              reject p0 (zero variance)
              ?
            > prompts 2
              launch 0..2 of p2 (fresh)
            > score 0 @0 1:0..2
              reject p1 (zero variance)
              ?
            > end
            > stop @0 2:0..2
            > score 0 @0 2:0
            > score 1 @0 2:1
              admit p2 [0, 1] (finished)
              close 0 (queue 0, age 0)
              finish
        "#]],
    );
}

#[test]
fn the_bound_fails_the_run_as_soon_as_it_is_certain() {
    check(
        config(),
        "prompts 0..9
         policy 0
         stop @0 0..2:0..2
         score 1 @0 0..2:0..2
         stop @0 2:0..2
         score 1 @0 2:0..2
         stop @0 3:0..2",
        expect![[r#"
            > prompts 0..9
            > policy 0
              open 0 full (fresh)
              launch 0..2 of p0 p1 (fresh)
            > stop @0 0..2:0..2
            > score 1 @0 0..2:0..2
              reject p0 (zero variance)
              launch 0..2 of p2 (fresh)
              reject p1 (zero variance)
              launch 0..2 of p3 (fresh)
            > stop @0 2:0..2
            > score 1 @0 2:0..2
              reject p2 (zero variance)
              fail (too few of 4 prompts have groups with reward variance: `max_generated_batches` = 2 allows no further prompt; raise it, or set `on_exhausted = "smaller_step"`)
            > stop @0 3:0..2
        "#]],
    );
}

#[test]
fn the_bound_makes_the_step_smaller_if_configured() {
    check(
        Config { on_exhausted: OnExhausted::SmallerStep, ..config() },
        "prompts 0..9
         policy 0
         stop @0 0..2:0..2
         score 1 @0 0..2:0..2
         stop @0 2..4:0..2
         score 1 @0 2:0..2
         score 1 @0 3:0
         score 0 @0 3:1",
        expect![[r#"
            > prompts 0..9
            > policy 0
              open 0 full (fresh)
              launch 0..2 of p0 p1 (fresh)
            > stop @0 0..2:0..2
            > score 1 @0 0..2:0..2
              reject p0 (zero variance)
              launch 0..2 of p2 (fresh)
              reject p1 (zero variance)
              launch 0..2 of p3 (fresh)
            > stop @0 2..4:0..2
            > score 1 @0 2:0..2
              reject p2 (zero variance)
            > score 1 @0 3:0
            > score 0 @0 3:1
              admit p3 [0, 1] (finished)
              close 0 (queue 0, age 0)
        "#]],
    );
}

#[test]
fn surplus_prompts_are_deferred_and_launched_again_first() {
    check(
        Config { gen_prompts: Some(3), ..config() },
        "prompts 0..9
         policy 0
         stop @0 1..3:0..2
         score 1 @0 1..3:0
         score 0 @0 1..3:1
         policy 1",
        expect![[r#"
            > prompts 0..9
            > policy 0
              open 0 short (fresh)
              launch 0..2 of p0 p1 p2 (fresh)
            > stop @0 1..3:0..2
            > score 1 @0 1..3:0
            > score 0 @0 1..3:1
              admit p1 [0, 1] (finished)
              admit p2 [0, 1] (finished)
              abort p0.0@0 p0.1@0 (round full)
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
fn tail_batching_filters_in_short_and_long_rounds_and_queues_no_rejected_prompt() {
    let config = tail_batching::Config {
        prompts: 2,
        responses: 2,
        eta_prompts: 1.5,
        eta_responses: 1.5,
        quotas: BTreeMap::new(),
        max_queue_age: None,
        total_steps: None,
        filter_zero_variance: Some(ZeroVarianceFilter {
            max_generated_batches: 2,
            on_exhausted: OnExhausted::SmallerStep,
        }),
        keep_partial: false,
        selection: tail_batching::Selection::Fastest,
        max_weight: tail_batching::MAX_WEIGHT,
    };
    let mut schedule = TailBatching::new(config).unwrap();
    assert!(schedule.wants_scores());
    let outcome = play(
        &mut schedule,
        "prompts 0..9
         policy 0
         stop @0 0:0..2 1:0..2
         score 1 @0 0:0..2
         score 1 @0 1:0
         score 0 @0 1:1
         stop @0 3:0..2
         score 1 @0 3:0
         score 0 @0 3:1
         policy 1
         stop @1 5..7:1..3
         score 1 @1 5..7:1
         score 0 @1 5..7:2
         policy 2
         stop @2 2:0..2
         score 1 @2 2:0..2
         end",
    );
    expect![[r#"
        > prompts 0..9
        > policy 0
          open 0 short (fresh)
          launch 0..3 of p0 p1 p2 (fresh)
        > stop @0 0:0..2 1:0..2
          abort p0.2@0 p1.2@0 (group full)
        > score 1 @0 0:0..2
          reject p0 (zero variance)
          launch 0..3 of p3 (fresh)
        > score 1 @0 1:0
        > score 0 @0 1:1
          admit p1 [0, 1] (finished)
        > stop @0 3:0..2
          abort p3.2@0 (group full)
        > score 1 @0 3:0
        > score 0 @0 3:1
          admit p3 [0, 1] (finished)
          abort p2.0@0 p2.1@0 p2.2@0 (round full)
          defer p2 (round full)
          close 0 (queue 1, age 0)
        > policy 1
          open 1 short (fresh)
          launch 0..3 of p4 p5 p6 (fresh)
        > stop @1 5..7:1..3
          abort p5.0@1 p6.0@1 (group full)
        > score 1 @1 5..7:1
        > score 0 @1 5..7:2
          admit p5 [1, 2] (finished)
          admit p6 [1, 2] (finished)
          abort p4.0@1 p4.1@1 p4.2@1 (round full)
          defer p4 (round full)
          close 1 (queue 2, age 1)
        > policy 2
          open 2 long (queue full)
          launch 0..2 of p2 p4 (queued)
        > stop @2 2:0..2
        > score 1 @2 2:0..2
          reject p2 (zero variance)
          launch 0..2 of p7 (fresh)
        > end
    "#]]
    .assert_eq(&outcome);
}

#[test]
fn configurations_out_of_bounds_are_refused() {
    let refused = |config: Config| Dynamic::new(config).unwrap_err().to_string();
    let zero = ScheduleError::bound("prompts", "at least 1", 0);
    assert_eq!(Dynamic::new(Config { prompts: 0, ..config() }), Err(zero));
    expect!["`responses` is 1, expected at least 2, for rewards to vary within a group"]
        .assert_eq(&refused(Config { responses: 1, ..config() }));
    expect!["`gen_prompts` is 1, expected at least 2, the groups that a round admits"]
        .assert_eq(&refused(Config { gen_prompts: Some(1), ..config() }));
    expect!["`max_generated_batches` is 2, expected at least 3, for the prompts that a round launches at once"]
        .assert_eq(&refused(Config { gen_prompts: Some(5), ..config() }));
}

/// Dynamic sampling that replaces a rejected prompt by a prompt of a lane that the round does not have.
#[derive(Serialize, Deserialize)]
struct OtherLane(Dynamic);

impl RoundPolicy for OtherLane {
    type Upcoming = RoundShare;

    fn rounds(&mut self) -> &mut Rounds {
        self.0.rounds()
    }

    fn rounds_ref(&self) -> &Rounds {
        self.0.rounds_ref()
    }

    fn pool(&mut self) -> &mut Pool {
        self.0.pool()
    }

    fn filter(&self) -> Option<&ZeroVarianceFilter> {
        self.0.filter()
    }

    fn quota(&self, lane: &str) -> usize {
        self.0.quota(lane)
    }

    fn replacement(&mut self, vacancy: &Vacancy) -> NextAction<PlannedPrompt> {
        let other = |planned| PlannedPrompt { lane: "other".into(), ..planned };
        self.0.replacement(vacancy).map(other)
    }

    fn next(&self) -> NextAction<RoundShare> {
        RoundPolicy::next(&self.0)
    }

    fn open(&mut self, share: RoundShare) {
        self.0.open(share);
    }

    fn close(&mut self, round: OpenRound) {
        self.0.close(round);
    }
}

#[test]
fn a_replacement_of_another_lane_is_named() {
    let mut schedule = Checked::new(Box::new(OtherLane(Dynamic::new(config()).unwrap())));
    let script = "prompts 0..4
         policy 0
         stop @0 1:0..2
         score 1 @0 1:0..2";
    let log = play(&mut schedule, script);
    let message = "the schedule violates its contract: it replaces a rejected prompt of lane `` with p2 of lane `other`";
    assert!(log.contains(message), "{log}");
}
