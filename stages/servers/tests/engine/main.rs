//! Tests of the engine against servers that speak vLLM's protocol over real HTTP, with and without faults.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod panics;
mod server;
mod toy;
mod weights;
mod world;

use std::time::Duration;

use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_servers::engine::ServersConfig;
use rollpacker_servers::server::Limits;
use rollpacker_servers::vllm::protocol::PauseMode;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::rollout::{FinishReason, Partial, Request, RolloutEngine};
use rollpacker_stages::testkit::{EngineWorld, check_engine};
use tempfile::TempDir;

use self::server::Server;
use self::world::{Caller, MAX_WAIT, PACE, check_tokens, config, id, prompt, start, wait_for};

#[test]
fn the_engine_passes_the_testkit_in_every_mode() {
    let servers = [Server::start(PACE), Server::start(PACE)];
    for pause in [PauseMode::Abort, PauseMode::Wait, PauseMode::Keep] {
        let folder = tempfile::tempdir().unwrap();
        let world = EngineWorld {
            policies: (0..3).map(toy::policy).collect(),
            prompts: (0..3).map(prompt).collect(),
            samples: 3,
            timeout: Duration::from_secs(20),
            is_reproducible: false,
            virtual_time: None,
        };
        let start = || {
            let config = config(&[&servers[0], &servers[1]], &folder);
            start(ServersConfig { pause, ..config }).unwrap()
        };
        check_engine(start, &world).unwrap();
    }
}

#[test]
fn responses_are_whole_and_of_the_loaded_weights() {
    let servers = [Server::start(PACE), Server::start(PACE)];
    let mut caller = Caller::start(&[&servers[0], &servers[1]], |_| {});
    (0..8).for_each(|prompt| caller.request(0, prompt, 4));
    let responses = caller.collect(32);
    check_tokens(&responses);
    for response in responses.values() {
        let ends = response.response_ids.last() == Some(&toy::END);
        let expected = if ends { FinishReason::Stop } else { FinishReason::Length };
        assert_eq!((response.finish_reason, response.preemptions), (expected, 0));
        assert!(ends || response.response_length == 24);
        assert_eq!(response.text, format!("{:?}", response.response_ids));
        assert!(response.started <= response.finished);
    }
    let instances: std::collections::BTreeSet<_> =
        responses.values().map(|response| response.instance).collect();
    assert_eq!(instances.into_iter().collect::<Vec<_>>(), [0, 1], "both servers work");
}

#[test]
fn samples_of_a_prompt_share_a_server_and_its_salt() {
    let servers = [Server::start(PACE), Server::start(PACE)];
    let mut caller = Caller::start(&[&servers[0], &servers[1]], |_| {});
    (0..4).for_each(|prompt| caller.request(0, prompt, 4));
    let responses = caller.collect(16);
    for number in 0..4 {
        let own = responses.values().filter(|response| response.id.prompt == PromptId(number));
        let servers: std::collections::BTreeSet<_> = own.map(|own| own.instance).collect();
        assert_eq!(servers.len(), 1, "prompt {number} is on {servers:?}");
    }
    let salts = servers[0].state().salts.clone();
    assert!(salts.iter().all(|salt| salt.starts_with("v0-")), "{salts:?}");
}

#[test]
fn prompts_avoid_a_server_in_which_requests_wait() {
    let servers = [Server::start(PACE), Server::start(PACE)];
    servers[0].state().cache_use = (1.0, 3);
    let mut caller = Caller::start(&[&servers[0], &servers[1]], |_| {});
    caller.wait_loaded(0);
    // The second reading of the metrics begins when the first one has been recorded.
    wait_for(|| servers.iter().all(|server| server.call_count("metrics") > 1));
    (0..2).for_each(|prompt| caller.request(0, prompt, 4));
    let responses = caller.collect(8);
    assert!(responses.values().all(|response| response.instance == 1), "{responses:?}");
}

#[test]
fn a_server_runs_at_most_its_share_at_once() {
    let server = Server::start(PACE);
    let mut caller = Caller::start(&[&server], |config| config.max_running = 3);
    (0..5).for_each(|prompt| caller.request(0, prompt, 4));
    check_tokens(&caller.collect(20));
    assert_eq!(server.state().most_running, 3);
}

#[test]
fn an_aborted_response_keeps_its_tokens() {
    let server = Server::start(Duration::from_millis(20));
    let mut caller = Caller::start(&[&server], |config| {
        config.max_running = 1;
        config.sampling.min_new_tokens = 24;
    });
    caller.request(0, 0, 2);
    let work = caller.engine.work().unwrap();
    wait_for(|| work() >= 3);
    caller.engine.abort(id(0, 0, 0));
    caller.engine.abort(id(0, 0, 1));
    let responses = caller.collect(2);
    check_tokens(&responses);
    let (ran, waited) = (&responses[&id(0, 0, 0)], &responses[&id(0, 0, 1)]);
    assert_eq!(
        (ran.finish_reason, waited.finish_reason),
        (FinishReason::Abort, FinishReason::Abort)
    );
    assert!((3..24).contains(&ran.response_length), "{}", ran.response_length);
    assert_eq!(waited.response_length, 0);
    assert_eq!(server.state().prompts.len(), 1, "the second response never ran");
}

#[test]
fn a_resumed_response_continues_from_its_tokens() {
    let server = Server::start(PACE);
    let mut caller = Caller::start(&[&server], |_| {});
    caller.request(0, 0, 1);
    let first = caller.collect(1).remove(&id(0, 0, 0)).unwrap();
    let half = first.response_ids.len() / 2;
    caller.engine.generate(Request {
        step: Step(1),
        prompt: PromptId(0),
        samples: 0..1,
        prompt_ids: prompt(0),
        resumed: vec![Partial {
            sample: 0,
            launched: Step(0),
            response_length: half as u32,
            response_ids: first.response_ids[..half].to_vec(),
            logprobs: first.logprobs[..half].to_vec(),
            token_versions: first.token_versions.prefix(half),
        }],
    });
    let responses = caller.collect(1);
    check_tokens(&responses);
    let resumed = &responses[&id(1, 0, 0)];
    assert_eq!(resumed.response_ids[..half], first.response_ids[..half]);
    assert!(resumed.response_length <= 24, "the bound is that of the whole response");
    let expected = [&*prompt(0), &first.response_ids[..half]].concat();
    assert_eq!(server.state().prompts[1], expected);
}

#[test]
fn unsupported_settings_of_a_server_are_refused_by_name() {
    let server = Server::start(PACE);
    let folder = tempfile::tempdir().unwrap();
    let refused = |change: &dyn Fn(&mut ServersConfig)| {
        let mut config = config(&[&server], &folder);
        config.server_timeout = Duration::from_millis(300);
        change(&mut config);
        start(config).err().expect("is refused").to_string().replace(&server.url(), "URL")
    };
    let warm = Sampling { temperature: 0.7, ..Sampling::unrestricted(8) };
    assert!(refused(&|config| config.sampling = warm).starts_with("`temperature`: expected 1"));
    assert_eq!(
        refused(&|config| config.model = Some("other".to_owned())),
        "URL: expected the model `other`, found `toy`"
    );
    assert!(
        refused(&|config| config.max_prompt_length = 60)
            .starts_with("URL: expected room for 84 tokens of prompt and response, found 64")
    );
    assert!(refused(&|config| config.servers.clear()).starts_with("`servers`: expected at least"));
    let dead = refused(&|config| config.servers = vec!["http://127.0.0.1:1".to_owned()]);
    assert!(
        dead.starts_with("no server answered for 300ms; the last error: http://127.0.0.1:1/health"),
        "{dead}"
    );
}

#[test]
fn a_server_without_token_ids_is_refused_unless_it_is_paused() {
    let server = Server::start(PACE);
    server.state().tokenless = true;
    let folder = tempfile::tempdir().unwrap();
    let error = start(config(&[&server], &folder)).err().expect("is refused").to_string();
    assert!(error.contains("expected a log-probability for each token, found [] and"), "{error}");
    // An earlier run may have ended in a pause. A call would wait, and the first delivery resumes the server.
    server.state().paused = true;
    start(config(&[&server], &folder)).unwrap();
}

#[test]
fn a_server_that_hangs_at_the_start_is_not_waited_for_longer_than_the_server_timeout() {
    let servers = [Server::start(PACE), Server::start(PACE)];
    let config = |servers: &[&Server], folder: &TempDir| ServersConfig {
        server_timeout: Duration::from_secs(1),
        limits: Limits { call: Duration::from_secs(3600), ..Limits::default() },
        ..config(servers, folder)
    };
    servers[1].state().hangs = true;
    let (sender, started) = std::sync::mpsc::channel();
    let hanging = servers[1].url();
    // The thread is not joined: if the test fails, the start may take an hour.
    let _thread = std::thread::spawn(move || {
        let folder = tempfile::tempdir().unwrap();
        let engine = start(config(&[&servers[0], &servers[1]], &folder)).unwrap();
        let mut caller = Caller::new(engine, folder);
        caller.request(0, 0, 4);
        let responses = caller.collect(4).into_values();
        let instances: Vec<_> = responses.map(|response| response.instance).collect();
        let folder = tempfile::tempdir().unwrap();
        let error = start(config(&[&servers[1]], &folder)).err().expect("is refused");
        sender.send((instances, error.to_string())).unwrap();
    });
    let (instances, error) = started.recv_timeout(MAX_WAIT).expect("the engine starts");
    assert_eq!(instances, [0; 4]);
    let expected =
        format!("no server answered for 1s; the last error: {hanging}: no progress for 1s");
    assert_eq!(error, expected);
}

#[test]
fn the_key_is_sent_and_never_shown() {
    let server = Server::start(PACE);
    server.state().bad_key = true;
    let folder = tempfile::tempdir().unwrap();
    // `HOME` is set everywhere, and its value stands for a key.
    let key = std::env::var("HOME").unwrap();
    let config =
        ServersConfig { api_key_env: Some("HOME".to_owned()), ..config(&[&server], &folder) };
    assert!(!format!("{config:?}").contains(&key));
    let error = start(config).err().expect("is refused");
    let (shown, debugged) = (error.to_string(), format!("{error:?}"));
    assert!(shown.contains("Bearer") || shown.contains("[redacted]"), "{shown}");
    assert!(!shown.contains(&key) && !debugged.contains(&key), "{shown} {debugged}");
}
