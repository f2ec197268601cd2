//! The choices of a question, and the label that an answer chooses.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;
use rollpacker_math::boxed;
use rollpacker_math::choice::{label, unwrapped};
use rollpacker_stages::reward::{RewardError, Sample};
use serde_json::Value;

use super::label_form::LabelForm;
use super::rejection::is_rejected;
use crate::rule::normal_form::SQUAD;
use crate::rule::regex;

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
pub(super) struct Choices {
    form: LabelForm,
    all: Vec<Choice>,
}

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
    pub(super) fn of(sample: &Sample) -> Result<Self, RewardError> {
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
        let form = LabelForm::of_all(choices.iter().map(|(label, _)| label.as_str()));
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
    pub(super) fn truth(&mut self, sample: &Sample) -> Result<String, RewardError> {
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
                if self.all.is_empty() {
                    "a letter from A to J, a number from 0 to 10 or a numeral from i to x"
                } else {
                    "the label of a choice, its text or its number from 0"
                }
            ))
        };
        self.read_choice(truth).or_else(numbered).ok_or_else(wrong)
    }

    /// Returns the label that an answer chooses, or `None` if it chooses none.
    pub(super) fn chosen(&self, answer: &str) -> Option<String> {
        self.last_stated(answer)
            .or_else(|| self.only_line_label(answer))
            .or_else(|| self.last_mentioned(answer))
            .or_else(|| self.choice_with_text(answer))
            .or_else(|| self.label_of_line(answer.lines().next_back()?))
            .or_else(|| self.label_of_line(answer.lines().next()?))
            .or_else(|| self.last_single_label(answer))
            .or_else(|| self.label_before_text(answer))
    }

    /// Returns the last label or text of a choice that is in a box or in a statement such as `the answer is B`.
    fn last_stated(&self, answer: &str) -> Option<String> {
        let stated = self.labels(self.form.stated(), answer);
        let named = STATED_TEXT.find_iter(answer).filter_map(|found| {
            let (length, label) = self.named_choice(&answer[found.end()..])?;
            // The end of the text, so that a text that begins with a label, such as `A dog`, counts and not the label.
            Some((found.end() + length, label))
        });
        let boxed = boxed(answer).filter_map(|(at, inside)| Some((at, self.read_choice(inside)?)));
        let stated =
            stated.filter_map(|label| Some((label.start, self.labelled_choice(&answer[label])?)));
        named.chain(boxed).chain(stated).max_by_key(|(at, _)| *at).map(|(_, label)| label)
    }

    /// Returns the last label that is in bold text or after a word such as `option`, and that the answer does not reject.
    fn last_mentioned(&self, answer: &str) -> Option<String> {
        let bold = BOLD.captures_iter(answer).filter_map(|found| {
            let label = found.get(1)?;
            let text = found.get(2).map_or("", |text| text.as_str().trim());
            // Numbers in bold text also begin headings.
            let is_heading = self.form != LabelForm::Letters
                && !text.is_empty()
                && self.choice_with_text(text) != self.labelled_choice(label.as_str());
            (!is_heading).then_some(label.range())
        });
        self.labels(self.form.mentioned(), answer)
            .chain(bold)
            .filter(|label| !is_rejected(answer, label))
            .filter_map(|label| Some((label.start, self.labelled_choice(&answer[label])?)))
            .max_by_key(|(at, _)| *at)
            .map(|(_, label)| label)
    }

    /// Returns the positions of the labels in the first group of a statement or mention.
    fn labels<'a>(
        &'a self,
        statement: &'a Regex,
        answer: &'a str,
    ) -> impl Iterator<Item = Range<usize>> + 'a {
        statement.captures_iter(answer).filter_map(|found| {
            let label = found.get(1)?;
            self.is_stated(label.as_str(), &answer[label.end()..]).then(|| label.range())
        })
    }

    /// Returns the label that alone is the first or the last line. Returns `None` if another line is another label, since the lines may
    /// then be headings.
    fn only_line_label(&self, answer: &str) -> Option<String> {
        let alone = |line: &str| {
            let label = label(line)?;
            let is_alone =
                unwrapped(line).chars().filter(|c| c.is_alphanumeric()).count() == label.len();
            self.labelled_choice(&label).filter(|_| is_alone)
        };
        let mut lines = answer.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next()?;
        let ends = [Some(first), lines.next_back()];
        let found = ends.into_iter().flatten().find_map(alone)?;
        answer.lines().filter_map(alone).all(|label| label == found).then_some(found)
    }

    /// Finds the choice whose text is the first line of a statement, or the first clause of this line. Returns the length of this line or
    /// clause in bytes, and the label of the choice. If the labels are numbers, a number that is a label does not count as a text.
    fn named_choice(&self, statement: &str) -> Option<(usize, String)> {
        let line = statement.lines().next()?;
        let clause = CLAUSE_END.find(line).map_or(line, |end| &line[..end.start()]);
        let is_label = |text| label(text).and_then(|label| self.labelled_choice(&label)).is_some();
        [line, clause].into_iter().find_map(|text| {
            let named = self.choice_with_marked_text(text)?;
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
        let named = || self.choice_with_marked_text(marked);
        let labelled = || self.labelled_choice(&label(marked)?);
        match self.form {
            LabelForm::Numbers => labelled().or_else(named),
            _ => named().or_else(labelled),
        }
    }

    /// Returns the label that is a line, alone or before the text of its choice.
    fn label_of_line(&self, line: &str) -> Option<String> {
        let found = self.labelled_choice(&label(line.trim())?)?;
        let text = unwrapped(line.trim()).trim_start_matches(['(', '[']);
        let text = text.trim_start_matches(|c: char| c.is_alphanumeric());
        let text = text.trim_start_matches([')', ']', '.', ':', ',']).trim();
        let is_alone = text.is_empty() || self.choice_with_text(text).as_ref() == Some(&found);
        is_alone.then_some(found)
    }

    /// Returns the label before any text in an answer of one line.
    fn label_before_text(&self, answer: &str) -> Option<String> {
        let line = answer.trim();
        let found = self.labelled_choice(&label(line)?)?;
        let at = line.find(|c: char| c.is_alphanumeric())?;
        let end =
            line[at..].find(|c: char| !c.is_alphanumeric()).map_or(line.len(), |end| at + end);
        (line.lines().count() == 1 && !is_rejected(line, &(at..end))).then_some(found)
    }

    /// Returns the last label that stands alone in the text and that the answer does not reject.
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
            let counts = !is_word && !is_rejected(answer, &found.range());
            last = self.labelled_choice(found.as_str()).filter(|_| counts).or(last);
        }
        last
    }

    /// Returns the label of the choice with this text, also without the markup around it.
    fn choice_with_marked_text(&self, text: &str) -> Option<String> {
        self.choice_with_text(text).or_else(|| self.choice_with_text(unwrapped(text)))
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
        self.form.contains(&spelled).then_some(spelled)
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
