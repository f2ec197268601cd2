//! The rewards `gsm8k_strict` and `gsm8k_flexible`: a number after `####`, or the last number.

use std::sync::LazyLock;

use regex::Regex;
use rollpacker_stages::catalog::About;
use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};
use serde::Deserialize;

use super::last_characters;
use crate::rule::regex;

/// 1 if the number that a response gives as its answer equals the ground truth character for character, otherwise 0. Only the last 300
/// characters count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gsm8k {
    /// `true` if the last number counts, including its commas; `false` (default) if only the last number after `#### ` counts, without its
    /// commas.
    pub flexible: bool,
}

static NUMBER: LazyLock<Regex> = LazyLock::new(|| regex(r"-?[0-9.,]+"));
static MARKED: LazyLock<Regex> = LazyLock::new(|| regex(r"#### (-?[0-9.,]+)"));

impl Gsm8k {
    /// The documentation of the reward in a catalog, if only marked numbers count.
    pub const STRICT: About = About::new(&[], "the number after `####`", "verl");

    /// The documentation of the reward in a catalog, if the last number counts.
    pub const FLEXIBLE: About = About::new(&[], "the last number", "verl");

    /// Returns the score of a response: 1 or 0.
    #[must_use]
    pub fn grade(&self, response: &str, truth: &str) -> f64 {
        let text = last_characters(response, 300);
        let answer = if self.flexible { last_number(text) } else { marked(text) };
        f64::from(answer.is_some_and(|answer| answer == truth))
    }
}

fn marked(text: &str) -> Option<String> {
    let last = MARKED.captures_iter(text).last()?;
    last.get(1).map(|number| number.as_str().replace(',', ""))
}

/// Returns the last match of [`NUMBER`] other than a single period, or else the first match. Returns `None` if there is no match.
fn last_number(text: &str) -> Option<String> {
    let numbers: Vec<&str> = NUMBER.find_iter(text).map(|found| found.as_str()).collect();
    let last = numbers.iter().rev().find(|number| **number != ".").or(numbers.first());
    last.map(|number| (*number).to_owned())
}

impl Reward for Gsm8k {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        Ok(self.grade(&sample.response, sample.truth()?).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_mode_requires_the_marker() {
        let grade = |response: &str, truth: &str| Gsm8k { flexible: false }.grade(response, truth);
        assert_eq!(grade("#### 2,500", "2500"), 1.0);
        assert_eq!(grade("#### 25.", "25"), 0.0);
        assert_eq!(grade("####25", "25"), 0.0);
        assert_eq!(grade("#### 1 #### 2", "1"), 0.0);
        assert_eq!(grade(&format!("#### 6{}", "é".repeat(299)), "6"), 0.0);
        assert_eq!(grade(&format!("#### 6{}", "é".repeat(294)), "6"), 1.0);
    }

    #[test]
    fn flexible_takes_the_last_number() {
        let grade = |response: &str, truth: &str| Gsm8k { flexible: true }.grade(response, truth);
        assert_eq!(grade("3 and 5 .", "5"), 1.0);
        assert_eq!(grade("2,500", "2500"), 0.0);
        assert_eq!(grade("25.", "25"), 0.0);
        assert_eq!(grade(".", "."), 1.0);
        assert_eq!(grade("none", ""), 0.0);
    }
}
