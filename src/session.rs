//! A training run from a recipe: opens what the recipe names, and runs the pipeline over the torch stages.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, anyhow, ensure};
use rollpacker_dataflow::bridge::{Executor, OwnerThread};
use rollpacker_dataflow::clock::{Clock, WallClock};
use rollpacker_dataflow::cluster::Seat;
use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_dataflow::watchdog::{Pulse, Watch};
use rollpacker_datasets::{Cursor, Dataset, FirstRow};
use rollpacker_operators::advantage::Estimator;
use rollpacker_operators::placement::drift;
use rollpacker_operators::prompts::PromptRow;
use rollpacker_operators::report::Observer;
use rollpacker_operators::resume::{LastPrompt, Resumed};
use rollpacker_operators::reward::Timeouts;
use rollpacker_operators::schedule::operator::Stop;
use rollpacker_operators::trainer::TrainerThread;
use rollpacker_operators::validate::{Validator, ValidatorThread};
use rollpacker_stages::model::{
    ChatTemplate, Decoder, DeviceChoice, ModelConfig, PromptEncoder, Tokenizer, WeightStore,
};
use rollpacker_stages::reward::{Registry, Reward, Router};
use rollpacker_stages::rollout::Policy;
use rollpacker_stages::rollout::guests::Guests;
use rollpacker_stages::rollout::lengths::Lengths;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::rollout::torch::{TorchEngine, TorchEngineConfig};
use rollpacker_stages::train::config::TrainerConfig;
use rollpacker_stages::train::loss::{KlEstimator, PolicyLoss};
use rollpacker_stages::train::torch::TorchTrainer;
use rollpacker_stages::train::{Metrics, Objective, Trainer, ValueModel};
use tch::Device;

use crate::algorithms::Algorithms;
use crate::drift::{Monitor, Monitored};
use crate::hosted::Hosted;
use crate::lifetime::{Ended, WallTime};
use crate::pipeline::{Begin, Pipeline, PromptSource, Time};
use crate::prompts::{LeftOut, PromptReader};
use crate::recipe::Recipe;
use crate::rewards::rewards;
use crate::snapshots::RunSnapshots;
use crate::validation::{metrics, validate};

/// Rounds that the prompt reader may be ahead of the schedule.
const ROUNDS_AHEAD: usize = 4;

/// What a recipe names, opened and checked, before anything flows.
pub struct Session {
    recipe: Recipe,
    stages: Stages,
    device: Device,
    train_data: Dataset,
    val_data: Option<Dataset>,
    left_out: LeftOut,
    advantage: Estimator,
    objective: Objective,
    rewards: Arc<tokio::runtime::Runtime>,
    rewards_checked: Cell<bool>,
    /// Judges that share the instances of the engine that trains.
    guests: Guests,
    monitor: Option<Rc<RefCell<Monitor>>>,
    watch: Option<Watch>,
    snapshots: RunSnapshots,
}

/// What the threads of a run share.
#[derive(Clone)]
struct Stages {
    clock: Arc<dyn Clock>,
    encoder: Arc<PromptEncoder>,
    router: Router,
    store: WeightStore,
}

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

/// What policies are tried on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Validated {
    /// Prompts.
    pub prompts: usize,
    /// Prompts left out for their length.
    pub left_out: u64,
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
        let (advantage, objective) =
            (algorithms.estimator(&recipe)?, algorithms.objective(&recipe)?);
        let router = rewards(&recipe.raw.reward, registry)?;
        let device = recipe.raw.trainer.device.parse::<DeviceChoice>()?.resolve()?;
        let folder = &recipe.raw.model.path;
        ensure!(
            !folder.as_os_str().is_empty(),
            "key `model.path`: expected a folder in Hugging Face format"
        );
        check_context(&recipe, &ModelConfig::from_folder(folder)?)?;
        let encoder = PromptEncoder {
            tokenizer: Arc::new(Tokenizer::from_folder(folder)?),
            template: ChatTemplate::from_folder(folder)?,
        };
        let stages = Stages {
            clock: Arc::new(WallClock::start()),
            encoder: Arc::new(encoder),
            router,
            store: WeightStore::new(versions(&recipe)),
        };
        let rewards = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(recipe.raw.reward.num_workers)
            .thread_name("reward")
            .enable_all()
            .build()
            .context("cannot start the threads of the rewards")?;
        Ok(Self {
            train_data: Dataset::open(recipe.train_data.clone())?,
            val_data: recipe.val_data.clone().map(Dataset::open).transpose()?,
            left_out: LeftOut::default(),
            advantage,
            objective,
            monitor: monitor(&recipe)?,
            watch: recipe.watch()?,
            snapshots: RunSnapshots::default(),
            recipe,
            stages,
            device,
            rewards: Arc::new(rewards),
            rewards_checked: Cell::new(false),
            guests: registry.guests(),
        })
    }

    /// Scores responses to prompts of `data_source`, a source or a prefix that ends in `*`, with `reward`; goes before the recipe's.
    #[must_use]
    pub fn with_reward(mut self, data_source: &str, reward: impl Reward) -> Self {
        self.stages.router = self.stages.router.route(data_source, reward);
        self
    }

    /// Estimates advantages with `estimator` instead of the recipe's.
    #[must_use]
    pub fn with_advantage(self, estimator: impl Into<Estimator>) -> Self {
        Self { advantage: estimator.into(), ..self }
    }

    /// Optimises `loss` instead of the recipe's policy loss.
    #[must_use]
    pub fn with_policy_loss(self, loss: impl PolicyLoss + 'static) -> Self {
        let objective = Objective { policy_loss: Arc::new(loss), ..self.objective };
        Self { objective, ..self }
    }

    /// Estimates the KL divergence of the loss with `estimator` instead of the recipe's.
    #[must_use]
    pub fn with_kl_loss(self, estimator: impl KlEstimator + 'static) -> Self {
        let objective = Objective { kl_loss: Arc::new(estimator), ..self.objective };
        Self { objective, ..self }
    }

    /// Takes snapshots, and goes on from one.
    #[must_use]
    pub fn with_snapshots(self, snapshots: RunSnapshots) -> Self {
        Self { snapshots, ..self }
    }

    /// A digest of the prompts and of the order in which they come.
    ///
    /// # Errors
    /// If the dataset cannot be read.
    pub fn data_fingerprint(&self) -> anyhow::Result<u64> {
        let cursor = self.train_data.prompts(Cursor::default())?.cursor();
        cursor.fingerprint.context("the dataset has no fingerprint")
    }

    /// Refuses data sources that no reward scores. Of Parquet files it reads that one column, JSONL files it goes over.
    ///
    /// # Errors
    /// If there is one, or a file cannot be read; the message names file and row.
    pub fn check_rewards(&self) -> anyhow::Result<()> {
        if self.rewards_checked.get() {
            return Ok(());
        }
        for dataset in std::iter::once(&self.train_data).chain(&self.val_data) {
            for FirstRow { data_source, file, row } in dataset.data_sources()? {
                let place = || format!("{}, row {row}", file.display());
                self.stages.router.check(&data_source).with_context(place)?;
            }
        }
        self.rewards_checked.set(true);
        Ok(())
    }

    /// Prompts of an epoch.
    #[must_use]
    pub fn prompts(&self) -> u64 {
        self.train_data.len()
    }

    /// The clock of the run.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.stages.clock.clone()
    }

    /// What several workers of this process have in common with it.
    #[must_use]
    pub fn common(&self) -> Common {
        Common {
            recipe: self.recipe.clone(),
            stages: self.stages.clone(),
            device: self.device,
            train_data: self.train_data.clone(),
            val_data: self.val_data.clone(),
            rewards: self.rewards.clone(),
            guests: self.guests.clone(),
            watch: self.watch.clone(),
            snapshots: RunSnapshots::default(),
        }
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
        let trainer = Rc::new(self.trainer()?);
        let (validator, validated_on) = self.validator(leads)?.unzip();
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
        let mut engine = self.engine_options(sampling(&self.recipe), true)?.start()?;
        engine.host(&self.guests);
        let live = engine.live();
        let observer =
            Monitored { observer, monitor: self.monitor.clone(), live: move || live.take() };
        let hosting = (!self.guests.is_empty()).then(|| engine.hosting());
        let observer = Hosted { observer, hosting };
        let every = if leads { self.recipe.test_freq } else { 0 };
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
        finished.ended = Ended::by(stop, updates.0, self.recipe.raw.trainer.total_training_steps);
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
        self.save(&trainer, folder)?;
        Ok(finished)
    }

    /// What the run goes on from; the monitor takes its state up.
    fn resumed(&self) -> anyhow::Result<Option<Rc<Resumed>>> {
        let Some(restored) = &self.snapshots.restored else { return Ok(None) };
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
        let validator = validator.filter(|_| self.recipe.raw.trainer.val_before_train);
        validator.map(|validator| validate(validator, initial.clone())).transpose()
    }

    /// Has `stop` end the run in time.
    fn limit(&self, stop: &Stop) -> anyhow::Result<()> {
        if let Some(limit) = self.recipe.max_wall_time()? {
            let time = WallTime::new(self.clock(), limit, self.recipe.raw.algorithm.staleness);
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
        let raw = &self.recipe.raw;
        let last = match &begin {
            Begin::Anew(_) => None,
            Begin::Resumed(resumed) => resumed.last_prompt(),
        };
        Ok(Pipeline {
            prompts: self.prompt_source(last),
            prompts_ahead: ROUNDS_AHEAD * raw.data.train_batch_size,
            schedule: Box::new(self.recipe.schedule()?),
            engine: Box::new(engine),
            placement: None,
            max_response_length: raw.data.max_response_length,
            warmup_steps: 0,
            router: self.stages.router.clone(),
            limit: Box::new(Timeouts::new(raw.reward.timeout, raw.trainer.seed)?),
            scoring: self.recipe.scoring()?,
            advantage: self.advantage.clone(),
            reward_kl: raw.reward_kl(),
            trainer: trainer.clone(),
            fetch: self.recipe.fetch()?,
            validator,
            begin,
            snapshots: self.snapshots.plan.clone(),
            staleness: raw.algorithm.staleness,
            deterministic: raw.trainer.deterministic,
            rewards: Executor::Tokio(self.rewards.handle().clone()),
            time: Time::Wall(self.stages.clock.clone()),
            stop: stop.clone(),
            watchdog: self.watch.clone(),
        })
    }

    fn prompt_source(&self, last: Option<LastPrompt>) -> PromptSource {
        let reader = self.reader(self.train_data.clone(), self.left_out.clone());
        let epochs = self.recipe.raw.trainer.total_epochs;
        PromptSource::Thread(Box::new(move |emitter| {
            reader.emit(epochs, last, emitter).map_err(|error| error.to_string())
        }))
    }

    fn reader(&self, dataset: Dataset, left_out: LeftOut) -> PromptReader {
        PromptReader {
            dataset,
            encoder: self.stages.encoder.clone(),
            max_prompt_length: self.recipe.raw.data.max_prompt_length,
            router: self.stages.router.clone(),
            left_out,
        }
    }

    fn trainer(&self) -> anyhow::Result<TrainerThread> {
        let (raw, device, store) = (&self.recipe.raw, self.device, self.stages.store.clone());
        let (path, critic) = (raw.model.path.clone(), raw.critic.path.clone());
        let critic_config = self.advantage.needs_values().then_some(self.recipe.critic);
        let config = TrainerConfig { critic: critic_config, ..self.recipe.trainer.clone() };
        let (objective, pulse) = (self.objective.clone(), self.pulse());
        TrainerThread::spawn(self.stages.clock.clone(), move || {
            let decoder = Decoder::load(&path, device)?;
            let mut trainer =
                TorchTrainer::with_objective(decoder, config, store, objective)?.with_pulse(pulse);
            if let Some(folder) = critic {
                trainer = trainer.with_critic(ValueModel::load(&folder, device)?)?;
            }
            anyhow::Ok(Box::new(trainer) as Box<dyn Trainer>)
        })
    }

    /// What threads beat that the graph waits for.
    fn pulse(&self) -> Pulse {
        self.watch.as_ref().map(|watch| watch.pulse.clone()).unwrap_or_default()
    }

    /// The validator, and what it validates on. Workers that do not lead have one that is never asked.
    fn validator(&self, leads: bool) -> anyhow::Result<Option<(Rc<ValidatorThread>, Validated)>> {
        let Some(dataset) = self.val_data.clone() else { return Ok(None) };
        if !leads {
            return Ok(Some((Rc::new(never_asked()?), Validated::default())));
        }
        let left_out = LeftOut::default();
        let prompts = self.reader(dataset, left_out.clone()).read_all()?;
        let overlong = left_out.count();
        let count = prompts.len();
        let sampled = self.engine_options(sampling(&self.recipe), false)?;
        let greedy =
            self.engine_options(Sampling { temperature: 0.0, ..sampling(&self.recipe) }, false)?;
        let (router, handle) = (self.stages.router.clone(), self.rewards.handle().clone());
        let (clock, time) = (self.stages.clock.clone(), self.stages.clock.clone());
        let limits = self.recipe.raw.reward.timeout.unlearned()?;
        let pulse = self.pulse();
        let thread = OwnerThread::spawn("validation", move || {
            let tries = |options: EngineOptions, prompts: Vec<PromptRow>| {
                anyhow::Ok(
                    Validator::new(
                        Box::new(options.start()?),
                        router.clone(),
                        handle.clone(),
                        time.clone(),
                        prompts,
                    )
                    .with_limits(limits.clone())
                    .with_pulse(pulse.clone()),
                )
            };
            let (mut sampled, mut greedy) =
                (tries(sampled, prompts.clone())?, tries(greedy, prompts)?);
            // The last policy of a run may be tried in its step and asked for again behind it.
            let mut last: Option<(PolicyVersion, Metrics)> = None;
            let validate = move |policy: &Policy| {
                if let Some((_, known)) =
                    last.as_ref().filter(|(version, _)| *version == policy.version)
                {
                    return Ok(known.clone());
                }
                let begun = clock.now();
                let mut all = metrics(&sampled.validate(policy)?, &greedy.validate(policy)?);
                let took = clock.now().since(begun).as_secs_f64();
                all.insert("timing_s/testing".to_owned(), took);
                last = Some((policy.version, all.clone()));
                Ok(all)
            };
            anyhow::Ok(Box::new(validate) as Box<dyn FnMut(&Policy) -> Result<Metrics, String>>)
        })?;
        Ok(Some((Rc::new(thread), Validated { prompts: count, left_out: overlong })))
    }

    fn engine_options(&self, sampling: Sampling, replayed: bool) -> anyhow::Result<EngineOptions> {
        let raw = &self.recipe.raw;
        let lengths = raw.rollout.replay_lengths.as_deref().filter(|_| replayed);
        let replay = lengths.map(Lengths::read).transpose()?;
        let config = TorchEngineConfig { sampling, replay, ..engine_config(&self.recipe) };
        Ok(EngineOptions {
            config,
            model: raw.model.path.clone(),
            device: self.device,
            stages: self.stages.clone(),
        })
    }

    /// The model with its tokenizer and chat template: a folder that a run can start from.
    fn save(&self, trainer: &TrainerThread, folder: &Path) -> anyhow::Result<()> {
        trainer.save(folder.to_owned()).map_err(|reason| anyhow!(reason))?;
        for name in [
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
            "special_tokens_map.json",
        ] {
            let (from, to) = (self.recipe.raw.model.path.join(name), folder.join(name));
            // Copying a file onto itself would empty it.
            let same = from
                .canonicalize()
                .ok()
                .is_some_and(|from| to.canonicalize().is_ok_and(|to| from == to));
            if from.exists() && !same {
                std::fs::copy(&from, &to)
                    .with_context(|| format!("cannot copy {}", from.display()))?;
            }
        }
        Ok(())
    }
}

/// The validator of a worker that does not validate.
fn never_asked() -> anyhow::Result<ValidatorThread> {
    OwnerThread::spawn("validation", || {
        let refuse = |_: &Policy| Err("another worker validates".to_owned());
        anyhow::Ok(Box::new(refuse) as Box<dyn FnMut(&Policy) -> Result<Metrics, String>>)
    })
}

/// What the workers of a process have in common: data, rewards and their threads.
#[derive(Clone)]
pub struct Common {
    recipe: Recipe,
    stages: Stages,
    device: Device,
    train_data: Dataset,
    val_data: Option<Dataset>,
    rewards: Arc<tokio::runtime::Runtime>,
    guests: Guests,
    watch: Option<Watch>,
    snapshots: RunSnapshots,
}

impl Common {
    /// Takes part in snapshots, and goes on from one if there is one to go on from.
    #[must_use]
    pub fn with_snapshots(self, snapshots: RunSnapshots) -> Self {
        Self { snapshots, ..self }
    }

    /// The session of one worker. Judges that share an engine share that of the first worker of the process; a profile is kept by the first
    /// of all; of several devices each worker of a process has its own, in turn.
    ///
    /// # Errors
    /// If the recipe's algorithms cannot be made, or its profile cannot be read.
    pub fn session(&self, seat: &Seat) -> anyhow::Result<Session> {
        let (recipe, algorithms) = (&self.recipe, Algorithms::default());
        let (leads, is_host) = (seat.index() == 0, seat.local() == 0);
        Ok(Session {
            stages: Stages {
                clock: Arc::new(seat.clock()),
                store: WeightStore::new(versions(recipe)),
                ..self.stages.clone()
            },
            device: device_of(&recipe.raw.trainer.device, self.device, seat.local()),
            train_data: self.train_data.clone(),
            val_data: self.val_data.clone(),
            left_out: LeftOut::default(),
            advantage: algorithms.estimator(recipe)?,
            objective: algorithms.objective(recipe)?,
            rewards: self.rewards.clone(),
            rewards_checked: Cell::new(true),
            guests: if is_host { self.guests.clone() } else { Guests::default() },
            monitor: if leads { monitor(recipe)? } else { None },
            watch: self.watch.clone(),
            snapshots: self.snapshots.clone(),
            recipe: recipe.clone(),
        })
    }
}

/// Versions of the weights that engines may ask for.
fn versions(recipe: &Recipe) -> usize {
    usize::try_from(recipe.raw.algorithm.staleness + 2).unwrap_or(usize::MAX)
}

/// The device of a worker where `written` names none in particular and `resolved` is one of several.
fn device_of(written: &str, resolved: Device, worker: usize) -> Device {
    match resolved {
        Device::Cuda(_) if !written.contains(':') => {
            let devices = usize::try_from(tch::Cuda::device_count()).unwrap_or(1);
            Device::Cuda(worker % devices.max(1))
        }
        other => other,
    }
}

/// What it takes to start an engine, on whatever thread wants one.
struct EngineOptions {
    config: TorchEngineConfig,
    model: PathBuf,
    device: Device,
    stages: Stages,
}

impl EngineOptions {
    fn start(self) -> anyhow::Result<TorchEngine> {
        let Self { config, model, device, stages: Stages { clock, encoder, store, .. } } = self;
        // Ids that the tokenizer does not have are the model's padding: they decode to nothing.
        let detokenize =
            Arc::new(move |ids: &[i32]| encoder.tokenizer.decode(ids, true).unwrap_or_default());
        Ok(TorchEngine::start(
            config,
            |_instance| Decoder::load(&model, device),
            store,
            detokenize,
            clock,
        )?)
    }
}

/// How tokens are drawn in training.
fn sampling(recipe: &Recipe) -> Sampling {
    let (rollout, data) = (&recipe.raw.rollout, &recipe.raw.data);
    Sampling {
        temperature: rollout.temperature,
        top_p: rollout.top_p,
        top_k: u32::try_from(rollout.top_k).unwrap_or(0),
        min_new_tokens: rollout.min_response_length,
        max_new_tokens: data.max_response_length,
    }
}

/// The engine that a recipe trains with, no lengths replayed.
pub(crate) fn engine_config(recipe: &Recipe) -> TorchEngineConfig {
    let rollout = &recipe.raw.rollout;
    TorchEngineConfig {
        instances: rollout.instances,
        threads_per_instance: rollout.threads_per_instance,
        max_running: rollout.max_num_seqs,
        kv_cache_tokens: rollout.kv_cache_tokens,
        sampling: sampling(recipe),
        seed: rollout.seed.unwrap_or(recipe.raw.trainer.seed),
        replay: None,
        deterministic: recipe.raw.trainer.deterministic,
    }
}

/// Refuses prompts and responses that the model has no positions for.
pub(crate) fn check_context(recipe: &Recipe, model: &ModelConfig) -> anyhow::Result<()> {
    let data = &recipe.raw.data;
    let longest = data.max_prompt_length as i64 + i64::from(data.max_response_length);
    let context = model.max_position_embeddings;
    ensure!(
        longest <= context,
        "keys `data.max_prompt_length` + `data.max_response_length`: expected at most the model's {context} tokens, found {longest}"
    );
    Ok(())
}

fn monitor(recipe: &Recipe) -> anyhow::Result<Option<Rc<RefCell<Monitor>>>> {
    let Some(path) = recipe.raw.rollout.profile.clone() else { return Ok(None) };
    let monitor =
        Monitor::open(path, drift::Options::default()).context("key `rollout.profile`")?;
    Ok(Some(Rc::new(RefCell::new(monitor))))
}
