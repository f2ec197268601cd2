//! Advice: which configuration of a job to choose, why, and what would change it.

pub mod assumption;
mod candidate;
mod text;

use serde::Serialize;

use self::candidate::{Candidate, Chosen, choose};
use super::configured::{Configured, jobs};
use super::summary::Summary;

/// What to choose for one job.
///
/// Configurations of different jobs are not compared: more GPUs or shorter responses are no schedule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The job, by the values of the swept keys that are not the schedule's; empty for one job.
    pub job: String,
    /// The configuration to choose; none where none is of low bias at both ends of what a trace leaves open.
    pub choice: Option<String>,
    /// Other configurations of low bias whose speed-up the simulator cannot tell from that of the fastest of them.
    pub not_separated: Vec<String>,
    /// The fastest configuration, whatever it trains on.
    pub fastest: Option<String>,
    /// What to choose at each end of the within-prompt correlation that a trace leaves open.
    pub ends: Vec<AtEnd>,
    /// What to choose under other assumptions.
    pub assumptions: Vec<Checked>,
    /// The same in sentences.
    pub text: String,
}

/// What to choose at an end of the within-prompt correlation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AtEnd {
    /// Correlation of the lengths of two responses to a prompt.
    pub correlation: f64,
    /// The configuration to choose.
    pub choice: Option<String>,
}

/// What to choose under another assumption, among the nearest configurations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// The assumption.
    pub assumption: String,
    /// The settings that make it.
    pub settings: Vec<String>,
    /// The configuration to choose.
    pub choice: Option<String>,
    /// Whether that is another.
    pub changes: bool,
}

/// The ends of the within-prompt correlation that a trace leaves open.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpenCorrelation<'a> {
    /// The lower end, that of the summaries.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The summaries at the upper end, in the same order.
    pub upper: &'a [Summary],
}

/// What is decided before other assumptions are tried.
pub(super) struct Decision<'a> {
    /// The job.
    pub(super) job: String,
    candidates: Vec<Candidate<'a>>,
    chosen: Option<Chosen<'a>>,
    ends: Vec<AtEnd>,
    tolerance: f64,
}

/// Decides for each job of `runs`, whose summaries are `summaries`, with mean lengths that may be off by `tolerance`.
pub(super) fn decide<'a>(
    runs: &'a [Configured],
    summaries: &'a [Summary],
    open: Option<OpenCorrelation<'a>>,
    tolerance: f64,
) -> Vec<Decision<'a>> {
    let decision = |(job, members): (&str, Vec<usize>)| {
        let at = |low: &'a [Summary], high: Option<&'a [Summary]>| -> Vec<Candidate<'a>> {
            let candidate = |&place: &usize| Candidate {
                place,
                summary: &low[place],
                upper: high.map(|high| &high[place]),
            };
            members.iter().map(candidate).collect()
        };
        let candidates = at(summaries, open.map(|open| open.upper));
        let alone = |of: &'a [Summary]| {
            choose(&at(of, None), tolerance).map(|chosen| chosen.choice.label().to_owned())
        };
        let ends = open.map(|OpenCorrelation { low, high, upper }| {
            vec![
                AtEnd { correlation: low, choice: alone(summaries) },
                AtEnd { correlation: high, choice: alone(upper) },
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

/// Configurations that are simulated under other assumptions, beside their baselines.
const NEAREST: usize = 4;

impl Decision<'_> {
    /// The label of the configuration to choose.
    pub(super) fn choice(&self) -> Option<&str> {
        self.chosen.as_ref().map(|chosen| chosen.choice.label())
    }

    /// Where the choice and those that might take its place are: the fastest of low bias. Nothing where there is no other.
    pub(super) fn nearest(&self) -> Vec<usize> {
        let Some(chosen) = &self.chosen else { return Vec::new() };
        let mut fit: Vec<&Candidate<'_>> =
            self.candidates.iter().filter(|one| one.is_low(self.tolerance)).collect();
        fit.sort_by(|a, b| b.speed().total_cmp(&a.speed()));
        fit.truncate(NEAREST);
        let mut places: Vec<usize> = fit.iter().map(|candidate| candidate.place).collect();
        if !places.contains(&chosen.choice.place) {
            places.push(chosen.choice.place);
        }
        if places.len() > 1 { places } else { Vec::new() }
    }

    /// The advice, with what came of other assumptions.
    pub(super) fn advice(self, assumptions: Vec<Checked>) -> Advice {
        let text = text::of(&self, &assumptions);
        let label = |candidate: &Candidate<'_>| candidate.label().to_owned();
        let rivals = self.chosen.iter().flat_map(|chosen| &chosen.rivals);
        Advice {
            choice: self.choice().map(str::to_owned),
            not_separated: rivals.map(label).collect(),
            fastest: self.fastest().map(label),
            job: self.job,
            ends: self.ends,
            assumptions,
            text,
        }
    }

    /// The fastest of all.
    fn fastest(&self) -> Option<&Candidate<'_>> {
        self.candidates.iter().max_by(|a, b| a.speed().total_cmp(&b.speed()))
    }
}

#[cfg(test)]
mod tests;
