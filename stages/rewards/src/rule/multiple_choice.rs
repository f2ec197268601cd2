//! The reward `multiple_choice`: questions with a list of answers to choose from.

use std::sync::LazyLock;

use regex::Regex;
use rollpacker_math::boxed;
use rollpacker_math::choice::{letter, unwrapped};
use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};
use serde_json::Value;

use super::answer_in::AnswerIn;
use super::normal_form::SQUAD;
use super::regex;

documented! {
    /// 1 if a response chooses the right letter, otherwise 0. Without a list of choices, the letters are A to H.
    ///
    /// The choice is the last one that is marked: `\boxed{B}`, `Answer: (B)`, `the answer is B` or `**B**`. Without a mark, it is the
    /// choice whose text equals the answer, or else the last capital letter that stands alone.
    ///
    /// The ground truth is a letter, the text of a choice, or the index of a choice from 0. A letter may be wrapped in brackets, quotes,
    /// emphasis, dollars and LaTeX commands such as `\text{(B)}`. The choices are read from the field `choices` or `options` of
    /// `extra_info`: a list of texts, an object of texts by letter, or ARC's `{"text": [...], "label": [...]}`. Labels: `outcome`, which is
    /// `right`, `wrong` or `no_answer`, and `answer`, the chosen letter.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct MultipleChoice {
        /// The position of the answer. Default: `auto`.
        pub answer: AnswerIn,
    }
}

impl MultipleChoice {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About = About::new(&[], "the letter or the text of a choice", "this project");
}

impl Reward for MultipleChoice {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let choices = Choices::of(sample)?;
        let truth = choices.truth(sample)?;
        let chosen = self.answer.find(&sample.response).and_then(|answer| choices.chosen(answer));
        let outcome = match chosen {
            None => "no_answer",
            Some(letter) if letter == truth => "right",
            Some(_) => "wrong",
        };
        let score = Score::from(chosen == Some(truth)).label("outcome", outcome);
        Ok(chosen.into_iter().fold(score, |score, letter| score.label("answer", letter)))
    }
}

/// The letters of questions without a list of choices. The range covers common benchmarks, and only `A` is also an English word.
const LETTERS: std::ops::RangeInclusive<char> = 'A'..='H';

/// The choices of a question in order, each with its letter and its text; empty if the sample lists no choices.
#[derive(Clone, Debug, Default, PartialEq)]
struct Choices(Vec<(char, String)>);

/// Markup that may occur between the word `answer` and the letter.
const OPENING: &str =
    r#"(?:[\s*_$`"'“‘(\[{]|\\[(\[]|\\left\s*[(\[]|\\(?:text|math|bold|boxed|mbox)[a-z]*[\s{])*"#;

/// A statement such as `the answer is B`.
static STATED: LazyLock<Regex> = LazyLock::new(|| {
    let stated = r"(?i)\b(?:answer|option|choice)(?:\s+is)?\s*[:：]?";
    regex(&format!(r"{stated}{OPENING}([a-z])\b[^a-z'’]?"))
});
/// A letter in bold text, optionally followed by the text of its choice.
static BOLD: LazyLock<Regex> =
    LazyLock::new(|| regex(r"\*\*\s*\(?([A-Z])\)?\s*(?:[.:)][^*]*)?\*\*"));
/// A capital letter that stands alone.
static ALONE: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?:^|[^\p{L}\p{N}'’])([A-Z])(?:$|[^\p{L}\p{N}'’])"));

impl Choices {
    /// Reads the choices of a sample; empty if it has none.
    ///
    /// # Errors
    /// If `extra_info` is not an object, or its choices have none of the supported forms.
    fn of(sample: &Sample) -> Result<Self, RewardError> {
        let mut extra = sample.extra()?;
        let field = ["choices", "options"].into_iter().find(|field| extra.contains_key(*field));
        let Some(field) = field else { return Ok(Self::default()) };
        let value = extra.remove(field).unwrap_or_default();
        let wrong = || {
            RewardError::fatal(format_args!(
                "field `extra_info.{field}`: expected a list of texts or texts by letter, found {value}"
            ))
        };
        Self::read(&value).ok_or_else(wrong)
    }

    fn read(value: &Value) -> Option<Self> {
        let texts = |value: &Value| -> Option<Vec<String>> {
            value.as_array()?.iter().map(|text| Some(text.as_str()?.to_owned())).collect()
        };
        let choices = match value {
            Value::Null => Vec::new(),
            Value::Object(fields) if fields.contains_key("text") => {
                let labels = texts(fields.get("label")?)?;
                let labels = labels.iter().map(|label| letter(label)).enumerate();
                let labels = labels.map(|(at, label)| label.or_else(|| nth_letter(at)));
                labels
                    .zip(texts(&fields["text"])?)
                    .map(|(letter, text)| Some((letter?, text)))
                    .collect::<Option<_>>()?
            }
            Value::Object(fields) => fields
                .iter()
                .map(|(label, text)| Some((letter(label)?, text.as_str()?.to_owned())))
                .collect::<Option<_>>()?,
            list => texts(list)?
                .into_iter()
                .enumerate()
                .map(|(at, text)| Some((nth_letter(at)?, text)))
                .collect::<Option<_>>()?,
        };
        Some(Self(choices))
    }

    /// Returns the right letter.
    ///
    /// # Errors
    /// If the ground truth is not the letter, the text or the index of a choice. If there are no choices, it must be a letter from A to H.
    fn truth(&self, sample: &Sample) -> Result<char, RewardError> {
        let truth = sample.truth()?;
        let numbered =
            || self.0.get(truth.trim().parse::<usize>().ok()?).map(|(letter, _)| *letter);
        let wrong = || {
            RewardError::fatal(format_args!(
                "field `ground_truth`: expected a letter{}, found `{truth}`",
                if self.0.is_empty() { "" } else { ", a choice or its number from 0" }
            ))
        };
        self.choice_with_text(truth)
            .or_else(|| self.choice_with_text(unwrapped(truth)))
            .or_else(|| letter(truth).filter(|letter| self.has(*letter)))
            .or_else(numbered)
            .ok_or_else(wrong)
    }

    /// Returns the letter that an answer chooses, or `None` if it chooses none.
    fn chosen(&self, answer: &str) -> Option<char> {
        let stated = [&*STATED, &*BOLD]
            .into_iter()
            .flat_map(|mark| mark.captures_iter(answer))
            .filter_map(|found| found.get(1).map(|inside| (inside.start(), inside.as_str())))
            .filter(|(at, inside)| *inside != "a" || !is_article(&answer[at + 1..]));
        let marked = boxed(answer)
            .chain(stated)
            .filter_map(|(at, inside)| Some((at, self.read_choice(inside)?)))
            .max_by_key(|(position, _)| *position);
        marked
            .map(|(_, letter)| letter)
            .or_else(|| self.choice_with_text(answer))
            .or_else(|| self.last_single_letter(answer))
    }

    /// Returns the letter of marked text: the text of a choice, or a letter.
    fn read_choice(&self, marked: &str) -> Option<char> {
        let named = || {
            self.choice_with_text(marked.trim())
                .or_else(|| self.choice_with_text(unwrapped(marked)))
        };
        named().or_else(|| letter(marked)).filter(|letter| self.has(*letter))
    }

    fn last_single_letter(&self, answer: &str) -> Option<char> {
        let mut last = None;
        let mut from = 0;
        // The separator after one letter is also the separator before the next, so the search restarts directly after each letter.
        while let Some(found) = ALONE.captures_at(answer, from).and_then(|found| found.get(1)) {
            from = found.end();
            let letter = found.as_str().chars().next().filter(|letter| self.has(*letter));
            last = letter.filter(|letter| *letter != 'A' || !is_article(&answer[from..])).or(last);
        }
        last
    }

    /// Returns the letter of the choice with this text, as written or after SQuAD's normalization.
    fn choice_with_text(&self, text: &str) -> Option<char> {
        let stated = SQUAD.of(text);
        let is = |(_, choice): &&(char, String)| {
            choice.trim() == text.trim() || (!stated.is_empty() && SQUAD.of(choice) == stated)
        };
        self.0.iter().find(is).map(|(letter, _)| *letter)
    }

    fn has(&self, letter: char) -> bool {
        if self.0.is_empty() {
            LETTERS.contains(&letter)
        } else {
            self.0.iter().any(|(of, _)| *of == letter)
        }
    }
}

fn nth_letter(at: usize) -> Option<char> {
    ('A'..='Z').nth(at)
}

/// Returns `true` if the text after an `A` shows that the `A` is an article.
fn is_article(after: &str) -> bool {
    after.strip_prefix(' ').is_some_and(|word| word.starts_with(char::is_lowercase))
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    fn score(response: &str, truth: &str, extra: Option<&str>) -> Result<Score, RewardError> {
        let sample = Sample {
            extra_info: extra.map(str::to_owned),
            ..Sample::of("mc", response, Some(truth))
        };
        block_on(MultipleChoice::default().score(&sample, &Context::detached()))
    }

    fn check(response: &str, expected: Option<char>) {
        let score = score(response, "B", None).expect("scored");
        let found = score.labels.get("answer").and_then(|letter| letter.chars().next());
        assert_eq!(found, expected, "{response:?}");
        assert_eq!(score.value, f64::from(expected == Some('B')), "{response:?}");
    }

    #[test]
    fn a_choice_is_read_where_it_is_marked() {
        check(r"so \boxed{B}", Some('B'));
        check(r"so \boxed{\text{B}}", Some('B'));
        check(r"so \boxed{(b)}", Some('B'));
        check(r"\boxed{A} no, \boxed{C}", Some('C'));
        check("Answer: (B) Paris. A is wrong.", Some('B'));
        check("the answer is b", Some('B'));
        check("Answer: **B**", Some('B'));
        check("**Answer:** B", Some('B'));
        check("**C. Paris**", Some('C'));
        check("I choose **B** over C", Some('B'));
    }

    #[test]
    fn a_letter_may_be_wrapped_on_either_side() {
        for response in [
            r"\boxed{B}",
            r"\boxed{\text{(B)}}",
            r"\boxed{\textbf{(B)}}",
            r"$\boxed{\left(\mathrm{B}\right)}$",
            r"\boxed{\textbf{(B)}\ 5}",
            r"\boxed{\{B\}}, that is, $\boxed{\textrm{B.}}$",
            r"Answer: $\text{(B)}$",
            r"the answer is \(\mathbf{B}\).",
            "The correct option is `B`",
        ] {
            for truth in ["B", r"\text{(B)}", r"$\textbf{(B)}$", r"\mathrm{B}", "(b)", r"\boxed{B}"]
            {
                assert_eq!(
                    score(response, truth, None).expect("scored").value,
                    1.0,
                    "{response:?} against {truth:?}"
                );
            }
            assert_eq!(
                score(response, r"\text{(C)}", None).expect("scored").value,
                0.0,
                "{response:?}"
            );
        }
    }

    #[test]
    fn otherwise_the_last_single_letter_counts() {
        check("not C but B", Some('B'));
        check("B or D", Some('D'));
        check("B. A car would be late.", Some('B'));
        check("B, since I said so", Some('B'));
        check("(A)(B)", Some('B'));
        check("The answer is a matter of taste: D", Some('D'));
        check("BA", None);
        check("<think>B</think>C", Some('C'));
        check("", None);
    }

    #[test]
    fn a_choice_may_be_given_as_its_full_text() {
        let value =
            |response, truth, extra| score(response, truth, Some(extra)).expect("scored").value;
        let list = r#"{"choices": ["London", "Paris", "Rome"]}"#;
        assert_eq!(value("paris.", "B", list), 1.0);
        assert_eq!(value(r"\boxed{Paris}", "Paris", list), 1.0);
        assert_eq!(value("Answer: B", "1", list), 1.0);
        assert_eq!(value("Answer: D", "1", list), 0.0);
        assert_eq!(value("Rome", "B", list), 0.0);
        assert_eq!(value("two", "B", r#"{"options": {"A": "one", "B": "two"}}"#), 1.0);
        let arc = r#"{"choices": {"text": ["one", "two"], "label": ["1", "2"]}}"#;
        assert_eq!(value("two", "B", arc), 1.0);
    }

    #[test]
    fn an_invalid_choice_is_an_error() {
        let error = |truth, extra| score("B", truth, extra).expect_err("no choice").reason;
        assert_eq!(error("nine", None), "field `ground_truth`: expected a letter, found `nine`");
        let list = Some(r#"{"choices": ["x", "y"]}"#);
        assert!(error("C", list).ends_with("a choice or its number from 0, found `C`"));
        assert!(error("A", Some(r#"{"choices": 3}"#)).contains("`extra_info.choices`"));
    }
}
