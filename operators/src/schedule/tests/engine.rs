//! A random run: prompts, engine and trainer around a schedule, in virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::FinishReason;

use crate::schedule::{Decision, Event, Offer, Schedule};

/// What happened, in order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Entry {
    Told(Event),
    Decided(Decision),
}

/// Everything around the schedule.
#[derive(Clone, Debug)]
pub(super) struct World {
    /// The prompts of the run in the order of their ids.
    pub(super) prompts: Vec<Offer>,
    /// Which durations and finish reasons the responses have.
    pub(super) seed: u64,
    /// How many policies are published ahead of the last closed round, less one.
    pub(super) staleness: u64,
    /// Prompts offered unasked after each event.
    pub(super) read_ahead: usize,
    /// By how much all durations are stretched.
    pub(super) scale: u64,
    /// Whether one response in 16 is aborted by nobody.
    pub(super) lossy: bool,
}

impl World {
    /// Prompts `0..` of `epochs`, each a list of domains.
    pub(super) fn new(epochs: &[Vec<Arc<str>>], seed: u64) -> Self {
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

    /// Runs until nothing is left to happen; `each` is called between events, and may replace the schedule.
    pub(super) fn run<S: Schedule>(
        &self,
        mut schedule: S,
        mut each: impl FnMut(S) -> S,
    ) -> Vec<Entry> {
        let mut run = Run {
            world: self,
            now: 0,
            agenda: BTreeMap::new(),
            published: 0,
            offered: 0,
            ended: false,
            log: Vec::new(),
        };
        (0..=self.staleness).for_each(|step| run.publish(Step(step)));
        run.offer(&mut schedule);
        while let Some(((now, _), event)) = run.agenda.pop_first() {
            assert!(run.log.len() < 100_000, "the run does not end");
            run.now = now;
            run.tell(&mut schedule, event);
            run.offer(&mut schedule);
            schedule = each(schedule);
        }
        run.log
    }
}

struct Run<'a> {
    world: &'a World,
    now: u64,
    /// What will happen: by time, then by a random tie break.
    agenda: BTreeMap<(u64, u64), Event>,
    /// When the last policy is published: they come in order.
    published: u64,
    offered: usize,
    ended: bool,
    log: Vec<Entry>,
}

impl Run<'_> {
    fn offer(&mut self, schedule: &mut impl Schedule) {
        let mut unasked = self.world.read_ahead;
        while !self.ended && (schedule.wants_prompts() || unasked > 0) {
            unasked -= usize::from(!schedule.wants_prompts());
            let next = self.world.prompts.get(self.offered).cloned();
            self.offered += 1;
            self.ended = next.is_none();
            self.tell(schedule, next.map_or(Event::EndOfPrompts, Event::Prompt));
        }
    }

    fn tell(&mut self, schedule: &mut impl Schedule, event: Event) {
        self.log.push(Entry::Told(event.clone()));
        schedule.on(Nanos(self.now * self.world.scale), event);
        while let Some(decision) = schedule.poll() {
            self.carry_out(&decision);
            self.log.push(Entry::Decided(decision));
        }
    }

    fn carry_out(&mut self, decision: &Decision) {
        match decision {
            Decision::Launch { prompt, samples, .. } => {
                let step = self.log.iter().rev().find_map(opened).expect("a round is open");
                samples
                    .clone()
                    .for_each(|sample| self.generate(SampleId { step, prompt: *prompt, sample }));
            }
            Decision::Abort { id, .. } => self.abort(*id),
            Decision::Close { step, .. } => self.publish(Step(step.0 + 1 + self.world.staleness)),
            _ => {}
        }
    }

    /// A response with a long-tailed duration.
    fn generate(&mut self, id: SampleId) {
        let random = self.random(&[id.step.0, id.prompt.0, id.sample.into()]);
        let duration = 1 + (random % 64) * if random.is_multiple_of(7) { 9 } else { 1 };
        let finish_reason = match random >> 8 & 15 {
            0 if self.world.lossy => FinishReason::Abort,
            1..4 => FinishReason::Length,
            _ => FinishReason::Stop,
        };
        let tokens = u32::try_from(duration).expect("short");
        self.later(duration, random, Event::Response { id, tokens, finish_reason });
    }

    /// Half of the aborts come too late: the response ends as it would have.
    fn abort(&mut self, id: SampleId) {
        let random = self.random(&[id.step.0, id.prompt.0, id.sample.into(), 1]);
        let is_it = |event: &Event| matches!(event, Event::Response { id: it, .. } if *it == id);
        let found = self.agenda.iter().find(|(_, event)| is_it(event)).map(|(&key, _)| key);
        let key = found.expect("only what runs is aborted");
        if random.is_multiple_of(2) {
            self.agenda.remove(&key);
            let event = Event::Response { id, tokens: 1, finish_reason: FinishReason::Abort };
            self.later(random >> 8 & 63, random, event);
        }
    }

    fn publish(&mut self, step: Step) {
        let random = self.random(&[step.0]);
        self.published = self.published.max(self.now) + 1 + random % 32;
        self.later(self.published - self.now, random, Event::Policy { step });
    }

    fn later(&mut self, duration: u64, tie: u64, event: Event) {
        let clash = self.agenda.insert((self.now + duration, tie), event);
        assert!(clash.is_none(), "ties are broken by 64 random bits");
    }

    fn random(&self, words: &[u64]) -> u64 {
        words.iter().fold(self.world.seed, |state, word| mix(state ^ mix(*word)))
    }
}

fn opened(entry: &Entry) -> Option<Step> {
    match entry {
        Entry::Decided(Decision::Open { step, .. }) => Some(*step),
        _ => None,
    }
}

/// The finaliser of splitmix64.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
