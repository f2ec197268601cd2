//! The inputs that a run provides to its trainer.

use std::path::PathBuf;

use rollpacker_dataflow::watchdog::ProgressCounter;
use rollpacker_stages::train::config::TrainerConfig;
use rollpacker_torch::model::WeightStore;
use rollpacker_torch::train::Objective;
use tch::Device;

/// The inputs that a run provides to a trainer when it starts it. Fields may be added.
#[derive(Clone)]
#[non_exhaustive]
pub struct TrainerContext {
    /// The index of the worker among all workers of the run, from 0. Each worker has a replica of the trainer.
    pub worker: usize,
    /// The folder of the initial model in Hugging Face format (`model.path`).
    pub model: PathBuf,
    /// The folder of the initial critic (`critic.path`); `None` if the critic starts from the initial model of the policy, or if there is
    /// no critic.
    pub critic: Option<PathBuf>,
    /// The device of this worker's models.
    pub device: Device,
    /// The optimizer, the loss and the batches, as the sections `[actor]`, `[critic]` and `[algorithm]` configure them. The field `critic`
    /// is set if the advantage estimator needs values.
    pub config: TrainerConfig,
    /// The policy loss and the KL estimators that the recipe names.
    pub objective: Objective,
    /// The store in which the trainer publishes its weights. The torch engine reads them from there; another engine may use another way.
    pub weights: WeightStore,
    /// A counter for the trainer to advance during long operations, so that the watchdog does not report a stall.
    pub progress: ProgressCounter,
    /// The number of CPU threads per device, if a placement lends devices to the trainer; `None` for a fixed number of threads.
    pub threads_per_device: Option<usize>,
}
