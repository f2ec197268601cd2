//! The scoring of Logic-RL for structure and answer.

use regex::RegexBuilder;
use rollpacker_stages::reward::Score;

use super::Roles;
use crate::rule::answer_in::tagged;

/// Scores structure and answer as Logic-RL does. If `opened` is `true`, the prompt or the chat template has opened `<think>`, and the
/// response must not contain this tag.
pub(super) fn score(response: &str, truth: &Roles, opened: bool) -> Score {
    let form = if has_form(response, opened) { 1.0 } else { -1.0 };
    let answer = tagged(response).map(str::trim).filter(|answer| form > 0.0 && !answer.is_empty());
    let (value, outcome) = match answer.map(|answer| claims(answer, truth)) {
        None => (-2.0, "no_answer"),
        Some(None) => (-2.0, "unreadable"),
        Some(Some(claims)) if claims == *truth => (2.0, "right"),
        Some(Some(_)) => (-1.5, "wrong"),
    };
    Score::from(form + value)
        .component("format", form)
        .component("answer", value)
        .label("outcome", outcome)
        .label("answer", answer.unwrap_or_default())
}

/// Returns `true` if every tag occurs once, in order. If `opened` is `true`, `<think>` must not occur.
fn has_form(response: &str, opened: bool) -> bool {
    let tags = ["<think>", "</think>", "<answer>", "</answer>"];
    let tags = if opened { &tags[1..] } else { &tags[..] };
    let once = tags.iter().all(|tag| response.matches(tag).count() == 1);
    once && !(opened && response.contains("<think>"))
        && tags.iter().map(|tag| response.find(tag)).is_sorted()
}

/// Returns the claims about all persons. Returns `None` if the number of roles that the answer mentions differs from the number of persons,
/// or if a person is missing.
fn claims(answer: &str, truth: &Roles) -> Option<Roles> {
    let lower = answer.to_lowercase();
    let roles = ["knight", "knave"].map(|role| lower.matches(role).count());
    if roles.iter().sum::<usize>() != truth.len() {
        return None;
    }
    truth.keys().map(|name| Some((name.clone(), claim(answer, name)?))).collect()
}

fn claim(answer: &str, name: &str) -> Option<String> {
    let pattern = format!(r"\b{}\b\s+is\s+a\s+\b(knight|knave)\b", regex::escape(name));
    let pattern = RegexBuilder::new(&pattern).case_insensitive(true).build();
    let pattern = pattern.expect("invariant: an escaped name is a valid pattern");
    Some(pattern.captures(answer)?[1].to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(response: &str, opened: bool, expected: [f64; 2]) {
        let truth = [("Zoey", "knight"), ("Bob", "knave")];
        let truth = truth.map(|(name, role)| (name.to_owned(), role.to_owned())).into();
        let score = score(response, &truth, opened);
        let found = ["format", "answer"].map(|part| score.components[part]);
        assert_eq!((found, score.value), (expected, expected[0] + expected[1]), "{response:?}");
    }

    #[test]
    fn form_and_answer_are_scored_as_published() {
        let response = |answer: &str| format!("<think>so</think>\n<answer>{answer}</answer>");
        check(&response("(1) Zoey is a knight\n(2) bob is a knave"), false, [1.0, 2.0]);
        check(&response("Zoey is a knave\nBob is a knave"), false, [1.0, -1.5]);
        check(&response("Zoey is a knight"), false, [1.0, -2.0]);
        check(&response("Zoey is a knight, Bob a knave"), false, [1.0, -2.0]);
        check(&response(" "), false, [1.0, -2.0]);
        check("<answer>Zoey is a knight\nBob is a knave</answer>", false, [-1.0, -2.0]);
        check("so</think><answer>Zoey is a knight. Bob is a knave</answer>", true, [1.0, 2.0]);
        check(&response("Zoey is a knight\nBob is a knave"), true, [-1.0, -2.0]);
        let back = "<answer>Zoey is a knight\nBob is a knave</answer><think>so</think>";
        check(back, false, [-1.0, -2.0]);
    }
}
