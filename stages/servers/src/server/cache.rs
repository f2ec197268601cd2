//! The use of a server's KV cache, as its metrics report it.

use crate::vllm::protocol::metric;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CacheUse {
    /// The share of the KV cache that is in use, from 0 to 1.
    pub(crate) share: f64,
    /// The number of requests that wait in the server.
    pub(crate) waiting: f64,
}

impl CacheUse {
    /// Reads vLLM's metrics in Prometheus' text format. For several engines in one server, returns the mean of their shares and the sum of
    /// their waiting requests. `None` if a metric is missing or the mean is not from 0 to 1.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let shares = values(text, metric::KV_CACHE_USAGE);
        let waiting = values(text, metric::REQUESTS_WAITING);
        let (share, waiting) =
            (shares.iter().sum::<f64>(), waiting.iter().copied().reduce(|a, b| a + b)?);
        let share = share / shares.len() as f64;
        (0.0..=1.0).contains(&share).then_some(Self { share, waiting })
    }
}

/// Returns all values of a metric, one for each set of labels.
fn values(text: &str, name: &str) -> Vec<f64> {
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let rest = match rest.strip_prefix('{') {
            Some(labels) => labels.rsplit_once('}')?.1,
            None => rest.strip_prefix(' ')?,
        };
        rest.split_whitespace().next()?.parse().ok()
    };
    text.lines().filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_of_vllm_are_read() {
        let text = "\
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"a } b\"} 0.25
vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"a } b\"} 0.75
vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 7.0
vllm:num_requests_waiting{engine=\"0\",model_name=\"a } b\"} 1.0
vllm:num_requests_waiting{engine=\"1\",model_name=\"a } b\"} 2.0 1700000000
";
        assert_eq!(CacheUse::parse(text), Some(CacheUse { share: 0.5, waiting: 3.0 }));
        let plain = "vllm:kv_cache_usage_perc 0.5\nvllm:num_requests_waiting 0\n";
        assert_eq!(CacheUse::parse(plain), Some(CacheUse { share: 0.5, waiting: 0.0 }));
    }

    #[test]
    fn incomplete_or_invalid_metrics_are_ignored() {
        assert_eq!(CacheUse::parse(""), None);
        assert_eq!(CacheUse::parse("vllm:kv_cache_usage_perc 0.5\n"), None);
        let odd = "vllm:kv_cache_usage_perc NaN\nvllm:num_requests_waiting 0\n";
        assert_eq!(CacheUse::parse(odd), None);
    }
}
