//! The keys of a job with their defaults, before any check.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rollpacker_operators::curriculum::CurriculumOptions;
use rollpacker_operators::overlap::Scoring;
use rollpacker_operators::placement::RoundFilter;
use rollpacker_operators::reward::LimitMode;
use rollpacker_simulated::cluster::Calibration;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::bounds::RANGES;
use super::calibration_bounds;
use crate::placements::{Placements, PlannerRule};
use crate::recipe::aliases::{Alias, alias};
use crate::recipe::keys::{Section, Sections};
use crate::recipe::range;
use crate::recipe::section::section;
use crate::recipe::{Gradient, schedule};

section! {
    /// A job as written in TOML.
    RawJob {
        /// The devices.
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
        /// Constants of the cost model that replace those fitted to RollPacker's set-up.
        calibration: Option<Table> = None,
        /// The steps and seeds that are simulated.
        sim: Sim = Sim::default(),
    }
}

section! {
    /// The `[cluster]` section.
    Cluster {
        /// The device: `A100`, `H800`, `H100`, `H200`, `B200`, or a table with the data of another one: `name`, `flops` (dense bf16 peak in
        /// FLOP/s), `memory_bandwidth` (bytes/s), `memory` (bytes), `interconnect_bandwidth` (bytes/s per device in one direction) and
        /// `devices_per_server`. `cluster.hardware.memory=160e9` changes one value of a built-in device. Default: `H800`.
        hardware: Value = Value::String("H800".to_owned()),
        /// The number of GPUs of the job. Default: 32.
        gpus: u32 = 32,
        /// The number of controllers that share the work of handing out requests, collecting responses and passing on batches. Default: 1,
        /// as in the papers' systems.
        controllers: u32 = 1,
        /// The number of GPUs of a server; a tensor-parallel group stays within one. Default: that of the hardware.
        gpus_per_server: Option<u32> = None,
    }
}

section! {
    /// The `[model]` section.
    Model {
        /// The model: `Qwen2.5-7B`, `Qwen2.5-14B`, `Qwen2.5-32B`, `Qwen3-1.7B` or `Qwen3-8B`. Default: `Qwen2.5-14B`.
        name: String = "Qwen2.5-14B".to_owned(),
        /// The shape of a model that is not built in, a table of `name`, `parameters`, `layers`, `hidden_size`, `kv_heads` and `head_dim`;
        /// replaces `name`.
        shape: Option<Table> = None,
    }
}

section! {
    /// The `[rollout]` section.
    Rollout {
        /// The number of responses to a prompt, R0 in the paper. Default: 8. (verl: `rollout.n`, TRL: `num_generations`)
        n: u32 = 8,
        /// The number of GPUs over which an engine instance is sharded: a divisor of `cluster.gpus`. Default: 1.
        /// (verl: `rollout.tensor_model_parallel_size`)
        tensor_parallel: u32 = 1,
        /// Maximum number of responses that an instance runs at once. Default: 256. (verl: `rollout.max_num_seqs`)
        max_num_seqs: u32 = 256,
        /// The share of GPU memory for weights and KV cache. Default: that of the calibration. (verl:
        /// `rollout.gpu_memory_utilization`)
        gpu_memory_utilization: Option<f64> = None,
        /// Dispatch of responses to instances: `round_robin`, `prompt_chunks` or `least_loaded`. Default: as the authors of the schedule
        /// do.
        dispatch: Option<Dispatch> = None,
        /// The time at which instances receive requests that are launched together: `together` once all of them are handed out, `streamed`
        /// each one immediately. Default: `together`.
        hand_out: HandOut = HandOut::Together,
        /// Interval between two checks for ended responses, in seconds. Default: 0.01.
        report_interval_s: f64 = 0.01,
    }
}

section! {
    /// The `[training]` section.
    Training {
        /// The number of GPUs of a tensor-parallel group. Default: 2.
        tensor_parallel: u32 = 2,
        /// The number of pipeline stages. Default: 1.
        pipeline_parallel: u32 = 1,
        /// The number of GPUs over which a sequence is split. Default: 1.
        context_parallel: u32 = 1,
        /// The size of a micro-batch into which sequences are packed, in tokens; a longer sequence is a micro-batch of its own, and 1
        /// disables packing. Default: 16384.
        micro_batch_tokens: u32 = 16_384,
        /// The layout of a copy of the model: `written`, or `planned`, the one that is predicted to train fastest. Default: `written`.
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
    /// The `[data]` section.
    Data {
        /// The number of prompts of an epoch. Default: more than a run of the job reads.
        prompts: Option<u64> = None,
        /// The number of prompts of an epoch, in rounds; an alternative to `prompts`.
        epoch_rounds: Option<u64> = None,
        /// The number of prompts per step, P0 in the paper. Default: 128. (verl: `data.train_batch_size`)
        train_batch_size: usize = 128,
        /// Maximum length of a response, in tokens. Default: 16384. (verl: `data.max_response_length`, TRL: `max_completion_length`)
        max_response_length: u32 = 16_384,
        /// Skips prompts by their pass rate, as in a live run. Needs an epoch that the run reads more than once. Default: none.
        #[serde(skip_serializing_if = "Option::is_none")]
        curriculum: Option<CurriculumOptions> = None,
    }
}

section! {
    /// The `[lengths]` section.
    Lengths {
        /// The source of lengths: `paper`, `two_mode`, `empirical` or `trace`. Default: `paper`.
        source: Source = Source::Paper,
        /// The recorded responses of `trace`: a file or a folder.
        file: Option<PathBuf> = None,
        /// The column of response lengths. Default: found by name.
        length_column: Option<String> = None,
        /// The column of prompt keys. Default: found by name.
        prompt_column: Option<String> = None,
        /// The column of prompt lengths. Default: found by name. Where no length is recorded, it is drawn from `population`.
        prompt_length_column: Option<String> = None,
        /// The correlation of the lengths of two responses to a prompt, as the correlation of their normal scores (Gaussian copula),
        /// for `paper` and `trace`. Default: that of the calibration, or both ends of the interval that the trace allows.
        correlation: Option<f64> = None,
        /// The folder of the tokenizer that counts the tokens of a trace of texts.
        tokenizer: Option<PathBuf> = None,
        /// The length distribution of each kind of task, for `two_mode` and `empirical`.
        domains: BTreeMap<String, Table> = BTreeMap::new(),
        /// The distributions of prompt lengths and pass rates. Default: those of the calibration.
        population: Option<Table> = None,
    }
}

section! {
    /// `[tasks]`: shares of the kinds of tasks, and how they are rewarded.
    Tasks {
        /// The share of math tasks.
        math: f64 = 1.0,
        /// The share of code tasks, which run in a sandbox.
        code: f64 = 1.0,
        /// The share of tasks that a model judges.
        judge: f64 = 1.0,
        /// The number of programs that the sandbox runs at once. Default: 8 per GPU.
        sandbox_slots: Option<usize> = None,
        /// The slot that a program waits for: the `first_free` one, or the next one `in_turn` even if it is busy. Default: `first_free`.
        sandbox_workers: SandboxWorkers = SandboxWorkers::FirstFree,
        /// The GPUs of the judge: `dedicated` ones, which `cluster.gpus` does not count, or those of the rollout (`colocated`). Default: as
        /// the authors of the schedule do, which is `dedicated` for `sync`, `fused` and `longest_first`.
        judge_placement: Option<Judge> = None,
        /// Sharing of the rollout's GPUs with a colocated judge: `mps` or `time_slicing`. Default: `mps`.
        judge_sharing: JudgeSharing = JudgeSharing::Mps,
        /// The time limits of the sandbox: `fixed`, or `adaptive` to the time that correct answers took. Default: as the authors of the
        /// schedule do.
        timeout: Option<LimitMode> = None,
        /// The fixed time limit, and the upper bound of the adaptive one, in seconds. Default: 30.
        timeout_s: f64 = 30.0,
        /// `true` if the dataset contains the time that a correct solution takes, which adaptive limits use until a correct answer is
        /// known. Default: `true`.
        reference_time: Option<bool> = None,
        /// The share of responses that an adaptive limit does not end before `timeout_s`, to measure how often the limit is wrong. Default:
        /// that of recipes.
        audit_share: Option<f64> = None,
    }
}

section! {
    /// `[pipeline]`: keys that are left out default to what the authors of the schedule do; see [`super::job`].
    Pipeline {
        /// The time of scoring, as in recipes: `streamed` or `after_rollout`. Default: as the authors of the schedule do.
        reward: Option<Scoring> = None,
        /// The time at which groups are fetched for training, as in recipes: `streamed`, `once` or `whole_step`. Default: as the authors of
        /// the schedule do.
        gradient: Option<Gradient> = None,
        /// Maximum number of groups that the trainer receives at once, as in recipes.
        max_groups: Option<usize> = None,
        /// The assignment of GPUs: `colocated`, where all GPUs generate and then all train; `separate`, where some generate and the others
        /// train; `stream`, where some begin to train before the rollout ends; or the name of a placement that the program
        /// [adds](crate::App::placement). Default: as the authors of the schedule do.
        placement: Option<String> = None,
        /// Options of a placement that the program adds. Default: none.
        placement_options: Table = Table::new(),
        /// The placements that the program adds.
        #[serde(skip)]
        placements: Placements = Placements::default(),
        /// The number of GPUs that train, with `placement = "separate"`. Default: half of them.
        training_gpus: Option<u32> = None,
        /// Maximum number of steps by which the sampling policy may lag behind. Default: 0, which is on-policy.
        staleness: u64 = 0,
    }
}

section! {
    /// `[stream]`: the stream trainer, Algorithm 1 of RollPacker with extensions.
    Stream {
        /// The rounds in which GPUs may move from the rollout to the trainer. Default: `long`.
        rounds: RoundFilter = RoundFilter::Long,
        /// The trigger for moving GPUs: `never`, `fixed`, `adaptive` or `predicted`. Default: `adaptive`.
        trigger: Trigger = Trigger::Adaptive,
        /// A share of completed responses: that of `fixed`, the first milestone of `adaptive`, or the earliest one of `predicted`. Default:
        /// 0.2.
        from: f64 = 0.2,
        /// The last milestone of `adaptive`, as a share of completed responses. Default: 0.5.
        to: f64 = 0.5,
        /// The distance between two milestones. Default: 0.05.
        every: f64 = 0.05,
        /// The least share of the instances that keeps generating. Default: 0.5.
        keep: f64 = 0.5,
        /// The share of the remaining KV caches that the projected need may fill. Default: 0.95.
        headroom: f64 = 0.95,
        /// `true` if the last responses may be merged onto fewer, wider instances. Default: `false`.
        consolidate: bool = false,
        /// Bandwidth at which an instance sends the KV caches of responses that move to other instances, in bytes/s. With 0,
        /// KV caches are not sent but computed again. Default: 0.
        kv_transfer_bandwidth: f64 = 0.0,
    }
}

section! {
    /// The `[planner]` section.
    Planner {
        /// The rule that chooses the tensor parallelism: `fixed`, `paper` or `predictive`. Default: `fixed`.
        rule: PlannerRule = PlannerRule::Fixed,
    }
}

section! {
    /// The `[sim]` section.
    Sim {
        /// The number of measured steps. Default: 40.
        steps: u64 = 40,
        /// The number of steps before the measured ones. Default: 0.
        warmup_steps: u64 = 0,
        /// The first seed. Default: 1.
        seed: u64 = 1,
        /// The number of seeds, each one more than the previous. Default: 1.
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
    /// The instance that receives a response.
    Dispatch {
        /// Each response goes to the next instance.
        RoundRobin,
        /// Consecutive prompts go to the same instance (veRL).
        PromptChunks,
        /// Each response goes to the instance with the fewest responses (Seer, and the live engines).
        LeastLoaded,
    }
}

choice! {
    /// The layout of a replica of the trainer.
    Layout {
        /// The layout as written.
        Written,
        /// The layout that is predicted to train fastest, among those that fit.
        Planned,
    }
}

choice! {
    /// The time at which instances receive requests that are launched together.
    HandOut {
        /// When the last request of the batch is handed out (veRL, RollPacker).
        Together,
        /// When the request itself is handed out.
        Streamed,
    }
}

choice! {
    /// The source of response lengths.
    Source {
        /// RollPacker's Fig. 2a.
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
        /// The next slot in turn, busy or not.
        InTurn,
        /// The first free slot.
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
        /// At a fixed share of completed responses.
        Fixed,
        /// At the first milestone at which the remaining responses fit on fewer instances.
        Adaptive,
        /// As soon as moving GPUs is predicted to shorten the step.
        Predicted,
    }
}

/// The aliases that jobs accept.
static ALIASES: [Alias; 4] = [
    alias("rollout", "num_generations", "n", "TRL"),
    alias("rollout", "n_samples_per_prompt", "n", "slime, SkyRL, OpenRLHF"),
    alias("rollout", "group_size", "n", "prime-rl"),
    alias("rollout", "tensor_model_parallel_size", "tensor_parallel", "verl"),
];

impl RawJob {
    /// Returns the dotted names of all keys of a job, like [`Recipe::keys`](crate::recipe::Recipe::keys) for recipes.
    #[must_use]
    pub fn keys() -> Vec<String> {
        crate::recipe::keys::all::<Self>()
    }
}

impl Sections for RawJob {
    fn section(name: &str) -> Option<Section> {
        Some(match name {
            "" => Section::of::<Self>(),
            "cluster" => Section::of::<Cluster>(),
            "model" => Section::of::<Model>(),
            "rollout" => Section::of::<Rollout>(),
            "training" => Section::of::<Training>(),
            "data" => Section::of::<Data>(),
            "data.curriculum" => Section::of::<CurriculumOptions>(),
            "lengths" => Section::of::<Lengths>(),
            "tasks" => Section::of::<Tasks>(),
            "pipeline" => Section::of::<Pipeline>(),
            "stream" => Section::of::<Stream>(),
            "planner" => Section::of::<Planner>(),
            "calibration" => Section::of::<Calibration>(),
            "sim" => Section::of::<Sim>(),
            _ => return None,
        })
    }

    fn aliases() -> &'static [Alias] {
        &ALIASES
    }

    fn range(key: &str) -> Option<String> {
        match key.strip_prefix("calibration.") {
            Some(constant) => calibration_bounds::range_of(constant),
            None => range::words_of(RANGES, key),
        }
    }
}
