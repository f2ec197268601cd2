//! The line of questions to a judge, between those who ask and those who answer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rollpacker_dataflow::step::{PromptId, SampleId};
use tokio::sync::oneshot;

use crate::rollout::sampling::{RandomStream, Sampling};
use crate::rollout::sequence::Sequence;
use crate::rollout::{FinishReason, Waker};

/// What was answered.
#[derive(Debug)]
pub(super) struct Answer {
    /// The tokens.
    pub(super) ids: Vec<i32>,
    /// Why they end.
    pub(super) reason: FinishReason,
}

/// The answer, or why there is and will be none.
pub(super) type Reply = Result<Answer, Arc<str>>;

/// A question, with what has been answered of it so far.
pub(super) struct Question {
    pub(super) sequence: Sequence,
    /// Closed when the answer is no longer wanted.
    pub(super) reply: oneshot::Sender<Reply>,
}

/// The questions that nobody answers yet, in order.
///
/// The instances of an engine that have [entered](Self::enter) answer them, or else the judge's own thread. Once the judge has failed,
/// every question has the failure for an answer.
#[derive(Default)]
pub(super) struct Questions {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Question>,
    /// Instances that answer, with what wakes them.
    hosts: BTreeMap<u64, Waker>,
    asked: u64,
    entered: u64,
    failure: Option<Arc<str>>,
    closed: bool,
}

/// What the judge's own thread is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Answer.
    Answer,
    /// Give back what it has: instances answer.
    GiveBack,
    /// End.
    End,
}

impl Questions {
    /// Puts a question at the end of the line; where its answer will be.
    pub(super) fn ask(
        &self,
        prompt_ids: Arc<[i32]>,
        sampling: Sampling,
        stream: RandomStream,
    ) -> Result<oneshot::Receiver<Reply>, Arc<str>> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(Arc::clone(failure));
        }
        let id = SampleId { prompt: PromptId(state.asked), ..SampleId::default() };
        state.asked += 1;
        let (reply, answer) = oneshot::channel();
        let sequence = Sequence::new(id, prompt_ids, sampling, stream);
        state.waiting.push_back(Question { sequence, reply });
        self.wake(state);
        Ok(answer)
    }

    /// Puts questions back at the head of the line, in the order in which they were asked.
    pub(super) fn give_back(&self, mut questions: Vec<Question>) {
        let mut state = self.lock();
        if let Some(failure) = state.failure.clone() {
            return refuse(questions, &failure);
        }
        questions.sort_by_key(|question| question.sequence.id);
        questions.into_iter().rev().for_each(|question| state.waiting.push_front(question));
        self.wake(state);
    }

    /// Tokens of the next question, if there is one.
    pub(super) fn next(&self) -> Option<usize> {
        self.lock().next().map(|question| question.sequence.tokens())
    }

    /// Takes the next question if it `fits`, told its tokens.
    pub(super) fn take_if(&self, fits: impl FnOnce(usize) -> bool) -> Option<Question> {
        let mut state = self.lock();
        if fits(state.next()?.sequence.tokens()) { state.waiting.pop_front() } else { None }
    }

    /// An instance answers from now on; `waker` tells it of questions. Returns what it [leaves](Self::leave) by.
    pub(super) fn enter(&self, waker: Waker) -> u64 {
        let mut state = self.lock();
        state.entered += 1;
        let host = state.entered;
        state.hosts.insert(host, waker);
        self.wake(state);
        host
    }

    /// An instance answers no more.
    pub(super) fn leave(&self, host: u64) {
        let mut state = self.lock();
        state.hosts.remove(&host);
        self.wake(state);
    }

    /// Whether an instance answers.
    pub(super) fn is_hosted(&self) -> bool {
        !self.lock().hosts.is_empty()
    }

    /// Why there are no answers any more.
    pub(super) fn failure(&self) -> Option<Arc<str>> {
        self.lock().failure.clone()
    }

    /// Ends the judge; the first reason stays.
    pub(super) fn fail(&self, reason: &str) -> Arc<str> {
        let mut state = self.lock();
        let reason = Arc::clone(state.failure.get_or_insert_with(|| reason.into()));
        refuse(std::mem::take(&mut state.waiting), &reason);
        self.wake(state);
        reason
    }

    /// Nobody asks any more.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.wake(state);
    }

    /// Blocks the judge's own thread until it has something to do; `idle`: it has nothing under way.
    pub(super) fn turn(&self, idle: bool) -> Turn {
        let mut state = self.lock();
        loop {
            if state.closed {
                return Turn::End;
            }
            match (state.hosts.is_empty(), idle) {
                (true, false) => return Turn::Answer,
                (true, true) if state.next().is_some() => return Turn::Answer,
                (false, false) => return Turn::GiveBack,
                _ => {}
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has whoever answers look at the line.
    fn wake(&self, state: MutexGuard<'_, State>) {
        let hosts: Vec<Waker> = state.hosts.values().cloned().collect();
        drop(state);
        self.changed.notify_all();
        hosts.iter().for_each(|wake| wake());
    }
}

impl State {
    /// The next question whose answer is wanted; forgets those before it.
    fn next(&mut self) -> Option<&Question> {
        while self.waiting.pop_front_if(|question| question.reply.is_closed()).is_some() {}
        self.waiting.front()
    }
}

fn refuse(questions: impl IntoIterator<Item = Question>, failure: &Arc<str>) {
    for question in questions {
        let _unwanted = question.reply.send(Err(Arc::clone(failure)));
    }
}
