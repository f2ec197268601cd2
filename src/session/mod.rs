//! A training run from a recipe: opens the inputs that the recipe names, and runs the pipeline with the torch stages.

mod engine;
mod placement;
mod shared_inputs;
mod validator;

pub(crate) use self::engine::{check_context, engine_config};
pub use self::shared_inputs::SharedInputs;
pub use self::validator::ValidationPrompts;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, anyhow, ensure};
use rollpacker_dataflow::bridge::Executor;
use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::cluster::WorkerHandle;
use rollpacker_dataflow::snapshot::RestoredSnapshot;
use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_datasets::{Cursor, FirstRow};
use rollpacker_operators::advantage::Estimator;
use rollpacker_operators::curriculum::{Curriculum, CurriculumStage, SkippedPrompts};
use rollpacker_operators::placement::drift;
use rollpacker_operators::report::Observer;
use rollpacker_operators::reward::AdaptiveLimits;
use rollpacker_operators::schedule::Schedule;
use rollpacker_operators::schedule::operator::Stop;
use rollpacker_operators::schedule::snapshot::{LastPrompt, last_prompt};
use rollpacker_operators::trainer::TrainerThread;
use rollpacker_operators::validate::ValidatorThread;
use rollpacker_rewards::Registry;
use rollpacker_stages::catalog::CatalogError;
use rollpacker_stages::reward::Reward;
use rollpacker_stages::rollout::{Policy, RolloutEngine};
use rollpacker_stages::train::{Metrics, Trainer};
use rollpacker_torch::model::WeightStore;
use rollpacker_torch::rollout::guests::Guests;
use rollpacker_torch::rollout::live::Live;
use rollpacker_torch::train::loss::{KlEstimator, PolicyLoss};
use serde::Serialize;

use self::placement::LivePlacement;
use self::shared_inputs::{WorkerResources, device_of, versions};
use crate::algorithms::Algorithms;
use crate::engine_observer::EngineObserver;
use crate::engines::{ChosenEngine, EngineContext, Engines, StartedEngine};
use crate::lifetime::{EndReason, WallTime};
use crate::pipeline::{Pipeline, PromptSource, RunStart, RunTime};
use crate::profile_monitor::ProfileMonitor;
use crate::prompts::OverlongPrompts;
use crate::recipe::schedule::ScheduleSection;
use crate::recipe::{RawRecipe, Recipe, RecipeError};
use crate::snapshots::RunSnapshots;
use crate::trainers::{TrainerContext, TrainerStarter};
use crate::validation::validate;

/// Number of rounds that the prompt reader may be ahead of the schedule.
const ROUNDS_AHEAD: usize = 4;

/// The results of a run that its observer does not receive.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunResult {
    /// The metrics of the validation before the first step, if there was one.
    pub warm_start: Option<Metrics>,
    /// The metrics of the validation after the last step, if there was one.
    pub last: Option<Metrics>,
    /// The prompts validated on.
    pub validated: ValidationPrompts,
    /// The number of prompts left out because of their length.
    pub left_out: u64,
    /// The number of prompts that the curriculum skipped, if there is one.
    pub skipped: Option<SkippedCounts>,
    /// The reason why the run ended.
    pub ended: EndReason,
}

/// The numbers of prompts that a curriculum skipped, counted once per epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedCounts {
    /// The number of prompts skipped as too easy.
    pub too_easy: u64,
    /// The number of prompts skipped as too hard.
    pub too_hard: u64,
}

impl From<&SkippedPrompts> for SkippedCounts {
    fn from(skipped: &SkippedPrompts) -> Self {
        Self { too_easy: skipped.too_easy(), too_hard: skipped.too_hard() }
    }
}

/// The catalogs from which a session takes what its recipe names.
///
/// The default has the built-in entries.
#[derive(Clone)]
pub struct Catalogs {
    /// The rewards.
    pub rewards: Registry,
    /// The advantage estimators, policy losses and KL estimators.
    pub algorithms: Algorithms,
    /// The rollout engines.
    pub engines: Engines,
}

impl Default for Catalogs {
    fn default() -> Self {
        let (algorithms, engines) = (Algorithms::default(), Engines::default());
        Self { rewards: Registry::builtin(), algorithms, engines }
    }
}

/// A run, or one worker of it, that is ready to start.
pub struct Session {
    opened: SharedInputs,
    left_out: OverlongPrompts,
    skipped: SkippedPrompts,
    monitor: Option<Rc<RefCell<ProfileMonitor>>>,
}

impl SharedInputs {
    /// Creates the session of one worker.
    ///
    /// Judges that share an engine use the one of the first worker of the process. Only the first worker of the cluster monitors the
    /// profile. If the machine has several devices, the workers of a process use them in turn.
    ///
    /// # Errors
    /// If the recipe's profile cannot be read.
    pub fn session(&self, handle: &WorkerHandle) -> anyhow::Result<Session> {
        let is_host = handle.local_index() == 0;
        let stages = WorkerResources {
            clock: Arc::new(handle.clock()),
            store: WeightStore::new(versions(&self.recipe)),
            ..self.stages.clone()
        };
        let device = device_of(&self.recipe.raw.trainer.device, self.device, handle.local_index());
        let guests = if is_host { self.guests.clone() } else { Guests::default() };
        let worker = handle.index();
        Session::of(Self { stages, device, guests, worker, ..self.clone() }, worker == 0)
    }
}

impl Session {
    /// Opens the datasets, the model folder, the tokenizer, the rewards and the device.
    ///
    /// # Errors
    /// If any of them cannot be used. The message names the file and the field.
    pub fn open(recipe: Recipe) -> anyhow::Result<Self> {
        Self::open_with(recipe, &Registry::builtin())
    }

    /// Opens a session like [`Session::open`], with the rewards of `registry`.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn open_with(recipe: Recipe, registry: &Registry) -> anyhow::Result<Self> {
        let catalogs = Catalogs { rewards: registry.clone(), ..Catalogs::default() };
        Self::open_with_catalogs(recipe, &catalogs)
    }

    /// Opens a session like [`Session::open`], with the entries of `catalogs`.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn open_with_catalogs(recipe: Recipe, catalogs: &Catalogs) -> anyhow::Result<Self> {
        Self::of(SharedInputs::open(recipe, catalogs)?, true)
    }

    /// Creates a session from opened inputs. Only the first worker monitors the profile, if there is one.
    fn of(opened: SharedInputs, leads: bool) -> anyhow::Result<Self> {
        Ok(Self {
            monitor: if leads { monitor(&opened.recipe)? } else { None },
            left_out: OverlongPrompts::default(),
            skipped: SkippedPrompts::default(),
            opened,
        })
    }

    /// Scores responses to prompts of `data_source` with `reward`, which has precedence over the recipe's. A trailing `*` in `data_source`
    /// matches any suffix.
    #[must_use]
    pub fn with_reward(mut self, data_source: &str, reward: impl Reward) -> Self {
        self.opened.stages.router = self.opened.stages.router.route(data_source, reward);
        self.opened.rewards_checked = Arc::default();
        self
    }

    /// Estimates advantages with `estimator` instead of the recipe's.
    #[must_use]
    pub fn with_advantage(mut self, estimator: impl Into<Estimator>) -> Self {
        self.opened.advantage = estimator.into();
        self
    }

    /// Optimizes `loss` instead of the recipe's policy loss.
    #[must_use]
    pub fn with_policy_loss(mut self, loss: impl PolicyLoss + 'static) -> Self {
        self.opened.objective.policy_loss = Arc::new(loss);
        self
    }

    /// Estimates the KL divergence in the loss with `estimator` instead of the recipe's.
    #[must_use]
    pub fn with_kl_loss(mut self, estimator: impl KlEstimator + 'static) -> Self {
        self.opened.objective.kl_loss = Arc::new(estimator);
        self
    }

    /// Decides with clones of `schedule` instead of the recipe's schedule.
    ///
    /// Prompts, responses and steps are those that `schedule` was constructed with. Responses are scored as they end and groups are trained
    /// on as they are complete, unless `[pipeline]` sets otherwise. The recorded recipe names the type of the schedule.
    ///
    /// # Errors
    /// If the schedule decides by scores, and `pipeline.reward` scores responses after the round.
    pub fn with_schedule<S: Schedule + Clone + Send + Sync + 'static>(
        mut self,
        schedule: S,
    ) -> Result<Self, RecipeError> {
        let raw =
            RawRecipe { schedule: ScheduleSection::of(schedule), ..self.opened.recipe.raw.clone() };
        let Recipe { raw, trainer, .. } = raw.resolve()?;
        // A schedule that pauses responses trains on tokens of older policies.
        self.opened.recipe.trainer.old_logprobs = trainer.old_logprobs;
        self.opened.recipe.raw = raw;
        Ok(self)
    }

    /// Generates responses with the engines that `start` returns, instead of the recipe's.
    ///
    /// `start` runs on the thread that drives the engine: once for the training engine of each worker, and twice for the engines of the
    /// validator if the recipe has validation data.
    ///
    /// Keys that only the torch engine supports are refused when the run starts: `rollout.replay_lengths`, `rollout.profile`, and
    /// `trainer.deterministic` if the engine does not support lockstep.
    #[must_use]
    pub fn with_engine<E: RolloutEngine + 'static>(
        mut self,
        start: impl Fn(EngineContext) -> Result<E, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        self.opened.engine = ChosenEngine::own(start);
        self
    }

    /// Trains with the trainers that `start` returns, one for each worker, instead of the torch trainer. `start` runs on the thread of the
    /// trainer.
    #[must_use]
    pub fn with_trainer<T: Trainer + 'static>(
        mut self,
        start: impl Fn(TrainerContext) -> Result<T, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        self.opened.trainer = TrainerStarter::own(start);
        self
    }

    /// Takes snapshots, and resumes from one, as configured in `snapshots`.
    #[must_use]
    pub fn with_snapshots(self, snapshots: RunSnapshots) -> Self {
        Self { opened: self.opened.with_snapshots(snapshots), ..self }
    }

    /// Returns a digest of the prompts and their order.
    ///
    /// # Errors
    /// If the dataset cannot be read.
    pub fn data_fingerprint(&self) -> anyhow::Result<u64> {
        let cursor = self.opened.train_data.prompts(Cursor::default())?.cursor();
        cursor.fingerprint.context("the dataset has no fingerprint")
    }

    /// Checks that every data source has a reward. Reads only the data source column of Parquet files, and all of JSONL files.
    ///
    /// # Errors
    /// If a data source has no reward, or a file cannot be read. The message names the file and the row.
    pub fn check_rewards(&self) -> anyhow::Result<()> {
        if self.opened.rewards_checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        for dataset in std::iter::once(&self.opened.train_data).chain(&self.opened.val_data) {
            for FirstRow { data_source, file, row } in dataset.data_sources()? {
                let place = || format!("{}, row {row}", file.display());
                self.opened.stages.router.check(&data_source).with_context(place)?;
            }
        }
        self.opened.rewards_checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the number of prompts of an epoch.
    #[must_use]
    pub fn prompts(&self) -> u64 {
        self.opened.train_data.len()
    }

    /// Returns the clock of the run.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.opened.stages.clock.clone()
    }

    /// Returns the inputs that the workers of this process share.
    #[must_use]
    pub fn opened(&self) -> SharedInputs {
        self.opened.clone().with_snapshots(RunSnapshots::default())
    }

    /// Trains to the end of the recipe or until a requested stop, and writes the model to `folder`.
    ///
    /// First checks the [rewards](Self::check_rewards). Reports each step to `observer`, and the metrics of the validation before the first
    /// step to `validated`.
    ///
    /// # Errors
    /// The first fault of any stage. The message names the operator, the step and the response.
    pub fn train(
        self,
        stop: &Stop,
        folder: &Path,
        observer: impl Observer + 'static,
        validated: impl FnOnce(&Metrics),
    ) -> anyhow::Result<RunResult> {
        self.train_worker(None, stop, folder, observer, validated)
    }

    /// Trains like [`Session::train`], as one worker of several if `handle` is given.
    ///
    /// Each worker has its own engine instances and a replica of the trainer. The first worker reads the prompts, decides, validates,
    /// reports to its observer and writes the model. The observers of the other workers receive no steps.
    ///
    /// The order of the steps matters. A resumed run takes its initial policies from the snapshot. A new run publishes the initial weights
    /// and, if asked to, validates them before the training engine starts. After the pipeline only the first worker goes on: it writes the
    /// profile, validates the last policy and writes the model. A run that ended early skips this validation, because it will be resumed
    /// and the process may have little time left.
    ///
    /// # Errors
    /// As [`Session::train`], for any worker.
    pub fn train_worker(
        self,
        handle: Option<WorkerHandle>,
        stop: &Stop,
        folder: &Path,
        observer: impl Observer + 'static,
        validated: impl FnOnce(&Metrics),
    ) -> anyhow::Result<RunResult> {
        self.opened.check_engine()?;
        self.check_rewards()?;
        let leads = handle.as_ref().is_none_or(|handle| handle.index() == 0);
        if leads {
            self.limit(stop)?;
        }
        let resumed = self.resumed()?;
        let trainer = Rc::new(self.opened.start_trainer()?);
        let (validator, validated_on) = self.opened.validator(leads)?.unzip();
        let mut finished =
            RunResult { validated: validated_on.unwrap_or_default(), ..RunResult::default() };
        let begin = match &resumed {
            Some(resumed) => RunStart::Resumed(resumed.clone()),
            None => {
                let initial = trainer
                    .publish_initial()
                    .map_err(|reason| anyhow!("publishing the initial weights: {reason}"))?;
                let tried = validator.as_ref().filter(|_| leads);
                finished.warm_start = self.warm_start(tried, &initial)?;
                if let Some(metrics) = &finished.warm_start {
                    validated(metrics);
                }
                RunStart::Initial(initial)
            }
        };
        let StartedEngine { engine, measurements } =
            self.opened.engine.start(self.opened.training_engine()?)?;
        let workers = handle.as_ref().map_or(1, WorkerHandle::peers);
        let placement = placement::policy(&self.opened.recipe, workers)?;
        let (live, guest_usage) = measurements.map(|all| (all.live, all.guests)).unzip();
        let observer = EngineObserver {
            observer,
            monitor: self.monitor.clone(),
            live: move || live.as_ref().map(Live::take).unwrap_or_default(),
            guest_usage: guest_usage.flatten(),
            placement: placement.as_ref().map(LivePlacement::log),
        };
        let every = if leads { self.opened.recipe.test_freq } else { 0 };
        let validator_of_steps = validator.clone().map(|validator| (every, validator));
        let pipeline =
            self.pipeline(engine, placement, &trainer, validator_of_steps, begin, stop)?;
        match handle {
            None => pipeline.run(observer)?,
            Some(handle) => pipeline.run_worker(handle, observer)?,
        }
        if !leads {
            return Ok(finished);
        }
        if let Some(monitor) = &self.monitor {
            monitor.borrow().finish()?;
        }
        finished.left_out = self.left_out.count();
        let curriculum = self.opened.recipe.raw.data.curriculum;
        finished.skipped = curriculum.map(|_| SkippedCounts::from(&self.skipped));
        let updates = trainer.policy().map_err(anyhow::Error::msg)?.version;
        finished.ended =
            EndReason::of(stop, updates.0, self.opened.recipe.raw.trainer.total_training_steps);
        ensure!(
            updates > PolicyVersion(0) || stop.is_requested(),
            "no prompt could be trained on: {} are longer than data.max_prompt_length, and the schedule has no quota for the others",
            finished.left_out
        );
        // A run that will be resumed is validated at its end. A process that was stopped early may have little time left.
        if let Some(validator) = validator.filter(|_| finished.ended == EndReason::Finished) {
            let policy = trainer
                .policy()
                .map_err(|reason| anyhow!("validating the last policy: {reason}"))?;
            finished.last = Some(validate(&validator, policy)?);
        }
        self.opened.save(&trainer, folder)?;
        Ok(finished)
    }

    /// Returns the snapshot to resume from, if there is one. Also restores the monitor of the profile.
    fn resumed(&self) -> anyhow::Result<Option<RestoredSnapshot>> {
        let Some(restored) = &self.opened.snapshots.restored else { return Ok(None) };
        if let Some(monitor) = &self.monitor {
            monitor.borrow_mut().resume(restored)?;
        }
        Ok(Some(restored.clone()))
    }

    /// Validates the initial policy, if the recipe requires it.
    fn warm_start(
        &self,
        validator: Option<&Rc<ValidatorThread>>,
        initial: &Policy,
    ) -> anyhow::Result<Option<Metrics>> {
        let validator = validator.filter(|_| self.opened.recipe.raw.trainer.val_before_train);
        validator.map(|validator| validate(validator, initial.clone())).transpose()
    }

    /// Makes `stop` end the run before its wall-time limit.
    fn limit(&self, stop: &Stop) -> anyhow::Result<()> {
        if let Some(limit) = self.opened.recipe.max_wall_time()? {
            let time =
                WallTime::new(self.clock(), limit, self.opened.recipe.raw.algorithm.staleness);
            stop.set_deadline_check(move |step| time.allows(step));
        }
        Ok(())
    }

    fn pipeline(
        &self,
        engine: Box<dyn RolloutEngine>,
        placement: Option<LivePlacement>,
        trainer: &Rc<TrainerThread>,
        validator: Option<(u64, Rc<ValidatorThread>)>,
        begin: RunStart,
        stop: &Stop,
    ) -> anyhow::Result<Pipeline> {
        let raw = &self.opened.recipe.raw;
        let last = match &begin {
            RunStart::Initial(_) => None,
            RunStart::Resumed(restored) => last_prompt(restored)?,
        };
        let stages = &self.opened.stages;
        let builder = Pipeline::builder(
            self.prompt_source(last),
            self.opened.recipe.schedule()?,
            engine,
            stages.router.clone(),
            trainer.clone(),
            raw.data.max_response_length,
        )
        .curriculum(self.curriculum()?)
        .prompts_ahead(ROUNDS_AHEAD * raw.data.train_batch_size)
        .limit(AdaptiveLimits::new(raw.reward.timeout, raw.trainer.seed)?)
        .scoring(self.opened.recipe.scoring()?)
        .advantage(self.opened.advantage.clone())
        .reward_kl(raw.reward_kl())
        .delivery(self.opened.recipe.gradient_mode()?)
        .validator(validator)
        .start(begin)
        .snapshots(self.opened.snapshots.plan.clone())
        .staleness(raw.algorithm.staleness)
        .deterministic(raw.trainer.deterministic)
        .rewards(Executor::Tokio(self.opened.rewards.handle().clone()))
        .time(RunTime::Wall(stages.clock.clone()))
        .stop(stop.clone())
        .watchdog(self.opened.watch.clone());
        let builder = match placement {
            Some(policy) => builder.placement(policy),
            None => builder,
        };
        Ok(builder.build()?)
    }

    fn curriculum(&self) -> anyhow::Result<Option<CurriculumStage>> {
        let raw = &self.opened.recipe.raw;
        let Some(options) = raw.data.curriculum else { return Ok(None) };
        let curriculum = Curriculum::new(options, raw.data_seed()).context("data.curriculum")?;
        Ok(Some(CurriculumStage { curriculum, skipped: self.skipped.clone() }))
    }

    fn prompt_source(&self, last: Option<LastPrompt>) -> PromptSource {
        let reader = self.opened.reader(self.opened.train_data.clone(), self.left_out.clone());
        let epochs = self.opened.recipe.raw.trainer.total_epochs;
        PromptSource::Thread(Box::new(move |emitter| {
            reader.emit(epochs, last, emitter).map_err(|error| error.to_string())
        }))
    }
}

fn monitor(recipe: &Recipe) -> anyhow::Result<Option<Rc<RefCell<ProfileMonitor>>>> {
    let Some(path) = recipe.raw.rollout.profile.clone() else { return Ok(None) };
    let monitor = ProfileMonitor::open(path, drift::DriftOptions::default())
        .context("key `rollout.profile`")?;
    Ok(Some(Rc::new(RefCell::new(monitor))))
}
