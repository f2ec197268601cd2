//! The command line with a program's own rewards, schedules, placements, engines, trainers and algorithms.

use std::process::ExitCode;

#[cfg(feature = "torch")]
use rollpacker_operators::advantage::Estimator;
use rollpacker_operators::placement::PlacementPolicy;
use rollpacker_operators::schedule::{Schedule, ScheduleError};
#[cfg(feature = "code")]
use rollpacker_rewards::Code;
use rollpacker_rewards::Registry;
use rollpacker_stages::catalog::CatalogError;
use rollpacker_stages::reward::{GroupReward, Reward};
#[cfg(feature = "torch")]
use rollpacker_stages::rollout::RolloutEngine;
#[cfg(feature = "torch")]
use rollpacker_stages::train::Trainer;
#[cfg(feature = "torch")]
use rollpacker_torch::train::loss::{KlEstimator, PolicyLoss};
use serde::de::DeserializeOwned;

#[cfg(feature = "torch")]
use crate::algorithms::Algorithms;
use crate::cli;
#[cfg(feature = "torch")]
use crate::engines::{EngineContext, Engines};
use crate::placements::{PlacementContext, Placements};
use crate::recipe::schedule::Schedules;
#[cfg(feature = "torch")]
use crate::session::Catalogs;
#[cfg(feature = "torch")]
use crate::trainers::{TrainerContext, Trainers};

/// The `rollpacker` command line, to which a program can add entries: rewards, schedules, placements, engines, trainers and algorithms that
/// recipes and simulated jobs select by name.
///
/// Each entry has a name and a constructor, which receives the options of the entry as a type that implements `Deserialize`. If the type
/// has `#[serde(deny_unknown_fields)]`, an unknown option is an error that names the key. An entry replaces a built-in entry of the same
/// name. `train` (also with `--dry-run`, `--resume`, `--workers` and `--hostfile`), `score` and `simulate` accept the added names, and
/// `keys` lists them.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use rollpacker::prelude::*;
/// use serde::Deserialize;
///
/// /// Rewards responses of at most `max` characters.
/// #[derive(Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Terse {
///     max: usize,
/// }
///
/// impl Reward for Terse {
///     async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
///         Ok(Score::from(f64::from(sample.response.chars().count() <= self.max)))
///     }
/// }
///
/// fn main() -> ExitCode {
///     rollpacker::App::new().reward("terse", |terse: Terse| Ok(terse)).main()
/// }
/// ```
///
/// With this program, `my_program score --reward terse --option max=20 --input rows.jsonl` scores a file. A recipe selects the reward
/// with `reward.routes = { "*" = "terse" }` and sets its option with `reward.options.terse.max = 20`.
#[derive(Clone)]
pub struct App {
    pub(crate) rewards: Registry,
    pub(crate) schedules: Schedules,
    pub(crate) placements: Placements,
    #[cfg(feature = "torch")]
    pub(crate) algorithms: Algorithms,
    #[cfg(feature = "torch")]
    pub(crate) engines: Engines,
    #[cfg(feature = "torch")]
    pub(crate) trainers: Trainers,
}

impl Default for App {
    fn default() -> Self {
        Self::new()
    }
}

impl App {
    /// Returns the command line with the built-in entries. When the reward `code` starts, it prints on standard error how its sandbox is
    /// isolated.
    #[must_use]
    pub fn new() -> Self {
        let rewards = builtin_rewards();
        #[cfg(feature = "torch")]
        rewards
            .set_judge_engine(std::sync::Arc::new(rollpacker_torch::judge::JudgeModels::default()));
        Self {
            rewards,
            schedules: Schedules::default(),
            placements: Placements::default(),
            #[cfg(feature = "torch")]
            algorithms: Algorithms::default(),
            #[cfg(feature = "torch")]
            engines: Engines::default(),
            #[cfg(feature = "torch")]
            trainers: Trainers::default(),
        }
    }

    /// Returns the catalogs in which a session looks up the rewards, algorithms, engines and trainers that its recipe names.
    #[cfg(feature = "torch")]
    pub(crate) fn catalogs(&self) -> Catalogs {
        let Self { rewards, algorithms, engines, trainers, .. } = self.clone();
        Catalogs { rewards, algorithms, engines, trainers }
    }

    /// Adds a reward, which `reward.routes` can name. Its options are the keys of `[reward.options.NAME]`.
    #[must_use]
    pub fn reward<O: DeserializeOwned, R: Reward>(
        mut self,
        name: &str,
        make: impl Fn(O) -> Result<R, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        self.rewards = self.rewards.with(name, make);
        self
    }

    /// Adds a reward for groups, which `reward.routes` can name. Its options are the keys of `[reward.options.NAME]`.
    #[must_use]
    pub fn group_reward<O: DeserializeOwned, R: GroupReward>(
        mut self,
        name: &str,
        make: impl Fn(O) -> Result<R, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        self.rewards = self.rewards.with_group(name, make);
        self
    }

    /// Adds a schedule, which `schedule.name` can name. Its options are the other keys of `[schedule]`; see [`Schedules::with`].
    #[must_use]
    pub fn schedule<O: DeserializeOwned, S: Schedule + 'static>(
        mut self,
        name: &str,
        make: impl Fn(O) -> Result<S, ScheduleError> + Send + Sync + 'static,
    ) -> Self {
        self.schedules = self.schedules.with(name, make);
        self
    }

    /// Adds a placement, which `placement.kind` of a recipe and `pipeline.placement` of a simulated job can name. Its options are the keys
    /// of `[placement.options]` or of `[pipeline.placement_options]`, and `start` also receives the [context](PlacementContext) of the run;
    /// see [`Placements::with`].
    #[must_use]
    pub fn placement<O, P>(
        mut self,
        name: &str,
        start: impl Fn(O, PlacementContext) -> Result<P, CatalogError> + Send + Sync + 'static,
    ) -> Self
    where
        O: DeserializeOwned + Clone + Send + Sync + 'static,
        P: PlacementPolicy + 'static,
    {
        self.placements = self.placements.with(name, start);
        self
    }

    /// Adds a rollout engine, which `rollout.engine` can name. Its options are the keys of `[rollout.engine_options]`, and `start` also
    /// receives the [inputs](EngineContext) that the run provides; see [`Engines::with`]. Only the command `train` uses an engine; a
    /// simulated job cannot name one.
    #[cfg(feature = "torch")]
    #[must_use]
    pub fn engine<O, E>(
        mut self,
        name: &str,
        start: impl Fn(O, EngineContext) -> Result<E, CatalogError> + Send + Sync + 'static,
    ) -> Self
    where
        O: DeserializeOwned + Clone + Send + Sync + 'static,
        E: RolloutEngine + 'static,
    {
        self.engines = self.engines.with(name, start);
        self
    }

    /// Adds a trainer, which `actor.strategy` can name. Its options are the keys of `[actor.strategy_options]`, and `start` also receives
    /// the [inputs](TrainerContext) that the run provides; see [`Trainers::with`]. Only the command `train` uses a trainer; a simulated job
    /// cannot name one.
    #[cfg(feature = "torch")]
    #[must_use]
    pub fn trainer<O, T>(
        mut self,
        name: &str,
        start: impl Fn(O, TrainerContext) -> Result<T, CatalogError> + Send + Sync + 'static,
    ) -> Self
    where
        O: DeserializeOwned + Clone + Send + Sync + 'static,
        T: Trainer + 'static,
    {
        self.trainers = self.trainers.with(name, start);
        self
    }

    /// Adds an advantage estimator, which `algorithm.adv_estimator` can name. Its options are the keys of `[algorithm.adv_options]`.
    #[cfg(feature = "torch")]
    #[must_use]
    pub fn advantage<O: DeserializeOwned, E: Into<Estimator>>(
        mut self,
        name: &str,
        make: impl Fn(O) -> Result<E, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        let make = move |options| make(options).map(Into::into);
        self.algorithms.advantages = self.algorithms.advantages.with(name, make);
        self
    }

    /// Adds a policy loss, which `actor.policy_loss.loss_mode` can name. Its options are the other keys of `[actor.policy_loss]`.
    #[cfg(feature = "torch")]
    #[must_use]
    pub fn policy_loss<O: DeserializeOwned, L: PolicyLoss + 'static>(
        mut self,
        name: &str,
        make: impl Fn(O) -> Result<L, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        let make = move |options| Ok(std::sync::Arc::new(make(options)?) as _);
        self.algorithms.policy_losses = self.algorithms.policy_losses.with(name, make);
        self
    }

    /// Adds an estimator of a KL divergence, which `actor.kl_loss_type` and `algorithm.kl_penalty` can name. A recipe cannot set its
    /// options.
    #[cfg(feature = "torch")]
    #[must_use]
    pub fn kl_estimator<O: DeserializeOwned, K: KlEstimator + 'static>(
        mut self,
        name: &str,
        make: impl Fn(O) -> Result<K, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        let make = move |options| Ok(std::sync::Arc::new(make(options)?) as _);
        self.algorithms.kl_estimators = self.algorithms.kl_estimators.with(name, make);
        self
    }

    /// Returns the recipe keys that select entries, each with the names of the entries that the key can select. `algorithm.kl_penalty` is
    /// not listed; it can select the same entries as `actor.kl_loss_type`.
    pub(crate) fn names(&self) -> Vec<(&'static str, Vec<&str>)> {
        let names = [
            ("schedule.name", self.schedules.names().collect::<Vec<_>>()),
            ("placement.kind", self.placements.names().collect()),
            ("reward.routes", self.rewards.names().collect()),
        ];
        names.into_iter().chain(self.torch_names()).collect()
    }

    /// Returns the keys and names of the entries that need libtorch.
    #[cfg(feature = "torch")]
    fn torch_names(&self) -> [(&'static str, Vec<&str>); 5] {
        [
            ("rollout.engine", self.engines.names().collect()),
            ("actor.strategy", self.trainers.names().collect()),
            ("algorithm.adv_estimator", self.algorithms.advantages.names().collect()),
            ("actor.policy_loss.loss_mode", self.algorithms.policy_losses.names().collect()),
            ("actor.kl_loss_type", self.algorithms.kl_estimators.names().collect()),
        ]
    }

    #[cfg(not(feature = "torch"))]
    fn torch_names(&self) -> [(&'static str, Vec<&str>); 0] {
        []
    }

    /// Runs the command that the command line names, prints errors on standard error, and returns the exit status. Help and wrong usage may
    /// end the process instead.
    ///
    /// A panic on any thread ends the process; see [`stop_on_panic`](crate::stop_on_panic).
    #[must_use]
    pub fn main(self) -> ExitCode {
        crate::stop_on_panic();
        cli::run(&self)
    }
}

/// Returns the built-in rewards. When the reward `code` starts, it prints on standard error how its sandbox is isolated.
fn builtin_rewards() -> Registry {
    let rewards = Registry::builtin();
    #[cfg(feature = "code")]
    let rewards = rewards.with_docs("code", Code::ABOUT, Code::option_docs(), |config| {
        let code = Code::start(config).map_err(CatalogError::start)?;
        let isolation = format!("sandbox of the reward `code`\n{}", code.isolation());
        crate::terminal::warn(isolation.trim_end());
        Ok(code)
    });
    rewards
}
