//! What operators say they wait for.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use timely::progress::frontier::MutableAntichain;

use super::{moved, now, watch};
use crate::clock::Nanos;
use crate::step::{PromptId, SampleId, Step};

/// What is waited for, and since when.
pub(super) type Waits = BTreeMap<Awaited, (Cow<'static, str>, Nanos)>;

/// What the watchdog knows of one operator on one worker.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(super) name: &'static str,
    pub(super) frontiers: RefCell<Vec<Option<Step>>>,
    /// One for each [`Waiting`] of the operator.
    pub(super) waits: RefCell<Vec<Rc<RefCell<Waits>>>>,
}

impl Watched {
    pub(crate) fn register(name: &'static str) -> Rc<Self> {
        let watched =
            Rc::new(Self { name, frontiers: RefCell::default(), waits: RefCell::default() });
        watch(watched.clone());
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

    pub(crate) fn waiting(&self) -> Waiting {
        let waiting = Waiting::default();
        self.waits.borrow_mut().push(waiting.0.clone());
        waiting
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

/// Where an operator says what it waits for. Clones are one; what is said at one place is not taken back at another.
///
/// Nothing is kept where no watchdog runs.
#[derive(Clone, Debug, Default)]
pub struct Waiting(Rc<RefCell<Waits>>);

impl Waiting {
    /// From now on the operator waits for `what`: a noun, as in "has waited 3 s for `the trainer`".
    pub fn begin(&self, awaited: impl Into<Awaited>, what: &'static str) {
        self.begin_with(awaited, || Cow::Borrowed(what));
    }

    /// The same, with a noun that is made only if someone watches.
    pub fn begin_with<N: Into<Cow<'static, str>>>(
        &self,
        awaited: impl Into<Awaited>,
        what: impl FnOnce() -> N,
    ) {
        if let Some(since) = now() {
            self.0.borrow_mut().insert(awaited.into(), (what().into(), since));
        }
    }

    /// The same, for as long as what it returns is there.
    #[must_use]
    pub fn hold<N: Into<Cow<'static, str>>>(
        &self,
        awaited: impl Into<Awaited>,
        what: impl FnOnce() -> N,
    ) -> Awaiting {
        let awaited = awaited.into();
        self.begin_with(awaited, what);
        Awaiting { waiting: self.clone(), awaited }
    }

    /// It has come, or is not wanted any more.
    pub fn end(&self, awaited: impl Into<Awaited>) {
        self.0.borrow_mut().remove(&awaited.into());
    }

    /// Nothing of the steps before `step` is waited for any more.
    pub fn end_before(&self, step: Step) {
        let mut waits = self.0.borrow_mut();
        if waits.first_key_value().is_some_and(|(first, _)| first.step < step) {
            *waits = waits.split_off(&Awaited::from(step));
        }
    }
}

/// Something is waited for until this is dropped.
#[derive(Debug)]
pub struct Awaiting {
    waiting: Waiting,
    awaited: Awaited,
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        self.waiting.end(self.awaited);
    }
}
