//! The weighted sum of rewards.

use futures::future::join_all;

use super::{Context, ErrorKind, Reward, RewardError, Sample, Score, SharedReward};

/// The weighted sum of rewards, which are computed concurrently. Rewards that are [not applicable](ErrorKind::NotApplicable) are left out.
/// If no reward is applicable, the sum is not applicable either. If rewards fail with other errors, the sum fails with the first of these
/// errors in the order of the terms.
#[derive(Clone, Default)]
pub struct WeightedSum {
    terms: Vec<(String, f64, SharedReward)>,
}

impl WeightedSum {
    /// Adds a term. The component `<name>` is the value of the term before weighting; the components and labels of the term are prefixed
    /// with `<name>/`.
    #[must_use]
    pub fn with(mut self, name: &str, weight: f64, reward: impl Reward) -> Self {
        self.terms.push((name.to_owned(), weight, SharedReward::new(reward)));
        self
    }
}

impl Reward for WeightedSum {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        let scores =
            join_all(self.terms.iter().map(|(_, _, reward)| reward.score(sample, context))).await;
        let mut sum = Score::default();
        let mut applicable = false;
        for ((name, weight, _), score) in self.terms.iter().zip(scores) {
            match score {
                Ok(score) => add(&mut sum, name, *weight, score)?,
                Err(error) if error.kind == ErrorKind::NotApplicable => continue,
                Err(error) => return Err(error.named(name)),
            }
            applicable = true;
        }
        let none = || RewardError::not_applicable("no term is applicable");
        applicable.then_some(sum).ok_or_else(none)
    }
}

/// Adds a weighted term to a sum.
///
/// # Errors
/// If the total or a component of the term is not finite, or the magnitude of the term or of the sum exceeds [`Score::MAX_MAGNITUDE`]. The
/// error names the reward of the term.
pub(super) fn add(
    sum: &mut Score,
    name: &str,
    weight: f64,
    score: Score,
) -> Result<(), RewardError> {
    let score = score.finite().map_err(|error| error.named(name))?;
    let own = score.total();
    let Score { value, components, labels, token_values, executions } = score;
    sum.value += weight * value;
    sum.components.insert(name.to_owned(), value);
    sum.components
        .extend(components.into_iter().map(|(part, value)| (format!("{name}/{part}"), value)));
    sum.labels.extend(labels.into_iter().map(|(part, text)| (format!("{name}/{part}"), text)));
    sum.token_values.resize(sum.token_values.len().max(token_values.len()), 0.0);
    for (sum, value) in sum.token_values.iter_mut().zip(token_values) {
        *sum += weight as f32 * value;
    }
    sum.executions.extend(executions);
    let total = sum.total();
    if total.abs() <= Score::MAX_MAGNITUDE {
        return Ok(());
    }
    let reason = format_args!(
        "`score`: expected a weighted sum of magnitude at most {:e}, found {total:e} after adding {own:e} times {weight}",
        Score::MAX_MAGNITUDE
    );
    Err(RewardError::fatal(reason).named(name))
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    struct Fixed(Result<f64, RewardError>);

    impl Reward for Fixed {
        async fn score(&self, _: &Sample, _: &Context) -> Result<Score, RewardError> {
            Ok(Score::from(self.0.clone()?).component("part", 3.0))
        }
    }

    fn sum(terms: [Result<f64, RewardError>; 2]) -> Result<Score, RewardError> {
        let [one, two] = terms.map(Fixed);
        let sum = WeightedSum::default().with("one", 0.5, one).with("two", 2.0, two);
        block_on(sum.score(&Sample::of("any", "", None), &Context::detached()))
    }

    #[test]
    fn terms_are_weighted_and_named() {
        let score = sum([Ok(1.0), Ok(0.25)]).expect("both apply");
        let parts = [("one", 1.0), ("one/part", 3.0), ("two", 0.25), ("two/part", 3.0)]
            .map(|(name, value)| (name.to_owned(), value));
        assert_eq!((score.value, score.components), (1.0, parts.into()));
    }

    #[test]
    fn a_term_that_overflows_is_named() {
        let error = sum([Ok(1.0), Ok(f64::MAX)]).expect_err("twice the largest").to_string();
        assert!(error.starts_with("reward `two`: failed: `score`: expected a number"), "{error}");
        let error = sum([Ok(1e30), Ok(1e30)]).expect_err("2.5e30").to_string();
        assert!(error.starts_with("reward `two`: failed: `score`: expected a weighted"), "{error}");
        let error = sum([Ok(f64::NAN), Ok(1.0)]).expect_err("no number").to_string();
        let expected = "reward `one`: failed: `score`: expected a finite number, found NaN";
        assert_eq!(error, expected);
    }

    #[test]
    fn inapplicable_terms_are_left_out_and_failures_are_named() {
        let absent = || Err(RewardError::not_applicable("no"));
        assert_eq!(sum([absent(), Ok(0.25)]).expect("one applies").value, 0.5);
        assert_eq!(sum([absent(), absent()]).expect_err("none").kind, ErrorKind::NotApplicable);
        let error = sum([Ok(1.0), Err(RewardError::retryable("busy"))]).expect_err("one fails");
        assert_eq!(error.to_string(), "reward `two`: failed for now: busy");
    }
}
