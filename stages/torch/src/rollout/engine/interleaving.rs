//! Tests of the engine whose instances all run on one thread. A random number generator decides whether the caller or an instance runs
//! next, so that an instance may be behind by any number of commands.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rollpacker_dataflow::clock::WallClock;
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_model::{Family, ModelConfig, Rope};
use rollpacker_stages::rollout::Completion;
use rollpacker_stages::rollout::lockstep::End;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::train::config::Precision;
use tch::Device;

use super::*;
use crate::model::Weights;
use crate::model::inference::InferenceDecoder;
use crate::rollout::instance::{Instance, RunResult};
use crate::rollout::passes::Passes;

const ROUNDS: u64 = 6;
/// Number of interleavings to try.
const SEEDS: u64 = 60;
/// Number of turns after which a game is considered to hang.
const TURNS: usize = 20_000;

fn decoder() -> Decoder {
    let config = ModelConfig {
        family: Family::Qwen3,
        vocab_size: 40,
        hidden_size: 32,
        intermediate_size: 64,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        rms_norm_eps: 1e-6,
        rope: Rope::Default { theta: 10_000.0 },
        tie_word_embeddings: true,
        attention_bias: false,
        max_position_embeddings: 64,
        initializer_range: 0.2,
        // One token in four ends a response, so that lengths differ.
        eos_token_ids: (30..40).collect(),
        bos_token_id: None,
        pad_token_id: None,
    };
    Decoder::init(config, 3, Device::Cpu).unwrap()
}

fn packed() -> InferenceDecoder {
    InferenceDecoder::new(decoder(), Precision::Float32).unwrap()
}

/// Returns the weights of a version, which differ between versions.
fn weights(version: u64) -> Weights {
    let factor = 1.0 + 0.05 * version as f64;
    let decoder = decoder();
    let scaled = decoder.parameters().iter().map(|(name, tensor)| (name.clone(), tensor * factor));
    Weights::new(scaled.collect()).unwrap()
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

/// The result of a round: the responses that ended first, and the report of each response.
type Round = (Vec<SampleId>, BTreeMap<SampleId, (Vec<i32>, FinishReason)>);

/// A caller that requests a few responses, takes the first that end, aborts the others, and continues with the next policy.
struct Game {
    engine: TorchEngine,
    instances: Vec<Instance>,
    store: WeightStore,
    woken: Arc<AtomicBool>,
    /// `true` for instances that have had no work since the last action of the caller.
    idle: Vec<bool>,
    round: u64,
    /// Responses that have not been reported.
    requested: BTreeSet<SampleId>,
    /// Number of ended responses after which the round is decided, and the others are aborted.
    wins: usize,
    ends: BTreeSet<End>,
    /// The tick up to which all ends have been received.
    floor: Tick,
    now: Tick,
    decided: bool,
    rounds: Vec<Round>,
}

impl Game {
    fn new(instances: u32, deterministic: bool) -> Self {
        let sampling = Sampling { min_new_tokens: 1, ..Sampling::unrestricted(12) };
        let config = TorchEngineConfig {
            instances,
            threads_per_instance: 1,
            max_running: 2,
            kv_cache_tokens: 64,
            dtype: Precision::Float32,
            sampling,
            seed: 5,
            replay: None,
            deterministic,
        };
        let (sender, received) = channel();
        let shared = InstanceContext {
            passes: deterministic.then(|| passes(&config)),
            config,
            detokenize: Arc::new(|ids: &[i32]| format!("{ids:?}")),
            clock: Arc::new(WallClock::start()),
            reports: ReportSender::new(sender),
            busy: Arc::default(),
        };
        let store = WeightStore::new(2);
        let mut engine = TorchEngine::without_instances(shared, store.clone(), received, 64);
        let mut unthreaded = Vec::new();
        for number in 0..instances {
            let (handle, instance) =
                engine.shared.instance_with_handle(number, packed(), 64).unwrap();
            engine.instances.push(handle);
            unthreaded.push(instance);
        }
        let woken = Arc::new(AtomicBool::new(true));
        let wakes = Arc::clone(&woken);
        engine.wake_by(Arc::new(move || wakes.store(true, Ordering::Relaxed)));
        if deterministic {
            assert!(engine.lockstep().is_some());
        }
        Self {
            engine,
            idle: vec![true; unthreaded.len()],
            instances: unthreaded,
            store,
            woken,
            round: 0,
            requested: BTreeSet::new(),
            wins: 0,
            ends: BTreeSet::new(),
            floor: Tick(0),
            now: Tick(0),
            decided: true,
            rounds: Vec::new(),
        }
    }

    /// Plays all rounds; `seed` determines the interleaving.
    fn play(mut self, seed: u64) -> Vec<Round> {
        let _no_grad = tch::no_grad_guard();
        let (mut dice, mut lazy) = (Dice(seed), 0);
        self.request();
        for _ in 0..TURNS {
            if self.round == ROUNDS {
                return self.rounds;
            }
            // From time to time one party pauses unless all others wait for it.
            if dice.roll(60) == 0 {
                lazy = dice.roll(self.instances.len() + 1);
            }
            let caller = self.instances.len();
            let is_ready = |at: usize| {
                if at == caller { self.woken.load(Ordering::Relaxed) } else { !self.idle[at] }
            };
            let ready: Vec<usize> = (0..=caller).filter(|at| is_ready(*at)).collect();
            let others: Vec<usize> = ready.iter().copied().filter(|at| *at != lazy).collect();
            let chosen = if others.is_empty() { &ready } else { &others };
            assert!(!chosen.is_empty(), "seed {seed}: round {} hangs", self.round);
            match chosen[dice.roll(chosen.len())] {
                at if at == caller => self.listen(),
                at => {
                    self.idle[at] = self.instances[at].run_once(false).unwrap() == RunResult::Idle
                }
            }
        }
        panic!("seed {seed}: round {} does not end", self.round);
    }

    /// Publishes a policy and requests responses from it. Most rounds request fewer responses than the largest game has instances (three).
    fn request(&mut self) {
        let policy = self.store.publish(PolicyVersion(self.round), weights(self.round));
        self.engine.load(&policy);
        let step = Step(self.round);
        let responses = [2, 1, 4][usize::try_from(self.round % 3).unwrap()];
        self.wins = (responses as usize).div_ceil(2);
        self.requested =
            (0..responses).map(|sample| SampleId { step, prompt: PromptId(7), sample }).collect();
        (self.ends, self.floor, self.decided) = (BTreeSet::new(), self.now, false);
        self.engine.generate(Request {
            step,
            prompt: PromptId(7),
            samples: 0..responses,
            prompt_ids: Arc::from([1, 2, 3]),
            resumed: Vec::new(),
        });
        self.rounds.push((Vec::new(), BTreeMap::new()));
        self.idle.fill(false);
    }

    fn listen(&mut self) {
        self.woken.store(false, Ordering::Relaxed);
        self.idle.fill(false);
        if self.engine.shared.config.deterministic && !self.decided {
            self.receive();
        }
        while let Some(event) = self.engine.poll() {
            match event {
                RolloutEvent::Completed(completion) => self.take(completion),
                RolloutEvent::Failed(error) => panic!("round {}: {error}", self.round),
            }
        }
        if self.requested.is_empty() {
            self.round += 1;
            if self.round < ROUNDS {
                self.request();
            }
        }
    }

    /// Reads the progress of a race in lockstep, and decides the race once enough responses have ended.
    fn receive(&mut self) {
        let reached = self.engine.lockstep().unwrap().reached();
        let is_new = |end: &End| end.tick > self.floor;
        assert!(
            reached.ended.iter().all(is_new),
            "ends up to {:?} were reported before: {reached:?}",
            self.floor
        );
        assert!(reached.floor >= self.floor, "floors rise: {reached:?}");
        self.floor = reached.floor;
        self.ends.extend(reached.ended);
        let ended = self.ends.iter().filter(|end| end.tick <= self.floor);
        let first: Vec<End> = ended.take(self.wins).copied().collect();
        if let Some(last) = first.last().filter(|_| first.len() == self.wins) {
            self.now = last.tick;
            self.engine.lockstep().unwrap().advance(self.now);
            self.decide(first.iter().map(|end| end.id).collect());
        }
    }

    /// Ends the round: keeps the winners and aborts the others.
    fn decide(&mut self, winners: Vec<SampleId>) {
        self.decided = true;
        let losers: Vec<SampleId> =
            self.requested.iter().filter(|id| !winners.contains(id)).copied().collect();
        for id in losers {
            if self.engine.shared.config.deterministic {
                self.engine.lockstep().unwrap().abort_at(id, self.now);
            } else {
                self.engine.abort(id);
            }
        }
        self.rounds.last_mut().unwrap().0 = winners;
    }

    fn take(&mut self, completion: Completion) {
        let (id, version) = (completion.id, PolicyVersion(self.round));
        assert!(self.requested.remove(&id), "{id} is reported once");
        assert!(completion.token_versions.iter().all(|of| of == version), "{completion:?}");
        let all = &mut self.rounds.last_mut().unwrap().1;
        all.insert(id, (completion.response_ids, completion.finish_reason));
        let whole = all.iter().filter(|(_, (_, reason))| reason.is_whole()).map(|(id, _)| *id);
        let whole: Vec<SampleId> = whole.collect();
        if !self.decided && whole.len() == self.wins {
            self.decide(whole);
        }
    }
}

/// Returns the way to split rows into passes on this machine, tested once.
fn passes(config: &TorchEngineConfig) -> Passes {
    static PASSES: OnceLock<Passes> = OnceLock::new();
    *PASSES.get_or_init(|| instance_handle::select_passes(config, &mut packed()).unwrap().unwrap())
}

#[test]
fn slow_instances_find_the_policies_that_they_load() {
    for seed in 0..SEEDS {
        Game::new(3, false).play(seed);
    }
}

#[test]
fn races_in_lockstep_end_the_same_with_slow_instances() {
    let expected = Game::new(1, true).play(0);
    let is_cut = |round: &Round| round.1.values().any(|(_, reason)| !reason.is_whole());
    assert!(expected.iter().any(is_cut), "{expected:?}");
    for seed in 0..SEEDS {
        let instances = 1 + u32::try_from(seed % 3).unwrap();
        assert_eq!(Game::new(instances, true).play(seed), expected, "seed {seed}");
    }
}
