//! `rollpacker probe`: a conformance report of a running server.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use rollpacker_model::Tokenizer;
use rollpacker_servers::canary::CanaryConfig;
use rollpacker_servers::probe::{ProbeConfig, ProbeError, ProbeReport, probe};
use rollpacker_servers::server::Limits;
use rollpacker_stages::device::DeviceChoice;
use rollpacker_torch::model::{Decoder, resolve_device};
use tch::Device;

use super::exit_status::{BAD_INPUT, bad_input};
use super::signals::watch_signals;
use crate::engines::{ReferenceDecoder, canary_tokens};
use crate::lifetime::ENDED_EARLY;
use crate::memory::{Estimate, serving_part};
use crate::terminal;

/// Check whether a running vLLM server has all that training needs, and compare it with the model that it serves.
///
/// The program runs its own forward pass of the model folder and compares the server with it: log-probabilities, greedy and sampled tokens,
/// ends of responses, aborts, pauses, labels and weight updates. Nothing else may use the server meanwhile: the probe aborts running
/// requests, and for some seconds the server has perturbed weights. At the end, also after Ctrl-C, the server has its first weights again.
/// Exits with 0 if the server has all that training needs, 2 if something is missing or wrong, and 75 if the server cannot be reached or a
/// signal ended the probe.
#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// URL of the server, such as http://127.0.0.1:8000.
    url: String,
    /// Model folder that the server was started with, with tokenizer. The server must see it under the same path.
    #[arg(long)]
    model: PathBuf,
    /// Expected name of the model [default: any].
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,
    /// Number of tokens of prompt and response for which the server must have room [default: not checked].
    #[arg(long, value_name = "TOKENS")]
    max_model_len: Option<u64>,
    /// Environment variable with the API key of the server [default: no key].
    #[arg(long, value_name = "NAME")]
    api_key_env: Option<String>,
    /// Seconds within which the server must answer a call, or send the next token of a response, from 1 to 86400.
    #[arg(long, default_value_t = 60)]
    timeout: u64,
    /// Seconds within which the server must load weights, from 1 to 86400.
    #[arg(long, default_value_t = 600)]
    load_timeout: u64,
    /// Folder for the perturbed weights (float32), which the server sees under the same path [default: the system's folder for temporary
    /// files].
    #[arg(long, value_name = "FOLDER")]
    weights_folder: Option<PathBuf>,
    /// Device of the program's forward pass: auto, cpu, cuda or cuda:INDEX.
    #[arg(long, default_value = "cpu")]
    device: DeviceChoice,
    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ProbeArgs) -> anyhow::Result<ExitCode> {
    let (config, model) = match args.open() {
        Ok(opened) => opened,
        Err(error) => return Ok(bad_input(&error)),
    };
    let stop = watch_signals(
        "the probe ends when the server has its weights again; a second signal ends it now and may leave the server with others",
    )?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("http")
        .enable_all()
        .build()
        .context("cannot start the threads of the client")?;
    match runtime.block_on(probe(config, Box::new(model), stop)) {
        Ok(report) => args.print(&report),
        Err(error @ ProbeError::Unreachable(_)) => {
            terminal::error(&error.into());
            Ok(ExitCode::from(ENDED_EARLY))
        }
        Err(error) => Ok(bad_input(&error.into())),
    }
}

impl ProbeArgs {
    fn open(&self) -> anyhow::Result<(ProbeConfig, ReferenceDecoder)> {
        let config = self.config()?;
        let device = resolve_device(self.device)?;
        let model = Decoder::check_folder(&self.model)?;
        if device == Device::Cpu {
            Estimate::default().with(serving_part(&self.model, &model)).check()?;
        }
        Ok((config, ReferenceDecoder::load(&self.model, device)?))
    }

    fn config(&self) -> anyhow::Result<ProbeConfig> {
        let seconds = |option: &str, found: u64| {
            ensure!(
                (1..=86_400).contains(&found),
                "option `{option}`: expected 1 to 86400 seconds, found {found}"
            );
            Ok(Duration::from_secs(found))
        };
        let call = seconds("--timeout", self.timeout)?;
        let load = seconds("--load-timeout", self.load_timeout)?;
        let weights_folder = self.weights_folder.clone().unwrap_or_else(std::env::temp_dir);
        ensure!(
            weights_folder.is_dir(),
            "option `--weights-folder`: expected a folder, found `{}`",
            weights_folder.display()
        );
        let tokenizer = Tokenizer::from_folder(&self.model)?;
        Ok(ProbeConfig {
            server: self.url.clone(),
            api_key_env: self.api_key_env.clone(),
            model: self.served_model_name.clone(),
            max_length: self.max_model_len,
            limits: Limits { call, load, stall: call },
            canary: CanaryConfig::new(canary_tokens(&tokenizer, usize::MAX)),
            model_folder: self.model.clone(),
            weights_folder,
        })
    }

    fn print(&self, report: &ProbeReport) -> anyhow::Result<ExitCode> {
        let text = if self.json { serde_json::to_string(report)? } else { report.to_string() };
        terminal::print_line(text.trim_end()).context("cannot print")?;
        Ok(match (report.interrupted, report.passed) {
            (true, _) => ExitCode::from(ENDED_EARLY),
            (false, true) => ExitCode::SUCCESS,
            (false, false) => ExitCode::from(BAD_INPUT),
        })
    }
}
