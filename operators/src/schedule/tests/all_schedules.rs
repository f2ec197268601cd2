//! The laws of all schedules on random runs: the common contract, and the additional rules of each schedule.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use rollpacker_dataflow::step::PromptId;

use super::contract::{Contract, each_round};
use super::laws::{decisions, deliver_in_any_order};
use super::log::{admitted, ended, launches};
use super::timeline::play;
use crate::schedule::testkit::{Entry, World, check_schedule};
use crate::schedule::{
    Builtin, Checked, Decision, Dynamic, Event, FrontierGroup, OnExhausted, Partial, Reason,
    Schedule, Sorted, Synchronous, TailBatching, ZeroVarianceFilter, dynamic, frontier_group,
    longest_first, partial, sorted, sync, tail_batching,
};

/// The schedule of a random run, with its configuration.
#[derive(Clone, Debug)]
enum Kind {
    Dynamic(dynamic::Config),
    FrontierGroup(frontier_group::Config),
    LongestFirst(longest_first::Config),
    Partial(partial::Config),
    Sorted(sorted::Config),
    Sync(sync::Config),
    TailBatching(tail_batching::Config),
}

#[derive(Clone, Debug)]
struct Case {
    world: World,
    kind: Kind,
    total_steps: Option<u64>,
    prompts: usize,
    responses: u32,
}

impl Case {
    fn schedule(&self) -> Builtin {
        match self.kind.clone() {
            Kind::Dynamic(config) => Dynamic::new(config).unwrap().into(),
            Kind::FrontierGroup(config) => FrontierGroup::new(config).unwrap().into(),
            Kind::LongestFirst(config) => Synchronous::longest_first(config).unwrap().into(),
            Kind::Partial(config) => Partial::new(config).unwrap().into(),
            Kind::Sorted(config) => Sorted::new(config).unwrap().into(),
            Kind::Sync(config) => Synchronous::new(config).unwrap().into(),
            Kind::TailBatching(config) => TailBatching::new(config).unwrap().into(),
        }
    }

    fn run(&self) -> Vec<Entry> {
        self.world.run(self.schedule()).unwrap()
    }

    fn contract(&self) -> Contract {
        let plain = Contract {
            prompts: self.world.prompts.clone(),
            total_steps: self.total_steps,
            places: self.prompts,
            responses: self.responses,
            samples: self.responses,
            max: self.prompts,
            slots: usize::MAX,
            filters: false,
            fails: false,
            pauses: false,
            max_rounds: u64::MAX,
        };
        match &self.kind {
            Kind::Dynamic(config) => Contract {
                max: config.max_generated_batches * config.prompts,
                filters: true,
                fails: config.on_exhausted == OnExhausted::Fail,
                ..plain
            },
            Kind::Sync(_) => plain,
            Kind::FrontierGroup(config) => Contract { slots: config.slots, ..plain },
            Kind::LongestFirst(config) => Contract { slots: config.slots, ..plain },
            Kind::Partial(config) => Contract {
                max: (config.oversubscription * config.prompts as f64).ceil() as usize,
                pauses: true,
                max_rounds: config.max_versions,
                ..plain
            },
            Kind::Sorted(config) => {
                let loads = 1 + usize::from(config.carry_over);
                Contract {
                    max: loads * config.group_size * config.prompts,
                    slots: config.slots,
                    pauses: config.mode == sorted::Mode::Partial,
                    max_rounds: (loads * config.group_size) as u64,
                    ..plain
                }
            }
            Kind::TailBatching(config) => {
                let schedule = super::super::TailBatching::new(config.clone()).expect("valid");
                let (launched, samples) =
                    schedule.round_size().expect("a schedule with speculation");
                let filter = config.filter_zero_variance;
                Contract {
                    samples,
                    max: filter.map_or(launched, |it| it.max_generated_batches * config.prompts),
                    filters: filter.is_some(),
                    pauses: config.keep_partial,
                    fails: filter.is_some_and(|it| it.on_exhausted == OnExhausted::Fail),
                    max_rounds: config.max_queue_age.map_or(u64::MAX, |age| age + 2),
                    ..plain
                }
            }
        }
    }
}

prop_compose! {
    fn worlds()(
        epochs in prop::collection::vec(0..22_usize, 1..3),
        seed: u64,
        staleness in 0..3_u64,
        read_ahead in 0..4_usize,
        lossy: bool,
    ) -> World {
        let domain: Arc<str> = "math".into();
        let epochs: Vec<_> = epochs.into_iter().map(|count| vec![Arc::clone(&domain); count]).collect();
        World { staleness, read_ahead, lossy, ..World::new(&epochs, seed) }
    }
}

/// The numbers by which `cases` selects a schedule; 5 is tail batching with a filter, and 6 without.
const ALL: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

prop_compose! {
    fn cases(kinds: &'static [u32])(
        world in worlds(),
        which in prop::sample::select(kinds),
        prompts in 1..6_usize,
        responses in 1..4_u32,
        slots in 1..20_usize,
        group_size in 1..4_usize,
        factor in 0..9_u64,
        spare in 0..3_u64,
        flags in any::<[bool; 2]>(),
        total_steps in prop::option::of(1..9_u64),
    ) -> Case {
        let on_exhausted = if flags[0] { OnExhausted::Fail } else { OnExhausted::SmallerStep };
        let eta = 1.0 + factor as f64 / 4.0;
        let launched = (eta * prompts as f64).ceil() as usize;
        let batches = launched.div_ceil(prompts);
        let varied = responses.max(2);
        let max_generated_batches = batches + usize::try_from(spare).unwrap();
        let kind = match which {
            0 => Kind::Dynamic(dynamic::Config {
                prompts,
                responses: varied,
                gen_prompts: flags[1].then_some(launched),
                max_generated_batches,
                on_exhausted,
                total_steps,
            }),
            1 => {
                let order = if flags[0] { frontier_group::Order::GroupMajor } else { frontier_group::Order::SampleMajor };
                Kind::FrontierGroup(frontier_group::Config { prompts, responses, slots, order, total_steps })
            }
            2 => Kind::Partial(partial::Config {
                prompts,
                responses,
                oversubscription: eta,
                max_versions: batches as u64 + spare,
                total_steps,
            }),
            3 => {
                let is_partial = flags[0];
                Kind::Sorted(sorted::Config {
                    prompts,
                    responses,
                    group_size,
                    slots,
                    harvest: is_partial.then(|| (prompts + usize::try_from(factor).unwrap()).min(group_size * prompts)),
                    mode: if is_partial { sorted::Mode::Partial } else { sorted::Mode::OnPolicy },
                    carry_over: is_partial && flags[1],
                    total_steps,
                })
            }
            4 => Kind::Sync(sync::Config { prompts, responses, total_steps }),
            7 => Kind::LongestFirst(longest_first::Config { prompts, responses, slots, total_steps }),
            _ => Kind::TailBatching(tail_batching::Config {
                prompts,
                responses: varied,
                eta_prompts: eta,
                eta_responses: 1.0 + spare as f64 / 2.0,
                quotas: BTreeMap::new(),
                max_queue_age: flags[1].then_some(factor),
                total_steps,
                filter_zero_variance: (which == 5).then_some(ZeroVarianceFilter { max_generated_batches, on_exhausted }),
                keep_partial: flags[0],
                selection: tail_batching::Selection::Fastest,
                max_weight: tail_batching::MAX_WEIGHT,
            }),
        };
        let responses = match which {
            0 | 5 | 6 => varied,
            _ => responses,
        };
        Case { world, kind, total_steps, prompts, responses }
    }
}

/// Checks that each launched request belongs to the group that is next in the order of `config`.
fn frontier_first(config: &frontier_group::Config, log: &[Entry]) {
    for round in each_round(log) {
        let mut planned = admitted(round);
        planned.sort();
        for (index, entry) in round.iter().enumerate() {
            let Entry::Decision(decision @ Decision::Launch { prompt, samples, reason }) = entry
            else {
                continue;
            };
            let past = &round[..index];
            let rank = |it: &PromptId| match config.order {
                frontier_group::Order::GroupMajor => config.responses - ended_of(past, *it),
                frontier_group::Order::SampleMajor => fresh(past, *it),
            };
            let waiting = planned.iter().filter(|it| fresh(past, **it) < config.responses);
            let best = waiting.min_by_key(|it| (rank(it), **it));
            assert!(*reason == Reason::Lost || best == Some(prompt), "{decision}");
            assert!(*reason == Reason::Lost || samples.start == fresh(past, *prompt), "{decision}");
        }
    }
}

/// Checks that each launched request is a probe if one waits. Otherwise, its group has no ended response or the longest estimate.
fn longest_first(config: &longest_first::Config, log: &[Entry]) {
    for round in each_round(log) {
        let planned = admitted(round);
        for (index, entry) in round.iter().enumerate() {
            let Entry::Decision(decision @ Decision::Launch { prompt, samples, reason }) = entry
            else {
                continue;
            };
            if *reason == Reason::Lost {
                continue;
            }
            let past = &round[..index];
            let rank = |it: &PromptId| match (fresh(past, *it), longest_of(past, *it)) {
                (0, _) => (0, 0),
                (_, None) => (1, 0),
                (_, Some(tokens)) => (2, -i64::from(tokens)),
            };
            let waiting = planned.iter().filter(|it| fresh(past, **it) < config.responses);
            let best = waiting.min_by_key(|it| (rank(it), **it));
            assert_eq!(best, Some(prompt), "{decision}");
            assert_eq!(samples.len(), 1, "{decision}");
        }
    }
}

/// Returns the tokens of the longest whole response of `prompt` so far.
fn longest_of(round: &[Entry], prompt: PromptId) -> Option<u32> {
    let tokens = |entry: &Entry| match entry {
        Entry::Event(Event::Response { id, tokens, finish_reason })
            if id.prompt == prompt && finish_reason.is_whole() =>
        {
            Some(*tokens)
        }
        _ => None,
    };
    round.iter().filter_map(tokens).max()
}

/// Returns the number of launched responses to `prompt`, without replacements of lost responses.
fn fresh(round: &[Entry], prompt: PromptId) -> u32 {
    let samples = |entry: &Entry| match entry {
        Entry::Decision(Decision::Launch { prompt: it, samples, reason })
            if *it == prompt && *reason != Reason::Lost =>
        {
            Some(samples.end - samples.start)
        }
        _ => None,
    };
    round.iter().filter_map(samples).sum()
}

fn ended_of(round: &[Entry], prompt: PromptId) -> u32 {
    u32::try_from(ended(round, prompt).len()).unwrap()
}

/// Checks that loads are consumed one after the other, and that the shortest groups of each harvest are admitted.
fn loads_in_order(config: &sorted::Config, case: &Case, log: &[Entry]) {
    let place = |prompt: PromptId| {
        let offer = &case.world.prompts[usize::try_from(prompt.0).unwrap()];
        let before = case.world.prompts.iter().filter(|it| it.epoch < offer.epoch).count();
        let load =
            (usize::try_from(prompt.0).unwrap() - before) / (config.group_size * config.prompts);
        (offer.epoch, load)
    };
    let mut left = admitted(log);
    for round in each_round(log) {
        let current = place(left[0]);
        let is_current = |prompt: &PromptId| place(*prompt) == current;
        let of_load = left.iter().filter(|it| is_current(it)).count();
        for (prompt, _) in launches(round) {
            let (epoch, load) = place(prompt);
            let next = config.carry_over && (epoch, load) == (current.0, current.1 + 1);
            assert!(is_current(&prompt) || next, "{prompt} is of a later load");
        }
        let trained = admitted(round);
        assert!(trained.iter().all(is_current), "a later load was trained on");
        let harvest = config.harvest.unwrap_or(config.prompts);
        let (complete, tokens) = harvested(config, round, &is_current);
        assert_eq!(complete.len(), harvest.min(of_load), "groups at the harvest");
        let longest = trained.iter().map(|prompt| tokens[prompt]).max();
        let shorter = complete.iter().filter(|it| !trained.contains(it)).map(|it| tokens[it]);
        assert!(shorter.min() >= longest || trained.len() == complete.len(), "not the shortest");
        left.retain(|prompt| !trained.contains(prompt));
    }
}

/// Returns the groups of the current load that were complete when the round admitted its last group, and the number of tokens by prompt.
fn harvested(
    config: &sorted::Config,
    round: &[Entry],
    is_current: &impl Fn(&PromptId) -> bool,
) -> (Vec<PromptId>, BTreeMap<PromptId, u32>) {
    let is_admit = |entry: &Entry| matches!(entry, Entry::Decision(Decision::Admit { .. }));
    let until = &round[..round.iter().rposition(is_admit).unwrap()];
    let mut tokens = BTreeMap::new();
    for entry in until {
        if let Entry::Event(Event::Response { id, tokens: count, finish_reason }) = entry
            && matches!(&round[0], Entry::Decision(Decision::Open { step, .. }) if *step == id.step)
            && finish_reason.is_whole()
        {
            *tokens.entry(id.prompt).or_insert(0) += count;
        }
    }
    let mut complete: Vec<PromptId> = launches(until).into_iter().map(|(it, _)| it).collect();
    complete.dedup();
    complete.sort();
    complete.dedup();
    complete.retain(|it| is_current(it) && ended_of(until, *it) == config.responses);
    (complete, tokens)
}

/// Property tests. Each of them has failed on deliberately broken code.
mod law {
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn the_contract_holds(case in cases(&ALL)) {
            let log = case.run();
            case.contract().check(&log);
            match &case.kind {
                Kind::FrontierGroup(config) => frontier_first(config, &log),
                Kind::LongestFirst(config) => longest_first(config, &log),
                Kind::Sorted(config) => loads_in_order(config, &case, &log),
                Kind::Partial(_) | Kind::Dynamic(_) | Kind::Sync(_) | Kind::TailBatching(_) => {}
            }
        }

        /// One-step off-policy training and bounded asynchrony: with staleness `k`, at most `k` rounds before a step are not closed when
        /// its policy is published. One round is open at a time, so a trained token is at most `k` updates older than the weights that it
        /// trains. In `partial` rollouts it is at most `max_versions - 1` updates older still.
        #[test]
        fn bounded_asynchrony_keeps_the_contract(mut case in cases(&[2, 4, 5, 6]), staleness in 1..3_u64) {
            case.world.staleness = staleness;
            let log = case.run();
            case.contract().check(&log);
            for (index, entry) in log.iter().enumerate() {
                if let Entry::Event(Event::Policy { step }) = entry {
                    let closed = |entry: &&Entry| matches!(entry, Entry::Decision(Decision::Close { .. }));
                    let closed = log[..index].iter().filter(closed).count() as u64;
                    prop_assert!(step.0 <= closed + staleness, "the sampling policy of {} is too old", step);
                }
            }
        }

        /// `check_schedule` fails only for runs that a filter ends with an error.
        #[test]
        fn the_testkit_passes(case in cases(&ALL)) {
            let result = check_schedule(|| case.schedule(), &case.world);
            let fails = case.contract().fails && decisions(case.run()).iter().any(|it| matches!(it, Decision::Fail { .. }));
            prop_assert_eq!(result.is_err(), fails, "{:?}", result);
        }

        /// `contract` derives the maximum from the options. A filter may launch more prompts, to replace rejected ones.
        #[test]
        fn the_stated_size_of_a_round_is_the_maximum(case in cases(&ALL)) {
            let (contract, size) = (case.contract(), case.schedule().round_size());
            let (prompts, samples) = size.unwrap_or((case.prompts, case.responses));
            prop_assert_eq!(samples, contract.samples);
            prop_assert!(prompts <= contract.max && (contract.filters || prompts == contract.max));
        }

        /// Events that break the contract do not cause a panic.
        #[test]
        fn any_order_of_events_causes_no_panic(case in cases(&ALL), seed: u64) {
            deliver_in_any_order(case.run(), case.schedule(), seed);
        }
    }
}

/// Returns schedules of the largest numbers, which the prompts of a run never reach.
fn unbounded() -> Vec<Builtin> {
    let (prompts, responses, total_steps) = (usize::MAX, 1, Some(u64::MAX));
    let partial = partial::Config {
        prompts,
        responses,
        oversubscription: 1.0,
        max_versions: u64::MAX,
        total_steps,
    };
    let sorted = |prompts, carry_over| sorted::Config {
        prompts,
        responses,
        group_size: prompts,
        slots: usize::MAX,
        harvest: None,
        mode: sorted::Mode::Partial,
        carry_over,
        total_steps: None,
    };
    let tail_batching = tail_batching::Config {
        eta_prompts: 1000.0,
        max_queue_age: Some(u64::MAX),
        quotas: [("math".into(), usize::MAX / 2), ("code".into(), usize::MAX / 2 + 1)].into(),
        total_steps,
        ..tail_batching::Config::new(prompts, responses)
    };
    let dynamic = dynamic::Config {
        prompts,
        responses: 2,
        gen_prompts: None,
        max_generated_batches: usize::MAX,
        on_exhausted: OnExhausted::SmallerStep,
        total_steps,
    };
    vec![
        Partial::new(partial).unwrap().into(),
        Sorted::new(sorted(usize::MAX, true)).unwrap().into(),
        Sorted::new(sorted(1 << 32, true)).unwrap().into(),
        TailBatching::new(tail_batching).unwrap().into(),
        Dynamic::new(dynamic).unwrap().into(),
        Synchronous::new(sync::Config { prompts, responses, total_steps }).unwrap().into(),
    ]
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    let world = World::new(&[vec!["math".into(), "code".into(), "math".into()]], 1);
    for (index, schedule) in unbounded().into_iter().enumerate() {
        assert!(schedule.round_size().is_none_or(|(prompts, _)| prompts > 0));
        let checked = check_schedule(|| unbounded().swap_remove(index), &world);
        assert!(checked.is_ok(), "{index}: {checked:?}");
    }
    let quotas = [("math".into(), usize::MAX), ("code".into(), usize::MAX)].into();
    let config = tail_batching::Config { quotas, ..tail_batching::Config::new(4, 1) };
    TailBatching::new(config).expect_err("the quotas do not sum to the prompts");
}

/// Returns schedules that launch 12 prompts with one response each and admit the first 4 of them.
fn deferring(total_steps: Option<u64>) -> [Builtin; 3] {
    let (prompts, responses, oversubscription, max_versions) = (4, 1, 3.0, 3);
    let partial =
        partial::Config { prompts, responses, oversubscription, max_versions, total_steps };
    let sorted = sorted::Config {
        prompts,
        responses,
        group_size: 3,
        slots: 100,
        harvest: None,
        mode: sorted::Mode::Partial,
        carry_over: false,
        total_steps,
    };
    let tail_batching = tail_batching::Config {
        eta_prompts: 3.0,
        eta_responses: 1.0,
        keep_partial: true,
        total_steps,
        ..tail_batching::Config::new(prompts, responses)
    };
    [
        Partial::new(partial).unwrap().into(),
        Sorted::new(sorted).unwrap().into(),
        TailBatching::new(tail_batching).unwrap().into(),
    ]
}

#[test]
fn a_run_resumed_with_fewer_steps_rejects_the_prompts_without_a_round() {
    let first_round = "prompts 0..12
         policy 0
         stop @0 0..4:0
         pause @0 4..12:0";
    let rest = "policy 1
         stop @1 4..8:0
         pause @1 8..12:0
         policy 2
         stop @2 8..12:0
         end";
    let rejected = "  reject p8 p9 p10 p11 (run end)\n  close 1 (queue 0, age 0)\n";
    for (total_steps, rejects) in [(1, false), (2, true), (3, false)] {
        let resumed = deferring(Some(total_steps));
        for (mut first, mut resumed) in deferring(None).into_iter().zip(resumed) {
            play(&mut first, first_round);
            resumed.restore(&first.save().expect("a state")).expect("its state");
            let held = (4..12).map(|prompt| (PromptId(prompt), true));
            let log = play(&mut Checked::with_held(Box::new(resumed), held), rest);
            assert!(log.contains("  finish\n") && !log.contains("fail"), "{total_steps}: {log}");
            assert_eq!(log.contains(rejected), rejects, "{total_steps}: {log}");
            assert_eq!(log.contains("reject"), rejects, "{total_steps}: {log}");
            assert_eq!(log.contains("close 2"), total_steps == 3, "{total_steps}: {log}");
        }
    }
}
