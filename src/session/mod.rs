//! A training run from a recipe: opens the inputs that the recipe names, and runs the pipeline with the engine, rewards and trainer of the
//! recipe or of the program.

mod catalogs;
mod engine;
mod placement;
mod run;
mod shared_inputs;
mod validator;

pub use self::catalogs::Catalogs;
#[cfg(feature = "cli")]
pub(crate) use self::engine::engine_config;
pub(crate) use self::placement::check_device;
pub use self::shared_inputs::SharedInputs;
#[cfg(feature = "cli")]
pub(crate) use self::shared_inputs::initial_model;
pub use crate::run_result::{RunResult, SkippedCounts, ValidationPrompts};

use self::shared_inputs::{WorkerResources, device_of, max_weight_versions};
use crate::code_list::code_list;
use crate::engines::{ChosenEngine, EngineContext};
use crate::placements::{PlacementContext, Placements};
use crate::profile_monitor::ProfileMonitor;
use crate::prompt_checks::MAX_NAMED_DOMAINS;
use crate::prompts::{OverlongPrompts, PromptError};
use crate::recipe::choice::KeyedChoice;
use crate::recipe::error::out_of_bounds;
use crate::recipe::schedule::ScheduleSection;
use crate::recipe::{Recipe, RecipeError};
use crate::snapshots::RunSnapshots;
use crate::trainers::{ChosenTrainer, TrainerContext};
use anyhow::Context;
use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::cluster::WorkerHandle;
use rollpacker_datasets::{Cursor, Dataset, FirstRow};
use rollpacker_operators::advantage::Estimator;
use rollpacker_operators::curriculum::SkippedPrompts;
use rollpacker_operators::placement::{PlacementPolicy, drift};
use rollpacker_operators::schedule::Schedule;
use rollpacker_rewards::Registry;
use rollpacker_stages::catalog::{CatalogError, NoOptions};
use rollpacker_stages::reward::Reward;
use rollpacker_stages::rollout::RolloutEngine;
use rollpacker_stages::rollout::lengths::Lengths;
use rollpacker_stages::train::Trainer;
use rollpacker_torch::model::WeightStore;
use rollpacker_torch::rollout::colocated::ColocatedModels;
use rollpacker_torch::train::loss::{KlEstimator, PolicyLoss};
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tch::Device;

/// A run, or one worker of a run, whose inputs are open.
pub struct Session {
    inputs: SharedInputs,
    overlong_prompts: OverlongPrompts,
    skipped: SkippedPrompts,
    monitor: Option<Rc<RefCell<ProfileMonitor>>>,
}

impl SharedInputs {
    /// Creates the session of one worker.
    ///
    /// Judges that share an engine use the engine of the first worker of the process. Only the first worker of the cluster monitors the
    /// profile. Unless `trainer.device` is `cuda:N`, the CUDA devices are assigned to the workers of a process round-robin.
    ///
    /// # Errors
    /// If the recipe's profile cannot be read, is not valid, or lacks decode times that a predictive planner compares.
    pub fn session(&self, handle: &WorkerHandle) -> anyhow::Result<Session> {
        let runs_judges = handle.local_index() == 0;
        let stages = WorkerResources {
            clock: Arc::new(handle.clock()),
            store: WeightStore::new(max_weight_versions(&self.recipe)),
            ..self.stages.clone()
        };
        let device = device_of(self.recipe.run.device, self.device, handle.local_index());
        let colocated =
            if runs_judges { self.colocated.clone() } else { ColocatedModels::default() };
        let worker = handle.index();
        Session::of(Self { stages, device, colocated, worker, ..self.clone() }, worker == 0)
    }
}

impl Session {
    /// Opens the datasets, the model folder, the tokenizer, the rewards and the device.
    ///
    /// # Errors
    /// If any of these inputs, the profile, or a name or an option in the recipe cannot be used, or the run needs more memory than is
    /// available. The message names the file or the key.
    pub fn open(recipe: Recipe) -> anyhow::Result<Self> {
        Self::open_with(recipe, &Registry::builtin())
    }

    /// Opens a session like [`Session::open`], with the rewards of `registry`.
    ///
    /// # Errors
    /// Returns the errors of [`Session::open`].
    pub fn open_with(recipe: Recipe, registry: &Registry) -> anyhow::Result<Self> {
        let catalogs = Catalogs { rewards: registry.clone(), ..Catalogs::default() };
        Self::open_with_catalogs(recipe, &catalogs)
    }

    /// Opens a session like [`Session::open`], with the entries of `catalogs`.
    ///
    /// # Errors
    /// Returns the errors of [`Session::open`].
    pub fn open_with_catalogs(recipe: Recipe, catalogs: &Catalogs) -> anyhow::Result<Self> {
        Self::of(SharedInputs::open(recipe, catalogs)?, true)
    }

    /// Creates a session from opened inputs. Only the first worker monitors the profile of the recipe.
    fn of(inputs: SharedInputs, is_leader: bool) -> anyhow::Result<Self> {
        Ok(Self {
            monitor: if is_leader { monitor(&inputs.recipe)? } else { None },
            overlong_prompts: OverlongPrompts::default(),
            skipped: SkippedPrompts::default(),
            inputs,
        })
    }

    /// Scores responses to prompts of `data_source` with `reward`. A trailing `*` in `data_source` matches any suffix. Replaces the
    /// recipe's rewards for the same pattern of data sources, including rewards that score whole groups. A more specific pattern of the
    /// recipe has precedence. The recipe's `reward.on_error` is the reaction to errors.
    #[must_use]
    pub fn with_reward(mut self, data_source: &str, reward: impl Reward) -> Self {
        let router = self.inputs.stages.router.without(data_source);
        let on_error = self.inputs.recipe.reward.on_error;
        self.inputs.stages.router =
            router.route(data_source, reward).on_error(data_source, on_error);
        self.inputs.data_checked = Arc::default();
        self
    }

    /// Estimates advantages with `estimator` instead of the recipe's estimator. The section `[critic]` only has an effect if `estimator`
    /// needs a critic.
    #[must_use]
    pub fn with_advantage<E: Into<Estimator>>(mut self, estimator: E) -> Self {
        self.inputs.advantage = estimator.into();
        // Checks by the name of an estimator do not apply to this one.
        self.inputs.recipe.choices.estimator =
            KeyedChoice::of("algorithm.adv_estimator", std::any::type_name::<E>());
        self
    }

    /// Optimizes `loss` instead of the recipe's policy loss.
    #[must_use]
    pub fn with_policy_loss(mut self, loss: impl PolicyLoss + 'static) -> Self {
        self.inputs.objective.policy_loss = Arc::new(loss);
        self
    }

    /// Estimates the KL divergence in the loss with `estimator` instead of the recipe's estimator.
    #[must_use]
    pub fn with_kl_loss(mut self, estimator: impl KlEstimator + 'static) -> Self {
        self.inputs.objective.kl_loss = Arc::new(estimator);
        self
    }

    /// Uses clones of `schedule` instead of the recipe's schedule.
    ///
    /// `schedule` keeps the numbers of prompts, responses and steps with which it was constructed. Responses are scored as they end and
    /// groups are trained on as they are complete, unless `[pipeline]` sets otherwise. The recorded recipe names the type of the schedule.
    ///
    /// # Errors
    /// If the schedule decides by scores, and `pipeline.reward` scores responses after the round.
    pub fn with_schedule<S: Schedule + Clone + Send + Sync + 'static>(
        mut self,
        schedule: S,
    ) -> Result<Self, RecipeError> {
        self.inputs.recipe.set_schedule(ScheduleSection::of(schedule))?;
        Ok(self)
    }

    /// Divides the engine instances between rollout and training with the policy that `make` returns, instead of the recipe's placement.
    /// The recorded recipe names the type of the policy.
    ///
    /// # Errors
    /// If `make` rejects the context, or the models are on a GPU, which all instances and the trainer share.
    pub fn with_placement<P: PlacementPolicy + 'static>(
        mut self,
        make: impl Fn(PlacementContext) -> Result<P, CatalogError> + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let kind = std::any::type_name::<P>().to_owned();
        let placements =
            Placements::default().with(&kind, move |_: NoOptions, context| make(context));
        self.inputs.recipe.set_placement(kind, placements)?;
        check_device(&self.inputs.recipe, self.inputs.device)?;
        Ok(self)
    }

    /// Generates responses with the engines that `start` returns, instead of the recipe's engine.
    ///
    /// `start` runs on the thread that drives the engine: once for the training engine of each worker, and twice for the engines of the
    /// validator if the recipe has validation data.
    ///
    /// Settings that only the torch engine supports are rejected when the run starts: `rollout.replay_lengths`, `rollout.profile`, a
    /// `placement.kind` other than `fixed`, colocated judges, and `trainer.deterministic` if the engine does not support lockstep.
    #[must_use]
    pub fn with_engine<E: RolloutEngine + 'static>(
        mut self,
        start: impl Fn(EngineContext) -> Result<E, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        self.inputs.engine = ChosenEngine::custom(start);
        self
    }

    /// Trains with the trainers that `start` returns, one for each worker, instead of the recipe's trainer. `start` runs on the thread of
    /// the trainer. A run with several workers or with snapshots ends with an error when it starts, if the trainer does not support them.
    #[must_use]
    pub fn with_trainer<T: Trainer + 'static>(
        mut self,
        start: impl Fn(TrainerContext) -> Result<T, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        self.inputs.trainer = ChosenTrainer::custom(start);
        self
    }

    /// Writes the sampled and the greedy responses of each validation into `folder`, as one Parquet file per policy: `step_NNNNN.parquet`,
    /// with the number of the step that produced the policy, and 0 for the policy before the first step. By default, the responses are not
    /// kept.
    #[must_use]
    pub fn with_validation_folder(self, folder: PathBuf) -> Self {
        Self { inputs: self.inputs.with_validation_folder(folder), ..self }
    }

    /// Takes snapshots, and resumes from one, as configured in `snapshots`.
    #[must_use]
    pub fn with_snapshots(self, snapshots: RunSnapshots) -> Self {
        Self { inputs: self.inputs.with_snapshots(snapshots), ..self }
    }

    /// Returns a digest of the names and the row counts of the training files, and of everything else that determines the order of the
    /// prompts. The folders of the files do not count. Reads no file.
    ///
    /// # Errors
    /// If the dataset has no fingerprint. Every open dataset has one.
    pub fn data_fingerprint(&self) -> anyhow::Result<u64> {
        let cursor = self.inputs.train_data.prompts(Cursor::default())?.cursor();
        cursor.fingerprint.context("the dataset has no fingerprint")
    }

    /// Checks that all rows can be used, that every data source has a reward, that no data source has a group reward if the schedule or the
    /// curriculum decides by the rewards of single responses, that every domain with a quota has rows, that at least one validation prompt
    /// is short enough, and that recorded lengths can be read. Reads all rows in use. Does nothing if a worker of this process has already
    /// completed the check.
    ///
    /// # Errors
    /// If one of these conditions does not hold, or a file cannot be read. The message names the file and the row, or the key.
    pub fn check_data(&self) -> anyhow::Result<()> {
        if self.inputs.data_checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let sources = self.check_rewards(&self.inputs.train_data)?;
        if let Some(dataset) = &self.inputs.val_data {
            self.check_rewards(dataset)?;
        }
        self.check_group_rewards(&sources)?;
        self.check_quotas()?;
        if let Some(dataset) = self.inputs.val_data.clone() {
            let reader = self.inputs.reader(dataset, OverlongPrompts::default());
            let first = reader.first_prompts(1).and_then(|mut prompts| prompts.next().transpose());
            first.context("validation prompts (data.val_files)")?;
        }
        if let Some(lengths) = &self.inputs.recipe.rollout.replay_lengths {
            Lengths::read(lengths).context("key `rollout.replay_lengths`")?;
        }
        self.inputs.data_checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Checks that all rows of a dataset can be used and that every data source has a reward. Returns the data sources.
    fn check_rewards(&self, dataset: &Dataset) -> anyhow::Result<Vec<FirstRow>> {
        let sources = dataset.data_sources()?;
        for FirstRow { data_source, file, row } in &sources {
            let wrong =
                |error| PromptError::Reward { file: file.display().to_string(), row: *row, error };
            self.inputs.stages.router.check(data_source).map_err(wrong)?;
        }
        Ok(sources)
    }

    /// Rejects quotas of domains that no training prompt has. The schedule would read all prompts in search of one.
    fn check_quotas(&self) -> anyhow::Result<()> {
        let mut quotas = self.inputs.recipe.quota_domains().peekable();
        if quotas.peek().is_none() {
            return Ok(());
        }
        let domains = self.inputs.domains()?;
        match quotas.find(|domain| !domains.contains_key(*domain)) {
            Some(unknown) => {
                let names = code_list(domains.keys().take(MAX_NAMED_DOMAINS));
                let expected =
                    format!("a domain of the prompts in data.train_files, such as {names}");
                Err(out_of_bounds("schedule.quotas", expected, format!("`{unknown}`")).into())
            }
            None => Ok(()),
        }
    }

    /// Rejects group rewards of `sources`, the data sources of training prompts, if the schedule or the curriculum decides by the rewards of single responses.
    fn check_group_rewards(&self, sources: &[FirstRow]) -> anyhow::Result<()> {
        let recipe = &self.inputs.recipe;
        let (key, expected, found) = if recipe.schedule()?.wants_scores() {
            ("schedule.name", "a schedule that does not decide by rewards", recipe.schedule_name())
        } else if recipe.data.curriculum.is_some() {
            ("data.curriculum", "no curriculum, which decides by rewards", "one")
        } else {
            return Ok(());
        };
        for FirstRow { data_source, .. } in sources {
            if let Some(reward) = self.inputs.stages.router.group_reward_of(data_source)? {
                let why = format!(
                    "{expected}, because the group reward `{reward}` (reward.routes) scores data source `{data_source}` only once a group is complete"
                );
                return Err(out_of_bounds(key, why, found).into());
            }
        }
        Ok(())
    }

    /// Returns warnings about mistakes in the recipe or in the prompts that training would not report: unknown tokens, chat markup in
    /// prompts, prompts that end with an answer, validation prompts in the training set, groups of one response, domains without a quota,
    /// and a frequency of validations without validation data. Each is one line.
    ///
    /// # Errors
    /// If a dataset cannot be read, one of the first prompts cannot be used, or every training prompt is too long. For a prompt, the
    /// message names the file and the row.
    pub fn warnings(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.inputs.warnings()?)
    }

    /// Returns the number of prompts of an epoch, including prompts that are too long.
    #[must_use]
    pub fn prompts(&self) -> u64 {
        self.inputs.train_data.len()
    }

    /// Returns the number of validation prompts, including prompts that are too long. `None` without validation data.
    #[must_use]
    pub fn validation_prompts(&self) -> Option<u64> {
        self.inputs.val_data.as_ref().map(Dataset::len)
    }

    /// Returns `true` if the torch engine generates the responses.
    #[cfg(feature = "cli")]
    pub(crate) fn has_torch_engine(&self) -> bool {
        self.inputs.engine.is_torch()
    }

    /// Returns `true` if the run trains a critic.
    #[cfg(feature = "cli")]
    pub(crate) fn has_critic(&self) -> bool {
        self.inputs.advantage.needs_values()
    }

    /// Returns the device of the model: `cpu` or `cuda:N`.
    #[must_use]
    pub fn device(&self) -> String {
        match self.inputs.device {
            Device::Cuda(index) => format!("cuda:{index}"),
            device => format!("{device:?}").to_lowercase(),
        }
    }

    /// Returns the clock of the run.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.inputs.stages.clock.clone()
    }

    /// Returns the inputs that the workers of this process share, without snapshots.
    #[must_use]
    pub fn shared_inputs(&self) -> SharedInputs {
        self.inputs.clone().with_snapshots(RunSnapshots::default())
    }
}

fn monitor(recipe: &Recipe) -> anyhow::Result<Option<Rc<RefCell<ProfileMonitor>>>> {
    let Some(path) = recipe.rollout.profile.clone() else { return Ok(None) };
    let monitor = ProfileMonitor::open(path, drift::DriftOptions::default())
        .context("key `rollout.profile`")?;
    placement::check_profile(recipe, monitor.profile()).context("key `rollout.profile`")?;
    Ok(Some(Rc::new(RefCell::new(monitor))))
}
