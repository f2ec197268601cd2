//! What is written in a job: every key with its default, nothing checked yet.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rollpacker_operators::overlap::Scoring;
use rollpacker_operators::reward::Timeout;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::recipe::keys::{Sections, fields};
use crate::recipe::raw::section;
use crate::recipe::schedule;

section! {
    /// A job as written.
    RawJob {
        /// Devices.
        cluster: Cluster = Cluster::default(),
        /// The model that is trained.
        model: Model = Model::default(),
        /// How responses are generated.
        rollout: Rollout = Rollout::default(),
        /// How the trainer is laid out.
        training: Training = Training::default(),
        /// Prompts and batches.
        data: Data = Data::default(),
        /// How long responses are.
        lengths: Lengths = Lengths::default(),
        /// What kinds of tasks there are, and how they are rewarded.
        tasks: Tasks = Tasks::default(),
        /// Which prompts and responses a round launches and keeps: the section of recipes.
        schedule: schedule::Section = schedule::Section::default(),
        /// How the stages overlap.
        pipeline: Pipeline = Pipeline::default(),
        /// How the stream trainer decides, with `pipeline.placement = "stream"`.
        stream: Stream = Stream::default(),
        /// How the rollout's tensor parallelism is chosen.
        planner: Planner = Planner::default(),
        /// Constants of the cost model that replace those fitted to RollPacker's set-up; the fields of
        /// [`Calibration`](rollpacker_stages::cluster::Calibration).
        calibration: Option<Table> = None,
        /// Which steps are simulated.
        sim: Sim = Sim::default(),
    }
}

section! {
    /// `[cluster]`
    Cluster {
        /// `A100`, `H800`, `H100`, `H200`, `B200`, or a table of a device's data sheet.
        hardware: Value = Value::String("H800".to_owned()),
        /// GPUs of the job.
        gpus: u32 = 32,
        /// Controllers that share the work of handing out requests, collecting responses and passing batches on; the paper's systems have
        /// one.
        controllers: u32 = 1,
        /// GPUs of a server, within which a tensor-parallel group stays; left out, those of the hardware.
        gpus_per_server: Option<u32> = None,
    }
}

section! {
    /// `[model]`
    Model {
        /// `Qwen2.5-7B`, `Qwen2.5-14B`, `Qwen2.5-32B`, `Qwen3-1.7B` or `Qwen3-8B`.
        name: String = "Qwen2.5-14B".to_owned(),
        /// The numbers of another model; replaces `name`.
        shape: Option<Table> = None,
    }
}

section! {
    /// `[rollout]`
    Rollout {
        /// Responses of a group: R0.
        #[serde(alias = "num_generations", alias = "n_samples_per_prompt", alias = "group_size")]
        n: u32 = 8,
        /// GPUs over which an engine instance is sharded.
        #[serde(alias = "tensor_model_parallel_size")]
        tensor_parallel: u32 = 1,
        /// Responses that an instance runs at once.
        max_num_seqs: u32 = 256,
        /// Share of GPU memory for weights and KV cache; left out, the calibration's.
        gpu_memory_utilization: Option<f64> = None,
        /// `round_robin` by response, or `prompt_chunks`; left out, what the schedule's authors do.
        dispatch: Option<Dispatch> = None,
        /// Whether instances get what is launched at once when all of it is handed out, or each response when it is.
        hand_out: HandOut = HandOut::Together,
        /// Seconds between two looks at what has ended.
        report_interval_s: f64 = 0.01,
    }
}

section! {
    /// `[training]`
    Training {
        /// GPUs of a tensor-parallel group.
        tensor_parallel: u32 = 2,
        /// Pipeline stages.
        pipeline_parallel: u32 = 1,
        /// GPUs over which a sequence is split.
        context_parallel: u32 = 1,
        /// Tokens that sequences are packed into micro-batches of; a longer sequence is a micro-batch of its own, and 1 packs none.
        micro_batch_tokens: u32 = 16_384,
        /// Whether the devices of a copy are laid out as written, or in the way that is predicted to train fastest.
        layout: Layout = Layout::Written,
    }
}

impl Training {
    /// GPUs that hold one copy of the model.
    pub(super) fn replica(&self) -> u64 {
        let parts = [self.tensor_parallel, self.pipeline_parallel, self.context_parallel];
        parts.into_iter().fold(1, |product: u64, part| product.saturating_mul(part.into()))
    }
}

section! {
    /// `[data]`
    Data {
        /// Prompts of an epoch; left out, more than a run of the job reads.
        prompts: Option<u64> = None,
        /// The same in rounds.
        epoch_rounds: Option<u64> = None,
        /// Prompts of a step: P0.
        train_batch_size: usize = 128,
        /// Longest response in tokens.
        max_response_length: u32 = 16_384,
    }
}

section! {
    /// `[lengths]`
    Lengths {
        /// `paper`, `two_mode`, `empirical` or `trace`.
        source: Source = Source::Paper,
        /// The recorded responses of `trace`: a file or a folder.
        file: Option<PathBuf> = None,
        /// Its column of lengths; left out, found by name.
        length_column: Option<String> = None,
        /// Its column of prompt keys; left out, found by name.
        prompt_column: Option<String> = None,
        /// Its column of prompt lengths; left out, found by name. Prompts without one have a length drawn from `population`.
        prompt_length_column: Option<String> = None,
        /// Correlation of the lengths of two responses to a prompt, in ranks of a normal, in [0, 0.99], for `paper` and `trace`; left out,
        /// the calibration's, or both ends of what the trace leaves open.
        correlation: Option<f64> = None,
        /// Folder of the tokenizer that counts the tokens of a trace of texts.
        tokenizer: Option<PathBuf> = None,
        /// The distribution of each kind of task, for `two_mode` and `empirical`.
        domains: BTreeMap<String, Table> = BTreeMap::new(),
        /// Lengths of prompts and pass rates; left out, the calibration's.
        population: Option<Table> = None,
    }
}

section! {
    /// `[tasks]`: shares of the prompts, and what rewards them.
    Tasks {
        /// Share of math tasks.
        math: f64 = 1.0,
        /// Share of code tasks, run in a sandbox.
        code: f64 = 1.0,
        /// Share of tasks that a model judges.
        judge: f64 = 1.0,
        /// Programs that the sandbox runs at once; left out, 8 a GPU.
        sandbox_slots: Option<usize> = None,
        /// Which slot a program waits for; left out, `in_turn` if rewards follow the rollout and `first_free` if they are streamed.
        sandbox_workers: Option<SandboxWorkers> = None,
        /// Whether the judge has GPUs beside those of the job or shares those of the rollout; left out, what the schedule's authors do.
        judge_placement: Option<Judge> = None,
        /// How a judge that shares the GPUs of the rollout shares them.
        judge_sharing: JudgeSharing = JudgeSharing::Mps,
        /// Whether a sandbox waits as long for each run, or by what right answers took; left out, what the schedule's authors do.
        timeout: Option<Timeout> = None,
        /// The fixed time limit, and the upper bound of the adaptive one.
        timeout_s: f64 = 30.0,
        /// Whether the dataset says what a correct solution takes, which adaptive limits go by until a right answer is known; left out, it
        /// does.
        reference_time: Option<bool> = None,
        /// Share of the responses that an adaptive limit does not end before `timeout_s`, to learn how often it is wrong; left out, that of
        /// recipes.
        audit_share: Option<f64> = None,
    }
}

section! {
    /// `[pipeline]`: left out, what the authors of the schedule do; see [`super::job`].
    Pipeline {
        /// When responses are scored, as in recipes: `streamed` or `after_rollout`.
        reward: Option<Scoring> = None,
        /// When groups are trained on, as in recipes: `streamed`, `once` or `whole_step`.
        gradient: Option<String> = None,
        /// Groups that the trainer is given at once, as in recipes.
        max_groups: Option<usize> = None,
        /// Which GPUs generate and which train.
        placement: Option<Placement> = None,
        /// GPUs that train, with `placement = "separate"`; left out, half.
        training_gpus: Option<u32> = None,
        /// Steps that the sampling policy may lag behind: 0 is on-policy.
        staleness: u64 = 0,
    }
}

section! {
    /// `[stream]`: Algorithm 1 of RollPacker, and beyond.
    Stream {
        /// In which rounds GPUs may leave the rollout.
        rounds: StreamRounds = StreamRounds::Long,
        /// When they leave.
        trigger: Trigger = Trigger::Adaptive,
        /// Share of responses done: that of `fixed`, the first milestone of `adaptive`, the earliest of `predicted`.
        from: f64 = 0.2,
        /// The last milestone.
        to: f64 = 0.5,
        /// Between two.
        every: f64 = 0.05,
        /// Least share of the instances that keeps generating.
        keep: f64 = 0.5,
        /// Share of the kept KV caches that a projection may fill.
        headroom: f64 = 0.95,
        /// Whether the last responses may be merged onto fewer, wider instances.
        consolidate: bool = false,
    }
}

section! {
    /// `[planner]`
    Planner {
        /// `fixed`, `paper` or `predictive`.
        rule: PlannerRule = PlannerRule::Fixed,
    }
}

section! {
    /// `[sim]`
    Sim {
        /// Steps that count.
        steps: u64 = 40,
        /// Steps before them that do not.
        warmup_steps: u64 = 0,
        /// The first seed.
        seed: u64 = 1,
        /// How many seeds, each one more than the last.
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
    /// Which instance a response goes to.
    Dispatch {
        /// Each response to the next.
        RoundRobin,
        /// Consecutive prompts to the same (veRL).
        PromptChunks,
    }
}

choice! {
    /// How a replica of the trainer is laid out.
    Layout {
        /// As written.
        Written,
        /// As is predicted to train fastest, of the layouts that fit.
        Planned,
    }
}

choice! {
    /// When instances get the responses that are launched at once.
    HandOut {
        /// All when the last is handed out (veRL, RollPacker).
        Together,
        /// Each when it is handed out.
        Streamed,
    }
}

choice! {
    /// Where lengths come from.
    Source {
        /// RollPacker's Fig. 2a.
        Paper,
        /// Two log-normal modes a domain.
        TwoMode,
        /// Percentiles a domain.
        Empirical,
        /// Recorded responses.
        Trace,
    }
}

choice! {
    /// Where the judge runs.
    Judge {
        /// On GPUs that the rollout does not have.
        Dedicated,
        /// On those of the rollout.
        Colocated,
    }
}

choice! {
    /// Which slot of the sandbox a program waits for.
    SandboxWorkers {
        /// The next one in turn, busy or not (veRL).
        InTurn,
        /// The first that is free.
        FirstFree,
    }
}

choice! {
    /// How a colocated judge shares a GPU with the engine.
    JudgeSharing {
        /// Both run at the same time.
        Mps,
        /// They take turns.
        TimeSlicing,
    }
}

choice! {
    /// Which GPUs generate and which train.
    Placement {
        /// All generate, then all train.
        Colocated,
        /// Some generate and the others train.
        Separate,
        /// All generate, some train before the rollout ends.
        Stream,
    }
}

choice! {
    /// Kinds of rounds.
    StreamRounds {
        /// Those that wait for each response.
        Long,
        /// Speculative ones as well.
        All,
    }
}

choice! {
    /// When GPUs leave the rollout.
    Trigger {
        /// Never.
        Never,
        /// At a share of the responses.
        Fixed,
        /// At the first milestone at which the rest fits.
        Adaptive,
        /// When the step is predicted to end sooner.
        Predicted,
    }
}

choice! {
    /// How the rollout's tensor parallelism is chosen.
    PlannerRule {
        /// As written.
        Fixed,
        /// By preemptions (RollPacker, section 4.3).
        Paper,
        /// The shortest predicted round.
        Predictive,
    }
}

impl RawJob {
    /// Returns the dotted names of all keys that a job may have, as [`Raw::keys`](crate::recipe::Raw::keys) does of recipes.
    #[must_use]
    pub fn keys() -> Vec<String> {
        crate::recipe::keys::all::<Self>()
    }
}

impl Sections for RawJob {
    fn keys(section: &str) -> Option<&'static [&'static str]> {
        Some(match section {
            "" => fields::<Self>(),
            "cluster" => fields::<Cluster>(),
            "model" => fields::<Model>(),
            "rollout" => fields::<Rollout>(),
            "training" => fields::<Training>(),
            "data" => fields::<Data>(),
            "lengths" => fields::<Lengths>(),
            "tasks" => fields::<Tasks>(),
            "pipeline" => fields::<Pipeline>(),
            "stream" => fields::<Stream>(),
            "planner" => fields::<Planner>(),
            "sim" => fields::<Sim>(),
            _ => return None,
        })
    }
}
