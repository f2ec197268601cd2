//! The inputs that the workers of a process share.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Error, ensure};
use rollpacker_dataflow::bridge::TaskRuntime;
use rollpacker_dataflow::clock::{Clock, WallClock};
use rollpacker_dataflow::watchdog::{ProgressCounter, WatchdogSettings};
use rollpacker_datasets::Dataset;
use rollpacker_files::{Inputs, check_replaceable};
use rollpacker_model::config::{add_generation_settings, generation_settings};
use rollpacker_model::{ChatTemplate, ModelConfig, PromptEncoder, TOKENIZER_FILES, Tokenizer};
use rollpacker_operators::advantage::Estimator;
use rollpacker_operators::trainer::TrainerThread;
use rollpacker_stages::device::DeviceChoice;
use rollpacker_stages::reward::Router;
use rollpacker_stages::train::config::TrainerConfig;
use rollpacker_torch::judge::JudgeModels;
use rollpacker_torch::model::{Decoder, WeightStore, resolve_device};
use rollpacker_torch::rollout::colocated::ColocatedModels;
use rollpacker_torch::train::{Objective, ValueModel};
use tch::Device;

use super::catalogs::Catalogs;
use super::placement::check_device;
use crate::engines::ChosenEngine;
use crate::memory::{self, Estimate, TrainingMemory};
use crate::prompt_checks;
use crate::prompts::{OverlongPrompts, PromptError, PromptReader};
use crate::recipe::error::reject;
use crate::recipe::{Recipe, RecipeError, check_replicas};
use crate::rewards::rewards;
use crate::snapshots::RunSnapshots;
use crate::trainers::{ChosenTrainer, NeededOperations, TrainerContext};
use crate::validation_records::ValidationRecords;

/// The opened and validated inputs of a recipe that the workers of a process share, such as data, algorithms, engine, trainer, and rewards
/// with their threads.
#[derive(Clone)]
pub struct SharedInputs {
    pub(super) recipe: Recipe,
    pub(super) stages: WorkerResources,
    pub(super) device: Device,
    pub(super) train_data: Dataset,
    pub(super) val_data: Option<Dataset>,
    /// The index of the worker that uses these inputs, among all workers of the run, from 0.
    pub(super) worker: usize,
    pub(super) engine: ChosenEngine,
    pub(super) trainer: ChosenTrainer,
    pub(super) advantage: Estimator,
    pub(super) objective: Objective,
    /// The tokio runtime in which rewards run.
    pub(super) rewards: Arc<TaskRuntime>,
    /// `true` once [`Session::check_data`](super::Session::check_data) has succeeded on a worker of this process.
    pub(super) data_checked: Arc<AtomicBool>,
    /// The rows of the training data by domain, once they are counted.
    pub(super) domains: Arc<OnceLock<BTreeMap<String, u64>>>,
    /// Judges that run on the instances of the training engine.
    pub(super) colocated: ColocatedModels,
    pub(super) vocab_size: i64,
    /// The configuration of the watchdog; `None` if it is disabled.
    pub(super) watch: Option<WatchdogSettings>,
    pub(super) snapshots: RunSnapshots,
    /// The writer of the responses of validations, if they are kept.
    pub(super) validation_records: Option<ValidationRecords>,
}

/// The inputs that the threads of a worker share.
#[derive(Clone)]
pub(super) struct WorkerResources {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) encoder: Arc<PromptEncoder>,
    pub(super) router: Router,
    pub(super) store: WeightStore,
}

impl WorkerResources {
    fn open(recipe: &Recipe, router: Router) -> anyhow::Result<Self> {
        Ok(Self {
            clock: Arc::new(WallClock::start()),
            encoder: Arc::new(encoder(recipe)?),
            router,
            store: WeightStore::new(max_weight_versions(recipe)),
        })
    }
}

impl SharedInputs {
    pub(super) fn open(recipe: Recipe, catalogs: &Catalogs) -> anyhow::Result<Self> {
        reject(catalogs.errors(&recipe.choices, &recipe.reward))?;
        let Catalogs { rewards: registry, algorithms, engines, trainers } = catalogs;
        let (advantage, objective) =
            (algorithms.estimator(&recipe)?, algorithms.objective(&recipe)?);
        let engine = engines.chosen(&recipe.choices)?;
        let trainer = trainers.chosen(&recipe.choices)?;
        let device = device(&recipe, &trainer)?;
        let model = initial_model(&recipe)?;
        if let Some(critic) = &recipe.critic_model {
            Decoder::check_folder(critic).context("key `critic.path`")?;
        }
        let train_data =
            Dataset::open(recipe.train_data.clone()).context("key `data.train_files`")?;
        check_memory(TrainingMemory {
            recipe: &recipe,
            model: &model,
            has_critic: advantage.needs_values(),
            has_torch_engine: engine.is_torch(),
            has_torch_trainer: trainer.is_torch(),
            prompts: train_data.len(),
            on_host: device == Device::Cpu,
        })?;
        // In-process judges load their models here, after the memory check.
        let judges = JudgeModels::default();
        registry.set_judge_engine(Arc::new(judges.clone()));
        let router = rewards(&recipe.reward, registry)?;
        let stages = WorkerResources::open(&recipe, router)?;
        let inputs = Self {
            train_data,
            val_data: (recipe.val_data.clone().map(Dataset::open).transpose())
                .context("key `data.val_files`")?,
            worker: 0,
            engine,
            trainer,
            advantage,
            objective,
            watch: recipe.watch(),
            snapshots: RunSnapshots::default(),
            validation_records: None,
            rewards: Arc::new(reward_threads(&recipe)?),
            recipe,
            stages,
            device,
            data_checked: Arc::default(),
            domains: Arc::default(),
            vocab_size: model.vocab_size,
            colocated: judges.colocated(),
        };
        inputs.check_engine()?;
        Ok(inputs)
    }

    /// Rejects settings that the engine does not support, such as settings of the torch engine with another engine.
    pub(super) fn check_engine(&self) -> Result<(), RecipeError> {
        let rollout = &self.recipe.rollout;
        for (is_set, when) in [
            (rollout.replay_lengths.is_some(), "`rollout.replay_lengths` is set"),
            (rollout.profile.is_some(), "`rollout.profile` is set"),
            (!self.recipe.has_fixed_placement(), "`placement.kind` is not `fixed`"),
            (!self.colocated.is_empty(), "a judge is `colocated` with it"),
        ] {
            self.engine.require_torch_if(is_set, when)?;
        }
        self.engine.check(&self.recipe)
    }

    /// Takes snapshots, and resumes from one, as configured in `snapshots`.
    #[must_use]
    pub fn with_snapshots(self, snapshots: RunSnapshots) -> Self {
        Self { snapshots, ..self }
    }

    /// Writes the responses of validations into `folder`.
    #[must_use]
    pub(super) fn with_validation_folder(self, folder: PathBuf) -> Self {
        Self { validation_records: Some(ValidationRecords::new(folder)), ..self }
    }

    /// Returns warnings about the recipe and its first prompts.
    ///
    /// # Errors
    /// If a dataset cannot be read, one of the first prompts cannot be used, or every training prompt is too long.
    pub(super) fn warnings(&self) -> Result<Vec<String>, PromptError> {
        let recipe = &self.recipe;
        let reader = self.reader(self.train_data.clone(), OverlongPrompts::default());
        let template = recipe.data.apply_chat_template;
        let mut warnings = prompt_checks::warnings(&reader, self.val_data.as_ref(), template)?;
        let estimator = recipe.choices.estimator.name();
        warnings.extend(prompt_checks::single_response_warning(estimator, recipe.rollout.n));
        let has_data = self.val_data.is_some();
        warnings.extend(prompt_checks::no_validation_data_warning(recipe.test_freq, has_data));
        let quotas: Vec<&str> = recipe.quota_domains().collect();
        if !quotas.is_empty() {
            warnings.extend(prompt_checks::no_quota_warning(self.domains()?, &quotas));
        }
        Ok(warnings)
    }

    /// Returns the number of rows of each domain of the training data. The first call reads all rows.
    pub(super) fn domains(&self) -> Result<&BTreeMap<String, u64>, PromptError> {
        if let Some(domains) = self.domains.get() {
            return Ok(domains);
        }
        let counted = self.train_data.domains()?;
        Ok(self.domains.get_or_init(|| counted))
    }

    pub(super) fn reader(
        &self,
        dataset: Dataset,
        overlong_prompts: OverlongPrompts,
    ) -> PromptReader {
        PromptReader {
            dataset,
            encoder: self.stages.encoder.clone(),
            max_prompt_length: self.recipe.data.max_prompt_length,
            truncation: self.recipe.data.truncation,
            vocab_size: self.vocab_size,
            router: self.stages.router.clone(),
            overlong_prompts,
        }
    }

    /// Starts the trainer of this worker, one of `workers`, on a thread of its own.
    pub(super) fn start_trainer(&self, workers: usize) -> anyhow::Result<TrainerThread> {
        check_replicas(&self.recipe.trainer, workers)?;
        let has_critic = self.advantage.needs_values();
        let context = TrainerContext {
            worker: self.worker,
            model: self.recipe.model.path.clone(),
            critic: self.recipe.critic_model.clone().filter(|_| has_critic),
            device: self.device,
            config: TrainerConfig {
                critic: has_critic.then_some(self.recipe.critic),
                ..self.recipe.trainer.clone()
            },
            objective: self.objective.clone(),
            weights: self.stages.store.clone(),
            progress: self.progress_counter(),
            threads_per_device: self.recipe.lent_threads(),
        };
        let save_freq = self.snapshots.plan.as_ref().map_or(0, |_| self.recipe.save_freq);
        let needed = NeededOperations { workers, save_freq };
        let starter = self.trainer.clone();
        TrainerThread::spawn(self.stages.clock.clone(), move || starter.start(context, needed))
    }

    /// Returns the counter that threads outside of the graph advance to show progress to the watchdog.
    pub(super) fn progress_counter(&self) -> ProgressCounter {
        self.watch.as_ref().map(|watch| watch.progress.clone()).unwrap_or_default()
    }

    /// Writes the model with its tokenizer, chat template and generation settings, as a folder that another run can start from.
    pub(super) fn save(&self, trainer: &TrainerThread, folder: &Path) -> anyhow::Result<()> {
        // Read first, because the run may write into the folder of its initial model.
        let settings = generation_settings(&self.recipe.model.path)?;
        trainer.save(folder.to_owned()).map_err(Error::msg)?;
        for name in TOKENIZER_FILES {
            let (from, to) = (self.recipe.model.path.join(name), folder.join(name));
            if from.exists() {
                rollpacker_files::copy(&from, &to)?;
            }
        }
        add_generation_settings(folder, settings)?;
        if self.trainer.is_torch() && !self.advantage.needs_values() {
            remove_critic(&folder.join(ValueModel::FOLDER), &self.recipe.inputs())?;
        }
        Ok(())
    }
}

/// Removes the critic that an earlier run has written into `folder`. Keeps files that are among `inputs`, everything that is not a regular
/// file, and all files if `folder` is a link.
fn remove_critic(folder: &Path, inputs: &Inputs) -> anyhow::Result<()> {
    if !fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir()) {
        return Ok(());
    }
    let mut stale = ValueModel::FILES.map(|name| folder.join(name)).to_vec();
    stale.retain(|path| {
        path.exists() && check_replaceable(path).is_ok() && inputs.check_output(path).is_ok()
    });
    for path in &stale {
        fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    if !stale.is_empty() {
        // Fails if the folder has other files, which are not the run's.
        drop(fs::remove_dir(folder));
    }
    Ok(())
}

/// Returns the number of weight versions that the store keeps: the staleness plus 2, because engines may still request older versions.
pub(super) fn max_weight_versions(recipe: &Recipe) -> usize {
    usize::try_from(recipe.staleness + 2).unwrap_or(usize::MAX)
}

/// Returns the device of a worker. `resolved` is the device that `choice` selects, and `worker` the index of the worker in its process.
/// Unless `choice` is `cuda:N`, the CUDA devices are assigned to the workers round-robin. A device other than a CUDA device is the device
/// of every worker.
pub(super) fn device_of(choice: DeviceChoice, resolved: Device, worker: usize) -> Device {
    match resolved {
        Device::Cuda(_) if !matches!(choice, DeviceChoice::Cuda(_)) => {
            let devices = usize::try_from(tch::Cuda::device_count()).unwrap_or(1);
            Device::Cuda(worker % devices.max(1))
        }
        other => other,
    }
}

/// Returns the device of the run. Rejects a GPU if the placement or a deterministic trainer needs the CPU.
fn device(recipe: &Recipe, trainer: &ChosenTrainer) -> anyhow::Result<Device> {
    let device = resolve_device(recipe.run.device).map_err(RecipeError::from)?;
    check_device(recipe, device)?;
    ensure!(
        !(recipe.run.deterministic && trainer.is_torch()) || device == Device::Cpu,
        "key `trainer.deterministic`: expected `false` on a GPU, whose kernels add in no fixed order: set trainer.device = \"cpu\" to use it"
    );
    Ok(device)
}

/// Rejects a run that needs more memory than the machine has.
fn check_memory(run: TrainingMemory<'_>) -> anyhow::Result<()> {
    let mut estimate = Estimate::default();
    estimate.extend(memory::training_parts(run));
    estimate.extend(memory::judge_parts(&run.recipe.reward));
    Ok(estimate.check()?)
}

/// Checks the folder of the initial model, and returns its configuration. The longest prompt and the longest response together must fit
/// into its context.
pub(crate) fn initial_model(recipe: &Recipe) -> anyhow::Result<ModelConfig> {
    let folder = &recipe.model.path;
    ensure!(
        !folder.as_os_str().is_empty(),
        "key `model.path`: expected a folder in Hugging Face format"
    );
    let model = Decoder::check_folder(folder).context("key `model.path`")?;
    check_context(recipe, &model)?;
    Ok(model)
}

fn encoder(recipe: &Recipe) -> anyhow::Result<PromptEncoder> {
    let folder = &recipe.model.path;
    let template = if recipe.data.apply_chat_template {
        ChatTemplate::from_folder(folder)?
    } else {
        ChatTemplate::plain()
    };
    Ok(PromptEncoder { tokenizer: Arc::new(Tokenizer::from_folder(folder)?), template })
}

fn reward_threads(recipe: &Recipe) -> anyhow::Result<TaskRuntime> {
    TaskRuntime::start(recipe.reward.num_workers, "reward")
        .context("cannot start the threads of the rewards")
}

/// Rejects a recipe whose maximum prompt length and maximum response length together exceed the model's maximum context.
fn check_context(recipe: &Recipe, model: &ModelConfig) -> anyhow::Result<()> {
    let data = &recipe.data;
    let longest = data.max_prompt_length as i64 + i64::from(data.max_response_length);
    let context = model.max_position_embeddings;
    ensure!(
        longest <= context,
        "keys `data.max_prompt_length` + `data.max_response_length`: expected at most the model's {context} tokens, found {longest}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn inputs_and_links_are_not_removed_with_an_old_critic() {
        let folder = tempfile::tempdir().expect("a folder");
        let critic = folder.path().join("critic");
        let [config, generation, weights, head] = ValueModel::FILES.map(|name| critic.join(name));
        fs::create_dir(&critic).expect("made");
        for path in [&config, &generation, &weights] {
            fs::write(path, "").expect("written");
        }
        fs::write(folder.path().join("other"), "").expect("written");
        symlink("../other", &head).expect("linked");
        remove_critic(&critic, &Inputs::of([&weights])).expect("removed");
        let kept =
            [&config, &generation, &weights, &head].map(|path| path.is_symlink() || path.exists());
        assert_eq!(kept, [false, false, true, true]);
    }

    #[test]
    fn a_critic_in_a_linked_folder_is_not_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (own, other) = (folder.path().join("own"), folder.path().join("other"));
        fs::create_dir(&other).expect("made");
        fs::write(other.join(ValueModel::FILES[0]), "").expect("written");
        symlink("other", &own).expect("linked");
        remove_critic(&own, &Inputs::of([folder.path()])).expect("nothing to do");
        assert!(other.join(ValueModel::FILES[0]).exists());
    }
}
