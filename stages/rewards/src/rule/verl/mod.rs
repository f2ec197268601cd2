//! The graders of verl, reproduced exactly (verl 0.9, `verl/utils/reward_score`).
//!
//! They compare extracted answers as strings. Their deviations from mathematical equality are reproduced as well, because existing runs
//! were tuned to them.

mod gsm8k;
mod math_dapo;
mod math_reward;
mod search_r1;

pub use gsm8k::Gsm8k;
pub use math_dapo::{MathDapo, Verdict};
pub use math_reward::MathReward;
pub use search_r1::SearchR1;

/// Returns the last `count` characters of a text, or all of a shorter text. `count` must be at least 1.
fn last_characters(text: &str, count: usize) -> &str {
    let begin = text.char_indices().rev().nth(count.saturating_sub(1)).map_or(0, |(at, _)| at);
    &text[begin..]
}

/// Returns the text from `begin` to the brace that closes the first one opened after it. Returns `None` if there is no such brace.
fn through_closing_brace(text: &str, begin: usize) -> Option<&str> {
    let mut depth = 0_i64;
    for (offset, byte) in text[begin..].bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(&text[begin..=begin + offset]);
                }
            }
            _ => {}
        }
    }
    None
}
