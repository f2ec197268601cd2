//! Metrics that may differ between two otherwise identical runs.

/// Prefixes of the metrics of time, and of placements, which depend on it.
const SECTIONS: [&str; 4] = ["timing_s/", "operator/", "perf/", "placement/"];

/// Other metrics of durations, of machine load, or of work that did not finish in time.
const METRICS: [&str; 24] = [
    "ledger/anchored_cases",
    "ledger/mean_anchor_s",
    "profile/drift/max_ratio",
    "profile/drifted_cells",
    "reward/audited_kills",
    "reward/cancelled",
    "reward/exposed_time_s",
    "reward/in_flight_max",
    "reward/limit_kills",
    "reward/mean_limit_s",
    "reward/mean_time_s",
    "reward/queue_max",
    "reward/queue_s",
    "reward/skipped",
    "reward/tail_time_s",
    "reward/wrong_kill_rate",
    "reward/wrong_kills",
    "rollout/bubble_ratio",
    "rollout/guest_slowdown",
    "rollout/load_s",
    "rollout/preemptions",
    "rollout/tokens_per_s",
    "trainer/threads",
    "trainer/waiting_ratio",
];

/// Returns `true` if a metric depends on the speed of the machines, so that it differs between two runs that are otherwise identical to the
/// bit.
#[must_use]
pub fn depends_on_time(metric: &str) -> bool {
    let is_timed = SECTIONS.iter().any(|section| metric.starts_with(section));
    METRICS.contains(&metric) || (is_timed && metric != "perf/total_num_tokens")
}

#[cfg(test)]
mod tests {
    use super::depends_on_time;

    #[test]
    fn what_is_counted_in_tokens_does_not_hang_on_time() {
        assert!(depends_on_time("timing_s/step") && depends_on_time("rollout/bubble_ratio"));
        for name in ["perf/total_num_tokens", "critic/score/mean", "schedule/queue_age"] {
            assert!(!depends_on_time(name), "{name}");
        }
    }
}
