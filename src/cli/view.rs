//! `rollpacker view`: a local web page over run folders.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use tokio::net::TcpListener;

use super::exit_status::bad_input;
use super::server_runtime::server_runtime;
use crate::terminal;
use crate::view::{Runs, router};

/// Show runs as a local web page, during the run and afterwards.
///
/// The page has curves, the round of each step in time, histograms, prompts, and responses token by token. Only files of the run folders
/// are read, and nothing is loaded from the network. The address is printed when the server listens; Ctrl-C ends it.
#[derive(Debug, Args)]
pub(crate) struct ViewArgs {
    /// Folder of a run, or a folder with runs at most three folders deep.
    #[arg(value_name = "RUN", default_value = "runs")]
    run: PathBuf,
    /// Address to listen on. If other machines can reach it, their users can read the runs.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 takes a free port.
    #[arg(long, default_value_t = 6070)]
    port: u16,
    /// Folder with the `tokenizer.json` of the model, for the texts of tokens [default: the trained model in the run folder].
    #[arg(long, value_name = "FOLDER")]
    tokenizer: Option<PathBuf>,
}

pub(crate) fn run(args: &ViewArgs) -> anyhow::Result<ExitCode> {
    let runs = match args.open() {
        Ok(runs) => Arc::new(runs),
        Err(error) => return Ok(bad_input(&error)),
    };
    let runtime = server_runtime()?;
    runtime.block_on(args.serve(runs))?;
    Ok(ExitCode::SUCCESS)
}

impl ViewArgs {
    fn open(&self) -> anyhow::Result<Runs> {
        if let Some(folder) = &self.tokenizer {
            let file = folder.join("tokenizer.json");
            anyhow::ensure!(
                file.is_file(),
                "option `--tokenizer`: expected a folder with `tokenizer.json`, found none at {}",
                file.display()
            );
        }
        Runs::open(&self.run, self.tokenizer.clone())
    }

    async fn serve(&self, runs: Arc<Runs>) -> anyhow::Result<()> {
        let listener = TcpListener::bind((self.host.as_str(), self.port)).await;
        let listener = listener.with_context(|| {
            format!("cannot listen on {}:{}; `--port 0` takes a free port", self.host, self.port)
        })?;
        let address = listener.local_addr().context("cannot read the address of the server")?;
        if !address.ip().is_loopback() {
            terminal::warn("warning: other machines can read the runs through this server");
        }
        let (count, root) = (runs.names().len(), runs.root().display().to_string());
        let noun = if count == 1 { "run" } else { "runs" };
        terminal::print_line(&format!("http://{address} shows {count} {noun} of {root}"))
            .context("cannot print")?;
        let preloaded = runs.clone();
        drop(tokio::task::spawn_blocking(move || preloaded.preload()));
        let router = router(runs, address.ip().is_loopback());
        axum::serve(listener, router).await.context("the server failed")
    }
}
