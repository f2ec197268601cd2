//! The reward `multiple_choice`: questions with a list of answers to choose from.

use std::sync::LazyLock;

use regex::Regex;
use rollpacker_math::boxed;
use rollpacker_math::choice::{label, letter, unwrapped};
use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};
use serde_json::Value;

use super::answer_in::AnswerIn;
use super::normal_form::SQUAD;
use super::regex;

documented! {
    /// 1 if a response chooses the right choice, otherwise 0. Labels of choices are letters, numbers or Roman numerals. Without a list of
    /// choices, the form of the ground truth decides: the labels are A to J, 0 to 10, or i to x.
    ///
    /// The choice is the last one that is marked: `\boxed{B}`, `Answer: (B)`, `the answer is B` or `**B**`. In boxes and after `answer`, the
    /// text of a choice is also a mark: `Answer: Paris`. Without a mark, it is the choice whose text equals the answer, the label that is
    /// the whole answer or its last line, or else the last capital letter or Roman numeral of several letters that stands alone. Numbers
    /// in a sentence do not count.
    ///
    /// The ground truth is a label, the text of a choice, or the index of a choice from 0. A label may be wrapped in brackets, quotes,
    /// emphasis, dollars and LaTeX commands such as `\text{(B)}`. The choices are read from the field `choices` or `options` of
    /// `extra_info`: a list of texts with the labels A, B, ..., an object of texts by label, or ARC's `{"text": [...], "label": [...]}`.
    /// Choices with numbers or Roman numerals may also be chosen by the letters A, B, ... in their order. Labels: `outcome`, which is
    /// `right`, `wrong` or `no_answer`, and `answer`, the chosen label.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct MultipleChoice {
        /// The position of the answer: the last `<answer>` (`tag`), the text after the last `</think>` (`after_think`), the whole response
        /// (`response`), or the first of these that is present (`auto`). Default: `auto`.
        pub answer: AnswerIn,
    }
}

impl MultipleChoice {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About = About::new(&[], "the letter or the text of a choice", "this project");
}

impl Reward for MultipleChoice {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let mut choices = Choices::of(sample)?;
        let truth = choices.truth(sample)?;
        let chosen = self.answer.find(&sample.response).and_then(|answer| choices.chosen(answer));
        let outcome = match &chosen {
            None => "no_answer",
            Some(label) if *label == truth => "right",
            Some(_) => "wrong",
        };
        let score = Score::from(chosen.as_ref() == Some(&truth)).label("outcome", outcome);
        Ok(chosen.into_iter().fold(score, |score, label| score.label("answer", label)))
    }
}

/// The letters that are labels if a question has no list of choices. The range covers common benchmarks.
const LETTERS: std::ops::RangeInclusive<char> = 'A'..='J';
/// The Roman numerals that are labels if a question has no list of choices.
const NUMERALS: [&str; 10] = ["i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x"];
/// The largest number that is a label if a question has no list of choices.
const MAX_NUMBER: u32 = 10;

/// The form of the labels of a question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LabelForm {
    #[default]
    Letters,
    Numbers,
    Numerals,
}

impl LabelForm {
    /// Returns the form of a label; letters for a single letter other than a lower-case `i`, `v` and `x`.
    fn of(label: &str) -> Self {
        match label {
            _ if label.starts_with(|c: char| c.is_ascii_digit()) => Self::Numbers,
            _ if label.len() > 1 || ["i", "v", "x"].contains(&label) => Self::Numerals,
            _ => Self::Letters,
        }
    }

    /// Returns a label in the spelling in which equal labels are equal.
    fn spelled(self, label: &str) -> String {
        match self {
            Self::Letters => label.to_ascii_uppercase(),
            Self::Numbers | Self::Numerals => label.to_ascii_lowercase(),
        }
    }

    /// Returns the expression for a statement such as `the answer is B`, whose only group is the label.
    fn stated(self) -> &'static Regex {
        match self {
            Self::Letters => &STATED,
            Self::Numbers => &STATED_NUMBER,
            Self::Numerals => &STATED_NUMERAL,
        }
    }
}

/// A choice of a question.
#[derive(Clone, Debug, PartialEq)]
struct Choice {
    label: String,
    /// The letter that also selects the choice; `None` if the labels are letters, and for choices after the 26th.
    letter: Option<String>,
    text: String,
}

/// The choices of a question in order; empty if the sample lists no choices.
#[derive(Clone, Debug, Default, PartialEq)]
struct Choices {
    form: LabelForm,
    all: Vec<Choice>,
}

/// Markup that may occur between the word `answer` and the label.
const OPENING: &str =
    r#"(?:[\s*_$`"'“‘(\[{]|\\[(\[]|\\left\s*[(\[]|\\(?:text|math|bold|boxed|mbox)[a-z]*[\s{])*"#;

fn stated(label: &str) -> Regex {
    regex(&format!(
        r"(?i)\b(?:answer|option|choice)(?:\s+is)?\s*[:：]?{OPENING}({label})\b[^a-z'’]?"
    ))
}

/// A statement such as `the answer is B`.
static STATED: LazyLock<Regex> = LazyLock::new(|| stated("[a-z]"));
static STATED_NUMBER: LazyLock<Regex> = LazyLock::new(|| stated("[0-9]{1,2}"));
static STATED_NUMERAL: LazyLock<Regex> = LazyLock::new(|| stated("[ivx]{1,4}"));
/// The beginning of a statement such as `the answer is Paris`.
static STATED_TEXT: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)\banswer(?:\s+is\s*[:：]?|\s*[:：])"));
/// The end of a sentence or of a clause.
static CLAUSE_END: LazyLock<Regex> = LazyLock::new(|| regex(r"[.,;!?](?:\s|$)"));
/// A label in bold text, optionally followed by the text of its choice.
static BOLD: LazyLock<Regex> =
    LazyLock::new(|| regex(r"\*\*\s*\(?([A-Z]|[0-9]{1,2}|[ivx]{1,4})\)?\s*(?:[.:)]([^*]*))?\*\*"));
/// A capital letter that stands alone.
static ALONE: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?:^|[^\p{L}\p{N}'’])([A-Z])(?:$|[^\p{L}\p{N}'’])"));
/// A Roman numeral of several letters that stands alone.
static NUMERAL_ALONE: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)(?:^|[^\p{L}\p{N}'’])([ivx]{2,4})(?:$|[^\p{L}\p{N}'’])"));

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
                "field `extra_info.{field}`: expected a list of texts or texts by label, found {value}"
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
                let labels = labels.iter().map(|text| label(text)).enumerate();
                let labels = labels.map(|(at, label)| label.or_else(|| nth_letter(at)));
                labels
                    .zip(texts(&fields["text"])?)
                    .map(|(label, text)| Some((label?, text)))
                    .collect::<Option<_>>()?
            }
            Value::Object(fields) => fields
                .iter()
                .map(|(name, text)| Some((label(name)?, text.as_str()?.to_owned())))
                .collect::<Option<_>>()?,
            list => texts(list)?
                .into_iter()
                .enumerate()
                .map(|(at, text)| Some((nth_letter(at)?, text)))
                .collect::<Option<_>>()?,
        };
        Some(Self::labelled(choices))
    }

    /// Creates choices from their labels and texts. All labels have the same form.
    fn labelled(choices: Vec<(String, String)>) -> Self {
        let is_number = |label: &str| label.starts_with(|c: char| c.is_ascii_digit());
        let is_numeral = |label: &str| label.chars().all(|c| "ivxIVX".contains(c));
        let form = if choices.iter().any(|(label, _)| is_number(label)) {
            LabelForm::Numbers
        } else if choices.iter().any(|(label, _)| label.len() > 1)
            && choices.iter().all(|(label, _)| is_numeral(label))
        {
            LabelForm::Numerals
        } else {
            LabelForm::Letters
        };
        let choice = |(at, (label, text)): (usize, (String, String))| Choice {
            letter: nth_letter(at).filter(|_| form != LabelForm::Letters),
            label: form.spelled(&label),
            text,
        };
        Self { form, all: choices.into_iter().enumerate().map(choice).collect() }
    }

    /// Returns the label of the right choice. If there are no choices, the form of the label becomes the form of the labels.
    ///
    /// # Errors
    /// If the ground truth is not the label, the text or the index of a choice. If there are no choices, it must be a letter from A to J, a
    /// number from 0 to 10, or a Roman numeral from i to x.
    fn truth(&mut self, sample: &Sample) -> Result<String, RewardError> {
        let truth = sample.truth()?;
        if self.all.is_empty()
            && let Some(label) = label(truth)
        {
            self.form = LabelForm::of(&label);
        }
        let numbered = || Some(self.all.get(truth.trim().parse::<usize>().ok()?)?.label.clone());
        let wrong = || {
            RewardError::fatal(format_args!(
                "field `ground_truth`: expected {}, found `{truth}`",
                match self.all.is_empty() {
                    true => "a letter from A to J, a number from 0 to 10 or a numeral from i to x",
                    false => "the label of a choice, its text or its number from 0",
                }
            ))
        };
        self.read_choice(truth).or_else(numbered).ok_or_else(wrong)
    }

    /// Returns the label that an answer chooses, or `None` if it chooses none.
    fn chosen(&self, answer: &str) -> Option<String> {
        let stated = self.form.stated().captures_iter(answer).filter_map(|found| {
            let label = found.get(1)?;
            self.is_stated(label.as_str(), &answer[label.end()..])
                .then_some((label.start(), label.as_str()))
        });
        let bold = BOLD.captures_iter(answer).filter_map(|found| {
            let label = found.get(1)?;
            let text = found.get(2).map_or("", |text| text.as_str().trim());
            // Numbers in bold text also begin headings.
            let is_heading = self.form != LabelForm::Letters
                && !text.is_empty()
                && self.choice_with_text(text) != self.labelled_choice(label.as_str());
            (!is_heading).then_some((label.start(), label.as_str()))
        });
        let named = STATED_TEXT.find_iter(answer).filter_map(|found| {
            let (length, label) = self.named_choice(&answer[found.end()..])?;
            // The end of the text, so that a text that begins with a label, such as `A dog`, counts and not the label.
            Some((found.end() + length, label))
        });
        let marked = named
            .chain(boxed(answer).filter_map(|(at, inside)| Some((at, self.read_choice(inside)?))))
            .chain(
                stated
                    .chain(bold)
                    .filter_map(|(at, label)| Some((at, self.labelled_choice(label)?))),
            )
            .max_by_key(|(position, _)| *position);
        marked
            .map(|(_, label)| label)
            .or_else(|| self.choice_with_text(answer))
            .or_else(|| self.label_of_line(answer, false))
            .or_else(|| self.last_single_label(answer))
            .or_else(|| self.label_of_line(answer, true))
    }

    /// Finds the choice whose text is the first line of a statement, or the first clause of this line. Returns the length of this line or
    /// clause in bytes, and the label of the choice. If the labels are numbers, a number that is a label does not count as a text.
    fn named_choice(&self, statement: &str) -> Option<(usize, String)> {
        let line = statement.lines().next()?;
        let clause = CLAUSE_END.find(line).map_or(line, |end| &line[..end.start()]);
        let is_label = |text| label(text).and_then(|label| self.labelled_choice(&label)).is_some();
        [line, clause].into_iter().find_map(|text| {
            let named =
                self.choice_with_text(text).or_else(|| self.choice_with_text(unwrapped(text)))?;
            (self.form != LabelForm::Numbers || !is_label(text)).then_some((text.len(), named))
        })
    }

    /// Returns `false` if a label after a word such as `answer` belongs to the sentence: an article, the pronoun `I`, or a number with a
    /// fraction or a unit.
    fn is_stated(&self, label: &str, after: &str) -> bool {
        match self.form {
            LabelForm::Numbers => {
                let mut rest = after.chars();
                let fraction = rest.next().is_some_and(|c| ".,:/^%°-+*".contains(c))
                    && rest.next().is_some_and(|c| c.is_ascii_alphanumeric());
                let percent = after.trim_start().starts_with(['%', '+', '/', '=', '^']);
                let after_blank = after.strip_prefix(' ').unwrap_or_default();
                let word =
                    after_blank.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
                let unit = word.starts_with(char::is_lowercase) && !AFTER_LABEL.contains(&word);
                !(fraction || percent || unit)
            }
            _ => !(["a", "i", "I"].contains(&label) && is_article(after)),
        }
    }

    /// Returns the label of the choice that marked text names by its text or by its label. The text counts first, except for labels that
    /// are numbers, since the texts of the choices may also be numbers.
    fn read_choice(&self, marked: &str) -> Option<String> {
        let named = || {
            self.choice_with_text(marked.trim())
                .or_else(|| self.choice_with_text(unwrapped(marked)))
        };
        let labelled = || {
            let read = label(marked).or_else(|| letter(marked).map(String::from))?;
            self.labelled_choice(&read)
        };
        match self.form {
            LabelForm::Numbers => labelled().or_else(named),
            _ => named().or_else(labelled),
        }
    }

    /// Returns the label that is the last line of an answer, alone or before the text of its choice. If `any_text` is `true`, the label may
    /// be before any text, but the answer must have one line.
    fn label_of_line(&self, answer: &str, any_text: bool) -> Option<String> {
        let last = answer.lines().next_back()?.trim();
        let found = self.labelled_choice(&label(last)?)?;
        if any_text {
            return (answer.trim() == last).then_some(found);
        }
        let text = unwrapped(last).trim_start_matches(['(', '[']);
        let text = text.trim_start_matches(|c: char| c.is_alphanumeric());
        let text = text.trim_start_matches([')', ']', '.', ':', ',']).trim();
        let is_alone = text.is_empty() || self.choice_with_text(text).as_ref() == Some(&found);
        is_alone.then_some(found)
    }

    fn last_single_label(&self, answer: &str) -> Option<String> {
        let alone = match self.form {
            LabelForm::Letters => &ALONE,
            LabelForm::Numerals => &NUMERAL_ALONE,
            LabelForm::Numbers => return None,
        };
        let mut last = None;
        let mut from = 0;
        // The separator after one label is also the separator before the next, so the search restarts directly after each label.
        while let Some(found) = alone.captures_at(answer, from).and_then(|found| found.get(1)) {
            from = found.end();
            let is_word = match found.as_str() {
                "A" => is_article(&answer[from..]),
                // Without a list, the pronoun is more likely than the ninth choice.
                "I" => self.all.is_empty() || is_article(&answer[from..]),
                _ => false,
            };
            last = self.labelled_choice(found.as_str()).filter(|_| !is_word).or(last);
        }
        last
    }

    /// Returns the label of the choice with this text, as written or after SQuAD's normalization.
    fn choice_with_text(&self, text: &str) -> Option<String> {
        let stated = SQUAD.of(text);
        let is = |choice: &&Choice| {
            choice.text.trim() == text.trim()
                || (!stated.is_empty() && SQUAD.of(&choice.text) == stated)
        };
        self.all.iter().find(is).map(|choice| choice.label.clone())
    }

    /// Returns the label of the choice that has this label, in upper or lower case, or this letter. Without a list of choices, returns the
    /// label if it is in the range of its form.
    fn labelled_choice(&self, label: &str) -> Option<String> {
        let spelled = self.form.spelled(label);
        if !self.all.is_empty() {
            let letter = label.to_ascii_uppercase();
            let by_label = self.all.iter().find(|choice| choice.label == spelled);
            let by_letter =
                || self.all.iter().find(|choice| choice.letter.as_ref() == Some(&letter));
            return by_label.or_else(by_letter).map(|choice| choice.label.clone());
        }
        let known = match self.form {
            LabelForm::Letters => {
                spelled.len() == 1 && spelled.chars().all(|letter| LETTERS.contains(&letter))
            }
            LabelForm::Numbers => spelled.parse().is_ok_and(|number: u32| number <= MAX_NUMBER),
            LabelForm::Numerals => NUMERALS.contains(&spelled.as_str()),
        };
        known.then_some(spelled)
    }
}

/// Words that may follow the number of a choice. Any other word makes the number a quantity.
const AFTER_LABEL: [&str; 12] =
    ["is", "because", "since", "as", "for", "and", "or", "which", "that", "would", "are", "has"];

fn nth_letter(at: usize) -> Option<String> {
    ('A'..='Z').nth(at).map(String::from)
}

/// Returns `true` if the text after an `A` or `I` shows that it is an article or a pronoun.
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
    fn the_text_of_a_choice_may_be_stated() {
        let extra = Some(r#"{"choices": ["Rome", "Paris", "12 cm", "A dog"]}"#);
        for (response, expected) in [
            ("The answer is Paris.", "B"),
            ("Answer: Paris", "B"),
            ("**Answer:** Paris", "B"),
            ("Final answer: **Paris**", "B"),
            (r"The answer is $\text{Paris}$.", "B"),
            ("The correct answer is Paris, because A is in Italy.", "B"),
            ("The answer is not Rome. The answer is Paris", "B"),
            ("Answer: Rome\nWait. Answer: Paris\nDone", "B"),
            ("Answer: (B) Paris", "B"),
            ("The answer is 12 cm", "C"),
            ("The answer is A dog", "D"),
            ("Answer: B\nThe answer is unclear.", "B"),
        ] {
            let score = score(response, expected, extra).expect("scored");
            assert_eq!(
                score.labels.get("answer").map(AsRef::as_ref),
                Some(expected),
                "{response:?}"
            );
            assert_eq!(score.value, 1.0, "{response:?}");
        }
        let numbered = Some(r#"{"choices": {"1": "2", "2": "3"}}"#);
        let score_of = |response| score(response, "2", numbered).expect("scored").value;
        assert_eq!((score_of("The answer is 2."), score_of("The answer is 3.")), (1.0, 1.0));
        for response in
            ["The answer is Parisian", "The answer is in Paris", "An answer: Paris or Rome"]
        {
            let score = score(response, "B", extra).expect("scored");
            assert_eq!(score.labels.get("answer"), None, "{response:?}");
        }
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

    fn answer(response: &str, truth: &str, extra: Option<&str>) -> Option<String> {
        score(response, truth, extra).expect("scored").labels.get("answer").cloned()
    }

    #[test]
    fn labels_may_be_numbers() {
        let object = r#"{"choices": {"1": "London", "2": "Paris", "3": "Rome", "4": "Bern"}}"#;
        let arc = r#"{"choices": {"text": ["London", "Paris", "Rome", "Bern"], "label": ["1", "2", "3", "4"]}}"#;
        for extra in [None, Some(object), Some(arc)] {
            for response in [
                "2",
                "(2)",
                "2.",
                "2)",
                "2. Paris",
                "Answer: 2",
                "Answer: (2)",
                "**Answer:** 2",
                "The answer is 2.",
                "the answer is **2**",
                "There are 4 of them.\n\n(2)",
                r"so \boxed{2}",
                r"\boxed{\text{(2)}}",
                r"$\boxed{2. Paris}$",
                "I choose option 2 because 3 and 4 are wrong.",
                "<think>1</think>2",
                "<answer>2</answer>",
            ] {
                assert_eq!(
                    answer(response, "2", extra).as_deref(),
                    Some("2"),
                    "{response:?} {extra:?}"
                );
                assert_eq!(score(response, "2", extra).expect("scored").value, 1.0);
                assert_eq!(score(response, "3", extra).expect("scored").value, 0.0);
            }
            for response in [
                "It took 2 days.",
                "There are 2",
                "The answer is 2 days.",
                "the answer is 2.5",
                "The answer is 2/3",
                "Answer: 25%",
                "1. Read.\n2. Think.",
                "**2. Analysis**\n\nIt is so.",
                r"\boxed{2.5}",
                r"\boxed{22}",
                "",
            ] {
                assert_eq!(answer(response, "2", extra), None, "{response:?} {extra:?}");
            }
        }
        assert_eq!(answer("Answer: B", "2", Some(arc)).as_deref(), Some("2"));
        assert_eq!(answer("Paris", "2", Some(object)).as_deref(), Some("2"));
        let numbers = r#"{"choices": {"1": "2", "2": "3"}}"#;
        assert_eq!(answer(r"\boxed{2}", "2", Some(numbers)).as_deref(), Some("2"));
        let list = r#"{"choices": ["2", "3", "4"]}"#;
        assert_eq!(answer(r"\boxed{3}", "3", Some(list)).as_deref(), Some("B"));
    }

    #[test]
    fn labels_may_be_roman_numerals() {
        let object = r#"{"choices": {"i": "London", "ii": "Paris", "iii": "Rome", "iv": "Bern"}}"#;
        for extra in [None, Some(object)] {
            for response in [
                "ii",
                "(ii)",
                "II.",
                "(ii) Paris",
                "Answer: (ii)",
                "the answer is ii.",
                r"\boxed{\text{(ii)}}",
                "**(ii)**",
                "not iii but ii, I think",
            ] {
                assert_eq!(answer(response, "ii", extra).as_deref(), Some("ii"), "{response:?}");
                assert_eq!(score(response, "iii", extra).expect("scored").value, 0.0);
            }
            assert_eq!(answer("(i)", "ii", extra).as_deref(), Some("i"));
            assert_eq!(answer("(iv)", "iv", extra).as_deref(), Some("iv"));
            assert_eq!(answer("I think so, x = 5", "ii", extra), None);
        }
    }

    #[test]
    fn labels_may_be_lower_case_and_reach_j() {
        let object = r#"{"choices": {"a": "London", "b": "Paris"}}"#;
        for response in ["b", "(b)", "b.", "b) Paris", "Answer: b", r"\boxed{b}", "B", "So:\n(b)"] {
            assert_eq!(answer(response, "b", Some(object)).as_deref(), Some("B"), "{response:?}");
            assert_eq!(answer(response, "B", None).as_deref(), Some("B"), "{response:?}");
        }
        assert_eq!(answer("It is a car.", "b", Some(object)), None);
        for label in ["G", "H", "I", "J"] {
            for response in
                [label.to_owned(), format!("Answer: {label}"), format!("\\boxed{{{label}}}")]
            {
                assert_eq!(answer(&response, label, None).as_deref(), Some(label), "{response:?}");
            }
        }
        assert_eq!(answer("B, I think", "B", None).as_deref(), Some("B"));
        assert_eq!(answer("B. So do I.", "B", None).as_deref(), Some("B"));
        assert_eq!(answer("The answer is I think B", "B", None).as_deref(), Some("B"));
        let ten: Vec<String> = (0..10).map(|at| format!("text {at}")).collect();
        let ten = serde_json::json!({ "choices": ten }).to_string();
        assert_eq!(answer("Answer: J", "9", Some(&ten)).as_deref(), Some("J"));
        assert_eq!(score("Answer: J", "9", Some(&ten)).expect("scored").value, 1.0);
    }

    #[test]
    fn an_invalid_choice_is_an_error() {
        let error = |truth, extra| score("B", truth, extra).expect_err("no choice").reason;
        assert_eq!(
            error("nine", None),
            "field `ground_truth`: expected a letter from A to J, a number from 0 to 10 or a numeral from i to x, found `nine`"
        );
        let list = Some(r#"{"choices": ["x", "y"]}"#);
        assert!(
            error("C", list)
                .ends_with("the label of a choice, its text or its number from 0, found `C`")
        );
        assert!(error("A", Some(r#"{"choices": 3}"#)).contains("`extra_info.choices`"));
    }
}
