//! The reward `multiple_choice`: questions with a list of answers to choose from.

mod choices;
mod label_form;
mod negative;
mod rejection;

use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};

use self::choices::Choices;
use super::answer_in::AnswerIn;

documented! {
    /// 1 if a response chooses the right choice, otherwise 0. Labels of choices are letters, numbers or Roman numerals. Without a list of
    /// choices, the form of the ground truth decides: the labels are A to J, 0 to 10, or i to x.
    ///
    /// The choice is the last one that is stated: `\boxed{B}`, `Answer: (B)` or `the answer is B`. In boxes and after `answer`, the text of
    /// a choice also counts: `Answer: Paris`. A label at the end of the last line, alone or in bold text, precedes an earlier statement.
    /// Statements after `if`, `whether`, `suppose`, `assume`, `wrong` or `incorrect` count only if no label is marked in another way.
    ///
    /// Without a statement, the choice is the one whose text equals the answer. Otherwise it is the label that alone is the first or the last
    /// line, unless other lines are other labels. Without such a line, it is the last label in bold text or after `option`, `choice` or
    /// `answer`. Without any of these, it is the label that is the last line or the first line, also before the text of its choice, or else
    /// the last capital letter or Roman numeral of several letters that stands alone. Numbers in a sentence do not count, and numbers precede
    /// texts of choices.
    ///
    /// Outside of statements, rejected labels do not count: `not B`, `it cannot be B`, `rule out A and C`. A label that is said to be wrong
    /// (`B is wrong`, `B is not correct`) counts if it is the only one, or if the question of the user is negative (`Which is not a city?`).
    ///
    /// The ground truth is a label, the text of a choice, or the index of a choice from 0. A number counts as an index only if there is a
    /// list of choices without this label: without a list, `2` is the label 2, not C. A label may be wrapped in brackets, quotes, emphasis,
    /// dollars and LaTeX commands such as `\text{(B)}`. The choices are read from the field `choices` or `options` of `extra_info`: a list
    /// of texts with the labels A, B, ..., an object of texts by label, or ARC's `{"text": [...], "label": [...]}`. Choices with numbers or
    /// Roman numerals may also be chosen by the letters A, B, ... in their order. Labels: `outcome`, which is `right`, `wrong` or
    /// `no_answer`, and `answer`, the chosen label.
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

#[cfg(test)]
mod tests;
