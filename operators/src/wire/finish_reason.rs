//! The finish reasons of responses, as written in the column `finish_reason`.

use rollpacker_stages::rollout::FinishReason;

/// Parses a value of the column `finish_reason`.
///
/// # Panics
/// If the value is not a finish reason.
pub(crate) fn finish_reason(written: &str) -> FinishReason {
    written.parse().expect("invariant: the rollout writes finish reasons only")
}

/// Returns `true` if an earlier round kept the response whole. Such a response ended by itself, and its number of tokens from earlier
/// steps, `resumed`, equals its number of tokens.
///
/// The response is returned again without sampling another token, and was already observed when it ended.
#[must_use]
pub fn is_returned_whole(finish_reason: FinishReason, tokens: u32, resumed: u32) -> bool {
    finish_reason.is_whole() && resumed > 0 && resumed == tokens
}
