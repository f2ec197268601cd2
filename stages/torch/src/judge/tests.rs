//! Tests of the in-process judge: its answers, independent of where they are computed, and its handling of dropped questions and failures.

mod colocated;
mod speaker;

use std::sync::Arc;

use futures::future::join_all;
use rollpacker_dataflow::clock::WallClock;
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_rewards::{AnyReward, Registry};
use rollpacker_stages::reward::{Context, Reward, Sample};
use rollpacker_stages::rollout::{Request, RolloutEngine, RolloutEvent};
use rollpacker_stages::train::config::Precision;
use serde_json::json;
use tch::{Device, TchError, Tensor};

use self::speaker::{CHAIN, Folder, endless_speaker, message, options, speaker};
use super::questions::{JudgeAnswer, JudgeReply, Questions};
use super::*;
use crate::judge::Bytes;
use crate::model::network::Network;
use crate::model::{Decoder, WeightStore};
use crate::rollout::{TorchEngine, TorchEngineConfig};

const GREEDY: JudgeSampling = JudgeSampling { temperature: 0.0, max_tokens: 100, seed: 0 };

fn open(folder: &Folder) -> TorchChat {
    TorchChat::open(&options(folder)).unwrap()
}

fn make(options: serde_json::Value) -> Result<AnyReward, CatalogError> {
    let serde_json::Value::Object(options) = options else { panic!("an object") };
    let registry = Registry::builtin();
    registry.set_judge_engine(Arc::new(JudgeModels::default()));
    registry.make("judge", options)
}

#[tokio::test]
async fn an_in_process_model_judges() {
    let folder = speaker("Verdict: YES");
    let made = make(json!({"engine": "torch", "model_path": folder.path(), "max_tokens": 20}));
    let AnyReward::Sample(judge) = made.unwrap() else { panic!("a reward of samples") };
    let messages = r#"[{"role": "user", "content": "2+2?"}]"#.to_owned();
    let sample = Sample { messages, ..Sample::of("any", "It is 4.", Some("4")) };
    let score = judge.score(&sample, &Context::detached()).await.unwrap();
    assert_eq!((score.value, score.labels["verdict"].as_str()), (1.0, "YES"));
}

/// Returns the answer of the torch engine to `prompt`.
fn by_engine(folder: &Folder, prompt: &str, longest: u32) -> String {
    let tokenizer = Tokenizer::from_folder(folder.path()).unwrap();
    let template = ChatTemplate::from_folder(folder.path()).unwrap();
    let encoder = PromptEncoder { tokenizer: Arc::new(tokenizer), template };
    let prompt_ids = encoder.encode(&[message(prompt)]).unwrap().into();
    let config = TorchEngineConfig {
        instances: 1,
        threads_per_instance: 1,
        max_running: 1,
        kv_cache_tokens: 1000,
        dtype: Precision::Float32,
        sampling: Sampling::greedy(longest),
        seed: 0,
        replay: None,
        deterministic: false,
    };
    let decoder = Decoder::load(folder.path(), Device::Cpu).unwrap();
    let detokenize = Arc::new(move |ids: &[i32]| encoder.tokenizer.decode(ids, true).unwrap());
    let clock = Arc::new(WallClock::start());
    let mut engine =
        TorchEngine::start(config, decoder, WeightStore::new(1), detokenize, clock).unwrap();
    let (step, prompt, resumed) = (Step(0), PromptId(0), Vec::new());
    engine.generate(Request { step, prompt, samples: 0..1, prompt_ids, resumed });
    loop {
        match engine.poll() {
            Some(RolloutEvent::Completed(completion)) => return completion.text,
            Some(RolloutEvent::Failed(error)) => panic!("{error}"),
            None => std::thread::yield_now(),
        }
    }
}

#[tokio::test]
async fn greedy_answers_are_those_of_the_engine() {
    let folder = endless_speaker();
    let chat = open(&folder);
    for prompt in ["2+2?", "Is it so?", "The answer is 7."] {
        let answer = chat.complete(&[message(prompt)], &GREEDY).await.unwrap();
        assert!(!answer.is_empty());
        assert_eq!(answer, by_engine(&folder, prompt, GREEDY.max_tokens), "{prompt}");
    }
}

/// Returns the options for `folder` with the smallest sufficient budget. A model of more than two layers then has no resident layer; a
/// smaller model is resident.
fn streamed(folder: &Folder) -> TorchChatOptions {
    let small = TorchChatOptions { max_running: 2, kv_cache_tokens: 200, ..options(folder) };
    let tight = TorchChatOptions { memory_budget: Some(Bytes(1)), ..small.clone() };
    let error = TorchChat::open(&tight).err().unwrap().to_string();
    assert!(error.starts_with("`memory_budget`: "), "{error}");
    let (_, min) = error.split_once("at least ").unwrap();
    let min = min.split(' ').next().unwrap().parse().unwrap();
    TorchChatOptions { memory_budget: Some(Bytes(min)), ..small }
}

#[tokio::test]
async fn a_model_larger_than_its_budget_answers_the_same() {
    let folder = endless_speaker();
    let whole = open(&folder);
    let chat = TorchChat::open(&streamed(&folder)).unwrap();
    let sampling = JudgeSampling { temperature: 1.0, ..GREEDY };
    let messages: Vec<_> = (0..6).map(|n| [message(&format!("question {n}"))]).collect();
    let request = |chat: &TorchChat| {
        let chat = chat.clone();
        let messages = messages.clone();
        async move { join_all(messages.iter().map(|own| chat.complete(own, &sampling))).await }
    };
    assert_eq!(request(&chat).await, request(&whole).await);
}

#[tokio::test]
async fn answers_depend_on_messages_and_seed_alone() {
    let folder = endless_speaker();
    let chat = open(&folder);
    let questions: Vec<(String, JudgeSampling)> = (0..24u64)
        .map(|n| {
            let temperature = [1.0, 0.0, 0.7][n as usize % 3];
            (format!("question {}", n / 6), JudgeSampling { temperature, max_tokens: 200, seed: n })
        })
        .collect();
    let request = |(prompt, sampling): (String, JudgeSampling)| {
        let chat = chat.clone();
        async move { chat.complete(&[message(&prompt)], &sampling).await.unwrap() }
    };
    let together = join_all(questions.clone().into_iter().map(request)).await;
    for (question, answer) in questions.into_iter().zip(&together) {
        assert_eq!(request(question.clone()).await, *answer, "{question:?}");
    }
    let of = async |prompt: &str, seeds: std::ops::Range<u64>| {
        let sampling = |seed| JudgeSampling { temperature: 1.0, max_tokens: 200, seed };
        join_all(seeds.map(|seed| request((prompt.to_owned(), sampling(seed))))).await
    };
    let some = of("question", 0..8).await;
    assert_ne!(of("question", 8..16).await, some, "other seeds");
    assert_ne!(of("questions", 0..8).await, some, "another prompt");
}

#[tokio::test]
async fn a_prompt_that_cannot_be_answered_is_an_error() {
    let folder = speaker(CHAIN);
    let chat = open(&folder);
    let error = async |prompt: &str, max_tokens| {
        let sampling = JudgeSampling { max_tokens, ..GREEDY };
        chat.complete(&[message(prompt)], &sampling).await.unwrap_err()
    };
    assert_eq!(error("2+2?", 30).await, ChatError::CutOff { tokens: 30 });
    let expected = "the prompt has 1003 tokens, expected 1 to 924 to fit a context of 1024 tokens with an answer of 100";
    let expected = format!("the judge `{}`: {expected}", folder.path().display());
    assert_eq!(error(&"x".repeat(1000), 100).await, RewardError::fatal(expected).into());
    assert!(error("2+2?", 0).await.to_string().contains("expected max_tokens above 0"));
}

#[test]
fn options_are_refused_by_name() {
    let folder = speaker("Verdict: YES");
    let refused = |extra: serde_json::Value| {
        let mut options = json!({"engine": "torch", "model_path": folder.path()});
        options.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        make(options).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let check = |extra, expected: &str| assert_eq!(refused(extra), expected);
    check(json!({"engine": "vllm"}), "`engine`: expected one of server, torch, found `vllm`");
    check(json!({"engine": 3}), "`engine`: expected one of server, torch, found 3");
    check(
        json!({"base_url": "http://x"}),
        "`base_url`: expected `engine = \"server\"` as well, found \"http://x\"",
    );
    check(
        json!({"engine": "server", "base_url": "http://x", "model": "m"}),
        &format!(
            "`model_path`: expected `engine = \"torch\"` as well, found {}",
            json!(folder.path())
        ),
    );
    check(
        json!({"model_path": ""}),
        "`model_path`: expected a folder in Hugging Face format, found nothing",
    );
    check(json!({"max_running": 0}), "`max_running`: expected at least 1, found 0");
    check(
        json!({"guest_tokens": 8}),
        "`guest_tokens`: expected `colocated = true` as well, found 8",
    );
    check(
        json!({"max_tokens": 1024}),
        "`max_tokens`: expected 1 to 1023, less than the context of 1024 (the smaller of the model's and `kv_cache_tokens`), found 1024",
    );
    assert!(
        refused(json!({"memory_budget": "much"}))
            .ends_with("expected a number of bytes, or a text such as `1.5GiB`, found `much`")
    );
    check(
        json!({"device": "gpu"}),
        "`device`: expected auto, cpu, cuda or cuda:INDEX, found `gpu`",
    );
    assert!(refused(json!({"modelpath": "x"})).starts_with("`modelpath`: unknown field"));
    assert!(refused(json!({"model_path": "/nowhere"})).starts_with("`model_path`: cannot read"));
}

#[test]
fn a_folder_is_loaded_as_one_model() {
    let folder = speaker("Verdict: YES");
    let models = JudgeModels::default();
    let first = models.open_model(options(&folder)).unwrap();
    let detour = folder.path().join("..").join(folder.path().file_name().unwrap());
    let again = TorchChatOptions { model_path: detour, ..options(&folder) };
    assert!(Arc::ptr_eq(&first.0, &models.open_model(again).unwrap().0));
    let other = TorchChatOptions { max_running: 3, ..options(&folder) };
    let error = models.open_model(other.clone()).err().unwrap().to_string();
    assert_eq!(
        error,
        "`max_running`: expected 8, the value that another judge of the same model uses, found 3"
    );
    drop(first);
    assert!(models.open_model(other).is_ok(), "the first model is no longer in use");
}

/// Returns a queue, and a function that creates workers. Each worker answers the questions of the queue with the model of `folder`, up to
/// `max_running` at once.
fn worker(
    folder: &Folder,
    max_running: usize,
) -> (Arc<Questions>, impl Fn() -> JudgeWorker + use<>) {
    let questions = Arc::new(Questions::default());
    let decoder = Decoder::load(folder.path(), Device::Cpu).unwrap();
    let line = Arc::clone(&questions);
    let new = move || {
        let capacity = Capacity { max_running, kv_cache_tokens: 1000, token_limit: 256 };
        let wake: Waker = Arc::new(|| {});
        JudgeWorker::new(Box::new(decoder.share()), capacity, Arc::clone(&line), Some(wake))
            .unwrap()
    };
    (questions, new)
}

fn request(questions: &Questions, tokens: usize) -> tokio::sync::oneshot::Receiver<JudgeReply> {
    // The prompt ends with the character that makes a speaker start its text.
    let tokenizer = Tokenizer::characters(speaker::ALPHABET).unwrap();
    let prompt = tokenizer.encode(&format!("{}>", "x".repeat(tokens - 1))).unwrap();
    questions.push(prompt.into(), Sampling::greedy(100), RandomStream::from_key([0; 32])).unwrap()
}

fn answer(reply: &mut tokio::sync::oneshot::Receiver<JudgeReply>) -> Option<JudgeAnswer> {
    reply.try_recv().ok().map(Result::unwrap)
}

#[test]
fn a_dropped_answer_frees_its_slot() {
    let (questions, new) = worker(&speaker(CHAIN), 1);
    let _no_grad = tch::no_grad_guard();
    let mut worker = new();
    let (first, mut second) = (request(&questions, 4), request(&questions, 6));
    assert_eq!(worker.step(usize::MAX), 4);
    assert_eq!(
        (worker.pending_tokens(), worker.step(usize::MAX)),
        (1, 1),
        "no room for the second"
    );
    drop(first);
    assert_eq!(worker.pending_tokens(), 6, "the first is gone");
    assert_eq!(worker.step(usize::MAX), 6);
    // A waiting question is removed too.
    drop(request(&questions, 9));
    while worker.pending_tokens() > 0 {
        worker.step(usize::MAX);
    }
    assert_eq!(answer(&mut second).unwrap().ids.len(), CHAIN.len() + 1);
}

#[test]
fn an_answer_continues_elsewhere_from_its_tokens() {
    let (questions, new) = worker(&speaker(CHAIN), 8);
    let _no_grad = tch::no_grad_guard();
    let mut replies = [4, 9, 5].map(|tokens| request(&questions, tokens));
    let mut first = new();
    (0..10).for_each(|_| _ = first.step(usize::MAX));
    drop(first);
    assert_eq!(questions.next(), Some(4 + 10), "questions are answered in order");
    let mut second = new();
    let mut iterations = 0;
    while second.pending_tokens() > 0 {
        second.step(usize::MAX);
        iterations += 1;
    }
    assert_eq!(iterations, CHAIN.len() + 1 - 10, "no token is generated twice");
    let tokenizer = Tokenizer::characters(speaker::ALPHABET).unwrap();
    for reply in &mut replies {
        let JudgeAnswer { ids, reason } = answer(reply).unwrap();
        assert_eq!(
            (tokenizer.decode(&ids, true).unwrap().as_str(), reason),
            (CHAIN, FinishReason::Stop)
        );
    }
}

#[test]
fn two_instances_share_the_queue() {
    let (questions, new) = worker(&speaker(CHAIN), 1);
    let _no_grad = tch::no_grad_guard();
    let (mut one, mut other) = (new(), new());
    let mut replies = [4, 9].map(|tokens| request(&questions, tokens));
    assert_eq!((one.step(usize::MAX), other.step(usize::MAX)), (4, 9));
    while one.pending_tokens() + other.pending_tokens() > 0 {
        one.step(usize::MAX);
        other.step(usize::MAX);
    }
    assert!(replies.iter_mut().all(|reply| answer(reply).is_some()));
}

/// A model that fails in its third forward pass.
struct Broken(Decoder, u32, Fault);

type Fault = fn() -> TchError;

impl Network for Broken {
    fn config(&self) -> &ModelConfig {
        self.0.config()
    }

    fn device(&self) -> Device {
        self.0.device()
    }

    fn forward(
        &mut self,
        ids: &Tensor,
        positions: &Tensor,
        attend: &mut (dyn FnMut(usize, &Tensor, &Tensor, &Tensor) -> Result<Tensor, TchError> + '_),
    ) -> Result<Tensor, TchError> {
        self.1 += 1;
        if self.1 == 3 { Err((self.2)()) } else { self.0.forward(ids, positions, attend) }
    }

    fn logits(&mut self, hidden: &Tensor) -> Result<Tensor, TchError> {
        self.0.logits(hidden)
    }
}

#[test]
fn a_fault_fails_waiting_and_later_questions() {
    let folder = speaker(CHAIN);
    let faults: [(Fault, &str); 2] = [
        (|| TchError::Torch("no memory".to_owned()), "no memory"),
        (|| panic!("a bug"), "panicked: a bug"),
    ];
    for (fault, expected) in faults {
        let questions = Arc::new(Questions::default());
        let network = Broken(Decoder::load(folder.path(), Device::Cpu).unwrap(), 0, fault);
        let capacity = Capacity { max_running: 1, kv_cache_tokens: 1000, token_limit: 256 };
        let own = JudgeWorker::new(Box::new(network), capacity, Arc::clone(&questions), None);
        let waiting = [4, 9].map(|tokens| request(&questions, tokens));
        let own = own.unwrap();
        let thread = std::thread::spawn(move || own.serve());
        for reply in waiting {
            let reason = reply.blocking_recv().unwrap().unwrap_err();
            assert!(reason.contains(expected), "{reason}");
        }
        let late = questions.push([1].into(), Sampling::greedy(9), RandomStream::from_key([0; 32]));
        assert!(late.unwrap_err().contains(expected));
        questions.close();
        thread.join().unwrap();
    }
}
