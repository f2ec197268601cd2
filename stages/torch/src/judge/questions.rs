//! The queue of questions to a judge.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rollpacker_dataflow::step::{PromptId, SampleId};
use rollpacker_stages::rollout::sampling::{RandomStream, Sampling};
use rollpacker_stages::rollout::{FinishReason, Waker};
use tokio::sync::oneshot;

use crate::rollout::sequence::Sequence;

/// The answer to a question, before it is decoded.
#[derive(Debug)]
pub(super) struct JudgeAnswer {
    /// The token ids of the answer, including its end token if there is one.
    pub(super) ids: Vec<i32>,
    pub(super) reason: FinishReason,
}

/// The reply to a question: the answer, or the reason why the judge has failed.
pub(super) type JudgeReply = Result<JudgeAnswer, Arc<str>>;

/// A question, with the tokens of its answer generated so far.
pub(super) struct Question {
    pub(super) sequence: Sequence,
    /// The channel of the answer. It is closed when the caller no longer needs the answer.
    pub(super) reply: oneshot::Sender<JudgeReply>,
}

/// The questions that wait to be answered, in order.
///
/// They are answered by the engine instances that are [registered](Self::register) as hosts, or by the judge's own thread while no instance
/// is registered. Once the judge has failed, every question is answered with the failure.
#[derive(Default)]
pub(super) struct Questions {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<Question>,
    /// The instances that answer questions, each with its waker.
    instances: BTreeMap<u64, Waker>,
    /// The number that identifies the next question, counted from 0.
    next_id: u64,
    /// The id of the instance that was registered last; 0 before the first.
    last_instance: u64,
    /// The reason why the judge has failed; `None` while it works.
    failure: Option<Arc<str>>,
    /// `true` once the judge's own thread must end.
    closed: bool,
}

/// The next action of the judge's own thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JudgeAction {
    Answer,
    /// Returns all questions to the queue, because an instance answers them.
    ReturnQuestions,
    End,
}

impl Questions {
    /// Appends a question. Returns the channel on which its answer arrives, or the failure of the judge if it has failed.
    pub(super) fn push(
        &self,
        prompt_ids: Arc<[i32]>,
        sampling: Sampling,
        stream: RandomStream,
    ) -> Result<oneshot::Receiver<JudgeReply>, Arc<str>> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(Arc::clone(failure));
        }
        let id = SampleId { prompt: PromptId(state.next_id), ..SampleId::default() };
        state.next_id += 1;
        let (reply, answer) = oneshot::channel();
        let sequence = Sequence::new(id, prompt_ids, sampling, stream);
        state.waiting.push_back(Question { sequence, reply });
        self.wake(state);
        Ok(answer)
    }

    /// Puts questions back at the front of the queue, in the order of their arrival. If the judge has failed, answers them with the failure
    /// instead.
    pub(super) fn requeue(&self, mut questions: Vec<Question>) {
        let mut state = self.lock();
        if let Some(failure) = state.failure.clone() {
            return fail_questions(questions, &failure);
        }
        questions.sort_by_key(|question| question.sequence.id);
        questions.into_iter().rev().for_each(|question| state.waiting.push_front(question));
        self.wake(state);
    }

    /// Returns the number of tokens of the next question: of its prompt, and of its answer so far. Returns `None` if no question waits.
    pub(super) fn next(&self) -> Option<usize> {
        self.lock().next().map(|question| question.sequence.tokens())
    }

    /// Takes the next question if `fits` returns `true` for its number of tokens. Returns `None` if it does not, or if no question waits.
    pub(super) fn take_if(&self, fits: impl FnOnce(usize) -> bool) -> Option<Question> {
        let mut state = self.lock();
        if fits(state.next()?.sequence.tokens()) { state.waiting.pop_front() } else { None }
    }

    /// Registers an instance as a host. `waker` is called when a question arrives, and may be called when there is none. Returns the id for
    /// [`unregister`](Self::unregister).
    pub(super) fn register(&self, waker: Waker) -> u64 {
        let mut state = self.lock();
        state.last_instance += 1;
        let instance = state.last_instance;
        state.instances.insert(instance, waker);
        self.wake(state);
        instance
    }

    /// Unregisters the instance with the id `instance`. If no instance remains, the judge's own thread answers the questions.
    pub(super) fn unregister(&self, instance: u64) {
        let mut state = self.lock();
        state.instances.remove(&instance);
        self.wake(state);
    }

    /// Returns `true` if an instance is registered as a host.
    #[cfg(test)]
    pub(super) fn has_instances(&self) -> bool {
        !self.lock().instances.is_empty()
    }

    pub(super) fn failure(&self) -> Option<Arc<str>> {
        self.lock().failure.clone()
    }

    /// Ends the judge with the failure `reason`, unless it has failed before, and answers all waiting questions with the first failure.
    /// Returns the first failure.
    pub(super) fn fail(&self, reason: &str) -> Arc<str> {
        let mut state = self.lock();
        let reason = Arc::clone(state.failure.get_or_insert_with(|| reason.into()));
        fail_questions(std::mem::take(&mut state.waiting), &reason);
        self.wake(state);
        reason
    }

    /// Ends the judge's own thread after its current iteration.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.wake(state);
    }

    /// Blocks the judge's own thread until it has to act, and returns the action. `idle` is `true` if the thread has no question in
    /// progress.
    pub(super) fn wait_for_action(&self, idle: bool) -> JudgeAction {
        let mut state = self.lock();
        loop {
            if state.closed {
                return JudgeAction::End;
            }
            match (state.instances.is_empty(), idle) {
                (true, false) => return JudgeAction::Answer,
                (true, true) if state.next().is_some() => return JudgeAction::Answer,
                (false, false) => return JudgeAction::ReturnQuestions,
                _ => {}
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the judge's own thread and all hosts. Releases the lock first, because a waker may lock the queue again.
    fn wake(&self, state: MutexGuard<'_, QueueState>) {
        let instances: Vec<Waker> = state.instances.values().cloned().collect();
        drop(state);
        self.changed.notify_all();
        instances.iter().for_each(|wake| wake());
    }
}

impl QueueState {
    /// Returns the next question whose answer is still needed, and removes the questions before it.
    fn next(&mut self) -> Option<&Question> {
        while self.waiting.pop_front_if(|question| question.reply.is_closed()).is_some() {}
        self.waiting.front()
    }
}

fn fail_questions(questions: impl IntoIterator<Item = Question>, failure: &Arc<str>) {
    for question in questions {
        let _ignored = question.reply.send(Err(Arc::clone(failure)));
    }
}
