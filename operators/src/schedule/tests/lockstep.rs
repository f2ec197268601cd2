//! Races in lockstep: the events of a schedule, and therefore its decisions, are independent of arrival order.
//!
//! A run is played by rollouts, a reader, a trainer and rewards with random delays: a seeded generator chooses which of them acts next. The
//! oracle uses only the arithmetic of ticks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PromptId, SampleId, Step, Tick};
use rollpacker_stages::rollout::FinishReason;
use rollpacker_stages::rollout::lockstep::End;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::schedule::sequencer::Sequencer;
use crate::schedule::testkit::mix;
use crate::schedule::{
    Builtin, Decision, Dynamic, Event, FrontierGroup, HistorySorted, Offer, Partial, Reason,
    RoundKind, Schedule, Sorted, Synchronous, TailBatching,
};
use crate::wire::notice::Notice;

/// Returns every built-in schedule, in every mode that affects races.
pub(super) fn schedules() -> Vec<Builtin> {
    fn read<T: DeserializeOwned>(rest: serde_json::Value) -> T {
        let mut config = json!({ "prompts": 3, "responses": 2 });
        let all = config.as_object_mut().expect("an object");
        all.extend(rest.as_object().expect("an object").clone());
        serde_json::from_value(config).expect("a configuration")
    }
    let filter = json!({ "max_generated_batches": 8, "on_exhausted": "smaller_step" });
    let tail = |rest| TailBatching::new(read(rest)).expect("valid").into();
    let sorted = |rest| Sorted::new(read(rest)).expect("valid").into();
    let frontier = |rest| FrontierGroup::new(read(rest)).expect("valid").into();
    let smaller =
        json!({ "max_generated_batches": 8, "on_exhausted": "smaller_step", "gen_prompts": 4 });
    vec![
        Synchronous::new(read(json!({}))).expect("valid").into(),
        HistorySorted::new(read(json!({ "window": 2 }))).expect("valid").into(),
        tail(json!({ "eta_prompts": 1.5, "eta_responses": 1.5, "max_queue_age": 2 })),
        tail(json!({ "eta_prompts": 1.5, "eta_responses": 1.0, "selection": "weighted" })),
        tail(json!({ "eta_prompts": 1.5, "eta_responses": 1.5, "keep_partial": true })),
        tail(json!({ "eta_prompts": 1.5, "keep_partial": true, "filter_zero_variance": filter })),
        Dynamic::new(read(smaller)).expect("valid").into(),
        sorted(json!({ "group_size": 2, "slots": 5, "mode": "on_policy" })),
        sorted(json!({ "group_size": 2, "slots": 5, "mode": "partial", "carry_over": true })),
        sorted(json!({ "group_size": 2, "slots": 5, "mode": "partial", "harvest": 4 })),
        Partial::new(read(json!({ "oversubscription": 1.5, "max_versions": 3 })))
            .expect("valid")
            .into(),
        frontier(json!({ "slots": 4, "order": "group_major" })),
        frontier(json!({ "slots": 4, "order": "sample_major" })),
        Synchronous::longest_first(read(json!({ "slots": 4 }))).expect("valid").into(),
    ]
}

/// The parameters of a run, except its delays.
#[derive(Clone, Copy, Debug)]
struct Race {
    schedule: usize,
    /// The number of prompts of an epoch; there are two epochs.
    prompts: u64,
    staleness: u64,
    /// The number of prompts that the reader may read ahead.
    ahead: usize,
    /// The seed of the lengths and scores of responses.
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
enum Command {
    Advance(Tick),
    Launch(SampleId),
    Stop(SampleId, FinishReason),
}

/// A response on a worker.
#[derive(Clone, Copy, Debug)]
struct Running {
    launched: Tick,
    resumed_tokens: u32,
    /// The number of tokens so far.
    tokens: u32,
    /// The number of tokens at the end of the response.
    length: u32,
}

impl Running {
    fn tick(&self) -> Tick {
        Tick(self.launched.0 + u64::from(self.tokens - self.resumed_tokens))
    }
}

#[derive(Default)]
struct Worker {
    /// The requests that the worker has not processed.
    inbox: VecDeque<Command>,
    received: u64,
    tick: Tick,
    running: BTreeMap<SampleId, Running>,
    ends: Vec<End>,
    /// Notices in transit.
    outbox: VecDeque<Notice>,
}

/// The events and decisions, each with its tick.
type Log = Vec<(Tick, String)>;

struct Play {
    race: Race,
    dice: u64,
    schedule: Builtin,
    sequencer: Sequencer,
    workers: Vec<Worker>,
    /// The number of tokens of each response that resumes later, and `true` if the response had ended.
    kept: BTreeMap<(PromptId, u32), (u32, bool)>,
    /// The number of tokens of each response that ended by itself and was returned by its worker.
    whole: BTreeMap<SampleId, u32>,
    stopping: BTreeMap<SampleId, FinishReason>,
    /// The number of tokens of each response whose end was released.
    reported: BTreeMap<SampleId, u32>,
    resumed_tokens: BTreeMap<(PromptId, u32), u32>,
    /// The launch tick and the resumed tokens of responses that were launched and whose ends were not released.
    unreported: BTreeMap<SampleId, (Tick, u32)>,
    open: Step,
    tick: Tick,
    /// The number of prompts that the reader may read in total; `read` is the number that it has read.
    allowance: u64,
    read: u64,
    over: bool,
    prompts: VecDeque<Event>,
    policies: VecDeque<Step>,
    published: VecDeque<Step>,
    scores: Vec<(SampleId, f64)>,
    closed: Option<Step>,
    admitted: BTreeSet<SampleId>,
    launched: BTreeSet<PromptId>,
    held: usize,
    finished: bool,
    log: Log,
}

impl Race {
    /// Plays the run over `workers` workers, with delays from the seed `dice`.
    fn play(self, workers: usize, dice: u64) -> Log {
        let schedule = schedules().swap_remove(self.schedule);
        let mut play = Play {
            sequencer: Sequencer::new(schedule.wants_scores(), self.ahead),
            schedule,
            race: self,
            dice,
            workers: (0..workers).map(|_| Worker::default()).collect(),
            kept: BTreeMap::new(),
            whole: BTreeMap::new(),
            stopping: BTreeMap::new(),
            reported: BTreeMap::new(),
            resumed_tokens: BTreeMap::new(),
            unreported: BTreeMap::new(),
            open: Step(0),
            tick: Tick(0),
            allowance: self.ahead as u64,
            read: 0,
            over: false,
            prompts: VecDeque::new(),
            policies: (0..=self.staleness).map(Step).collect(),
            published: VecDeque::new(),
            scores: Vec::new(),
            closed: None,
            admitted: BTreeSet::new(),
            launched: BTreeSet::new(),
            held: 0,
            finished: false,
            log: Log::new(),
        };
        for _ in 0..200_000 {
            if play.finished {
                return play.log;
            }
            play.act_randomly();
            play.drive();
        }
        panic!("the run does not end: {:?}", play.sequencer);
    }

    fn hash(&self, id: SampleId, what: u64) -> u64 {
        let values = [id.step.0, id.prompt.0, u64::from(id.sample), what];
        values.iter().fold(self.seed, |state, value| mix(state ^ mix(*value)))
    }

    /// Returns the length of a response, which is the same in every step. Many lengths are equal.
    fn length(&self, id: SampleId) -> u32 {
        let hash = self.hash(SampleId { step: Step(0), ..id }, 0);
        let tail = if hash.is_multiple_of(5) { 20 } else { 0 };
        1 + tail + u32::try_from(hash >> 8 & 7).expect("small")
    }
}

impl Play {
    fn roll(&mut self, sides: usize) -> usize {
        self.dice = mix(self.dice.wrapping_add(1));
        usize::try_from(self.dice % sides as u64).expect("small")
    }

    /// Lets a random actor act.
    fn act_randomly(&mut self) {
        match self.roll(10) {
            0 => self.read(),
            1 => {
                if let Some(event) = self.prompts.pop_front() {
                    self.sequencer.take(event);
                } else if self.over {
                    self.sequencer.take(Event::EndOfPrompts);
                }
            }
            2 => self.published.extend(self.policies.pop_front()),
            3 if !self.scores.is_empty() => {
                let at = self.roll(self.scores.len());
                let (id, score) = self.scores.swap_remove(at);
                self.sequencer.take(Event::Scored { id, score });
            }
            4 | 5 => {
                let worker = self.roll(self.workers.len());
                let notice = self.workers[worker].outbox.pop_front();
                notice.into_iter().for_each(|notice| self.sequencer.on_notice(notice));
            }
            6 => {
                let worker = self.roll(self.workers.len());
                self.notify(worker);
            }
            7 => {
                let worker = self.roll(self.workers.len());
                if let Some(command) = self.workers[worker].inbox.pop_front() {
                    self.receive_command(worker, command);
                }
            }
            _ => self.decode(),
        }
    }

    fn read(&mut self) {
        let all = 2 * self.race.prompts;
        if self.read == all {
            self.over = true;
        } else if self.read < self.allowance {
            let (id, epoch) = (self.read, u32::from(self.read >= self.race.prompts));
            let row = id % self.race.prompts;
            let offer = Offer { prompt: PromptId(id), epoch, row, domain: "".into() };
            self.prompts.push_back(Event::Prompt(offer));
            self.read += 1;
            self.held += 1;
        }
    }

    /// Adds some tokens to a response of some worker.
    fn decode(&mut self) {
        let (worker, tokens) = (self.roll(self.workers.len()), 1 + self.roll(9));
        let which = self.roll(64);
        let worker = &mut self.workers[worker];
        let count = worker.running.len().max(1);
        if let Some((&id, running)) = worker.running.iter_mut().nth(which % count)
            && running.tokens < running.length
        {
            let gained = u32::try_from(tokens).expect("small");
            running.tokens = (running.tokens + gained).min(running.length);
            if running.tokens == running.length {
                let (tick, tokens) = (running.tick(), running.length);
                worker.ends.push(End { tick, id, tokens, finish_reason: FinishReason::Stop });
            }
        }
    }

    fn receive_command(&mut self, worker: usize, command: Command) {
        let race = self.race;
        let site = &mut self.workers[worker];
        site.received += 1;
        match command {
            Command::Advance(tick) => {
                site.tick = tick;
                // Responses that have ended are sent to their rewards.
                let is_out =
                    |_: &SampleId, it: &mut Running| it.tokens == it.length && it.tick() <= tick;
                let out: Vec<_> = site.running.extract_if(.., is_out).collect();
                out.into_iter().for_each(|(id, running)| self.return_response(id, running.length));
            }
            Command::Launch(id) => match self.kept.remove(&(id.prompt, id.sample)) {
                Some((tokens, true)) => {
                    let (tick, finish_reason) = (site.tick, FinishReason::Stop);
                    site.ends.push(End { tick, id, tokens, finish_reason });
                    self.return_response(id, tokens);
                }
                kept => {
                    let (resumed_tokens, length) =
                        (kept.map_or(0, |(tokens, _)| tokens), race.length(id));
                    let launched = site.tick;
                    let running =
                        Running { launched, resumed_tokens, tokens: resumed_tokens, length };
                    site.running.insert(id, running);
                }
            },
            Command::Stop(id, reason) => self.stop(worker, id, reason),
        }
    }

    /// Sends a response that has ended to its reward.
    fn return_response(&mut self, id: SampleId, tokens: u32) {
        self.whole.insert(id, tokens);
        // After a round has closed, only its admitted responses are scored.
        if self.closed < Some(id.step) || self.admitted.contains(&id) {
            let is_right = self.race.hash(id, 1).is_multiple_of(3);
            self.scores.push((id, f64::from(u8::from(is_right))));
        }
    }

    fn stop(&mut self, worker: usize, id: SampleId, finish_reason: FinishReason) {
        let pauses = finish_reason == FinishReason::Pause;
        let site = &mut self.workers[worker];
        if let Some(running) = site.running.remove(&id) {
            let tick = site.tick;
            let tokens =
                running.resumed_tokens + u32::try_from(tick.0 - running.launched.0).expect("few");
            assert!(tokens <= running.tokens, "{id} is stopped at a tick that it has not reached");
            site.ends.push(End { tick, id, tokens, finish_reason });
            if pauses {
                self.kept.insert((id.prompt, id.sample), (tokens, false));
            }
        } else if pauses {
            let tokens = self.whole.remove(&id).expect("a response that does not run has ended");
            self.kept.insert((id.prompt, id.sample), (tokens, true));
        }
    }

    /// Sends a notice with the progress of a worker.
    fn notify(&mut self, worker: usize) {
        let site = &mut self.workers[worker];
        let unfinished = site.running.values().filter(|it| it.tokens < it.length);
        let floor = unfinished.map(Running::tick).min().unwrap_or(Tick::MAX);
        let mut ends = std::mem::take(&mut site.ends);
        let turn = usize::try_from(self.dice % 7).expect("small") % ends.len().max(1);
        ends.rotate_left(turn);
        let notice = Notice { worker, received: site.received, floor, ends };
        site.outbox.push_back(notice);
    }

    /// Acts as the driver: releases events and sends requests for the decisions.
    fn drive(&mut self) {
        self.drain(None);
        loop {
            self.race();
            // A schedule that has finished takes no further policy.
            let is_due = self.sequencer.can_deliver_policy() && !self.finished;
            let Some(step) = self.published.front().filter(|_| is_due) else { return };
            let event = Event::Policy { step: *step };
            self.published.pop_front();
            self.deliver(event);
            self.drain(None);
        }
    }

    fn race(&mut self) {
        while !self.finished
            && let Some(turn) = {
                let wants_prompts = self.schedule.wants_prompts();
                self.sequencer.next(wants_prompts, !self.published.is_empty())
            }
        {
            assert!(turn.tick >= self.tick, "ticks do not go back");
            self.tick = turn.tick;
            self.deliver(turn.event);
            self.drain(turn.tick_passed.then_some(self.tick));
        }
    }

    fn deliver(&mut self, event: Event) {
        self.check(&event);
        self.log.push((self.tick, format!("{event:?}")));
        self.schedule.on(Nanos(self.tick.0), event);
    }

    /// Checks that a response ends at the tick of its launch plus the number of tokens that it sampled itself, and is released once.
    fn check(&mut self, event: &Event) {
        let Event::Response { id, tokens, finish_reason } = *event else { return };
        let (launched, resumed_tokens) =
            self.unreported.remove(&id).expect("launched, and not reported before");
        assert_eq!(self.tick.0 - launched.0, u64::from(tokens - resumed_tokens), "{id}");
        self.reported.insert(id, tokens);
        let stopped = self.stopping.remove(&id);
        if finish_reason.is_whole() {
            // A response that ends at the tick at which it is stopped counts as ended.
            assert_eq!(tokens, self.race.length(id), "{id}");
        } else {
            assert_eq!(stopped, Some(finish_reason), "{id}");
        }
        if stopped == Some(FinishReason::Pause) {
            self.resumed_tokens.insert((id.prompt, id.sample), tokens);
        }
    }

    fn drain(&mut self, passed: Option<Tick>) {
        let mut commands: Vec<Command> = passed.into_iter().map(Command::Advance).collect();
        while let Some(decision) = self.schedule.poll() {
            self.log.push((self.tick, decision.to_string()));
            self.sequencer.on_decision(&decision);
            self.decide(decision, &mut commands);
        }
        for command in commands {
            let all = 0..self.workers.len();
            let to = match command {
                Command::Advance(_) => all,
                Command::Launch(id) | Command::Stop(id, _) => {
                    let worker = usize::try_from(id.prompt.0).expect("small") % all.len();
                    worker..worker + 1
                }
            };
            for worker in to {
                self.sequencer.record_sent(worker, 1);
                self.workers[worker].inbox.push_back(command);
            }
        }
        if self.schedule.wants_prompts() && self.sequencer.is_out_of_prompts() {
            self.allow(self.held.max(1));
        }
    }

    fn decide(&mut self, decision: Decision, commands: &mut Vec<Command>) {
        match decision {
            Decision::Open { step, .. } => self.open = step,
            Decision::Launch { prompt, samples, .. } => {
                if self.launched.insert(prompt) {
                    self.allow(1);
                }
                for sample in samples {
                    let id = SampleId { step: self.open, prompt, sample };
                    commands.push(Command::Launch(id));
                    let resumed_tokens = self.resumed_tokens.remove(&(prompt, sample)).unwrap_or(0);
                    self.unreported.insert(id, (self.tick, resumed_tokens));
                }
            }
            Decision::Abort { id, .. } => self.stopped(id, FinishReason::Abort, commands),
            Decision::Pause { id, .. } => self.stopped(id, FinishReason::Pause, commands),
            Decision::Admit { prompt, samples, .. } => {
                let id = |sample| SampleId { step: self.open, prompt, sample };
                self.admitted.extend(samples.into_iter().map(id));
                self.held -= 1;
            }
            Decision::Reject { .. } => self.held -= 1,
            Decision::Close { step, .. } => {
                self.closed = Some(step);
                self.scores.retain(|(id, _)| id.step > step || self.admitted.contains(id));
                let next = Step(step.0 + 1 + self.race.staleness);
                self.policies.push_back(next);
            }
            Decision::Finish => self.finished = true,
            Decision::Fail { message, .. } => panic!("{message}"),
            Decision::Defer { .. } => {}
        }
    }

    fn stopped(&mut self, id: SampleId, reason: FinishReason, commands: &mut Vec<Command>) {
        commands.push(Command::Stop(id, reason));
        match self.reported.get(&id) {
            None => drop(self.stopping.insert(id, reason)),
            Some(tokens) if reason == FinishReason::Pause => {
                self.resumed_tokens.insert((id.prompt, id.sample), *tokens);
            }
            Some(_) => {}
        }
    }

    fn allow(&mut self, prompts: usize) {
        self.allowance += prompts as u64;
        self.sequencer.allow(prompts);
    }
}

prop_compose! {
    fn races()(
        schedule in 0..schedules().len(),
        prompts in 1..14_u64,
        staleness in 0..3_u64,
        ahead in 1..10_usize,
        seed: u64,
    ) -> Race {
        Race { schedule, prompts, staleness, ahead, seed }
    }
}

proptest! {
    #[test]
    fn delays_change_no_event_and_no_decision(race in races(), workers in 1..4_usize, dice: [u64; 2]) {
        let log = race.play(1, dice[0]);
        prop_assert_eq!(race.play(workers, dice[1]), log);
    }
}

#[test]
fn reading_ahead_changes_no_decision_in_lockstep() {
    for schedule in 0..schedules().len() {
        let race = Race { schedule, prompts: 11, staleness: 1, ahead: 7, seed: 5 };
        let decisions = |race: Race| -> Vec<String> {
            let log = race.play(2, 9).into_iter();
            let decided =
                log.filter(|(_, text)| text.starts_with(|first: char| first.is_lowercase()));
            decided.map(|(_, text)| text).collect()
        };
        let found = decisions(race);
        assert!(found.len() > 22, "{found:?}");
        assert_eq!(decisions(Race { ahead: 3, ..race }), found);
    }
}

#[test]
fn a_response_that_ends_at_its_launch_tick_counts_as_ended_when_stopped() {
    let (step, prompt) = (Step(0), PromptId(3));
    let mut sequencer = Sequencer::new(false, 1);
    let reason = Reason::Queued;
    sequencer.on_decision(&Decision::Open { step, round: RoundKind::Full, reason });
    sequencer.on_decision(&Decision::Launch { prompt, samples: 0..2, reason });
    sequencer.record_sent(0, 1);
    let id = |sample| SampleId { step, prompt, sample };
    let pause = |sample| Decision::Pause { id: id(sample), reason };
    [pause(0), pause(1)].iter().for_each(|decision| sequencer.on_decision(decision));
    sequencer.record_sent(0, 2);
    let end = |sample, tick, finish_reason| End {
        tick: Tick(tick),
        id: id(sample),
        tokens: 4,
        finish_reason,
    };
    let ends = vec![end(0, 0, FinishReason::Stop), end(1, 4, FinishReason::Stop)];
    sequencer.on_notice(Notice { worker: 0, received: 3, floor: Tick::MAX, ends });
    assert_eq!(
        sequencer.next(false, false),
        None,
        "one stop is unanswered: the response had ended"
    );
    let ends = vec![end(1, 0, FinishReason::Pause)];
    sequencer.on_notice(Notice { worker: 0, received: 3, floor: Tick::MAX, ends });
    let events = std::iter::from_fn(|| sequencer.next(false, false)).map(|turn| turn.event);
    let events: Vec<_> = events.collect();
    let response =
        |sample, finish_reason| Event::Response { id: id(sample), tokens: 4, finish_reason };
    assert_eq!(events, [response(0, FinishReason::Stop), response(1, FinishReason::Pause)]);
}
