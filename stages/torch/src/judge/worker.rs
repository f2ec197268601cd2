//! The generator that answers a judge's questions, on the judge's own thread or on the thread of an engine instance.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::rollout::Waker;
use tch::TchError;
use tokio::sync::oneshot;

use super::questions::{JudgeAction, JudgeAnswer, JudgeReply, Question, Questions};
use crate::model::network::Network;
use crate::rollout::colocated::ColocatedWorkload;
use crate::rollout::generator::{Capacity, EndedSequence, Generator, GeneratorError};
use crate::rollout::instance_handle::panic_message;

/// A generator that takes questions from the queue and answers them, either on the judge's own thread or as a workload of an engine
/// instance.
///
/// An error or a panic of the generator ends the judge. Dropping the worker returns the unanswered questions to the queue.
pub(super) struct JudgeWorker {
    questions: Arc<Questions>,
    generator: Generator<Box<dyn Network>>,
    /// The questions in progress, with the channels of their answers.
    open: BTreeMap<SampleId, oneshot::Sender<JudgeReply>>,
    /// The id under which the instance is registered in the queue; `None` on the judge's own thread.
    instance: Option<u64>,
}

impl JudgeWorker {
    pub(super) fn new(
        network: Box<dyn Network>,
        capacity: Capacity,
        questions: Arc<Questions>,
        instance: Option<Waker>,
    ) -> Result<Self, TchError> {
        let generator = Generator::new(network, capacity)?;
        let instance = instance.map(|waker| questions.register(waker));
        Ok(Self { questions, generator, open: BTreeMap::new(), instance })
    }

    /// Answers questions on this thread until the judge is closed.
    pub(super) fn serve(mut self) {
        let _no_grad = tch::no_grad_guard();
        loop {
            match self.questions.wait_for_action(self.generator.is_idle()) {
                JudgeAction::Answer => _ = self.step(usize::MAX),
                JudgeAction::ReturnQuestions => self.return_questions(),
                JudgeAction::End => return,
            }
        }
    }

    /// Calls `work` and returns its number of tokens. An error or a panic of the call ends the judge, and 0 is returned.
    fn catch_failure(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<usize, GeneratorError>,
    ) -> usize {
        let outcome = catch_unwind(AssertUnwindSafe(|| work(self)));
        let reason = match outcome {
            Ok(Ok(tokens)) => return tokens,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("panicked: {}", panic_message(&*panic)),
        };
        let reason = self.questions.fail(&reason);
        self.fail_open_questions(&reason);
        0
    }

    /// Removes the questions in progress whose answers are no longer needed. If the judge has failed, answers all questions in progress
    /// with the failure instead.
    fn remove_abandoned(&mut self) -> Result<(), GeneratorError> {
        if let Some(reason) = self.questions.failure() {
            self.fail_open_questions(&reason);
        }
        for (id, _ignored) in self.open.extract_if(.., |_, reply| reply.is_closed()) {
            self.generator.remove(id)?;
        }
        Ok(())
    }

    /// Returns the number of tokens that an iteration needs to advance all answers: one token for each running answer, and the tokens of the
    /// questions that wait in the generator. If no question waits there, the next question of the queue counts if there is room for it. An
    /// iteration with a larger limit may take further questions. Returns 0 if there is no work.
    fn count_pending_tokens(&mut self) -> Result<usize, GeneratorError> {
        self.remove_abandoned()?;
        let next = match self.generator.waiting_tokens() {
            0 => self.questions.next().filter(|tokens| self.generator.has_room_for(*tokens)),
            waiting_tokens => Some(waiting_tokens),
        };
        Ok(self.generator.running().len() + next.unwrap_or(0))
    }

    /// Runs one iteration of at most `max` tokens and returns the number of tokens that it processed. The running answers come first, one
    /// token each. If there are more running answers than `max`, nothing runs, because a decode step advances all running answers. The
    /// other tokens go to prompts that already wait in the generator, and then to new questions.
    fn iterate(&mut self, max: usize) -> Result<usize, GeneratorError> {
        self.remove_abandoned()?;
        let Some(new) = max.checked_sub(self.generator.running().len()) else { return Ok(0) };
        self.take_questions(new.saturating_sub(self.generator.waiting_tokens()));
        let admission = self.generator.admit_and_prefill(Nanos(0), new)?;
        let rows = self.generator.running().len();
        if rows == 0 {
            return Ok(0);
        }
        let sampled = self.generator.decode()?;
        let ended = self.generator.append_tokens(sampled)?;
        ended.into_iter().for_each(|ended| self.answer(ended));
        Ok(admission.prefilled + rows)
    }

    /// Moves questions from the queue to the generator, as long as they can start immediately and have at most `max` tokens in total.
    fn take_questions(&mut self, mut max: usize) {
        let Self { questions, generator, open, .. } = self;
        while let Some(Question { sequence, reply }) =
            questions.take_if(|tokens| tokens <= max && generator.has_room_for(tokens))
        {
            max -= sequence.tokens();
            open.insert(sequence.id, reply);
            generator.push(sequence);
        }
    }

    fn answer(&mut self, EndedSequence { sequence, reason }: EndedSequence) {
        if let Some(reply) = self.open.remove(&sequence.id) {
            let _ignored =
                reply.send(Ok(JudgeAnswer { ids: sequence.response_ids().to_vec(), reason }));
        }
    }

    /// Answers all questions in progress with a failure.
    fn fail_open_questions(&mut self, reason: &Arc<str>) {
        let _lost = self.generator.drain();
        for reply in std::mem::take(&mut self.open).into_values() {
            let _ignored = reply.send(Err(Arc::clone(reason)));
        }
    }

    /// Returns all questions to the queue and frees the memory of the KV cache.
    fn return_questions(&mut self) {
        self.requeue_questions();
        self.generator.free();
    }

    fn requeue_questions(&mut self) {
        let (sequences, _lost) = self.generator.drain();
        let question = |sequence: crate::rollout::sequence::Sequence| {
            let reply = self.open.remove(&sequence.id)?;
            Some(Question { sequence, reply })
        };
        let questions = sequences.into_iter().filter_map(question).collect();
        self.questions.requeue(questions);
    }
}

impl ColocatedWorkload for JudgeWorker {
    fn pending_tokens(&mut self) -> usize {
        self.catch_failure(Self::count_pending_tokens)
    }

    fn step(&mut self, max: usize) -> usize {
        self.catch_failure(|own| own.iterate(max))
    }
}

impl Drop for JudgeWorker {
    fn drop(&mut self) {
        if let Some(instance) = self.instance {
            self.questions.unregister(instance);
        }
        self.requeue_questions();
    }
}
