//! Routing of data sources to rewards.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::group::SharedGroupReward;
use super::{Context, GroupReward, OnError, Reward, RewardError, Sample, Score, SharedReward};

/// Routes responses to rewards by their data source. Clones share routes and rewards.
///
/// A pattern is an exact data source, a prefix that ends in `*`, or `*` for everything else. An exact pattern takes precedence over
/// prefixes, and a longer prefix over a shorter prefix.
#[derive(Clone, Default)]
pub struct Router {
    routes: Arc<BTreeMap<String, Route>>,
}

#[derive(Clone, Default)]
struct Route {
    name: String,
    reward: Option<SharedReward>,
    /// The group reward, with the name that errors use.
    group: Option<(String, SharedGroupReward)>,
    on_error: OnError,
}

/// An error for a data source without a reward.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no reward for data_source `{data_source}`; there are routes for {}", if routes.is_empty() { "none" } else { routes })]
pub struct NoRoute {
    /// The data source without a reward.
    pub data_source: String,
    /// The patterns of the routes, separated by commas.
    pub routes: String,
}

impl Router {
    /// Adds a route whose errors use the pattern as name. Replaces an earlier reward for the same pattern.
    #[must_use]
    pub fn route(self, pattern: &str, reward: impl Reward) -> Self {
        self.route_named(pattern, pattern, reward)
    }

    /// Adds a route whose errors use `name`. Replaces an earlier reward for the same pattern.
    #[must_use]
    pub fn route_named(mut self, pattern: &str, name: &str, reward: impl Reward) -> Self {
        let route = self.entry(pattern);
        name.clone_into(&mut route.name);
        route.reward = Some(SharedReward::new(reward));
        self
    }

    /// Adds a group reward to the route of a pattern. The route may also have a reward for samples, but does not need one. Errors of the
    /// group reward use `name`. Replaces an earlier group reward for the same pattern.
    #[must_use]
    pub fn route_groups(mut self, pattern: &str, name: &str, reward: impl GroupReward) -> Self {
        self.entry(pattern).group = Some((name.to_owned(), SharedGroupReward::new(reward)));
        self
    }

    /// Sets the effect that errors of the rewards of a pattern have on the run, before or after the rewards are added. By default, errors
    /// are [tolerated](OnError::Tolerate).
    #[must_use]
    pub fn on_error(mut self, pattern: &str, on_error: OnError) -> Self {
        self.entry(pattern).on_error = on_error;
        self
    }

    /// Removes the route of a pattern: its reward, its group reward, and the effect of their errors.
    #[must_use]
    pub fn without(mut self, pattern: &str) -> Self {
        Arc::make_mut(&mut self.routes).remove(pattern);
        self
    }

    fn entry(&mut self, pattern: &str) -> &mut Route {
        Arc::make_mut(&mut self.routes).entry(pattern.to_owned()).or_default()
    }

    /// Checks that a data source has a reward for samples or a group reward.
    ///
    /// # Errors
    /// Returns [`NoRoute`] if the data source has neither.
    pub fn check(&self, data_source: &str) -> Result<(), NoRoute> {
        self.find(data_source).map(drop)
    }

    /// Scores a response by the reward of its data source. The score is 0 if the data source only has a group reward.
    ///
    /// # Errors
    /// Returns an error if there is no route, the reward returns an error, or its score is invalid.
    pub async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        let route = self.find(&sample.data_source).map_err(RewardError::fatal)?;
        let Some(reward) = &route.reward else { return Ok(Score::default()) };
        let score = reward.score(sample, context).await.and_then(|score| score.checked(sample));
        score.map(Score::redacted).map_err(|error| error.named(&route.name))
    }

    /// Returns `true` if a data source has a reward for samples, and `false` if it only has a group reward.
    ///
    /// # Errors
    /// Returns [`NoRoute`] if the data source has neither.
    pub fn scores_samples(&self, data_source: &str) -> Result<bool, NoRoute> {
        self.find(data_source).map(|route| route.reward.is_some())
    }

    /// Returns the name of the reward that scores the responses of a data source; `None` if the data source only has a group reward.
    ///
    /// # Errors
    /// Returns [`NoRoute`] if no reward scores the responses or the groups of the data source.
    pub fn reward_of(&self, data_source: &str) -> Result<Option<&str>, NoRoute> {
        self.find(data_source).map(|route| route.reward.as_ref().map(|_| route.name.as_str()))
    }

    /// Returns the name of the reward that scores the groups of a data source; `None` if the data source only has a reward for samples.
    ///
    /// # Errors
    /// Returns [`NoRoute`] if no reward scores the responses or the groups of the data source.
    pub fn group_reward_of(&self, data_source: &str) -> Result<Option<&str>, NoRoute> {
        let group = self.find(data_source)?.group.as_ref();
        Ok(group.map(|(name, _)| name.as_str()))
    }

    /// Returns `true` if any data source has a group reward.
    #[must_use]
    pub fn scores_groups(&self) -> bool {
        self.routes.values().any(|route| route.group.is_some())
    }

    /// Scores a complete group by the group reward of its first response's data source. Returns `None` if the data source has no group
    /// reward or the group is empty.
    ///
    /// # Errors
    /// Returns an error if there is no route, the reward returns an error, or a score is invalid.
    pub async fn score_group(
        &self,
        group: &[Sample],
        context: &Context,
    ) -> Option<Result<Vec<Score>, RewardError>> {
        let route = match self.find(&group.first()?.data_source) {
            Ok(route) => route,
            Err(error) => return Some(Err(RewardError::fatal(error))),
        };
        let (name, reward) = route.group.as_ref()?;
        let scores = reward.score(group, context).await;
        let finite = |scores: Vec<Score>| {
            scores.into_iter().map(|score| score.finite().map(Score::redacted)).collect()
        };
        let scores: Result<Vec<Score>, RewardError> = scores.and_then(finite);
        Some(scores.map_err(|error| error.named(name)))
    }

    /// Returns the effect of an error of a data source's reward. Without a route, the run fails.
    #[must_use]
    pub fn on_error_of(&self, data_source: &str) -> OnError {
        self.find(data_source).map_or(OnError::Fail, |route| route.on_error)
    }

    fn find(&self, data_source: &str) -> Result<&Route, NoRoute> {
        let fits = |pattern: &str| {
            pattern.strip_suffix('*').is_some_and(|prefix| data_source.starts_with(prefix))
        };
        let longest = || {
            self.rewarded_routes().filter(|(pattern, _)| fits(pattern)).max_by_key(|it| it.0.len())
        };
        let exact = self.rewarded_routes().find(|(pattern, _)| *pattern == data_source);
        exact.or_else(longest).map(|(_, route)| route).ok_or_else(|| NoRoute {
            data_source: data_source.to_owned(),
            routes: self
                .rewarded_routes()
                .map(|(pattern, _)| pattern)
                .collect::<Vec<_>>()
                .join(", "),
        })
    }

    /// Returns the routes that have a reward, with their patterns. A call of [`on_error`](Self::on_error) alone leaves a route without a
    /// reward.
    fn rewarded_routes(&self) -> impl Iterator<Item = (&str, &Route)> {
        let all = self.routes.iter().map(|(pattern, route)| (pattern.as_str(), route));
        all.filter(|(_, route)| route.reward.is_some() || route.group.is_some())
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    struct Constant(f64);

    impl Reward for Constant {
        async fn score(&self, _: &Sample, _: &Context) -> Result<Score, RewardError> {
            Ok(self.0.into())
        }
    }

    struct Fails;

    impl Reward for Fails {
        async fn score(&self, _: &Sample, _: &Context) -> Result<Score, RewardError> {
            Err(RewardError::retryable("busy"))
        }
    }

    struct OneShort;

    impl GroupReward for OneShort {
        async fn score(&self, group: &[Sample], _: &Context) -> Result<Vec<Score>, RewardError> {
            Ok(vec![Score::default(); group.len() - 1])
        }
    }

    fn sample(data_source: &str) -> Sample {
        Sample::of(data_source, "", None)
    }

    #[test]
    fn the_longest_match_wins() {
        let router = Router::default()
            .route("*", Constant(0.0))
            .route("openai/*", Constant(1.0))
            .route("openai/gsm8k", Constant(2.0));
        let context = Context::detached();
        let score = |data_source| {
            block_on(router.score(&sample(data_source), &context)).expect("routed").value
        };
        assert_eq!(
            ["x", "openai/x", "openai/gsm8k", "openai/gsm8k2"].map(score),
            [0.0, 1.0, 2.0, 1.0]
        );
    }

    #[test]
    fn a_data_source_without_a_reward_is_named() {
        let router = Router::default().route("a/*", Constant(0.0)).route("b", Constant(0.0));
        let error = router.check("c").expect_err("no route");
        assert_eq!(error.to_string(), "no reward for data_source `c`; there are routes for a/*, b");
        let error = Router::default().check("c").expect_err("no route").to_string();
        assert_eq!(error, "no reward for data_source `c`; there are routes for none");
    }

    #[test]
    fn an_error_names_its_reward_and_follows_its_route() {
        let router =
            Router::default().route_named("*", "flaky", Fails).on_error("*", OnError::DropGroup);
        let error = block_on(router.score(&sample("x"), &Context::detached())).expect_err("fails");
        assert_eq!(error.to_string(), "reward `flaky`: failed for now: busy");
        assert_eq!(router.on_error_of("x"), OnError::DropGroup);
    }

    #[test]
    fn on_error_may_precede_the_route_and_adds_none() {
        let router = Router::default().on_error("x", OnError::Zero).route("*", Fails);
        assert_eq!(router.on_error_of("x"), OnError::Tolerate);
        let router = router.route("x", Fails);
        assert_eq!(
            ["x", "y"].map(|source| router.on_error_of(source)),
            [OnError::Zero, OnError::Tolerate]
        );
        let router = Router::default().on_error("*", OnError::Zero);
        assert!(router.check("x").is_err(), "nothing is routed");
    }

    #[test]
    fn a_removed_route_leaves_none_of_its_rewards() {
        let router = Router::default().route_groups("x", "short", OneShort).route("x", Fails);
        let router = router.on_error("x", OnError::Zero).route("*", Fails).without("x");
        assert_eq!(router.on_error_of("x"), OnError::Tolerate);
        assert_eq!(router.reward_of("x"), Ok(Some("*")));
        assert!(!router.scores_groups());
    }

    struct PerToken(usize);

    impl Reward for PerToken {
        async fn score(&self, _: &Sample, _: &Context) -> Result<Score, RewardError> {
            Ok(Score { token_values: vec![0.5; self.0], ..Score::default() })
        }
    }

    #[test]
    fn values_of_tokens_are_one_for_each() {
        let score = |values, response_length| {
            let router = Router::default().route_named("*", "dense", PerToken(values));
            let sample = Sample { response_length, ..sample("x") };
            let score = block_on(router.score(&sample, &Context::detached()));
            score.map(|score| score.total()).map_err(|error| error.to_string())
        };
        assert_eq!(
            [(2, 2), (2, 0), (0, 2)].map(|(n, of)| score(n, of)),
            [Ok(1.0), Ok(1.0), Ok(0.0)]
        );
        let reason =
            "reward `dense`: failed: `token_values`: expected one for each of 3 tokens, found 2";
        assert_eq!(score(2, 3), Err(reason.to_owned()));
    }

    #[test]
    fn a_score_that_is_not_a_number_is_an_error() {
        let router = Router::default().route_named("*", "broken", Constant(f64::NAN));
        let error = block_on(router.score(&sample("x"), &Context::detached())).expect_err("fails");
        let expected = "reward `broken`: failed: `score`: expected a finite number, found NaN";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_score_that_overflows_in_training_names_its_reward() {
        let router = Router::default().route_named("*", "large", Constant(-1e300));
        let error = block_on(router.score(&sample("x"), &Context::detached())).expect_err("fails");
        let expected =
            "reward `large`: failed: `score`: expected a number from -1e30 to 1e30, found -1e300";
        assert_eq!(error.to_string(), expected);
    }

    struct Repeats(String);

    impl Reward for Repeats {
        async fn score(&self, _: &Sample, _: &Context) -> Result<Score, RewardError> {
            Ok(Score::default().label("said", self.0.as_str()).component(&self.0, 1.0))
        }
    }

    #[test]
    fn a_secret_in_a_label_or_a_name_is_replaced() {
        crate::secret::register("key-of-the-router");
        let score = |text: &str| {
            let router = Router::default().route("*", Repeats(text.to_owned()));
            block_on(router.score(&sample("x"), &Context::detached())).expect("scores")
        };
        assert_eq!(score("my key-of-the-router").labels["said"], "my [redacted]");
        assert_eq!(score("my key-of-the-router").components["my [redacted]"], 1.0);
        let url = "http://user:password@host";
        assert_eq!(score(url).labels["said"], url, "an answer is data");
        let error = RewardError::fatal("my key-of-the-router");
        assert_eq!(error.reason, "my [redacted]");
    }

    #[test]
    fn a_group_reward_must_return_one_score_per_response() {
        let router = Router::default().route_groups("*", "short", OneShort);
        let group = [sample("x"), sample("x")];
        let context = Context::detached();
        let scores = block_on(router.score_group(&group, &context)).expect("routed");
        let reason = "reward `short`: failed: expected 2 scores for a group, found 1";
        assert_eq!(scores.expect_err("one is missing").to_string(), reason);
        assert_eq!(block_on(router.score(&group[0], &context)), Ok(Score::default()));
        assert_eq!(router.group_reward_of("x"), Ok(Some("short")));
        assert_eq!(Router::default().route("*", Constant(0.0)).group_reward_of("x"), Ok(None));
    }
}
