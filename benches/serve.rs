//! Tokens per second of `rollpacker serve` over HTTP, beside the rollout engine in process: the same model, prompts and lengths on one instance
//! with one thread each.
//!
//! ```text
//! cargo bench -p rollpacker --bench serve -- MODEL_FOLDER [running=64] [new=256] [runs=3]
//! ```
//!
//! Every response has `new` tokens. The clients are threads of this program, one per response, and read whole answers or streams.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a bench reads the system's time and prints"
)]
#![allow(missing_docs, reason = "a program")]

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use rollpacker::prelude::*;
use rollpacker::stages::model::{ChatTemplate, PromptEncoder, Tokenizer};
use rollpacker::stages::rollout::sampling::Sampling;
use rollpacker::stages::servers::serve::{ServeOptions, Service};
use rollpacker::stages::torch::model::{Decoder, WeightStore};
use rollpacker::stages::torch::rollout::{TorchEngine, TorchEngineConfig};
use rollpacker::stages::torch::serving::{TorchServing, TorchServingConfig};
use serde_json::json;
use tch::Device;
use tokio::net::TcpListener;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Clone, Copy)]
struct Sizes {
    running: u32,
    new: u32,
    runs: u32,
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let Some(folder) = arguments.next() else {
        println!("skipped: pass the folder of a model as the first argument");
        return Ok(());
    };
    let mut sizes = Sizes { running: 64, new: 256, runs: 3 };
    for argument in arguments {
        match argument.split_once('=') {
            Some(("running", number)) => sizes.running = number.parse()?,
            Some(("new", number)) => sizes.new = number.parse()?,
            Some(("runs", number)) => sizes.runs = number.parse()?,
            _ => return Err(format!("`{argument}`: expected running=, new= or runs=").into()),
        }
    }
    let folder = Path::new(&folder);
    let mut engine = in_process(folder, sizes)?;
    let (address, _server) = server(folder, sizes)?;
    for run in 0..sizes.runs {
        let direct = engine(run)?;
        let whole = over_http(address, sizes, false)?;
        let streamed = over_http(address, sizes, true)?;
        let ratio = |speed: f64| speed / direct;
        println!(
            "run {run}: in process {direct:.0} tokens/s, whole answers {whole:.0} ({:.3}), streams {streamed:.0} ({:.3})",
            ratio(whole),
            ratio(streamed)
        );
    }
    Ok(())
}

/// Returns a function that runs a batch in the rollout engine and returns its tokens per second.
fn in_process(folder: &Path, sizes: Sizes) -> Outcome<impl FnMut(u32) -> Outcome<f64>> {
    let sampling = Sampling { min_new_tokens: sizes.new, ..Sampling::unrestricted(sizes.new) };
    let config = TorchEngineConfig {
        instances: 1,
        threads_per_instance: 1,
        max_running: sizes.running as usize,
        kv_cache_tokens: 1 << 18,
        sampling,
        seed: 0,
        replay: None,
        deterministic: false,
    };
    let decoder = |_instance| Decoder::load(folder, Device::Cpu);
    let clock = Arc::new(WallClock::start());
    let text = Arc::new(|_: &[i32]| String::new());
    let mut engine = TorchEngine::start(config, decoder, WeightStore::new(1), text, clock)?;
    let (wake, woken) = channel();
    engine.wake_by(Arc::new(move || {
        let _gone = wake.send(());
    }));
    Ok(move |run: u32| -> Outcome<f64> {
        let begun = Instant::now();
        for prompt in 0..sizes.running {
            engine.generate(Request {
                step: Step(u64::from(run)),
                prompt: PromptId(u64::from(prompt)),
                samples: 0..1,
                prompt_ids: prompt_ids(prompt).into(),
                resumed: Vec::new(),
            });
        }
        let mut left = sizes.running;
        while left > 0 {
            match engine.poll() {
                Some(RolloutEvent::Completed(_)) => left -= 1,
                Some(RolloutEvent::Failed(error)) => return Err(error.into()),
                None => woken.recv()?,
            }
        }
        Ok(speed(sizes, begun))
    })
}

fn server(folder: &Path, sizes: Sizes) -> Outcome<(SocketAddr, tokio::runtime::Runtime)> {
    let config = TorchServingConfig {
        instances: 1,
        threads_per_instance: 1,
        max_running: sizes.running as usize,
        kv_cache_tokens: 1 << 18,
        context: None,
        seed: 0,
        label: "default".into(),
    };
    let engine = Arc::new(TorchServing::start(folder, Device::Cpu, &config)?);
    let encoder = PromptEncoder {
        tokenizer: Arc::new(Tokenizer::from_folder(folder)?),
        template: ChatTemplate::from_folder(folder)?,
    };
    let options = ServeOptions { names: vec!["m".to_owned()], root: String::new(), api_key: None };
    let clock = Arc::new(WallClock::start());
    let service = Arc::new(Service::new(engine, Arc::new(encoder), options, clock));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    let _task = runtime.spawn(service.run(listener, std::future::pending()));
    Ok((address, runtime))
}

/// Returns the tokens per second of a batch of calls.
fn over_http(address: SocketAddr, sizes: Sizes, stream: bool) -> Outcome<f64> {
    let begun = Instant::now();
    let calls: Vec<_> = (0..sizes.running)
        .map(|prompt| std::thread::spawn(move || call(address, prompt, sizes, stream)))
        .collect();
    for call in calls {
        call.join().map_err(|_panic| "a client panicked")??;
    }
    Ok(speed(sizes, begun))
}

fn call(address: SocketAddr, prompt: u32, sizes: Sizes, stream: bool) -> Outcome<()> {
    let body = json!({
        "token_ids": prompt_ids(prompt), "stream": stream,
        "sampling_params": {"max_tokens": sizes.new, "min_tokens": sizes.new, "logprobs": 0, "detokenize": false},
    });
    let body = body.to_string();
    let mut connection = TcpStream::connect(address)?;
    write!(
        connection,
        "POST /inference/v1/generate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    if answer.contains("\"finish_reason\":\"length\"") { Ok(()) } else { Err(answer.into()) }
}

fn prompt_ids(prompt: u32) -> Vec<i32> {
    (0..32).map(|at| 3 + ((at * (prompt as i32 + 1)) % 13)).collect()
}

fn speed(sizes: Sizes, begun: Instant) -> f64 {
    f64::from(sizes.running * sizes.new) / begun.elapsed().as_secs_f64()
}
