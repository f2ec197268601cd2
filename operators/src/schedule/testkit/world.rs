//! A random run in virtual time: prompts, an engine, rewards and a trainer around a schedule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::FinishReason;

use rollpacker_stages::testkit::Nonconformance;

use crate::schedule::{Decision, Event, Offer, Schedule};

/// An entry of the log of a run. The entries are in order of time.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// An event that the schedule received.
    Event(Event),
    /// A decision of the schedule.
    Decision(Decision),
}

/// A simulated environment of a schedule, in virtual time: prompts, an engine, rewards and a trainer.
///
/// The seed and the decisions of the schedule determine all events. One response in seven takes about nine times as long as the others.
/// Half of the aborts and pauses come too late. Policies are published with random delays, and rewards arrive after their responses.
#[derive(Clone, Debug)]
pub struct World {
    /// The prompts of the run in the order of their ids.
    pub prompts: Vec<Offer>,
    /// The seed of all random values: durations and finish reasons of responses, outcomes of aborts and pauses, rewards, and delays of
    /// policies.
    pub seed: u64,
    /// The staleness of the run, in steps: `staleness + 1` policies are published ahead of the last closed round.
    pub staleness: u64,
    /// The number of prompts offered after each event without being requested.
    pub read_ahead: usize,
    /// The factor by which the times that the schedule receives are multiplied.
    pub scale: u64,
    /// `true` to lose one response in 16, which ends as aborted although the schedule did not abort it.
    pub lossy: bool,
}

impl World {
    /// Creates a world with one prompt for each domain in `epochs`, where each epoch is a list of domains. Ids and dataset rows of prompts
    /// are counted from 0 over all epochs. The staleness and the read-ahead are 0, the scale is 1, and no response is lost.
    #[must_use]
    pub fn new(epochs: &[Vec<Arc<str>>], seed: u64) -> Self {
        let domains = (0..)
            .zip(epochs)
            .flat_map(|(epoch, domains)| domains.iter().map(move |domain| (epoch, domain)));
        let offer = |(id, (epoch, domain)): (u64, (u32, &Arc<str>))| Offer {
            prompt: PromptId(id),
            row: id,
            epoch,
            domain: Arc::clone(domain),
        };
        let prompts = (0..).zip(domains).map(offer).collect();
        Self { prompts, seed, staleness: 0, read_ahead: 0, scale: 1, lossy: false }
    }

    /// Runs until no event is left, and returns the log.
    ///
    /// # Errors
    /// If the run has more than 100,000 events and decisions, so that it does not seem to end. A schedule whose `poll` never returns `None`
    /// is not detected.
    ///
    /// # Panics
    /// If the schedule launches a response before its first round or while the response is running, or stops a response that is not
    /// running. [`Checked`](crate::schedule::Checked) finds each of these.
    pub fn run(&self, schedule: impl Schedule) -> Result<Vec<Entry>, Nonconformance> {
        self.run_with(schedule, |schedule| schedule)
    }

    /// Runs as [`run`](Self::run) does, and calls `each` between events. `each` may replace the schedule.
    pub(crate) fn run_with<S: Schedule>(
        &self,
        mut schedule: S,
        mut each: impl FnMut(S) -> S,
    ) -> Result<Vec<Entry>, Nonconformance> {
        const MAX_ENTRIES: usize = 100_000;
        let mut run = WorldRun {
            world: self,
            now: 0,
            agenda: BTreeMap::new(),
            running: BTreeMap::new(),
            whole: BTreeMap::new(),
            pausing: BTreeSet::new(),
            kept: BTreeMap::new(),
            published: 0,
            offered: 0,
            ended: false,
            log: Vec::new(),
        };
        (0..=self.staleness).for_each(|step| run.publish(Step(step)));
        run.offer(&mut schedule);
        while let Some(((now, _), event)) = run.agenda.pop_first() {
            if run.log.len() > MAX_ENTRIES {
                let found = format!("more than {MAX_ENTRIES} events and decisions");
                return Err(Nonconformance::new("a run ends", found));
            }
            run.now = now;
            run.process_scheduled(&mut schedule, event);
            run.offer(&mut schedule);
            schedule = each(schedule);
        }
        Ok(run.log)
    }
}

#[derive(Clone, Copy)]
struct ResponseOutcome {
    tokens: u32,
    /// The number of these tokens that earlier launches have sampled. The others are sampled at one per tick.
    sampled: u32,
    finish_reason: FinishReason,
}

struct WorldRun<'a> {
    world: &'a World,
    now: u64,
    /// Future events, by time and then by a random tie-break.
    agenda: BTreeMap<(u64, u64), Event>,
    /// Responses in flight: their outcomes, and the times at which they were launched.
    running: BTreeMap<SampleId, (ResponseOutcome, u64)>,
    /// Responses that ended by themselves.
    whole: BTreeMap<SampleId, ResponseOutcome>,
    /// Responses that were paused and have not ended.
    pausing: BTreeSet<SampleId>,
    /// The outcomes from which later launches resume.
    kept: BTreeMap<(PromptId, u32), ResponseOutcome>,
    /// The time at which the last policy is published; policies are published in order.
    published: u64,
    offered: usize,
    ended: bool,
    log: Vec<Entry>,
}

impl WorldRun<'_> {
    fn offer(&mut self, schedule: &mut impl Schedule) {
        let mut extra_offers = self.world.read_ahead;
        while !self.ended && (schedule.wants_prompts() || extra_offers > 0) {
            extra_offers -= usize::from(!schedule.wants_prompts());
            let next = self.world.prompts.get(self.offered).cloned();
            self.offered += 1;
            self.ended = next.is_none();
            self.deliver(schedule, next.map_or(Event::EndOfPrompts, Event::Prompt));
        }
    }

    fn deliver(&mut self, schedule: &mut impl Schedule, event: Event) {
        self.log.push(Entry::Event(event.clone()));
        schedule.on(Nanos(self.now * self.world.scale), event);
        while let Some(decision) = schedule.poll() {
            self.apply_decision(&decision);
            self.log.push(Entry::Decision(decision));
        }
    }

    fn apply_decision(&mut self, decision: &Decision) {
        match decision {
            Decision::Launch { prompt, samples, .. } => {
                let step = self.log.iter().rev().find_map(opened).expect("a round is open");
                samples
                    .clone()
                    .for_each(|sample| self.generate(SampleId { step, prompt: *prompt, sample }));
            }
            Decision::Abort { id, .. } => self.abort(*id),
            Decision::Pause { id, .. } => self.pause(*id),
            Decision::Close { step, .. } => self.publish(Step(step.0 + 1 + self.world.staleness)),
            _ => {}
        }
    }

    /// Delivers an event of the agenda. A whole response is followed by its reward if the schedule wants scores.
    fn process_scheduled(&mut self, schedule: &mut impl Schedule, event: Event) {
        if let Event::Response { id, tokens, finish_reason } = event {
            let (outcome, _) = self.running.remove(&id).expect("only running responses end");
            let outcome = ResponseOutcome { sampled: tokens, ..outcome };
            if self.pausing.remove(&id) && finish_reason != FinishReason::Abort {
                self.kept.insert((id.prompt, id.sample), outcome);
            }
            if finish_reason.is_whole() {
                self.whole.insert(id, outcome);
                if schedule.wants_scores() {
                    let random = self.random(&[id.step.0, id.prompt.0, id.sample.into(), 2]);
                    let score = ((random >> 8 & 7) / 3) as f64;
                    self.schedule_event(1 + random % 16, random, Event::Scored { id, score });
                }
            }
        }
        self.deliver(schedule, event);
    }

    /// Generates a response with a long-tailed duration, or the rest of a paused response. A response that was kept whole ends at once.
    fn generate(&mut self, id: SampleId) {
        let random = self.random(&[id.step.0, id.prompt.0, id.sample.into()]);
        let duration = 1 + (random % 64) * if random.is_multiple_of(7) { 9 } else { 1 };
        let finish_reason = match random >> 8 & 15 {
            0 if self.world.lossy => FinishReason::Abort,
            1..4 => FinishReason::Length,
            _ => FinishReason::Stop,
        };
        let fresh = ResponseOutcome { tokens: duration as u32, sampled: 0, finish_reason };
        let outcome = self.kept.remove(&(id.prompt, id.sample)).unwrap_or(fresh);
        let ResponseOutcome { tokens, sampled, finish_reason } = outcome;
        let twice = self.running.insert(id, (outcome, self.now));
        assert!(twice.is_none(), "{id} runs already");
        let event = Event::Response { id, tokens, finish_reason };
        self.schedule_event((tokens - sampled).into(), random, event);
    }

    /// Aborts a response. Half of the aborts come too late, and the response ends as it would have.
    fn abort(&mut self, id: SampleId) {
        let random = self.random(&[id.step.0, id.prompt.0, id.sample.into(), 1]);
        if random.is_multiple_of(2) {
            self.replace_end(id, 0, FinishReason::Abort);
        }
    }

    /// Pauses a response. A response that has ended by itself is kept whole. Half of the other pauses come too late.
    fn pause(&mut self, id: SampleId) {
        if let Some(outcome) = self.whole.get(&id) {
            self.kept.insert((id.prompt, id.sample), *outcome);
            return;
        }
        let random = self.random(&[id.step.0, id.prompt.0, id.sample.into(), 1]);
        self.pausing.insert(id);
        if random.is_multiple_of(2) {
            let (outcome, launched) = self.running[&id];
            let sampled = outcome.sampled + (self.now - launched) as u32;
            self.replace_end(id, sampled, FinishReason::Pause);
        }
    }

    /// Replaces the scheduled end of a response by an end with `tokens` tokens, at a random time up to 63 ticks from now.
    fn replace_end(&mut self, id: SampleId, tokens: u32, finish_reason: FinishReason) {
        let random = self.random(&[id.step.0, id.prompt.0, id.sample.into(), 3]);
        let is_it = |event: &Event| matches!(event, Event::Response { id: it, .. } if *it == id);
        let found = self.agenda.iter().find(|(_, event)| is_it(event)).map(|(&key, _)| key);
        self.agenda.remove(&found.expect("only running responses are stopped"));
        self.schedule_event(
            random >> 8 & 63,
            random,
            Event::Response { id, tokens, finish_reason },
        );
    }

    fn publish(&mut self, step: Step) {
        let random = self.random(&[step.0]);
        self.published = self.published.max(self.now) + 1 + random % 32;
        self.schedule_event(self.published - self.now, random, Event::Policy { step });
    }

    fn schedule_event(&mut self, duration: u64, tie: u64, event: Event) {
        let clash = self.agenda.insert((self.now + duration, tie), event);
        assert!(clash.is_none(), "ties are broken by 64 random bits");
    }

    fn random(&self, values: &[u64]) -> u64 {
        values.iter().fold(self.world.seed, |state, value| mix(state ^ mix(*value)))
    }
}

fn opened(entry: &Entry) -> Option<Step> {
    match entry {
        Entry::Decision(Decision::Open { step, .. }) => Some(*step),
        _ => None,
    }
}

/// Returns the first output of the generator splitmix64 with the seed `word`.
pub(crate) fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
