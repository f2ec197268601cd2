//! The registry of rewards.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use rollpacker_stages::catalog::{Catalog, CatalogError, Choice, NoOptions, Options};
use rollpacker_stages::reward::SharedGroupReward;
use rollpacker_stages::reward::chat::ChatEngine;

#[cfg(feature = "code")]
use super::Code;
#[cfg(feature = "http")]
use super::http::HttpReward;
use super::judge::{Chats, Judge};
use super::process::ProcessReward;
use super::python::PythonReward;
use super::verl::{Gsm8k, MathDapo, MathReward, SearchR1};
use super::{
    Exact, F1, Format, GroupReward, Length, Logic, Math, MultipleChoice, Pattern, Repetition,
    Reward, SharedReward, SoftOverlong,
};

/// A reward made by the registry.
#[derive(Clone)]
pub enum Made {
    /// A reward for single samples.
    Sample(SharedReward),
    /// A reward for whole groups.
    Group(SharedGroupReward),
}

/// Rewards by the names that recipes use. Users add a name with one call.
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
    rewards: Catalog<Made>,
    chats: Chats,
}

impl Default for Registry {
    /// Returns a registry without rewards.
    fn default() -> Self {
        Self { rewards: Catalog::new("reward"), chats: Chats::default() }
    }
}

impl Registry {
    /// Returns a registry with the built-in rewards.
    #[must_use]
    pub fn builtin() -> Self {
        let chats = Chats::default();
        let registry = Self { chats: chats.clone(), ..Self::default() };
        registry
            .with("exact", |exact: Exact| Ok(exact))
            .with("f1", |f1: F1| Ok(f1))
            .with("format", |format: Format| Ok(format))
            .with_group("length", |length: Length| Ok(length))
            .with("logic", |logic: Logic| Ok(logic))
            .with("multiple_choice", |choice: MultipleChoice| Ok(choice))
            .with("regex", Pattern::new)
            .with("repetition", Repetition::new)
            .with("soft_overlong", SoftOverlong::new)
            .with("math", |math: Math| Ok(math))
            .with("math_flexible", |_: NoOptions| Ok(Math::default()))
            .with("gsm8k_strict", |_: NoOptions| Ok(Gsm8k { flexible: false }))
            .with("gsm8k_flexible", |_: NoOptions| Ok(Gsm8k { flexible: true }))
            .with("math_reward", |reward: MathReward| Ok(reward))
            .with("math_dapo", |reward: MathDapo| Ok(reward))
            .with("search_r1_em", |_: NoOptions| Ok(SearchR1 { substring: false }))
            .with("search_r1_subem", |_: NoOptions| Ok(SearchR1 { substring: true }))
            .with("judge", move |options| Judge::made_with(&chats, options))
            .with("process", ProcessReward::new)
            .with("python", PythonReward::new)
            .with_code()
            .with_http()
    }

    #[cfg(feature = "code")]
    fn with_code(self) -> Self {
        self.with("code", |config| Code::start(config).map_err(CatalogError::start))
    }

    #[cfg(not(feature = "code"))]
    fn with_code(self) -> Self {
        self.with("code", |_: Options| absent::<SharedReward>("the reward `code`", "code"))
    }

    #[cfg(feature = "http")]
    fn with_http(self) -> Self {
        self.with("http", HttpReward::new)
    }

    #[cfg(not(feature = "http"))]
    fn with_http(self) -> Self {
        self.with("http", |_: Options| absent::<SharedReward>("the reward `http`", "http"))
    }

    /// Adds a reward that `make` constructs from its options. Replaces a reward of the same name.
    #[must_use]
    pub fn with<O: DeserializeOwned, R: Reward>(
        self,
        name: &str,
        make: impl Fn(O) -> Result<R, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        self.insert(name, move |options| Ok(Made::Sample(SharedReward::new(make(options)?))))
    }

    /// Adds a reward for groups. Replaces a reward of the same name.
    #[must_use]
    pub fn with_group<O: DeserializeOwned, R: GroupReward>(
        self,
        name: &str,
        make: impl Fn(O) -> Result<R, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        self.insert(name, move |options| Ok(Made::Group(SharedGroupReward::new(make(options)?))))
    }

    fn insert<O: DeserializeOwned>(
        mut self,
        name: &str,
        make: impl Fn(O) -> Result<Made, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        self.rewards = self.rewards.with(name, make);
        self
    }

    /// Sets the engine `torch` of the reward `judge`, for this registry and its clones. Replaces an earlier one. Judges that were made
    /// before keep their models.
    pub fn set_judge_engine(&self, engine: Arc<dyn ChatEngine>) {
        self.chats.set_in_process(engine);
    }

    /// Returns the names of the rewards in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.rewards.names()
    }

    /// Makes the reward with this name.
    ///
    /// # Errors
    /// If there is no reward of this name, an option is invalid, or the reward fails to start.
    pub fn make(&self, name: &str, options: Options) -> Result<Made, CatalogError> {
        self.rewards.make(&Choice { name: name.to_owned(), options })
    }

    /// Returns an error for each option of a wrong type, or for the first missing one, without making the reward. See
    /// [`Catalog::type_errors`].
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

/// Returns the error for an entry that needs a feature with which the program was not built.
#[cfg(not(all(feature = "code", feature = "http")))]
pub(crate) fn absent<T>(name: &str, feature: &str) -> Result<T, CatalogError> {
    let reason =
        format!("{name} needs the feature `{feature}`, which this program was built without");
    Err(CatalogError::Start(reason))
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
