//! The keys of a job with their defaults, before any check.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rollpacker_operators::curriculum::CurriculumOptions;
use rollpacker_operators::overlap::Scoring;
use rollpacker_operators::placement::RoundFilter;
use rollpacker_operators::reward::LimitMode;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::placements::{Placements, PlannerRule};
use crate::recipe::section::section;
use crate::recipe::{Gradient, schedule};

section! {
    /// A job as written in TOML.
    RawJob {
        /// The devices of the job, and the controllers that serve them.
        cluster: Cluster = Cluster::default(),
        /// The model that is trained.
        model: Model = Model::default(),
        /// Generation of responses.
        rollout: Rollout = Rollout::default(),
        /// Layout of the trainer.
        training: Training = Training::default(),
        /// Prompts and batches.
        data: Data = Data::default(),
        /// Lengths of the responses.
        lengths: Lengths = Lengths::default(),
        /// Kinds of tasks, and how they are rewarded.
        tasks: Tasks = Tasks::default(),
        /// The schedule: which prompts and responses a round launches and keeps; the same section as in recipes.
        schedule: schedule::ScheduleSection = schedule::ScheduleSection::default(),
        /// Overlap of the stages.
        pipeline: Pipeline = Pipeline::default(),
        /// Options of the stream trainer, with `pipeline.placement = "stream"`.
        stream: Stream = Stream::default(),
        /// Choice of the rollout's tensor parallelism.
        planner: Planner = Planner::default(),
        /// Constants of the cost model that replace the constants fitted to RollPacker's set-up. Default: none.
        calibration: Option<Table> = None,
        /// The steps and seeds that are simulated.
        sim: Sim = Sim::default(),
    }
}

section! {
    /// The section `[cluster]`: the devices of the job, and the controllers that serve them.
    Cluster {
        /// The device: `A100`, `H800`, `H100`, `H200`, `B200`, or a table with the data of another device: `name`, `flops` (dense bf16 peak
        /// in FLOP/s), `memory_bandwidth` (bytes/s), `memory` (bytes), `interconnect_bandwidth` (bytes/s per device in one direction) and
        /// `devices_per_server`. `cluster.hardware.memory=160e9` changes one value of a built-in device. Default: `H800`.
        hardware: Value = Value::String("H800".to_owned()),
        /// The number of GPUs of the job. From 1 to 131,072. Default: 32.
        gpus: u32 = 32,
        /// The number of controllers that share the work of handing out requests, submitting responses for scoring after the rollout, and
        /// padding batches. At least 1. Default: 1, as in the papers' systems.
        controllers: u32 = 1,
        /// The number of GPUs of a server; a tensor-parallel group stays within one server. At least 1. Default: `devices_per_server` of
        /// the hardware.
        gpus_per_server: Option<u32> = None,
    }
}

section! {
    /// The section `[model]`: the trained model, by name or by shape.
    Model {
        /// The model: `Qwen2.5-7B`, `Qwen2.5-14B`, `Qwen2.5-32B`, `Qwen3-1.7B` or `Qwen3-8B`. Must not be set with `shape`. Default:
        /// `Qwen2.5-14B`.
        name: String = "Qwen2.5-14B".to_owned(),
        /// The shape of a model that is not built in, a table of `name`, `parameters`, `layers`, `hidden_size`, `kv_heads`, `head_dim`
        /// and `input_embedding` (the number of parameters of an input embedding that the output layer does not share; default 0); replaces
        /// `name`.
        shape: Option<Table> = None,
    }
}

section! {
    /// The section `[rollout]`: the size of a group, the engine instances, and how they receive requests.
    Rollout {
        /// The number of responses to a prompt, R0 in the paper. At least 1. Default: 8. (verl: `rollout.n`, TRL: `num_generations`)
        n: u32 = 8,
        /// The number of GPUs over which an engine instance is sharded: a divisor of `cluster.gpus` that does not exceed the GPUs of a
        /// server. It must divide the GPUs of a server with the placement `stream`, and with a `planner.rule` other than `fixed`, which
        /// may change it during a run. Default: 1.
        /// (verl: `rollout.tensor_model_parallel_size`)
        tensor_parallel: u32 = 1,
        /// Maximum number of responses that an instance runs at once. At least 1. Default: 256. (verl: `rollout.max_num_seqs`)
        max_num_seqs: u32 = 256,
        /// The share of GPU memory for weights and KV cache. From 0.001 to 1. Default: `calibration.memory_share`. (verl:
        /// `rollout.gpu_memory_utilization`)
        gpu_memory_utilization: Option<f64> = None,
        /// Dispatch of responses to instances: `round_robin` to the instances in turn, `prompt_chunks` in chunks of consecutive prompts,
        /// one chunk per instance, or `least_loaded` to the instance with the fewest responses. Default: `prompt_chunks` for `sync`,
        /// `least_loaded` for `longest_first`, `round_robin` for all other schedules.
        dispatch: Option<Dispatch> = None,
        /// The time at which instances receive requests that are launched together: with `together`, when the last of them is handed out;
        /// with `streamed`, each when it is handed out itself. Default: `together`.
        hand_out: HandOut = HandOut::Together,
        /// Interval between two checks for ended responses and for scores, in seconds. With 0, each is reported immediately. From 0 to 60.
        /// Default: 0.01.
        report_interval_s: f64 = 0.01,
    }
}

section! {
    /// The section `[training]`: the layout of a copy of the trained model over GPUs, and the size of micro-batches.
    Training {
        /// The number of GPUs of a tensor-parallel group, which must fit into a server. The product with `pipeline_parallel` and
        /// `context_parallel` must divide `cluster.gpus`. At least 1. Default: 2.
        tensor_parallel: u32 = 2,
        /// The number of pipeline stages. The product with `tensor_parallel` and `context_parallel` must divide `cluster.gpus`. At least 1.
        /// Default: 1.
        pipeline_parallel: u32 = 1,
        /// The number of GPUs over which a sequence is split. The product with `tensor_parallel` and `pipeline_parallel` must divide
        /// `cluster.gpus`. At least 1. Default: 1.
        context_parallel: u32 = 1,
        /// The size of a micro-batch into which sequences are packed, in tokens; a longer sequence is a micro-batch of its own, and 1
        /// disables packing. At least 1. Default: 16384.
        micro_batch_tokens: u32 = 16_384,
        /// The layout of a copy of the model: `written`, which is the layout of the keys of this section, or `planned`, which is the layout
        /// over the same number of GPUs that is predicted to train fastest. Default: `written`.
        layout: Layout = Layout::Written,
    }
}

impl Training {
    /// Returns the number of GPUs that hold one copy of the model.
    pub(super) fn replica(&self) -> u64 {
        let parts = [self.tensor_parallel, self.pipeline_parallel, self.context_parallel];
        parts.into_iter().fold(1, |product: u64, part| product.saturating_mul(part.into()))
    }
}

section! {
    /// The section `[data]`: the prompts of an epoch and of a step, and the maximum response length.
    Data {
        /// The number of prompts of an epoch. At least 1. Default: 16 times the prompts of all steps, which is more than a run reads.
        prompts: Option<u64> = None,
        /// The number of prompts of an epoch, in rounds of `train_batch_size` prompts; an alternative to `prompts`. Must not be set
        /// together with `prompts`. At least 1.
        epoch_rounds: Option<u64> = None,
        /// The number of prompts per step, P0 in the paper. At least 1. Default: 128. (verl: `data.train_batch_size`)
        train_batch_size: usize = 128,
        /// Maximum length of a response, in tokens. At least 1. Default: 16384. (verl: `data.max_response_length`, TRL:
        /// `max_completion_length`)
        max_response_length: u32 = 16_384,
        /// Skips prompts by their pass rate, as in a live run. Needs `prompts` or `epoch_rounds`, and has an effect only if the run reads
        /// an epoch more than once. Default: none.
        #[serde(skip_serializing_if = "Option::is_none")]
        curriculum: Option<CurriculumOptions> = None,
    }
}

section! {
    /// The section `[lengths]`: the source and the distributions of response lengths and prompt lengths.
    Lengths {
        /// The source of lengths: `paper`, the distributions of Fig. 2a of the RollPacker paper; `two_mode`, two log-normal modes for each
        /// kind of task; `empirical`, percentiles for each kind of task; or `trace`, recorded responses. Default: `paper`.
        source: Source = Source::Paper,
        /// The recorded responses of `trace`: a file or a folder. Required by `trace`, and not allowed with other sources.
        file: Option<PathBuf> = None,
        /// The column of response lengths: numbers of tokens, lists of token ids, or texts, whose tokens `tokenizer` counts. Default: the
        /// first column with a usual name, such as `response_length`, `output_tokens`, `response_ids` or `completion`.
        length_column: Option<String> = None,
        /// The column that identifies the prompt of a response. Default: the first column with a usual name, such as `prompt_id`, `uid`,
        /// `group_id` or `prompt`.
        prompt_column: Option<String> = None,
        /// The column of prompt lengths: numbers of tokens, lists of token ids, or texts, whose tokens `tokenizer` counts. Default: the
        /// first column with a usual name, such as `prompt_length`, `input_tokens`, `prompt_ids` or `prompt`. Where no length is recorded,
        /// it is drawn from `population`.
        prompt_length_column: Option<String> = None,
        /// The correlation of the lengths of two responses to a prompt, as the correlation of their normal scores (Gaussian copula), for
        /// `paper`, and for a `trace` that does not determine it. From 0 to 0.99. Default: the fitted value for `paper`, and both ends of
        /// the interval that the trace allows for `trace`.
        correlation: Option<f64> = None,
        /// The folder of the tokenizer that counts the tokens of a trace of texts. Default: none, which rejects columns of texts.
        tokenizer: Option<PathBuf> = None,
        /// The length distribution of each kind of task that has a share, for `two_mode` and `empirical`. Required by `empirical`. Default:
        /// the built-in distributions of `two_mode`.
        domains: BTreeMap<String, Table> = BTreeMap::new(),
        /// The distributions of prompt lengths and pass rates. Default: the built-in distributions.
        population: Option<Table> = None,
    }
}

section! {
    /// `[tasks]`: shares of the kinds of tasks, and how they are rewarded.
    Tasks {
        /// The share of math tasks, relative to the sum of the three shares, which must be more than 0. At least 0. Default: 1.
        math: f64 = 1.0,
        /// The share of code tasks, which run in a sandbox, relative to the sum of the three shares. At least 0. Default: 1.
        code: f64 = 1.0,
        /// The share of tasks that a model judges, relative to the sum of the three shares. At least 0. Default: 1.
        judge: f64 = 1.0,
        /// The number of programs that the sandbox runs at once. At least 1. Default: 8 per GPU.
        sandbox_slots: Option<usize> = None,
        /// The slot that a program waits for: `first_free`, the slot that becomes free first, or `in_turn`, the next slot in turn even if
        /// it is busy. Default: `first_free`.
        sandbox_workers: SandboxWorkers = SandboxWorkers::FirstFree,
        /// The GPUs of the judge: `dedicated` GPUs, which `cluster.gpus` does not count, or the GPUs of the rollout (`colocated`). Default:
        /// `dedicated` for `sync`, `fused` and `longest_first`, `colocated` for all other schedules.
        judge_placement: Option<Judge> = None,
        /// Sharing of the rollout's GPUs with a colocated judge: `mps` runs the judge and the engine at the same time, `time_slicing`
        /// alternately. Must be `mps` unless a colocated judge scores responses during the rollout. Default: `mps`.
        judge_sharing: JudgeSharing = JudgeSharing::Mps,
        /// The time limits of the sandbox: `fixed`, or `adaptive` to the time that correct answers took. Must not be `adaptive` with
        /// rewards after the rollout. Default: `fixed` for `sync`, `fused` and `longest_first`, and with rewards after the rollout;
        /// otherwise `adaptive`.
        timeout: Option<LimitMode> = None,
        /// The fixed time limit, and the upper bound of the adaptive limit, in seconds. Above 0, at most 86400. Default: 30.
        timeout_s: f64 = 30.0,
        /// `true` if the dataset contains the time that a correct solution takes, which adaptive limits use until a correct answer is
        /// known. Must not be set with fixed limits. Default: `true`.
        reference_time: Option<bool> = None,
        /// The share of responses that an adaptive limit does not end before `timeout_s`, to measure how often the limit is wrong. Must not
        /// be set with fixed limits. In [0, 1]. Default: 0.001.
        audit_share: Option<f64> = None,
    }
}

section! {
    /// The section `[pipeline]`: the overlap of the stages, and the assignment of GPUs. Keys that are left out default to what the authors
    /// of the schedule do; see [`super::job`].
    Pipeline {
        /// Scoring of responses, as in recipes: `streamed` scores each response as soon as it ends, `after_rollout` scores all responses of
        /// a step after the rollout. Default: `after_rollout` for `sync`, `streamed` for all other schedules.
        reward: Option<Scoring> = None,
        /// Training on groups, as in recipes: `streamed` trains on groups as they become complete, `once` first on the groups that are
        /// complete when a GPU starts to train and then on the rest, `whole_step` on all groups of the step at once. Default: `whole_step`
        /// for `sync`, `streamed` for all other schedules.
        gradient: Option<Gradient> = None,
        /// Maximum number of groups that the trainer receives at once, as in recipes. Must not be set unless groups are streamed. At least
        /// 1. Default: all complete groups.
        max_groups: Option<usize> = None,
        /// The assignment of GPUs: `colocated`, where all GPUs generate and then all train; `separate`, where some generate and the others
        /// train; `stream`, where some begin to train before the rollout ends; or the name of a placement that the program
        /// [adds](crate::App::placement). Default: `stream` for `tail_batching`, `separate` for `frontier_group`, `colocated` for all other
        /// schedules.
        placement: Option<String> = None,
        /// Options of a placement that the program adds. Default: none.
        placement_options: Table = Table::new(),
        /// The placements that the program adds.
        #[serde(skip)]
        placements: Placements = Placements::default(),
        /// The number of GPUs that train, with `placement = "separate"`: a multiple of the GPUs of a copy of the trained model that leaves
        /// one or more whole instances of `rollout.tensor_parallel` GPUs. Default: the largest such number that is not above half of
        /// `cluster.gpus`; if there is none, the smallest above half.
        training_gpus: Option<u32> = None,
        /// Maximum number of steps by which the sampling policy may lag behind the trained policy. Must be 0 with the placements
        /// `colocated` and `stream`. From 0 to 65,536. Default: 0, which is on-policy.
        staleness: u64 = 0,
    }
}

section! {
    /// `[stream]`: the stream trainer, Algorithm 1 of RollPacker with extensions.
    Stream {
        /// The rounds in which GPUs may move from the rollout to the trainer: `long`, all rounds except the speculative (`short`) ones, or
        /// `all`. Default: `long`.
        rounds: RoundFilter = RoundFilter::Long,
        /// The trigger for moving GPUs: `never`; `fixed`, at the share `from` of completed responses; `adaptive`, at the first milestone at
        /// which the remaining responses are projected to fit on fewer instances; or `predicted`, as soon as moving GPUs is predicted to
        /// shorten the step. Default: `adaptive`.
        trigger: Trigger = Trigger::Adaptive,
        /// A share of completed responses: the trigger `fixed` moves GPUs at this share, `adaptive` has its first milestone there, and
        /// `predicted` moves no GPUs before it. In (0, 1]. Default: 0.2.
        from: f64 = 0.2,
        /// The upper bound of the milestones of `adaptive`, as a share of completed responses. From `stream.from` to 1. Default: 0.5.
        to: f64 = 0.5,
        /// The distance between two milestones of `adaptive`, as a share of completed responses. With `predicted`, the maximum distance
        /// between two predictions, which are more frequent when few responses remain. In (0, 1]. Default: 0.05.
        every: f64 = 0.05,
        /// The minimum share of the instances that keep generating when the trigger moves GPUs. `consolidate` may leave fewer. In (0, 1].
        /// Default: 0.5.
        keep: f64 = 0.5,
        /// With the trigger `adaptive`, the maximum share of the KV caches of the kept instances that the projected tokens of the running
        /// responses may fill. In (0, 1]. Default: 0.95.
        headroom: f64 = 0.95,
        /// `true` if the last responses may be merged onto fewer, wider instances. Default: `false`.
        consolidate: bool = false,
        /// Bandwidth at which an instance sends the KV caches of responses that move to other instances, in bytes/s: 0, or from 1e6 to
        /// 1e15. With 0, KV caches are not sent but computed again. Default: 0.
        kv_transfer_bandwidth: f64 = 0.0,
    }
}

section! {
    /// The section `[planner]`: the rule that chooses the tensor parallelism of the rollout.
    Planner {
        /// The rule that chooses the tensor parallelism: `fixed` keeps `rollout.tensor_parallel`, `paper` follows preemptions (RollPacker,
        /// section 4.3), and `predictive` chooses the shortest predicted round. Must be `fixed` unless the placement is `colocated` or
        /// `stream`. Default: `fixed`.
        rule: PlannerRule = PlannerRule::Fixed,
    }
}

section! {
    /// The section `[sim]`: the steps and the seeds that are simulated.
    Sim {
        /// The number of measured steps. From 1 to 1,000,000. Default: 40.
        steps: u64 = 40,
        /// The number of steps before the measured steps. From 0 to 1,000,000. Default: 0.
        warmup_steps: u64 = 0,
        /// The seed of the random lengths and durations of the first run of each configuration. Default: 1.
        seed: u64 = 1,
        /// The number of seeds, which are consecutive numbers from `seed`. From 1 to 1,000,000. Default: 1.
        seeds: u64 = 1,
    }
}

macro_rules! choice {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$variant_meta])* $variant,)* }
    };
}

choice! {
    /// The rule that selects the instance of a response.
    Dispatch {
        /// Each response goes to the next instance.
        RoundRobin,
        /// The prompts that are launched together are divided into one chunk of consecutive prompts per instance (veRL).
        PromptChunks,
        /// Each response goes to the instance with the fewest responses (Seer, and the torch engine of live runs).
        LeastLoaded,
    }
}

choice! {
    /// The layout of a replica of the trainer.
    Layout {
        /// The layout of `training.tensor_parallel`, `training.pipeline_parallel` and `training.context_parallel`.
        Written,
        /// The layout that is predicted to train fastest, among the layouts that fit, use as many GPUs as the layout as written, and keep
        /// each tensor-parallel group within a server. The layout as written if none fits.
        Planned,
    }
}

choice! {
    /// The time at which instances receive requests that are launched together.
    HandOut {
        /// Instances receive all requests when the last request of the batch is handed out (veRL, RollPacker).
        Together,
        /// An instance receives each request when the request itself is handed out.
        Streamed,
    }
}

choice! {
    /// The source of response lengths.
    Source {
        /// The length distributions of the three kinds of tasks in Fig. 2a of the RollPacker paper.
        Paper,
        /// Two log-normal modes per domain.
        TwoMode,
        /// Percentiles per domain.
        Empirical,
        /// Recorded responses.
        Trace,
    }
}

choice! {
    /// The GPUs of the judge.
    Judge {
        /// GPUs that the rollout does not use.
        Dedicated,
        /// The GPUs of the rollout.
        Colocated,
    }
}

choice! {
    /// The slot of the sandbox that a program waits for.
    SandboxWorkers {
        /// The next slot in turn, even if it is busy.
        InTurn,
        /// The slot that becomes free first.
        FirstFree,
    }
}

choice! {
    /// The way in which a colocated judge shares a GPU with the engine.
    JudgeSharing {
        /// The judge and the engine run at the same time.
        Mps,
        /// The judge and the engine run alternately.
        TimeSlicing,
    }
}

choice! {
    /// The trigger for moving GPUs from the rollout to the trainer.
    Trigger {
        /// GPUs do not move.
        Never,
        /// GPUs move at a fixed share of completed responses.
        Fixed,
        /// GPUs move at the first milestone at which the remaining responses are projected to fit on fewer instances.
        Adaptive,
        /// GPUs move as soon as this is predicted to shorten the step.
        Predicted,
    }
}

impl RawJob {
    /// Returns the dotted names of all keys of a job, like [`Recipe::keys`](crate::recipe::Recipe::keys) for recipes.
    #[must_use]
    pub fn keys() -> Vec<String> {
        crate::recipe::keys::all::<Self>()
    }
}
