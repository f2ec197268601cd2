//! The finish reasons of responses, as written in the column `finish_reason`.

use rollpacker_stages::rollout::FinishReason;

/// Parses a value of the column `finish_reason`.
pub(crate) fn finish_reason(written: &str) -> FinishReason {
    written.parse().expect("invariant: the rollout writes finish reasons only")
}

/// Returns `true` if an earlier round kept the response whole.
///
/// Such a response is returned again without sampling another token, and it was observed when it ended. `resumed` of its `tokens` are from
/// an earlier step.
#[must_use]
pub fn is_returned_whole(finish_reason: FinishReason, tokens: u32, resumed: u32) -> bool {
    finish_reason.is_whole() && resumed > 0 && resumed == tokens
}
