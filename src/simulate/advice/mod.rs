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
    /// The job, as the values of the swept keys that are not the schedule's; empty if there is only one job.
    pub job: String,
    /// The configuration to choose; `None` if none has low bias, at both ends of the within-prompt correlation if a trace does not
    /// determine it.
    pub choice: Option<String>,
    /// Other low-bias configurations whose speed-up does not differ significantly from that of the fastest one.
    pub not_separated: Vec<String>,
    /// The fastest configuration, regardless of its bias.
    pub fastest: Option<String>,
    /// The choice at each end of the within-prompt correlation; empty unless a trace does not determine it.
    pub ends: Vec<ChoiceAtEnd>,
    /// The choice under other assumptions.
    pub assumptions: Vec<AssumptionCheck>,
    /// The advice in sentences.
    pub text: String,
}

/// The choice at one end of the within-prompt correlation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChoiceAtEnd {
    /// The correlation of the lengths of two responses to a prompt.
    pub correlation: f64,
    /// The configuration to choose; `None` if none has low bias.
    pub choice: Option<String>,
}

/// The choice under another assumption, among the fastest low-bias configurations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AssumptionCheck {
    /// The assumption, by name.
    pub assumption: String,
    /// The settings that make the assumption.
    pub settings: Vec<String>,
    /// The configuration to choose; `None` if none has low bias.
    pub choice: Option<String>,
    /// `true` if this choice differs from the one under the job's own assumptions.
    pub changes: bool,
}

/// The two ends of a within-prompt correlation that a trace does not determine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpenCorrelation<'a> {
    /// The lower end, at which the regular summaries were made.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The summaries at the upper end, in the same order as those at the lower end.
    pub upper: &'a [Summary],
}

/// The decision for one job, before other assumptions are tried.
pub(super) struct Decision<'a> {
    /// The job.
    pub(super) job: String,
    candidates: Vec<Candidate<'a>>,
    chosen: Option<ChosenCandidate<'a>>,
    ends: Vec<ChoiceAtEnd>,
    tolerance: f64,
}

/// Decides for each job of `runs`, whose summaries are `summaries`. The mean length may deviate from the policy's by the share `tolerance`.
pub(super) fn decide<'a>(
    runs: &'a [ConfigurationRuns],
    summaries: &'a [Summary],
    open: Option<OpenCorrelation<'a>>,
    tolerance: f64,
) -> Vec<Decision<'a>> {
    let syncs = plain_syncs(runs);
    let decision = |(job, members): (&str, Vec<usize>)| {
        let at = |low: &'a [Summary], high: Option<&'a [Summary]>| -> Vec<Candidate<'a>> {
            let candidate = |&place: &usize| Candidate {
                index: place,
                summary: &low[place],
                upper: high.map(|high| &high[place]),
                is_sync: syncs[place] == place,
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

/// The maximum number of low-bias configurations that are simulated again under other assumptions; baselines are added to them.
const NEAREST: usize = 4;

impl Decision<'_> {
    /// Returns the label of the configuration to choose.
    pub(super) fn choice(&self) -> Option<&str> {
        self.chosen.as_ref().map(|chosen| chosen.choice.label())
    }

    /// Returns the indices of the choice and of the fastest low-bias configurations; empty if there is only one of them.
    pub(super) fn nearest(&self) -> Vec<usize> {
        let Some(chosen) = &self.chosen else { return Vec::new() };
        let mut fit: Vec<&Candidate<'_>> =
            self.candidates.iter().filter(|one| one.is_low(self.tolerance)).collect();
        fit.sort_by(|a, b| b.speed().total_cmp(&a.speed()));
        fit.truncate(NEAREST);
        let mut places: Vec<usize> = fit.iter().map(|candidate| candidate.index).collect();
        if !places.contains(&chosen.choice.index) {
            places.push(chosen.choice.index);
        }
        if places.len() > 1 { places } else { Vec::new() }
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
