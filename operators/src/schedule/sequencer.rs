//! The sequencer: the order in which a schedule hears of a race that is decided by tokens.
//!
//! In [lockstep](rollpacker_stages::rollout::lockstep) responses end at ticks, but word of the ends comes as machines and threads have it.
//! The sequencer keeps what it hears until nothing can come before it any more, and then gives it out, one event at a time. The order follows from
//! the prompts, from the tokens of responses and from their scores, never from when anything arrived:
//!
//! - **Ends.** All responses that end at the earliest tick, in the order of their ids, once every worker has taken in what was asked of it and
//!   is past that tick, and all that was stopped has answered. An answer counts as an end at the tick at which the response was stopped.
//! - **Scores**, where the schedule wants them: those of all whole responses of a tick, once all are there, before anything ends later. Of a round
//!   that has closed only what it admitted is scored.
//! - **Prompts**, one by one, before anything else while the schedule wants one. Otherwise only while a policy waits that nothing else is told
//!   before, so that a schedule knows of as many prompts in every run: as many as the reader may be ahead, or all that there are.
//!
//! Then comes the policy, once no round is open, nothing is under way and nothing is left to be told: [quiet](Sequencer::is_quiet).
//!
//! More may end at the tick that ended last: responses that an earlier round kept whole end as they are launched.
//!
//! Architecture invariant: no clock, no channel; ends, scores and prompts may arrive in any order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rollpacker_dataflow::step::{PromptId, SampleId, Step, Tick};
use rollpacker_stages::rollout::lockstep::End;

use super::{Decision, Event};

/// What a schedule is told.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Turn {
    /// The time of it, and of what is decided upon it.
    pub(super) tick: Tick,
    /// What it is told.
    pub(super) event: Event,
    /// Whether it is the first that ended at the tick, so that rollouts must hear that the tick has passed.
    pub(super) passes: bool,
}

/// What a worker says of its rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// Which worker.
    pub(crate) worker: usize,
    /// Rows of requests that it has taken in since the start.
    pub(crate) taken_in: u64,
    /// Everything else that it has ends later than this.
    pub(crate) floor: Tick,
    /// What has ended since the last notice or was dropped, in any order.
    pub(crate) ends: Vec<End>,
}

/// Orders what a schedule is told.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sequencer {
    wants_scores: bool,
    tick: Tick,
    stock: Stock,
    open: Option<Step>,
    workers: BTreeMap<usize, Worker>,
    under_way: BTreeMap<SampleId, State>,
    /// What has ended and may have to wait for others.
    due: BTreeSet<(Tick, SampleId)>,
    /// What is told next, of one tick.
    telling: VecDeque<Event>,
    /// How many are told to stop and have not answered.
    stopping: usize,
    scores: Scores,
}

/// Prompts on their way to the schedule.
#[derive(Clone, Debug, Default, PartialEq)]
struct Stock {
    arrived: VecDeque<Event>,
    /// Prompts that the reader may still hand over.
    to_come: usize,
    /// Whether it has no more.
    ended: bool,
    told_of_end: bool,
}

/// How far a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Worker {
    sent: u64,
    taken_in: u64,
    floor: Tick,
}

/// A response that the schedule has launched and not heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Stopping,
    Ended(End),
}

/// The scores of the open round.
#[derive(Clone, Debug, Default, PartialEq)]
struct Scores {
    arrived: BTreeMap<SampleId, f64>,
    /// Whole responses that were told of and whose scores were not.
    wanted: BTreeSet<SampleId>,
    admitted: BTreeSet<SampleId>,
}

impl Sequencer {
    /// Nothing has happened, and the reader may hand over `allowance` prompts.
    pub(super) fn new(wants_scores: bool, allowance: usize) -> Self {
        Self {
            wants_scores,
            tick: Tick(0),
            stock: Stock { to_come: allowance, ..Stock::default() },
            open: None,
            workers: BTreeMap::new(),
            under_way: BTreeMap::new(),
            due: BTreeSet::new(),
            telling: VecDeque::new(),
            stopping: 0,
            scores: Scores::default(),
        }
    }

    /// The tick that what was told last is of, and what is decided upon it.
    pub(super) fn tick(&self) -> Tick {
        self.tick
    }

    /// Takes in prompts and scores. Ends come as [notices](Self::notice), and policies are told once it is [quiet](Self::is_quiet).
    pub(super) fn take(&mut self, event: Event) {
        match event {
            Event::Prompt(_) => {
                self.stock.to_come = self.stock.to_come.saturating_sub(1);
                self.stock.arrived.push_back(event);
            }
            Event::EndOfPrompts => self.stock.ended = true,
            Event::Scored { id, score } => {
                let is_heard = self.open.is_some_and(|open| id.step >= open);
                if self.wants_scores && (is_heard || self.scores.wanted.contains(&id)) {
                    self.scores.arrived.insert(id, score);
                }
            }
            Event::Response { .. } | Event::Policy { .. } => {}
        }
    }

    /// The reader may hand over so many prompts more.
    pub(super) fn allow(&mut self, prompts: usize) {
        self.stock.to_come += prompts;
    }

    /// Whether the schedule was told of all prompts that the reader was allowed to hand over.
    pub(super) fn is_out_of_prompts(&self) -> bool {
        self.stock.to_come == 0 && self.stock.arrived.is_empty()
    }

    /// A worker was sent so many rows of requests.
    pub(super) fn sent(&mut self, worker: usize, rows: u64) {
        let fresh = Worker { sent: 0, taken_in: 0, floor: Tick::MAX };
        self.workers.entry(worker).or_insert(fresh).sent += rows;
    }

    /// Takes in what a worker says. What was stopped since is not heard.
    pub(super) fn notice(&mut self, notice: Notice) {
        let Some(worker) = self.workers.get_mut(&notice.worker) else { return };
        (worker.taken_in, worker.floor) = (notice.taken_in, notice.floor);
        for end in notice.ends {
            let Some(state) = self.under_way.get_mut(&end.id) else { continue };
            // What is given again as it is launched may be stopped at the same tick: then it had ended.
            let is_answer = !end.finish_reason.is_whole() || end.tick <= self.tick;
            match *state {
                State::Running => {}
                State::Stopping if is_answer => self.stopping -= 1,
                State::Stopping | State::Ended(_) => continue,
            }
            *state = State::Ended(end);
            self.due.insert((end.tick, end.id));
        }
    }

    /// Takes in what the schedule decided.
    pub(super) fn decided(&mut self, decision: &Decision) {
        match decision {
            Decision::Open { step, .. } => {
                self.open = Some(*step);
                self.scores.admitted.clear();
            }
            Decision::Launch { prompt, samples, .. } => {
                let ids: Vec<SampleId> = self.ids(*prompt, samples.clone());
                self.under_way.extend(ids.into_iter().map(|id| (id, State::Running)));
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

    /// Whether a launched response is not told of.
    pub(super) fn is_racing(&self) -> bool {
        !self.under_way.is_empty() || !self.telling.is_empty()
    }

    /// Whether a policy may be told: nothing is before it.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_between() && self.stock.arrived.is_empty() && self.stock.news().is_none()
    }

    /// Whether no round is open, nothing is under way, and the reader has done what it may.
    fn is_between(&self) -> bool {
        let is_over = self.open.is_none() && !self.is_racing() && self.scores.wanted.is_empty();
        is_over && self.stock.is_complete()
    }

    /// What is to be told next, if it is known: `wants_prompts` says whether the schedule cannot go on without a prompt, `policy_waits`
    /// whether one is published.
    pub(super) fn next(&mut self, wants_prompts: bool, policy_waits: bool) -> Option<Turn> {
        if wants_prompts && !self.stock.told_of_end {
            return self.prompt();
        }
        if let Some(event) = self.telling.pop_front() {
            return self.turn(event);
        }
        if !self.scores.wanted.is_empty() {
            self.telling.extend(self.scores.complete());
            return self.telling.pop_front().and_then(|event| self.turn(event));
        }
        if policy_waits && self.is_between() {
            return self.prompt();
        }
        let ended = self.ended();
        self.telling.extend(ended);
        let event = self.telling.pop_front()?;
        Some(Turn { tick: self.tick, event, passes: true })
    }

    /// The responses of the open round to a prompt.
    fn ids(&self, prompt: PromptId, samples: impl Iterator<Item = u32>) -> Vec<SampleId> {
        let step = self.open.expect("invariant: a round is open while it launches and admits");
        samples.map(|sample| SampleId { step, prompt, sample }).collect()
    }

    fn stop(&mut self, id: SampleId) {
        let Some(state) = self.under_way.get_mut(&id) else { return };
        match std::mem::replace(state, State::Stopping) {
            State::Stopping => return,
            State::Running => {}
            State::Ended(end) => drop(self.due.remove(&(end.tick, id))),
        }
        self.stopping += 1;
    }

    fn turn(&self, event: Event) -> Option<Turn> {
        Some(Turn { tick: self.tick, event, passes: false })
    }

    fn prompt(&mut self) -> Option<Turn> {
        let event = self.stock.next()?;
        self.turn(event)
    }

    /// What ends next, all of one tick, if nothing can end before or with it.
    fn ended(&mut self) -> Vec<Event> {
        let Some(&(tick, _)) = self.due.first() else { return Vec::new() };
        let is_past = |worker: &Worker| worker.taken_in == worker.sent && worker.floor >= tick;
        if self.stopping > 0 || !self.workers.values().all(is_past) {
            return Vec::new();
        }
        self.tick = self.tick.max(tick);
        let later = self.due.split_off(&(Tick(tick.0 + 1), SampleId::default()));
        let ended = std::mem::replace(&mut self.due, later).into_iter();
        ended.filter_map(|(_, id)| self.hear(id)).collect()
    }

    fn hear(&mut self, id: SampleId) -> Option<Event> {
        let State::Ended(End { tokens, finish_reason, .. }) = self.under_way.remove(&id)? else {
            return None;
        };
        if self.wants_scores && finish_reason.is_whole() && self.open == Some(id.step) {
            self.scores.wanted.insert(id);
        }
        Some(Event::Response { id, tokens, finish_reason })
    }
}

impl Stock {
    /// Whether no prompt will arrive unless the reader may hand over more.
    fn is_complete(&self) -> bool {
        self.to_come == 0 || self.ended
    }

    /// The next prompt, or the news that there is none.
    fn next(&mut self) -> Option<Event> {
        self.arrived.pop_front().or_else(|| {
            let news = self.news();
            self.told_of_end |= news.is_some();
            news
        })
    }

    /// The end of the prompts, if it is to be told: where the reader was allowed another and had none. Whether one that was allowed no more
    /// had more is not known at the same time in every run.
    fn news(&self) -> Option<Event> {
        let is_known = self.ended && self.to_come > 0 && self.arrived.is_empty();
        (is_known && !self.told_of_end).then_some(Event::EndOfPrompts)
    }
}

impl Scores {
    /// The scores that are wanted, if all are there.
    fn complete(&mut self) -> Vec<Event> {
        let Self { arrived, wanted, .. } = self;
        if !wanted.iter().all(|id| arrived.contains_key(id)) {
            return Vec::new();
        }
        let told = std::mem::take(wanted).into_iter();
        told.filter_map(|id| Some(Event::Scored { id, score: arrived.remove(&id)? })).collect()
    }

    fn close(&mut self) {
        let Self { arrived, wanted, admitted } = self;
        wanted.retain(|id| admitted.contains(id));
        arrived.retain(|id, _| wanted.contains(id));
        admitted.clear();
    }
}
