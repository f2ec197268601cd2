//! The sequencer: orders the events of a schedule when races are decided by tokens.
//!
//! In [lockstep](rollpacker_stages::rollout::lockstep) responses end at ticks, but the reports of their ends arrive in an order that
//! depends on machines and threads. The sequencer holds each report until no earlier event can arrive, and then releases events one at a
//! time. The resulting order depends on the prompts, the tokens of the responses and their scores, and never on arrival times:
//!
//! - **Ends.** All responses that end at the earliest tick are released together, in the order of their ids. This requires that every
//!   worker has processed all requests sent to it and is past that tick, and that every stopped response has answered. The answer of a
//!   stopped response counts as an end at the tick at which it was stopped.
//! - **Scores**, if the schedule wants them. The scores of all whole responses of a tick are released once all of them have arrived, and
//!   before any response that ends later. After a round has closed, only the scores of its admitted responses are released.
//! - **Prompts** are released one by one. While the schedule wants a prompt, the prompt comes before all other events. Otherwise prompts
//!   are released only while a policy waits and no other event precedes the policy. A schedule therefore holds the same number of prompts
//!   in every run: as many as the reader may read ahead, or all that exist.
//!
//! A policy is delivered once no round is open, no response is in flight and no event is pending; see [`Sequencer::can_deliver_policy`].
//!
//! More responses may end at the tick that was released last: responses that an earlier round kept whole end as they are launched.
//!
//! Architecture invariant: no clock, no channel; ends, scores and prompts may arrive in any order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rollpacker_dataflow::step::{PromptId, SampleId, Step, Tick};
use rollpacker_stages::rollout::lockstep::End;

use super::{Decision, Event};
use crate::wire::notice::Notice;

/// An event for the schedule, with its tick.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SequencedEvent {
    /// The tick of the event and of the decisions that it causes.
    pub(super) tick: Tick,
    pub(super) event: Event,
    /// `true` for the first of the ends that are released together: rollouts must then be informed that the tick has passed.
    pub(super) tick_passed: bool,
}

/// A queue that releases the events of a schedule in an order that does not depend on their arrival times.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sequencer {
    wants_scores: bool,
    tick: Tick,
    prompts: PendingPrompts,
    open: Option<Step>,
    workers: BTreeMap<usize, WorkerProgress>,
    in_flight: BTreeMap<SampleId, ResponseState>,
    /// Responses whose ends were reported and not released, each with the tick of its end.
    due: BTreeSet<(Tick, SampleId)>,
    /// The events to release next, all of one tick.
    ready: VecDeque<Event>,
    /// The number of stopped responses that have not answered.
    stopping: usize,
    scores: PendingScores,
}

/// Prompts that have not been released to the schedule.
#[derive(Clone, Debug, Default, PartialEq)]
struct PendingPrompts {
    arrived: VecDeque<Event>,
    /// The number of prompts that the reader may still deliver.
    allowance: usize,
    /// `true` once the reader has no more prompts.
    ended: bool,
    end_delivered: bool,
}

/// The progress of a worker: the number of request rows sent to it, and the number of processed rows and the floor in its last notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WorkerProgress {
    sent: u64,
    received: u64,
    floor: Tick,
}

/// The state of a response that was launched and whose end was not released yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseState {
    Running,
    Stopping,
    Ended(End),
}

/// The scores that have arrived and are not released, and the responses whose scores are awaited. Both are of the open round, or of
/// responses that closed rounds admitted.
#[derive(Clone, Debug, Default, PartialEq)]
struct PendingScores {
    arrived: BTreeMap<SampleId, f64>,
    /// Whole responses whose ends were released and whose scores were not.
    wanted: BTreeSet<SampleId>,
    /// Responses that the open round admitted.
    admitted: BTreeSet<SampleId>,
}

impl Sequencer {
    /// Creates a sequencer for a reader that may deliver `allowance` prompts. Without `wants_scores`, scores are ignored.
    pub(super) fn new(wants_scores: bool, allowance: usize) -> Self {
        Self {
            wants_scores,
            tick: Tick(0),
            prompts: PendingPrompts { allowance, ..PendingPrompts::default() },
            open: None,
            workers: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            due: BTreeSet::new(),
            ready: VecDeque::new(),
            stopping: 0,
            scores: PendingScores::default(),
        }
    }

    /// Returns the tick of the last released event, which is also the tick of the decisions that it causes.
    pub(super) fn tick(&self) -> Tick {
        self.tick
    }

    /// Accepts prompts, the end of the prompts, and scores. Ends arrive as [notices](Self::on_notice) instead. The caller delivers policies
    /// itself, once the sequencer is [ready for them](Self::can_deliver_policy).
    pub(super) fn take(&mut self, event: Event) {
        match event {
            Event::Prompt(_) => {
                self.prompts.allowance = self.prompts.allowance.saturating_sub(1);
                self.prompts.arrived.push_back(event);
            }
            Event::EndOfPrompts => self.prompts.ended = true,
            Event::Scored { id, score } => {
                let is_relevant = self.open.is_some_and(|open| id.step >= open);
                if self.wants_scores && (is_relevant || self.scores.wanted.contains(&id)) {
                    self.scores.arrived.insert(id, score);
                }
            }
            Event::Response { .. } | Event::Policy { .. } => {}
        }
    }

    /// Raises the number of prompts that the reader may deliver.
    pub(super) fn allow(&mut self, prompts: usize) {
        self.prompts.allowance = self.prompts.allowance.saturating_add(prompts);
    }

    /// Returns `true` if every prompt that the reader was allowed to deliver was released.
    pub(super) fn is_out_of_prompts(&self) -> bool {
        self.prompts.allowance == 0 && self.prompts.arrived.is_empty()
    }

    /// Records that `rows` rows of requests were sent to a worker.
    pub(super) fn record_sent(&mut self, worker: usize, rows: u64) {
        let fresh = WorkerProgress { sent: 0, received: 0, floor: Tick::MAX };
        self.workers.entry(worker).or_insert(fresh).sent += rows;
    }

    /// Processes a worker's notice. Ignores a notice of a worker that no request was sent to.
    ///
    /// If a response was stopped in the meantime, a report that it ended whole after the current tick is ignored: the answer to the stop
    /// follows. Without this rule, the outcome would depend on whether the notice overtook the stop.
    pub(super) fn on_notice(&mut self, notice: Notice) {
        let Some(worker) = self.workers.get_mut(&notice.worker) else { return };
        (worker.received, worker.floor) = (notice.received, notice.floor);
        for end in notice.ends {
            let Some(state) = self.in_flight.get_mut(&end.id) else { continue };
            // A response that was kept whole ends in the tick of its launch and may be stopped in the same tick. Its end then is the
            // answer.
            let is_answer = !end.finish_reason.is_whole() || end.tick <= self.tick;
            match *state {
                ResponseState::Running => {}
                ResponseState::Stopping if is_answer => self.stopping -= 1,
                ResponseState::Stopping | ResponseState::Ended(_) => continue,
            }
            *state = ResponseState::Ended(end);
            self.due.insert((end.tick, end.id));
        }
    }

    pub(super) fn on_decision(&mut self, decision: &Decision) {
        match decision {
            Decision::Open { step, .. } => {
                self.open = Some(*step);
                self.scores.admitted.clear();
            }
            Decision::Launch { prompt, samples, .. } => {
                let ids: Vec<SampleId> = self.ids(*prompt, samples.clone());
                self.in_flight.extend(ids.into_iter().map(|id| (id, ResponseState::Running)));
            }
            Decision::Abort { id, .. } | Decision::Pause { id, .. } => self.stop(*id),
            Decision::Admit { prompt, samples, .. } if self.wants_scores => {
                let ids = self.ids(*prompt, samples.iter().copied());
                self.scores.admitted.extend(ids);
            }
            Decision::Close { .. } => {
                self.open = None;
                self.scores.close();
            }
            _ => {}
        }
    }

    /// Returns `true` if the end of some launched response, or another event of the current tick, was not released yet.
    pub(super) fn is_racing(&self) -> bool {
        !self.in_flight.is_empty() || !self.ready.is_empty()
    }

    /// Returns `true` if a policy may be delivered: no event precedes it.
    pub(super) fn can_deliver_policy(&self) -> bool {
        self.is_between_rounds()
            && self.prompts.arrived.is_empty()
            && self.prompts.pending_end().is_none()
    }

    /// Returns `true` if no round is open, no response is in flight, no score is awaited, and the reader can deliver no further prompt.
    fn is_between_rounds(&self) -> bool {
        let is_over = self.open.is_none() && !self.is_racing() && self.scores.wanted.is_empty();
        is_over && self.prompts.is_complete()
    }

    /// Returns the next event, or `None` if no event has arrived or an earlier event may still arrive. `wants_prompts` is `true` if the
    /// schedule cannot continue without a prompt, and `policy_waits` if a published policy was not delivered yet.
    ///
    /// The order of the branches is the order of the module documentation and makes runs reproducible. A prompt that the schedule needs
    /// comes first. The remaining events of the current tick follow, then the scores of that tick as one set. Only then may prompts precede
    /// a waiting policy, or the clock move to the next tick. A later branch must not run while an earlier branch awaits an arrival. Each
    /// branch therefore returns even if it has nothing to release.
    pub(super) fn next(
        &mut self,
        wants_prompts: bool,
        policy_waits: bool,
    ) -> Option<SequencedEvent> {
        if wants_prompts && !self.prompts.end_delivered {
            return self.next_prompt();
        }
        if let Some(event) = self.ready.pop_front() {
            return Some(self.sequenced(event));
        }
        if !self.scores.wanted.is_empty() {
            self.ready.extend(self.scores.complete());
            return self.ready.pop_front().map(|event| self.sequenced(event));
        }
        if policy_waits && self.is_between_rounds() {
            return self.next_prompt();
        }
        let ended = self.next_ends();
        self.ready.extend(ended);
        let event = self.ready.pop_front()?;
        Some(SequencedEvent { tick: self.tick, event, tick_passed: true })
    }

    /// Returns the ids of the open round's samples of a prompt.
    fn ids(&self, prompt: PromptId, samples: impl Iterator<Item = u32>) -> Vec<SampleId> {
        let step = self.open.expect("invariant: a round is open while it launches and admits");
        samples.map(|sample| SampleId { step, prompt, sample }).collect()
    }

    /// Marks a response as stopped. An end that was recorded but not released is discarded: the answer to the stop replaces it.
    fn stop(&mut self, id: SampleId) {
        let Some(state) = self.in_flight.get_mut(&id) else { return };
        match std::mem::replace(state, ResponseState::Stopping) {
            ResponseState::Stopping => return,
            ResponseState::Running => {}
            ResponseState::Ended(end) => drop(self.due.remove(&(end.tick, id))),
        }
        self.stopping += 1;
    }

    fn sequenced(&self, event: Event) -> SequencedEvent {
        SequencedEvent { tick: self.tick, event, tick_passed: false }
    }

    fn next_prompt(&mut self) -> Option<SequencedEvent> {
        let event = self.prompts.next()?;
        Some(self.sequenced(event))
    }

    /// Returns the next ends, all of one tick, if no response can end before or at that tick any more.
    ///
    /// A worker's `floor` is valid only for the requests that it had processed when it sent the notice. The tick is therefore final only if
    /// each worker has processed every row sent to it and its floor is at or past the tick. In addition, every stop must be answered,
    /// because the answer counts as an end at the current tick.
    fn next_ends(&mut self) -> Vec<Event> {
        let Some(&(tick, _)) = self.due.first() else { return Vec::new() };
        let is_past =
            |worker: &WorkerProgress| worker.received == worker.sent && worker.floor >= tick;
        if self.stopping > 0 || !self.workers.values().all(is_past) {
            return Vec::new();
        }
        self.tick = self.tick.max(tick);
        let later = self.due.split_off(&(Tick(tick.0 + 1), SampleId::default()));
        let ended = std::mem::replace(&mut self.due, later).into_iter();
        ended.filter_map(|(_, id)| self.take_end(id)).collect()
    }

    fn take_end(&mut self, id: SampleId) -> Option<Event> {
        let ResponseState::Ended(End { tokens, finish_reason, .. }) = self.in_flight.remove(&id)?
        else {
            return None;
        };
        if self.wants_scores && finish_reason.is_whole() && self.open == Some(id.step) {
            self.scores.wanted.insert(id);
        }
        Some(Event::Response { id, tokens, finish_reason })
    }
}

impl PendingPrompts {
    /// Returns `true` if the reader has no more prompts, or may deliver none until it is allowed more.
    fn is_complete(&self) -> bool {
        self.allowance == 0 || self.ended
    }

    /// Returns the next prompt, or the end of the prompts; `None` if neither can be released.
    fn next(&mut self) -> Option<Event> {
        self.arrived.pop_front().or_else(|| {
            let pending_end = self.pending_end();
            self.end_delivered |= pending_end.is_some();
            pending_end
        })
    }

    /// Returns the end of the prompts if it may be released: the reader was allowed another prompt and had none. It is not released while
    /// the reader's allowance is used up, because the time at which the end becomes known then differs between runs.
    fn pending_end(&self) -> Option<Event> {
        let is_known = self.ended && self.allowance > 0 && self.arrived.is_empty();
        (is_known && !self.end_delivered).then_some(Event::EndOfPrompts)
    }
}

impl PendingScores {
    /// Returns the wanted scores if all have arrived, and nothing otherwise.
    fn complete(&mut self) -> Vec<Event> {
        let Self { arrived, wanted, .. } = self;
        if !wanted.iter().all(|id| arrived.contains_key(id)) {
            return Vec::new();
        }
        let scored = std::mem::take(wanted).into_iter();
        scored.filter_map(|id| Some(Event::Scored { id, score: arrived.remove(&id)? })).collect()
    }

    /// Closes the round. Only the scores of its admitted responses are still wanted.
    fn close(&mut self) {
        let Self { arrived, wanted, admitted } = self;
        wanted.retain(|id| admitted.contains(id));
        arrived.retain(|id, _| wanted.contains(id));
        admitted.clear();
    }
}
