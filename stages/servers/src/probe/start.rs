//! The short form of the probe, at the start of a run.

use crate::http::ServerError;
use crate::server::{Identity, Server};

/// Checks that a server answers, has the calls that training needs, takes token ids, and returns tokens with log-probabilities. Returns its
/// model. The proof that its weights are those of the trainer comes with the first delivery.
///
/// The tokens of a server that is paused, or too busy to sample one token in time, are not checked: an earlier run may have left it so, and
/// the first delivery resumes it and ends its requests.
///
/// # Errors
/// The first call that fails or whose answer is wrong.
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
