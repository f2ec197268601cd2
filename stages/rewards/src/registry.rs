//! The registry of rewards.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use rollpacker_stages::catalog::{
    About, Catalog, CatalogError, Choice, ListedEntry, NoOptions, OptionDocs, Options,
};
use rollpacker_stages::documented::Documented;
use rollpacker_stages::reward::SharedGroupReward;
use rollpacker_stages::reward::chat::ChatEngine;

#[cfg(feature = "code")]
use super::Code;
#[cfg(feature = "http")]
use super::http::HttpReward;
use super::judge::{Judge, JudgeEngines};
#[cfg(not(all(feature = "code", feature = "http")))]
use super::missing_feature::missing_feature;
use super::process::ProcessReward;
use super::python::PythonReward;
use super::verl::{Gsm8k, MathDapo, MathReward, SearchR1};
use super::{
    Exact, F1, Format, GroupReward, Length, Logic, Math, MultipleChoice, Pattern, Repetition,
    Reward, SharedReward, SoftOverlong,
};

/// A reward made by the registry.
#[derive(Clone)]
pub enum AnyReward {
    /// A reward for single samples.
    Sample(SharedReward),
    /// A reward for whole groups.
    Group(SharedGroupReward),
}

impl AnyReward {
    fn sample(reward: impl Reward) -> Self {
        Self::Sample(SharedReward::new(reward))
    }

    fn group(reward: impl GroupReward) -> Self {
        Self::Group(SharedGroupReward::new(reward))
    }
}

/// Rewards by the names that recipes use. [`with`](Self::with) adds the reward of a user.
///
/// ```
/// use rollpacker_rewards::Registry;
/// use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};
///
/// #[derive(Default, serde::Deserialize)]
/// #[serde(default, deny_unknown_fields)]
/// struct Terse { characters: usize }
///
/// impl Reward for Terse {
///     async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
///         Ok(Score::from(sample.response.chars().count() <= self.characters))
///     }
/// }
///
/// let registry = Registry::builtin().with("terse", |terse: Terse| Ok(terse));
/// assert!(registry.names().any(|name| name == "terse"));
/// ```
#[derive(Clone)]
pub struct Registry {
    rewards: Catalog<AnyReward>,
    engines: JudgeEngines,
}

impl Default for Registry {
    /// Returns a registry without rewards.
    fn default() -> Self {
        Self { rewards: Catalog::new("reward"), engines: JudgeEngines::default() }
    }
}

impl Registry {
    /// Returns a registry with the built-in rewards.
    #[must_use]
    pub fn builtin() -> Self {
        let engines = JudgeEngines::default();
        let registry = Self { engines: engines.clone(), ..Self::default() };
        let registry = registry
            .with_documented("exact", Exact::ABOUT, |exact: Exact| Ok(exact))
            .with_documented("f1", F1::ABOUT, |f1: F1| Ok(f1))
            .with_documented("format", Format::ABOUT, |format: Format| Ok(format))
            .with_documented("gsm8k_flexible", Gsm8k::FLEXIBLE, |_: NoOptions| {
                Ok(Gsm8k { flexible: true })
            })
            .with_documented("gsm8k_strict", Gsm8k::STRICT, |_: NoOptions| {
                Ok(Gsm8k { flexible: false })
            })
            .with_documented("logic", Logic::ABOUT, |logic: Logic| Ok(logic))
            .with_documented("math_dapo", MathDapo::ABOUT, |reward: MathDapo| Ok(reward))
            .with_documented("math_flexible", Math::FLEXIBLE, |_: NoOptions| Ok(Math::default()))
            .with_documented("math_reward", MathReward::ABOUT, |_: NoOptions| Ok(MathReward {}))
            .with_documented("multiple_choice", MultipleChoice::ABOUT, |choice: MultipleChoice| {
                Ok(choice)
            })
            .with_documented("process", ProcessReward::ABOUT, ProcessReward::new)
            .with_documented("python", PythonReward::ABOUT, PythonReward::new)
            .with_documented("regex", Pattern::ABOUT, Pattern::new)
            .with_documented("repetition", Repetition::ABOUT, Repetition::new)
            .with_documented("search_r1_em", SearchR1::EXACT, |_: NoOptions| {
                Ok(SearchR1 { substring: false })
            })
            .with_documented("search_r1_subem", SearchR1::SUBSTRING, |_: NoOptions| {
                Ok(SearchR1 { substring: true })
            })
            .with_documented("soft_overlong", SoftOverlong::ABOUT, SoftOverlong::new);
        let judge = move |options| Judge::create_with(&engines, options);
        let mut registry = registry
            .with_docs("judge", Judge::ABOUT, Judge::option_docs(), judge)
            .with_docs("math", Math::ABOUT, Math::option_docs(), Math::checked);
        let length = |length: Length| Ok(AnyReward::group(length));
        registry.rewards = registry.rewards.described("length", Length::ABOUT, length);
        registry.with_code().with_http()
    }

    #[cfg(feature = "code")]
    fn with_code(self) -> Self {
        let start = |config| Code::start(config).map_err(CatalogError::start);
        self.with_docs("code", Code::ABOUT, Code::option_docs(), start)
    }

    #[cfg(not(feature = "code"))]
    fn with_code(self) -> Self {
        self.with("code", |_: Options| missing_feature::<SharedReward>("the reward `code`", "code"))
    }

    #[cfg(feature = "http")]
    fn with_http(self) -> Self {
        self.with_documented("http", HttpReward::ABOUT, HttpReward::new)
    }

    #[cfg(not(feature = "http"))]
    fn with_http(self) -> Self {
        self.with("http", |_: Options| missing_feature::<SharedReward>("the reward `http`", "http"))
    }

    fn with_documented<O: DeserializeOwned + Serialize + Documented, R: Reward>(
        self,
        name: &str,
        about: About,
        make: impl Fn(O) -> Result<R, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        self.with_docs(name, about, OptionDocs::of::<O>(), make)
    }

    /// Adds a reward with its documentation and the documentation of its options. Replaces a reward of the same name.
    #[must_use]
    pub fn with_docs<O: DeserializeOwned, R: Reward>(
        mut self,
        name: &str,
        about: About,
        docs: OptionDocs,
        make: impl Fn(O) -> Result<R, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        let make = move |options| make(options).map(AnyReward::sample);
        self.rewards = self.rewards.with_docs(name, about, docs, make);
        self
    }

    /// Adds a reward that `make` constructs from its options, without documentation. Replaces a reward of the same name.
    #[must_use]
    pub fn with<O: DeserializeOwned, R: Reward>(
        mut self,
        name: &str,
        make: impl Fn(O) -> Result<R, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        self.rewards = self.rewards.with(name, move |options| make(options).map(AnyReward::sample));
        self
    }

    /// Adds a reward for groups that `make` constructs from its options, without documentation. Replaces a reward of the same name.
    #[must_use]
    pub fn with_group<O: DeserializeOwned, R: GroupReward>(
        mut self,
        name: &str,
        make: impl Fn(O) -> Result<R, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        self.rewards = self.rewards.with(name, move |options| make(options).map(AnyReward::group));
        self
    }

    /// Sets the engine `torch` of the reward `judge`, for this registry and its clones. Replaces an earlier engine. Judges that were made
    /// before keep their models.
    pub fn set_judge_engine(&self, engine: Arc<dyn ChatEngine>) {
        self.engines.set_in_process(engine);
    }

    /// Returns the names of the rewards in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.rewards.names()
    }

    /// Returns the rewards with their documentation and the names of their options, in alphabetical order.
    pub fn list(&self) -> impl Iterator<Item = ListedEntry<'_>> {
        self.rewards.list()
    }

    /// Makes the reward with this name.
    ///
    /// # Errors
    /// If there is no reward of this name, an option is invalid, or the reward fails to start.
    pub fn make(&self, name: &str, options: Options) -> Result<AnyReward, CatalogError> {
        self.rewards.make(&Choice { name: name.to_owned(), options })
    }

    /// Returns an error for each option of a wrong type, or for the first missing one, without making the reward. If no reward has this
    /// name, returns only an error about the name. See [`Catalog::type_errors`].
    #[must_use]
    pub fn type_errors(&self, name: &str, options: Options) -> Vec<CatalogError> {
        self.rewards.type_errors(&Choice { name: name.to_owned(), options })
    }

    /// Returns the names of the options of a reward, serde aliases included. The slice is empty if the option type does not list its
    /// fields. Returns `None` if no reward has this name.
    #[must_use]
    pub fn options(&self, name: &str) -> Option<&'static [&'static str]> {
        self.rewards.options(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str, options: &str) -> String {
        let options = serde_json::from_str(options).expect("JSON");
        match Registry::builtin().make(name, options) {
            Ok(_) => panic!("`{name}` was made"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_reward_that_cannot_be_created_is_named() {
        let unknown = error("mth", "{}");
        assert!(unknown.starts_with("there is no reward `mth`; there are "), "{unknown}");
        assert!(unknown.contains(" math, "), "{unknown}");
        assert!(
            error("math", r#"{"last_number": 3}"#)
                .starts_with("`last_number`: expected true or false")
        );
        assert!(error("math", r#"{"lst": true}"#).contains("unknown field `lst`"));
    }

    #[cfg(not(feature = "code"))]
    #[test]
    fn a_reward_of_an_absent_feature_names_it() {
        let expected =
            "the reward `code` needs the feature `code`, which this program was built without";
        assert_eq!(error("code", r#"{"sandbox": {}}"#), expected);
    }

    #[cfg(not(feature = "http"))]
    #[test]
    fn a_server_without_the_feature_names_it() {
        let without = "needs the feature `http`, which this program was built without";
        assert_eq!(
            error("http", r#"{"url": "http://localhost"}"#),
            format!("the reward `http` {without}")
        );
        let judge = error("judge", r#"{"base_url": "http://localhost", "model": "m"}"#);
        assert_eq!(judge, format!("`engine = \"server\"` {without}"));
    }
}
