//! Tokens per second of the torch engine on a batch of prompts of one length, with the same number of tokens for every response. The engine
//! computes on the first CUDA device if there is one, otherwise on the CPU.
//!
//! ```text
//! cargo bench -p rollpacker-torch --bench decode -- MODEL_FOLDER [key=value ...]
//! ```
//!
//! Keys and their defaults: `batch=64`, `prompt=32`, `new=256`, `instances=2`, `threads=1`, `runs=3`, `temperature=1`, and `running=batch`,
//! the number of responses that an instance runs at once. `lengths=FILE` replays the lengths of a file, one step per run.
//! `dtype=bfloat16` rounds weights. `deterministic=true` makes results bit-identical independent of the rest of the batch.
//!
//! The digest printed with a run covers all its tokens. It is equal for equal work, however the work is distributed and batched.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a bench reads the system's time and prints"
)]
#![allow(missing_docs, reason = "a program")]

use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use rollpacker_dataflow::clock::WallClock;
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_stages::device::DeviceChoice;
use rollpacker_stages::rollout::lengths::Lengths;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::rollout::{Request, RolloutEngine, RolloutEvent};
use rollpacker_stages::train::config::Precision;
use rollpacker_torch::model::{Decoder, WeightStore, resolve_device};
use rollpacker_torch::rollout::{TorchEngine, TorchEngineConfig};

/// The global allocator, the same as in the program `rollpacker`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Options {
    model: PathBuf,
    batch: u64,
    running: Option<usize>,
    prompt: i32,
    new: u32,
    instances: u32,
    threads: usize,
    runs: u64,
    temperature: f64,
    lengths: Option<PathBuf>,
    deterministic: bool,
    dtype: Precision,
}

fn main() -> Result<(), Box<dyn Error>> {
    let Some(options) =
        Options::parse(std::env::args().skip(1).filter(|argument| argument != "--bench"))?
    else {
        println!("skipped: pass the folder of a model as the first argument");
        return Ok(());
    };
    let mut engine = options.engine()?;
    let (wake, woken) = channel();
    engine.wake_by(Arc::new(move || {
        let _gone = wake.send(());
    }));
    for run in 0..=options.runs {
        let before = engine.statistics();
        let start = Instant::now();
        let (tokens, digest) = options.run(&mut engine, &woken, run)?;
        let seconds = start.elapsed().as_secs_f64();
        let after = engine.statistics();
        let iterations = after
            .iter()
            .zip(&before)
            .map(|(after, before)| after.decode_iterations - before.decode_iterations);
        let iterations: Vec<u64> = iterations.collect();
        let kind = if run == 0 { "warm-up" } else { "run" };
        let rate = tokens as f64 / seconds;
        println!(
            "{kind} {tokens} tokens, {seconds:.3} s, {rate:.0} tokens/s, iterations {iterations:?}, digest {digest:016x}"
        );
    }
    Ok(())
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>, Box<dyn Error>> {
        let Some(model) = arguments.next() else { return Ok(None) };
        let mut options = Self {
            model: model.into(),
            batch: 64,
            running: None,
            prompt: 32,
            new: 256,
            instances: 2,
            threads: 1,
            runs: 3,
            temperature: 1.0,
            lengths: None,
            deterministic: false,
            dtype: Precision::Float32,
        };
        for argument in arguments {
            let (key, value) = argument
                .split_once('=')
                .ok_or_else(|| format!("{argument}: expected key=value"))?;
            options.set(key, value)?;
        }
        Ok(Some(options))
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Box<dyn Error>> {
        match key {
            "batch" => self.batch = value.parse()?,
            "dtype" => self.dtype = serde_json::from_value(value.into())?,
            "running" => self.running = Some(value.parse()?),
            "prompt" => self.prompt = value.parse()?,
            "new" => self.new = value.parse()?,
            "instances" => self.instances = value.parse()?,
            "threads" => self.threads = value.parse()?,
            "runs" => self.runs = value.parse()?,
            "temperature" => self.temperature = value.parse()?,
            "lengths" => self.lengths = Some(value.into()),
            "deterministic" => self.deterministic = value.parse()?,
            _ => return Err(format!("unknown key: {key}").into()),
        }
        Ok(())
    }

    fn engine(&self) -> Result<TorchEngine, Box<dyn Error>> {
        let replay = self.lengths.as_deref().map(Lengths::read).transpose()?;
        let sampling = Sampling {
            temperature: self.temperature,
            min_new_tokens: self.new,
            ..Sampling::unrestricted(self.new)
        };
        let config = TorchEngineConfig {
            instances: self.instances,
            threads_per_instance: self.threads,
            max_running: self.running.unwrap_or(self.batch as usize),
            kv_cache_tokens: 1 << 24,
            dtype: self.dtype,
            sampling,
            seed: 0,
            replay,
            deterministic: self.deterministic,
        };
        let device = resolve_device(DeviceChoice::Auto)?;
        let engine = TorchEngine::start(
            config,
            Decoder::load(&self.model, device)?,
            WeightStore::new(1),
            Arc::new(|_: &[i32]| String::new()),
            Arc::new(WallClock::start()),
        )?;
        Ok(engine)
    }

    fn run(
        &self,
        engine: &mut TorchEngine,
        woken: &Receiver<()>,
        run: u64,
    ) -> Result<(usize, u64), Box<dyn Error>> {
        for prompt in 0..self.batch {
            let prompt_ids =
                (0..self.prompt).map(|at| (at * 31 + prompt as i32 * 17) % 256).collect();
            engine.generate(Request {
                resumed: Vec::new(),
                step: Step(run),
                prompt: PromptId(prompt),
                samples: 0..1,
                prompt_ids,
            });
        }
        let (mut done, mut tokens, mut digest) = (0, 0, 0);
        while done < self.batch {
            match engine.poll() {
                Some(RolloutEvent::Completed(completion)) => {
                    done += 1;
                    tokens += completion.response_ids.len();
                    digest ^= hash(&(completion.id, &completion.response_ids));
                }
                Some(RolloutEvent::Failed(error)) => return Err(error.into()),
                None => woken.recv()?,
            }
        }
        Ok((tokens, digest))
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
