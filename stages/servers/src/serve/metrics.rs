//! The metrics of a server, with the names that vLLM gives to the same metrics.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_stages::rollout::FinishReason;
use rollpacker_stages::serving::{ServingLimits, ServingStatistics};

/// Upper bounds of the buckets of both histograms, in seconds. vLLM has other and more bounds.
const SECONDS: [f64; 18] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.25, 0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    320.0, 2560.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FinishLabels {
    finished_reason: &'static str,
}

/// The metrics, which calls update and `/metrics` returns.
pub(super) struct Metrics {
    registry: Registry,
    running: Gauge,
    waiting: Gauge,
    kv_cache_usage: Gauge<f64, AtomicU64>,
    preemptions: Counter,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    finished: Family<FinishLabels, Counter>,
    first_token: Histogram,
    latency: Histogram,
    /// The lock that is held while the counters are increased to the engine's values. Without it, two concurrent readers would add the
    /// increase twice.
    write_lock: Mutex<()>,
}

impl Metrics {
    /// Creates the metrics of a server whose model has this name.
    pub(super) fn new(model: &str) -> Self {
        let labels = [("model_name".into(), model.to_owned().into())];
        let mut registry = Registry::with_labels(labels.into_iter());
        let histogram = || Histogram::new(SECONDS);
        let mut metrics = Self {
            running: Gauge::default(),
            waiting: Gauge::default(),
            kv_cache_usage: Gauge::default(),
            preemptions: Counter::default(),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            finished: Family::default(),
            first_token: histogram(),
            latency: histogram(),
            write_lock: Mutex::default(),
            registry: Registry::default(),
        };
        metrics.register(&mut registry);
        metrics.registry = registry;
        metrics
    }

    fn register(&self, registry: &mut Registry) {
        let r = registry;
        r.register("vllm:num_requests_running", "Responses that are sampled", self.running.clone());
        r.register("vllm:num_requests_waiting", "Responses that wait", self.waiting.clone());
        let help = "Used share of the KV cache, from 0 to 1";
        r.register("vllm:kv_cache_usage_perc", help, self.kv_cache_usage.clone());
        let help = "Responses whose KV cache was dropped and computed again";
        r.register("vllm:num_preemptions", help, self.preemptions.clone());
        r.register("vllm:prompt_tokens", "Tokens of prompts", self.prompt_tokens.clone());
        r.register("vllm:generation_tokens", "Sampled tokens", self.generation_tokens.clone());
        let help = "Responses by the reason of their end";
        r.register("vllm:request_success", help, self.finished.clone());
        let help = "Seconds from the request to its first token";
        r.register("vllm:time_to_first_token_seconds", help, self.first_token.clone());
        let help = "Seconds from the request to the end of the response";
        r.register("vllm:e2e_request_latency_seconds", help, self.latency.clone());
    }

    pub(super) fn record_prompt(&self, tokens: usize) {
        self.prompt_tokens.inc_by(tokens as u64);
    }

    pub(super) fn record_first_token(&self, after: Nanos) {
        self.first_token.observe(after.as_secs_f64());
    }

    pub(super) fn record_end(&self, reason: FinishReason, after: Nanos) {
        self.finished.get_or_create(&FinishLabels { finished_reason: reason.as_str() }).inc();
        self.latency.observe(after.as_secs_f64());
    }

    /// Updates the metrics to the engine's statistics `now` and returns them in the OpenMetrics text format. `limits` has the size of the
    /// KV cache, whose used share is a metric.
    pub(super) fn write(
        &self,
        now: &ServingStatistics,
        limits: &ServingLimits,
    ) -> Result<String, fmt::Error> {
        let _alone = self.write_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.running.set(gauge(now.running));
        self.waiting.set(gauge(now.waiting));
        self.kv_cache_usage.set(now.kv_cache_tokens as f64 / limits.kv_cache_tokens.max(1) as f64);
        for (counter, total) in
            [(&self.preemptions, now.preemptions), (&self.generation_tokens, now.sampled_tokens)]
        {
            counter.inc_by(total.saturating_sub(counter.get()));
        }
        let mut written = String::new();
        text::encode(&mut written, &self.registry)?;
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_the_names_that_dashboards_of_vllm_read() {
        let metrics = Metrics::new("m");
        metrics.record_prompt(7);
        metrics.record_first_token(Nanos::from_secs_f64(0.3));
        metrics.record_end(FinishReason::Abort, Nanos::from_secs_f64(3.0));
        let limits = ServingLimits {
            context: 8,
            vocab_size: 8,
            max_running: 4,
            kv_cache_tokens: 40,
            eos_token_ids: vec![],
        };
        let statistics = ServingStatistics {
            running: 2,
            kv_cache_tokens: 10,
            sampled_tokens: 5,
            ..ServingStatistics::default()
        };
        let written = (0..2).map(|_| metrics.write(&statistics, &limits).unwrap()).last().unwrap();
        for line in [
            "vllm:num_requests_running{model_name=\"m\"} 2",
            "vllm:num_requests_waiting{model_name=\"m\"} 0",
            "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.25",
            "vllm:prompt_tokens_total{model_name=\"m\"} 7",
            "vllm:generation_tokens_total{model_name=\"m\"} 5",
            "vllm:request_success_total{model_name=\"m\",finished_reason=\"abort\"} 1",
            "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"0.5\"} 1",
            "vllm:e2e_request_latency_seconds_count{model_name=\"m\"} 1",
        ] {
            assert!(written.lines().any(|found| found == line), "{line} in {written}");
        }
    }
}
