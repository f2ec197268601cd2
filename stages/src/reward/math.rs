//! Answers that are numbers or short terms.

use super::{Context, Reward, RewardError, Sample, Score};

/// One point if the final answer of a response equals the ground truth, else none.
///
/// The answer is what the response marks as such, the last marker winning: `\boxed{...}`, `#### ...`, `<answer>...</answer>`,
/// `Answer: ...` or `A:...`. Numbers are equal by value (`1,000` is `1000.0`), everything else by its characters, blanks aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Math {
    /// Whether the last number of a response without a marker counts as its answer.
    pub last_number: bool,
}

impl Reward for Math {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let truth = sample.truth()?;
        let answer = self.answer(&sample.response);
        Ok(answer.is_some_and(|answer| equal(answer, truth)).into())
    }
}

impl Math {
    /// The final answer of a response.
    fn answer<'a>(&self, response: &'a str) -> Option<&'a str> {
        let marked = [boxed(response), line_after(response, "####"), tagged(response)]
            .into_iter()
            .chain(["answer:", "Answer:", "A:"].map(|marker| line_after(response, marker)))
            .flatten()
            .max_by_key(|(position, _)| *position)
            .map(|(_, answer)| answer);
        marked.or_else(|| self.last_number.then(|| last_number(response)).flatten())
    }
}

/// The contents of the last `\boxed{...}`, braces balanced.
fn boxed(text: &str) -> Option<(usize, &str)> {
    let begin = text.rfind("\\boxed{")? + "\\boxed{".len();
    let mut depth = 1_usize;
    for (offset, character) in text[begin..].char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((begin, &text[begin..begin + offset]));
        }
    }
    None
}

fn tagged(text: &str) -> Option<(usize, &str)> {
    let begin = text.rfind("<answer>")? + "<answer>".len();
    let end = text[begin..].find("</answer>")?;
    Some((begin, &text[begin..begin + end]))
}

fn line_after<'a>(text: &'a str, marker: &str) -> Option<(usize, &'a str)> {
    let begin = text.rfind(marker)? + marker.len();
    text[begin..].lines().next().map(|line| (begin, line))
}

fn last_number(text: &str) -> Option<&str> {
    text.split(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ',' | '-')))
        .rfind(|word| number(word).is_some())
}

fn equal(answer: &str, truth: &str) -> bool {
    match (number(answer), number(truth)) {
        (Some(answer), Some(truth)) => answer == truth,
        _ => bare(answer) == bare(truth) && !bare(answer).is_empty(),
    }
}

/// The number that a text spells, if it spells nothing else.
fn number(text: &str) -> Option<f64> {
    let digits: String = bare(text).chars().filter(|c| *c != ',').collect();
    let digits = digits.strip_suffix('.').unwrap_or(&digits);
    let spelled = digits.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'));
    digits.parse().ok().filter(|value: &f64| spelled && value.is_finite())
}

fn bare(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace() && *c != '$').collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(response: &str, truth: &str, expected: bool) {
        let found = Math::default().answer(response).is_some_and(|answer| equal(answer, truth));
        assert_eq!(found, expected, "{response:?} against {truth:?}");
    }

    #[test]
    fn reads_marked_answers() {
        check("3+4=7,7*7=9,A:9", "9", true);
        check("3+4=7,7*7=9,A:8", "9", false);
        check("it is 9", "9", false);
        check("so #### 1,234", "1234", true);
        check("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", true);
        check("\\boxed{7} no, \\boxed{8}", "8", true);
        check("<answer> 42. </answer>", "42", true);
        check("Answer: $18$\nThanks", "18.0", true);
        check("A:", "9", false);
        check("A:", "", false);
    }

    #[test]
    fn the_last_marker_wins() {
        check("A:3 then #### 4", "4", true);
        check("#### 4 then A:3", "4", false);
    }

    #[test]
    fn the_last_number_counts_only_if_asked_for() {
        assert_eq!(Math { last_number: true }.answer("so 3 apples and 5."), Some("5."));
        assert_eq!(Math::default().answer("so 3 apples and 5."), None);
    }

    proptest! {
        #[test]
        fn any_text_is_scored_without_a_panic(response in ".{0,60}(boxed|####|A:|<answer>)?.{0,20}", truth in ".{0,8}") {
            let math = Math { last_number: true };
            let _ = math.answer(&response).map(|answer| equal(answer, &truth));
        }

        #[test]
        fn a_marked_integer_equals_itself(value in any::<i32>()) {
            check(&format!("because, \\boxed{{{value}}}"), &value.to_string(), true);
        }
    }
}
