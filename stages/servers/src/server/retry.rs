//! Repetition of calls whose error may be temporary.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};

use crate::http::ServerError;

/// Makes a call, and repeats it with exponential back-off up to three times while its error may be temporary.
pub(crate) async fn with_retries<T, C>(call: impl FnMut() -> C) -> Result<T, ServerError>
where
    C: Future<Output = Result<T, ServerError>>,
{
    let backoff = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(2))
        .with_max_times(3)
        .with_jitter();
    call.retry(backoff).when(ServerError::is_retryable).await
}
