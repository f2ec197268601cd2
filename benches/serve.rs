//! Tokens per second of `rollpacker serve` over HTTP, compared with the rollout engine in this process: the same model, prompts and lengths
//! on one instance with one thread each. Also the processor time of the client per 1,000 tokens.
//!
//! ```text
//! cargo bench -p rollpacker --bench serve -- MODEL_FOLDER [running=64] [new=256] [runs=3]
//! ```
//!
//! Every response has `new` tokens. The server is a process of its own. There are three clients: the rollout engine `vllm`, as in training,
//! and plain sockets, one thread per response, that read whole answers or streams. The processor time is that of this process, in which
//! nothing else runs meanwhile; it is read from `/proc` and missing on systems other than Linux.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a bench reads the system's time and prints"
)]
#![allow(missing_docs, reason = "a program")]

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rollpacker::prelude::*;
use rollpacker::stages::rollout::sampling::Sampling;
use rollpacker::stages::servers::canary::CanaryConfig;
use rollpacker::stages::servers::engine::{ServersConfig, ServersEngine};
use rollpacker::stages::servers::sampling::LogprobsMode;
use rollpacker::stages::servers::server::{Limits, Protocol};
use rollpacker::stages::servers::vllm::protocol::PauseMode;
use rollpacker::stages::servers::weights::{PublishedWeights, WeightSource};
use rollpacker::stages::torch::model::{Decoder, WeightStore};
use rollpacker::stages::torch::rollout::{TorchEngine, TorchEngineConfig};
use rollpacker_stages::train::config::Precision;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

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
    let mut direct = batches(in_process(folder, sizes)?, sizes);
    let server = Server::start(folder, sizes)?;
    let weights = tempfile::tempdir()?;
    let mut served = batches(over_servers(folder, &server, weights.path(), sizes)?, sizes);
    for run in 0..sizes.runs {
        let direct = direct(run)?;
        println!("run {run}: in process {direct}");
        let clients = [
            ("engine `vllm`", served(run)?),
            ("whole answers", sockets(server.address, sizes, false)?),
            ("streams", sockets(server.address, sizes, true)?),
        ];
        for (client, over_http) in clients {
            println!(
                "run {run}: {client} {over_http}, ratio {:.3}",
                over_http.speed / direct.speed
            );
        }
    }
    Ok(())
}

/// The speed of a batch, and its cost for the client.
struct Figures {
    /// Tokens per second.
    speed: f64,
    /// Seconds of processor time of this process per 1,000 tokens; `None` on systems other than Linux.
    processor: Option<f64>,
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.0} tokens/s", self.speed)?;
        let Some(seconds) = self.processor else { return Ok(()) };
        write!(f, ", {:.1} ms of processor time here per 1,000 tokens", seconds * 1e3)
    }
}

/// Runs a batch of `sizes.running` responses, and returns its speed and its processor time.
fn measured(sizes: Sizes, batch: impl FnOnce() -> Outcome<()>) -> Outcome<Figures> {
    let (begun, before) = (Instant::now(), processor_time());
    batch()?;
    let (tokens, seconds) = (f64::from(sizes.running * sizes.new), begun.elapsed().as_secs_f64());
    let processor = processor_time().zip(before).map(|(after, before)| after - before);
    let processor = processor.map(|seconds| seconds / tokens * 1e3);
    Ok(Figures { speed: tokens / seconds, processor })
}

/// Returns the processor time of this process in seconds; `None` on systems other than Linux.
fn processor_time() -> Option<f64> {
    /// The number of ticks per second in `/proc`, which is 100 on all architectures of Linux.
    const TICKS_PER_SECOND: f64 = 100.0;
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the name of the program, which may contain spaces.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

/// Returns a function that runs a batch in an engine. Its argument is the number of the run, from 0.
fn batches(mut engine: impl RolloutEngine, sizes: Sizes) -> impl FnMut(u32) -> Outcome<Figures> {
    let (wake, woken) = channel();
    engine.wake_by(Arc::new(move || {
        let _gone = wake.send(());
    }));
    move |run| {
        measured(sizes, || {
            (0..sizes.running).for_each(|prompt| engine.generate(request(run, prompt)));
            let mut left = sizes.running;
            while left > 0 {
                match engine.poll() {
                    Some(RolloutEvent::Completed(_)) => left -= 1,
                    Some(RolloutEvent::Failed(error)) => return Err(error.into()),
                    None => woken.recv()?,
                }
            }
            Ok(())
        })
    }
}

fn request(run: u32, prompt: u32) -> Request {
    Request {
        step: Step(u64::from(run)),
        prompt: PromptId(u64::from(prompt)),
        samples: 0..1,
        prompt_ids: prompt_ids(prompt).into(),
        resumed: Vec::new(),
    }
}

fn sampling(sizes: Sizes) -> Sampling {
    Sampling { min_new_tokens: sizes.new, ..Sampling::unrestricted(sizes.new) }
}

/// Starts the rollout engine in this process.
fn in_process(folder: &Path, sizes: Sizes) -> Outcome<TorchEngine> {
    let config = TorchEngineConfig {
        instances: 1,
        threads_per_instance: 1,
        max_running: sizes.running as usize,
        kv_cache_tokens: 1 << 18,
        dtype: Precision::Float32,
        sampling: sampling(sizes),
        seed: 0,
        replay: None,
        deterministic: false,
    };
    let decoder = Decoder::load(folder, Device::Cpu)?;
    let clock = Arc::new(WallClock::start());
    let text = Arc::new(|_: &[i32]| String::new());
    Ok(TorchEngine::start(config, decoder, WeightStore::new(1), text, clock)?)
}

/// Starts the engine `vllm`, and waits until the server has its weights.
fn over_servers(
    folder: &Path,
    server: &Server,
    weights: &Path,
    sizes: Sizes,
) -> Outcome<ServersEngine> {
    let config = ServersConfig {
        protocol: Protocol::Vllm,
        servers: vec![format!("http://{}", server.address)],
        api_key_env: None,
        model: None,
        sampling: sampling(sizes),
        logprobs_mode: LogprobsMode::default(),
        eos_token_ids: Arc::from([]),
        max_prompt_length: prompt_ids(0).len(),
        max_running: sizes.running as usize,
        pause: PauseMode::default(),
        server_timeout: Duration::from_secs(60),
        limits: Limits::default(),
        canary: CanaryConfig::new(prompt_ids(0)),
        weights_folder: weights.to_owned(),
        model_folder: folder.to_owned(),
    };
    let source = Box::new(Untrained(folder.to_owned()));
    let text = Arc::new(|_: &[i32]| String::new());
    let mut engine = ServersEngine::start(config, source, text, Arc::new(WallClock::start()))?;
    let version = PolicyVersion(0);
    engine.load(&Policy { version, location: String::new(), digest: 0 });
    while engine.loaded_at(version).is_none() {
        if let Some(RolloutEvent::Failed(error)) = engine.poll() {
            return Err(error.into());
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    Ok(engine)
}

/// A source that returns the weights of a model folder for every policy.
struct Untrained(PathBuf);

impl WeightSource for Untrained {
    fn find(&self, _: &Policy) -> Result<Box<dyn PublishedWeights>, String> {
        Ok(Box::new(Self(self.0.clone())))
    }
}

impl PublishedWeights for Untrained {
    fn write(&self, folder: &Path) -> Result<(), String> {
        let decoder = Decoder::load(&self.0, Device::Cpu).map_err(|error| error.to_string())?;
        decoder.save(folder).map_err(|error| error.to_string())
    }

    fn score(&self, tokens: &[i32]) -> Result<Vec<f32>, String> {
        let decoder = Decoder::load(&self.0, Device::Cpu).map_err(|error| error.to_string())?;
        tch::no_grad(|| scores(&decoder, tokens)).map_err(|error| error.to_string())
    }
}

/// Returns the log-probability of each token after the first.
fn scores(decoder: &Decoder, tokens: &[i32]) -> Result<Vec<f32>, tch::TchError> {
    let ids: Vec<i64> = tokens.iter().copied().map(i64::from).collect();
    let length = ids.len() as i64;
    let ids = Tensor::f_from_slice(&ids)?;
    let hidden = decoder.forward_packed(&ids, &[length])?.f_narrow(0, 0, length - 1)?;
    let logprobs = decoder.logits(&hidden)?.f_log_softmax(-1, Kind::Float)?;
    let next = ids.f_narrow(0, 1, length - 1)?.f_unsqueeze(1)?;
    Vec::<f32>::try_from(logprobs.f_gather(1, &next, false)?.f_squeeze_dim(1)?)
}

/// A process of `rollpacker serve`, which is killed when the value is dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(folder: &Path, sizes: Sizes) -> Outcome<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollpacker"));
        command.args(["serve", "--device", "cpu", "--port", "0", "--threads", "1", "--model"]);
        command.arg(folder).args(["--max-num-seqs", &sizes.running.to_string()]);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut announced = String::new();
        if let Some(out) = &mut child.stdout {
            BufReader::new(out).read_line(&mut announced)?;
        }
        let announced: Value = serde_json::from_str(&announced)?;
        let address = announced["url"].as_str().and_then(|url| url.strip_prefix("http://"));
        Ok(Self { address: address.ok_or("no address")?.parse()?, child })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs a batch of calls, each on a thread with a connection of its own.
fn sockets(address: SocketAddr, sizes: Sizes, stream: bool) -> Outcome<Figures> {
    measured(sizes, || {
        let calls: Vec<_> = (0..sizes.running)
            .map(|prompt| std::thread::spawn(move || call(address, prompt, sizes, stream)))
            .collect();
        for call in calls {
            call.join().map_err(|_panic| "a client panicked")??;
        }
        Ok(())
    })
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
