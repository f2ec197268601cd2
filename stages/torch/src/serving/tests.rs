//! Tests of commands from several callers, of callers that do not wait (as when a client disconnects), and of the end of an engine.

use std::sync::Barrier;
use std::sync::mpsc::Receiver;

use futures::FutureExt;
use futures::executor::block_on;
use rollpacker_dataflow::clock::{Clock, Nanos, WallClock};
use rollpacker_stages::rollout::FinishReason;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::serving::{EndTokens, ServedToken, TokenLogprob, TokenReceiver};

use super::*;

/// A receiver that passes on the reason of a failure and drops everything else.
struct FailureReceiver(Sender<String>);

impl TokenReceiver for FailureReceiver {
    fn prompt(&mut self, _: Vec<TokenLogprob>) {}
    fn token(&mut self, _: u32, _: ServedToken) {}
    fn end(&mut self, _: u32, _: FinishReason) {}
    fn fail(&mut self, reason: &str) {
        self.0.send(reason.to_owned()).unwrap();
    }
}

fn fixture() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/llama_untied"))
}

fn model_config() -> ModelConfig {
    ModelConfig::from_folder(fixture()).unwrap()
}

/// Returns an engine with two instances and a context of 200,000 tokens.
fn engine() -> TorchServing {
    let config = ModelConfig { max_position_embeddings: 200_000, ..model_config() };
    let folder = tempfile::tempdir().unwrap();
    Decoder::init(config, 0, Device::Cpu).unwrap().save(folder.path()).unwrap();
    let config = TorchServingConfig {
        instances: 2,
        threads_per_instance: 1,
        max_running: 4,
        kv_cache_tokens: 400_000,
        context: None,
        seed: 0,
        label: "first".into(),
    };
    TorchServing::start(folder.path(), Device::Cpu, &config).unwrap()
}

/// Returns a request whose response does not end within the time of a test, and the reasons of its failure.
fn endless(id: u64) -> (Generation, Receiver<String>) {
    let (failure, failures) = channel();
    let generation = Generation {
        id: GenerationId(id),
        prompt_ids: [1, 2].into(),
        samples: 1,
        sampling: Sampling::unrestricted(100_000),
        ends: EndTokens { ignore_eos: true, ..EndTokens::default() },
        seed: None,
        logprobs: None,
        prompt_logprobs: None,
        receiver: Box::new(FailureReceiver(failure)),
    };
    (generation, failures)
}

fn wait_until(condition: impl Fn() -> bool) {
    let clock = WallClock::start();
    while !condition() {
        let waited = clock.now();
        assert!(waited < Nanos::from_secs_f64(60.0), "the condition holds within a minute");
        std::thread::yield_now();
    }
}

#[test]
fn a_pause_begins_although_its_caller_is_gone() {
    let engine = engine();
    let (generation, _failures) = endless(1);
    engine.generate(generation);
    assert!(engine.pause(Pause::Wait).now_or_never().is_none());
    assert!(!engine.is_paused(), "a response runs");
    engine.abort(GenerationId(1));
    wait_until(|| engine.is_paused());
    block_on(engine.resume()).unwrap();
    assert!(!engine.is_paused());
}

#[test]
fn a_pause_that_waits_for_responses_fails_when_the_engine_is_resumed() {
    let engine = engine();
    let (generation, _failures) = endless(1);
    engine.generate(generation);
    let mut pause = engine.pause(Pause::Wait);
    assert!((&mut pause).now_or_never().is_none());
    block_on(engine.resume()).unwrap();
    assert_eq!(block_on(pause), Err(ServingError::Resumed));
    assert!(!engine.is_paused(), "the resume came last");
    let (generation, _later_failures) = endless(2);
    engine.generate(generation);
    wait_until(|| engine.statistics().running == 2);
}

#[test]
fn a_pause_that_keeps_responses_does_not_answer_a_caller_that_waits_for_their_end() {
    let engine = engine();
    let (generation, _failures) = endless(1);
    engine.generate(generation);
    let mut before = engine.pause(Pause::Wait);
    block_on(engine.pause(Pause::Keep)).unwrap();
    assert!(engine.is_paused());
    let mut after = engine.pause(Pause::Wait);
    // Commands are answered in order, so the pauses would have been answered before the label.
    block_on(engine.set_label("next".into())).unwrap();
    assert_eq!(((&mut before).now_or_never(), (&mut after).now_or_never()), (None, None));
    engine.abort(GenerationId(1));
    assert_eq!(block_on(try_join_all([before, after])), Ok(vec![(), ()]));
    assert!(engine.is_paused());
}

#[test]
fn a_load_acts_when_it_is_called() {
    let engine = engine();
    let first = engine.load(Some(fixture().to_owned()));
    let second = engine.load(Some("missing".into()));
    let third = engine.load(Some(fixture().to_owned()));
    block_on(third).unwrap();
    assert_eq!(first.now_or_never(), Some(Ok(())), "it ended before the last one");
    let refused = second.now_or_never().expect("it ended before the last one").unwrap_err();
    assert!(matches!(refused, ServingError::Load { folder, .. } if folder == Path::new("missing")));
}

#[test]
fn requests_in_flight_fail_when_the_engine_is_dropped() {
    let engine = engine();
    let (running, running_failures) = endless(1);
    engine.generate(running);
    wait_until(|| engine.statistics().running == 1);
    block_on(engine.pause(Pause::Keep)).unwrap();
    let (held, held_failures) = endless(2);
    engine.generate(held);
    drop(engine);
    for failures in [running_failures, held_failures] {
        assert_eq!(failures.iter().collect::<Vec<_>>(), ["it was shut down"]);
    }
}

#[test]
fn commands_of_several_callers_have_the_same_order_on_all_instances() {
    let (instances, received): (Vec<_>, Vec<_>) = (0..4)
        .map(|_| {
            let (commands, received) = channel();
            let counters = Arc::default();
            (ServingInstance { commands: Mutex::new(Some(commands)), counters }, received)
        })
        .unzip();
    let shared = Arc::new(Shared {
        config: model_config(),
        device: Device::Cpu,
        instances,
        label: Mutex::new("first".into()),
        sending: Mutex::default(),
        is_dropped: AtomicBool::new(false),
    });
    let both = &Barrier::new(2);
    let call_often = &|caller: usize| {
        for number in 0..2000 {
            let label: Arc<str> = format!("{caller}, {number}").into();
            both.wait();
            drop(shared.on_all(|reply| {
                // The other caller gets its turn between the commands to two instances.
                std::thread::yield_now();
                Command::Label(Arc::clone(&label), reply)
            }));
        }
    };
    std::thread::scope(|scope| {
        for caller in 0..2 {
            scope.spawn(move || call_often(caller));
        }
    });
    let labels = received.iter().map(|received| {
        let label = |command| match command {
            Command::Label(label, _) => Some(label),
            _ => None,
        };
        received.try_iter().filter_map(label).collect::<Vec<_>>()
    });
    let labels: Vec<_> = labels.collect();
    assert_eq!(labels[0].len(), 4000);
    assert!(labels.iter().all(|others| *others == labels[0]));
}
