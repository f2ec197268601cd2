//! Translates between streams and a schedule.

mod curriculum;
mod inputs;
mod outputs;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::types::UInt32Type;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::fault::Fault;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::{PromptId, Step, Tick};
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_dataflow::watchdog::{WaitGuard, WaitHandle};
use rollpacker_stages::train::Metrics;

use super::checked::Checked;
use super::prompt_affinity::PromptAffinity;
use super::prompt_gate::PromptGate;
use super::published::{OpenStep, PublishedPolicies};
use super::scores::OrderedScores;
use super::sequencer::{SequencedEvent, Sequencer};
use super::snapshot::{HeldPrompt, HeldPrompts, LastPrompt, ScheduleSnapshot};
use super::stop::Stop;
use super::{Decision, Event, RoundKind, Schedule, encode};
use crate::curriculum::SkippedPrompts;
use crate::wire::rows::Row;

pub(in crate::schedule) use self::outputs::{SchedulePort, unsent_texts};

/// Translates the inputs of the operator into events of its schedule, and the decisions of the schedule into its outputs.
pub(super) struct ScheduleDriver {
    schedule: Box<dyn Schedule>,
    clock: Arc<dyn Clock>,
    /// The sequencer of the schedule's events; present if races are decided by tokens.
    sequencer: Option<Sequencer>,
    /// The queue that orders scores after the ends of their responses. Present only if the schedule wants scores and there is no sequencer.
    scores: Option<OrderedScores>,
    /// A tick that has passed and that is not announced to the rollouts yet.
    unannounced_tick: Option<Tick>,
    /// The capability with which ticks are announced to the rollouts while no round is open.
    closed: Option<Capability<Step>>,
    budget: Budget,
    stop: Stop,
    waiting: WaitHandle,
    /// The wait for prompts, held while no round can open without them, so that the watchdog reports it.
    lacks_prompts: Option<WaitGuard>,
    /// The prompts that were offered to the schedule and are neither admitted nor rejected.
    prompts: HeldPrompts,
    /// The last prompt that the reader delivered in this process.
    read: Option<PromptId>,
    /// Prompts that were read but not passed to the schedule yet, because the sequencer or the curriculum holds them.
    arrived: BTreeMap<PromptId, (LastPrompt, Row)>,
    /// The curriculum, if there is one, with prompts that it has not judged.
    gate: Option<PromptGate>,
    /// The handle that reports how many prompts the curriculum has skipped.
    skipped: SkippedPrompts,
    /// Metrics of the curriculum that the operator has not sent yet.
    unsent_metrics: Vec<(Capability<Step>, Metrics)>,
    published: PublishedPolicies,
    /// Steps whose policy was delivered to the schedule and whose round is not closed.
    open: BTreeMap<Step, OpenStep>,
    /// `true` once the reader has no more prompts.
    ended: bool,
    /// `true` once the schedule has finished, or the run has stopped.
    finished: bool,
    /// `true` once the end of the run was requested: no further policy is delivered to the schedule.
    stopping: bool,
    /// The step and the kind of the open round.
    round: Option<(Step, RoundKind)>,
    /// The step whose round opened, until the operator takes it.
    opened: Option<Step>,
    /// Decisions that were not sent yet.
    decided: Vec<Decision>,
    /// The prompts whose texts were sent in the open round, with the workers that have them.
    texts_sent: BTreeSet<(PromptId, u32)>,
    /// The error that ends the run, until it is reported.
    failure: Option<Fault>,
    affinity: PromptAffinity,
}

impl ScheduleDriver {
    pub(super) fn new(
        schedule: Box<dyn Schedule>,
        mut prompts: HeldPrompts,
        budget: Budget,
        stop: Stop,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let held = prompts.held.iter().map(|(prompt, held)| (*prompt, held.launched));
        let schedule = Checked::with_held(schedule, held);
        Self {
            affinity: PromptAffinity::new(1),
            sequencer: None,
            scores: schedule.wants_scores().then(OrderedScores::default),
            schedule: Box::new(schedule),
            clock,
            unannounced_tick: None,
            closed: None,
            budget,
            stop,
            waiting: WaitHandle::default(),
            lacks_prompts: None,
            read: None,
            arrived: BTreeMap::new(),
            gate: None,
            skipped: SkippedPrompts::default(),
            unsent_metrics: Vec::new(),
            published: PublishedPolicies::default(),
            open: BTreeMap::new(),
            ended: false,
            finished: false,
            stopping: false,
            round: None,
            opened: None,
            decided: std::mem::take(&mut prompts.decided),
            prompts,
            texts_sent: BTreeSet::new(),
            failure: None,
        }
    }

    /// Sets the handle with which the driver reports what rounds wait for.
    pub(super) fn with_watchdog(self, waiting: WaitHandle) -> Self {
        Self { waiting, ..self }
    }

    pub(super) fn with_affinity(self, affinity: PromptAffinity) -> Self {
        Self { affinity, ..self }
    }

    /// Returns the step whose round opened since the last call, if any.
    pub(super) fn take_opened(&mut self) -> Option<Step> {
        self.opened.take()
    }

    /// Switches to lockstep: races are decided by tokens.
    pub(super) fn race_in_lockstep(&mut self) {
        // A resumed schedule already holds some of the prompts that the budget granted.
        let unlaunched = self.prompts.held.values().filter(|held| !held.launched).count();
        let allowance = self.budget.granted().saturating_sub(unlaunched);
        self.sequencer = Some(Sequencer::new(self.schedule.wants_scores(), allowance));
        self.scores = None;
    }

    /// Passes an event to the schedule. In lockstep, passes the event to the sequencer, which releases it later.
    fn enqueue(&mut self, event: Event) {
        match &mut self.sequencer {
            Some(sequencer) => sequencer.take(event),
            None => self.deliver_through_gate(event),
        }
    }

    /// Delivers an event to the schedule. With a curriculum, prompts and the end of the prompts go to the gate instead, and the curriculum
    /// also records scores.
    fn deliver_through_gate(&mut self, event: Event) {
        if let Some(gate) = &mut self.gate {
            match event {
                Event::Prompt(offer) => return gate.hold(offer),
                Event::EndOfPrompts => return gate.end(),
                Event::Scored { id, score } => gate.curriculum.on_score(id, score),
                Event::Policy { .. } | Event::Response { .. } => {}
            }
        }
        self.deliver(event);
    }

    fn deliver(&mut self, event: Event) {
        if let Event::Prompt(offer) = &event
            && let Some((last, row)) = self.arrived.remove(&offer.prompt)
        {
            self.prompts.last = Some(last);
            self.prompts.held.insert(offer.prompt, HeldPrompt { row, launched: false });
        }
        if let Event::Response { id, .. } = &event {
            self.affinity.on_end(id.prompt);
        }
        self.schedule.on(self.now(), event);
    }

    /// Returns the time of the schedule: the tick in lockstep, otherwise the clock.
    fn now(&self) -> Nanos {
        let tick = |sequencer: &Sequencer| Nanos(sequencer.tick().0);
        self.sequencer.as_ref().map_or_else(|| self.clock.now(), tick)
    }

    /// Records that a worker has the policy of a step. The step may begin once all workers have it.
    pub(super) fn on_policy(&mut self, step: Step, open: OpenStep) {
        self.published.announce(step, open, self.affinity.workers());
    }

    pub(super) fn state(&self) -> ScheduleSnapshot<'_> {
        ScheduleSnapshot {
            schedule: &*self.schedule,
            prompts: &self.prompts,
            decided: &self.decided,
            curriculum: self.gate.as_ref().map(|gate| gate.curriculum.state()),
        }
    }

    /// Returns the first step whose policy can be delivered to the schedule; `None` if there is none.
    pub(super) fn next_due_policy(&self) -> Option<Step> {
        let can_deliver_policy = self.sequencer.as_ref().is_none_or(Sequencer::can_deliver_policy);
        self.published.first().filter(|_| can_deliver_policy)
    }

    /// Delivers the policy of a step to the schedule, unless the schedule has finished or the run is to stop.
    pub(super) fn deliver_policy(&mut self, step: Step) {
        let Some(open) = self.published.take(step) else { return };
        self.stopping |= !self.finished && self.stop.forbids(step);
        // Dropping the policy drops its capabilities. Once no policy is in flight, all frontiers are empty and the graph ends.
        if !self.finished && !self.stopping {
            self.open.insert(step, open);
            self.deliver_through_gate(Event::Policy { step });
        }
    }

    /// Carries out all decisions, and releases the events of the sequencer one at a time. The decisions on an event are drained before the
    /// next event is released, because they change which event is next. Calls `give` for each batch to send, with the output and the
    /// capability of the batch.
    pub(super) fn decide(&mut self, mut give: impl FnMut(SchedulePort, &Capability<Step>, Batch)) {
        self.drain(&mut give);
        while let Some(SequencedEvent { tick, event, tick_passed }) = self.next_sequenced() {
            self.unannounced_tick = tick_passed.then_some(tick).or(self.unannounced_tick);
            self.deliver_through_gate(event);
            self.drain(&mut give);
        }
    }

    /// Returns the next event of the sequencer. Returns `None` if there is no sequencer, if the sequencer has no event to release, or if
    /// the run has failed. Also returns `None` if the schedule has finished, every response has ended, and every event of the current tick
    /// was released.
    fn next_sequenced(&mut self) -> Option<SequencedEvent> {
        let wants_prompts = self.wants_prompts();
        let sequencer = self.sequencer.as_mut()?;
        if self.failure.is_some() || (self.finished && !sequencer.is_racing()) {
            return None;
        }
        sequencer.next(wants_prompts, self.published.first().is_some())
    }

    /// Returns the next decision of the schedule. While the schedule has no decision and the curriculum can deliver a prompt, delivers
    /// prompts first.
    fn next_decision(&mut self) -> Option<Decision> {
        loop {
            let decision = self.schedule.poll();
            if decision.is_some() || !self.draw_prompt() {
                return decision;
            }
        }
    }

    /// Drains the decisions of the schedule and carries them out.
    ///
    /// The sequencer and the scores process each decision before the next event is released, because the decision changes which responses
    /// may still end. A `Close` is sent before `close` releases the capabilities of its round. `announce_tick` runs after `send`, which
    /// already announces a passed tick if a round is open.
    fn drain(&mut self, give: &mut impl FnMut(SchedulePort, &Capability<Step>, Batch)) {
        while let Some(next) = self.next_decision() {
            match &next {
                Decision::Open { step, round, .. } => {
                    (self.round, self.opened) = (Some((*step, *round)), Some(*step));
                }
                Decision::Finish => {
                    self.finished = true;
                    self.stop.complete();
                }
                Decision::Fail { origin, message } => {
                    self.failure = Some(Fault::new("schedule", *origin, message));
                }
                _ => {}
            }
            self.record(&next);
            if let Some(sequencer) = &mut self.sequencer {
                sequencer.on_decision(&next);
            }
            if let Some(scores) = &mut self.scores {
                scores.on_decision(&next);
            }
            let closed = matches!(next, Decision::Close { .. });
            self.decided.push(next);
            if closed {
                self.send(give);
                self.close();
            }
        }
        self.send(give);
        self.announce_tick(give);
        // A failure is reported at an open step, which must stay open until then.
        let has_ended = self.finished && self.failure.is_none();
        if has_ended || ((self.finished || self.stopping) && self.open.is_empty()) {
            self.finish();
        }
        self.request_prompts();
    }

    /// Sends the pending decisions, and announces a passed tick, at the step of the open round. Decisions between two rounds wait for the
    /// next round.
    fn send(&mut self, give: &mut impl FnMut(SchedulePort, &Capability<Step>, Batch)) {
        let Some((step, round)) = self.round else { return };
        if self.decided.is_empty() && self.unannounced_tick.is_none() {
            return;
        }
        let decided = std::mem::take(&mut self.decided);
        let open =
            self.open.get(&step).expect("invariant: a round opens after the policy of its step");
        let row_of = |prompt: PromptId| self.prompts.held[&prompt].row.clone();
        let assign =
            |decision| self.affinity.assign(decision, |prompt| row_of(prompt).prompt_length());
        let workers: Vec<Option<u32>> = decided.iter().map(assign).collect();
        let texts = unsent_texts(&decided, &workers, &mut self.texts_sent, &row_of);
        give(SchedulePort::Texts, &open.texts, texts);
        // The tick goes first: requests that follow it are launched or stopped at that tick.
        let all = u32::try_from(self.affinity.workers()).unwrap_or(u32::MAX);
        let passed = self.unannounced_tick.take().map(|tick| encode::advance(tick, all));
        let requests = encode::requests(&decided, &workers, open.policy.version, &row_of);
        for batch in passed.into_iter().chain(requests) {
            if let Some(sequencer) = &mut self.sequencer {
                let receivers = batch.values::<UInt32Type>(column::WORKER).values();
                receivers.iter().for_each(|&worker| sequencer.record_sent(worker as usize, 1));
            }
            give(SchedulePort::Requests, &open.requests, batch);
        }
        let decisions = encode::decisions(&decided, &workers, round);
        give(SchedulePort::Decisions, &open.decisions, decisions);
        decided.iter().for_each(|decision| self.update_bookkeeping(step, decision));
    }

    /// Announces a passed tick to the rollouts while no round is open, as long as responses of the last round are in flight.
    fn announce_tick(&mut self, give: &mut impl FnMut(SchedulePort, &Capability<Step>, Batch)) {
        let Some(sequencer) = &mut self.sequencer else { return };
        if let Some(tick) = self.unannounced_tick.take_if(|_| self.round.is_none())
            && let Some(capability) = &self.closed
        {
            let workers = self.affinity.workers();
            (0..workers).for_each(|worker| sequencer.record_sent(worker, 1));
            let advance = encode::advance(tick, u32::try_from(workers).unwrap_or(u32::MAX));
            give(SchedulePort::Requests, capability, advance);
        }
        self.closed.take_if(|_| !sequencer.is_racing());
    }

    /// Updates the waits and the held prompts for a decision. Admitted and rejected prompts are dropped. The reader may deliver another
    /// prompt for each prompt that is launched for the first time, or rejected before it was launched.
    fn update_bookkeeping(&mut self, step: Step, decision: &Decision) {
        match decision {
            Decision::Launch { prompt, .. } => {
                self.waiting.begin((step, *prompt), "responses of its round");
                let held = self
                    .prompts
                    .held
                    .get_mut(prompt)
                    .expect("invariant: a launched prompt was offered");
                if !std::mem::replace(&mut held.launched, true) {
                    self.release(1);
                }
            }
            Decision::Admit { prompt, .. } => {
                self.waiting.end((step, *prompt));
                self.prompts.held.remove(prompt);
            }
            Decision::Defer { prompt, .. } => self.waiting.end((step, *prompt)),
            Decision::Reject { prompt, .. } => {
                self.waiting.end((step, *prompt));
                let unlaunched =
                    self.prompts.held.remove(prompt).is_some_and(|held| !held.launched);
                self.release(usize::from(unlaunched));
            }
            _ => {}
        }
    }

    /// Reports replicas whose weights differ, and the failure of the schedule. The failure is reported at the step of the open round or, if
    /// no round is open, at the first step whose policy was delivered. A failure before the first policy is reported once that policy is
    /// delivered. The step keeps its capabilities, so that no frontier marks it as complete.
    pub(super) fn fail(&mut self, mut report: impl FnMut(&OpenStep, Fault)) {
        if let Some((open, fault)) = self.published.take_fault() {
            report(open, fault);
        }
        let round = self.round.and_then(|(step, _)| self.open.get(&step));
        if let Some(open) = round.or_else(|| self.open.values().next())
            && let Some(fault) = self.failure.take()
        {
            report(open, fault);
        }
    }

    fn close(&mut self) {
        if let Some((step, _)) = self.round.take() {
            let open = self.open.remove(&step);
            self.closed = open.filter(|_| self.sequencer.is_some()).map(|open| open.requests);
            self.waiting.end_before(step.next());
            self.texts_sent.clear();
        }
    }

    fn finish(&mut self) {
        self.finished = true;
        self.budget.close();
        self.open.clear();
        self.published.clear();
    }

    /// Holds the wait for prompts while no round can open without more of them. Widens the reader's budget if the schedule needs prompts
    /// and has received all that the budget allowed, because the domain that it lacks may be rare.
    fn request_prompts(&mut self) {
        let wants = !self.finished && self.wants_prompts();
        let lacking = wants && !self.ended && self.round.is_none();
        match self.open.keys().next().filter(|_| lacking) {
            None => self.lacks_prompts = None,
            Some(step) if self.lacks_prompts.is_none() => {
                let what = || "prompts to open its round with";
                self.lacks_prompts = Some(self.waiting.hold(*step, what));
            }
            Some(_) => {}
        }
        let is_spent = match &self.sequencer {
            Some(sequencer) => sequencer.is_out_of_prompts(),
            None => self.budget.available() == 0,
        };
        if wants && is_spent {
            let more = self.prompts.held.len().max(1);
            self.prompts.extra_budget += more;
            self.release(more);
        }
    }

    /// Lets the reader deliver `prompts` more prompts.
    fn release(&mut self, prompts: usize) {
        self.budget.release(prompts);
        if let Some(sequencer) = &mut self.sequencer {
            sequencer.allow(prompts);
        }
    }
}
