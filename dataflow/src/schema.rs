//! The schemas of the streams: the columns of each batch, with their units.
//!
//! Token ids travel end to end as `i32`. The text of a response travels with the token ids, for rewards and for human readers, and is never
//! tokenized again. The text of its prompt travels once, in [`TEXTS`]. Log-probabilities (nats) and policy versions travel with the tokens.
//! Every list column that holds a quantity per token of the response is empty or aligned with `response_ids`: one entry per token. Policy
//! versions are runs of tokens instead. "Shared" columns are [shared lists](crate::shared_list), which
//! [`Batch::lists`](crate::batch::Batch::lists) reads like `List` columns.

use std::sync::{Arc, LazyLock};

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};

pub use crate::shared_list::list_item;
use crate::shared_list::shared_list;

/// Column names, one constant each.
pub mod column {
    /// `UInt64`: the prompt, [`crate::step::PromptId`].
    pub const PROMPT_ID: &str = "prompt_id";
    /// `UInt32`: the epoch in which the prompt was read, from 0.
    pub const EPOCH: &str = "epoch";
    /// `UInt64`: the row of the dataset, counted over its files in order, from 0.
    pub const ROW: &str = "row";
    /// `Utf8`: the source of the prompt, by which rewards are routed. Nullable in [requests](super::REQUESTS) and responses.
    pub const DATA_SOURCE: &str = "data_source";
    /// `Utf8`: the kind of task, to which the quotas of a schedule apply; the data source if the row of the dataset names none.
    pub const DOMAIN: &str = "domain";
    /// `Utf8`: the prompt as chat messages, a JSON array of `{role, content}`.
    pub const MESSAGES: &str = "messages";
    /// Shared `Int32`: the prompt as token ids, with the chat template applied. In simulations, the ids only identify the prompt.
    pub const PROMPT_IDS: &str = "prompt_ids";
    /// `UInt32`, tokens: the length of the prompt, also if `prompt_ids` only identifies the prompt.
    pub const PROMPT_LENGTH: &str = "prompt_length";
    /// `Utf8`, nullable: the reference answer; structured answers as JSON.
    pub const GROUND_TRUTH: &str = "ground_truth";
    /// `Utf8`, nullable: the `extra_info` of the prompt and the configured extra columns of the dataset, as a JSON object.
    pub const EXTRA_INFO: &str = "extra_info";
    /// `UInt64`: the step that launched a response or continues it after a pause, [`crate::step::Step`].
    pub const STEP: &str = "step";
    /// `UInt8`: 0 launches responses, 1 aborts, 2 pauses, 3 reports that a tick has passed; see [`super::REQUESTS`].
    pub const ACTION: &str = "action";
    /// `UInt32`: the index of the response among the responses to its prompt, from 0.
    pub const SAMPLE: &str = "sample";
    /// `UInt32`: the number of responses, starting at `sample`.
    pub const SAMPLES: &str = "samples";
    /// `UInt64`: a policy, [`crate::step::PolicyVersion`]. For a response, the policy that sampled its first token, or the policy of its
    /// first launch if the engine reported no version per token.
    pub const POLICY_VERSION: &str = "policy_version";
    /// `UInt32`, tokens: the length of the response. The token lists of the response are empty if the engine counts tokens without sampling
    /// them.
    pub const RESPONSE_LENGTH: &str = "response_length";
    /// `UInt32`, tokens: the number of tokens of the response that earlier steps sampled. It is 0 if this step launched the response. It is
    /// the whole length if the response ended in an earlier step and was kept for this step.
    pub const RESUMED_LENGTH: &str = "resumed_length";
    /// Shared `Int32`: the sampled tokens, including the end-of-sequence token if it was sampled.
    pub const RESPONSE_IDS: &str = "response_ids";
    /// `Utf8View`: the response as text, without special tokens.
    pub const RESPONSE_TEXT: &str = "response_text";
    /// Shared `Float32`, nats: the log-probability of each token under the policy that sampled it.
    pub const LOGPROBS: &str = "logprobs_nats";
    /// `List<UInt64>`: the policy versions that sampled the tokens, one entry for each run of consecutive tokens of the same version. Files
    /// have [`TOKEN_VERSIONS`] instead.
    pub const VERSIONS: &str = "versions";
    /// `List<UInt32>`: the number of tokens of each run of [`VERSIONS`].
    pub const VERSION_TOKENS: &str = "version_tokens";
    /// `List<UInt64>`: the policy version that sampled each token, in files.
    pub const TOKEN_VERSIONS: &str = "token_versions";
    /// `Utf8`: `stop`, `length`, `abort`, or `pause` for a response that continues in a later step.
    pub const FINISH_REASON: &str = "finish_reason";
    /// `UInt64`, nullable: a [tick](crate::step::Tick) of lockstep mode: in requests, the tick that has passed; in notices, the tick at
    /// which the response ended.
    pub const TICK: &str = "tick";
    /// `UInt64`: the number of request rows that a worker has received since the start of the run.
    pub const RECEIVED_ROWS: &str = "taken_in_rows";
    /// `UInt64`: a lower bound: every response in flight at a worker ends after this tick; `u64::MAX` if none is in flight.
    pub const FLOOR: &str = "floor_tick";
    /// `UInt32`: the number of engine instances that generate.
    pub const INSTANCES: &str = "instances";
    /// `UInt32`: the number of devices over which an engine instance is sharded.
    pub const TENSOR_PARALLEL: &str = "tensor_parallel";
    /// `UInt32`: the number of devices on which the trainer runs.
    pub const TRAINING_DEVICES: &str = "training_devices";
    /// `UInt64`, nanoseconds of the run's clock: the time at which the engine admitted the response; equal to `finished_ns` if the response
    /// was dropped before.
    pub const STARTED: &str = "started_ns";
    /// `UInt64`, nanoseconds of the run's clock: the time at which the last token was sampled, or at which the response was dropped.
    pub const FINISHED: &str = "finished_ns";
    /// `UInt32`: the number of times that the engine preempted the response and recomputed its KV cache.
    pub const PREEMPTIONS: &str = "preemptions";
    /// `UInt32`: the engine instance that finished the response. Instance `i` of worker `w`, of `n` workers, has the number `i * n + w`.
    pub const INSTANCE: &str = "instance";
    /// `Float64`: the reward, including token rewards; NaN if an error drops the response's group.
    pub const SCORE: &str = "score";
    /// `Utf8`: the components of the reward by name, a JSON object of numbers.
    pub const COMPONENTS: &str = "components";
    /// `Utf8`: details of the reward for human readers by name, a JSON object of strings, such as an outcome or the extracted answer.
    pub const LABELS: &str = "labels";
    /// Shared `Float32`: the reward of each token, included in `score`; empty if there are no token rewards.
    pub const TOKEN_SCORES: &str = "token_scores";
    /// `Utf8`, nullable: the reason why the score, or a part of it, could not be computed; null if there was no error.
    pub const REWARD_ERROR: &str = "reward_error";
    /// `UInt64`, nanoseconds: the duration of scoring the response, plus that of scoring its group if a group reward applies.
    pub const REWARD_TIME: &str = "reward_time_ns";
    /// `UInt64`, nanoseconds of the run's clock: the time at which the score became known.
    pub const SCORED_AT: &str = "scored_ns";
    /// `UInt32`: the index of the test case among the test cases of the prompt, from 0.
    pub const CASE: &str = "case";
    /// `UInt64`, nanoseconds: the duration of an execution, without the time that it waited for a processor.
    pub const TOOK: &str = "took_ns";
    /// `UInt64`, nanoseconds: the time limit of the execution.
    pub const LIMIT: &str = "limit_ns";
    /// `Boolean`: `true` if the execution ended with the right result. In an audit, it may have ended after its limit.
    pub const CORRECT: &str = "correct";
    /// `Boolean`: `true` if the execution was allowed to run past its limit.
    pub const AUDITED: &str = "audited";
    /// `Float32`: the weight of the response in the loss; 1 unless a schedule corrects for selection bias.
    pub const WEIGHT: &str = "weight";
    /// Shared `Float32`: the advantage of each token.
    pub const ADVANTAGES: &str = "advantages";
    /// Shared `Float32`: the target of the critic at each token; empty without a critic.
    pub const RETURNS: &str = "returns";
    /// Shared `Float32`: the prediction of the critic at each token before the update; empty without a critic.
    pub const VALUES: &str = "values";
    /// Shared `Float32`, nats: the log-probability of each token under the reference policy; empty unless it was computed before the
    /// gradient.
    pub const REF_LOGPROBS: &str = "ref_logprobs_nats";
    /// Shared `Float32`, nats: the estimated KL divergence from the reference policy at each token; empty unless it is subtracted from
    /// rewards.
    pub const REWARD_KL: &str = "reward_kl_nats";
    /// `Utf8`: the location of the weights, in a format that the trainer defines.
    pub const LOCATION: &str = "location";
    /// `UInt64`: a digest of the weights.
    pub const DIGEST: &str = "digest";
    /// `Utf8`: the decision of the schedule: `open`, `admit`, `defer`, `reject`, `pause` or `close`.
    pub const DECISION: &str = "decision";
    /// `Utf8`: the reason for a decision or a placement, in a few words; empty for the decision `close`.
    pub const REASON: &str = "reason";
    /// `List<UInt32>`: the samples that the decision `admit` or `pause` applies to; empty for other decisions.
    pub const ADMITTED: &str = "admitted_samples";
    /// `List<Float32>`: the weight in the loss of each sample in [`ADMITTED`]; empty if all weights are 1.
    pub const WEIGHTS: &str = "admitted_weights";
    /// `Utf8`: the kind of round: `full`, `short` (a speculative round) or `long` (a round of deferred prompts).
    pub const ROUND: &str = "round";
    /// `UInt64`: the number of deferred prompts that the schedule holds when the round closes; 0 for decisions other than `close`.
    pub const QUEUE_LENGTH: &str = "queue_length";
    /// `UInt64`: the number of rounds since the deferral of the oldest prompt that [`QUEUE_LENGTH`] counts; 0 if it counts none.
    pub const QUEUE_AGE: &str = "queue_age_rounds";
    /// `Utf8`: the name of a metric, as shown to users, or of a sum in [totals](super::TOTALS).
    pub const NAME: &str = "name";
    /// `Float64`: the value of a metric or of a sum.
    pub const VALUE: &str = "value";
    /// `Utf8`: the operator that reports an error or a part of a snapshot.
    pub const OPERATOR: &str = "operator";
    /// `Utf8`: the [origin](crate::fault::Origin) of an error.
    pub const ORIGIN: &str = "origin";
    /// `Utf8`: the [kind](crate::fault::FaultKind) of an error.
    pub const KIND: &str = "kind";
    /// `Boolean`: `true` if an error occurred in the step of its row, `false` if it belongs to no step.
    pub const IN_STEP: &str = "in_step";
    /// `UInt32`: a worker of the graph. It is the sender of a notice or of a part of a snapshot, the receiver of a request, a text or a
    /// decision, or the owner of a chunk of a gradient. Nullable in decisions: a decision about a prompt goes to the worker that holds the
    /// prompt, and other decisions have null and go to all workers.
    pub const WORKER: &str = "worker";
    /// `Utf8`, nullable: a file of a snapshot, relative to the folder of the run's snapshots; null if the worker has no file or could not
    /// write it. The columns about the file are then 0 or empty.
    pub const PATH: &str = "path";
    /// `UInt64`, bytes: the length of the file.
    pub const LENGTH: &str = "length_bytes";
    /// `Utf8`: the SHA-256 of the file, in hexadecimal.
    pub const SHA256: &str = "sha256";
    /// `UInt32`: the version of the file's layout, numbered by the operator that wrote it.
    pub const SCHEMA_VERSION: &str = "schema_version";
    /// `Utf8`: metadata that an operator stores in addition to its file, a JSON object.
    pub const FACTS: &str = "facts";
    /// `UInt64`, nullable: the last step that is included in an operator's state; null if there is none.
    pub const REACHED: &str = "reached_step";
    /// `UInt32`: the worker that sent the row.
    pub const SOURCE: &str = "source";
    /// `UInt32`: the index of the chunk within a gradient, from 0.
    pub const CHUNK: &str = "chunk";
    /// `List<Int64>`: fixed-point numbers; empty if the chunk holds floats.
    pub const FIXED: &str = "fixed";
    /// `List<Float64>`: floating-point numbers; empty if the chunk holds fixed-point numbers.
    pub const FLOATS: &str = "floats";
    /// `Utf8`: the description of an error; null in a part of a snapshot without an error.
    pub const MESSAGE: &str = "message";
}

use column::*;

/// Prompts, as read from a dataset and tokenized; one row per prompt.
pub static PROMPTS: LazyLock<SchemaRef> = LazyLock::new(|| {
    schema([
        required(PROMPT_ID, DataType::UInt64),
        required(EPOCH, DataType::UInt32),
        required(ROW, DataType::UInt64),
        required(DOMAIN, DataType::Utf8),
        shared_list(PROMPT_IDS, &DataType::Int32),
        required(PROMPT_LENGTH, DataType::UInt32),
        required(DATA_SOURCE, DataType::Utf8),
        required(MESSAGES, DataType::Utf8),
        Field::new(GROUND_TRUTH, DataType::Utf8, true),
        Field::new(EXTRA_INFO, DataType::Utf8, true),
    ])
});

/// Requests of the schedule to the rollout, in order. A request concerns `samples` responses of a prompt, starting at `sample`. `action` 0
/// launches them, 1 aborts them, and 2 pauses them: it stops them and keeps their tokens for a later launch. In lockstep mode, `action` 3
/// reports that `tick` has passed: responses that ended by then may be emitted, and the requests that follow apply at that tick. Only
/// launches carry the prompt: in the other rows, `prompt_ids` is empty, `prompt_length` is 0, and `data_source` and `row` are null.
pub static REQUESTS: LazyLock<SchemaRef> = LazyLock::new(|| {
    schema([
        required(ACTION, DataType::UInt8),
        required(PROMPT_ID, DataType::UInt64),
        required(SAMPLE, DataType::UInt32),
        required(SAMPLES, DataType::UInt32),
        required(POLICY_VERSION, DataType::UInt64),
        shared_list(PROMPT_IDS, &DataType::Int32),
        required(PROMPT_LENGTH, DataType::UInt32),
        Field::new(DATA_SOURCE, DataType::Utf8, true),
        Field::new(ROW, DataType::UInt64, true),
        required(WORKER, DataType::UInt32),
        Field::new(TICK, DataType::UInt64, true),
    ])
});

/// The parts of launched prompts that only rewards and human readers need, one row per prompt and step, sent with the first launch of the
/// prompt in the step. Operators join them with responses by the id of the prompt.
pub static TEXTS: LazyLock<SchemaRef> = LazyLock::new(|| {
    schema([
        required(PROMPT_ID, DataType::UInt64),
        required(MESSAGES, DataType::Utf8),
        Field::new(GROUND_TRUTH, DataType::Utf8, true),
        Field::new(EXTRA_INFO, DataType::Utf8, true),
        required(WORKER, DataType::UInt32),
    ])
});

/// Progress reports of a rollout in lockstep mode. All rows of a report are in one batch. The first row holds the progress of its `worker`.
/// The other rows are responses of this worker, one row each, in any order. Since the previous report, they ended, were aborted or paused,
/// or were returned again after a pause.
pub static NOTICES: LazyLock<SchemaRef> = LazyLock::new(|| {
    schema([
        required(WORKER, DataType::UInt32),
        required(RECEIVED_ROWS, DataType::UInt64),
        required(FLOOR, DataType::UInt64),
        Field::new(STEP, DataType::UInt64, true),
        Field::new(PROMPT_ID, DataType::UInt64, true),
        Field::new(SAMPLE, DataType::UInt32, true),
        Field::new(TICK, DataType::UInt64, true),
        Field::new(RESPONSE_LENGTH, DataType::UInt32, true),
        Field::new(FINISH_REASON, DataType::Utf8, true),
    ])
});

/// Responses, one row each, emitted as soon as the engine finishes or stops them. Aborted and paused responses are included, with the
/// tokens that they had. A response that ended in an earlier step and was kept is emitted again when a later step launches its prompt.
pub static RESPONSES: LazyLock<SchemaRef> = LazyLock::new(|| schema(response_fields()));

/// Scored responses: [`RESPONSES`] with the reward.
pub static SCORED: LazyLock<SchemaRef> =
    LazyLock::new(|| schema(response_fields().into_iter().chain(score_fields())));

/// Scored responses of complete groups with the outputs of the trainer's models, before advantages are estimated.
pub static INFERRED: LazyLock<SchemaRef> = LazyLock::new(|| {
    schema(response_fields().into_iter().chain(score_fields()).chain(inferred_fields()))
});

/// Complete groups: [`INFERRED`] with the advantages. The rows of one prompt are adjacent, in the order of their samples, and never split
/// over two batches.
pub static GROUPS: LazyLock<SchemaRef> = LazyLock::new(|| {
    schema(
        response_fields()
            .into_iter()
            .chain(score_fields())
            .chain(inferred_fields())
            .chain([ADVANTAGES, RETURNS].map(|name| shared_list(name, &DataType::Float32))),
    )
});

/// Policy versions: handles of published weights. The weights themselves do not travel on the stream.
pub static POLICIES: LazyLock<SchemaRef> = LazyLock::new(|| {
    schema([
        required(POLICY_VERSION, DataType::UInt64),
        required(LOCATION, DataType::Utf8),
        required(DIGEST, DataType::UInt64),
    ])
});

/// Decisions of the schedule about rounds, groups and pauses, in the order in which they were taken. Launches and aborts are [`REQUESTS`]
/// only.
pub static DECISIONS: LazyLock<SchemaRef> = LazyLock::new(|| {
    schema([
        required(DECISION, DataType::Utf8),
        Field::new(PROMPT_ID, DataType::UInt64, true),
        list(ADMITTED, DataType::UInt32),
        list(WEIGHTS, DataType::Float32),
        required(REASON, DataType::Utf8),
        required(ROUND, DataType::Utf8),
        required(QUEUE_LENGTH, DataType::UInt64),
        required(QUEUE_AGE, DataType::UInt64),
        Field::new(WORKER, DataType::UInt32, true),
    ])
});

/// The devices of rollout and trainer, valid from the arrival of the row.
pub static PLACEMENTS: LazyLock<SchemaRef> = LazyLock::new(|| {
    schema([
        required(INSTANCES, DataType::UInt32),
        required(TENSOR_PARALLEL, DataType::UInt32),
        required(TRAINING_DEVICES, DataType::UInt32),
        required(REASON, DataType::Utf8),
    ])
});

/// Executions of test cases, one row each, emitted together with the score that they led to.
pub static EXECUTIONS: LazyLock<SchemaRef> = LazyLock::new(|| {
    schema([
        required(ROW, DataType::UInt64),
        required(CASE, DataType::UInt32),
        required(TOOK, DataType::UInt64),
        required(LIMIT, DataType::UInt64),
        required(CORRECT, DataType::Boolean),
        required(AUDITED, DataType::Boolean),
    ])
});

/// The longest correct executions of test cases: one row for each test case whose longest execution has changed since the previous step.
pub static ANCHORS: LazyLock<SchemaRef> = LazyLock::new(|| {
    schema([
        required(ROW, DataType::UInt64),
        required(CASE, DataType::UInt32),
        required(TOOK, DataType::UInt64),
    ])
});

/// Metrics of a step, one row each.
pub static METRICS: LazyLock<SchemaRef> =
    LazyLock::new(|| schema([required(NAME, DataType::Utf8), required(VALUE, DataType::Float64)]));

/// Chunks of gradients, one row each. They hold numerators, which are summed over workers; the denominators are in [`TOTALS`]. `worker` is
/// the worker that owns the chunk.
pub static GRADIENTS: LazyLock<SchemaRef> = LazyLock::new(|| {
    schema([
        required(WORKER, DataType::UInt32),
        required(SOURCE, DataType::UInt32),
        required(CHUNK, DataType::UInt32),
        list(FIXED, DataType::Int64),
        list(FLOATS, DataType::Float64),
    ])
});

/// Sums that accompany gradients, one row each: denominators and the sums of metrics. A sum covers the responses of one unit of
/// computation, named by its prompt and first sample, or all responses of `source`.
pub static TOTALS: LazyLock<SchemaRef> = LazyLock::new(|| {
    schema([
        required(SOURCE, DataType::UInt32),
        required(PROMPT_ID, DataType::UInt64),
        required(SAMPLE, DataType::UInt32),
        required(NAME, DataType::Utf8),
        required(VALUE, DataType::Float64),
    ])
});

/// Errors, one row each, on streams separate from the data.
pub static ERRORS: LazyLock<SchemaRef> = LazyLock::new(|| {
    schema([
        required(OPERATOR, DataType::Utf8),
        required(ORIGIN, DataType::Utf8),
        required(KIND, DataType::Utf8),
        required(IN_STEP, DataType::Boolean),
        Field::new(PROMPT_ID, DataType::UInt64, true),
        Field::new(SAMPLE, DataType::UInt32, true),
        required(MESSAGE, DataType::Utf8),
    ])
});

/// Parts of snapshots, one row per operator and worker of each snapshot, emitted once the file is durable. If the file could not be
/// written, the row holds a message instead.
pub static PARTS: LazyLock<SchemaRef> = LazyLock::new(|| {
    schema([
        required(OPERATOR, DataType::Utf8),
        required(WORKER, DataType::UInt32),
        Field::new(REACHED, DataType::UInt64, true),
        Field::new(PATH, DataType::Utf8, true),
        required(LENGTH, DataType::UInt64),
        required(SHA256, DataType::Utf8),
        required(SCHEMA_VERSION, DataType::UInt32),
        required(FACTS, DataType::Utf8),
        Field::new(MESSAGE, DataType::Utf8, true),
    ])
});

/// Returns every stream schema with its name, for tests that cover all of them.
#[must_use]
pub fn all() -> [(&'static str, SchemaRef); 18] {
    [
        ("prompts", PROMPTS.clone()),
        ("requests", REQUESTS.clone()),
        ("texts", TEXTS.clone()),
        ("notices", NOTICES.clone()),
        ("responses", RESPONSES.clone()),
        ("scored", SCORED.clone()),
        ("inferred", INFERRED.clone()),
        ("groups", GROUPS.clone()),
        ("policies", POLICIES.clone()),
        ("decisions", DECISIONS.clone()),
        ("placements", PLACEMENTS.clone()),
        ("executions", EXECUTIONS.clone()),
        ("anchors", ANCHORS.clone()),
        ("metrics", METRICS.clone()),
        ("gradients", GRADIENTS.clone()),
        ("totals", TOTALS.clone()),
        ("errors", ERRORS.clone()),
        ("parts", PARTS.clone()),
    ]
}

fn response_fields() -> Vec<Field> {
    vec![
        required(PROMPT_ID, DataType::UInt64),
        required(SAMPLE, DataType::UInt32),
        required(POLICY_VERSION, DataType::UInt64),
        shared_list(PROMPT_IDS, &DataType::Int32),
        required(PROMPT_LENGTH, DataType::UInt32),
        required(RESPONSE_LENGTH, DataType::UInt32),
        required(RESUMED_LENGTH, DataType::UInt32),
        shared_list(RESPONSE_IDS, &DataType::Int32),
        shared_list(LOGPROBS, &DataType::Float32),
        list(VERSIONS, DataType::UInt64),
        list(VERSION_TOKENS, DataType::UInt32),
        required(FINISH_REASON, DataType::Utf8),
        required(RESPONSE_TEXT, DataType::Utf8View),
        required(STARTED, DataType::UInt64),
        required(FINISHED, DataType::UInt64),
        required(PREEMPTIONS, DataType::UInt32),
        required(INSTANCE, DataType::UInt32),
        Field::new(DATA_SOURCE, DataType::Utf8, true),
        required(ROW, DataType::UInt64),
    ]
}

fn score_fields() -> [Field; 8] {
    [
        required(SCORE, DataType::Float64),
        required(COMPONENTS, DataType::Utf8),
        required(LABELS, DataType::Utf8),
        shared_list(TOKEN_SCORES, &DataType::Float32),
        Field::new(REWARD_ERROR, DataType::Utf8, true),
        required(REWARD_TIME, DataType::UInt64),
        required(SCORED_AT, DataType::UInt64),
        required(WEIGHT, DataType::Float32),
    ]
}

fn inferred_fields() -> [Field; 3] {
    [REWARD_KL, REF_LOGPROBS, VALUES].map(|name| shared_list(name, &DataType::Float32))
}

fn schema(fields: impl IntoIterator<Item = Field>) -> SchemaRef {
    Arc::new(Schema::new(fields.into_iter().collect::<Fields>()))
}

fn required(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, false)
}

fn list(name: &str, item: DataType) -> Field {
    Field::new(name, DataType::List(list_item(item)), false)
}
