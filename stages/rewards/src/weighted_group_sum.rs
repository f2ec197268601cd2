//! The weighted sum of group rewards.

use futures::future::join_all;

use super::weighted_sum::add;
use super::{Context, ErrorKind, GroupReward, RewardError, Sample, Score, SharedGroupReward};

/// The weighted sum of group rewards, which are computed concurrently. Group rewards that are [not applicable](ErrorKind::NotApplicable)
/// are left out. If no group reward is applicable, the sum is not applicable either. If group rewards fail with other errors, the sum fails
/// with the first of these errors in the order of the terms.
#[derive(Clone, Default)]
pub struct WeightedGroupSum {
    terms: Vec<(String, f64, SharedGroupReward)>,
}

impl WeightedGroupSum {
    /// Adds a term. The component `<name>` is the value of the term before weighting; the components and labels of the term are prefixed
    /// with `<name>/`.
    #[must_use]
    pub fn with(mut self, name: &str, weight: f64, reward: impl GroupReward) -> Self {
        self.terms.push((name.to_owned(), weight, SharedGroupReward::new(reward)));
        self
    }
}

impl GroupReward for WeightedGroupSum {
    async fn score(&self, group: &[Sample], context: &Context) -> Result<Vec<Score>, RewardError> {
        let scores = self.terms.iter().map(|(_, _, reward)| reward.score(group, context));
        let all = join_all(scores).await;
        let mut sums = vec![Score::default(); group.len()];
        let mut applicable = false;
        for ((name, weight, _), scores) in self.terms.iter().zip(all) {
            match scores {
                Ok(scores) => sums
                    .iter_mut()
                    .zip(scores)
                    .try_for_each(|(sum, one)| add(sum, name, *weight, one))?,
                Err(error) if error.kind == ErrorKind::NotApplicable => continue,
                Err(error) => return Err(error.named(name)),
            }
            applicable = true;
        }
        let none = || RewardError::not_applicable("no term is applicable");
        applicable.then_some(sums).ok_or_else(none)
    }

    fn needs_own_scores(&self) -> bool {
        self.terms.iter().any(|(_, _, reward)| reward.needs_own_scores())
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    struct Fixed(Result<f64, RewardError>);

    impl GroupReward for Fixed {
        async fn score(&self, group: &[Sample], _: &Context) -> Result<Vec<Score>, RewardError> {
            let value = self.0.clone()?;
            Ok((0..group.len()).map(|at| (value + at as f64).into()).collect())
        }
    }

    #[test]
    fn terms_are_weighted_response_by_response() {
        let absent = || Err(RewardError::not_applicable("no"));
        let sum = WeightedGroupSum::default()
            .with("one", 0.5, Fixed(Ok(1.0)))
            .with("two", 2.0, Fixed(Ok(3.0)))
            .with("none", 1.0, Fixed(absent()));
        let group = ["a", "b"].map(|text| Sample::of("any", text, None));
        let scores = block_on(sum.score(&group, &Context::detached())).expect("two apply");
        assert_eq!([scores[0].value, scores[1].value], [6.5, 9.0]);
        assert_eq!(scores[1].components["two"], 4.0);
        let none = WeightedGroupSum::default().with("none", 1.0, Fixed(absent()));
        let error = block_on(none.score(&group, &Context::detached())).expect_err("none applies");
        assert_eq!(error.kind, ErrorKind::NotApplicable);
    }
}
