//! `rollpacker serve`: a model behind vLLM's HTTP protocol.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use rollpacker_dataflow::clock::WallClock;
use rollpacker_model::{ChatTemplate, PromptEncoder, Tokenizer};
use rollpacker_servers::serve::{ServeOptions, Service};
use rollpacker_stages::device::DeviceChoice;
use rollpacker_stages::secret;
use rollpacker_stages::serving::ServingEngine;
use rollpacker_torch::model::{Decoder, resolve_device};
use rollpacker_torch::serving::{TorchServing, TorchServingConfig, TorchServingError};
use serde_json::json;
use tch::Device;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::exit_status::bad_input;
use super::server_runtime::server_runtime;
use super::signals::watch_signals;
use crate::memory::{Estimate, serving_part};
use crate::terminal;

/// The label of the weights before the first `/update_weight_version`, as in vLLM.
const INITIAL_LABEL: &str = "default";
/// The time in which calls must end after their requests were aborted.
const ABORT_GRACE_PERIOD: Duration = Duration::from_secs(5);
/// The interval at which the engine is checked for a failure. After a failure, calls have this time to return the error.
const FAILURE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Serve a model over HTTP with vLLM's protocol, on the built-in torch engine.
///
/// Calls: `/inference/v1/generate`, `/v1/completions`, `/v1/chat/completions`, `/v1/models`, `/health`, `/version`, `/metrics`, `/pause`,
/// `/resume`, `/is_paused`, `/abort_requests`, `/collective_rpc` for `reload_weights`, `/update_weight_version`, `/weight_info` and
/// `/reset_prefix_cache`. A request with a parameter that the engine cannot honour is rejected with an error that names the parameter. When
/// the server listens, it prints its address as one JSON object. SIGTERM or Ctrl-C stops it: calls may end within `--shutdown-timeout`,
/// then they are aborted and return their tokens.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Model folder in Hugging Face format, with tokenizer.
    #[arg(long)]
    model: PathBuf,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 takes a free port.
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Names by which requests call the model [default: the folder as written].
    #[arg(long, value_name = "NAME", num_args = 1.., value_parser = NonEmptyStringValueParser::new())]
    served_model_name: Vec<String>,
    /// Number of engine instances, each with its own KV cache, from 1 to 1024. They share the weights.
    #[arg(long, default_value_t = 1)]
    instances: usize,
    /// Number of CPU threads of an instance, from 1 to 1024.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Maximum number of responses that an instance runs at once, from 1 to 65536. (verl: rollout.max_num_seqs)
    #[arg(long, alias = "slots", default_value_t = 64)]
    max_num_seqs: usize,
    /// Maximum number of tokens in the KV cache of an instance, prompts included.
    #[arg(long, default_value_t = 262_144)]
    kv_cache_tokens: usize,
    /// Maximum number of tokens of a prompt and its response [default: the maximum of the model, at most --kv-cache-tokens].
    #[arg(long)]
    max_model_len: Option<usize>,
    /// Device: auto, cpu, cuda or cuda:INDEX.
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
    /// Seed of the responses to requests without a seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Environment variable with the key that calls must send as `Authorization: Bearer KEY`; `/health` needs none [default: no key].
    #[arg(long, value_name = "NAME")]
    api_key_env: Option<String>,
    /// Seconds in which running calls may end after a signal, from 0 to 86400.
    #[arg(long, default_value_t = 10)]
    shutdown_timeout: u64,
}

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let (engine, service) = match args.open() {
        Ok(opened) => opened,
        Err(error) => return Ok(bad_input(&error)),
    };
    let stop =
        watch_signals("the server ends after its running calls; a second signal ends it now")?;
    let runtime = server_runtime()?;
    runtime.block_on(args.serve(engine, service, stop))?;
    // Connections that are still open must not delay the end.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

impl ServeArgs {
    fn open(&self) -> anyhow::Result<(Arc<TorchServing>, Arc<Service>)> {
        self.check()?;
        let api_key = self.api_key_env.as_deref().map(key).transpose()?;
        let folder = &self.model;
        let device = resolve_device(self.device)?;
        let model = Decoder::check_folder(folder)?;
        if device == Device::Cpu {
            Estimate::default().with(serving_part(folder, &model)).check()?;
        }
        let encoder = PromptEncoder {
            tokenizer: Arc::new(Tokenizer::from_folder(folder)?),
            template: ChatTemplate::from_folder(folder)?,
        };
        let engine = TorchServing::start(folder, device, &self.config()).map_err(with_flag)?;
        let engine = Arc::new(engine);
        let names = match self.served_model_name.as_slice() {
            [] => vec![folder.display().to_string()],
            names => names.to_vec(),
        };
        let options = ServeOptions { names, root: folder.display().to_string(), api_key };
        let clock = Arc::new(WallClock::start());
        let service = Service::new(engine.clone(), Arc::new(encoder), options, clock);
        Ok((engine, Arc::new(service)))
    }

    fn check(&self) -> anyhow::Result<()> {
        let within = |option: &str, found: usize, max: usize| {
            ensure!(
                (1..=max).contains(&found),
                "option `{option}`: expected 1 to {max}, found {found}"
            );
            Ok(())
        };
        within("--instances", self.instances, 1024)?;
        within("--threads", self.threads, 1024)?;
        within("--max-num-seqs", self.max_num_seqs, 1 << 16)?;
        within("--kv-cache-tokens", self.kv_cache_tokens, 1 << 40)?;
        let found = self.shutdown_timeout;
        ensure!(
            found <= 86_400,
            "option `--shutdown-timeout`: expected at most 86400 seconds, found {found}"
        );
        Ok(())
    }

    fn config(&self) -> TorchServingConfig {
        TorchServingConfig {
            instances: self.instances,
            threads_per_instance: self.threads,
            max_running: self.max_num_seqs,
            kv_cache_tokens: self.kv_cache_tokens,
            context: self.max_model_len,
            seed: self.seed,
            label: INITIAL_LABEL.into(),
        }
    }

    /// Serves until the engine or the server fails, or a signal arrives. After a signal, running calls may end within `--shutdown-timeout`,
    /// and are then aborted.
    async fn serve(
        &self,
        engine: Arc<TorchServing>,
        service: Arc<Service>,
        stop: watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        let address = (self.host.as_str(), self.port);
        let listener = TcpListener::bind(address).await;
        let listener =
            listener.with_context(|| format!("cannot listen on {}:{}", self.host, self.port))?;
        self.announce(&listener)?;
        let mut server = Box::pin(Arc::clone(&service).run(listener, wait_for_stop(stop.clone())));
        let grace = Duration::from_secs(self.shutdown_timeout);
        let grace_is_over = async {
            wait_for_stop(stop).await;
            tokio::time::sleep(grace).await;
        };
        tokio::select! {
            served = &mut server => return served.context("the server failed"),
            reason = wait_for_failure(&*engine) => bail!("the engine failed: {reason}"),
            () = grace_is_over => {}
        }
        let aborted = service.abort_all();
        if aborted > 0 {
            terminal::warn(&format!("aborted {aborted} calls that had not ended after {grace:?}"));
        }
        // A client that does not read its answer must not keep the server.
        match tokio::time::timeout(ABORT_GRACE_PERIOD, server).await {
            Ok(served) => served.context("the server failed"),
            Err(_connections_left) => Ok(()),
        }
    }

    /// Prints the address as one JSON object, so that a program that started the server can read it.
    fn announce(&self, listener: &TcpListener) -> anyhow::Result<()> {
        let address = listener.local_addr().context("cannot read the address of the server")?;
        if !address.ip().is_loopback() && self.api_key_env.is_none() {
            terminal::warn(
                "warning: other machines can use this server and replace its weights: it has no --api-key-env",
            );
        }
        let line = json!({ "url": format!("http://{address}"), "model": self.model });
        terminal::print_line(&line.to_string()).context("cannot print")
    }
}

/// Replaces the engine option that an error names by its flag of the command line. Returns other errors unchanged.
fn with_flag(error: TorchServingError) -> anyhow::Error {
    match error {
        TorchServingError::Option { option, expected, found } => {
            let flag = option.replace('_', "-");
            anyhow!("option `--{flag}`: expected {expected}, found {found}")
        }
        error => error.into(),
    }
}

/// Reads the API key from an environment variable, removes white space around it, and registers it as a secret to redact.
///
/// # Errors
/// If the variable is not set, empty or blank.
fn key(name: &str) -> anyhow::Result<String> {
    let written = std::env::var(name).unwrap_or_default();
    let key = written.trim();
    ensure!(
        !key.is_empty(),
        "option `--api-key-env`: expected the name of an environment variable that has a key, found `{}`",
        secret::quote(name, 100)
    );
    secret::register(key);
    Ok(key.to_owned())
}

async fn wait_for_stop(mut stop: watch::Receiver<bool>) {
    let _handler_is_gone = stop.wait_for(|stop| *stop).await;
}

/// Waits until the engine has failed, and then long enough for its calls to answer with the error. Returns the reason.
async fn wait_for_failure(engine: &dyn ServingEngine) -> String {
    let mut check = tokio::time::interval(FAILURE_CHECK_INTERVAL);
    loop {
        check.tick().await;
        if let Some(reason) = engine.failure() {
            check.tick().await;
            return reason;
        }
    }
}
