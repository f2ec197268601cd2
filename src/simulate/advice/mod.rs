//! Advice: which configuration of a job to choose, why, and which assumptions would change the choice.

pub mod assumption;
mod candidate;
mod text;

use serde::Serialize;

use self::candidate::{Candidate, ChosenCandidate, choose};
use super::configuration::{ConfigurationRuns, jobs, plain_syncs};
use super::summary::Summary;

/// The recommended configuration of one job.
///
/// Configurations of different jobs are not compared: more GPUs or shorter responses change the job, not the schedule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The job: the values of the swept keys that do not belong to the schedule; empty if no such key is swept.
    pub job: String,
    /// The recommended configuration; `None` if no configuration is on-policy with low bias. Of the on-policy configurations with low bias
    /// that are not significantly slower than the fastest of them, it is the one with the smallest error of the mean length. Ties are
    /// broken by the number of discarded tokens, and then by the number of settings. If a trace only bounds the within-prompt correlation
    /// of lengths, a configuration must be on-policy with low bias at both bounds.
    pub choice: Option<String>,
    /// Other on-policy configurations with low bias whose speed-up does not differ significantly from the speed-up of the fastest of them.
    pub not_separated: Vec<String>,
    /// The fastest of all configurations, including those that are off-policy or have a high bias; `None` without configurations.
    pub fastest: Option<String>,
    /// The choice at each end of the within-prompt correlation; empty unless a trace does not determine it.
    pub ends: Vec<ChoiceAtEnd>,
    /// The choice under other assumptions; empty unless at least two configurations have low bias.
    pub assumptions: Vec<AssumptionCheck>,
    /// The advice in sentences.
    pub text: String,
}

/// The choice at one end of the within-prompt correlation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChoiceAtEnd {
    /// The correlation of the lengths of two responses to a prompt.
    pub correlation: f64,
    /// The configuration to choose; `None` if none is on-policy with low bias.
    pub choice: Option<String>,
}

/// The choice under another assumption, among the configurations that were simulated again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AssumptionCheck {
    /// The name of the assumption, as in the sentences of the advice.
    pub assumption: String,
    /// The settings that make the assumption, `key=value` each.
    pub settings: Vec<String>,
    /// The configuration to choose; `None` if none is on-policy with low bias.
    pub choice: Option<String>,
    /// `true` if this choice differs from the choice that the first seed gives under the job's own assumptions.
    pub changes: bool,
}

/// The two ends of a within-prompt correlation that a trace does not determine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpenCorrelation<'a> {
    /// The lower end, at which the regular summaries were made.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The summaries at the upper end, in the same order as the summaries at the lower end.
    pub upper: &'a [Summary],
}

/// The decision for one job, before other assumptions are tried.
pub(super) struct Decision<'a> {
    /// The name of the job, as in [`Advice::job`].
    pub(super) job: String,
    candidates: Vec<Candidate<'a>>,
    chosen: Option<ChosenCandidate<'a>>,
    ends: Vec<ChoiceAtEnd>,
    tolerance: f64,
}

/// Chooses a configuration for each job of `runs`. Returns one decision per job, in the order of the jobs' first configurations.
///
/// `summaries` has one summary per entry of `runs`, in the same order. If a trace does not determine the within-prompt correlation, these
/// are the summaries at its lower end, and `open` has those at its upper end; otherwise `open` is `None`. `tolerance` is the maximum
/// relative deviation of the mean trained length from the mean length of the policy's responses.
///
/// # Panics
/// If there are fewer summaries than runs.
pub(super) fn decide<'a>(
    runs: &'a [ConfigurationRuns],
    summaries: &'a [Summary],
    open: Option<OpenCorrelation<'a>>,
    tolerance: f64,
) -> Vec<Decision<'a>> {
    let syncs = plain_syncs(runs);
    let decision = |(job, members): (&str, Vec<usize>)| {
        let at = |low: &'a [Summary], high: Option<&'a [Summary]>| -> Vec<Candidate<'a>> {
            let candidate = |&index: &usize| Candidate {
                index,
                summary: &low[index],
                upper: high.map(|high| &high[index]),
                is_sync: syncs[index] == index,
            };
            members.iter().map(candidate).collect()
        };
        let candidates = at(summaries, open.map(|open| open.upper));
        let alone = |of: &'a [Summary]| {
            choose(&at(of, None), tolerance).map(|chosen| chosen.choice.label().to_owned())
        };
        let ends = open.map(|OpenCorrelation { low, high, upper }| {
            vec![
                ChoiceAtEnd { correlation: low, choice: alone(summaries) },
                ChoiceAtEnd { correlation: high, choice: alone(upper) },
            ]
        });
        Decision {
            job: job.to_owned(),
            chosen: choose(&candidates, tolerance),
            candidates,
            ends: ends.unwrap_or_default(),
            tolerance,
        }
    };
    jobs(runs).into_iter().map(decision).collect()
}

/// The maximum number of low-bias configurations that are simulated again under other assumptions. The choice and the baselines are added
/// to them.
const MAX_RECHECKED: usize = 4;

impl Decision<'_> {
    /// Returns the label of the configuration to choose, or `None` if no configuration is on-policy with low bias.
    pub(super) fn choice(&self) -> Option<&str> {
        self.chosen.as_ref().map(|chosen| chosen.choice.label())
    }

    /// Returns the indices of the configurations to simulate again under other assumptions: at most `MAX_RECHECKED` of the fastest ones
    /// with low bias, and the choice. The list is empty if there is no choice, or if it would contain only one configuration.
    pub(super) fn nearest(&self) -> Vec<usize> {
        let Some(chosen) = &self.chosen else { return Vec::new() };
        let mut fit: Vec<&Candidate<'_>> =
            self.candidates.iter().filter(|one| one.is_low(self.tolerance)).collect();
        fit.sort_by(|a, b| b.speed().total_cmp(&a.speed()));
        fit.truncate(MAX_RECHECKED);
        let mut indices: Vec<usize> = fit.iter().map(|candidate| candidate.index).collect();
        if !indices.contains(&chosen.choice.index) {
            indices.push(chosen.choice.index);
        }
        if indices.len() > 1 { indices } else { Vec::new() }
    }

    /// Returns the advice, including the results under other assumptions.
    pub(super) fn advice(self, assumptions: Vec<AssumptionCheck>) -> Advice {
        let text = text::of(&self, &assumptions);
        let label = |candidate: &Candidate<'_>| candidate.label().to_owned();
        let equivalent = self.chosen.iter().flat_map(|chosen| &chosen.equivalent);
        Advice {
            choice: self.choice().map(str::to_owned),
            not_separated: equivalent.map(label).collect(),
            fastest: self.fastest().map(label),
            job: self.job,
            ends: self.ends,
            assumptions,
            text,
        }
    }

    /// Returns the fastest candidate, regardless of its bias.
    fn fastest(&self) -> Option<&Candidate<'_>> {
        self.candidates.iter().max_by(|a, b| a.speed().total_cmp(&b.speed()))
    }
}

#[cfg(test)]
mod tests;
