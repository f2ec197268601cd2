//! The contract of a placement policy, checked on random runs.

use proptest::prelude::*;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::{FinishReason, Placement};

use super::Cost;
use crate::placement::planner::Rule;
use crate::placement::{
    Decision, Event, Job, PlacementPolicy, Planner, Reason, RoundFilter, StreamTrainer,
    StreamTrainerOptions, Trigger,
};
use crate::wire::decision::RoundKind;

/// A planned response: prompt, sample, length.
type Response = (u64, u32, u32);

#[derive(Clone, Debug)]
struct Case {
    job: Job,
    options: StreamTrainerOptions,
    rule: Rule,
    cost: Cost,
    /// For each round: its kind, prompts, samples, and the lengths to draw from.
    rounds: Vec<(RoundKind, u64, u32, Vec<u32>)>,
}

fn jobs() -> impl Strategy<Value = Job> {
    (0..4_u32, 0..3_u32, 1..40_u32).prop_flat_map(|(server, replica, servers)| {
        let per_server = 1 << server;
        let devices = per_server * servers;
        Just(Job {
            devices,
            devices_per_server: per_server,
            training_replica: (1 << replica).min(devices),
            response_length: 200,
        })
    })
}

fn triggers() -> impl Strategy<Value = Trigger> {
    prop_oneof![
        Just(Trigger::Never),
        (0.01..1.0).prop_map(|share| Trigger::Fixed { share }),
        (0.1..0.5, 0.01..0.3, 0.0..0.5).prop_map(|(from, every, more)| Trigger::Adaptive {
            from,
            to: from + more,
            every
        }),
        (0.1..0.9, 0.01..0.3).prop_map(|(from, every)| Trigger::Predicted { from, every }),
    ]
}

fn rules() -> impl Strategy<Value = Rule> {
    prop::sample::select(vec![Rule::Fixed, Rule::paper(), Rule::Predictive])
}

fn rounds() -> impl Strategy<Value = Vec<(RoundKind, u64, u32, Vec<u32>)>> {
    let kind = prop::sample::select(vec![RoundKind::Full, RoundKind::Short, RoundKind::Long]);
    let lengths = prop::collection::vec(1..=200_u32, 1..40);
    prop::collection::vec((kind, 1..12_u64, 1..6_u32, lengths), 1..6)
}

prop_compose! {
    fn cases()(
        job in jobs(),
        trigger in triggers(),
        rounds in rounds(),
        rule in rules(),
        in_all_rounds: bool,
        consolidate: bool,
        keep in 0.01..1.0,
        iteration in 0.001..0.1,
        response in prop::sample::select(vec![0.0, 0.001, 0.05]),
        training in 1.0..1e4,
        capacity in 200..5000_u64,
        change in 0.0..5.0,
    ) -> Case {
        Case {
            job,
            options: StreamTrainerOptions {
                rounds: if in_all_rounds { RoundFilter::All } else { RoundFilter::Long },
                trigger,
                keep,
                headroom: 0.95,
                consolidate,
            },
            rule,
            cost: Cost { iteration, response, training, capacity, change },
            rounds,
        }
    }
}

/// Returns the events of a round. In a short round the shortest four fifths of the responses end and the others are dropped; in other
/// rounds all end.
fn events(
    step: Step,
    (round, prompts, samples, lengths): &(RoundKind, u64, u32, Vec<u32>),
) -> Vec<(u32, Event)> {
    let ids = (0..*prompts).flat_map(|prompt| (0..*samples).map(move |sample| (prompt, sample)));
    let mut responses: Vec<Response> = ids
        .zip(lengths.iter().cycle())
        .map(|((prompt, sample), length)| (prompt, sample, *length))
        .collect();
    responses.sort_by_key(|(_, _, length)| *length);
    let launch = |prompt| Event::Launched {
        step,
        prompt: PromptId(prompt),
        samples: *samples,
        prompt_length: 7,
    };
    let kept = if *round == RoundKind::Short { responses.len() * 4 / 5 } else { responses.len() };
    let end = responses.get(kept.max(1) - 1).map_or(0, |(_, _, length)| *length);
    let mut events = vec![(0, Event::Policy { step }), (0, Event::Opened { step, round: *round })];
    events.extend((0..*prompts).map(|prompt| (0, launch(prompt))));
    let mut ended = vec![0; usize::try_from(*prompts).unwrap()];
    for (index, (prompt, sample, length)) in responses.into_iter().enumerate() {
        let id = SampleId { step, prompt: PromptId(prompt), sample };
        let finish_reason = if index < kept { FinishReason::Stop } else { FinishReason::Abort };
        let preemptions = u32::from(length % 17 == 0);
        if index == kept {
            events.push((end, Event::Closed { step }));
        }
        let tokens = length.min(end.max(1));
        events
            .push((tokens, Event::Response { id, tokens, resumed: 0, finish_reason, preemptions }));
        let of_prompt = &mut ended[usize::try_from(prompt).unwrap()];
        *of_prompt += u32::from(index < kept);
        if *of_prompt == *samples && index < kept {
            let prompt = PromptId(prompt);
            events.push((tokens, Event::Admitted { step, prompt, samples: *samples }));
        }
    }
    events.extend([(end, Event::Closed { step }), (end, Event::Drained { step })]);
    events
}

/// Delivers all events and returns each with its decisions. `each` may replace the policy in between.
fn run(
    case: &Case,
    mut each: impl FnMut(StreamTrainer<Cost>) -> StreamTrainer<Cost>,
) -> Vec<(Event, Vec<Decision>)> {
    let planner = Planner::new(case.rule, case.job, 1).unwrap();
    let mut policy = StreamTrainer::new(case.options, planner, case.cost).unwrap();
    let (mut start, mut history) = (0, Vec::new());
    for (step, round) in (0..).map(Step).zip(&case.rounds) {
        for (at, event) in events(step, round) {
            policy.on(Nanos((start + u64::from(at)) * 10_000_000), event.clone());
            let decisions = std::iter::from_fn(|| policy.poll()).collect();
            history.push((event, decisions));
            policy = each(policy);
        }
        start += 300;
    }
    history
}

/// Checks the placement of a round of the given kind, from its decisions up to the drain.
fn check_round(case: &Case, round: RoundKind, decisions: &[Decision]) {
    let job = case.job;
    assert!(decisions[0].training_devices == 0, "a round starts on all devices");
    assert_eq!(decisions[0].rollout, job.rollout(decisions[0].rollout.tensor_parallel));
    let downs = decisions.iter().filter(|decision| decision.reason == Reason::ScaleDown);
    let streams = case.options.allows_scale_down(round);
    assert!(downs.count() <= usize::from(streams));
    for pair in decisions.windows(2) {
        let [before, after] = [pair[0].rollout, pair[1].rollout];
        assert!(after.devices() <= before.devices(), "{before:?} {after:?}");
        match pair[1].reason {
            Reason::ScaleDown => {
                let min = f64::from(before.instances) * case.options.keep;
                assert!(f64::from(after.instances) >= min);
                assert_eq!(after.tensor_parallel, before.tensor_parallel);
                let one_more = Placement { instances: after.instances + 1, ..after };
                assert!(job.training_beside(one_more) < pair[1].training_devices, "idle devices");
                assert!(pair[1].training_devices > pair[0].training_devices);
            }
            Reason::Consolidate => {
                assert!(case.options.consolidate);
                assert!(after.tensor_parallel > before.tensor_parallel);
                assert!(pair[1].training_devices >= pair[0].training_devices);
                assert!(streams || pair[1].training_devices == 0);
            }
            reason => panic!("{reason} in a round"),
        }
    }
}

fn check_decision(job: Job, decision: &Decision) {
    let rollout = decision.rollout;
    assert!(rollout.devices() + decision.training_devices <= job.devices, "{decision}");
    assert!(job.allows(rollout.tensor_parallel), "{decision}");
    assert!(decision.training_devices.is_multiple_of(job.training_replica), "{decision}");
    let drained = decision.reason == Reason::Drained;
    assert_eq!(
        rollout.instances == 0,
        drained,
        "the rollout has devices until it is drained: {decision}"
    );
    assert!(!drained || decision.training_devices > 0, "the step ends: {decision}");
}

proptest! {
    #[test]
    fn devices_are_used_whole_and_once_and_each_step_ends(case in cases()) {
        let (mut kind, mut placed) = (RoundKind::Full, Vec::new());
        for (event, decisions) in run(&case, |policy| policy) {
            decisions.iter().for_each(|decision| check_decision(case.job, decision));
            if let Event::Opened { round, .. } = event {
                prop_assert_eq!(decisions.len(), 1);
                (kind, placed) = (round, Vec::new());
            }
            if let Event::Drained { .. } = event {
                prop_assert_eq!(decisions.len(), 1);
                prop_assert_eq!(decisions[0].reason, Reason::Drained);
                check_round(&case, kind, &placed);
            }
            placed.extend(decisions);
        }
    }

    #[test]
    fn a_policy_restored_after_every_event_decides_the_same(case in cases()) {
        let through_text = |policy: StreamTrainer<Cost>| {
            let restored = serde_json::from_str(&serde_json::to_string(&policy).unwrap());
            let restored: StreamTrainer<Cost> = restored.unwrap();
            restored
        };
        prop_assert_eq!(run(&case, through_text), run(&case, |policy| policy));
    }
}
