//! Questions for the wrong choice, such as `Which is not a city?`.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use crate::rule::regex;

/// Negations that belong to instructions: `Do not explain.`, `Answer, but do not explain.`, `if not`.
static INSTRUCTION: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"\b(?:Do not|DO NOT)\b|(?i)\b(?:please|and|but|or|if|whether)\s+(?:do\s+)?not\b|\bif\s+you\s+do\s+not\b",
    )
});
static NEGATIVE: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)\b(?:not|cannot|except|false|incorrect|wrong|untrue|least)\b"));

/// Returns `true` if the last message of the user, in a JSON array of messages, asks for a choice that is wrong or does not fit.
pub(super) fn is_negative(messages: &str) -> bool {
    let parsed = serde_json::from_str::<Vec<Value>>(messages).unwrap_or_default();
    let of_user = |message: &&Value| message.get("role").and_then(Value::as_str) == Some("user");
    let question = parsed.iter().rev().find(of_user).and_then(|message| message.get("content"));
    let question = question.and_then(Value::as_str).unwrap_or_default();
    NEGATIVE.is_match(&INSTRUCTION.replace_all(question, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_question_asks_for_a_wrong_choice() {
        let ask = |text: &str| {
            let messages = serde_json::json!([
                {"role": "system", "content": "Say if it is false."},
                {"role": "user", "content": text},
            ]);
            is_negative(&messages.to_string())
        };
        for text in [
            "Which is not a city?",
            "Which metals do not conduct?",
            "Which is FALSE?",
            "All are cities except\nA. Rome",
        ] {
            assert!(ask(text), "{text:?}");
        }
        for text in [
            "Which is a city?",
            "Which is a city? Do not explain.",
            "Answer, but do not explain.",
            "",
        ] {
            assert!(!ask(text), "{text:?}");
        }
        assert!(!is_negative("[]") && !is_negative("not JSON"));
    }
}
