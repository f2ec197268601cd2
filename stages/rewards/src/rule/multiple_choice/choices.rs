//! The choices of a question, and the label that an answer chooses.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;
use rollpacker_math::boxed;
use rollpacker_math::choice::{label, unwrapped};
use rollpacker_stages::reward::{RewardError, Sample};
use serde_json::Value;

use super::label_form::LabelForm;
use super::negative::is_negative;
use super::rejection::Rejection;
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
    /// `true` if the question asks for a choice that is wrong or does not fit.
    negative: bool,
}

/// A position of a label in an answer, and the choice of this label.
type Mark = (Range<usize>, String);

/// The beginning of a statement such as `the answer is Paris`.
static STATED_TEXT: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)\banswer(?:\s+is\s*[:：]?|\s*[:：])"));
/// The end of a sentence or of a clause.
static CLAUSE_END: LazyLock<Regex> = LazyLock::new(|| regex(r"[.,;!?](?:\s|$)"));
/// Text before a statement that does not state the answer: `if the answer is B`.
static HYPOTHESIS: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"(?i)\b(?:if|whether|suppos(?:e|ed|ing)|assum(?:e|ed|ing))\b[^.,;\n]{0,24}$")
});
/// Text before a statement of a wrong answer: `the wrong answer is B`.
static WRONG_STATED: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)\b(?:wrong|incorrect)\s+(?:final\s+)?$"));
/// The number of bytes before a statement that are searched for a hypothesis.
const WINDOW: usize = 64;
/// Text before a label that is chosen.
static CHOOSE: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)\b(?:choose|chose|pick|select|go\s+with)\b[^.;\n]{0,20}$"));
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
        let negative = is_negative(&sample.messages);
        let Some(field) = field else { return Ok(Self { negative, ..Self::default() }) };
        let value = extra.remove(field).unwrap_or_default();
        let wrong = || {
            RewardError::fatal(format_args!(
                "field `extra_info.{field}`: expected a list of texts or texts by label, found {value}"
            ))
        };
        let choices = Self::read(&value).ok_or_else(wrong)?;
        Ok(Self { negative, ..choices })
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
        let all = choices.into_iter().enumerate().map(choice).collect();
        Self { form, all, negative: false }
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
        let (hypotheses, stated): (Vec<_>, Vec<_>) =
            self.stated(answer).into_iter().partition(|(at, _)| self.is_hypothesis(answer, at));
        let last = |statements: Vec<Mark>| statements.into_iter().max_by_key(|(at, _)| at.end);
        // Numbers are labels first, since the texts of the choices may also be numbers.
        let text = || self.choice_with_text(answer);
        let text_first = || text().filter(|_| self.form != LabelForm::Numbers);
        last(stated)
            .map(|(at, label)| self.conclusion(answer, at.end).unwrap_or(label))
            .or_else(text_first)
            .or_else(|| self.only_line_label(answer))
            .or_else(|| self.last_mentioned(answer))
            .or_else(|| last(hypotheses).map(|(_, label)| label))
            .or_else(text)
            .or_else(|| self.label_of_line(answer.lines().next_back()?))
            .or_else(|| self.label_of_line(answer.lines().next()?))
            .or_else(|| self.preferred(answer, &self.single_labels(answer)))
            .or_else(|| self.label_before_text(answer))
    }

    /// Returns the labels and texts of choices in boxes and in statements such as `the answer is B`, with the range from the beginning of a
    /// statement to the beginning of its label or to the end of its text. So a text that begins with a label, such as `A dog`, is after this
    /// label.
    fn stated(&self, answer: &str) -> Vec<Mark> {
        let named = STATED_TEXT.find_iter(answer).filter_map(|found| {
            let (length, label) = self.named_choice(&answer[found.end()..])?;
            Some((found.start()..found.end() + length, label))
        });
        let boxed =
            boxed(answer).filter_map(|(at, inside)| Some((at..at, self.read_choice(inside)?)));
        let labelled = self.labels(self.form.stated(), answer).filter_map(|(start, label)| {
            Some((start..label.start, self.labelled_choice(&answer[label])?))
        });
        named.chain(boxed).chain(labelled).collect()
    }

    /// Returns `true` if the text before a statement shows that it does not state the answer.
    fn is_hypothesis(&self, answer: &str, statement: &Range<usize>) -> bool {
        let from = answer.floor_char_boundary(statement.start.saturating_sub(WINDOW));
        let before = &answer[from..statement.start];
        HYPOTHESIS.is_match(before) || (!self.negative && WRONG_STATED.is_match(before))
    }

    /// Returns the label with which the last line ends, in bold text or alone, after the last statement.
    fn conclusion(&self, answer: &str, statement: usize) -> Option<String> {
        let end = answer.trim_end().len();
        let start = answer[..end].rfind('\n').map_or(0, |at| at + 1);
        let line = &answer[start..end];
        let mut marks = self.bold(line);
        marks.iter_mut().for_each(|(at, _)| *at = at.start + start..at.end + start);
        marks.retain(|(at, _)| at.start > statement);
        let Some((at, label)) = marks.last().cloned() else {
            return self.lone_label(line).filter(|_| start > statement);
        };
        let ends = !answer[at.end..end].contains(char::is_alphanumeric);
        let is_only = marks.iter().all(|(_, other)| *other == label);
        (ends && is_only && self.rejection(answer, &at) == Rejection::None).then_some(label)
    }

    /// Returns the last label that is in bold text or after a word such as `option`, and that the answer does not reject. If the only such
    /// label is said to be wrong, another label at the end of the answer counts instead.
    fn last_mentioned(&self, answer: &str) -> Option<String> {
        let mentioned = self
            .labels(self.form.mentioned(), answer)
            .filter_map(|(_, label)| Some((label.clone(), self.labelled_choice(&answer[label])?)));
        let mut marks: Vec<Mark> = mentioned.chain(self.bold(answer)).collect();
        marks.sort_by_key(|(at, _)| at.start);
        let are_wrong = !marks.is_empty() && marks.iter().all(|(at, _)| self.is_wrong(answer, at));
        let preferred = self.preferred(answer, &marks)?;
        let at_end = || {
            let (at, label) = self.single_labels(answer).pop()?;
            let ends = !answer[at.end..].contains(char::is_alphanumeric);
            (ends && self.rejection(answer, &at) == Rejection::None).then_some(label)
        };
        are_wrong.then(at_end).flatten().or(Some(preferred))
    }

    /// Returns the labels in bold text.
    fn bold(&self, answer: &str) -> Vec<Mark> {
        let bold = BOLD.captures_iter(answer).filter_map(|found| {
            let at = found.get(1)?;
            let label = self.labelled_choice(at.as_str())?;
            let text = found.get(2).map_or("", |text| text.as_str().trim());
            // Numbers in bold text also begin headings.
            let is_heading = self.form != LabelForm::Letters
                && !text.is_empty()
                && self.choice_with_text(text).as_ref() != Some(&label);
            (!is_heading).then_some((at.range(), label))
        });
        bold.collect()
    }

    fn rejection(&self, answer: &str, label: &Range<usize>) -> Rejection {
        Rejection::of(answer, label, self.negative)
    }

    fn is_wrong(&self, answer: &str, label: &Range<usize>) -> bool {
        self.rejection(answer, label) >= Rejection::Wrong
    }

    /// Returns the label that an answer prefers among marks in ascending order. A label counts if it is the only one and is not rejected
    /// explicitly. Otherwise it is the last one that is not rejected. A label with a property that it does not have, as in
    /// `B is not a city`, counts unless another label is a sentence or is chosen.
    fn preferred(&self, answer: &str, marks: &[Mark]) -> Option<String> {
        let mut last = None;
        for (at, label) in marks.iter().rev() {
            match self.rejection(answer, at) {
                Rejection::None if last.is_none() || is_chosen(answer, at) => {
                    return Some(label.clone());
                }
                Rejection::Property => last = last.or(Some(label)),
                _ => {}
            }
        }
        if let Some(label) = last {
            return Some(label.clone());
        }
        let is_explicit = |(at, _): &Mark| self.rejection(answer, at) == Rejection::Explicit;
        let (_, only) = marks.iter().find(|mark| !is_explicit(mark))?;
        let is_only = marks.iter().all(|mark| mark.1 == *only || is_explicit(mark));
        is_only.then(|| only.clone())
    }

    /// Returns the beginnings of statements or mentions, and the positions of the labels in their first group.
    fn labels<'a>(
        &'a self,
        statement: &'a Regex,
        answer: &'a str,
    ) -> impl Iterator<Item = (usize, Range<usize>)> + 'a {
        statement.captures_iter(answer).filter_map(|found| {
            let label = found.get(1)?;
            let counts = self.is_stated(label.as_str(), &answer[label.end()..]);
            counts.then_some((found.get(0)?.start(), label.range()))
        })
    }

    /// Returns the label that alone is the first or the last line. Returns `None` if another line is another label, since the lines may
    /// then be headings.
    fn only_line_label(&self, answer: &str) -> Option<String> {
        let alone = |line: &str| self.lone_label(line);
        let mut lines = answer.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next()?;
        let ends = [Some(first), lines.next_back()];
        let found = ends.into_iter().flatten().find_map(alone)?;
        answer.lines().filter_map(alone).all(|label| label == found).then_some(found)
    }

    /// Returns the label that is all of a line.
    fn lone_label(&self, line: &str) -> Option<String> {
        let label = label(line)?;
        let is_alone =
            unwrapped(line).chars().filter(|c| c.is_alphanumeric()).count() == label.len();
        self.labelled_choice(&label).filter(|_| is_alone)
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
        let written = label(line)?;
        let found = self.labelled_choice(&written)?;
        let at = position_of(line, &written)?;
        (line.lines().count() == 1 && !self.is_wrong(line, &at)).then_some(found)
    }

    /// Returns the labels that stand alone in the text, in ascending order.
    fn single_labels(&self, answer: &str) -> Vec<Mark> {
        let alone = match self.form {
            LabelForm::Letters => &ALONE,
            LabelForm::Numerals => &NUMERAL_ALONE,
            LabelForm::Numbers => return Vec::new(),
        };
        let mut marks = Vec::new();
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
            let label = self.labelled_choice(found.as_str()).filter(|_| !is_word);
            marks.extend(label.map(|label| (found.range(), label)));
        }
        marks
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

/// Returns the position of the first word that is the label.
fn position_of(line: &str, label: &str) -> Option<Range<usize>> {
    let is_word = |at: &usize| {
        let before = line[..*at].chars().next_back();
        let after = line[at + label.len()..].chars().next();
        ![before, after].into_iter().flatten().any(char::is_alphanumeric)
    };
    let at = line.match_indices(label).map(|(at, _)| at).find(is_word)?;
    Some(at..at + label.len())
}

/// Returns `true` if a label is the end of the first sentence of the answer, as in `Option B.`, or follows a verb such as `choose`.
fn is_chosen(answer: &str, label: &Range<usize>) -> bool {
    let before =
        &answer[answer.floor_char_boundary(label.start.saturating_sub(WINDOW))..label.start];
    let begins = before.len() == label.start
        && before.split(|c: char| !c.is_alphanumeric()).all(|word| {
            ["", "option", "choice", "answer"].contains(&word.to_ascii_lowercase().as_str())
        });
    let after = answer[label.end..].trim_start_matches([')', ']', '*', '_', '`']);
    (begins && (after.is_empty() || after.starts_with(['.', '\n', '!']))) || CHOOSE.is_match(before)
}
