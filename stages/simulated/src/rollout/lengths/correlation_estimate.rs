//! The similarity of the lengths of the responses to a prompt, estimated from a trace.

use std::collections::BTreeMap;

use serde::Serialize;

use super::MIN_RECORDED_RESPONSES;
use super::pool::Pool;

/// An interval for the correlation of the lengths of two responses to a prompt, computed on normal scores of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CorrelationEstimate {
    /// Number of prompts that can be distinguished; 0 if responses have no prompt.
    pub prompts: usize,
    /// Mean number of responses to a prompt; 1 if responses have no prompt.
    pub responses_per_prompt: f64,
    /// Minimum number of responses to a prompt; 1 if responses have no prompt.
    pub least_responses: usize,
    /// The estimated correlation; `None` if fewer than two prompts have several responses, or all scores of such prompts are equal.
    pub estimate: Option<f64>,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Upper end of the interval if the trace has no information: 0.8 of the variance is between prompts. The lower end is then 0, independent
/// lengths.
const DEFAULT_UPPER_END: f64 = 0.8;

/// Maximum upper end of an interval, because identical lengths are never assumed.
const MAX_UPPER_END: f64 = 0.99;

/// Half-width of the interval, in standard errors.
const INTERVAL_STANDARD_ERRORS: f64 = 2.0;

impl CorrelationEstimate {
    /// Estimates the interval from responses, each with the key of its prompt and its length.
    ///
    /// Returns `None` if each prompt has at least [`MIN_RECORDED_RESPONSES`] responses to draw others from, so that no assumption is
    /// needed.
    ///
    /// The estimate is the intraclass correlation of the normal scores, computed from the mean squares between and within prompts. For the
    /// interval, an estimate above 0.99 counts as 0.99. The interval extends two standard errors below the estimate, but not below 0. Its
    /// upper end is the minimum of three numbers: the estimate plus two standard errors; the larger of 0.8 and the estimate plus one
    /// standard error; 0.99. Without an estimate, the interval is from 0 to 0.8.
    #[must_use]
    pub fn of(responses: &[(Option<u64>, u32)]) -> Option<Self> {
        let pool = Pool::new(responses.iter().map(|(_, length)| (*length).max(1)).collect());
        let mut groups: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for &(prompt, length) in responses {
            if let Some(prompt) = prompt {
                groups.entry(prompt).or_default().push(pool.score(length.max(1), 0.5));
            }
        }
        let sizes = || groups.values().map(Vec::len);
        let least_responses = sizes().min().unwrap_or(1);
        if least_responses >= MIN_RECORDED_RESPONSES {
            return None;
        }
        let scores: Vec<&[f64]> =
            groups.values().map(Vec::as_slice).filter(|scores| scores.len() > 1).collect();
        let estimate = Estimate::of(&scores);
        let (low, high) = estimate.map_or((0.0, DEFAULT_UPPER_END), Estimate::interval);
        Some(Self {
            prompts: groups.len(),
            responses_per_prompt: match groups.len() {
                0 => 1.0,
                prompts => sizes().sum::<usize>() as f64 / prompts as f64,
            },
            least_responses,
            estimate: estimate.map(|estimate| estimate.value),
            low,
            high,
        })
    }
}

/// An intraclass correlation and its standard error.
#[derive(Clone, Copy)]
struct Estimate {
    value: f64,
    error: f64,
}

impl Estimate {
    /// Computes the estimate from groups of several scores. Returns `None` for fewer than two groups, or if all scores are equal.
    fn of(groups: &[&[f64]]) -> Option<Self> {
        let count = groups.len() as f64;
        if groups.len() < 2 {
            return None;
        }
        let sizes = || groups.iter().map(|group| group.len() as f64);
        let total: f64 = sizes().sum();
        let mean_of = |scores: &[f64]| scores.iter().sum::<f64>() / scores.len() as f64;
        let mean = groups.iter().copied().flatten().sum::<f64>() / total;
        let between: f64 =
            groups.iter().map(|group| group.len() as f64 * (mean_of(group) - mean).powi(2)).sum();
        let within: f64 = groups
            .iter()
            .map(|group| group.iter().map(|score| (score - mean_of(group)).powi(2)).sum::<f64>())
            .sum();
        let (between, within) = (between / (count - 1.0), within / (total - count));
        // The group size of a balanced design with the same expected mean squares.
        let size = (total - sizes().map(|size| size * size).sum::<f64>() / total) / (count - 1.0);
        let spread = between + (size - 1.0) * within;
        if spread <= 0.0 {
            return None;
        }
        let value = ((between - within) / spread).clamp(0.0, 1.0);
        // The asymptotic standard error of the estimate from a balanced design (Fisher 1925).
        let error = (1.0 - value)
            * (1.0 + (size - 1.0) * value)
            * (2.0 / (size * (size - 1.0) * (count - 1.0))).sqrt();
        Some(Self { value, error })
    }

    fn interval(self) -> (f64, f64) {
        let Self { value, error } = self;
        let value = value.min(MAX_UPPER_END);
        let low = (value - INTERVAL_STANDARD_ERRORS * error).max(0.0);
        let high = (value + INTERVAL_STANDARD_ERRORS * error)
            .min(DEFAULT_UPPER_END.max(value + error))
            .min(MAX_UPPER_END);
        (low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollpacker_stages::draw::{Draw, correlated};

    /// Returns the lengths of `prompts` prompts whose responses have this correlation.
    fn drawn(prompts: u64, responses: u64, correlation: f64) -> Vec<(Option<u64>, u32)> {
        let root = Draw::new(5);
        let response = |prompt: u64, response: u64| {
            let shared = root.of(prompt).normal();
            let own = root.of(prompt).of(response).normal();
            let normal = correlated(correlation.sqrt(), shared, own);
            (Some(prompt), (1000.0 * normal.exp()) as u32)
        };
        (0..prompts)
            .flat_map(|prompt| (0..responses).map(move |number| response(prompt, number)))
            .collect()
    }

    #[test]
    fn one_response_per_prompt_gives_no_estimate() {
        let found = CorrelationEstimate::of(&drawn(500, 1, 0.3)).expect("something is assumed");
        assert_eq!((found.estimate, found.low, found.high), (None, 0.0, DEFAULT_UPPER_END));
        assert_eq!((found.prompts, found.least_responses), (500, 1));
        let pool: Vec<_> =
            drawn(50, 1, 0.3).into_iter().map(|(_, length)| (None, length)).collect();
        let found = CorrelationEstimate::of(&pool).expect("something is assumed");
        assert_eq!((found.prompts, found.low, found.high), (0, 0.0, DEFAULT_UPPER_END));
    }

    #[test]
    fn more_responses_narrow_the_interval_about_the_truth() {
        for correlation in [0.0, 0.15, 0.5, 0.9] {
            let width = |prompts, responses| {
                let found = CorrelationEstimate::of(&drawn(prompts, responses, correlation));
                let CorrelationEstimate { low, high, .. } = found.expect("fewer than enough");
                assert!(low <= correlation + 0.02 && correlation <= high, "{low} {high}");
                high - low
            };
            let (few, some, many) = (width(12, 2), width(100, 3), width(2000, 4));
            assert!(many < some && some <= few + 1e-9, "{few} {some} {many}");
            assert!(many < 0.08, "{many}");
        }
    }

    #[test]
    fn no_assumption_is_needed_with_enough_responses() {
        assert_eq!(CorrelationEstimate::of(&drawn(20, MIN_RECORDED_RESPONSES as u64, 0.3)), None);
        let mut mixed = drawn(20, MIN_RECORDED_RESPONSES as u64, 0.3);
        mixed.push((Some(99), 10));
        assert!(CorrelationEstimate::of(&mixed).is_some_and(|found| found.least_responses == 1));
    }

    #[test]
    fn equal_lengths_are_not_assumed() {
        let twice: Vec<_> = (0..300).map(|n| (Some(n / 2), (n / 2) as u32 + 1)).collect();
        let found = CorrelationEstimate::of(&twice).expect("something is assumed");
        assert!(found.high <= MAX_UPPER_END && found.low < found.high + 1e-9, "{found:?}");
        let constant: Vec<_> = (0..300).map(|n| (Some(n / 2), 7)).collect();
        let found = CorrelationEstimate::of(&constant).expect("something is assumed");
        assert_eq!(found.estimate, None);
    }
}
