//! The short form of the probe, at the start of a run.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::http::ServerError;
use crate::server::{Identity, Server};

/// Checks that a server answers, has the calls that training needs, accepts the prompt `tokens` as token ids, and returns tokens with
/// log-probabilities. `tokens` must have at least 2 entries. Returns the server's model. The first delivery verifies that the server uses
/// the trainer's weights.
///
/// Tokens are not checked if the server is paused, or is too busy to sample one token within `limit`: an earlier run may have left the
/// server in this state, and the first delivery resumes the server and aborts its requests. For SGLang, only the health and the model are
/// checked.
///
/// # Errors
/// Returns the error of the first call that fails or whose answer is wrong, except the error of a server that is too busy. Returns
/// [`ServerError::Stalled`] if the other calls do not end within `limit`.
pub(crate) async fn check_start(
    server: &Server,
    tokens: &[i32],
    limit: Duration,
) -> Result<Identity, ServerError> {
    let deadline = Instant::now() + limit;
    let stalled = |_| ServerError::Stalled { server: server.name(), waited: limit };
    let calls = async { Ok((server.identity().await?, server.check_calls().await?)) };
    let (identity, is_paused) = timeout_at(deadline, calls).await.map_err(stalled)??;
    if is_paused {
        return Ok(identity);
    }
    let request = format!("start-{:016x}", super::nonce());
    let checked = timeout_at(deadline, server.check_tokens(tokens, &request)).await;
    match checked.map_err(stalled).flatten() {
        Err(error @ ServerError::Stalled { .. }) => {
            tracing::warn!(%error, "an inference server is too busy to be checked at the start");
            Ok(identity)
        }
        checked => checked.map(|()| identity),
    }
}
