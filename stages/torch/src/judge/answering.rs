//! The worker that answers a judge's questions on one thread.

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
use crate::rollout::generator::{Capacity, Ended, Generator, GeneratorError};
use crate::rollout::owner::panic_message;

/// A generator that takes questions from the queue and answers them, either on the judge's own thread or as a workload of an engine
/// instance.
///
/// An error in it ends the judge. When dropped, it returns its unanswered questions to the queue.
pub(super) struct Answering {
    questions: Arc<Questions>,
    generator: Generator<Box<dyn Network>>,
    /// The questions in progress, with the channels of their answers.
    open: BTreeMap<SampleId, oneshot::Sender<JudgeReply>>,
    /// The id of the host; `None` for the judge's own thread.
    instance: Option<u64>,
}

impl Answering {
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
            match self.questions.turn(self.generator.is_idle()) {
                JudgeAction::Answer => _ = self.step(usize::MAX),
                JudgeAction::GiveBack => self.give_back(),
                JudgeAction::End => return,
            }
        }
    }

    /// Calls `work`. An error or a panic of the call ends the judge.
    fn guarded(&mut self, work: impl FnOnce(&mut Self) -> Result<usize, GeneratorError>) -> usize {
        let outcome = catch_unwind(AssertUnwindSafe(|| work(self)));
        let reason = match outcome {
            Ok(Ok(tokens)) => return tokens,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("panicked: {}", panic_message(&*panic)),
        };
        let reason = self.questions.fail(&reason);
        self.give_up(&reason);
        0
    }

    /// Removes the questions whose answers are no longer needed, or all questions if the judge has failed.
    fn settle(&mut self) -> Result<(), GeneratorError> {
        if let Some(reason) = self.questions.failure() {
            self.give_up(&reason);
        }
        for (id, _ignored) in self.open.extract_if(.., |_, reply| reply.is_closed()) {
            self.generator.remove(id)?;
        }
        Ok(())
    }

    /// Returns the number of tokens that the next iteration would process: those of the running answers, and of the next question if there
    /// is room for it.
    fn wanted(&mut self) -> Result<usize, GeneratorError> {
        self.settle()?;
        let next = match self.generator.in_line() {
            0 => self.questions.next().filter(|tokens| self.generator.has_room_for(*tokens)),
            in_line => Some(in_line),
        };
        Ok(self.generator.running().len() + next.unwrap_or(0))
    }

    // Runs one iteration of at most `most` tokens and returns the number of tokens that it processed. The running answers come first, one
    // token each: if they alone exceed the allowance, nothing runs, since a decode step advances all of them. The rest of the allowance
    // goes to prompts that already wait in the generator, and then to new questions.
    fn iterate(&mut self, most: usize) -> Result<usize, GeneratorError> {
        self.settle()?;
        let Some(new) = most.checked_sub(self.generator.running().len()) else { return Ok(0) };
        self.take_questions(new.saturating_sub(self.generator.in_line()));
        let taken_up = self.generator.take_up(Nanos(0), new)?;
        let rows = self.generator.running().len();
        if rows == 0 {
            return Ok(0);
        }
        let sampled = self.generator.decode()?;
        let ended = self.generator.take_in(sampled)?;
        ended.into_iter().for_each(|ended| self.answer(ended));
        Ok(taken_up.prefilled + rows)
    }

    /// Takes questions that can start at once and have up to `most` tokens in total.
    fn take_questions(&mut self, mut most: usize) {
        let Self { questions, generator, open, .. } = self;
        while let Some(Question { sequence, reply }) =
            questions.take_if(|tokens| tokens <= most && generator.has_room_for(tokens))
        {
            most -= sequence.tokens();
            open.insert(sequence.id, reply);
            generator.push(sequence);
        }
    }

    fn answer(&mut self, Ended { sequence, reason }: Ended) {
        if let Some(reply) = self.open.remove(&sequence.id) {
            let _ignored =
                reply.send(Ok(JudgeAnswer { ids: sequence.response_ids().to_vec(), reason }));
        }
    }

    /// Answers all questions in progress with a failure.
    fn give_up(&mut self, reason: &Arc<str>) {
        let _lost = self.generator.give_up();
        for reply in std::mem::take(&mut self.open).into_values() {
            let _ignored = reply.send(Err(Arc::clone(reason)));
        }
    }

    /// Returns all questions to the queue and frees the memory of the KV cache.
    fn give_back(&mut self) {
        self.put_back();
        self.generator.free();
    }

    fn put_back(&mut self) {
        let (sequences, _lost) = self.generator.give_up();
        let question = |sequence: crate::rollout::sequence::Sequence| {
            let reply = self.open.remove(&sequence.id)?;
            Some(Question { sequence, reply })
        };
        let questions = sequences.into_iter().filter_map(question).collect();
        self.questions.give_back(questions);
    }
}

impl ColocatedWorkload for Answering {
    fn pending_tokens(&mut self) -> usize {
        self.guarded(Self::wanted)
    }

    fn step(&mut self, most: usize) -> usize {
        self.guarded(|own| own.iterate(most))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if let Some(instance) = self.instance {
            self.questions.unregister(instance);
        }
        self.put_back();
    }
}
