use futures::future::join_all;
use rollpacker_stages::reward::ErrorKind;
use serde_json::json;

use super::*;
use crate::Guard;
use crate::test_server::{Reply, Server};

fn reward(url: &str, options: Value) -> HttpReward {
    let mut all = json!({ "url": url });
    let all = all.as_object_mut().expect("an object");
    all.extend(options.as_object().expect("an object").clone());
    let options = serde_json::from_value(Value::Object(all.clone())).expect("options");
    HttpReward::new(options).expect("in bounds")
}

fn sample(response: &str) -> Sample {
    let messages = r#"[{"role": "user", "content": "2+2?"}]"#.to_owned();
    Sample { messages, ..Sample::of("any", response, Some("4")) }
}

#[test]
fn options_are_checked() {
    let check = |options: Value, expected: &str| {
        let options = serde_json::from_value(options).expect("options");
        assert_eq!(HttpReward::new(options).err().expect("wrong").to_string(), expected);
    };
    let url = "http://127.0.0.1:1";
    let none = "`max_batch`: expected at least 1, found 0";
    check(json!({"url": url, "form": "batch", "max_batch": 0}), none);
    check(json!({"url": "x"}), "the URL `x`: relative URL without a base");
}

async fn score(reward: &impl Reward, response: &str) -> Result<Score, RewardError> {
    reward.score(&sample(response), &Context::detached()).await
}

async fn answered(answer: Value) -> Result<Score, RewardError> {
    let server = Server::start(move |_, _| Reply::json(&answer)).await;
    score(&reward(&server.url, json!({})), "x").await
}

#[tokio::test]
async fn a_request_uses_the_field_names_of_slime() {
    let server = Server::start(|_, _| Reply::json(&json!(0.5))).await;
    let reward = reward(&format!("{}/rm", server.url), json!({}));
    assert_eq!(score(&reward, "is 4").await, Ok(0.5.into()));
    assert_eq!(score(&reward, "is 4").await, Ok(0.5.into()));
    let request = &server.requests()[0];
    assert!(request.head.starts_with("post /rm http/1.1"), "{}", request.head);
    assert_eq!(request.body, json!({"prompt": "2+2?", "response": "is 4", "label": "4"}));
    assert_eq!(server.connections(), 1, "the connection is used again");
}

#[tokio::test]
async fn a_request_to_openrlhf_has_lists() {
    let server = Server::start(|_, request| {
        let queries = request.body["query"].as_array().expect("a list");
        let lengths: Vec<_> = queries.iter().map(|query| query.as_str().map(str::len)).collect();
        let ones = vec![1; queries.len()];
        Reply::json(&json!({"rewards": lengths, "scores": ones, "extra_logs": {"len": lengths}}))
    })
    .await;
    let options = json!({"form": "batch", "max_batch": 3, "max_wait_s": 60.0});
    let reward = reward(&server.url, options);
    let scores = join_all(["", "a", "bb"].map(|response| score(&reward, response))).await;
    let values: Vec<_> = scores.iter().flatten().map(|score| score.value).collect();
    assert_eq!(values, [4.0, 5.0, 6.0]);
    let parts = &scores[2].as_ref().expect("scores").components;
    assert_eq!((parts["scores"], parts["len"]), (1.0, 6.0));
    let expected = json!({
        "query": ["2+2?", "2+2?a", "2+2?bb"],
        "prompts": ["2+2?", "2+2?", "2+2?"],
        "labels": ["4", "4", "4"],
    });
    assert_eq!(server.requests()[0].body, expected);
}

#[tokio::test]
async fn one_number_is_not_the_score_of_several_samples() {
    for answer in [
        json!({"error": null, "score": 0.5}),
        json!({"score": 0.5, "extra_logs": {"len": [1, 2, 3]}}),
        json!({"score": 0.5, "len": [1, 2, 3]}),
        json!({"score": true, "len": [1, 2, 3]}),
        json!({"error": 503, "kind": "retryable"}),
        json!(0.5),
    ] {
        let sent = answer.clone();
        let server = Server::start(move |_, _| Reply::json(&sent)).await;
        let options = json!({"form": "batch", "max_batch": 3, "max_wait_s": 60.0});
        let reward = reward(&server.url, options);
        let scores = join_all(["", "a", "bb"].map(|response| score(&reward, response))).await;
        assert!(scores.iter().all(Result::is_err), "{answer}: {scores:?}");
    }
}

#[tokio::test]
async fn an_unreadable_sample_of_a_batch_has_an_error_of_its_own() {
    let server = Server::start(|_, request| {
        let count = request.body["label"].as_array().expect("a list").len();
        Reply::json(&json!({"scores": (0..count).collect::<Vec<_>>()}))
    })
    .await;
    let fields = json!({"label": "ground_truth", "extra": "extra_info"});
    let options = json!({"form": "batch", "max_batch": 3, "max_wait_s": 60.0, "fields": fields});
    let reward = reward(&server.url, options);
    let scored = async |extras: [&str; 3]| {
        let samples =
            extras.map(|extra| Sample { extra_info: Some(extra.to_owned()), ..sample("x") });
        let context = Context::detached();
        let scores = join_all(samples.iter().map(|sample| reward.score(sample, &context))).await;
        scores
            .into_iter()
            .map(|score| score.map(|score| score.value).map_err(|error| error.reason))
            .collect::<Vec<_>>()
    };
    let found = scored(["{}", "[1]", "{}"]).await;
    assert_eq!((&found[0], &found[2]), (&Ok(0.0), &Ok(1.0)));
    let error = found[1].as_ref().expect_err("unreadable");
    assert!(error.starts_with("field `extra_info`: expected a JSON object"), "{error}");
    assert!(scored(["", "x", "1"]).await.iter().all(Result::is_err));
    assert_eq!(server.requests().len(), 1, "a batch without a readable sample is not sent");
}

#[tokio::test]
async fn fields_have_the_configured_names() {
    let server = Server::start(|_, _| Reply::json(&json!({"acc": true, "score": 7}))).await;
    let fields = json!({"q": "messages", "src": "data_source", "extra": "extra_info"});
    let reward = reward(&server.url, json!({"fields": fields, "score": "acc"}));
    let found = score(&reward, "x").await.expect("scores");
    assert_eq!((found.value, found.components["score"]), (1.0, 7.0));
    let messages = json!([{"role": "user", "content": "2+2?"}]);
    let expected = json!({"q": messages, "src": "any", "extra": {}});
    assert_eq!(server.requests()[0].body, expected);
}

#[tokio::test]
async fn answers_are_parsed_and_invalid_ones_are_errors() {
    assert_eq!(answered(json!(true)).await, Ok(1.0.into()));
    assert_eq!(answered(json!([0.25])).await, Ok(0.25.into()));
    assert_eq!(answered(json!({"rewards": [0.25]})).await, Ok(0.25.into()));
    let found = answered(json!({"score": 1, "acc": 0.5, "why": "so"})).await.expect("scores");
    assert_eq!(
        (found.value, found.components["acc"], found.labels["why"].as_str()),
        (1.0, 0.5, "so")
    );
    let kind = async |answer| answered(answer).await.expect_err("no score").kind;
    assert_eq!(kind(Value::Null).await, ErrorKind::NotApplicable);
    assert_eq!(kind(json!({"score": null})).await, ErrorKind::NotApplicable);
    assert_eq!(kind(json!({"error": "busy", "kind": "retryable"})).await, ErrorKind::Retryable);
    for wrong in [json!("0.5"), json!({}), json!([1, 2]), json!({"acc": 1}), json!({"score": "1"})]
    {
        assert_eq!(kind(wrong).await, ErrorKind::Fatal);
    }
}

#[tokio::test]
async fn errors_have_their_kind_and_the_message_of_the_server() {
    let check = async |reply: fn() -> Reply, kind: ErrorKind, expected: &str| {
        let server = Server::start(move |_, _| reply()).await;
        let error = score(&reward(&server.url, json!({})), "x").await.expect_err("fails");
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.reason.contains(expected) && error.reason.contains(&server.url), "{error}");
        error.retry_after
    };
    let busy = || {
        Reply::Text(429, "retry-after: 7\r\n", r#"{"error": {"message": "slow down"}}"#.to_owned())
    };
    let wait = check(busy, ErrorKind::Retryable, "429 Too Many Requests: slow down").await;
    assert_eq!(wait, Some(Duration::from_secs(7)));
    let down = || Reply::Text(503, "", "<html>down</html>".to_owned());
    check(down, ErrorKind::Retryable, "503 Service Unavailable: <html>down</html>").await;
    let wrong = || Reply::Text(400, "", r#"{"detail": "no such model"}"#.to_owned());
    check(wrong, ErrorKind::Fatal, "400 Bad Request: no such model").await;
    let moved = || Reply::Text(307, "location: /x\r\n", String::new());
    check(moved, ErrorKind::Fatal, "307").await;
    check(
        || Reply::Text(200, "", "<html>".to_owned()),
        ErrorKind::Fatal,
        "expected JSON, found `<html>`",
    )
    .await;
    let half = || Reply::Raw("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"score\"");
    check(half, ErrorKind::Retryable, "").await;
    check(|| Reply::Raw(""), ErrorKind::Retryable, "").await;
    let flood = || Reply::Text(200, "", " ".repeat(17 << 20));
    check(flood, ErrorKind::Fatal, "exceeds 16777216 bytes").await;
}

#[tokio::test]
async fn an_unreachable_server_is_retryable() {
    let server = Server::start(|_, _| Reply::Hang).await;
    let url = server.url.clone();
    drop(server);
    // Until its listener is closed, the server may still accept the connection and then break it.
    let error = score(&reward(&url, json!({})), "x").await.expect_err("nobody is there");
    assert_eq!(error.kind, ErrorKind::Retryable, "{error}");
}

#[tokio::test]
async fn a_dropped_call_closes_its_connection() {
    let server = Server::start(|_, _| Reply::Hang).await;
    let reward = reward(&server.url, json!({}));
    tokio::select! {
        _ = score(&reward, "x") => panic!("it never answers"),
        () = server.arrived() => {}
    }
    server.disconnected().await;
    let reward = Guard { timeout_s: Some(0.05), ..Guard::default() }.wrap(reward).expect("wraps");
    let error = score(&reward, "x").await.expect_err("it never answers");
    assert_eq!(error.kind, ErrorKind::Timeout);
    server.disconnected().await;
}

#[test]
fn a_missing_key_and_an_invalid_url_are_named() {
    let error = |options: Value| {
        let options = serde_json::from_value(options).expect("options");
        HttpReward::new(options).err().expect("wrong").to_string()
    };
    let missing = error(json!({"url": "http://x", "api_key_env": "ROLLPACKER_NO_SUCH_KEY"}));
    let expected = "the environment variable `ROLLPACKER_NO_SUCH_KEY` with the key is not set";
    assert_eq!(missing, expected);
    assert!(error(json!({"url": "nowhere"})).starts_with("the URL `nowhere`: "));
}

#[test]
fn an_invalid_url_that_may_have_a_password_is_not_printed() {
    let error = |url: &str| {
        let options = serde_json::from_value(json!({ "url": url })).expect("options");
        HttpReward::new(options).err().expect("wrong").to_string()
    };
    assert!(!error("http://user:pass/word@host").contains("word"));
    assert!(!error("host?key=word").contains("word"));
    let recorded = error("http://[redacted]@host/");
    assert!(recorded.contains("expected credentials"), "{recorded}");
}

#[test]
fn a_key_given_instead_of_its_variable_is_not_printed() {
    let options = json!({"url": "http://x", "api_key_env": "sk-0123"});
    let error = HttpReward::new(serde_json::from_value(options).expect("options"));
    let error = error.err().expect("wrong").to_string();
    assert!(error.contains("api_key_env") && !error.contains("sk-0123"), "{error}");
}

/// Returns the value of an environment variable that every test process has.
fn key() -> String {
    std::env::var("PATH").expect("is set").trim().to_owned()
}

#[tokio::test]
async fn the_key_is_sent_and_stays_out_of_errors() {
    let server = Server::start(|_, _| Reply::Text(401, "", "who?".to_owned())).await;
    let reward = reward(&format!("{}/rm?token=secret", server.url), json!({"api_key_env": "PATH"}));
    let error = score(&reward, "x").await.expect_err("refused").to_string();
    assert!(server.requests()[0].head.contains(&format!("bearer {}", key().to_lowercase())));
    assert!(!error.contains("secret") && !error.contains(&key()), "{error}");
}

/// The server repeats the request in every part of the answer that is read.
#[tokio::test]
async fn secrets_in_server_answers_are_redacted() {
    let leaked = format!("Bearer {} dXNlcjpwYXNzLXdvcmQ= pass-word query-key", key());
    let echoed = |status, body: Value| Reply::Text(status, "", body.to_string());
    let long = |length| format!("{}{}", " x".repeat(length), key());
    let replies = [
        echoed(401, json!({"error": {"message": leaked}})),
        echoed(500, json!({"headers": {"authorization": leaked}})),
        Reply::Text(400, "", format!("<html>{leaked}")),
        Reply::Text(400, "", long(240)),
        Reply::Text(200, "", format!("<html>{leaked}")),
        echoed(200, json!({"score": leaked})),
        echoed(200, json!({"error": leaked})),
        echoed(200, json!({leaked.clone(): 1})),
        echoed(200, json!({"score": 1, "why": leaked, leaked.clone(): 2})),
    ];
    let replies = std::sync::Mutex::new(replies.into_iter());
    let server = Server::start(move |_, _| {
        replies.lock().expect("no panic").next().expect("a reply for each request")
    })
    .await;
    let url = server.url.replace("http://", "http://user:pass-word@");
    let reward = reward(&format!("{url}/rm?key=query-key"), json!({"api_key_env": "PATH"}));
    for number in 0..9 {
        let found = format!("{:?}", score(&reward, "x").await);
        for secret in [&key()[..12], "dXNlcjpwYXNzLXdvcmQ", "pass-word", "query-key"] {
            assert!(!found.contains(secret), "reply {number}: {found}");
        }
        assert!(found.contains("[redacted]"), "reply {number}: {found}");
    }
}
