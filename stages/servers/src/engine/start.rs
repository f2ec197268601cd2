//! The start of the engine, which queries every server for its model.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::step::PolicyVersion;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::config::{ServersConfig, StartError};
use super::coordinator::{Coordinator, Detokenize, Message};
use super::member::{Member, MemberState};
use super::output::Output;
use crate::http::Endpoint;
use crate::probe::{check_start, nonce};
use crate::server::{Identity, Server};
use crate::weights::WeightRoot;

/// The time between two attempts to reach a server.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Opens the folder of the weights, queries all servers for their models and creates the state of the engine. A server that does not answer
/// yet starts as suspect.
pub(super) async fn build_coordinator(
    config: ServersConfig,
    detokenize: Detokenize,
    clock: Arc<dyn Clock>,
    output: Output,
    sender: UnboundedSender<Message>,
) -> Result<Coordinator, StartError> {
    let root = WeightRoot::open(&config.weights_folder, &config.model_folder)?;
    let servers = connect(&config)?;
    let identities = identities(&config, &servers).await?;
    let model = check_models(&config, &servers, &identities)?;
    let members = servers.into_iter().zip(&identities).map(|(server, identity)| {
        let mut member = Member::new(server, model.clone(), config.limits);
        if identity.is_none() {
            tracing::warn!(
                server = member.server.name(),
                "an inference server does not answer yet"
            );
            member.state = MemberState::Suspect;
            member.is_lost = true;
        }
        member
    });
    Ok(Coordinator {
        members: members.collect(),
        nonce: format!("{:016x}", nonce()),
        config: Arc::new(config),
        clock,
        detokenize,
        output,
        sender,
        root,
        responses: BTreeMap::new(),
        waiting: VecDeque::new(),
        assigned: BTreeMap::new(),
        loads: 0,
        wanted_version: PolicyVersion::default(),
        latest: None,
        calls: 0,
        tasks: JoinSet::new(),
        unavailable_since: None,
        last_fault: None,
        has_failed: false,
    })
}

fn connect(config: &ServersConfig) -> Result<Vec<Server>, StartError> {
    let key = config.api_key_env.as_deref();
    let connect = |url: &String| {
        let endpoint = Endpoint::new(url, key)?;
        Ok(Server::new(config.protocol, endpoint, config.limits))
    };
    config.servers.iter().map(connect).collect()
}

/// Checks every server and returns its model, or `None` for a server that does not answer. Repeats the checks until at least one server
/// answers. A server whose check has not ended when the server timeout expires counts as a server that does not answer.
///
/// # Errors
/// Returns an error if a check fails with a permanent error, or no server answers within the server timeout.
async fn identities(
    config: &ServersConfig,
    servers: &[Server],
) -> Result<Vec<Option<Identity>>, StartError> {
    let begin = Instant::now();
    let mut left = config.server_timeout;
    loop {
        let checks = servers.iter().map(|server| check_start(server, &config.canary.tokens, left));
        let mut answers = Vec::new();
        let mut last = None;
        for answer in futures::future::join_all(checks).await {
            match answer {
                Err(error) if !error.is_retryable() => return Err(StartError::Server(error)),
                Err(error) => {
                    last = Some(error);
                    answers.push(None);
                }
                Ok(identity) => answers.push(Some(identity)),
            }
        }
        match last {
            Some(last) if answers.iter().all(Option::is_none) => {
                if begin.elapsed() >= config.server_timeout {
                    return Err(StartError::Unreachable { waited: config.server_timeout, last });
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
                // The last attempt is long enough for a server that answers at once.
                left = config.server_timeout.saturating_sub(begin.elapsed()).max(RETRY_INTERVAL);
            }
            _ => return Ok(answers),
        }
    }
}

/// Checks the name and the limit of each known model. Returns the name that every server must have.
fn check_models(
    config: &ServersConfig,
    servers: &[Server],
    identities: &[Option<Identity>],
) -> Result<String, StartError> {
    let known: Vec<_> = servers
        .iter()
        .zip(identities)
        .filter_map(|(server, identity)| Some((server.name(), identity.as_ref()?)))
        .collect();
    let first = known.first().map(|(_, identity)| identity.model.clone());
    let expected = config.model.clone().or(first).unwrap_or_default();
    for (server, identity) in known {
        if identity.model != expected {
            let found = identity.model.clone();
            return Err(StartError::Model { server, expected, found });
        }
        if let Some(found) = identity.exceeded_limit(config.max_length()) {
            let expected = config.max_length();
            return Err(StartError::ContextTooShort { server, expected, found });
        }
    }
    Ok(expected)
}
