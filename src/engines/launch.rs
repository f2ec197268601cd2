//! The servers of `rollout.serve`: checked with the recipe, and started with the engine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollpacker_servers::engine::ServersConfig;
use rollpacker_servers::launch::{Fleet, LaunchConfig, LaunchError};
use rollpacker_servers::server::Protocol;
use rollpacker_stages::catalog::CatalogError;

use super::servers_unavailable::ServersUnavailable;
use crate::recipe::Serve;

/// The folder in the run folder with the output of the servers.
const LOG_FOLDER: &str = "servers";

/// Checks the table `rollout.serve` without starting a process.
pub(super) fn check(protocol: Protocol, serve: &Serve) -> Result<(), CatalogError> {
    let config = LaunchConfig {
        protocol,
        command: serve.command.clone(),
        count: serve.count,
        env: serve.env.clone(),
        api_key_env: None,
        model_folder: PathBuf::new(),
        log_folder: PathBuf::new(),
        timeout: Duration::ZERO,
    };
    config.check().map_err(|(field, expected, found)| {
        CatalogError::out_of_range("serve", &format!("`{field}` with {expected}"), found)
    })
}

/// Starts the servers of the table `rollout.serve` and waits until all are ready, or until `config.server_timeout` has passed and at least
/// one is ready. The logs of the servers are in a folder of `run_folder`. Returns `None` without a table.
pub(super) fn start(
    serve: Option<&Serve>,
    config: &ServersConfig,
    run_folder: &Path,
) -> anyhow::Result<Option<Fleet>> {
    let Some(serve) = serve else { return Ok(None) };
    let config = LaunchConfig {
        protocol: config.protocol,
        command: serve.command.clone(),
        count: serve.count,
        env: serve.env.clone(),
        api_key_env: config.api_key_env.clone(),
        model_folder: config.model_folder.clone(),
        log_folder: run_folder.join(LOG_FOLDER),
        timeout: config.server_timeout,
    };
    Fleet::start(config).map(Some).map_err(launch_error)
}

fn launch_error(error: LaunchError) -> anyhow::Error {
    match error {
        // Such a run can be started again later.
        error @ LaunchError::Unreachable { .. } => {
            anyhow::Error::new(error).context(ServersUnavailable)
        }
        error => CatalogError::start(error).into(),
    }
}
