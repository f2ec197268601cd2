//! Metrics of the training-inference mismatch: how far the engine's log-probabilities are from the log-probabilities that the trainer
//! computes for the same tokens at the start of the step.
//!
//! The formulas follow verl's `compute_offpolicy_metrics`, over all tokens before any is rejected. [`sums`] returns sums over tokens or
//! responses, so that the sums of streamed parts of a step and of replicas add up to the sums of the step. [`derived`] computes the metrics
//! that are not plain means from these sums. The sums are computed in float64 on the host, from log-probabilities that the loss needs
//! anyway.

use rollpacker_stages::train::config::{LOG_RATIO_LIMIT, Level, Threshold, TrainerConfig};
use rollpacker_stages::train::named_metrics;
use tch::TchError;

use super::objective::Outcome;
use super::rejection::{by_sequence, log_ratios, numbers};
use super::tally::{
    IMPORTANCE, IMPORTANCE_TERMS, KEPT_TOKENS, SEQUENCES, StepSums, TOKENS, TermReduction,
};
use super::{Metrics, Sequence};

/// The level and threshold with which extreme weights are counted while no importance sampling is configured. The threshold is the default
/// of `rollout_is_threshold`.
const WITHOUT_CORRECTION: (Level, Threshold) = (Level::Token, Threshold::Above(2.0));

/// The bound of the logarithms of perplexities, in nats. An engine may return any finite log-probability, and sums must stay finite.
const LOG_PERPLEXITY_LIMIT: f64 = 300.0;

/// The minimum variance relative to the mean square. Below it, rounding leaves no correct digit of the variance.
const MIN_VARIANCE: f64 = 1e-12;

// Parts of the standard deviation of the absolute difference of probabilities.
const DIFFERENCE: &str = "difference of probabilities";
const DIFFERENCE_SQUARED: &str = "squared difference of probabilities";
// Parts of the correlation of probabilities. They are sums over the complements, `1 - p`, which keep the digits of probabilities near 1.
const ENGINE: &str = "complement of the engine";
const ENGINE_SQUARED: &str = "squared complement of the engine";
const TRAINER: &str = "complement of the trainer";
const TRAINER_SQUARED: &str = "squared complement of the trainer";
const PRODUCT: &str = "product of the complements";
// Parts of the effective sample size.
const WEIGHT: &str = "weight";
const WEIGHT_SQUARED: &str = "squared weight";

/// Returns the sums behind the metrics of the mismatch for the responses of a micro-batch. The sums over importance weights are included
/// only with importance sampling, and the sums over rejected tokens only with rejection.
pub(crate) fn sums(
    config: &TrainerConfig,
    sequences: &[Sequence<'_>],
    outcome: &Outcome,
) -> Result<StepSums, TchError> {
    let mut sums = StepSums::default();
    let logprobs = numbers(&outcome.logprobs)?;
    for (sequence, trainer) in sequences.iter().zip(by_sequence(sequences, &logprobs)) {
        let log_ratios = log_ratios(sequence.logprobs, trainer);
        sums.add_to(SEQUENCES, TermReduction::Part, 1.0);
        add_perplexities(&mut sums, sequence.logprobs, trainer);
        add_divergences(&mut sums, &log_ratios);
        add_probabilities(&mut sums, sequence.logprobs, trainer);
        add_extremes(&mut sums, config, &log_ratios);
    }
    if let Some(importance) = &outcome.importance {
        let importance = numbers(importance)?;
        for (sequence, weights) in sequences.iter().zip(by_sequence(sequences, &importance)) {
            add_importance(&mut sums, config, sequence.weight, weights);
        }
    }
    if let Some(kept) = &outcome.kept {
        for flags in by_sequence(sequences, kept.flags()) {
            add_rejected(&mut sums, flags);
        }
    }
    Ok(sums)
}

/// Returns the metrics that are not plain means of the sums of a step. A metric that is not defined for the step is left out.
pub(crate) fn derived(sums: &StepSums) -> Metrics {
    let tokens = sums.value(TOKENS);
    let named = [
        ("training/rollout_probs_diff_std", deviation(sums, tokens)),
        ("training/rollout_actor_probs_pearson_corr", correlation(sums, tokens)),
        ("rollout_corr/rollout_is_eff_sample_size", effective_sample_size(sums, tokens)),
        ("rollout_corr/rollout_is_batch_norm_factor", sums.mean_importance()),
    ];
    named_metrics(named.into_iter().filter_map(|(name, value)| Some((name, value?))))
}

fn add_perplexities(sums: &mut StepSums, engine: &[f32], trainer: &[f64]) {
    let tokens = trainer.len() as f64;
    let engine = engine.iter().map(|&logprob| f64::from(logprob)).sum::<f64>() / tokens;
    let trainer = trainer.iter().sum::<f64>() / tokens;
    let exp = |nats: f64| nats.clamp(-LOG_PERPLEXITY_LIMIT, LOG_PERPLEXITY_LIMIT).exp();
    sums.add_to("rollout_corr/training_ppl", TermReduction::Sequences, exp(-trainer));
    sums.add_to("rollout_corr/rollout_ppl", TermReduction::Sequences, exp(-engine));
    sums.add_to("rollout_corr/log_ppl_diff", TermReduction::Sequences, engine - trainer);
    sums.add_to(
        "rollout_corr/log_ppl_abs_diff",
        TermReduction::Sequences,
        (engine - trainer).abs(),
    );
    sums.add_to("rollout_corr/ppl_ratio", TermReduction::Sequences, exp(engine - trainer));
}

fn add_divergences(sums: &mut StepSums, log_ratios: &[f64]) {
    // verl does not clamp for k3. Without the clamp, one token of a wrong model would make the sum of a step infinite.
    let clamped = |&x: &f64| x.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT);
    let over_tokens = |term: fn(f64) -> f64| log_ratios.iter().map(clamped).map(term).sum::<f64>();
    sums.add_to("rollout_corr/k3_kl", TermReduction::Tokens, over_tokens(|x| x.exp_m1() - x));
    sums.add_to(
        "rollout_corr/chi2_token",
        TermReduction::Tokens,
        over_tokens(|x| (2.0 * x).exp_m1()),
    );
    let product = clamped(&log_ratios.iter().sum::<f64>());
    sums.add_to("rollout_corr/chi2_seq", TermReduction::Sequences, (2.0 * product).exp_m1());
}

fn add_probabilities(sums: &mut StepSums, engine: &[f32], trainer: &[f64]) {
    let mut parts = [
        (DIFFERENCE, 0.0),
        (DIFFERENCE_SQUARED, 0.0),
        (ENGINE, 0.0),
        (ENGINE_SQUARED, 0.0),
        (TRAINER, 0.0),
        (TRAINER_SQUARED, 0.0),
        (PRODUCT, 0.0),
    ];
    for (&engine, trainer) in engine.iter().zip(trainer) {
        let (x, y) = (-f64::from(engine).exp_m1(), -trainer.exp_m1());
        let difference = (x - y).abs();
        let terms = [difference, difference * difference, x, x * x, y, y * y, x * y];
        parts.iter_mut().zip(terms).for_each(|((_, sum), term)| *sum += term);
    }
    parts.into_iter().for_each(|(name, sum)| sums.add_to(name, TermReduction::Part, sum));
}

/// Counts the importance weights above the upper bound and below the lower bound of the threshold, over tokens or over sequences.
fn add_extremes(sums: &mut StepSums, config: &TrainerConfig, log_ratios: &[f64]) {
    let (level, threshold) =
        config.rollout_is.map_or(WITHOUT_CORRECTION, |is| (is.level, is.threshold));
    let (min, max) = threshold.bounds();
    let (min, max) = (min.ln(), max.ln());
    let product = [log_ratios.iter().sum::<f64>()];
    let (reduction, counted) = match level {
        Level::Token => (TermReduction::Tokens, log_ratios),
        Level::Sequence => (TermReduction::Sequences, product.as_slice()),
    };
    let count = |of: &dyn Fn(f64) -> bool| counted.iter().filter(|&&x| of(x)).count() as f64;
    sums.add_to("rollout_corr/rollout_is_ratio_fraction_high", reduction, count(&|x| x > max));
    sums.add_to("rollout_corr/rollout_is_ratio_fraction_low", reduction, count(&|x| x < min));
}

/// Adds the importance weights of the tokens of a response, after the threshold. In the mean of the importance weights, a response counts
/// with its weight in the loss, `weight`.
fn add_importance(sums: &mut StepSums, config: &TrainerConfig, weight: f32, importance: &[f64]) {
    sums.add_to(WEIGHT, TermReduction::Part, importance.iter().sum());
    sums.add_to(WEIGHT_SQUARED, TermReduction::Part, importance.iter().map(|one| one * one).sum());
    let Some(is) = config.rollout_is.filter(|is| is.batch_normalize) else { return };
    // All tokens of a sequence have the same importance weight.
    let terms = if is.level == Level::Sequence { &importance[..1] } else { importance };
    let times = f64::from(weight);
    sums.add_to(IMPORTANCE, TermReduction::Part, times * terms.iter().sum::<f64>());
    sums.add_to(IMPORTANCE_TERMS, TermReduction::Part, times * terms.len() as f64);
}

fn add_rejected(sums: &mut StepSums, kept: &[bool]) {
    let rejected = kept.iter().filter(|&&kept| !kept).count();
    let share = f64::from(u8::from(rejected > 0));
    sums.add_to(KEPT_TOKENS, TermReduction::Part, (kept.len() - rejected) as f64);
    sums.add_to("rollout_corr/rollout_rs_masked_fraction", TermReduction::Tokens, rejected as f64);
    sums.add_to("rollout_corr/rollout_rs_seq_masked_fraction", TermReduction::Sequences, share);
}

/// Returns the sample standard deviation of the absolute difference of probabilities; `None` for fewer than two tokens.
fn deviation(sums: &StepSums, tokens: f64) -> Option<f64> {
    let sum = sums.value(DIFFERENCE);
    let squares = sums.value(DIFFERENCE_SQUARED) - sum * sum / tokens;
    (tokens > 1.0).then(|| (squares.max(0.0) / (tokens - 1.0)).sqrt())
}

/// Returns Pearson's correlation of the probabilities; `None` if one of them does not vary.
fn correlation(sums: &StepSums, tokens: f64) -> Option<f64> {
    let [engine, trainer] = [ENGINE, TRAINER].map(|name| sums.value(name));
    let spread = |sum: f64, squares: f64| {
        let spread = squares - sum * sum / tokens;
        (spread > MIN_VARIANCE * squares).then_some(spread)
    };
    let of_engine = spread(engine, sums.value(ENGINE_SQUARED))?;
    let of_trainer = spread(trainer, sums.value(TRAINER_SQUARED))?;
    let common = sums.value(PRODUCT) - engine * trainer / tokens;
    Some((common / (of_engine * of_trainer).sqrt()).clamp(-1.0, 1.0))
}

/// Returns the effective sample size of the importance weights as a share of the tokens; `None` without a positive weight.
fn effective_sample_size(sums: &StepSums, tokens: f64) -> Option<f64> {
    let (sum, squares) = (sums.value(WEIGHT), sums.value(WEIGHT_SQUARED));
    (squares > 0.0).then(|| sum * sum / (tokens * squares))
}

#[cfg(test)]
mod tests;
