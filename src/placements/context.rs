//! The context of a placement policy.

/// The context from which a placement policy is built: the devices to divide between rollout and training, and the limits of the run.
/// Fields may be added.
///
/// In a live run, a device is an engine instance with its threads. In a simulated job, a device is a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacementContext {
    /// The number of devices of a worker (`rollout.instances`). One policy decides for all workers, and each of them follows it. In a
    /// simulated job, the number of GPUs of the cluster (`cluster.gpus`).
    pub devices: u32,
    /// The number of threads of a device (`rollout.threads_per_instance`). In a simulated job, 1.
    pub threads_per_device: usize,
    /// The number of tokens that the KV cache of a device holds (`rollout.kv_cache_tokens`), summed over the workers, because the policy
    /// receives the responses of all workers. In a simulated job, the tokens that fit on an instance according to the cost model, divided
    /// by the number of its GPUs.
    pub kv_cache_tokens: usize,
    /// The maximum length of a response in tokens (`data.max_response_length`).
    pub max_response_length: u32,
    /// The number of steps that the rollout may be ahead of the training (`algorithm.staleness`; in a simulated job `pipeline.staleness`).
    pub staleness: u64,
    /// The number of devices of an engine instance before the first decision: 1. In a simulated job, `rollout.tensor_parallel`, on which
    /// the model fits.
    pub tensor_parallel: u32,
    /// The minimum number of devices that can train: 1. In a simulated job, the number of GPUs of a copy of the model, which is the product
    /// of `training.tensor_parallel`, `pipeline_parallel` and `context_parallel`. Each further multiple trains one more copy.
    pub training_replica: u32,
}
