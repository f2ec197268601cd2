//! Tests of the judge as a colocated model of the actor's engine.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::rollout::Placement;
use rollpacker_stages::train::config::Precision;

use super::*;
use crate::rollout::colocated::{BudgetedWorkload, ColocatedModels, ColocatedUse};

/// An engine that samples from the model of [`endless_speaker`], and a channel that receives a message for each call of the engine's waker.
struct Actor {
    engine: TorchEngine,
    woken: Receiver<()>,
}

impl Actor {
    fn start(instances: u32) -> Self {
        let config = TorchEngineConfig {
            instances,
            threads_per_instance: 1,
            max_running: 16,
            kv_cache_tokens: 4000,
            dtype: Precision::Float32,
            sampling: Sampling { min_new_tokens: 60, ..Sampling::unrestricted(120) },
            seed: 3,
            replay: None,
            deterministic: false,
        };
        let folder = endless_speaker();
        let decoder = Decoder::load(folder.path(), Device::Cpu).unwrap();
        let clock = Arc::new(WallClock::start());
        let text = Arc::new(|_: &[i32]| String::new());
        let mut engine =
            TorchEngine::start(config, decoder, WeightStore::new(1), text, clock).unwrap();
        let (wake, woken) = channel();
        engine.wake_by(Arc::new(move || _ = wake.send(())));
        Self { engine, woken }
    }

    fn request(&mut self, prompts: u64) {
        for prompt in 0..prompts {
            let prompt_ids = (3..9 + prompt as i32).collect();
            let (step, prompt, resumed) = (Step(1), PromptId(prompt), Vec::new());
            self.engine.generate(Request { step, prompt, samples: 0..4, prompt_ids, resumed });
        }
    }

    fn collect(&mut self, responses: usize) -> BTreeMap<SampleId, Vec<i32>> {
        let mut all = BTreeMap::new();
        while all.len() < responses {
            match self.engine.poll() {
                Some(RolloutEvent::Completed(completion)) => {
                    all.insert(completion.id, completion.response_ids);
                }
                Some(RolloutEvent::Failed(error)) => panic!("{error}"),
                None => self.woken.recv_timeout(Duration::from_secs(120)).expect("woken"),
            }
        }
        all
    }

    fn place(&mut self, instances: u32) {
        self.engine.place(Placement { instances, tensor_parallel: 1 });
    }

    /// Blocks until colocated models have processed `tokens` tokens.
    fn until_processed(&self, tokens: u64) {
        let took = || self.engine.statistics().iter().map(|one| one.colocated_tokens).sum::<u64>();
        while took() < tokens {
            std::thread::yield_now();
        }
    }
}

fn colocated_judge(text: &str, max_running: usize) -> (TorchChat, ColocatedModels, Folder) {
    let folder = speaker(text);
    let options = TorchChatOptions { max_running, colocated: true, ..options(&folder) };
    let models = JudgeModels::default();
    let chat = models.open_model(options).unwrap();
    (chat, models.colocated(), folder)
}

/// Starts asking questions on a runtime with two threads. Returns a function that waits for the answers.
fn answers_to(chat: &TorchChat, questions: usize) -> impl FnOnce() -> Vec<String> + use<> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let answers: Vec<_> = (0..questions)
        .map(|question| {
            let chat = chat.clone();
            let request =
                async move { chat.complete(&[message(&format!("{question}?"))], &GREEDY).await };
            runtime.spawn(request)
        })
        .collect();
    move || answers.into_iter().map(|answer| runtime.block_on(answer).unwrap().unwrap()).collect()
}

/// Returns the number of tokens processed for a number of questions: the prompts without the last token of each, and the answers with their
/// end tokens.
fn tokens_of(questions: u64) -> u64 {
    let one = |question: u64| question.to_string().len() + "?\n\n".len() + CHAIN.len() + 1;
    (0..questions).map(|question| one(question) as u64).sum()
}

#[test]
fn the_actors_tokens_do_not_depend_on_colocated_models() {
    let mut without = Actor::start(2);
    without.request(6);
    let expected = without.collect(24);

    let (chat, models, _folder) = colocated_judge(CHAIN, 4);
    let mut with = Actor::start(2);
    with.engine.colocate(&models);
    let mut meter = with.engine.colocated_use();
    let answers = answers_to(&chat, 12);
    with.until_processed(1);
    with.request(6);
    assert_eq!(with.collect(24), expected);
    assert_eq!(answers(), vec![CHAIN; 12]);
    drop(with);
    let used = meter.take();
    assert_eq!(used.tokens, tokens_of(12), "nothing is generated twice");
    assert!(used.actor_ns > 0, "{used:?}");
    assert_eq!(meter.take(), ColocatedUse::default(), "each metric is reported once");
}

#[test]
fn with_the_actor_a_workload_takes_at_most_its_share() {
    let (questions, new) = worker(&speaker(CHAIN), 4);
    let _no_grad = tch::no_grad_guard();
    let mut replies = [30, 4, 50, 9, 5].map(|tokens| request(&questions, tokens));
    let mut workload = BudgetedWorkload::new(Box::new(new()), 7);
    let mut took = 0;
    for iteration in 1..400 {
        took += workload.step_with_actor();
        assert!(took <= 7 * iteration, "{took} tokens in {iteration} iterations");
    }
    assert!(workload.is_idle());
    assert_eq!(took, 30 + 4 + 50 + 9 + 5 + 5 * CHAIN.len());
    assert!(replies.iter_mut().all(|reply| answer(reply).is_some()));
}

#[test]
fn two_instances_share_the_judge() {
    let (chat, models, _folder) = colocated_judge(CHAIN, 1);
    let mut actor = Actor::start(2);
    actor.engine.colocate(&models);
    let answers = answers_to(&chat, 48);
    assert_eq!(answers(), vec![CHAIN; 48]);
    let tokens: Vec<u64> =
        actor.engine.statistics().iter().map(|instance| instance.colocated_tokens).collect();
    assert!(tokens.iter().all(|tokens| *tokens > 0), "{tokens:?}");
    let mut meter = actor.engine.colocated_use();
    drop(actor);
    assert_eq!(meter.take().tokens, tokens_of(48), "nothing is generated twice");
}

#[test]
fn a_model_larger_than_its_budget_runs_on_one_instance() {
    let folder = speaker(CHAIN);
    let options = TorchChatOptions { colocated: true, ..streamed(&folder) };
    let models = JudgeModels::default();
    let chat = models.open_model(options).unwrap();
    let mut actor = Actor::start(2);
    actor.engine.colocate(&models.colocated());
    assert_eq!(answers_to(&chat, 12)(), vec![CHAIN; 12]);
    let mut meter = actor.engine.colocated_use();
    actor.place(0);
    assert_eq!(answers_to(&chat, 3)(), vec![CHAIN; 3]);
    assert_eq!(actor.engine.statistics()[1].colocated_tokens, 0);
    drop(actor);
    assert!(meter.take().tokens >= 12 * CHAIN.len() as u64);
}

#[test]
fn a_model_for_one_instance_stays_colocated_when_instances_change() {
    let folder = speaker(CHAIN);
    let options = TorchChatOptions { colocated: true, ..streamed(&folder) };
    let models = JudgeModels::default();
    let chat = models.open_model(options).unwrap();
    let mut actor = Actor::start(2);
    actor.engine.colocate(&models.colocated());
    let tokens = |actor: &Actor| actor.engine.statistics()[0].colocated_tokens;
    for (instances, tensor_parallel) in [(2, 1), (1, 1), (1, 2), (0, 2), (2, 1), (1, 1)] {
        actor.engine.place(Placement { instances, tensor_parallel });
        let before = tokens(&actor);
        // The first questions may be answered by the judge's own thread, until the instance has executed its commands.
        while instances > 0 && tokens(&actor) == before {
            assert_eq!(answers_to(&chat, 3)(), vec![CHAIN; 3]);
        }
    }
}

#[test]
fn questions_on_released_instances_are_answered() {
    let (chat, models, _folder) = colocated_judge(CHAIN, 2);
    let mut actor = Actor::start(2);
    actor.engine.colocate(&models);
    let answers = answers_to(&chat, 40);
    actor.until_processed(40);
    actor.place(1);
    actor.until_processed(400);
    actor.place(0);
    assert_eq!(answers(), vec![CHAIN; 40], "without devices, the judge's own thread answers");
    while chat.0.questions.has_instances() {
        std::thread::yield_now();
    }
    let before = actor.engine.statistics();
    assert_eq!(answers_to(&chat, 2)(), vec![CHAIN; 2]);
    assert_eq!(actor.engine.statistics(), before, "no instance is placed");
    actor.place(2);
    let answers = answers_to(&chat, 8);
    assert_eq!(answers(), vec![CHAIN; 8]);
    assert_ne!(actor.engine.statistics(), before, "instances answer again");
}

#[test]
fn questions_on_a_dropped_engine_are_answered() {
    let (chat, models, _folder) = colocated_judge(CHAIN, 2);
    let early = answers_to(&chat, 3);
    assert_eq!(early(), vec![CHAIN; 3], "questions are answered before an engine exists");
    let mut actor = Actor::start(2);
    actor.engine.colocate(&models);
    actor.request(6);
    let answers = answers_to(&chat, 40);
    actor.until_processed(20);
    drop(actor);
    assert_eq!(answers(), vec![CHAIN; 40]);
}

#[test]
fn questions_on_a_failed_engine_are_answered() {
    let (chat, models, _folder) = colocated_judge(CHAIN, 2);
    let mut actor = Actor::start(1);
    actor.engine.colocate(&models);
    let answers = answers_to(&chat, 20);
    actor.until_processed(20);
    let outside = Request {
        step: Step(1),
        prompt: PromptId(0),
        samples: 0..1,
        prompt_ids: [9999, 1].into(),
        resumed: Vec::new(),
    };
    actor.engine.generate(outside);
    loop {
        match actor.engine.poll() {
            Some(RolloutEvent::Failed(_)) => break,
            other => assert_eq!(other, None),
        }
        actor.woken.recv_timeout(Duration::from_secs(120)).expect("woken");
    }
    assert_eq!(answers(), vec![CHAIN; 20]);
}

#[test]
fn a_dropped_judge_is_removed_from_the_engine() {
    let (chat, models, _folder) = colocated_judge(CHAIN, 2);
    let mut actor = Actor::start(1);
    actor.engine.colocate(&models);
    assert_eq!(answers_to(&chat, 2)(), vec![CHAIN; 2]);
    assert!(!models.is_empty());
    drop(chat);
    assert!(models.is_empty());
    actor.request(1);
    assert_eq!(actor.collect(4).len(), 4);
}
