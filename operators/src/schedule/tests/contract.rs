//! A slow oracle for the contract of a schedule. It reads the log of a run, and checks each decision against the entries before it.
//!
//! It knows the prompts of the run and the guarantees of the configuration, keeps no state, and scans the log again for each question.

use std::collections::BTreeSet;

use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::FinishReason;

use super::log::{
    admitted, as_defer, decided, ended, has_event, is_admit, is_open, launches, live, open_round,
    outcomes, reported, requested, rounds, scores, since_open, stopped,
};
use crate::schedule::testkit::Entry;
use crate::schedule::{Decision, Event, Offer, Queue, Reason, RoundKind};

/// The guarantees of a schedule.
#[derive(Clone, Debug)]
pub(super) struct Contract {
    /// The prompts of the run, without those that have no quota.
    pub(super) prompts: Vec<Offer>,
    pub(super) total_steps: Option<u64>,
    /// The number of groups that a round admits.
    pub(super) places: usize,
    pub(super) responses: u32,
    /// The number of responses launched for a prompt, without replacements of lost responses.
    pub(super) samples: u32,
    /// The maximum number of prompts that a round may launch.
    pub(super) max: usize,
    pub(super) slots: usize,
    /// `true` if groups without variance are rejected.
    pub(super) filters: bool,
    /// `true` if the run fails when a round lacks groups and may launch no further prompt.
    pub(super) fails: bool,
    /// `true` if the responses in flight at the end of a round are paused, not aborted.
    pub(super) pauses: bool,
    /// The maximum number of rounds from the first launch of a prompt to its admission, both included.
    pub(super) max_rounds: u64,
}

impl Contract {
    pub(super) fn check(&self, log: &[Entry]) {
        for (index, entry) in log.iter().enumerate() {
            match entry {
                Entry::Event(_) => self.check_overdue(&log[..index]),
                Entry::Decision(decision) => self.decision(&log[..index], decision),
            }
        }
        self.outcome(log);
    }

    fn decision(&self, past: &[Entry], decision: &Decision) {
        assert!(!decided(past, is_last), "a decision after the end: {decision}");
        match decision {
            Decision::Open { step, .. } => self.open(past, *step),
            Decision::Launch { prompt, samples, reason } => {
                samples.clone().for_each(|sample| self.launch(past, *prompt, sample, *reason));
                let running = running(past) + samples.len();
                assert!(running <= self.slots, "{running} responses run after {decision}");
            }
            Decision::Admit { prompt, samples, weights, .. } => {
                assert!(weights.is_empty(), "{decision}");
                self.admit(past, *prompt, samples);
            }
            Decision::Abort { id, reason } => self.abort(past, *id, *reason),
            Decision::Pause { id, .. } => self.pause(past, *id),
            Decision::Defer { prompt, .. } => self.defer(past, *prompt),
            Decision::Reject { prompt, reason } => self.reject(past, *prompt, *reason),
            Decision::Close { step, queue } => self.close(past, *step, *queue),
            Decision::Finish => self.finish(past),
            Decision::Fail { .. } => self.fail(past),
        }
    }

    fn open(&self, past: &[Entry], step: Step) {
        assert_eq!(open_round(past), None, "two rounds are open");
        assert_eq!(step.0, rounds(past).len() as u64, "steps ascend by one");
        assert!(
            has_event(past, |event| *event == Event::Policy { step }),
            "{step} is not published"
        );
        assert!(self.total_steps.is_none_or(|total| step.0 < total), "step {step} is one too many");
        assert!(!self.undecided(past).is_empty(), "round {step} has no prompts");
    }

    fn launch(&self, past: &[Entry], prompt: PromptId, sample: u32, reason: Reason) {
        let (round, step) = (since_open(past), open_round(past).expect("an open round"));
        let epoch = self.undecided(past).first().map(|offer| offer.epoch);
        let offer = self.prompts.iter().find(|offer| offer.prompt == prompt).expect("a prompt");
        assert!(
            has_event(past, |event| *event == Event::Prompt(offer.clone())),
            "{prompt} is unknown"
        );
        assert_eq!(
            Some(offer.epoch),
            epoch,
            "{prompt} is launched before the epoch before is over"
        );
        assert!(outcomes(round, prompt).is_empty(), "{prompt} was decided");
        assert!(self.undecided(past).contains(&offer), "{prompt} was trained on or rejected");
        assert!(!requested(round, prompt).contains(&sample), "{prompt}.{sample}@{step} runs twice");
        let (running, requested) = (live(round, prompt).len(), requested(round, prompt).len());
        if reason == Reason::Lost {
            let left = ended(round, prompt).len() + running;
            assert!(left < self.responses as usize, "{prompt} had enough responses left");
        } else {
            let lost = lost(round, prompt);
            assert!(requested < self.samples as usize + lost, "{prompt} has too many responses");
            let queued = decided(past, |decision| is_defer(decision, prompt));
            assert_eq!(reason == Reason::Queued, queued, "{prompt} is launched because {reason}");
        }
        let prompts: BTreeSet<_> = launches(round).into_iter().map(|(prompt, _)| prompt).collect();
        assert!(prompts.contains(&prompt) || prompts.len() < self.max, "too many are launched");
    }

    fn admit(&self, past: &[Entry], prompt: PromptId, samples: &[u32]) {
        let (round, step) = (since_open(past), open_round(past).expect("an open round"));
        assert!(admitted(round).len() < self.places, "no place was left for {prompt}");
        assert!(outcomes(round, prompt).is_empty(), "{prompt} was decided before");
        assert!(!decided(past, |decision| is_admit(decision, prompt)), "{prompt} is trained twice");
        let members: BTreeSet<u32> = ended(round, prompt).into_iter().collect();
        assert_eq!(samples, members.into_iter().collect::<Vec<_>>(), "the group of {prompt}");
        assert_eq!(samples.len(), self.responses as usize, "the group of {prompt}");
        if self.filters {
            assert!(varies(self.judged(round, prompt)), "{prompt} has no variance of reward");
        }
        let first = first_launch(past, prompt).expect("a launched prompt");
        assert!(step.0 - first.0 < self.max_rounds, "{prompt} took from {first} to {step}");
        assert!(kept(past, prompt).is_empty(), "samples of {prompt} were kept and not used");
    }

    /// Returns the rewards of a group, and checks that all of its responses are scored.
    fn judged(&self, round: &[Entry], prompt: PromptId) -> Vec<f64> {
        let scores = scores(round, prompt);
        assert_eq!(scores.len(), self.responses as usize, "{prompt} was judged too early");
        scores
    }

    fn reject(&self, past: &[Entry], prompt: PromptId, reason: Reason) {
        if reason == Reason::NoQuota {
            return assert!(!self.prompts.iter().any(|offer| offer.prompt == prompt), "{prompt}");
        }
        let round = since_open(past);
        assert!(self.filters && reason == Reason::ZeroVariance, "{prompt} was rejected");
        assert!(outcomes(round, prompt).is_empty(), "{prompt} was decided before");
        assert!(!varies(self.judged(round, prompt)), "{prompt} was rejected though it varies");
    }

    fn abort(&self, past: &[Entry], id: SampleId, reason: Reason) {
        let round = since_open(past);
        assert_eq!(open_round(past), Some(id.step), "{id} is not of the open round");
        assert!(live(round, id.prompt).contains(&id.sample), "{id} does not run");
        match reason {
            Reason::GroupFull => {
                assert_eq!(ended(round, id.prompt).len(), self.responses as usize, "{id}");
            }
            Reason::RoundFull => assert!(!self.pauses, "{id} should be kept"),
            other => panic!("{id} was aborted because {other}"),
        }
    }

    fn pause(&self, past: &[Entry], id: SampleId) {
        let round = since_open(past);
        assert!(self.pauses, "{id} was paused");
        assert_eq!(open_round(past), Some(id.step), "{id} is not of the open round");
        assert!(outcomes(round, id.prompt).is_empty(), "{} was decided", id.prompt);
        let known = live(round, id.prompt).contains(&id.sample)
            || ended(round, id.prompt).contains(&id.sample);
        assert!(known && !stopped(round, id.prompt).contains(&id.sample), "{id} does not run");
    }

    fn defer(&self, past: &[Entry], prompt: PromptId) {
        let round = since_open(past);
        assert!(!requested(round, prompt).is_empty(), "{prompt} was not launched");
        assert!(outcomes(round, prompt).is_empty(), "{prompt} was decided before");
        let last = past.iter().rev().map_while(as_defer).next();
        assert!(last.is_none_or(|last| last < prompt), "deferrals are in launch order");
    }

    fn close(&self, past: &[Entry], step: Step, queue: Queue) {
        let round = since_open(past);
        assert_eq!(open_round(past), Some(step), "the round that closes is open");
        let launched: BTreeSet<_> = launches(round).into_iter().map(|(prompt, _)| prompt).collect();
        for &prompt in &launched {
            let is_decided =
                outcomes(round, prompt).len() + usize::from(is_rejected(round, prompt));
            assert_eq!(is_decided, 1, "{prompt} was launched, then decided once");
            assert!(live(round, prompt).is_empty(), "{prompt} still runs");
            assert!(unanswered(round, prompt).is_empty(), "{prompt} was not answered");
        }
        let left = self.undecided(past).len();
        let epoch = self.undecided(&past[..past.len() - round.len()])[0].epoch;
        // A short round does not replace a rejected prompt with a deferred one.
        let is_short =
            matches!(round[0], Entry::Decision(Decision::Open { round: RoundKind::Short, .. }));
        let is_spent =
            |it: &&Offer| self.filters && is_short && first_launch(past, it.prompt).is_some();
        let is_over = self.undecided(past).iter().all(|it| it.epoch != epoch || is_spent(it));
        let is_exhausted = self.filters && !self.fails && launched.len() == self.max;
        assert!(
            admitted(round).len() == self.places || is_over || is_exhausted,
            "round {step} admitted {} groups, and {left} prompts are left",
            admitted(round).len()
        );
        let since = self.undecided(past).into_iter().filter_map(|it| first_launch(past, it.prompt));
        let since: Vec<Step> = since.collect();
        let age = since.iter().map(|since| step.0 - since.0).max().unwrap_or(0);
        assert_eq!(queue, Queue { length: since.len(), age }, "the queue as round {step} closes");
    }

    fn finish(&self, past: &[Entry]) {
        assert_eq!(open_round(past), None, "a round is still open");
        let is_over = self.total_steps.is_some_and(|total| rounds(past).len() as u64 == total);
        assert!(is_over || self.undecided(past).is_empty(), "prompts are left");
    }

    fn fail(&self, past: &[Entry]) {
        let round = since_open(past);
        let launched: BTreeSet<_> = launches(round).into_iter().map(|(prompt, _)| prompt).collect();
        let rejected = launched.iter().filter(|prompt| is_rejected(round, **prompt)).count();
        assert!(self.fails, "the run failed");
        assert_eq!(launched.len(), self.max, "prompts could be launched");
        assert!(
            launched.len() - rejected < self.places,
            "the remaining prompts could still fill the round"
        );
    }

    /// Checks that no possible decision is pending between two events.
    fn check_overdue(&self, past: &[Entry]) {
        if open_round(past).is_none() || decided(past, is_last) {
            return;
        }
        let round = since_open(past);
        let is_full = admitted(round).len() == self.places;
        let mut waits = false;
        for (prompt, _) in launches(round) {
            let is_complete = ended(round, prompt).len() == self.responses as usize;
            let is_decided = !outcomes(round, prompt).is_empty() || is_rejected(round, prompt);
            let surplus = is_complete || is_decided || is_full;
            assert!(!surplus || live(round, prompt).is_empty(), "surplus of {prompt} runs on");
            if is_complete && !is_decided && self.filters {
                let is_scored = scores(round, prompt).len() == self.responses as usize;
                assert!(!is_scored || is_full, "{prompt} waits to be judged");
            }
            waits |= !unanswered(round, prompt).is_empty();
            waits |= !is_full && !is_decided;
        }
        let pending = self.filters && launches(round).iter().any(|(it, _)| is_rejected(round, *it));
        assert!(waits || pending, "the round waits to be closed");
    }

    fn outcome(&self, log: &[Entry]) {
        let end = log.iter().position(|it| matches!(it, Entry::Decision(it) if is_last(it)));
        let log = &log[..end.expect("the run ends") + 1];
        let has_failed = decided(log, |decision| matches!(decision, Decision::Fail { .. }));
        for Offer { prompt, .. } in &self.prompts {
            let admitted = admitted(log).iter().filter(|admitted| *admitted == prompt).count();
            let decided = admitted + usize::from(is_rejected(log, *prompt));
            let is_launched = first_launch(log, *prompt).is_some();
            let must = is_launched || self.total_steps.is_none();
            assert!(decided <= 1, "{prompt} was decided {decided} times");
            assert!(has_failed || decided == usize::from(must), "{prompt} was lost");
        }
    }

    /// Returns the prompts that were neither admitted nor rejected.
    pub(super) fn undecided(&self, past: &[Entry]) -> Vec<&Offer> {
        let admitted = admitted(past);
        let is_left =
            |offer: &&Offer| !admitted.contains(&offer.prompt) && !is_rejected(past, offer.prompt);
        self.prompts.iter().filter(is_left).collect()
    }
}

fn is_last(decision: &Decision) -> bool {
    matches!(decision, Decision::Finish | Decision::Fail { .. })
}

fn is_defer(decision: &Decision, prompt: PromptId) -> bool {
    matches!(decision, Decision::Defer { prompt: it, .. } if *it == prompt)
}

fn is_rejected(log: &[Entry], prompt: PromptId) -> bool {
    decided(
        log,
        |decision| matches!(decision, Decision::Reject { prompt: it, .. } if *it == prompt),
    )
}

fn varies(scores: Vec<f64>) -> bool {
    scores.iter().any(|score| *score != scores[0])
}

pub(super) fn running(past: &[Entry]) -> usize {
    let round = since_open(past);
    let prompts: BTreeSet<_> = launches(round).into_iter().map(|(prompt, _)| prompt).collect();
    prompts.into_iter().map(|prompt| live(round, prompt).len()).sum()
}

fn lost(round: &[Entry], prompt: PromptId) -> usize {
    let reports = reported(round, prompt);
    reports.iter().filter(|(_, reason)| *reason == FinishReason::Abort).count()
}

/// Returns the step of the round that launched `prompt` first.
fn first_launch(log: &[Entry], prompt: PromptId) -> Option<Step> {
    let is_it = |entry: &Entry| matches!(entry, Entry::Decision(Decision::Launch { prompt: it, .. }) if *it == prompt);
    let launch = log.iter().position(is_it)?;
    log[..launch].iter().rev().find_map(|entry| match entry {
        Entry::Decision(Decision::Open { step, .. }) => Some(*step),
        _ => None,
    })
}

/// Returns the samples of `prompt` that were paused in the round while they ran, and have not answered.
fn unanswered(round: &[Entry], prompt: PromptId) -> Vec<u32> {
    let reported: Vec<u32> = reported(round, prompt).into_iter().map(|(it, _)| it).collect();
    let mut paused: Vec<u32> = Vec::new();
    for entry in round {
        if let Entry::Decision(Decision::Pause { id, .. }) = entry
            && id.prompt == prompt
            && !reported.contains(&id.sample)
        {
            paused.push(id.sample);
        }
    }
    paused
}

/// Returns the samples of `prompt` whose tokens are kept.
fn kept(log: &[Entry], prompt: PromptId) -> Vec<u32> {
    let mut kept = BTreeSet::new();
    for entry in log {
        match entry {
            Entry::Decision(Decision::Pause { id, .. }) if id.prompt == prompt => {
                kept.insert(id.sample);
            }
            Entry::Decision(Decision::Launch { prompt: it, samples, .. }) if *it == prompt => {
                kept.retain(|sample| !samples.contains(sample));
            }
            Entry::Event(Event::Response { id, finish_reason: FinishReason::Abort, .. })
                if id.prompt == prompt =>
            {
                kept.remove(&id.sample);
            }
            _ => {}
        }
    }
    kept.into_iter().collect()
}

/// Returns the rounds of a log, each from its opening to the next one.
pub(super) fn each_round(log: &[Entry]) -> Vec<&[Entry]> {
    let starts: Vec<usize> = (0..log.len()).filter(|&index| is_open(&log[index])).collect();
    let ends = starts.iter().skip(1).copied().chain([log.len()]);
    starts.iter().zip(ends).map(|(&start, end)| &log[start..end]).collect()
}
