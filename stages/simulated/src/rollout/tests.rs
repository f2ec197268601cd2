use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use rollpacker_dataflow::step::{PolicyVersion, PromptId, Step};

use super::lengths::PromptTraits;
use super::*;
use crate::cluster::{Calibration, Hardware, ModelShape};
use rollpacker_stages::rollout::{Completion, Policy};
use rollpacker_stages::testkit::{EngineWorld, check_engine};

mod oracle;

/// A length model from a function and a fixed prompt length.
struct Rule {
    length: fn(u64, SampleId) -> u32,
    prompt_length: u32,
}

const CAP: u32 = 8192;

impl LengthModel for Rule {
    fn prompt(&self, _row: u64) -> PromptTraits {
        PromptTraits { domain: "math".into(), prompt_length: self.prompt_length, pass_rate: 0.5 }
    }

    fn response(&self, row: u64, id: SampleId, draw: u32) -> u32 {
        ((self.length)(row, id) + draw).clamp(1, CAP)
    }

    fn cap(&self) -> u32 {
        CAP
    }
}

/// Returns a length from 1 to 2000 that varies irregularly with the prompt and the sample.
fn scattered(row: u64, id: SampleId) -> u32 {
    let mixed = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(id.sample) + 7) << 20;
    (mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as u32 % 2000 + 1
}

fn cost(dispatch_interval: f64) -> Cost {
    let calibration = Calibration {
        dispatch_interval,
        rollout_overhead: 2.0,
        reconfiguration: 10.0,
        ..Calibration::default()
    };
    let model = ModelShape::built_in("Qwen2.5-7B").expect("built in");
    Cost::new(Hardware::built_in("H800").expect("built in"), model, calibration)
}

struct Bench {
    clock: VirtualClock,
    engine: SimulatedEngine,
    ended: BTreeMap<SampleId, Completion>,
    /// The longest time between the end of a response and its report.
    delay: Nanos,
}

fn config(instances: u32, interval: u64) -> SimulatedEngineConfig {
    SimulatedEngineConfig {
        report_interval: Nanos(interval),
        ..SimulatedEngineConfig::new(Placement { instances, tensor_parallel: 1 })
    }
}

impl Bench {
    fn new(config: SimulatedEngineConfig, rule: Rule) -> Self {
        Self::with_cost(config, rule, cost(0.0))
    }

    fn with_cost(config: SimulatedEngineConfig, rule: Rule, cost: Cost) -> Self {
        let clock = VirtualClock::default();
        let engine =
            SimulatedEngine::new(config, cost, Arc::new(rule), clock.clone()).expect("7B fits");
        Self { clock, engine, ended: BTreeMap::new(), delay: Nanos(0) }
    }

    fn generate(&mut self, prompt: u64, samples: u32) {
        self.resume(prompt, samples, Vec::new());
    }

    fn resume(
        &mut self,
        prompt: u64,
        samples: u32,
        resumed: Vec<rollpacker_stages::rollout::Partial>,
    ) {
        let (step, prompt_ids) = (Step(0), [prompt as i32].into());
        let prompt = PromptId(prompt);
        self.engine.generate(Request { step, prompt, samples: 0..samples, prompt_ids, resumed });
    }

    fn poll(&mut self) {
        while let Some(event) = self.engine.poll() {
            let RolloutEvent::Completed(completion) = event else { panic!("{event:?}") };
            let id = completion.id;
            assert!(completion.finished <= self.clock.now());
            assert!(completion.started <= completion.finished, "{completion:?}");
            self.delay = self.delay.max(Nanos(self.clock.now().0 - completion.finished.0));
            assert_eq!(self.ended.insert(id, completion), None, "{id} was reported twice");
        }
    }

    fn run(&mut self) {
        self.poll();
        while self.clock.advance() {
            self.poll();
        }
    }

    /// Runs until `until`, in seconds, as long as there are alarms.
    fn run_until(&mut self, until: f64) {
        self.poll();
        let alarm = self.clock.alarm(|| {});
        alarm.set(Nanos::from_secs_f64(until));
        while self.clock.now() < Nanos::from_secs_f64(until) && self.clock.advance() {
            self.poll();
        }
    }

    fn length(&self, prompt: u64, sample: u32) -> u32 {
        self.ended[&id(prompt, sample)].response_length
    }
}

fn id(prompt: u64, sample: u32) -> SampleId {
    SampleId { step: Step(0), prompt: PromptId(prompt), sample }
}

#[test]
fn an_instance_starts_after_the_weights_and_reports_on_the_grid() {
    let mut bench =
        Bench::new(config(2, 10_000_000), Rule { length: scattered, prompt_length: 250 });
    bench.engine.load(&Policy { version: PolicyVersion(0), location: String::new(), digest: 0 });
    bench.generate(1, 4);
    bench.poll();
    let mut reported = BTreeMap::new();
    while bench.clock.advance() {
        let before = bench.ended.len();
        bench.poll();
        reported.insert(bench.clock.now().0, bench.ended.len() - before);
    }
    assert!(reported.keys().all(|at| at % 10_000_000 == 0), "{reported:?}");
    assert_eq!(reported.values().sum::<usize>(), 4);
    let transfer = 0.75e-9 * 7.62e9;
    let loaded = bench.engine.loaded_at(PolicyVersion(0)).expect("loaded");
    assert!((loaded.as_secs_f64() - transfer).abs() < 1e-6, "{loaded}");
    assert_eq!(bench.engine.loaded_at(PolicyVersion(1)), None);
    let load = 2.0 + transfer;
    let first = bench.ended.values().map(|c| c.started).min().expect("some");
    assert!((first.as_secs_f64() - load).abs() < 1e-6, "{first}");
}

#[test]
fn an_aborted_response_keeps_its_sampled_tokens() {
    let mut bench = Bench::new(config(1, 0), Rule { length: |_, _| 1000, prompt_length: 250 });
    bench.generate(1, 2);
    bench.run_until(2.0);
    bench.engine.abort(id(1, 1));
    bench.poll();
    let found = bench.length(1, 1);
    let shape = &bench.engine.shape;
    let prefills = 2.0 * shape.cost.prefill(1, 250.0);
    assert_eq!(u64::from(found), shape.decode.within(2.0 - prefills, 2, 500));
    assert_eq!(bench.ended[&id(1, 1)].finish_reason, FinishReason::Abort);
    bench.engine.abort(id(1, 1));
    bench.run();
    assert_eq!(bench.length(1, 0), 1000);
}

#[test]
fn a_resumed_response_continues_after_its_tokens() {
    let kept = |sample, response_length| rollpacker_stages::rollout::Partial {
        sample,
        response_length,
        ..Default::default()
    };
    let time = |resumed: Vec<rollpacker_stages::rollout::Partial>| {
        let mut bench = Bench::new(config(1, 0), Rule { length: |_, _| 1000, prompt_length: 250 });
        bench.resume(1, 1, resumed);
        bench.run();
        (bench.length(1, 0), bench.clock.now().as_secs_f64())
    };
    let (length, whole) = time(Vec::new());
    assert_eq!(length, 1000);
    let (length, rest) = time(vec![kept(0, 900)]);
    assert_eq!(length, 1000);
    assert!(rest < 0.2 * whole, "{rest} of {whole}");
    assert_eq!(time(vec![kept(0, 1005)]).0, 1006, "drawn again until it is longer");
    assert_eq!(time(vec![kept(0, CAP)]).0, CAP + 1, "nothing is longer than the cap");
}

#[test]
fn fewer_instances_take_over_the_responses_of_the_others() {
    let mut bench = Bench::new(config(4, 0), Rule { length: |_, _| 1000, prompt_length: 250 });
    bench.generate(1, 8);
    bench.run_until(1.0);
    bench.engine.place(Placement { instances: 1, tensor_parallel: 1 });
    bench.run();
    assert_eq!(bench.ended.len(), 8);
    assert!(bench.ended.values().all(|c| c.instance == 0 && c.response_length == 1000));
    assert!(
        bench.ended.values().all(|c| c.preemptions == 0),
        "moved responses do not count as preempted"
    );
    let on_four = {
        let mut bench = Bench::new(config(4, 0), Rule { length: |_, _| 1000, prompt_length: 250 });
        bench.generate(1, 8);
        bench.run();
        bench.clock.now()
    };
    assert!(bench.clock.now() > on_four);
}

#[test]
fn new_instances_take_waiting_responses_once_they_have_the_weights() {
    let few = SimulatedEngineConfig { max_running: 2, ..config(1, 0) };
    let mut bench = Bench::new(few, Rule { length: |_, _| 1000, prompt_length: 250 });
    let version = PolicyVersion(0);
    bench.engine.load(&Policy { version, location: String::new(), digest: 0 });
    bench.generate(1, 8);
    bench.run_until(3.0);
    bench.engine.place(Placement { instances: 4, tensor_parallel: 1 });
    bench.run();
    let instances: BTreeMap<_, _> = bench.ended.values().map(|c| (c.instance, c.started)).collect();
    assert_eq!(instances.len(), 4);
    let load = bench.engine.loading();
    let new = instances.iter().filter(|(instance, _)| **instance > 0);
    assert!(new.clone().all(|(_, started)| started.as_secs_f64() >= 3.0 + load), "{instances:?}");
    assert_eq!(bench.ended.len(), 8);
}

#[test]
fn without_instances_responses_wait_and_another_tensor_parallelism_restarts() {
    let mut bench = Bench::new(config(2, 0), Rule { length: |_, _| 1000, prompt_length: 250 });
    bench.generate(1, 4);
    bench.run_until(1.0);
    bench.engine.place(Placement { instances: 0, tensor_parallel: 1 });
    bench.run_until(100.0);
    assert_eq!(bench.ended.len(), 0);
    bench.engine.abort(id(1, 3));
    bench.poll();
    assert!(bench.length(1, 3) > 0);
    bench.engine.place(Placement { instances: 1, tensor_parallel: 4 });
    bench.run();
    assert_eq!(bench.ended.len(), 4);
    let end = bench.clock.now().as_secs_f64();
    assert!(end > 110.0 && end < 118.0, "{end}: a restart of 10 s and the rest");
}

#[test]
fn moved_responses_continue_as_soon_as_their_caches_are_sent() {
    let seconds = |kv_transfer_bandwidth| {
        let config = SimulatedEngineConfig { kv_transfer_bandwidth, ..config(2, 0) };
        let rule = Rule { length: |_, _| 8000, prompt_length: 250 };
        let mut bench = Bench::new(config, rule);
        bench.generate(1, 8);
        bench.run_until(30.0);
        bench.engine.place(Placement { instances: 1, tensor_parallel: 1 });
        bench.run();
        assert!(bench.ended.values().all(|completion| completion.response_length == 8000));
        bench.clock.now().as_secs_f64()
    };
    let [recomputed, slow, fast] = [None, Some(1e9), Some(50e9)].map(seconds);
    assert!(fast < recomputed && recomputed < slow, "{fast} {recomputed} {slow}");
}

#[test]
fn a_model_that_does_not_fit_ends_the_engine() {
    let mut bench = Bench::new(config(2, 0), Rule { length: scattered, prompt_length: 250 });
    bench.engine.place(Placement { instances: 1, tensor_parallel: 9 });
    let Some(RolloutEvent::Failed(error)) = bench.engine.poll() else {
        panic!("the engine did not fail")
    };
    assert_eq!(
        error.to_string(),
        "rollout engine instance 0 failed: tensor_parallel: expected 1 to 8, the devices of a server, found 9"
    );
    assert_eq!(bench.engine.poll(), None);
}

#[test]
fn dispatch_selects_the_instance() {
    let instances = |dispatch| {
        let rule = Rule { length: scattered, prompt_length: 250 };
        let mut bench = Bench::new(SimulatedEngineConfig { dispatch, ..config(2, 0) }, rule);
        (0..4).for_each(|prompt| bench.generate(prompt, 2));
        bench.run();
        bench.ended.values().map(|completion| completion.instance).collect::<Vec<_>>()
    };
    assert_eq!(instances(Dispatch::PromptChunks), [0, 0, 0, 0, 1, 1, 1, 1]);
    assert_eq!(instances(Dispatch::RoundRobin), [0, 1, 0, 1, 0, 1, 0, 1]);
    assert_eq!(instances(Dispatch::LeastLoaded), [0, 1, 0, 1, 0, 1, 0, 1]);
}

#[test]
fn a_response_goes_to_the_instance_that_has_fewer() {
    let lengths = |row: u64, _| [1000, 10, 500][row as usize];
    let rule = Rule { length: lengths, prompt_length: 250 };
    let config = SimulatedEngineConfig { dispatch: Dispatch::LeastLoaded, ..config(2, 0) };
    let mut bench = Bench::new(config, rule);
    bench.generate(0, 1);
    bench.generate(1, 1);
    bench.run_until(6.0);
    assert_eq!(bench.ended[&id(1, 0)].instance, 1);
    bench.generate(2, 1);
    bench.run();
    assert_eq!(bench.ended[&id(2, 0)].instance, 1, "instance 0 still runs a response");
}

#[test]
fn responses_collected_together_are_reported_when_the_last_has_ended() {
    let ended = |collect| {
        let rule = Rule { length: scattered, prompt_length: 100 };
        let mut bench =
            Bench::new(SimulatedEngineConfig { collect, ..config(2, 10_000_000) }, rule);
        (0..4).for_each(|prompt| bench.generate(prompt, 8));
        bench.poll();
        let mut reports = Vec::new();
        while bench.clock.advance() {
            let before = bench.ended.len();
            bench.poll();
            reports.extend((bench.ended.len() > before).then(|| bench.clock.now()));
        }
        (bench.ended, reports)
    };
    let (each, reports) = ended(Collect::Streamed);
    let (together, report) = ended(Collect::Together);
    assert_eq!(together, each);
    assert!(reports.len() > 20, "{reports:?}");
    assert_eq!(report[..], reports[reports.len() - 1..]);
}

#[derive(Clone, Copy, Debug)]
enum Command {
    Generate(u32),
    Abort(usize),
    Place(u32, u32),
    Load,
    Pass(u32),
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        4 => (1_u32..12).prop_map(Command::Generate),
        4 => any::<prop::sample::Index>().prop_map(|at| Command::Abort(at.index(200))),
        1 => (0_u32..5, 0_u32..2).prop_map(|(n, tp)| Command::Place(n, 1 << tp)),
        1 => Just(Command::Load),
        6 => (1_u32..3000).prop_map(Command::Pass),
    ]
}

/// Runs `commands` to completion on an engine with a small KV cache. Returns the number of requested responses, the completions, and the
/// time of the end.
fn run_commands(
    commands: &[Command],
    interval: u64,
) -> (usize, BTreeMap<SampleId, Completion>, Nanos) {
    let rule = Rule { length: scattered, prompt_length: 100 };
    let mut bench = Bench::new(config(3, interval), rule);
    bench.engine.shape.capacity = 6000;
    let mut requested = Vec::new();
    for (at, command) in commands.iter().enumerate() {
        match *command {
            Command::Generate(samples) => {
                bench.generate(at as u64, samples);
                requested.extend((0..samples).map(|sample| id(at as u64, sample)));
            }
            Command::Abort(which) if which < requested.len() => {
                bench.engine.abort(requested[which])
            }
            Command::Abort(_) => {}
            Command::Place(instances, tensor_parallel) => {
                bench.engine.place(Placement { instances, tensor_parallel });
            }
            Command::Load => {
                let version = PolicyVersion(at as u64);
                bench.engine.load(&Policy { version, location: String::new(), digest: 0 });
            }
            Command::Pass(milliseconds) => {
                let until = bench.clock.now().as_secs_f64() + f64::from(milliseconds) * 1e-3;
                bench.run_until(until);
            }
        }
    }
    bench.engine.place(Placement { instances: 2, tensor_parallel: 1 });
    bench.run();
    assert!(bench.delay <= Nanos(interval), "{}", bench.delay);
    (requested.len(), bench.ended, bench.clock.now())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn each_response_is_reported_once_and_a_run_repeats_itself(
        commands in prop::collection::vec(command(), 1..60), interval in prop_oneof![Just(0_u64), Just(10_000_000)]
    ) {
        let (requested, ended, end) = run_commands(&commands, interval);
        prop_assert_eq!(ended.len(), requested);
        for completion in ended.values() {
            let length = scattered(completion.id.prompt.0, completion.id);
            if completion.finish_reason.is_whole() {
                prop_assert_eq!(completion.response_length, length);
            } else {
                prop_assert!(completion.response_length < length);
            }
        }
        let (_, again, end_again) = run_commands(&commands, interval);
        prop_assert_eq!((ended, end), (again, end_again));
    }
}

/// Two instances are added while the only instance has waiting responses that do not fit. The responses that stay there are admitted from
/// that time on, not at the iteration boundary before it.
#[test]
fn a_response_that_is_moved_starts_after_its_move() {
    use Command::{Abort, Generate, Load, Pass, Place};
    let commands = [
        Abort(0),
        Generate(5),
        Pass(1),
        Abort(4),
        Pass(149),
        Pass(2529),
        Generate(8),
        Abort(13),
        Place(1, 1),
        Generate(6),
        Abort(19),
        Generate(3),
        Load,
        Abort(22),
        Generate(3),
        Pass(33),
        Generate(2),
        Pass(2142),
        Pass(1996),
        Pass(1201),
        Pass(1952),
        Pass(2056),
        Pass(1575),
        Place(3, 1),
    ];
    run_commands(&commands, 0);
}

#[test]
fn the_engine_passes_the_testkit() {
    let clock = VirtualClock::default();
    let policy = |version| Policy {
        version: PolicyVersion(version),
        location: format!("simulated:{version}"),
        digest: version,
    };
    let world = EngineWorld {
        policies: vec![policy(0), policy(1)],
        prompts: vec![[0].into(), [1].into(), [2].into()],
        samples: 4,
        timeout: Duration::from_secs(60),
        is_reproducible: true,
        virtual_time: Some(clock.clone()),
    };
    let start = || {
        let rule = Rule { length: scattered, prompt_length: 100 };
        SimulatedEngine::new(config(2, 0), cost(0.0), Arc::new(rule), clock.clone()).unwrap()
    };
    check_engine(start, &world).unwrap();
}
