//! The waits that operators report.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use timely::progress::frontier::MutableAntichain;

use super::progress::{now, record_event};
use crate::clock::Nanos;
use crate::step::{PromptId, SampleId, Step};

/// The waits of one handle: the awaited thing and the start of each wait.
pub(super) type WaitMap = BTreeMap<WaitKey, (Cow<'static, str>, Nanos)>;

thread_local! {
    /// The operators of the dataflow of this thread.
    static OPERATORS: RefCell<Vec<Rc<OperatorWaits>>> = const { RefCell::new(Vec::new()) };
}

/// Removes all operators of this thread.
pub(super) fn clear() {
    OPERATORS.with_borrow_mut(Vec::clear);
}

/// Calls `read` with the operators of this thread, in the order in which they were built.
pub(super) fn with_operators<R>(read: impl FnOnce(&[Rc<OperatorWaits>]) -> R) -> R {
    OPERATORS.with_borrow(|operators| read(operators))
}

/// The information that the watchdog has about one operator on one worker.
#[derive(Debug)]
pub(crate) struct OperatorWaits {
    pub(super) name: &'static str,
    pub(super) frontiers: RefCell<Vec<Option<Step>>>,
    /// The waits, one map per [`WaitHandle`] of the operator.
    pub(super) waits: RefCell<Vec<Rc<RefCell<WaitMap>>>>,
}

impl OperatorWaits {
    pub(crate) fn register(name: &'static str) -> Rc<Self> {
        let watched =
            Rc::new(Self { name, frontiers: RefCell::default(), waits: RefCell::default() });
        OPERATORS.with_borrow_mut(|operators| operators.push(watched.clone()));
        watched
    }

    /// Records the frontiers of the operator's inputs; a change counts as progress.
    pub(crate) fn record_frontiers(&self, frontiers: &[MutableAntichain<Step>]) {
        let mut seen = self.frontiers.borrow_mut();
        let now = frontiers.iter().map(|input| input.frontier().first().copied());
        if !now.clone().eq(seen.iter().copied()) {
            seen.clear();
            seen.extend(now);
            record_event();
        }
    }

    pub(crate) fn wait_handle(&self) -> WaitHandle {
        let waiting = WaitHandle::default();
        self.waits.borrow_mut().push(waiting.0.clone());
        waiting
    }
}

/// The key of a wait of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitKey {
    /// The step for which the operator waits.
    pub step: Step,
    /// The prompt, if the wait concerns a single prompt.
    pub prompt: Option<PromptId>,
    /// The index of the response among the responses to the prompt, if the wait concerns a single response.
    pub sample: Option<u32>,
}

impl From<Step> for WaitKey {
    fn from(step: Step) -> Self {
        Self { step, prompt: None, sample: None }
    }
}

impl From<(Step, PromptId)> for WaitKey {
    fn from((step, prompt): (Step, PromptId)) -> Self {
        Self { step, prompt: Some(prompt), sample: None }
    }
}

impl From<SampleId> for WaitKey {
    fn from(SampleId { step, prompt, sample }: SampleId) -> Self {
        Self { step, prompt: Some(prompt), sample: Some(sample) }
    }
}

/// A handle with which an operator reports what it waits for. Clones share one set of waits; separate handles are independent.
///
/// Nothing is stored if no watchdog runs.
#[derive(Clone, Debug, Default)]
pub struct WaitHandle(Rc<RefCell<WaitMap>>);

impl WaitHandle {
    /// Records that the operator waits for `what`, a noun phrase that completes "has waited 3 s for ...". `awaited` is the key of the wait.
    /// Replaces a wait of this handle with the same key.
    pub fn begin(&self, awaited: impl Into<WaitKey>, what: &'static str) {
        self.begin_with(awaited, || Cow::Borrowed(what));
    }

    /// Records a wait as [`begin`](Self::begin) does, with a description that is built only if a watchdog runs.
    pub fn begin_with<N: Into<Cow<'static, str>>>(
        &self,
        awaited: impl Into<WaitKey>,
        what: impl FnOnce() -> N,
    ) {
        if let Some(since) = now() {
            self.0.borrow_mut().insert(awaited.into(), (what().into(), since));
        }
    }

    /// Records a wait as [`begin_with`](Self::begin_with) does; the wait ends when the returned guard is dropped.
    #[must_use]
    pub fn hold<N: Into<Cow<'static, str>>>(
        &self,
        awaited: impl Into<WaitKey>,
        what: impl FnOnce() -> N,
    ) -> WaitGuard {
        let awaited = awaited.into();
        self.begin_with(awaited, what);
        WaitGuard { waiting: self.clone(), awaited }
    }

    /// Ends the wait with this key, if there is one.
    pub fn end(&self, awaited: impl Into<WaitKey>) {
        self.0.borrow_mut().remove(&awaited.into());
    }

    /// Ends all waits of steps before `step`.
    pub fn end_before(&self, step: Step) {
        let mut waits = self.0.borrow_mut();
        if waits.first_key_value().is_some_and(|(first, _)| first.step < step) {
            *waits = waits.split_off(&WaitKey::from(step));
        }
    }
}

/// A guard that ends a wait when it is dropped.
#[derive(Debug)]
pub struct WaitGuard {
    waiting: WaitHandle,
    awaited: WaitKey,
}

impl Drop for WaitGuard {
    fn drop(&mut self) {
        self.waiting.end(self.awaited);
    }
}
