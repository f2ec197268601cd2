//! The slow oracle: reads the log of a run, and computes what the schedule should have decided.
//!
//! It has the whole dataset, keeps no counters, and scans the log again for each question.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollpacker_dataflow::step::{PromptId, SampleId, Step};

use super::log::{
    admitted, as_defer, decided, ended, has_event, is_admit, is_open, launched_samples, launches,
    live, open_round, outcomes, rounds, since_open,
};
use crate::schedule::testkit::Entry;
use crate::schedule::{Decision, Event, Offer, Queue, Reason, RoundKind};

/// The configuration of the schedule, and the dataset of the run.
#[derive(Clone, Debug)]
pub(super) struct Oracle {
    pub(super) prompts: Vec<Offer>,
    /// The quotas by domain; a quota of `""` applies to all domains.
    pub(super) quotas: BTreeMap<Arc<str>, usize>,
    pub(super) responses: u32,
    /// The factor of prompts, in twentieths.
    pub(super) eta_prompts: u64,
    /// The factor of responses, in twentieths.
    pub(super) eta_responses: u64,
    pub(super) max_queue_age: Option<u64>,
    pub(super) total_steps: Option<u64>,
    /// `true` if the schedule is synchronous: all rounds are full rounds without speculation.
    pub(super) is_sync: bool,
}

/// A deferred prompt, and the step that deferred it.
type Waiting = (PromptId, u64);

impl Oracle {
    /// Checks each entry of `log` against the entries before it, and the result of the run.
    pub(super) fn check(&self, log: &[Entry]) {
        for (index, entry) in log.iter().enumerate() {
            let past = &log[..index];
            match entry {
                Entry::Event(_) => self.check_overdue(past),
                Entry::Decision(decision) => self.decision(past, decision),
            }
        }
        self.check_overdue(log);
        self.outcome(log);
    }

    fn decision(&self, past: &[Entry], decision: &Decision) {
        assert!(
            !past.contains(&Entry::Decision(Decision::Finish)),
            "a decision after the end: {decision}"
        );
        match decision {
            Decision::Open { step, round, reason } => self.open(past, *step, *round, *reason),
            Decision::Launch { prompt, samples, reason } => {
                self.launch(past, *prompt, samples.clone(), *reason)
            }
            Decision::Admit { prompt, samples, .. } => self.admit(past, *prompt, samples),
            Decision::Abort { id, reason } => self.abort(past, *id, *reason),
            Decision::Pause { id, .. } => panic!("these schedules pause nothing: {id}"),
            Decision::Defer { prompt, .. } => self.defer(past, *prompt),
            Decision::Reject { prompt, .. } => {
                assert_eq!(self.lane(*prompt), None, "a prompt with a quota was rejected")
            }
            Decision::Close { step, queue } => self.close(past, *step, *queue),
            Decision::Finish => self.finish(past),
            Decision::Fail { message, .. } => panic!("these schedules do not fail: {message}"),
        }
    }

    // The composition of a round.

    fn open(&self, past: &[Entry], step: Step, round: RoundKind, reason: Reason) {
        assert_eq!(open_round(past), None, "two rounds are open");
        assert_eq!(step.0, rounds(past).len() as u64, "steps ascend by one");
        assert!(
            has_event(past, |event| *event == Event::Policy { step }),
            "the policy of {step} is not published"
        );
        assert!(self.total_steps.is_none_or(|total| step.0 < total), "step {step} is one too many");
        let expected = self.expected(past, step.0);
        assert_eq!((round, reason), (expected.round, expected.reason), "kind of round {step}");
    }

    fn launch(
        &self,
        past: &[Entry],
        prompt: PromptId,
        samples: std::ops::Range<u32>,
        reason: Reason,
    ) {
        let step = open_round(past).expect("a launch outside a round");
        if reason == Reason::Lost {
            let round = since_open(past);
            let left = ended(round, prompt).len() + live(round, prompt).len();
            assert!(left < self.responses as usize, "{prompt} had enough responses left");
            assert!(outcomes(round, prompt).is_empty(), "{prompt} was decided");
            assert_eq!(
                samples,
                launched_samples(round, prompt)..launched_samples(round, prompt) + 1
            );
            return;
        }
        let start = past.iter().rposition(is_open).expect("a round is open");
        let expected = self.expected(&past[..start], step.0);
        let position = launches(&past[start..]).len();
        assert_eq!(
            expected.launches.get(position),
            Some(&(prompt, reason)),
            "launch {position} of round {step}"
        );
        assert_eq!(samples, 0..expected.samples, "samples of {prompt} in round {step}");
    }

    /// Computes the composition of the round of `step` from the dataset and the log before the round.
    fn expected(&self, past: &[Entry], step: u64) -> Expected {
        let epoch = self.epoch(past).expect("prompts are left");
        let lanes: Vec<(&Arc<str>, usize)> =
            self.quotas.iter().map(|(lane, quota)| (lane, *quota)).collect();
        let rest = |lane: &Arc<str>| self.fresh(past, epoch, lane);
        let queue = |lane: &Arc<str>| self.queue(past, Some(lane));
        let short: Option<Vec<usize>> = lanes
            .iter()
            .map(|(lane, quota)| self.short(&queue(lane), rest(lane).len(), *quota, step))
            .collect();
        let spent = |(lane, quota): &(&Arc<str>, usize)| rest(lane).len() < *quota;
        let full = |(lane, quota): &(&Arc<str>, usize)| queue(lane).len() >= *quota;
        let late =
            |&(lane, quota): &(&Arc<str>, usize)| !self.drains(&queue(lane), quota, step + 1, None);

        let reason = match () {
            () if self.is_sync => {
                if lanes.iter().any(spent) {
                    Reason::EpochEnd
                } else {
                    Reason::Fresh
                }
            }
            () if lanes.iter().all(full) => Reason::QueueFull,
            () if lanes.iter().any(late) => Reason::QueueAge,
            () if short.is_none() => Reason::RunEnd,
            () if lanes.iter().all(|lane| full(lane) || spent(lane)) && lanes.iter().any(full) => {
                Reason::QueueFull
            }
            () if lanes.iter().all(spent) => Reason::EpochEnd,
            () => Reason::Fresh,
        };
        let round = match reason {
            _ if self.is_sync => RoundKind::Full,
            Reason::Fresh => RoundKind::Short,
            _ => RoundKind::Long,
        };
        let mut launches = Vec::new();
        for (index, (lane, quota)) in lanes.iter().enumerate() {
            let queued = if round == RoundKind::Long { queue(lane).len().min(*quota) } else { 0 };
            let fresh = match round {
                RoundKind::Short => short.as_ref().map_or(0, |short| short[index]),
                RoundKind::Long | RoundKind::Full => quota - queued,
            };
            launches.extend(
                queue(lane).into_iter().take(queued).map(|(prompt, _)| (prompt, Reason::Queued)),
            );
            launches
                .extend(rest(lane).into_iter().take(fresh).map(|prompt| (prompt, Reason::Fresh)));
        }
        launches.sort();
        let samples = if round == RoundKind::Short {
            ceil(self.eta_responses, self.responses.into())
        } else {
            self.responses.into()
        };
        Expected { round, reason, launches, samples: u32::try_from(samples).unwrap() }
    }

    /// Returns the number of prompts of a lane that a short round of `step` launches, or `None` if the round must not be short.
    fn short(&self, queue: &[Waiting], rest: usize, quota: usize, step: u64) -> Option<usize> {
        let max = usize::try_from(ceil(self.eta_prompts, quota as u64)).unwrap();
        let with = |launched: usize| {
            let deferred = (0..launched - quota).map(|_| (PromptId(u64::MAX), step));
            queue.iter().copied().chain(deferred).collect::<Vec<_>>()
        };
        let fits = |launched: &usize| {
            let queue = with(*launched);
            self.drains(&queue, quota, step + 1, self.total_steps)
        };
        let launched = (quota..=max).rev().find(fits)?;
        Some(if rest < quota { 0 } else { launched.min(rest) })
    }

    /// Returns `true` if long rounds from `step` on serve `queue` within the age limit and before the run ends.
    fn drains(&self, queue: &[Waiting], quota: usize, step: u64, total_steps: Option<u64>) -> bool {
        let served = queue
            .iter()
            .enumerate()
            .map(|(place, &(_, deferred))| (step + (place / quota) as u64, deferred));
        let too_old = |(served, deferred): (u64, u64)| {
            self.max_queue_age.is_some_and(|age| served - 1 - deferred > age)
        };
        let too_late = |(served, _): (u64, u64)| total_steps.is_some_and(|total| served >= total);
        !served.into_iter().any(|prompt| too_old(prompt) || too_late(prompt))
    }

    // The decisions in a round.

    fn admit(&self, past: &[Entry], prompt: PromptId, samples: &[u32]) {
        let round = since_open(past);
        assert!(open_round(past).is_some(), "{prompt} was admitted outside a round");
        assert!(outcomes(round, prompt).is_empty(), "{prompt} was decided before");
        assert!(
            !decided(past, |decision| is_admit(decision, prompt)),
            "{prompt} was trained on before"
        );
        assert!(self.free(round, prompt) > 0, "no place was left for {prompt}");
        let ended: BTreeSet<u32> = ended(round, prompt).into_iter().collect();
        assert_eq!(ended.len(), self.responses as usize, "{prompt} was not admitted at once");
        assert_eq!(
            samples,
            ended.into_iter().collect::<Vec<_>>(),
            "the first to finish form the group"
        );
    }

    fn abort(&self, past: &[Entry], id: SampleId, reason: Reason) {
        let round = since_open(past);
        assert_eq!(open_round(past), Some(id.step), "{id} is not of the open round");
        assert!(live(round, id.prompt).contains(&id.sample), "{id} does not run");
        let is_admitted = outcomes(round, id.prompt) == ["admit"];
        match reason {
            Reason::GroupFull => assert!(is_admitted, "{id} is still wanted"),
            Reason::RoundFull => {
                assert!(!is_admitted && self.free(round, id.prompt) == 0, "{id} is still wanted")
            }
            other => panic!("{id} was aborted because {other}"),
        }
    }

    fn defer(&self, past: &[Entry], prompt: PromptId) {
        let round = since_open(past);
        assert!(outcomes(round, prompt).is_empty(), "{prompt} was decided before");
        assert_eq!(self.free(round, prompt), 0, "{prompt} was deferred although a place was free");
        let last = past.iter().rev().map_while(as_defer).next();
        assert!(last.is_none_or(|last| last < prompt), "deferrals are in launch order");
    }

    fn close(&self, past: &[Entry], step: Step, queue: Queue) {
        let round = since_open(past);
        assert_eq!(open_round(past), Some(step), "the round that closes is open");
        for (prompt, _) in launches(round) {
            assert_eq!(
                outcomes(round, prompt).len(),
                1,
                "{prompt} was launched, then admitted or deferred"
            );
            assert!(live(round, prompt).is_empty(), "{prompt} still runs");
        }
        for (lane, quota) in &self.quotas {
            let mine = |prompt: &PromptId| self.lane(*prompt).as_ref() == Some(lane);
            let launched =
                launches(round).into_iter().map(|(prompt, _)| prompt).filter(mine).count();
            let admitted = admitted(round).into_iter().filter(mine).count();
            assert_eq!(admitted, launched.min(*quota), "admitted of `{lane}` in round {step}");
        }
        let waiting = self.queue(past, None);
        let age = waiting.iter().map(|(_, deferred)| step.0 - deferred).max().unwrap_or(0);
        assert_eq!(queue, Queue { length: waiting.len(), age }, "the queue as round {step} closes");
        assert!(self.max_queue_age.is_none_or(|max| age <= max), "a prompt waits for too long");
    }

    fn finish(&self, past: &[Entry]) {
        assert_eq!(open_round(past), None, "a round is still open");
        assert_eq!(self.queue(past, None), [], "deferred prompts are lost");
        let steps_are_over =
            self.total_steps.is_some_and(|total| rounds(past).len() as u64 == total);
        assert!(steps_are_over || self.epoch(past).is_none(), "prompts are left");
    }

    /// Checks that no possible decision is pending between two events.
    fn check_overdue(&self, past: &[Entry]) {
        if open_round(past).is_none() {
            return;
        }
        let round = since_open(past);
        let mut is_open = false;
        for (prompt, _) in launches(round) {
            let is_free = self.free(round, prompt) > 0;
            let running = !live(round, prompt).is_empty();
            let is_decided = outcomes(round, prompt) == ["admit"];
            is_open |= is_free;
            assert!(
                ended(round, prompt).len() < self.responses as usize || is_decided || !is_free,
                "{prompt} waits to be admitted"
            );
            assert!(!running || (is_free && !is_decided), "surplus of {prompt} runs on");
            assert!(running || !is_free || is_decided, "{prompt} is stuck");
        }
        assert!(is_open, "the round waits to be closed");
    }

    fn outcome(&self, log: &[Entry]) {
        let end = log.iter().position(|entry| *entry == Entry::Decision(Decision::Finish));
        let log = &log[..end.expect("the run ends")];
        let offered = |prompt| {
            has_event(log, |event| matches!(event, Event::Prompt(offer) if offer.prompt == prompt))
        };
        for prompt in
            self.prompts.iter().map(|offer| offer.prompt).filter(|prompt| offered(*prompt))
        {
            let admitted = admitted(log).into_iter().filter(|admitted| *admitted == prompt).count();
            let launched = launches(log).into_iter().any(|(launched, _)| launched == prompt);
            let rejected = decided(
                log,
                |decision| matches!(decision, Decision::Reject { prompt: it, .. } if *it == prompt),
            );
            match self.lane(prompt) {
                None => assert!(rejected && !launched, "{prompt} has no quota"),
                Some(_) => assert_eq!(
                    admitted,
                    usize::from(launched || self.total_steps.is_none()),
                    "admissions of {prompt}"
                ),
            }
        }
    }

    // The state at a given time.

    fn lane(&self, prompt: PromptId) -> Option<Arc<str>> {
        let domain = &self.prompts.iter().find(|offer| offer.prompt == prompt)?.domain;
        let names = [domain.as_ref(), ""];
        self.quotas.keys().find(|lane| names.contains(&lane.as_ref())).cloned()
    }

    /// Returns the earliest epoch with a prompt that has a quota and was not admitted.
    fn epoch(&self, past: &[Entry]) -> Option<u32> {
        let done = admitted(past);
        let left = self
            .prompts
            .iter()
            .filter(|offer| self.lane(offer.prompt).is_some() && !done.contains(&offer.prompt));
        left.map(|offer| offer.epoch).next()
    }

    /// Returns the prompts of a lane in an epoch that were never launched.
    fn fresh(&self, past: &[Entry], epoch: u32, lane: &Arc<str>) -> Vec<PromptId> {
        let launched: Vec<PromptId> =
            launches(past).into_iter().map(|(prompt, _)| prompt).collect();
        let mine = self
            .prompts
            .iter()
            .filter(|offer| offer.epoch == epoch && self.lane(offer.prompt).as_ref() == Some(lane));
        mine.map(|offer| offer.prompt).filter(|prompt| !launched.contains(prompt)).collect()
    }

    /// Returns the prompts of `lane`, or of all lanes if `None`, that were deferred and not launched since, in the order of their deferral.
    fn queue(&self, past: &[Entry], lane: Option<&Arc<str>>) -> Vec<Waiting> {
        let mut waiting: Vec<Waiting> = Vec::new();
        let mut step = 0;
        for entry in past {
            match entry {
                Entry::Decision(Decision::Open { step: opened, .. }) => step = opened.0,
                Entry::Decision(Decision::Defer { prompt, .. }) => waiting.push((*prompt, step)),
                Entry::Decision(Decision::Launch { prompt, .. }) => {
                    waiting.retain(|(it, _)| it != prompt)
                }
                _ => {}
            }
        }
        waiting.retain(|(prompt, _)| lane.is_none() || self.lane(*prompt).as_ref() == lane);
        waiting
    }

    /// Returns the number of groups that the open round can still admit in the lane of `prompt`.
    fn free(&self, round: &[Entry], prompt: PromptId) -> usize {
        let lane = self.lane(prompt).expect("a quota");
        let mine = |prompt: &PromptId| self.lane(*prompt).as_ref() == Some(&lane);
        let launched = launches(round).into_iter().map(|(prompt, _)| prompt).filter(mine).count();
        launched.min(self.quotas[&lane]) - admitted(round).into_iter().filter(mine).count()
    }
}

/// The expected composition of a round.
struct Expected {
    round: RoundKind,
    reason: Reason,
    launches: Vec<(PromptId, Reason)>,
    samples: u32,
}

/// Returns `ceil(twentieths / 20 * count)`.
fn ceil(twentieths: u64, count: u64) -> u64 {
    (twentieths * count).div_ceil(20)
}
