//! The rewards `search_r1_em` and `search_r1_subem`, verl's grader `search_r1_like_qa_em`: the contents of `<answer>` tags, compared as in
//! open-domain question answering (Rajpurkar et al., 2016).

use rollpacker_stages::catalog::About;
use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::rule::answer_in::tagged;
use crate::rule::normal_form::SQUAD;

/// 1 if the last `<answer>...</answer>` equals one of the golden answers or, with `substring`, contains one; otherwise 0. Case, ASCII
/// punctuation and articles are ignored.
///
/// The ground truth is `{"target": [...]}` or `{"target": "..."}` as JSON, or a single answer. A bare JSON list is rejected, as in verl. If
/// whole answers are compared, a right response with more than ten `<answer>` tags or more than ten `</answer>` tags only scores 0.25.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SearchR1 {
    /// `true` if the answer only has to contain a golden answer; `false` by default.
    pub substring: bool,
}

impl SearchR1 {
    /// The documentation of the reward in a catalog, if whole answers are compared.
    pub const EXACT: About = About::new(&[], "an `<answer>` that equals a golden answer", "verl");

    /// The documentation of the reward in a catalog, if the answer has to contain a golden answer.
    pub const SUBSTRING: About =
        About::new(&[], "an `<answer>` that contains a golden answer", "verl");

    /// Returns the score of a response: 0, 1, or 0.25.
    #[must_use]
    pub fn grade(&self, response: &str, golden: &[String]) -> f64 {
        let Some(answer) = tagged(response).map(|answer| SQUAD.of(answer)) else { return 0.0 };
        let matches = |golden: &String| {
            let golden = SQUAD.of(golden);
            if self.substring { answer.contains(&golden) } else { answer == golden }
        };
        if !golden.iter().any(matches) {
            return 0.0;
        }
        let tags = |tag: &str| response.matches(tag).count() > 10;
        let flooded = !self.substring && (tags("<answer>") || tags("</answer>"));
        if flooded { 0.25 } else { 1.0 }
    }
}

impl Reward for SearchR1 {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        Ok(self.grade(&sample.response, &golden(sample.truth()?)?).into())
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Target {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
struct Golden {
    target: Target,
}

/// Returns the golden answers of a ground truth. Returns an error for a JSON list, and for an object whose `target` is missing or invalid.
fn golden(truth: &str) -> Result<Vec<String>, RewardError> {
    let refused = |found: &dyn std::fmt::Display| {
        RewardError::fatal(format_args!(
            "field `ground_truth`: expected an answer or a JSON object with the key `target`, found {found}"
        ))
    };
    if serde_json::from_str::<Vec<IgnoredAny>>(truth).is_ok() {
        return Err(refused(&"a JSON list"));
    }
    if !truth.trim_start().starts_with('{') {
        return Ok(vec![truth.to_owned()]);
    }
    let golden: Golden = serde_json::from_str(truth).map_err(|error| refused(&error))?;
    Ok(match golden.target {
        Target::One(answer) => vec![answer],
        Target::Several(answers) => answers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grade(substring: bool, response: &str, golden: &[&str]) -> f64 {
        let golden: Vec<String> = golden.iter().map(|answer| (*answer).to_owned()).collect();
        SearchR1 { substring }.grade(response, &golden)
    }

    #[test]
    fn compares_without_case_punctuation_and_articles() {
        assert_eq!(grade(false, "<answer>The Rhine!</answer>", &["Elbe", "rhine"]), 1.0);
        assert_eq!(grade(false, "<answer>the river Rhine</answer>", &["rhine"]), 0.0);
        assert_eq!(grade(true, "<answer>the river Rhine</answer>", &["rhine"]), 1.0);
        assert_eq!(grade(true, "the river Rhine", &["rhine"]), 0.0);
        assert_eq!(grade(false, &"<answer>x</answer>".repeat(11), &["x"]), 0.25);
        assert_eq!(grade(true, &"<answer>x</answer>".repeat(11), &["x"]), 1.0);
    }

    #[test]
    fn reads_golden_answers() {
        assert_eq!(golden(r#"{"target": ["a", "b"]}"#).expect("JSON"), ["a", "b"]);
        assert_eq!(golden(r#"{"target": "a"}"#).expect("JSON"), ["a"]);
        assert_eq!(golden("a").expect("text"), ["a"]);
        assert!(golden("{}").is_err());
        assert_eq!(golden("[1").expect("text"), ["[1"]);
        let refused = golden(r#"["a", "b"]"#).expect_err("a bare list").to_string();
        assert!(refused.contains("`target`, found a JSON list"), "{refused}");
    }
}
