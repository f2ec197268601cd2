//! Results of the configurations of a sweep.

use anyhow::Context;

use super::outcome::RunOutcome;
use super::setup::Setup;
use super::summary::Summary;

/// A configuration with its results.
#[derive(Clone, Debug)]
pub struct ConfigurationRuns {
    /// The name of the configuration in tables.
    pub label: String,
    /// The job of the configuration: the values of the swept keys that do not belong to the schedule; empty if no such key is swept.
    pub job: String,
    /// The settings that the sweep adds to the job file, `key=value` each.
    pub settings: Vec<String>,
    /// The effective parallelism, placement and hand-out.
    pub setup: Setup,
    /// The seeds of the runs, in the order of `outcomes`.
    pub seeds: Vec<u64>,
    /// The outcomes, one per seed.
    pub outcomes: Vec<RunOutcome>,
    /// The index of the baseline among the configurations of the sweep. A baseline has its own index.
    pub baseline: usize,
    /// `true` if the configuration was requested; `false` if it was added only as a baseline.
    pub requested: bool,
    /// `true` if every trained token was sampled by the weights that the update changes.
    pub on_policy: bool,
}

/// Returns the summaries of the configurations in the same order, each relative to its baseline and to the plain `sync` of its job.
///
/// # Errors
/// If a configuration has no steps after the warm-up; the error names it.
pub fn summaries(runs: &[ConfigurationRuns]) -> anyhow::Result<Vec<Summary>> {
    let summary = |(run, sync): (&ConfigurationRuns, usize)| {
        Summary::of(run, &runs[run.baseline], &runs[sync])
            .with_context(|| format!("configuration {}: expected steps, found none", run.label))
    };
    runs.iter().zip(plain_syncs(runs)).map(summary).collect()
}

/// Returns the name of each job, as in [`ConfigurationRuns::job`], and the indices of its configurations: the configurations that were
/// requested, and their baselines. The jobs are in the order of their first requested configuration.
#[must_use]
pub fn jobs(runs: &[ConfigurationRuns]) -> Vec<(&str, Vec<usize>)> {
    let mut names: Vec<&str> = Vec::new();
    for run in runs.iter().filter(|run| run.requested) {
        if !names.contains(&run.job.as_str()) {
            names.push(&run.job);
        }
    }
    names.into_iter().map(|name| (name, members(runs, name))).collect()
}

fn members(runs: &[ConfigurationRuns], job: &str) -> Vec<usize> {
    let requested = |run: &ConfigurationRuns| run.requested && run.job == job;
    let is_baseline = |index: usize| runs.iter().any(|run| requested(run) && run.baseline == index);
    (0..runs.len()).filter(|&index| requested(&runs[index]) || is_baseline(index)).collect()
}

/// Returns, for each configuration, the index of the plain `sync` of its job: the baseline with the fewest settings. A baseline that
/// several jobs share gets the plain `sync` of the first of these jobs.
pub(super) fn plain_syncs(runs: &[ConfigurationRuns]) -> Vec<usize> {
    let mut plain: Vec<usize> = runs.iter().map(|run| run.baseline).collect();
    for (_, members) in jobs(runs).into_iter().rev() {
        let baselines = members.iter().map(|&member| runs[member].baseline);
        let simplest = baselines.min_by_key(|&baseline| runs[baseline].settings.len());
        if let Some(simplest) = simplest {
            members.into_iter().for_each(|member| plain[member] = simplest);
        }
    }
    plain
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::setup::tests::setup;
    use super::super::summary::tests::run;
    use super::*;

    /// Returns a configuration whose baseline is the first configuration.
    pub(crate) fn configured(label: &str, outcomes: &[RunOutcome]) -> ConfigurationRuns {
        ConfigurationRuns {
            label: label.to_owned(),
            job: String::new(),
            settings: Vec::new(),
            setup: setup(),
            seeds: (1..=outcomes.len() as u64).collect(),
            outcomes: outcomes.to_vec(),
            baseline: 0,
            requested: true,
            on_policy: true,
        }
    }

    fn of_job(label: &str, job: &str, settings: &[&str], baseline: usize) -> ConfigurationRuns {
        ConfigurationRuns {
            job: job.to_owned(),
            settings: settings.iter().map(|&setting| setting.to_owned()).collect(),
            baseline,
            ..configured(label, &[run(&[("full", 10.0)], &[])])
        }
    }

    #[test]
    fn a_job_has_the_requested_configurations_and_their_baselines() {
        let alone = |run: ConfigurationRuns| ConfigurationRuns { requested: false, ..run };
        let runs = [
            alone(of_job("n=4 planned sync", "n=4", &["n=4", "layout=planned"], 0)),
            of_job("n=4 sync", "n=4", &["n=4"], 1),
            of_job("n=4 tuned", "n=4", &["n=4", "layout=planned"], 0),
            alone(of_job("n=8 sync", "n=8", &["n=8"], 3)),
            of_job("n=8 fused", "n=8", &["n=8"], 3),
        ];
        assert_eq!(jobs(&runs), [("n=4", vec![0, 1, 2]), ("n=8", vec![3, 4])]);
        assert_eq!(plain_syncs(&runs), [1, 1, 1, 3, 3]);
    }

    #[test]
    fn a_configuration_without_steps_is_an_error() {
        let error =
            summaries(&[configured("fused", &[RunOutcome::default()])]).expect_err("no steps");
        assert_eq!(error.to_string(), "configuration fused: expected steps, found none");
    }
}
