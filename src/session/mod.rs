//! A training run from a recipe: opens what the recipe names, and runs the pipeline over the torch stages.

mod engine;
mod opened;
mod validator;

pub(crate) use self::engine::{check_context, engine_config};
pub use self::opened::Opened;
pub use self::validator::Validated;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, anyhow, ensure};
use rollpacker_dataflow::bridge::Executor;
use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::cluster::Seat;
use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_datasets::{Cursor, FirstRow};
use rollpacker_operators::advantage::Estimator;
use rollpacker_operators::placement::drift;
use rollpacker_operators::report::Observer;
use rollpacker_operators::resume::{LastPrompt, Resumed};
use rollpacker_operators::reward::Timeouts;
use rollpacker_operators::schedule::operator::Stop;
use rollpacker_operators::trainer::TrainerThread;
use rollpacker_operators::validate::ValidatorThread;
use rollpacker_stages::reward::{Registry, Reward};
use rollpacker_stages::rollout::Policy;
use rollpacker_stages::rollout::torch::TorchEngine;
use rollpacker_stages::train::Metrics;
use rollpacker_stages::train::loss::{KlEstimator, PolicyLoss};

use self::engine::sampling;
use crate::algorithms::Algorithms;
use crate::drift::{Monitor, Monitored};
use crate::hosted::Hosted;
use crate::lifetime::{Ended, WallTime};
use crate::pipeline::{Begin, Pipeline, PromptSource, Time};
use crate::prompts::LeftOut;
use crate::recipe::Recipe;
use crate::snapshots::RunSnapshots;
use crate::validation::validate;

/// Rounds that the prompt reader may be ahead of the schedule.
const ROUNDS_AHEAD: usize = 4;

/// What a run did, beyond what its observer was told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finished {
    /// Validation before the first step, if there was one.
    pub warm_start: Option<Metrics>,
    /// Validation after the last step, if there was one.
    pub last: Option<Metrics>,
    /// What was validated on.
    pub validated: Validated,
    /// Prompts left out for their length.
    pub left_out: u64,
    /// Why it ended.
    pub ended: Ended,
}

/// A run, or one worker of it, before anything flows.
pub struct Session {
    opened: Opened,
    left_out: LeftOut,
    monitor: Option<Rc<RefCell<Monitor>>>,
}

impl Session {
    /// Opens datasets, model folder, tokenizer, rewards and device.
    ///
    /// # Errors
    /// If any of it cannot be used; the message names file and field.
    pub fn open(recipe: Recipe) -> anyhow::Result<Self> {
        Self::open_with(recipe, &Registry::builtin())
    }

    /// The same, with the rewards of `registry` for the names that the recipe routes to.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn open_with(recipe: Recipe, registry: &Registry) -> anyhow::Result<Self> {
        Self::open_from(recipe, registry, &Algorithms::default())
    }

    /// The same, with the estimators and losses of `algorithms` for the names of the recipe.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn open_from(
        recipe: Recipe,
        registry: &Registry,
        algorithms: &Algorithms,
    ) -> anyhow::Result<Self> {
        Self::of(Opened::open(recipe, registry, algorithms)?, true)
    }

    /// Of what is open; the first worker keeps the profile, if there is one.
    fn of(opened: Opened, leads: bool) -> anyhow::Result<Self> {
        Ok(Self {
            monitor: if leads { monitor(&opened.recipe)? } else { None },
            left_out: LeftOut::default(),
            opened,
        })
    }

    /// Scores responses to prompts of `data_source`, a source or a prefix that ends in `*`, with `reward`; goes before the recipe's.
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

    /// Optimises `loss` instead of the recipe's policy loss.
    #[must_use]
    pub fn with_policy_loss(mut self, loss: impl PolicyLoss + 'static) -> Self {
        self.opened.objective.policy_loss = Arc::new(loss);
        self
    }

    /// Estimates the KL divergence of the loss with `estimator` instead of the recipe's.
    #[must_use]
    pub fn with_kl_loss(mut self, estimator: impl KlEstimator + 'static) -> Self {
        self.opened.objective.kl_loss = Arc::new(estimator);
        self
    }

    /// Takes snapshots, and goes on from one.
    #[must_use]
    pub fn with_snapshots(self, snapshots: RunSnapshots) -> Self {
        Self { opened: self.opened.with_snapshots(snapshots), ..self }
    }

    /// A digest of the prompts and of the order in which they come.
    ///
    /// # Errors
    /// If the dataset cannot be read.
    pub fn data_fingerprint(&self) -> anyhow::Result<u64> {
        let cursor = self.opened.train_data.prompts(Cursor::default())?.cursor();
        cursor.fingerprint.context("the dataset has no fingerprint")
    }

    /// Refuses data sources that no reward scores. Of Parquet files it reads that one column, JSONL files it goes over.
    ///
    /// # Errors
    /// If there is one, or a file cannot be read; the message names file and row.
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

    /// Prompts of an epoch.
    #[must_use]
    pub fn prompts(&self) -> u64 {
        self.opened.train_data.len()
    }

    /// The clock of the run.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.opened.stages.clock.clone()
    }

    /// What several workers of this process share with it.
    #[must_use]
    pub fn opened(&self) -> Opened {
        self.opened.clone().with_snapshots(RunSnapshots::default())
    }

    /// Trains, once the [rewards are checked](Self::check_rewards), to the recipe's end or a requested stop, tells `observer` of each step
    /// and `validated` of the first validation, and writes the model to `folder`.
    ///
    /// # Errors
    /// The first fault of any stage; the message names operator, step and response.
    pub fn train(
        self,
        stop: &Stop,
        folder: &Path,
        observer: impl Observer + 'static,
        validated: impl FnOnce(&Metrics),
    ) -> anyhow::Result<Finished> {
        self.train_at(None, stop, folder, observer, validated)
    }

    /// The same as one worker of several, with engine instances and a replica of the trainer of its own. The first one reads prompts,
    /// decides, validates, tells and writes; of the others nothing is told.
    ///
    /// # Errors
    /// As [`Session::train`]; of any worker.
    pub fn train_at(
        self,
        seat: Option<Seat>,
        stop: &Stop,
        folder: &Path,
        observer: impl Observer + 'static,
        validated: impl FnOnce(&Metrics),
    ) -> anyhow::Result<Finished> {
        self.check_rewards()?;
        let leads = seat.as_ref().is_none_or(|seat| seat.index() == 0);
        if leads {
            self.limit(stop)?;
        }
        let resumed = self.resumed()?;
        let trainer = Rc::new(self.opened.trainer()?);
        let (validator, validated_on) = self.opened.validator(leads)?.unzip();
        let mut finished =
            Finished { validated: validated_on.unwrap_or_default(), ..Finished::default() };
        let begin = match &resumed {
            Some(resumed) => Begin::Resumed(resumed.clone()),
            None => {
                let initial = trainer
                    .publish_initial()
                    .map_err(|reason| anyhow!("publishing the initial weights: {reason}"))?;
                let tried = validator.as_ref().filter(|_| leads);
                finished.warm_start = self.warm_start(tried, &initial)?;
                if let Some(metrics) = &finished.warm_start {
                    validated(metrics);
                }
                Begin::Anew(initial)
            }
        };
        let mut engine =
            self.opened.engine_options(sampling(&self.opened.recipe), true)?.start()?;
        engine.host(&self.opened.guests);
        let live = engine.live();
        let observer =
            Monitored { observer, monitor: self.monitor.clone(), live: move || live.take() };
        let hosting = (!self.opened.guests.is_empty()).then(|| engine.hosting());
        let observer = Hosted { observer, hosting };
        let every = if leads { self.opened.recipe.test_freq } else { 0 };
        let validator_of_steps = validator.clone().map(|validator| (every, validator));
        let pipeline = self.pipeline(engine, &trainer, validator_of_steps, begin, stop)?;
        match seat {
            None => pipeline.run(observer)?,
            Some(seat) => pipeline.run_at(seat, observer)?,
        }
        if !leads {
            return Ok(finished);
        }
        if let Some(monitor) = &self.monitor {
            monitor.borrow().finish()?;
        }
        finished.left_out = self.left_out.count();
        let updates = trainer.policy().map_err(anyhow::Error::msg)?.version;
        finished.ended =
            Ended::by(stop, updates.0, self.opened.recipe.raw.trainer.total_training_steps);
        ensure!(
            updates > PolicyVersion(0) || stop.is_requested(),
            "no prompt could be trained on: {} are longer than data.max_prompt_length, the others have no quota",
            finished.left_out
        );
        // A run that is to be resumed is tried when it is done; whoever ended it early may not wait for long.
        if let Some(validator) = validator.filter(|_| finished.ended == Ended::Finished) {
            let policy = trainer
                .policy()
                .map_err(|reason| anyhow!("validating the last policy: {reason}"))?;
            finished.last = Some(validate(&validator, policy)?);
        }
        self.opened.save(&trainer, folder)?;
        Ok(finished)
    }

    /// What the run goes on from; the monitor takes its state up.
    fn resumed(&self) -> anyhow::Result<Option<Rc<Resumed>>> {
        let Some(restored) = &self.opened.snapshots.restored else { return Ok(None) };
        if let Some(monitor) = &self.monitor {
            monitor.borrow_mut().resume(restored)?;
        }
        Ok(Some(Rc::new(Resumed::read(restored)?)))
    }

    /// The validation before the first step, if there is to be one.
    fn warm_start(
        &self,
        validator: Option<&Rc<ValidatorThread>>,
        initial: &Policy,
    ) -> anyhow::Result<Option<Metrics>> {
        let validator = validator.filter(|_| self.opened.recipe.raw.trainer.val_before_train);
        validator.map(|validator| validate(validator, initial.clone())).transpose()
    }

    /// Has `stop` end the run in time.
    fn limit(&self, stop: &Stop) -> anyhow::Result<()> {
        if let Some(limit) = self.opened.recipe.max_wall_time()? {
            let time =
                WallTime::new(self.clock(), limit, self.opened.recipe.raw.algorithm.staleness);
            stop.unless(move |step| time.allows(step));
        }
        Ok(())
    }

    fn pipeline(
        &self,
        engine: TorchEngine,
        trainer: &Rc<TrainerThread>,
        validator: Option<(u64, Rc<ValidatorThread>)>,
        begin: Begin,
        stop: &Stop,
    ) -> anyhow::Result<Pipeline> {
        let raw = &self.opened.recipe.raw;
        let last = match &begin {
            Begin::Anew(_) => None,
            Begin::Resumed(resumed) => resumed.last_prompt(),
        };
        Ok(Pipeline {
            prompts: self.prompt_source(last),
            prompts_ahead: ROUNDS_AHEAD * raw.data.train_batch_size,
            schedule: Box::new(self.opened.recipe.schedule()?),
            engine: Box::new(engine),
            placement: None,
            max_response_length: raw.data.max_response_length,
            warmup_steps: 0,
            router: self.opened.stages.router.clone(),
            limit: Box::new(Timeouts::new(raw.reward.timeout, raw.trainer.seed)?),
            scoring: self.opened.recipe.scoring()?,
            advantage: self.opened.advantage.clone(),
            reward_kl: raw.reward_kl(),
            trainer: trainer.clone(),
            fetch: self.opened.recipe.fetch()?,
            validator,
            begin,
            snapshots: self.opened.snapshots.plan.clone(),
            staleness: raw.algorithm.staleness,
            deterministic: raw.trainer.deterministic,
            rewards: Executor::Tokio(self.opened.rewards.handle().clone()),
            time: Time::Wall(self.opened.stages.clock.clone()),
            stop: stop.clone(),
            watchdog: self.opened.watch.clone(),
        })
    }

    fn prompt_source(&self, last: Option<LastPrompt>) -> PromptSource {
        let reader = self.opened.reader(self.opened.train_data.clone(), self.left_out.clone());
        let epochs = self.opened.recipe.raw.trainer.total_epochs;
        PromptSource::Thread(Box::new(move |emitter| {
            reader.emit(epochs, last, emitter).map_err(|error| error.to_string())
        }))
    }
}

fn monitor(recipe: &Recipe) -> anyhow::Result<Option<Rc<RefCell<Monitor>>>> {
    let Some(path) = recipe.raw.rollout.profile.clone() else { return Ok(None) };
    let monitor =
        Monitor::open(path, drift::Options::default()).context("key `rollout.profile`")?;
    Ok(Some(Rc::new(RefCell::new(monitor))))
}
