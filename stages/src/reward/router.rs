//! Which reward scores which data source.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{DynReward, Math, Reward, RewardError, Sample, Score};

/// Routes responses to rewards by their data source. Clones share the rewards.
///
/// A route is an exact data source, a prefix that ends in `*`, or `*` for everything else. The longest match wins.
#[derive(Clone, Default)]
pub struct Router {
    routes: BTreeMap<String, Arc<dyn DynReward>>,
}

impl Router {
    /// Adds a route; replaces an earlier one for the same pattern.
    #[must_use]
    pub fn route(mut self, pattern: &str, reward: impl Reward) -> Self {
        self.routes.insert(pattern.to_owned(), Arc::new(reward));
        self
    }

    /// Whether a data source has a reward.
    ///
    /// # Errors
    /// [`RewardError::NoRoute`] if it has none.
    pub fn check(&self, data_source: &str) -> Result<(), RewardError> {
        self.find(data_source).map(drop)
    }

    /// Scores a response by the reward of its data source.
    ///
    /// # Errors
    /// If there is no such reward, or what it returns.
    pub async fn score(&self, sample: &Sample) -> Result<Score, RewardError> {
        self.find(&sample.data_source)?.score(sample).await
    }

    fn find(&self, data_source: &str) -> Result<&dyn DynReward, RewardError> {
        if let Some(reward) = self.routes.get(data_source) {
            return Ok(reward.as_ref());
        }
        let fits = |pattern: &str| {
            pattern.strip_suffix('*').is_some_and(|prefix| data_source.starts_with(prefix))
        };
        let longest = self
            .routes
            .iter()
            .filter(|(pattern, _)| fits(pattern))
            .max_by_key(|(pattern, _)| pattern.len());
        longest.map(|(_, reward)| reward.as_ref()).ok_or_else(|| RewardError::NoRoute {
            data_source: data_source.to_owned(),
            routes: self.routes.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
        })
    }
}

/// The built-in rewards by the names that recipes use; adds one as a route. `None` if there is none of that name.
#[must_use]
pub fn builtin(router: Router, pattern: &str, name: &str) -> Option<Router> {
    match name {
        "math" => Some(router.route(pattern, Math::default())),
        "math_flexible" => Some(router.route(pattern, Math { last_number: true })),
        _ => None,
    }
}

/// Names that [`builtin`] knows.
#[must_use]
pub fn builtin_names() -> &'static [&'static str] {
    &["math", "math_flexible"]
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    struct Constant(f64);

    impl Reward for Constant {
        async fn score(&self, _: &Sample) -> Result<Score, RewardError> {
            Ok(self.0.into())
        }
    }

    fn sample(data_source: &str) -> Sample {
        Sample {
            response_length: 0,
            id: Default::default(),
            data_source: data_source.to_owned(),
            messages: String::new(),
            prompt_ids: Vec::new(),
            response: String::new(),
            response_ids: Vec::new(),
            ground_truth: None,
            extra_info: None,
            finish_reason: crate::rollout::FinishReason::Stop,
        }
    }

    #[test]
    fn the_longest_match_wins() {
        let router = Router::default()
            .route("*", Constant(0.0))
            .route("openai/*", Constant(1.0))
            .route("openai/gsm8k", Constant(2.0));
        let score =
            |data_source| block_on(router.score(&sample(data_source))).expect("routed").value;
        assert_eq!(
            ["x", "openai/x", "openai/gsm8k", "openai/gsm8k2"].map(score),
            [0.0, 1.0, 2.0, 1.0]
        );
    }

    #[test]
    fn a_data_source_without_a_reward_is_named() {
        let router = Router::default().route("a/*", Constant(0.0)).route("b", Constant(0.0));
        let error = block_on(router.score(&sample("c"))).expect_err("no route");
        assert_eq!(error.to_string(), "no reward for data_source `c`; there are routes for a/*, b");
        assert_eq!(router.check("c"), Err(error));
    }
}
