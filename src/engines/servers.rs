//! vLLM and SGLang servers as entries of the catalog.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollpacker_model::ModelConfig;
use rollpacker_servers::canary::CanaryConfig;
use rollpacker_servers::engine::{Measurements, ServersConfig, ServersEngine, StartError};
use rollpacker_servers::http::{AddressError, Endpoint};
use rollpacker_servers::launch::{Fleet, Restarts};
use rollpacker_servers::sampling::{self, LogprobsMode, SamplingRefusal};
use rollpacker_servers::server::{Limits, Protocol};
use rollpacker_servers::vllm::protocol::PauseMode;
use rollpacker_servers::weights::{PublishedWeights, WeightSource};
use rollpacker_stages::catalog::{About, CatalogError, check_range};
use rollpacker_stages::documented;
use rollpacker_stages::rollout::Policy;
use rollpacker_stages::train::config::Precision;
use rollpacker_torch::model::{Decoder, TorchError, WeightStore, Weights};
use serde::{Deserialize, Serialize};

use super::context::{EngineContext, EnginePurpose};
use super::forward::{canary_tokens, score};
use super::servers_unavailable::ServersUnavailable;
use super::starter::{EngineStarter, MetricSource, StartedEngine};
use super::{launch, torch};
use crate::recipe::error::{RecipeError, out_of_bounds};
use crate::recipe::{Recipe, Serve};

pub(super) const VLLM: About =
    About::new(&[], "vLLM servers, or `rollpacker serve`, over HTTP", "vLLM 0.32");
pub(super) const SGLANG: About =
    About::new(&[], "SGLang servers over HTTP; not run against a live server yet", "SGLang 0.5");

/// The minimum number of tokens of training prompts for the canary. With fewer tokens, a fixed text is scored.
const MIN_CANARY_TOKENS: usize = 24;

documented! {
    /// The options of `vllm` and `sglang` (`rollout.engine_options`). `servers`, `serve` and `server_timeout` are also keys of `[rollout]`.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub(super) struct ServerOptions {
        /// The URLs of the servers. Required without `serve`.
        servers: Vec<String>,
        /// The servers that the run starts. Default: none.
        serve: Option<Serve>,
        /// The environment variable with the API key of all servers. Default: no key.
        api_key_env: Option<String>,
        /// The expected name of the model. Default: the name of the model of the first server.
        model: Option<String>,
        /// The treatment of responses that are running when a server loads weights: `abort` (the default) ends them and continues them with
        /// the new weights, `wait` lets them end first, and `keep` freezes them with their KV cache (not SGLang).
        pause: PauseMode,
        /// The log-probabilities that the vLLM servers return, as their `--logprobs-mode` selects: `raw` (the default) before temperature
        /// and truncation, or `processed` after both. `raw` needs `rollout.temperature = 1`; `processed` needs `rollout.top_p = 1` and no
        /// `rollout.top_k`.
        logprobs_mode: LogprobsMode,
        /// The maximum time without an available server, in seconds; the run then ends. One server of `serve` must be ready within this
        /// time. Above 0, below 3e9. Default: 600.
        server_timeout: f64 [seconds],
        /// The maximum time without a token from a server that samples, in seconds. A single response may wait ten times as long while its
        /// server returns other tokens. Above 0, below 3e9. Default: 120.
        stall_timeout: f64 [seconds],
        /// The maximum time for loading weights, in seconds. Above 0, below 3e9. Default: 600.
        load_timeout: f64 [seconds],
        /// The folder for the weights of each version, which all servers see under the same path. Default: `weights` in the run folder.
        weights_folder: Option<PathBuf>,
        /// The maximum of `rollout/canary_kl` after a server loads weights. A server that exceeds it twice is not used until the next
        /// policy. Above 0, below 3e9. Default: 0.01.
        canary_max_kl: f64,
        /// The maximum of `rollout/canary_max` after a server loads weights, in nats. A server that exceeds it twice is not used until the
        /// next policy. Above 0, below 3e9. Default: 1.
        canary_max_difference: f64 [nats],
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        let (limits, canary) = (Limits::default(), CanaryConfig::new(Vec::new()));
        Self {
            servers: Vec::new(),
            serve: None,
            api_key_env: None,
            model: None,
            pause: PauseMode::default(),
            logprobs_mode: LogprobsMode::default(),
            server_timeout: 600.0,
            stall_timeout: limits.stall.as_secs_f64(),
            load_timeout: limits.load.as_secs_f64(),
            weights_folder: None,
            canary_max_kl: canary.max_kl,
            canary_max_difference: canary.max_difference,
        }
    }
}

impl ServerOptions {
    fn check(&self, protocol: Protocol) -> Result<(), CatalogError> {
        match &self.serve {
            Some(_) if !self.servers.is_empty() => {
                let expected = "only one of `rollout.serve` and `rollout.servers`";
                return Err(CatalogError::out_of_range("serve", expected, "both"));
            }
            Some(serve) => launch::check(protocol, serve)?,
            None if self.servers.is_empty() => {
                let expected = "at least one URL in `rollout.servers`, or `rollout.serve`";
                return Err(CatalogError::out_of_range("servers", expected, "none"));
            }
            None => {}
        }
        for url in &self.servers {
            let reason = |error: AddressError| error.to_string();
            let refused = |reason| CatalogError::Option { key: "servers".to_owned(), reason };
            Endpoint::new(url, None).map_err(reason).map_err(refused)?;
        }
        let positive = [
            ("server_timeout", self.server_timeout),
            ("stall_timeout", self.stall_timeout),
            ("load_timeout", self.load_timeout),
            ("canary_max_kl", self.canary_max_kl),
            ("canary_max_difference", self.canary_max_difference),
        ];
        positive.into_iter().try_for_each(|(key, value)| {
            // The bound of almost a hundred years keeps sums of times far from an overflow.
            check_range(key, value, |value| value > 0.0 && value < 3e9, "above 0, below 3e9")
        })
    }
}

pub(super) fn vllm(options: ServerOptions) -> Result<EngineStarter, CatalogError> {
    starter(Protocol::Vllm, options)
}

pub(super) fn sglang(options: ServerOptions) -> Result<EngineStarter, CatalogError> {
    starter(Protocol::Sglang, options)
}

fn starter(protocol: Protocol, options: ServerOptions) -> Result<EngineStarter, CatalogError> {
    options.check(protocol)?;
    let logprobs_mode = options.logprobs_mode;
    let check = move |recipe: &Recipe| check_recipe(protocol, logprobs_mode, recipe);
    let start = move |context| start(protocol, &options, context);
    Ok(EngineStarter { check: Arc::new(check), ..EngineStarter::new(start) })
}

/// Rejects settings that engines over servers do not support.
fn check_recipe(
    protocol: Protocol,
    mode: LogprobsMode,
    recipe: &Recipe,
) -> Result<(), RecipeError> {
    if recipe.run.workers > 1 {
        return Err(too_many_workers(recipe.run.workers));
    }
    if recipe.rollout.dtype != Precision::Float32 {
        let expected = "float32 with an engine over servers, which have a setting of their own (vLLM: --dtype)";
        return Err(out_of_bounds("rollout.dtype", expected, recipe.rollout.dtype));
    }
    if recipe.run.deterministic {
        let expected = "false with an engine over servers, which batch as they like";
        return Err(out_of_bounds("trainer.deterministic", expected, true));
    }
    sampling::check(&recipe.sampling, protocol, mode).map_err(sampling_error)
}

fn too_many_workers(found: usize) -> RecipeError {
    let expected = "1, in a single process, with an engine over servers";
    out_of_bounds("trainer.workers", expected, found)
}

/// Starts the engine. Validation uses the torch engine, because a validated policy would replace the policy with which the servers sample.
fn start(
    protocol: Protocol,
    options: &ServerOptions,
    context: EngineContext,
) -> anyhow::Result<StartedEngine> {
    if context.purpose == EnginePurpose::Validation {
        return torch::start(context);
    }
    // `check_recipe` sees only the workers of one process. With several processes, each may have one worker.
    if context.worker > 0 {
        Err(too_many_workers(context.worker + 1))?;
    }
    let model = ModelConfig::from_folder(&context.model)?;
    let decoder = Decoder::load(&context.model, context.device)?;
    let mut config = config(protocol, options, &context, &model);
    let fleet = launch::start(options.serve.as_ref(), &config, &context.run_folder)?;
    if let Some(fleet) = &fleet {
        config.servers = fleet.urls();
    }
    let EngineContext { tokenizer, clock, weights, .. } = context;
    // Some models have more ids than the tokenizer; these padding ids decode to an empty text.
    let detokenize = Arc::new(move |ids: &[i32]| tokenizer.decode(ids, true).unwrap_or_default());
    let source = TrainedWeights { store: weights, decoder: Arc::new(Mutex::new(decoder)) };
    let engine =
        ServersEngine::start(config, Box::new(source), detokenize, clock).map_err(start_error)?;
    let restarts = fleet.as_ref().map(Fleet::restarts);
    let server_metrics = Some(server_metrics(engine.measurements(), restarts));
    let engine = match fleet {
        Some(fleet) => engine.with_fleet(fleet),
        None => engine,
    };
    Ok(StartedEngine { engine: Box::new(engine), measurements: None, server_metrics })
}

fn config(
    protocol: Protocol,
    options: &ServerOptions,
    context: &EngineContext,
    model: &ModelConfig,
) -> ServersConfig {
    let ServerOptions { servers, api_key_env, pause, logprobs_mode, .. } = options.clone();
    let own_folder = || context.run_folder.join("weights");
    let longest =
        context.settings.max_prompt_length + context.settings.sampling.max_new_tokens as usize;
    ServersConfig {
        protocol,
        servers,
        api_key_env,
        model: options.model.clone(),
        sampling: context.settings.sampling,
        logprobs_mode,
        eos_token_ids: model.eos_token_ids.as_slice().into(),
        max_prompt_length: context.settings.max_prompt_length,
        max_running: context.settings.max_running,
        pause,
        server_timeout: Duration::from_secs_f64(options.server_timeout),
        limits: Limits {
            stall: Duration::from_secs_f64(options.stall_timeout),
            load: Duration::from_secs_f64(options.load_timeout),
            ..Limits::default()
        },
        canary: CanaryConfig {
            tokens: example_tokens(context, longest - 1),
            max_kl: options.canary_max_kl,
            max_difference: options.canary_max_difference,
        },
        weights_folder: options.weights_folder.clone().unwrap_or_else(own_folder),
        model_folder: context.model.clone(),
    }
}

/// Returns the tokens of the canary, at most `max` but at least 2: tokens of training prompts, or tokens of a fixed text if the training
/// prompts have too few tokens.
///
/// Scores of text that differs much from the training data change much with rounding and with each update. In half precision, the scores of
/// 48 tokens of unfamiliar text differed by 0.13 nats, and those of prompts of the built-in task by 0.03 nats.
fn example_tokens(context: &EngineContext, max: usize) -> Vec<i32> {
    if context.example.len() < max.min(MIN_CANARY_TOKENS) {
        return canary_tokens(&context.tokenizer, max);
    }
    let mut tokens = context.example.clone();
    tokens.truncate(max.max(2));
    tokens
}

/// Returns the error of a sampling option with its key.
fn sampling_error(refusal: SamplingRefusal) -> RecipeError {
    let key = match refusal.option {
        "min_new_tokens" => "rollout.min_response_length".to_owned(),
        "max_new_tokens" => "data.max_response_length".to_owned(),
        option => format!("rollout.{option}"),
    };
    out_of_bounds(key, refusal.expected, refusal.found)
}

/// Returns the error of an engine that cannot start, with the key of the recipe that it concerns.
fn start_error(error: StartError) -> anyhow::Error {
    match error {
        StartError::Sampling(refusal) => sampling_error(refusal).into(),
        StartError::Option { option, expected, found } => {
            CatalogError::out_of_range(option, &expected, found).into()
        }
        // Such a run can be started again later.
        error @ StartError::Unreachable { .. } => {
            anyhow::Error::new(error).context(ServersUnavailable)
        }
        error => CatalogError::start(error).into(),
    }
}

fn server_metrics(measurements: Measurements, restarts: Option<Restarts>) -> MetricSource {
    let metrics = move || {
        let restarts = restarts.as_ref().map(|restarts| restarts.take() as f64);
        let restarts = restarts.map(|restarts| ("rollout/server_restarts", restarts));
        let metrics = measurements.take().metrics().into_iter().chain(restarts);
        metrics.map(|(name, value)| (name.to_owned(), value)).collect()
    };
    Box::new(metrics)
}

/// The weights that the trainer publishes, and a model to write and score them.
struct TrainedWeights {
    store: WeightStore,
    decoder: Arc<Mutex<Decoder>>,
}

/// The weights of one policy version, and the model into which they are copied to write and score them.
struct VersionWeights {
    weights: Weights,
    decoder: Arc<Mutex<Decoder>>,
}

impl WeightSource for TrainedWeights {
    fn find(&self, policy: &Policy) -> Result<Box<dyn PublishedWeights>, String> {
        let weights = self.store.find(policy).map_err(|error| error.to_string())?;
        Ok(Box::new(VersionWeights { weights, decoder: Arc::clone(&self.decoder) }))
    }
}

impl VersionWeights {
    /// Calls `run` with a model that has these weights.
    fn with_decoder<T>(
        &self,
        run: impl FnOnce(&Decoder) -> Result<T, TorchError>,
    ) -> Result<T, String> {
        let mut decoder = self.decoder.lock().unwrap_or_else(PoisonError::into_inner);
        let result = decoder.copy_from(&self.weights).and_then(|()| run(&decoder));
        result.map_err(|error| error.to_string())
    }
}

impl PublishedWeights for VersionWeights {
    fn write(&self, folder: &Path) -> Result<(), String> {
        self.with_decoder(|decoder| decoder.save(folder))
    }

    fn score(&self, tokens: &[i32]) -> Result<Vec<f32>, String> {
        self.with_decoder(|decoder| Ok(tch::no_grad(|| score(decoder, tokens))?))
    }
}
