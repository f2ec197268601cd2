//! Races in lockstep: the winners and their tokens do not depend on the speed of the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::step::{PolicyVersion, SampleId, Step, Tick};
use rollpacker_stages::rollout::lengths::Lengths;
use rollpacker_stages::rollout::lockstep::{End, Lockstep};
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::rollout::{
    Completion, FinishReason, Partial, Placement, Request, RolloutEngine,
};
use rollpacker_torch::model::WeightStore;
use rollpacker_torch::rollout::TorchEngineConfig;

use super::deterministic::{Bits, bits, prompts};
use super::driver::{BUILT_IN, Driver, GatedClock, config, decoder, deterministic, id, scaled};

/// A clock that delays its readers by varying times.
struct Jitter {
    readings: AtomicU64,
    seed: u64,
}

impl Clock for Jitter {
    fn now(&self) -> Nanos {
        let reading = self.readings.fetch_add(1, Ordering::Relaxed);
        let mixed = (reading ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        // Only a few readings take long.
        let turns = if mixed.is_multiple_of(64) { mixed % 60 } else { 0 };
        (0..turns).for_each(|_| std::thread::yield_now());
        Nanos(reading)
    }
}

/// A way to run an engine, which must not affect the result.
#[derive(Clone, Copy, Debug)]
struct Setting {
    instances: u32,
    max_running: usize,
    kv_cache_tokens: usize,
    jitter: u64,
    /// `true` to release all instances but one at the start of every round and to place them again.
    moves: bool,
}

const PLAIN: Setting =
    Setting { instances: 1, max_running: 64, kv_cache_tokens: 10_000, jitter: 0, moves: false };

/// A race in rounds. Each round requests a response for every prompt and sample. A number of responses that end first win; the others are
/// aborted. In the next round, the aborted responses among the first two samples of a prompt continue, and all other samples start anew.
struct Game {
    driver: Driver,
    setting: Setting,
    store: WeightStore,
    ends: BTreeSet<End>,
    /// The tick up to which every end was reported.
    floor: Tick,
    now: Tick,
    kept: BTreeMap<(u64, u32), Completion>,
}

type Round = (Tick, Vec<SampleId>, BTreeMap<SampleId, Bits>);

impl Game {
    fn start(setting: Setting, base: &TorchEngineConfig) -> Self {
        let Setting { instances, max_running, kv_cache_tokens, jitter, .. } = setting;
        let config = TorchEngineConfig { instances, max_running, kv_cache_tokens, ..base.clone() };
        let clock = Arc::new(Jitter { readings: AtomicU64::new(0), seed: jitter });
        let store = WeightStore::new(2);
        let mut driver = Driver::start_by(clock, BUILT_IN, config, store.clone());
        assert!(driver.engine.lockstep().is_some());
        let (floor, now) = (Tick(0), Tick(0));
        let (ends, kept) = (BTreeSet::new(), BTreeMap::new());
        Self { driver, setting, store, ends, floor, now, kept }
    }

    fn lockstep(&mut self) -> &mut dyn Lockstep {
        self.driver.engine.lockstep().unwrap()
    }

    fn listen(&mut self) {
        let reached = self.lockstep().reached();
        for end in &reached.ended {
            assert!(
                end.tick > self.floor,
                "{end:?} was missing although all ends were reported up to {:?}",
                self.floor
            );
        }
        assert!(reached.floor >= self.floor, "floors rise");
        self.floor = reached.floor;
        self.ends.extend(reached.ended);
    }

    fn request(&mut self, step: u64) -> BTreeSet<SampleId> {
        let mut requested = BTreeSet::new();
        for (prompt, prompt_ids) in (0..).zip(prompts().into_iter().take(6)) {
            let resumed = (0..4).filter_map(|sample| {
                let kept = self.kept.remove(&(prompt, sample))?;
                Some(Partial {
                    sample,
                    launched: Step(step - 1),
                    response_length: kept.response_length,
                    response_ids: kept.response_ids,
                    logprobs: kept.logprobs,
                    token_versions: kept.token_versions,
                })
            });
            let (resumed, prompt_ids) = (resumed.collect(), prompt_ids.into());
            let prompt = id(prompt, 0).prompt;
            requested.extend((0..4).map(|sample| SampleId { step: Step(step), prompt, sample }));
            let request = Request { step: Step(step), prompt, samples: 0..4, prompt_ids, resumed };
            self.driver.engine.generate(request);
        }
        requested
    }

    /// Runs a round with `wins` winners. Returns the tick of the decision, the winners, and the reported responses.
    fn round(&mut self, step: u64, wins: usize) -> Round {
        let requested = self.request(step);
        self.floor = self.now;
        if self.setting.moves {
            self.place(1);
            self.place(self.setting.instances);
        }
        loop {
            self.listen();
            let ends: Vec<End> =
                self.ends.iter().filter(|end| end.tick <= self.floor).copied().collect();
            if ends.len() >= wins {
                return self.decide(&requested, &ends[..wins]);
            }
            self.driver.wait();
        }
    }

    fn decide(&mut self, requested: &BTreeSet<SampleId>, first: &[End]) -> Round {
        let tick = first.last().map_or(self.now, |end| end.tick);
        let winners: Vec<SampleId> = first.iter().map(|end| end.id).collect();
        for id in requested.iter().filter(|id| !winners.contains(id)) {
            self.lockstep().abort_at(*id, tick);
        }
        self.lockstep().advance(tick);
        let all = self.driver.collect(requested.len());
        for (id, completion) in &all {
            assert_eq!(completion.finish_reason.is_whole(), winners.contains(id), "{id}");
            assert_eq!(completion.text, format!("{:?}", completion.response_ids));
            // A response that ends at the deciding tick is complete and cannot continue.
            let ended = self.ends.iter().any(|end| end.id == *id && end.tick <= tick);
            if !ended && id.sample < 2 {
                self.kept.insert((id.prompt.0, id.sample), completion.clone());
            }
        }
        (self.ends, self.now) = (BTreeSet::new(), tick);
        let policy = PolicyVersion(self.now.0);
        let weights = scaled(&decoder(BUILT_IN), 1.0 + (self.now.0 % 7) as f64 / 70.0);
        self.driver.engine.load(&self.store.publish(policy, weights));
        (tick, winners, all.iter().map(|(id, completion)| (*id, bits(completion))).collect())
    }

    fn place(&mut self, instances: u32) {
        self.driver.engine.place(Placement { instances, tensor_parallel: 1 });
    }
}

fn play(setting: Setting, base: &TorchEngineConfig, wins: usize) -> Vec<Round> {
    let mut game = Game::start(setting, base);
    (0..3).map(|step| game.round(step, wins)).collect()
}

fn base(seed: u64) -> TorchEngineConfig {
    let sampling = Sampling { min_new_tokens: 2, ..Sampling::unrestricted(60) };
    TorchEngineConfig { seed, ..deterministic(config(sampling)) }
}

#[test]
fn winners_and_tokens_do_not_depend_on_how_the_engine_runs() {
    for seed in 0..4 {
        let wins = 3 + 5 * seed as usize;
        let expected = play(PLAIN, &base(seed), wins);
        assert!(expected.iter().all(|(_, winners, all)| (winners.len(), all.len()) == (wins, 24)));
        let partly = |round: &Round| {
            round.2.values().any(|bits| !bits.0.is_empty() && bits.2 == FinishReason::Abort)
        };
        assert!(expected.iter().all(partly), "some are cut");
        for setting in [
            Setting { instances: 2, jitter: seed + 1, ..PLAIN },
            Setting { instances: 3, max_running: 3, jitter: seed + 2, ..PLAIN },
            Setting { max_running: 2, jitter: seed + 3, ..PLAIN },
            Setting { kv_cache_tokens: 260, jitter: seed + 4, ..PLAIN },
            Setting { instances: 3, max_running: 4, moves: true, jitter: seed + 5, ..PLAIN },
        ] {
            assert_eq!(play(setting, &base(seed), wins), expected, "seed {seed}: {setting:?}");
        }
    }
}

#[test]
fn replayed_lengths_race_by_id() {
    let replay = Some(Lengths::new(vec![(2..55).collect(), (5..50).collect()]).unwrap());
    let base = TorchEngineConfig { replay, ..base(9) };
    let expected = play(PLAIN, &base, 9);
    let setting = Setting { instances: 2, max_running: 5, jitter: 3, ..PLAIN };
    assert_eq!(play(setting, &base, 9), expected);
}

#[test]
fn an_engine_that_is_not_deterministic_cannot_race() {
    let mut driver = Driver::new(config(Sampling::unrestricted(8)));
    assert!(driver.engine.lockstep().is_none());
}

#[test]
fn a_response_that_waits_for_a_slot_stays_at_its_launch_tick() {
    let sampling = Sampling { min_new_tokens: 30, ..Sampling::unrestricted(30) };
    let config = TorchEngineConfig { max_running: 1, ..deterministic(config(sampling)) };
    let (clock, closed) = GatedClock::for_readings(40);
    let mut driver = Driver::start_by(clock, "qwen2_tied", config, WeightStore::new(1));
    driver.engine.lockstep().unwrap().advance(Tick(100));
    driver.engine.generate(super::driver::request(0, 0..3, &[1, 2, 3]));
    while driver.engine.statistics()[0].decode_iterations < 10 {
        let reached = driver.engine.lockstep().unwrap().reached();
        assert_eq!((reached.ended, reached.floor), (vec![], Tick(100)));
    }
    driver.engine.lockstep().unwrap().abort_at(id(0, 1), Tick(100));
    driver.engine.lockstep().unwrap().abort_at(id(0, 2), Tick(100));
    drop(closed);
    let cut = driver.collect(2);
    assert!(cut.values().all(|completion| completion.response_ids.is_empty()));
    let end = loop {
        let reached = driver.engine.lockstep().unwrap().reached();
        match reached.ended.first() {
            Some(end) => break *end,
            None => driver.wait(),
        }
    };
    let expected =
        End { tick: Tick(130), id: id(0, 0), tokens: 30, finish_reason: FinishReason::Length };
    assert_eq!(end, expected);
    while driver.engine.lockstep().unwrap().reached().floor < Tick::MAX {
        driver.wait();
    }
    driver.engine.lockstep().unwrap().advance(Tick(129));
    assert_eq!(driver.engine.poll(), None);
    driver.engine.lockstep().unwrap().advance(Tick(130));
    assert_eq!(driver.collect(1)[&id(0, 0)].response_length, 30);
}
