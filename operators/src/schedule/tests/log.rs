//! Queries on the log of a run.

use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_stages::rollout::FinishReason;

use crate::schedule::testkit::Entry;
use crate::schedule::{Decision, Event, Reason};

pub(super) fn has_event(log: &[Entry], test: impl Fn(&Event) -> bool) -> bool {
    log.iter().any(|entry| matches!(entry, Entry::Event(event) if test(event)))
}

pub(super) fn decided(log: &[Entry], test: impl Fn(&Decision) -> bool) -> bool {
    log.iter().any(|entry| matches!(entry, Entry::Decision(decision) if test(decision)))
}

pub(super) fn is_open(entry: &Entry) -> bool {
    matches!(entry, Entry::Decision(Decision::Open { .. }))
}

pub(super) fn is_admit(decision: &Decision, prompt: PromptId) -> bool {
    matches!(decision, Decision::Admit { prompt: it, .. } if *it == prompt)
}

pub(super) fn as_defer(entry: &Entry) -> Option<PromptId> {
    match entry {
        Entry::Decision(Decision::Defer { prompt, .. }) => Some(*prompt),
        _ => None,
    }
}

pub(super) fn rounds(log: &[Entry]) -> Vec<&Entry> {
    log.iter().filter(|entry| is_open(entry)).collect()
}

pub(super) fn since_open(log: &[Entry]) -> &[Entry] {
    &log[log.iter().rposition(is_open).unwrap_or(log.len())..]
}

pub(super) fn open_round(log: &[Entry]) -> Option<Step> {
    log.iter().rev().find_map(|entry| match entry {
        Entry::Decision(Decision::Open { step, .. }) => Some(Some(*step)),
        Entry::Decision(Decision::Close { .. }) => Some(None),
        _ => None,
    })?
}

/// Returns the prompt and the reason of each launch, except replacements of lost responses.
pub(super) fn launches(log: &[Entry]) -> Vec<(PromptId, Reason)> {
    let launch = |entry: &Entry| match entry {
        Entry::Decision(Decision::Launch { prompt, reason, .. }) if *reason != Reason::Lost => {
            Some((*prompt, *reason))
        }
        _ => None,
    };
    log.iter().filter_map(launch).collect()
}

pub(super) fn launched_samples(round: &[Entry], prompt: PromptId) -> u32 {
    let samples = |entry: &Entry| match entry {
        Entry::Decision(Decision::Launch { prompt: it, samples, .. }) if *it == prompt => {
            Some(samples.end)
        }
        _ => None,
    };
    round.iter().filter_map(samples).max().unwrap_or(0)
}

pub(super) fn admitted(log: &[Entry]) -> Vec<PromptId> {
    let admit = |entry: &Entry| match entry {
        Entry::Decision(Decision::Admit { prompt, .. }) => Some(*prompt),
        _ => None,
    };
    log.iter().filter_map(admit).collect()
}

pub(super) fn outcomes(round: &[Entry], prompt: PromptId) -> Vec<&'static str> {
    let outcome = |entry: &Entry| match entry {
        Entry::Decision(decision) if is_admit(decision, prompt) => Some("admit"),
        Entry::Decision(Decision::Defer { prompt: it, .. }) if *it == prompt => Some("defer"),
        _ => None,
    };
    round.iter().filter_map(outcome).collect()
}

/// Returns the samples of `prompt` that were aborted in the round.
pub(super) fn aborted(round: &[Entry], prompt: PromptId) -> Vec<u32> {
    let abort = |entry: &Entry| match entry {
        Entry::Decision(Decision::Abort { id, .. }) if id.prompt == prompt => Some(id.sample),
        _ => None,
    };
    round.iter().filter_map(abort).collect()
}

/// Returns the samples of `prompt` in the open round whose ends were reported, with their finish reasons.
pub(super) fn reported(round: &[Entry], prompt: PromptId) -> Vec<(u32, FinishReason)> {
    let Some(step) = open_round(round) else { return Vec::new() };
    let report = |entry: &Entry| match entry {
        Entry::Event(Event::Response { id, finish_reason, .. })
            if id.prompt == prompt && id.step == step =>
        {
            Some((id.sample, *finish_reason))
        }
        _ => None,
    };
    round.iter().filter_map(report).collect()
}

/// Returns the samples of `prompt` that ended or were paused without being aborted.
pub(super) fn ended(round: &[Entry], prompt: PromptId) -> Vec<u32> {
    let aborted = aborted(round, prompt);
    let reports = reported(round, prompt).into_iter();
    reports
        .filter(|(sample, reason)| *reason != FinishReason::Abort && !aborted.contains(sample))
        .map(|(sample, _)| sample)
        .collect()
}

/// Returns the samples of `prompt` that were launched and neither reported nor stopped.
pub(super) fn live(round: &[Entry], prompt: PromptId) -> Vec<u32> {
    let (stopped, reported) = (stopped(round, prompt), reported(round, prompt));
    let is_live =
        |sample: &u32| !stopped.contains(sample) && !reported.iter().any(|(it, _)| it == sample);
    requested(round, prompt).into_iter().filter(is_live).collect()
}

/// Returns the samples of `prompt` that were launched in the round.
pub(super) fn requested(round: &[Entry], prompt: PromptId) -> Vec<u32> {
    let samples = |entry: &Entry| match entry {
        Entry::Decision(Decision::Launch { prompt: it, samples, .. }) if *it == prompt => {
            Some(samples.clone())
        }
        _ => None,
    };
    round.iter().filter_map(samples).flatten().collect()
}

/// Returns the samples of `prompt` that were aborted or paused in the round.
pub(super) fn stopped(round: &[Entry], prompt: PromptId) -> Vec<u32> {
    let pause = |entry: &Entry| match entry {
        Entry::Decision(Decision::Pause { id, .. }) if id.prompt == prompt => Some(id.sample),
        _ => None,
    };
    aborted(round, prompt).into_iter().chain(round.iter().filter_map(pause)).collect()
}

/// Returns the rewards of the samples of `prompt` in the open round that ended without being aborted.
pub(super) fn scores(round: &[Entry], prompt: PromptId) -> Vec<f64> {
    let Some(step) = open_round(round) else { return Vec::new() };
    let ended = ended(round, prompt);
    let score = |entry: &Entry| match entry {
        Entry::Event(Event::Scored { id, score })
            if id.prompt == prompt && id.step == step && ended.contains(&id.sample) =>
        {
            Some(*score)
        }
        _ => None,
    };
    round.iter().filter_map(score).collect()
}
