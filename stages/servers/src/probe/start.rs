//! The short form of the probe, at the start of a run.

use crate::http::ServerError;
use crate::server::{Identity, Server};

/// Checks that a server answers, has the calls that training needs, accepts the prompt `tokens` as token ids, and returns tokens with
/// log-probabilities. `tokens` must have at least 2 entries. Returns the server's model. The first delivery verifies that the server uses
/// the trainer's weights.
///
/// Tokens are not checked if the server is paused, or is too busy to sample one token in time: an earlier run may have left the server in
/// this state, and the first delivery resumes the server and aborts its requests. For SGLang, only the health and the model are checked.
///
/// # Errors
/// Returns the error of the first call that fails or whose answer is wrong, except the error of a server that is too busy.
pub(crate) async fn check_start(server: &Server, tokens: &[i32]) -> Result<Identity, ServerError> {
    let identity = server.identity().await?;
    let is_paused = server.check_calls().await?;
    if is_paused {
        return Ok(identity);
    }
    match server.check_tokens(tokens, &format!("start-{:016x}", super::nonce())).await {
        Err(error @ ServerError::Stalled { .. }) => {
            tracing::warn!(%error, "an inference server is too busy to be checked at the start");
            Ok(identity)
        }
        checked => checked.map(|()| identity),
    }
}
