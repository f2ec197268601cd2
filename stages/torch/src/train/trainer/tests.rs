//! Tests of streaming updates, their weights, and errors: an update must not depend on the way in which the responses arrive.

mod correction;
mod mini_batches;
mod replicas;
mod state;
mod updates;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rollpacker_dataflow::step::PromptId;
use rollpacker_model::{Family, ModelConfig, Rope};
use rollpacker_stages::catalog::Choice;
use rollpacker_stages::train::learning_rate::{Decay, LearningRate};
use tch::{Device, Kind, Tensor};

use super::super::config::{
    Aggregation, CriticConfig, Level, OldLogprobs, OptimizerConfig, Precision, RolloutIs, Threshold,
};
use super::super::loss::policy_losses;
use super::super::{Numbers, Partial};
use super::*;
use crate::model::Weights;

/// Maximum difference of the accumulated gradients, relative to their norm. If the gradients of responses cancel each other, their rounding
/// errors do not. Random steps are therefore compared in float64, and fixed steps in float32.
const FLOAT32: f64 = 1e-5;
const FLOAT64: f64 = 1e-10;

fn model() -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3,
        vocab_size: 23,
        hidden_size: 16,
        intermediate_size: 24,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 4,
        rms_norm_eps: 1e-6,
        rope: Rope::Default { theta: 1e4 },
        tie_word_embeddings: true,
        attention_bias: false,
        max_position_embeddings: 128,
        initializer_range: 0.3,
        eos_token_ids: vec![1],
        bos_token_id: None,
        pad_token_id: None,
    }
}

fn config(loss_agg_mode: Aggregation) -> TrainerConfig {
    TrainerConfig {
        optimizer: OptimizerConfig {
            learning_rate: LearningRate { peak: 1e-2, warmup_steps: 0, decay: Decay::Constant },
            grad_clip: f64::INFINITY,
            ..Default::default()
        },
        loss_agg_mode,
        loss_scale_factor: 32.0,
        kl_loss_coef: 0.1,
        kl_loss_type: Choice::of("mse"),
        entropy_coeff: 0.01,
        temperature: 0.8,
        ..TrainerConfig::default()
    }
}

fn trainer(config: TrainerConfig) -> TorchTrainer {
    let decoder = Decoder::init(model(), 7, Device::Cpu).unwrap();
    let trainer = TorchTrainer::new(decoder, config, WeightStore::new(4)).unwrap();
    // Moves the policy away from the reference; otherwise the KL term has no gradient.
    tch::no_grad(|| {
        for (_, parameter) in trainer.decoder.parameters() {
            let _same = parameter.shallow_clone().multiply_scalar_(1.01);
        }
    });
    trainer
}

#[derive(Clone, Debug)]
struct Response {
    /// The id of the prompt, and the index of the sample.
    id: (u64, u32),
    prompt: Vec<i32>,
    response: Vec<i32>,
    logprobs: Vec<f32>,
    advantages: Vec<f32>,
    weight: f32,
}

impl Response {
    fn sequence(&self) -> Sequence<'_> {
        Sequence {
            prompt: PromptId(self.id.0),
            sample: self.id.1,
            prompt_ids: &self.prompt,
            response_length: u32::try_from(self.response.len()).expect("short"),
            response_ids: &self.response,
            logprobs: &self.logprobs,
            advantages: &self.advantages,
            weight: self.weight,
            ..Sequence::default()
        }
    }
}

fn response() -> impl Strategy<Value = Response> {
    let tokens = |range| proptest::collection::vec(0..23i32, range);
    // A few prompts, so that adjacent responses share one.
    let prompt = prop_oneof![Just(vec![4, 9, 2]), Just(vec![4, 9]), tokens(1..5usize)];
    (prompt, tokens(0..9usize), 0.25..2.0f32).prop_flat_map(|(prompt, response, weight)| {
        let n = response.len();
        let columns = (
            proptest::collection::vec(-5.0..-1.0f32, n),
            proptest::collection::vec(-2.0..2.0f32, n),
        );
        columns.prop_map(move |(logprobs, advantages)| Response {
            id: (0, 0),
            prompt: prompt.clone(),
            response: response.clone(),
            logprobs,
            advantages,
            weight,
        })
    })
}

/// The responses of a step, and the way in which they arrive.
#[derive(Clone, Debug)]
struct Arrival {
    responses: Vec<Response>,
    order: Vec<usize>,
    /// The number of responses per call.
    call: usize,
    micro_batch_tokens: usize,
    /// The number of rows of logits per chunk of the head.
    rows: i64,
    threads: usize,
}

fn arrival() -> impl Strategy<Value = Arrival> {
    proptest::collection::vec(response(), 1..10).prop_flat_map(|responses| {
        let order = Just((0..responses.len()).collect::<Vec<_>>()).prop_shuffle();
        let pieces = (order, 1..5usize, 1..40usize, 1..20i64, 1..4usize);
        pieces.prop_map(move |(order, call, micro_batch_tokens, rows, threads)| {
            let responses = responses.clone();
            Arrival { responses, order, call, micro_batch_tokens, rows, threads }
        })
    })
}

fn accumulate<'a>(trainer: &mut TorchTrainer, calls: impl IntoIterator<Item = Vec<Sequence<'a>>>) {
    for sequences in calls {
        trainer.accumulate(Step(0), &sequences).unwrap();
    }
    trainer.threads.collect_gradients().unwrap();
}

/// Returns the gradient that an update would apply.
fn gradient(trainer: &TorchTrainer) -> Tensor {
    let divisor = trainer.accumulated.tally().unwrap().policy_divisor().max(f64::MIN_POSITIVE);
    trainer.accumulated.mean(trainer.decoder.parameters(), divisor).unwrap()
}

fn denominator_of(trainer: &TorchTrainer) -> f64 {
    trainer.accumulated.tally().unwrap().denominator()
}

fn relative_difference(a: &Tensor, b: &Tensor) -> f64 {
    let norm = a.norm().double_value(&[]).max(1e-30);
    (a - b).norm().double_value(&[]) / norm
}

/// Compares the arrival with all responses in one call, micro-batch and chunk, on one thread. Returns the relative difference of the
/// gradients.
fn difference(
    config: &TrainerConfig,
    arrival: &Arrival,
    prepare: impl Fn(&mut TorchTrainer),
) -> f64 {
    let with = |micro_batch_tokens, threads| {
        trainer(TrainerConfig { micro_batch_tokens, threads, ..config.clone() })
    };
    let mut whole = with(usize::MAX, 1);
    let mut pieces = with(arrival.micro_batch_tokens, arrival.threads);
    prepare(&mut whole);
    prepare(&mut pieces);
    pieces.head.rows = arrival.rows;
    accumulate(&mut whole, [arrival.responses.iter().map(Response::sequence).collect()]);
    let order: Vec<_> = arrival.order.iter().map(|&at| arrival.responses[at].sequence()).collect();
    accumulate(&mut pieces, order.chunks(arrival.call).map(<[_]>::to_vec));
    if denominator_of(&whole) == 0.0 {
        return denominator_of(&pieces);
    }
    relative_difference(&gradient(&whole), &gradient(&pieces))
}

const MODES: [Aggregation; 4] = [
    Aggregation::TokenMean,
    Aggregation::SeqMeanTokenSum,
    Aggregation::SeqMeanTokenMean,
    Aggregation::SeqMeanTokenSumNorm,
];

/// Converts the parameters to float64. Activations follow by type promotion.
fn widen(trainer: &mut TorchTrainer) {
    let widen = |(_, parameter): &(String, Tensor)| {
        parameter.shallow_clone().set_data(&parameter.detach().to_kind(Kind::Double));
    };
    for decoder in [Some(&mut trainer.decoder), trainer.reference.as_mut()].into_iter().flatten() {
        // Without gradients, a decoder multiplies by the stacked matrices, which `set_data` of their parts does not change.
        decoder.set_requires_grad(true);
        decoder.parameters().iter().for_each(widen);
    }
    trainer.critic.iter().flat_map(|critic| critic.model().parameters()).for_each(widen);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_update_does_not_depend_on_order_or_pieces(
        arrival in arrival(),
        mode in 0..4usize,
        loss in 0..policy_losses().names().count(),
        level in proptest::option::of(prop_oneof![Just(Level::Token), Just(Level::Sequence)]),
    ) {
        let name = policy_losses().names().nth(loss).map(str::to_owned).unwrap();
        let threshold = Threshold::Above(2.0);
        let config = TrainerConfig {
            policy_loss: Choice::of(&name),
            rollout_is: level.map(|level| RolloutIs { level, threshold, batch_normalize: false }),
            // Weights are 1 if the old log-probabilities are the engine's.
            old_logprobs: level.map_or(OldLogprobs::Engine, |_| OldLogprobs::Trainer),
            ..config(MODES[mode])
        };
        let found = difference(&config, &arrival, widen);
        prop_assert!(found <= FLOAT64, "{name} {level:?}: {found}");
    }

    #[test]
    fn a_weight_equals_as_many_repeated_responses(
        responses in proptest::collection::vec(response(), 1..6),
        quarters in 1..9u8,
        mode in 0..4usize,
    ) {
        let (mut weighted, mut repeated) = (trainer(config(MODES[mode])), trainer(config(MODES[mode])));
        widen(&mut weighted);
        widen(&mut repeated);
        let others: Vec<_> = responses[1..].iter().map(|r| Response { weight: 1.0, ..r.clone() }).collect();
        let whole = Response { weight: f32::from(quarters) / 4.0, ..responses[0].clone() };
        let quarter = Response { weight: 0.25, ..responses[0].clone() };
        let pieces = std::iter::repeat_n(&quarter, usize::from(quarters));
        accumulate(&mut weighted, [[&whole].into_iter().chain(&others).map(Response::sequence).collect()]);
        accumulate(&mut repeated, [pieces.chain(&others).map(Response::sequence).collect()]);
        let denominators = [&weighted, &repeated].map(denominator_of);
        prop_assert_eq!(denominators[0], denominators[1]);
        if denominators[1] > 0.0 {
            let found = relative_difference(&gradient(&repeated), &gradient(&weighted));
            // Weights enter the loss as float32, so three quarters are rounded differently from three times a quarter.
            prop_assert!(found <= 1e-6, "{found}");
        }
    }
}

#[test]
fn float32_updates_differ_only_by_rounding() {
    let mut runner = TestRunner::deterministic();
    for mode in MODES.into_iter().cycle().take(24) {
        let arrival = arrival().new_tree(&mut runner).unwrap().current();
        let found = difference(&config(mode), &arrival, |_| {});
        assert!(found <= FLOAT32, "{mode:?}: {found} for {arrival:?}");
    }
}

fn example(prompt: &[i32], response: &[i32], advantage: f32) -> Response {
    let n = response.len();
    Response {
        id: (0, 0),
        prompt: prompt.to_vec(),
        response: response.to_vec(),
        logprobs: vec![-2.0; n],
        advantages: vec![advantage; n],
        weight: 1.0,
    }
}

/// Returns the log-probabilities of a response, computed by a plain pass over the whole sequence.
fn slow_logprobs(trainer: &TorchTrainer, response: &Response) -> Tensor {
    slow_logprobs_of(&trainer.decoder, &trainer.config, response)
}

fn slow_logprobs_of(decoder: &Decoder, config: &TrainerConfig, response: &Response) -> Tensor {
    let ids: Vec<i64> =
        response.prompt.iter().chain(&response.response).map(|&id| i64::from(id)).collect();
    let (n, p) = (ids.len() as i64, response.prompt.len() as i64);
    let ids = Tensor::from_slice(&ids);
    let hidden = decoder.forward_packed(&ids, &[n]).unwrap();
    let logits = decoder.logits(&hidden).unwrap() / config.temperature;
    let next = ids.narrow(0, p, n - p).unsqueeze(-1);
    logits
        .narrow(0, p - 1, n - p)
        .log_softmax(-1, Kind::Float)
        .gather(-1, &next, false)
        .squeeze_dim(-1)
}

/// Returns a sequence for a critic, with columns of the response reused as values and returns.
fn valued(response: &Response) -> Sequence<'_> {
    Sequence { values: &response.logprobs, returns: &response.advantages, ..response.sequence() }
}

#[test]
fn the_gradient_of_a_critic_does_not_depend_on_order_or_pieces() {
    let mut runner = TestRunner::deterministic();
    for loss_agg_mode in MODES.into_iter().cycle().take(12) {
        let arrival = arrival().new_tree(&mut runner).unwrap().current();
        let critic = CriticConfig { loss_agg_mode, ..CriticConfig::default() };
        let with = |micro_batch_tokens, threads| {
            let config = TrainerConfig { threads, ..config(Aggregation::TokenMean) };
            let critic = Some(critic);
            trainer(TrainerConfig { critic, micro_batch_tokens, kl_loss_coef: 0.0, ..config })
        };
        let mut whole = with(usize::MAX, 1);
        let mut pieces = with(arrival.micro_batch_tokens, arrival.threads);
        accumulate(&mut whole, [arrival.responses.iter().map(valued).collect()]);
        let order: Vec<_> =
            arrival.order.iter().map(|&at| valued(&arrival.responses[at])).collect();
        accumulate(&mut pieces, order.chunks(arrival.call).map(<[_]>::to_vec));
        let of = |trainer: &TorchTrainer| trainer.critic.as_ref().unwrap().gradient();
        let (whole, pieces) = (of(&whole), of(&pieces));
        if whole.norm().double_value(&[]) > 0.0 {
            let found = relative_difference(&whole, &pieces);
            assert!(found <= FLOAT32, "{loss_agg_mode:?}: {found} for {arrival:?}");
        }
    }
}

#[test]
fn inference_returns_the_outputs_of_the_models_per_response() {
    let mut trainer = trainer(TrainerConfig {
        reward_kl: Some(Choice::of("kl")),
        old_logprobs: OldLogprobs::Trainer,
        critic: Some(CriticConfig::default()),
        micro_batch_tokens: 6,
        ..config(Aggregation::TokenMean)
    });
    let responses = [
        example(&[2, 3], &[4, 5, 1], 0.0),
        example(&[6], &[], 0.0),
        example(&[8, 9], &[3, 3, 3, 3, 1], 0.0),
        example(&[6], &[7], 0.0),
    ];
    let sequences: Vec<_> = responses.iter().map(Response::sequence).collect();
    let inferred = trainer.infer(Step(0), &sequences).unwrap();
    for (one, response) in inferred.iter().zip(&responses).filter(|(_, r)| !r.response.is_empty()) {
        let reference = trainer.reference.as_ref().unwrap();
        let apart = slow_logprobs(&trainer, response)
            - slow_logprobs_of(reference, &trainer.config, response);
        let apart = Vec::<f32>::try_from(apart.detach()).unwrap();
        for (ours, slow) in one.reward_kl.iter().zip(&apart) {
            assert!((ours - slow).abs() < 1e-5, "{ours}, expected {slow}");
        }
        let lengths = [one.reward_kl.len(), one.ref_logprobs.len(), one.values.len()];
        assert_eq!(lengths, [response.response.len(); 3]);
        assert!(one.values.iter().all(|value| *value == 0.0), "a fresh critic expects nothing");
    }
    assert_eq!(inferred[1], Inferred::default());

    let known: Vec<_> = sequences
        .iter()
        .zip(&inferred)
        .map(|(sequence, one)| Sequence {
            ref_logprobs: &one.ref_logprobs,
            values: &one.values,
            returns: &one.values,
            ..*sequence
        })
        .collect();
    let recomputed: Vec<_> = known.iter().map(|s| Sequence { ref_logprobs: &[], ..*s }).collect();
    let mut of = |sequences: Vec<Sequence<'_>>| {
        trainer.accumulated.clear(trainer.decoder.parameters()).unwrap();
        accumulate(&mut trainer, [sequences]);
        gradient(&trainer)
    };
    let (known, recomputed) = (of(known), of(recomputed));
    assert!(relative_difference(&recomputed, &known) <= FLOAT32, "the reference is the same");
}

fn on_policy(trainer: &TorchTrainer, response: &Response) -> Response {
    let logprobs = Vec::try_from(slow_logprobs(trainer, response).detach()).unwrap();
    Response { logprobs, ..response.clone() }
}
