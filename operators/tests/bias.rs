//! Measures the length bias on a known distribution: the whole graph runs with an engine that draws its lengths from the distribution, and
//! the ledger measures the bias. Scores depend on lengths, so the group-relative gradient is biased as well, by a known amount.

mod support;

use arrow_array::types::{Float32Type, Float64Type, UInt32Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_operators::report::StepReport;
use rollpacker_operators::schedule::tail_batching::{Config, Selection};
use rollpacker_operators::schedule::{Schedule, Synchronous, TailBatching, sync};
use rollpacker_stages::reward::{Context, Reward, RewardError, Router, Sample, Score};
use rollpacker_stages::train::Metrics;
use support::{Run, ShortestFirst};

/// The length of the longest response, in tokens.
const CAP: u32 = 640;

/// Draws a length from a mixture of two modes, at 1/32 of the lengths in the RollPacker paper. Both modes are scaled by a factor of the
/// prompt. The long mode is frequent for hard prompts and rare for easy ones.
fn length(id: SampleId) -> u32 {
    let prompt = [id.prompt.0, 1];
    let (scale, hard) = (normal(&prompt), uniform(&[id.prompt.0, 2]).powi(4) * 0.9);
    let own = [id.prompt.0, id.step.0 + 3, id.sample.into()];
    let tokens = if uniform(&[own[0], own[1], own[2], 4]) < hard {
        160.0 * (0.3 * scale + 0.72 * normal(&own)).exp()
    } else {
        15.0 * (0.47 * scale + 0.33 * normal(&own)).exp()
    };
    (tokens as u32).clamp(1, CAP)
}

fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |state, word| {
        let word = (state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    })
}

/// Returns a uniform number in (0, 1).
fn uniform(words: &[u64]) -> f64 {
    ((mix(words) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// Returns a standard normal number by the Box-Muller transform.
fn normal(words: &[u64]) -> f64 {
    let (one, other) = (uniform(words), uniform(&[mix(words), 5]));
    (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos()
}

const PROMPTS: u64 = 3_200;

/// Returns the mean length over the prompts of the run, from draws that are independent of schedules.
fn true_mean() -> f64 {
    let draw =
        |prompt, sample| length(SampleId { step: Step(1 << 40), prompt: PromptId(prompt), sample });
    let sum: f64 = (0..PROMPTS).flat_map(|p| (0..50).map(move |s| f64::from(draw(p, s)))).sum();
    sum / (PROMPTS * 50) as f64
}

/// Returns a score of 0 or 1. The probability of 1 increases with the length of the response. All responses of equal length have the same
/// score.
fn score(tokens: u32) -> f64 {
    let likely = 1.0 / (1.0 + (3.2 - f64::from(tokens).ln()).exp());
    f64::from(u8::from(uniform(&[tokens.into(), 9]) < likely))
}

struct ByLength;

impl Reward for ByLength {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        Ok(score(u32::try_from(sample.response_ids.len()).expect("small")).into())
    }
}

/// Returns the covariance of score and weighted length within a group, which is how its advantages act on length. `group` has the score,
/// the length and the weight of each response.
fn covariance(group: &[(f64, f64, f64)]) -> f64 {
    let mean = group.iter().map(|(score, ..)| score).sum::<f64>() / group.len() as f64;
    let sum: f64 =
        group.iter().map(|(score, length, weight)| (score - mean) * length * weight).sum();
    sum / (group.len() - 1) as f64
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

/// Returns the mean covariance over the prompts of the run, from draws that are independent of schedules.
fn true_product() -> f64 {
    let draw = |prompt, sample| {
        let tokens = length(SampleId { step: Step(1 << 40), prompt: PromptId(prompt), sample });
        (score(tokens), f64::from(tokens), 1.0)
    };
    mean((0..PROMPTS).map(|p| covariance(&(0..50).map(|s| draw(p, s)).collect::<Vec<_>>())))
}

/// Returns the mean covariance over the trained groups, unweighted and weighted.
fn trained_products(reports: &[StepReport]) -> [f64; 2] {
    let groups = || reports.iter().flat_map(|report| &report.groups);
    let product = |batch: &Batch, is_weighted: bool| {
        let scores = batch.values::<Float64Type>(column::SCORE).values();
        let lengths = batch.values::<UInt32Type>(column::RESPONSE_LENGTH).values();
        let weights = batch.values::<Float32Type>(column::WEIGHT).values();
        let rows = scores.iter().zip(lengths).zip(weights);
        let weight = |weight: f32| if is_weighted { f64::from(weight) } else { 1.0 };
        let group = rows.map(|((score, length), w)| (*score, f64::from(*length), weight(*w)));
        covariance(&group.collect::<Vec<_>>())
    };
    [false, true].map(|is_weighted| mean(groups().map(|batch| product(batch, is_weighted))))
}

fn tail_batching(eta_responses: f64, selection: Selection) -> TailBatching {
    let config = Config { selection, ..support::tail(64, 8, 1.25, eta_responses) };
    TailBatching::new(config).expect("valid")
}

fn run(schedule: impl Schedule + 'static) -> Vec<StepReport> {
    let mut engine = ShortestFirst::default();
    engine.lengths = Some(length);
    let router = Router::default().route("odd", ByLength);
    Run { engine, prompts: PROMPTS, budget: 512, cap: CAP, router, ..Run::of(schedule) }
        .run()
        .expect("no fault")
}

/// Returns the metrics of the last step, which cover the whole run.
fn measured(schedule: impl Schedule + 'static) -> Metrics {
    run(schedule).pop().expect("steps").metrics
}

fn within(name: &str, metrics: &Metrics, range: std::ops::RangeInclusive<f64>) {
    let found = metrics.get(name).unwrap_or_else(|| panic!("no {name} in {metrics:?}"));
    assert!(range.contains(found), "{name} is {found}, expected {range:?}; {metrics:#?}");
}

#[test]
fn the_bias_of_selecting_the_fastest_is_detected() {
    let metrics = measured(tail_batching(1.25, Selection::Fastest));
    let mean = true_mean();
    within("bias/mean_ratio", &metrics, 0.4..=0.75);
    within("bias/mean_ratio_high", &metrics, 0.4..=0.95);
    within("bias/inclusion/512_1024", &metrics, 0.0..=0.8);
    // The lengths of aborted surplus responses are censored: the truth lies between the bounds.
    within("bias/policy_mean", &metrics, mean..=1.25 * mean);
    within("bias/policy_mean_low", &metrics, 0.6 * mean..=mean);
}

/// With speculation on prompts alone, the estimate is within 3 % of the policy's mean, and the weighted mean within 4 % of that, at a
/// relative effective sample size above 0.9.
#[test]
fn weights_remove_the_bias() {
    let reports = run(tail_batching(1.0, Selection::Weighted));
    weights_arrive_in_the_groups(&reports);
    let metrics = &reports.last().expect("steps").metrics;
    let mean = true_mean();
    within("bias/policy_mean", metrics, 0.97 * mean..=1.03 * mean);
    within("bias/mean_ratio", metrics, 0.7..=0.95);
    within("bias/weighted_mean_ratio", metrics, 0.96..=1.04);
    within("bias/ess", metrics, 0.9..=1.0);
    within("bias/weighted_inclusion/0_512", metrics, 0.98..=1.02);
    within("bias/weighted_p90_ratio", metrics, 0.9..=1.1);
}

/// The lengths of aborted surplus responses are censored: the truth lies between the bounds.
#[test]
fn the_bias_of_the_gradient_is_bounded_where_responses_are_surplus() {
    let reports = run(tail_batching(1.25, Selection::Fastest));
    let metrics = &reports.last().expect("steps").metrics;
    let truth = trained_products(&reports)[0] / true_product();
    assert!((0.35..0.75).contains(&truth), "{truth} of the policy's product");
    assert!(metrics["bias/gradient_ratio"] <= 1.05 * truth, "{truth}; {metrics:#?}");
    assert!(metrics["bias/gradient_ratio_high"] >= 0.95 * truth, "{truth}; {metrics:#?}");
    within("bias/gradient_ratio", metrics, 0.7 * truth..=truth * 1.05);
}

/// Without surplus responses the estimate is near the truth, and weights bring the gradient near that of the policy.
#[test]
fn weights_bring_the_gradient_near_that_of_the_policy() {
    let reports = run(tail_batching(1.0, Selection::Weighted));
    let metrics = &reports.last().expect("steps").metrics;
    let [plain, weighted] = trained_products(&reports).map(|product| product / true_product());
    assert!((0.65..0.9).contains(&plain), "{plain} of the policy's product");
    assert!((0.85..1.1).contains(&weighted), "{weighted} of the policy's product");
    within("bias/gradient_ratio", metrics, 0.9 * plain..=1.1 * plain);
    within("bias/weighted_gradient_ratio", metrics, 0.9 * weighted..=1.1 * weighted);
    within("bias/length_advantage", metrics, 0.9 * true_product()..=1.1 * true_product());
}

#[test]
fn waiting_for_all_has_no_bias() {
    let config = sync::Config { prompts: 64, responses: 8, total_steps: None };
    let metrics = measured(Synchronous::new(config).expect("valid"));
    within("bias/mean_ratio", &metrics, 1.0 - 1e-9..=1.0 + 1e-9);
    within("bias/gradient_ratio", &metrics, 1.0 - 1e-9..=1.0 + 1e-9);
    within("bias/policy_mean", &metrics, 0.97 * true_mean()..=1.03 * true_mean());
}

/// If the schedule trains on all responses, the ledger's means are those of the steps that count.
#[test]
fn steps_of_the_warm_up_leave_no_trace() {
    const WARMUP: u64 = 20;
    let config = sync::Config { prompts: 64, responses: 8, total_steps: Some(30) };
    let mut engine = ShortestFirst::default();
    engine.lengths = Some(length);
    let run = Run {
        engine,
        prompts: PROMPTS,
        budget: 512,
        cap: CAP,
        warmup_steps: WARMUP,
        ..Run::of(Synchronous::new(config).expect("valid"))
    };
    let reports = run.run().expect("no fault");
    let (warmup, counted) = reports.split_at(WARMUP as usize);
    let columns = |report: &StepReport| {
        let prefixes = ["bias/", "ledger/"];
        report
            .metrics
            .keys()
            .filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
            .count()
    };
    assert!(warmup.iter().all(|report| columns(report) == 0));
    let tokens: Vec<u32> = counted
        .iter()
        .flat_map(|report| &report.groups)
        .flat_map(|batch| batch.values::<UInt32Type>(column::RESPONSE_LENGTH).values().to_vec())
        .collect();
    let mean = tokens.iter().map(|&tokens| f64::from(tokens)).sum::<f64>() / tokens.len() as f64;
    let metrics = &counted.last().expect("steps").metrics;
    within("bias/policy_mean", metrics, mean - 1e-6..=mean + 1e-6);
    within("ledger/rows", metrics, 640.0..=640.0);
}

/// Checks the weights in the groups that the trainer receives: each response has one, their mean is about 1, and some are clearly above 1
/// and some below.
fn weights_arrive_in_the_groups(reports: &[StepReport]) {
    let batches = || reports.iter().flat_map(|report| &report.groups);
    let weights: Vec<f32> = batches()
        .flat_map(|batch| batch.values::<Float32Type>(column::WEIGHT).values().to_vec())
        .collect();
    let lengths: u64 = batches()
        .flat_map(|batch| batch.values::<UInt32Type>(column::RESPONSE_LENGTH).values().to_vec())
        .map(u64::from)
        .sum();
    assert!(lengths > 0 && weights.len() as u64 == PROMPTS * 8);
    let mean = weights.iter().sum::<f32>() / weights.len() as f32;
    assert!((mean - 1.0).abs() < 0.02, "{mean}");
    assert!(
        weights.iter().any(|weight| *weight > 1.5) && weights.iter().any(|weight| *weight < 0.9)
    );
}
