//! The sections of a run: `[trainer]`, and `[sft]` for the warm start.

use std::path::PathBuf;

use rollpacker_dataflow::snapshot::OnError;
use rollpacker_dataflow::watchdog::OnStall;
use rollpacker_stages::device::DeviceChoice;
use serde::{Deserialize, Serialize};

use super::one_or_many;
use crate::recipe::period::Period;
use crate::recipe::section::section;

section! {
    /// The section `[trainer]`: the length of training, workers, snapshots and outputs.
    Run {
        /// Maximum number of steps, at least 1. Default: the number of steps in all epochs. (verl: `trainer.total_training_steps`; TRL:
        /// `max_steps`)
        total_training_steps: Option<u64> [steps] = None => resumable,
        /// Maximum number of epochs, at least 1; default 1. (verl: `trainer.total_epochs`; TRL: `num_train_epochs`)
        total_epochs: u32 [epochs] = 1 => resumable,
        /// Number of steps between two validations. With -1, the default, and 0 only the validations before the first and after the last
        /// step run. (verl: `trainer.test_freq`)
        (recipe) test_freq: i64 [steps] = -1 => resumable,
        /// `true`, the default, to validate before the first step. (verl: `trainer.val_before_train`)
        val_before_train: bool = true => resumable,
        /// Seed of all random choices that have no seed of their own; default 1.
        seed: u64 = 1,
        /// Device of the models: `cpu`, `cuda`, `cuda:N`, or `auto` (the default), which is `cuda` if there is a CUDA device and `cpu`
        /// otherwise. With `cuda`, the workers of a process use the CUDA devices in turn; with `cuda:N`, all workers use this device.
        device: DeviceChoice = DeviceChoice::Auto => resumable,
        /// Number of workers of each process, from 1 to 256; default 1. Each worker has `rollout.instances` engine instances and a replica
        /// of the trainer. `--workers` has precedence.
        workers: usize [workers] = 1 => resumable,
        /// Run folder; default `runs/default`. `--out` has precedence. (verl: `trainer.default_local_dir`; TRL: `output_dir`)
        default_local_dir: PathBuf = PathBuf::from("runs/default") => resumable,
        /// Number of initial steps that train only the critic; default 0. Other values need an advantage estimator with a critic. (verl:
        /// `trainer.critic_warmup`)
        critic_warmup: u64 [steps] = 0,
        /// `true`, the default, to write every response of training to `rollouts/` in the run folder, and every response of validations to
        /// `validation/`.
        write_rollouts: bool = true => resumable,
        /// Further outputs of the metrics: `tensorboard` writes an event file into the folder `tensorboard` of the run folder while the run
        /// trains. `console` and `file`, the terminal and `metrics.jsonl`, are always written. A string or a list; default none. (verl:
        /// `trainer.logger`)
        #[serde(deserialize_with = "one_or_many")]
        (recipe) logger: Vec<String> = Vec::new() => resumable,
        /// `true` to make a run reproducible bit for bit: the numbers of tokens, not the times, decide which responses end first, and sums
        /// have a fixed order. Slower. Needs an engine with lockstep; the torch trainer also needs a CPU. Default: `false`.
        deterministic: bool = false,
        /// Number of steps between two snapshots, from which `--resume` continues. -1, the default, and 0 disable snapshots. A run with
        /// snapshots also takes one at its end. (verl: `trainer.save_freq`; TRL: `save_steps`)
        (recipe) save_freq: i64 [steps] = -1 => resumable,
        /// Number of valid snapshots to keep, newest first. At least 1; default 2. (verl: `trainer.max_actor_ckpt_to_keep`; TRL:
        /// `save_total_limit`)
        max_ckpt_to_keep: usize [snapshots] = 2 => resumable,
        /// Reaction to a snapshot that cannot be written: `fail` (the default) ends the run, `warn` continues and tries again.
        snapshot_on_error: OnError = OnError::Fail => resumable,
        /// Maximum wall time of the run, in seconds or as a string such as `1h30m`. A step after the first that may not finish in time is
        /// not started. Above 0, at most 1e9 seconds. Default: unlimited.
        (recipe) max_wall_time: Option<Period> [seconds] = None => resumable,
        /// Time without progress after which the watchdog prints what the run waits for, in seconds or as a string such as `5m`. 0 disables
        /// the watchdog; default 300. At most 1e9 seconds.
        (recipe) stall_timeout: Period [seconds] = Period::Seconds(300.0) => resumable,
        /// Reaction of the watchdog to a stall: `warn` (the default), or `fail`, which ends the run.
        on_stall: OnStall = OnStall::default() => resumable,
    }
}

section! {
    /// The section `[sft]`: supervised fine-tuning of a small model made from scratch, for `rollpacker sft`.
    Sft {
        /// Parquet or JSONL files or globs with demonstrations: a string or a list. Required by `rollpacker sft`.
        #[serde(deserialize_with = "one_or_many")]
        train_files: Vec<String> = Vec::new(),
        /// Field of `extra_info` that contains the demonstration. Default: `demonstration`.
        response_key: String = "demonstration".to_owned(),
        /// Number of updates, at least 1; default 1800.
        steps: u64 [updates] = 1800,
        /// Number of examples of an update, at least 1; default 48.
        batch_size: usize [examples] = 48,
        /// Peak learning rate, above 0 and at most 10; default 2e-3.
        lr: f64 = 2e-3,
        /// Number of updates over which the learning rate rises to its peak; default 50.
        lr_warmup_steps: u64 [updates] = 50,
        /// Decoupled weight decay of AdamW, from 0 to 1000; default 0.01.
        weight_decay: f64 = 0.01,
        /// Characters of the tokenizer, each of which is one token and may appear only once. Default: the alphabet of the built-in task.
        alphabet: String = rollpacker_datasets::generate::ALPHABET.to_owned(),
        /// Width of the residual stream; default 96.
        hidden_size: i64 [channels] = 96,
        /// Inner width of the feed-forward blocks; default 256.
        intermediate_size: i64 [channels] = 256,
        /// Number of transformer blocks; default 3.
        num_hidden_layers: i64 [layers] = 3,
        /// Number of query heads; default 4. `hidden_size` must be an even multiple of this number, with at most 4096 channels per head.
        num_attention_heads: i64 [heads] = 4,
        /// Number of key and value heads; default 2. Must divide `num_attention_heads`.
        num_key_value_heads: i64 [heads] = 2,
        /// `true`, the default, to use the weights of the embedding for the output head, too. vLLM on CPU does not update such a head.
        tie_word_embeddings: bool = true,
        /// Maximum context length in tokens; default 4096. A row whose prompt and demonstration together are longer ends the command with
        /// an error.
        max_position_embeddings: i64 [tokens] = 4096,
        /// Maximum number of tokens of a packed micro-batch, at least 1; default 4096. A longer sequence is a micro-batch of its own.
        micro_batch_tokens: usize [tokens] = 4096,
        /// Number of CPU threads that tensor operations use, from 1 to 1024; default 1.
        threads: usize [threads] = 1,
    }
}
