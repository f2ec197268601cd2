//! The watchdog: says what a graph waits for that does nothing any more.
//!
//! A graph that waits for what never comes, a reward that hangs or an engine that lost a response, looks like one that works: its workers
//! are parked. So operators say what they wait for ([`Waiting`]), and when no operator has moved a row, and no frontier has moved,
//! for a set time, the watchdog tells of it ([`Stall`]), and ends the run if it is to.
//!
//! It runs on the workers' own threads, between activations: it cannot see logic that does not return. What ends a run tears its graph
//! down and waits for the threads that operators own; a program whose threads may hang ends itself once it was told.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use timely::progress::frontier::MutableAntichain;

use crate::clock::{Clock, Nanos};
use crate::fault::Fault;
use crate::step::{PromptId, SampleId, Step};

thread_local! {
    static OPERATORS: RefCell<Vec<Rc<Watched>>> = const { RefCell::new(Vec::new()) };
    /// Rows and frontiers that have moved on this worker.
    static MOVED: Cell<u64> = const { Cell::new(0) };
    /// The latest step of which rows have moved on this worker.
    static REACHED: Cell<Step> = const { Cell::new(Step(0)) };
}

/// Counts something that moved.
pub(crate) fn moved() {
    MOVED.set(MOVED.get().wrapping_add(1));
}

/// Counts rows of a step that moved.
pub(crate) fn moved_at(step: Step) {
    moved();
    if step != Step::END {
        REACHED.set(REACHED.get().max(step));
    }
}

/// How far this worker has come.
pub(crate) struct Progress {
    /// Rows and frontiers that have moved, in a count that wraps around.
    pub(crate) moved: u64,
    /// The latest step of which rows have moved.
    pub(crate) step: Step,
}

/// How far this worker has come.
pub(crate) fn progress() -> Progress {
    Progress { moved: MOVED.get(), step: REACHED.get() }
}

/// Forgets the operators of dataflows that this thread ran before.
pub(crate) fn reset() {
    OPERATORS.with_borrow_mut(Vec::clear);
    REACHED.set(Step(0));
}

/// What the watchdog knows of one operator on one worker.
#[derive(Debug)]
pub(crate) struct Watched {
    name: &'static str,
    frontiers: RefCell<Vec<Option<Step>>>,
    waits: RefCell<BTreeMap<Awaited, &'static str>>,
}

impl Watched {
    pub(crate) fn register(name: &'static str) -> Rc<Self> {
        let watched =
            Rc::new(Self { name, frontiers: RefCell::default(), waits: RefCell::default() });
        OPERATORS.with_borrow_mut(|operators| operators.push(watched.clone()));
        watched
    }

    /// Takes note of the frontiers of the operator's inputs.
    pub(crate) fn see(&self, frontiers: &[MutableAntichain<Step>]) {
        let mut seen = self.frontiers.borrow_mut();
        let now = frontiers.iter().map(|input| input.frontier().first().copied());
        if !now.clone().eq(seen.iter().copied()) {
            seen.clear();
            seen.extend(now);
            moved();
        }
    }
}

/// Something that an operator waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Awaited {
    /// For which step.
    pub step: Step,
    /// About which prompt, if it is about one.
    pub prompt: Option<PromptId>,
    /// About which sample of it, if it is about one.
    pub sample: Option<u32>,
}

impl From<Step> for Awaited {
    fn from(step: Step) -> Self {
        Self { step, prompt: None, sample: None }
    }
}

impl From<(Step, PromptId)> for Awaited {
    fn from((step, prompt): (Step, PromptId)) -> Self {
        Self { step, prompt: Some(prompt), sample: None }
    }
}

impl From<SampleId> for Awaited {
    fn from(SampleId { step, prompt, sample }: SampleId) -> Self {
        Self { step, prompt: Some(prompt), sample: Some(sample) }
    }
}

/// Where an operator says what it waits for. Clones are of the same operator.
#[derive(Clone, Debug)]
pub struct Waiting(pub(crate) Rc<Watched>);

impl Waiting {
    /// From now on the operator waits for `what`: a noun, as in "waits for `the verdict of a reward`".
    pub fn begin(&self, awaited: impl Into<Awaited>, what: &'static str) {
        self.0.waits.borrow_mut().insert(awaited.into(), what);
    }

    /// It has come, or is not wanted any more.
    pub fn end(&self, awaited: impl Into<Awaited>) {
        self.0.waits.borrow_mut().remove(&awaited.into());
    }

    /// Nothing of the steps before `step` is waited for any more.
    pub fn end_before(&self, step: Step) {
        let mut waits = self.0.waits.borrow_mut();
        *waits = waits.split_off(&Awaited::from(step));
    }
}

/// What one operator waits for, for one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The operator.
    pub operator: &'static str,
    /// The step.
    pub step: Step,
    /// What it waits for.
    pub what: &'static str,
    /// For which prompts and samples; none if it is about none in particular.
    pub ids: Vec<(PromptId, Option<u32>)>,
}

/// A graph in which nothing moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// For how long.
    pub silent: Nanos,
    /// What is waited for on this worker, by operators as they were built, then by steps.
    pub waits: Vec<Wait>,
    /// The frontiers of each operator's inputs on this worker; `None` for one that has ended.
    pub frontiers: Vec<(&'static str, Vec<Option<Step>>)>,
}

impl Stall {
    fn now(silent: Nanos) -> Self {
        OPERATORS.with_borrow(|operators| Self {
            silent,
            waits: operators.iter().flat_map(|operator| waits(operator)).collect(),
            frontiers: operators
                .iter()
                .map(|operator| (operator.name, operator.frontiers.borrow().clone()))
                .collect(),
        })
    }

    fn fault(&self) -> Fault {
        let step = self.waits.iter().map(|wait| wait.step).min();
        Fault { step, ..Fault::new("watchdog", self.to_string()) }
    }
}

fn waits(operator: &Watched) -> Vec<Wait> {
    let mut waits: BTreeMap<(Step, &'static str), Vec<_>> = BTreeMap::new();
    for (awaited, what) in operator.waits.borrow().iter() {
        let ids = waits.entry((awaited.step, what)).or_default();
        ids.extend(awaited.prompt.map(|prompt| (prompt, awaited.sample)));
    }
    waits
        .into_iter()
        .map(|((step, what), ids)| Wait { operator: operator.name, step, what, ids })
        .collect()
}

/// Ids that a message names; the others are counted.
const NAMED: usize = 8;

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, step {}, waits for {}", self.operator, self.step, self.what)?;
        for (at, (prompt, sample)) in self.ids.iter().take(NAMED).enumerate() {
            write!(f, "{}{prompt}", if at == 0 { ": " } else { ", " })?;
            if let Some(sample) = sample {
                write!(f, ".{sample}")?;
            }
        }
        match self.ids.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing has moved for {}: ", self.silent)?;
        if self.waits.is_empty() {
            write!(f, "no operator says what it waits for; the frontiers of the inputs are")?;
            for (operator, frontiers) in &self.frontiers {
                let steps: Vec<_> = frontiers
                    .iter()
                    .map(|step| step.map_or("ended".to_owned(), |step| step.to_string()))
                    .collect();
                write!(f, " {operator} [{}]", steps.join(", "))?;
            }
        }
        for (at, wait) in self.waits.iter().enumerate() {
            write!(f, "{}{wait}", if at == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// What several workers of a process have moved. A worker with nothing to do is not stuck while others work.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// Something has moved in another process.
    pub(crate) fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Watches the graph of this thread.
pub struct Watchdog {
    clock: Arc<dyn Clock>,
    after: Nanos,
    ends_run: bool,
    tell: Box<dyn FnMut(&Stall)>,
    pulse: Pulse,
    /// What this thread had moved when it last looked.
    counted: u64,
    /// What all had.
    beats: u64,
    since: Nanos,
    told: bool,
}

impl Watchdog {
    /// Calls `tell` once whenever nothing has moved for as long as `after`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, after: Nanos, tell: impl FnMut(&Stall) + 'static) -> Self {
        Self {
            since: clock.now(),
            clock,
            after,
            ends_run: false,
            tell: Box::new(tell),
            pulse: Pulse::default(),
            counted: MOVED.get(),
            beats: 0,
            told: false,
        }
    }

    /// Also ends the run, once it was told.
    #[must_use]
    pub fn ending_the_run(mut self) -> Self {
        self.ends_run = true;
        self
    }

    /// Counts what other workers move too: those whose watchdogs have the same pulse.
    #[must_use]
    pub fn with(mut self, pulse: &Pulse) -> Self {
        self.pulse = pulse.clone();
        self
    }

    /// To be called between activations: the fault that ends the run, if it is to end.
    pub fn check(&mut self) -> Option<Fault> {
        let now = self.clock.now();
        if self.has_moved() {
            (self.since, self.told) = (now, false);
            return None;
        }
        let silent = now.since(self.since);
        if self.told || silent < self.after {
            return None;
        }
        self.told = true;
        let stall = Stall::now(silent);
        (self.tell)(&stall);
        self.ends_run.then(|| stall.fault())
    }

    fn has_moved(&mut self) -> bool {
        let counted = MOVED.get();
        let own = counted.wrapping_sub(std::mem::replace(&mut self.counted, counted));
        let beats = self.pulse.0.fetch_add(own, Ordering::Relaxed).wrapping_add(own);
        std::mem::replace(&mut self.beats, beats) != beats
    }

    /// How long a worker may be parked before it is to [`check`](Self::check) again.
    #[must_use]
    pub fn patience(&self) -> Duration {
        let waited = self.clock.now().since(self.since);
        let left = if self.told { self.after } else { self.after.since(waited) };
        // Timely's park is not exact: a worker that wakes just before the time would spin.
        Duration::from_nanos(left.0).max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::VirtualClock;

    const AFTER: Nanos = Nanos(10);

    fn watched() -> (VirtualClock, Watchdog, Rc<RefCell<Vec<String>>>) {
        let (clock, told) = (VirtualClock::default(), Rc::<RefCell<Vec<String>>>::default());
        let telling = told.clone();
        let tell = move |stall: &Stall| telling.borrow_mut().push(stall.to_string());
        let watchdog = Watchdog::new(Arc::new(clock.clone()), AFTER, tell);
        (clock, watchdog, told)
    }

    #[test]
    fn tells_once_of_each_silence() {
        let (clock, mut watchdog, told) = watched();
        for (now, moves, stalls) in [
            (9, false, 0),
            (10, false, 1),
            (30, false, 1),
            (31, true, 1),
            (40, false, 1),
            (41, false, 2),
        ] {
            clock.advance_to(Nanos(now));
            if moves {
                moved();
            }
            assert_eq!(watchdog.check(), None);
            assert_eq!(told.borrow().len(), stalls, "at {now}");
        }
    }

    #[test]
    fn names_the_operator_the_step_and_the_ids() {
        reset();
        let (clock, watchdog, told) = watched();
        let reward = Waiting(Watched::register("reward"));
        let update = Waiting(Watched::register("update"));
        for sample in 0..10 {
            let id = SampleId { step: Step(7), prompt: PromptId(3), sample };
            reward.begin(id, "the verdict of a reward");
        }
        reward.end(SampleId { step: Step(7), prompt: PromptId(3), sample: 1 });
        reward.begin((Step(8), PromptId(4)), "a group");
        update.begin(Step(6), "the trainer");
        update.begin(Step(7), "the trainer");
        update.end_before(Step(7));
        clock.advance_to(Nanos(12_000_000_000));
        let fault = watchdog.ending_the_run().check().expect("it is to end");
        assert_eq!(fault.step, Some(Step(7)));
        assert_eq!(
            *told.borrow(),
            [
                "nothing has moved for 12.000 s: reward, step 7, waits for the verdict of a reward: p3.0, p3.2, p3.3, p3.4, \
             p3.5, p3.6, p3.7, p3.8 and 1 more; reward, step 8, waits for a group: p4; update, step 7, waits for the trainer"
            ]
        );
        reset();
    }

    #[test]
    fn a_worker_is_not_stuck_while_another_works() {
        let pulse = Pulse::default();
        let (clock, watchdog, told) = watched();
        let mut watchdog = watchdog.with(&pulse);
        clock.advance_to(Nanos(9));
        pulse.0.fetch_add(1, Ordering::Relaxed);
        assert_eq!(watchdog.check(), None);
        clock.advance_to(Nanos(18));
        assert_eq!(watchdog.check(), None);
        assert!(told.borrow().is_empty());
        assert_eq!(watchdog.patience(), Duration::from_millis(1));
    }
}
