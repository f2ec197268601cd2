//! The reward `f1`: answers that may be partly right.

use std::collections::HashMap;

use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};

use super::answer_in::{AnswerIn, targets};
use super::normal_form::{SQUAD, words};

documented! {
    /// The F1 score of the words of the answer against the words of the ground truth, as in SQuAD and HotpotQA. Case, ASCII punctuation and
    /// articles are ignored. `yes`, `no` and `noanswer` only match as a whole. A response without an answer gets 0.
    ///
    /// Several accepted answers are written as a JSON list of texts, or as a JSON object whose field `target` is such a list or a single
    /// text. The best score counts. Components: `precision`, `recall`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct F1 {
        /// The position of the answer: the last `<answer>` (`tag`), the text after the last `</think>` (`after_think`), the whole response
        /// (`response`), or the first of these that is present (`auto`). Default: `auto`.
        pub answer: AnswerIn,
    }
}

/// The agreement between the words of an answer and those of a ground truth. Each number is from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Overlap {
    f1: f64,
    precision: f64,
    recall: f64,
}

impl F1 {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About =
        About::new(&[], "the words that the answer shares with the ground truth", "SQuAD");
}

impl Reward for F1 {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let targets = targets(sample)?;
        let answer = self.answer.find(&sample.response);
        let of =
            |target: &str| answer.map_or_else(Overlap::default, |answer| overlap(answer, target));
        let best = targets
            .iter()
            .map(|target| of(target))
            .max_by(|one, other| one.f1.total_cmp(&other.f1))
            .unwrap_or_default();
        Ok(Score::from(best.f1)
            .component("precision", best.precision)
            .component("recall", best.recall))
    }
}

/// Answers that get no partial credit.
const EXACT_ANSWERS: [&str; 3] = ["yes", "no", "noanswer"];

fn overlap(answer: &str, target: &str) -> Overlap {
    let (answer, target) = (SQUAD.of(answer), SQUAD.of(target));
    if answer != target
        && [&answer, &target].iter().any(|text| EXACT_ANSWERS.contains(&text.as_str()))
    {
        return Overlap::default();
    }
    let mut wanted: HashMap<&str, usize> = HashMap::new();
    words(&target).for_each(|word| *wanted.entry(word).or_default() += 1);
    let same = words(&answer).filter(|word| take(&mut wanted, word)).count() as f64;
    if same == 0.0 {
        return Overlap::default();
    }
    let precision = same / words(&answer).count() as f64;
    let recall = same / words(&target).count() as f64;
    Overlap { f1: (2.0 * precision * recall) / (precision + recall), precision, recall }
}

fn take(wanted: &mut HashMap<&str, usize>, word: &str) -> bool {
    wanted.get_mut(word).filter(|left| **left > 0).map(|left| *left -= 1).is_some()
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    fn check(answer: &str, target: &str, expected: [f64; 3]) {
        let Overlap { f1, precision, recall } = overlap(answer, target);
        assert_eq!([f1, precision, recall], expected, "{answer:?} against {target:?}");
    }

    #[test]
    fn common_words_are_counted_as_often_as_both_have_them() {
        check("the red, red car", "Red car", [0.8, 2.0 / 3.0, 1.0]);
        check("red", "red red", [2.0 / 3.0, 1.0, 0.5]);
        check("blue", "red", [0.0; 3]);
        check("yes it is", "yes", [0.0; 3]);
        check("Yes.", "yes", [1.0; 3]);
        check("", "", [0.0; 3]);
    }

    #[test]
    fn the_best_of_several_counts() {
        let sample = Sample::of("any", "<answer>red car</answer>", Some(r#"["bus", "a red car"]"#));
        let score = block_on(F1::default().score(&sample, &Context::detached())).expect("scored");
        assert_eq!((score.value, score.components["recall"]), (1.0, 1.0));
    }
}
