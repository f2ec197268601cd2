//! Tests of the planner's rules.

use super::{Cost, cost, job};
use crate::placement::planner::{Outlook, Rule};
use crate::placement::{Job, PlacementError, Planner, Reason, RoundLoad};
use crate::survival::{Curve, Survival};
use crate::wire::decision::RoundKind;

fn plan(planner: &mut Planner, round: RoundKind, cost: &Cost) -> (u32, Reason) {
    let nothing = Outlook { last: None, lengths: &Curve::default(), current: None };
    planner.plan(round, nothing, cost)
}

/// Returns the parallelism of the first long round, and of the round after each of the long rounds with these numbers of preemptions.
fn course(rule: Rule, preemptions: &[u64]) -> Vec<u32> {
    let mut planner = Planner::new(rule, job(), 1).unwrap();
    let mut widths = vec![plan(&mut planner, RoundKind::Long, &cost()).0];
    for count in preemptions {
        planner.observe(RoundKind::Long, *count, &cost());
        widths.push(plan(&mut planner, RoundKind::Long, &cost()).0);
    }
    widths
}

#[test]
fn preemptions_above_the_last_by_a_twentieth_double_and_four_rounds_without_halve() {
    assert_eq!(course(Rule::paper(), &[100, 105, 106, 111]), [1, 1, 1, 1, 1]);
    assert_eq!(course(Rule::paper(), &[100, 106, 112, 200]), [1, 1, 2, 4, 4], "a server holds 4");
    assert_eq!(
        course(Rule::paper(), &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
        [1, 1, 2, 2, 2, 2, 1, 1, 1, 1, 1]
    );
    assert_eq!(course(Rule::Fixed, &[100, 200, 400]), [1; 4]);
}

#[test]
fn kinds_of_rounds_have_their_own_parallelism_and_a_change_has_one_reason() {
    let mut planner = Planner::new(Rule::paper(), job(), 1).unwrap();
    for count in [1, 2] {
        planner.observe(RoundKind::Long, count, &cost());
    }
    assert_eq!(plan(&mut planner, RoundKind::Short, &cost()), (1, Reason::Round));
    assert_eq!(plan(&mut planner, RoundKind::Long, &cost()), (2, Reason::Preemptions));
    assert_eq!(plan(&mut planner, RoundKind::Long, &cost()), (2, Reason::Round));
    (0..4).for_each(|_| planner.observe(RoundKind::Long, 0, &cost()));
    assert_eq!(plan(&mut planner, RoundKind::Long, &cost()), (1, Reason::Idle));
}

#[test]
fn no_width_is_chosen_whose_caches_cannot_hold_a_longest_response() {
    let mut planner = Planner::new(Rule::paper(), job(), 2).unwrap();
    let small = Cost { capacity: 60, ..cost() };
    (0..4).for_each(|_| planner.observe(RoundKind::Long, 0, &small));
    assert_eq!(plan(&mut planner, RoundKind::Long, &small), (2, Reason::Round));
}

fn predicted(cost: Cost, launched: u32, length: u32, from: u32) -> (u32, Reason) {
    let mut lengths = Survival::default();
    lengths.observe_many(length, true, u64::from(launched));
    let load = RoundLoad {
        launched,
        completed: launched,
        prompts: launched,
        admitted: launched,
        prompt_tokens: 0,
        preemptions: 0,
    };
    let outlook =
        Outlook { last: Some(load), lengths: &lengths.curve(), current: Some(job().rollout(from)) };
    Planner::new(Rule::Predictive, job(), from).unwrap().plan(RoundKind::Full, outlook, &cost)
}

/// 4 responses of 50 tokens take 5 s + 50 x 0.01 s = 5.5 s on four instances, and 1.25 s + 50 x 4 x 0.01 s = 3.25 s on one instance of four
/// devices. 40 responses take 5 + 5 s against 1.25 + 20 s.
#[test]
fn the_predictive_rule_takes_the_shortest_round_with_the_change_charged() {
    let cost = Cost { response: 0.01, ..cost() };
    assert_eq!(predicted(cost, 4, 50, 1), (4, Reason::Predicted));
    assert_eq!(predicted(cost, 40, 50, 1), (1, Reason::Round));
    assert_eq!(predicted(cost, 40, 50, 4), (1, Reason::Predicted));
    assert_eq!(predicted(Cost { change: 30.0, ..cost }, 40, 50, 4), (4, Reason::Round));
}

/// Compares a prediction for caches that suffice with one for caches that hold only a part of the running responses, so that the others
/// wait.
#[test]
fn the_predictive_rule_sees_that_narrow_instances_cannot_hold_the_round() {
    let roomy = Cost { response: 0.001, ..cost() };
    assert_eq!(predicted(Cost { iteration: 0.0, ..roomy }, 40, 50, 1).0, 1);
    let wider = Cost { iteration: 0.001, response: 0.0, capacity: 100, ..cost() };
    assert_eq!(predicted(wider, 400, 50, 1).0, 4);
}

#[test]
fn groups_never_straddle_servers() {
    let six = Job { devices: 12, devices_per_server: 6, ..job() };
    assert_eq!(
        Planner::new(Rule::Fixed, six, 4).unwrap_err(),
        PlacementError::TensorParallel { tensor_parallel: 4, devices_per_server: 6, devices: 12 }
    );
    let mut planner = Planner::new(Rule::paper(), six, 2).unwrap();
    [1, 2].into_iter().for_each(|count| planner.observe(RoundKind::Long, count, &cost()));
    assert_eq!(plan(&mut planner, RoundKind::Long, &cost()).0, 2, "4 does not divide 6");
}
