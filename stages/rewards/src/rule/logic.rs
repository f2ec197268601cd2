//! The reward `logic`: knights-and-knaves puzzles.

mod claims;
mod logic_rl;

use std::collections::BTreeMap;

use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};
use serde::{Deserialize, Serialize};

use super::answer_in::AnswerIn;
use super::format::{FormatStyle, opened_by_prompt};

use claims::Claims;

documented! {
    /// A reward that checks the solution of a knights-and-knaves puzzle, in the format of Logic-RL's data.
    ///
    /// The ground truth is text with one claim per line, `(1) Zoey is a knight`, or JSON with such text in the field
    /// `solution_text_format`. The answer must make exactly the same claims in any order, with the names as they are written. With the
    /// scoring `plain`, a missing or additional name makes it wrong, and a contradiction or an unreadable claim makes it unreadable. The
    /// scoring `logic_rl` ignores the case of names, and an answer with a missing name or another number of roles is unreadable.
    ///
    /// The component `format` is 1 if the response has the required structure, and otherwise 0 or, with `logic_rl`, -1. With `logic_rl`,
    /// the component `answer` is the score of the answer. Labels: `outcome`, which is `right`, `wrong`, `unreadable` or `no_answer`,
    /// and `answer`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Logic {
        /// The conversion of an answer to a score: 1 if it is right, otherwise 0 (`plain`); or the scores of Logic-RL for structure and
        /// answer, from -3 to 3 (`logic_rl`). Default: `plain`.
        pub scoring: LogicScoring,
        /// The position of the answer: the last `<answer>` (`tag`), the text after the last `</think>` (`after_think`), the whole response
        /// (`response`), or the first of these that is present (`auto`). Logic-RL's scoring only reads `<answer>`. Default: `auto`.
        pub answer: AnswerIn,
        /// `true` if the chat template of the model opens `<think>` itself. The response may then omit this tag, and with `logic_rl` it
        /// must. A prompt that ends in `<think>` has the same effect. Default: `false`.
        pub think_in_prompt: bool,
    }
}

/// The conversion of an answer to a score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogicScoring {
    /// 1 if the answer is right, otherwise 0, regardless of the structure.
    #[default]
    Plain,
    /// The scoring of Logic-RL: 1 or -1 for the structure, plus the score of the answer. A right answer gets 2 and a wrong one -1.5. An
    /// answer that is missing or unreadable gets -2, and so does any answer in a response without the structure. Only the roles knight and
    /// knave are recognized.
    LogicRl,
}

/// The role of each person, in lower case, by the name of the person.
type Roles = BTreeMap<String, String>;

impl Reward for Logic {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let truth = truth(sample)?;
        let opened = self.think_in_prompt || opened_by_prompt(sample);
        Ok(match self.scoring {
            LogicScoring::Plain => self.plain(&sample.response, &truth, opened),
            LogicScoring::LogicRl => logic_rl::score(&sample.response, &truth, opened),
        })
    }
}

impl Logic {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About = About::new(&[], "solutions of knights-and-knaves puzzles", "Logic-RL");

    fn plain(self, response: &str, truth: &Roles, opened: bool) -> Score {
        let answer = self.answer.find(response);
        let outcome = match answer.map(|answer| Claims::read(answer, truth.values())) {
            None => "no_answer",
            Some(Claims::Unreadable) => "unreadable",
            Some(Claims::Read(claimed)) if claimed == *truth => "right",
            Some(Claims::Read(_)) => "wrong",
        };
        Score::from(outcome == "right")
            .component("format", f64::from(FormatStyle::ThinkAnswer.fits(response, opened)))
            .label("outcome", outcome)
            .label("answer", answer.unwrap_or_default())
    }
}

/// Returns the roles in the ground truth of a sample. Returns an error if there is no ground truth or it has no readable claims.
fn truth(sample: &Sample) -> Result<Roles, RewardError> {
    let text = sample.truth()?;
    let json = text.starts_with('{').then(|| serde_json::from_str::<serde_json::Value>(text).ok());
    let text = match json.flatten() {
        None => text.to_owned(),
        Some(object) => match object["solution_text_format"].as_str() {
            Some(text) => text.to_owned(),
            None => {
                let field = "ground_truth.solution_text_format";
                return Err(RewardError::missing(field, &sample.data_source));
            }
        },
    };
    let unreadable = || {
        RewardError::fatal(format_args!(
            "field `ground_truth`: expected lines `(1) <name> is a <role>`, found `{text}`"
        ))
    };
    match Claims::read(&text, std::iter::empty::<&str>()) {
        Claims::Read(roles) if !roles.is_empty() => Ok(roles),
        _ => Err(unreadable()),
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    const TRUTH: &str = "(1) Zoey is a knight\n(2) Mary Ann is a knave";

    fn score(logic: Logic, response: &str, truth: &str) -> Score {
        let sample = Sample::of("kk", response, Some(truth));
        block_on(logic.score(&sample, &Context::detached())).expect("scored")
    }

    fn check(response: &str, expected: &str) {
        let score = score(Logic::default(), response, TRUTH);
        assert_eq!(score.labels["outcome"], expected, "{response:?}");
        assert_eq!(score.value, f64::from(expected == "right"), "{response:?}");
    }

    #[test]
    fn an_answer_is_right_in_any_order_and_formatting() {
        check(TRUTH, "right");
        check(
            "<think>Zoey is a knave?</think><answer>\n(2) Mary Ann is a knave.\n(1) Zoey is a Knight\n</answer>",
            "right",
        );
        check("So:\n- **Zoey** is a knight\n- **Mary Ann** is a knave\nThat is all.", "right");
        check("Zoey is a knight, and Mary Ann is a knave.", "right");
        check("1. Zoey: knight; 2. Mary Ann: knave", "right");
    }

    #[test]
    fn every_person_must_be_named_once_and_no_other() {
        check("(1) Zoey is a knave\n(2) Mary Ann is a knave", "wrong");
        check("(1) Zoey is a knight", "wrong");
        check("Zoey is a knight\nMary Ann is a knave\nBob is a knave", "wrong");
        check("zoey is a knight\nMary Ann is a knave", "unreadable");
        check("ZOEY is a knight\nMary Ann is a knave", "wrong");
        check("Zoey is a knight\nZoey is a knave\nMary Ann is a knave", "unreadable");
        check("Zoey is a knight or a knave\nMary Ann is a knave", "unreadable");
        check("Zoey is not a knave\nMary Ann is a knave", "unreadable");
        check("If Zoey is a knight then Mary Ann is a knave", "unreadable");
        check("", "wrong");
        let tag = Logic { answer: AnswerIn::Tag, ..Logic::default() };
        assert_eq!(score(tag, TRUTH, TRUTH).labels["outcome"], "no_answer");
    }

    #[test]
    fn roles_are_those_of_the_ground_truth() {
        let truth = "(1) Zoey is a pioneer\n(2) Bob is a laggard";
        let value = |text| score(Logic::default(), text, truth).value;
        assert_eq!(value("Zoey is a pioneer\nBob is a laggard"), 1.0);
        assert_eq!(value("Zoey is a laggard\nBob is a laggard"), 0.0);
        assert_eq!(value("Zoey is a pioneer\nBob is a laggard\nAda is a knight"), 0.0);
    }

    #[test]
    fn the_format_is_scored_separately() {
        let formed = |text: &str| score(Logic::default(), text, TRUTH).components["format"];
        assert_eq!(formed(&format!("<think>so</think>\n<answer>{TRUTH}</answer>")), 1.0);
        assert_eq!(formed("<think>so</think> <answer>?</answer>"), 1.0);
        assert_eq!(formed(TRUTH), 0.0);
    }

    #[test]
    fn the_ground_truth_may_be_json_and_has_to_be_readable() {
        let json = serde_json::json!({"solution_text_format": TRUTH, "statements": "()"});
        assert_eq!(score(Logic::default(), TRUTH, &json.to_string()).value, 1.0);
        let error = |truth| {
            let sample = Sample::of("kk", "", truth);
            block_on(Logic::default().score(&sample, &Context::detached()))
                .expect_err("no truth")
                .reason
        };
        assert!(error(None).contains("`ground_truth`"));
        assert!(error(Some("{}")).contains("`ground_truth.solution_text_format`"));
        assert!(error(Some("nothing")).contains("found `nothing`"));
    }
}
