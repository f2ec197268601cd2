//! Validates a policy by sampling and by greedy decoding, and returns the result as metrics.

use rollpacker_dataflow::fault::Fault;
use rollpacker_operators::validate::{ValidationResult, ValidatorThread};
use rollpacker_stages::rollout::Policy;
use rollpacker_stages::train::{Metrics, named_metrics};

/// Validates a policy and blocks until the metrics are available.
///
/// # Errors
/// If the validation fails, or its thread panicked.
pub(crate) fn validate(validator: &ValidatorThread, policy: Policy) -> anyhow::Result<Metrics> {
    let reply = validator.call(|| {}, move |validate| validate(&policy));
    reply.wait_outcome().map_err(|error| Fault::of("validation", &error).into())
}

/// Returns the metrics of a validation that sampled `samples` responses to each prompt, and of a validation that decoded one response to
/// each prompt greedily. A mean score is left out if errors exclude all of its responses.
pub(crate) fn metrics(
    sampled: &ValidationResult,
    samples: u32,
    greedy: &ValidationResult,
) -> Metrics {
    let by_source = |kind: &str, outcome: &ValidationResult| {
        let named = outcome.by_source.iter();
        named
            .map(move |(source, score)| (format!("val-core/{source}/{kind}"), *score))
            .collect::<Vec<_>>()
    };
    let mut metrics = named_metrics([
        ("val/response_length/mean", sampled.mean_length),
        ("val/response_length/max", sampled.longest as f64),
        ("val/greedy_response_length/mean", greedy.mean_length),
        ("val/reward_errors", (sampled.reward_errors + greedy.reward_errors) as f64),
    ]);
    let scores = [("val/score", sampled.score), ("val/greedy_score", greedy.score)];
    let scores = scores.into_iter().filter_map(|(name, score)| Some((name, score?)));
    metrics.extend(named_metrics(scores));
    metrics.extend(by_source(&format!("acc/mean@{samples}"), sampled));
    metrics.extend(by_source("acc/greedy@1", greedy));
    metrics
}
