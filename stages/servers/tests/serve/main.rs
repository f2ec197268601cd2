//! Tests of the server over a scripted engine, which check its answers as they are on the wire.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod client;
mod control;
mod scripted;

use std::net::SocketAddr;
use std::sync::Arc;

use client::{Answer, receive, send};
use rollpacker_dataflow::clock::WallClock;
use rollpacker_model::{ChatTemplate, PromptEncoder, Tokenizer};
use rollpacker_servers::serve::{ServeOptions, Service};
use scripted::Scripted;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// A server on a free port, which is stopped on drop.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Arc<Scripted>,
    _runtime: Runtime,
}

impl Server {
    fn start(by_hand: bool, api_key: Option<&str>) -> Self {
        let engine = Scripted::new(by_hand);
        let encoder = PromptEncoder {
            tokenizer: Arc::new(Tokenizer::characters("abcdefghé").unwrap()),
            template: ChatTemplate::new("{{ messages[-1].content }}").unwrap(),
        };
        let options = ServeOptions {
            names: vec!["m".to_owned(), "other".to_owned()],
            root: "/models/m".to_owned(),
            api_key: api_key.map(str::to_owned),
        };
        let clock = Arc::new(WallClock::start());
        let service = Arc::new(Service::new(engine.clone(), Arc::new(encoder), options, clock));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let _task = runtime.spawn(service.run(listener, std::future::pending()));
        Self { address, engine, _runtime: runtime }
    }

    fn new() -> Self {
        Self::start(false, None)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        receive(send(self.address, "POST", path, "", &body.to_string()))
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        receive(send(self.address, "GET", path, "", ""))
    }
}

const GENERATE: &str = "/inference/v1/generate";
const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

#[test]
fn tokens_in_tokens_out() {
    let server = Server::new();
    let body = json!({
        "request_id": "p7", "model": "m", "token_ids": [3, 4, 5],
        "sampling_params": {"n": 2, "max_tokens": 3, "logprobs": 1, "detokenize": false}, "cache_salt": "v1",
    });
    let answer = server.post(GENERATE, &body).json();
    assert_eq!(answer["request_id"], "generate-tokens-p7");
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9})
    );
    let [first, second] = [0, 1].map(|choice| &answer["choices"][choice]);
    assert_eq!(
        (&first["token_ids"], &first["finish_reason"]),
        (&json!([3, 4, 5]), &json!("length"))
    );
    assert_eq!(
        (&second["token_ids"], &second["finish_reason"]),
        (&json!([4, 5, 1]), &json!("stop"))
    );
    assert_eq!(second["stop_reason"], Value::Null, "an end-of-sequence token of the model");
    assert_eq!(first["weight_versions"], json!([{"version": "first", "start": 0, "end": 3}]));
    let scored = &first["logprobs"]["content"][1];
    assert_eq!((&scored["token_id"], &scored["logprob"]), (&json!(4), &json!(-0.5)));
    assert_eq!(scored["top_logprobs"][0]["token_id"], 0);
}

#[test]
fn a_stream_of_tokens_ends_with_reason_versions_and_usage() {
    let server = Server::new();
    let body = json!({
        "token_ids": [3, 4], "sampling_params": {"stop_token_ids": [4]}, "stream": true,
        "stream_options": {"include_usage": true},
    });
    let mut events = server.post(GENERATE, &body).events();
    assert_eq!(events.pop().unwrap()["usage"]["completion_tokens"], 2);
    let last = &events.pop().unwrap()["choices"][0];
    assert_eq!((&last["finish_reason"], &last["stop_reason"]), (&json!("stop"), &json!(4)));
    assert_eq!(last["weight_versions"], json!([{"version": "first", "start": 0, "end": 2}]));
    let tokens: Vec<&Value> = events.iter().map(|e| &e["choices"][0]["token_ids"][0]).collect();
    assert_eq!(tokens, [&json!(3), &json!(4)]);
}

#[test]
fn a_completion_has_text_and_logprobs() {
    let server = Server::new();
    let body =
        json!({"model": "m", "prompt": ["ab", [11, 3]], "logprobs": 1, "return_token_ids": true});
    let answer = server.post(COMPLETIONS, &body).json();
    assert_eq!(answer["object"], "text_completion");
    let [text, ids] = [0, 1].map(|choice| &answer["choices"][choice]);
    assert_eq!((&text["text"], &ids["text"]), (&json!("ab"), &json!("éa")));
    assert_eq!((&ids["index"], &ids["prompt_token_ids"]), (&json!(1), &json!([11, 3])));
    assert_eq!(ids["token_ids"], json!([11, 3, 1]));
    assert_eq!(ids["logprobs"]["tokens"], json!(["é", "a", "<|eos|>"]));
    assert_eq!(ids["logprobs"]["text_offset"], json!([0, 1, 2]));
    assert_eq!(ids["logprobs"]["token_logprobs"], json!([-1.375, -0.375, -0.125]));
    assert_eq!(text["logprobs"]["top_logprobs"][0], json!({"<|pad|>": -1.0, "a": -0.375}));
}

#[test]
fn a_prompt_is_scored_without_sampling() {
    let server = Server::new();
    let body = json!({"prompt": "abc", "echo": true, "logprobs": 0, "max_tokens": 0});
    let choice = server.post(COMPLETIONS, &body).json()["choices"][0].take();
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("abc"), &json!("length")));
    assert_eq!(choice["logprobs"]["token_logprobs"], json!([null, -0.5, -0.625]));
    let body = json!({"prompt": "ab", "prompt_logprobs": 0, "max_tokens": 1});
    let choice = server.post(COMPLETIONS, &body).json()["choices"][0].take();
    assert_eq!(choice["prompt_logprobs"][0], Value::Null);
    assert_eq!(choice["prompt_logprobs"][1]["4"]["logprob"], -0.5);
    let body =
        json!({"token_ids": [3, 4], "sampling_params": {"max_tokens": 1, "prompt_logprobs": 1}});
    let answer = server.post(GENERATE, &body).json();
    let place = &answer["prompt_logprobs"][1];
    assert_eq!(answer["choices"][0]["token_ids"], json!([3]));
    assert_eq!((&place["4"]["rank"], &place["0"]["logprob"]), (&json!(3), &json!(-1.0)));
}

#[test]
fn a_call_that_only_scores_has_empty_choices() {
    let server = Server::new();
    let body = json!({"token_ids": [3, 4], "sampling_params": {"max_tokens": 0, "prompt_logprobs": 0, "n": 2}});
    let answer = server.post(GENERATE, &body).json();
    assert_eq!(answer["prompt_logprobs"].as_array().unwrap().len(), 2);
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    assert_eq!(
        (&choices[1]["token_ids"], &choices[1]["finish_reason"]),
        (&json!([]), &json!("length"))
    );
}

#[test]
fn a_stop_text_ends_its_choice_alone() {
    let server = Server::start(true, None);
    let body = json!({"prompt": "abcdab", "stop": ["cd"], "n": 2, "return_token_ids": true});
    let call = send(server.address, "POST", COMPLETIONS, "", &body.to_string());
    server.engine.wait_for(1);
    // The second choice meets the stop text with its third token, the first with its fourth. Each is aborted before the next token, or the
    // engine could end both before the server reads their text.
    (0..3).for_each(|_| server.engine.step());
    server.engine.wait_for_aborts(1);
    server.engine.step();
    server.engine.wait_for_aborts(2);
    let choices = receive(call).json()["choices"].take();
    for (choice, text, tokens) in [(0, "ab", 4), (1, "b", 3)] {
        let choice = &choices[choice];
        assert_eq!((&choice["text"], &choice["stop_reason"]), (&json!(text), &json!("cd")));
        assert_eq!(choice["finish_reason"], "stop");
        assert_eq!(choice["token_ids"].as_array().unwrap().len(), tokens, "without later tokens");
    }
}

#[test]
fn a_streamed_completion_is_the_same_text_in_parts() {
    let server = Server::new();
    let body = json!({"prompt": "aébé", "stream": true, "n": 2, "logprobs": 0});
    let events = server.post(COMPLETIONS, &body).events();
    let mut texts = [String::new(), String::new()];
    let mut reasons = [Value::Null, Value::Null];
    for event in &events {
        let choice = &event["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        texts[index] += choice["text"].as_str().unwrap();
        if !choice["finish_reason"].is_null() {
            reasons[index] = choice["finish_reason"].clone();
        }
    }
    assert_eq!(texts, ["aébé", "ébé"]);
    assert_eq!(reasons, [json!("stop"), json!("stop")]);
    let offsets = events.iter().filter_map(|event| {
        let choice = event["choices"].get(0).filter(|choice| choice["index"] == 0)?;
        choice["logprobs"]["text_offset"][0].as_u64()
    });
    assert_eq!(offsets.collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

#[test]
fn the_first_event_of_each_choice_has_the_token_ids_of_its_prompt() {
    let server = Server::new();
    let body = json!({"prompt": [[3, 4], [5]], "n": 2, "stream": true, "return_token_ids": true});
    let events = server.post(COMPLETIONS, &body).events();
    let prompts = |index: u32| {
        let choices = events.iter().map(|event| &event["choices"][0]);
        let own = choices.filter(move |choice| choice["index"] == index);
        own.map(|choice| choice["prompt_token_ids"].clone()).collect::<Vec<_>>()
    };
    for (index, ids) in [(0, json!([3, 4])), (1, json!([3, 4])), (2, json!([5])), (3, json!([5]))] {
        let found = prompts(index);
        assert_eq!(found[0], ids, "choice {index}");
        assert!(found[1..].iter().all(Value::is_null), "{found:?}");
    }
    let messages = json!([{"role": "user", "content": "ab"}]);
    let body = json!({"messages": messages, "n": 2, "stream": true, "return_token_ids": true});
    let events = server.post(CHAT, &body).events();
    for (at, event) in events.iter().enumerate() {
        let expected = if at < 2 { json!([3, 4]) } else { Value::Null };
        assert_eq!(event["prompt_token_ids"], expected, "event {at}");
    }
}

#[test]
fn a_stop_text_within_the_minimum_of_tokens_does_not_count() {
    let server = Server::new();
    for (min, text) in [(0, "ab"), (3, "ab"), (4, "abcdab")] {
        let body = json!({"prompt": "abcdab", "stop": "cd", "min_tokens": min});
        let choice = server.post(COMPLETIONS, &body).json()["choices"][0].take();
        assert_eq!(choice["text"], text, "min_tokens {min}");
    }
}

#[test]
fn a_chat_is_answered_by_its_template() {
    let server = Server::new();
    let messages = json!([{"role": "system", "content": "h"}, {"role": "user", "content": [{"type": "text", "text": "ab"}]}]);
    let body = json!({"model": "other", "messages": messages, "logprobs": true, "top_logprobs": 2, "max_completion_tokens": 2});
    let answer = server.post(CHAT, &body).json();
    assert_eq!((&answer["object"], &answer["model"]), (&json!("chat.completion"), &json!("m")));
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"], json!({"role": "assistant", "content": "ab"}));
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["logprobs"]["content"][1]["token"], "b");
    assert_eq!(choice["logprobs"]["content"][1]["top_logprobs"].as_array().unwrap().len(), 2);
    let body =
        json!({"messages": messages, "stream": true, "stream_options": {"include_usage": true}});
    let mut events = server.post(CHAT, &body).events();
    assert_eq!(events.pop().unwrap()["usage"]["total_tokens"], 5);
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let parts = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(parts.collect::<String>(), "ab");
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[test]
fn unsupported_parameters_are_refused_by_name() {
    let server = Server::new();
    let tokens = |params: Value| json!({"token_ids": [3], "sampling_params": params});
    let text = |name: &str, value: Value| json!({"prompt": "a", name: value});
    let chat = |name: &str, value: Value| {
        let mut chat = json!({"messages": [{"role": "user", "content": "a"}]});
        chat[name] = value;
        chat
    };
    let cached = json!([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]);
    for (path, body, param) in [
        (GENERATE, tokens(json!({"min_p": 0.5})), "min_p"),
        (GENERATE, tokens(json!({"temprature": 1})), "temprature"),
        (GENERATE, tokens(json!({"logprobs": -1})), "logprobs"),
        (GENERATE, tokens(json!({"max_tokens": 0})), "max_tokens"),
        (
            GENERATE,
            json!({"token_ids": [3], "sampling_params": {}, "features": {"x": 1}}),
            "features",
        ),
        (COMPLETIONS, text("suffix", json!("x")), "suffix"),
        (COMPLETIONS, text("best_of", json!(2)), "best_of"),
        (COMPLETIONS, json!({"prompt": [1.5]}), "prompt"),
        (COMPLETIONS, json!({"prompt": vec!["a"; 65], "n": 1024}), "n"),
        (COMPLETIONS, text("stream_options", json!({"include_usage": true})), "stream_options"),
        (COMPLETIONS, json!({"prompt": "a", "echo": true, "stream": true}), "echo"),
        (COMPLETIONS, json!({"prompt": "a", "echo": true, "logprobs": 0, "stop": "b"}), "echo"),
        (CHAT, json!({"messages": [{"role": "user", "content": "a"}], "tools": [{}]}), "tools"),
        (CHAT, json!({"messages": [], "max_tokens": 1}), "messages"),
        (CHAT, chat("detokenize", json!(false)), "detokenize"),
        (CHAT, chat("prompt_logprobs", json!(1)), "prompt_logprobs"),
        (CHAT, chat("messages", json!([{"role": "user", "content": cached}])), "messages"),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 1}),
            "top_logprobs",
        ),
    ] {
        let (status, message, found) = server.post(path, &body).error();
        assert_eq!((status, found), (400, json!(param)), "{message}");
        assert!(message.contains(param), "{message}");
    }
    let wrong = server.post(CHAT, &chat("temperature", json!("hot"))).error();
    assert!(wrong.1.contains("`temperature`"), "{}", wrong.1);
    for (path, body, param, expected) in [
        (CHAT, chat("temperature", json!("hot")), json!("temperature"), "expected a number"),
        (GENERATE, tokens(json!({"n": -1})), json!("sampling_params.n"), "from 0 to 4294967295"),
        (GENERATE, json!([]), Value::Null, "expected an object"),
        (
            GENERATE,
            tokens(json!({"max_tokens": 1e300})),
            json!("sampling_params.max_tokens"),
            "an integer from 0",
        ),
    ] {
        let (status, message, found) = server.post(path, &body).error();
        assert_eq!((status, found), (400, param), "{message}");
        assert!(message.contains(expected), "{message}");
    }
    let wrong = server.post(GENERATE, &json!({"sampling_params": {}})).error();
    assert!(wrong.1.contains("token_ids"), "{}", wrong.1);
    let not_json = receive(send(server.address, "POST", GENERATE, "", "{")).error();
    assert_eq!(not_json.0, 400);
    let unknown = server.post(COMPLETIONS, &json!({"model": "gpt", "prompt": "a"})).error();
    assert!(unknown.0 == 404 && unknown.1.contains("`gpt`"), "{}", unknown.1);
    // Texts that are far too long are not tokenized, and not quoted as a whole.
    let long = "a".repeat(1000);
    for (path, body) in [
        (COMPLETIONS, text("prompt", json!([long]))),
        (CHAT, chat("messages", json!([{"role": "user", "content": long}]))),
    ] {
        let (status, message, _) = server.post(path, &body).error();
        assert!(status == 400 && message.contains("at least 143 tokens"), "{message}");
    }
    let wrong = server.post(COMPLETIONS, &text("prompt", json!(vec![0.5; 10_000]))).error();
    assert!(wrong.0 == 400 && wrong.1.len() < 2100, "{}", wrong.1.len());
    let long = server.post(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 32})).error();
    assert!(long.0 == 400 && long.1.contains("32 tokens"), "{}", long.1);
}

#[test]
fn lists_and_ids_of_requests_are_bounded() {
    let server = Server::new();
    let tokens = |params: Value| json!({"token_ids": [3], "sampling_params": params});
    let text = |name: &str, value: Value| json!({"prompt": "a", name: value});
    for (path, body, param) in [
        (GENERATE, tokens(json!({"stop_token_ids": vec![3; 1025]})), "stop_token_ids"),
        (COMPLETIONS, text("stop", json!(vec!["a"; 1025])), "stop"),
        (COMPLETIONS, text("request_id", json!("i".repeat(1025))), "request_id"),
    ] {
        let (status, message, found) = server.post(path, &body).error();
        assert_eq!((status, found), (400, json!(param)), "{message}");
    }
    let long = "a".repeat((16 << 20) + 1);
    let messages = json!([{"role": "user", "content": long}, {"role": "user", "content": "a"}]);
    let (status, message, found) = server.post(CHAT, &json!({ "messages": messages })).error();
    assert_eq!((status, found), (400, json!("messages")), "{message}");
}

#[test]
fn an_answer_repeats_its_prompts_a_bounded_number_of_times() {
    let server = Server::new();
    let prompts = vec![vec![3; 30]; 64];
    let calls = [
        json!({"return_token_ids": true, "echo": true, "prompt_logprobs": 0, "n": 1024}),
        json!({"prompt_logprobs": 20, "n": 128}),
        json!({"echo": true, "logprobs": 5, "n": 512}),
    ];
    for mut body in calls {
        body["prompt"] = json!(prompts);
        body["max_tokens"] = json!(1);
        let (status, message, found) = server.post(COMPLETIONS, &body).error();
        assert_eq!((status, found), (400, json!("n")), "{message}");
        assert!(message.contains("at most 4194304 token ids"), "{message}");
        body["n"] = json!(1);
        assert_eq!(server.post(COMPLETIONS, &body).status, 200);
    }
}

#[test]
fn a_long_stop_text_does_not_slow_the_tokens_down() {
    let server = Server::new();
    let stop = format!("{}b", "a".repeat(8 << 20));
    let body = json!({"prompt": "aaaaaaab", "stop": [stop, "bc"], "max_tokens": 16});
    let choice = server.post(COMPLETIONS, &body).json()["choices"][0].take();
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("aaaaaaab"), &json!("stop")));
}
