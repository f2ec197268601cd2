//! The scheduler of an instance: it decides which responses run and which wait.

use std::collections::{BTreeMap, VecDeque};

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PolicyVersion, SampleId, Tick};

use super::batch::{Move, RunningBatch};
use super::sequence::Sequence;

/// Number of decode iterations for which the KV budget must have room before a response is admitted, so that it is not preempted right
/// away.
const ROOM_ITERATIONS: usize = 16;

/// A copy of the first `positions` of one slot of the cache to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) positions: usize,
}

/// Tokens to run through the model once; their keys and values are written to each of `slots`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) tokens: Vec<i32>,
    pub(super) slots: Vec<usize>,
}

/// The responses of an instance: the waiting ones, in order, and the running batch.
///
/// Responses are admitted first come, first served. A running response holds one token of KV cache for each of its tokens. When the next
/// iteration would exceed the budget, the most recently admitted response is preempted: it waits at the front of the queue and is computed
/// again later. It keeps its tokens and its random stream, so preemption affects when its tokens are sampled, but not which tokens.
#[derive(Debug)]
pub(super) struct Scheduler {
    max_running: usize,
    kv_tokens: usize,
    waiting: VecDeque<Sequence>,
    running: RunningBatch<RunningResponse>,
    admissions: u64,
}

/// A response of the running batch, with the number of its admission.
#[derive(Debug)]
struct RunningResponse {
    admission: u64,
    sequence: Sequence,
}

impl Scheduler {
    /// Creates a scheduler that runs up to `max_running` responses with up to `kv_tokens` tokens together.
    pub(super) fn new(max_running: usize, kv_tokens: usize) -> Self {
        Self {
            max_running,
            kv_tokens,
            waiting: VecDeque::new(),
            running: RunningBatch::default(),
            admissions: 0,
        }
    }

    /// Adds a response at the end of the queue.
    pub(super) fn push(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    /// Returns `true` if no response runs or waits.
    pub(super) fn is_idle(&self) -> bool {
        self.running.len() == 0 && self.waiting.is_empty()
    }

    /// Returns the running responses in the order of their slots.
    pub(super) fn running(&self) -> impl ExactSizeIterator<Item = &Sequence> {
        self.running.iter().map(|row| &row.sequence)
    }

    /// Returns the running responses in the order of their slots. Their lengths must not be changed.
    pub(super) fn running_mut(&mut self) -> impl ExactSizeIterator<Item = &mut Sequence> {
        self.running.iter_mut().map(|row| &mut row.sequence)
    }

    /// Records that every running response has grown by one token.
    pub(super) fn grown(&mut self) {
        self.running.grown();
    }

    /// Records that the prefixes of [`prefixes`](Self::prefixes) are in the cache, computed by the weights of `version`.
    pub(super) fn cached(&mut self, version: PolicyVersion) {
        for sequence in self.running_mut().filter(|sequence| sequence.cached == 0) {
            sequence.cached = sequence.tokens() - 1;
            sequence.cached_by = version;
        }
    }

    /// Preempts responses until the next iteration fits the budget; at least one keeps running. Returns the number of preempted responses
    /// and appends the moves of the cache to `copies`.
    pub(super) fn preempt(&mut self, copies: &mut Vec<Copy>) -> usize {
        let before = self.running.len();
        let mut held = self.held();
        while held > self.kv_tokens && self.running.len() > 1 {
            let mut sequence = self.retire(self.newest(), copies);
            held -= sequence.tokens();
            sequence.preempt();
            self.waiting.push_front(sequence);
        }
        before - self.running.len()
    }

    /// Returns the tick of the response that is furthest behind; every response ends later.
    pub(super) fn floor(&self) -> Tick {
        self.running().chain(&self.waiting).map(Sequence::tick).min().unwrap_or(Tick::MAX)
    }

    /// Returns the number of waiting responses.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of tokens of the waiting responses.
    pub(super) fn in_line(&self) -> usize {
        self.waiting.iter().map(Sequence::tokens).sum()
    }

    /// Returns `true` if there is a slot and budget for a response of `tokens` tokens in addition to all running and waiting ones.
    pub(super) fn has_room_for(&self, tokens: usize) -> bool {
        self.fits(self.running.len() + self.waiting.len(), self.held() + self.in_line(), tokens)
    }

    /// Admits waiting responses of up to `most` tokens together while there are slots and budget.
    pub(super) fn admit(&mut self, now: Nanos, mut most: usize, copies: &mut Vec<Copy>) {
        let mut held = self.held();
        while let Some(tokens) = self.waiting.front().map(Sequence::tokens) {
            if tokens > most || !self.fits(self.running.len(), held, tokens) {
                return;
            }
            held += tokens;
            most -= tokens;
            self.take_up(now, copies);
        }
    }

    /// Returns `true` if a response of `tokens` tokens fits in addition to `others` responses that hold `held` tokens.
    fn fits(&self, others: usize, held: usize, tokens: usize) -> bool {
        let room = held + tokens + ROOM_ITERATIONS * (others + 1) <= self.kv_tokens;
        others < self.max_running && (room || others == 0)
    }

    /// Removes the running response in `slot`.
    pub(super) fn retire(&mut self, slot: usize, copies: &mut Vec<Copy>) -> Sequence {
        let (row, moves) = self.running.remove(slot);
        self.follow(&moves, copies);
        row.sequence
    }

    /// Removes a response, running or waiting.
    pub(super) fn remove(&mut self, id: SampleId, copies: &mut Vec<Copy>) -> Option<Sequence> {
        if let Some(place) = self.waiting.iter().position(|sequence| sequence.id == id) {
            return self.waiting.remove(place);
        }
        let slot = self.running().position(|sequence| sequence.id == id)?;
        Some(self.retire(slot, copies))
    }

    /// Removes all responses, the running ones first. Also returns how many of them lose cached tokens.
    pub(super) fn clear(&mut self) -> (Vec<Sequence>, usize) {
        let running = std::mem::take(&mut self.running).into_iter().map(|row| row.sequence);
        let mut all: Vec<Sequence> = running.chain(self.waiting.drain(..)).collect();
        let cached = all.iter_mut().filter(|sequence| sequence.cached > 0);
        let lost = cached.map(Sequence::preempt).count();
        (all, lost)
    }

    /// Returns the prefixes to compute and the copies to make before the next iteration can run.
    ///
    /// Responses to the same prompt share its computation. A response without tokens copies the prompt from a running response if weights
    /// of `version` computed that cache; entries of other versions are not reused. Otherwise the first new response to the prompt computes
    /// it for all others. A resumed or preempted response has tokens of its own and computes its whole prefix.
    pub(super) fn prefixes(&self, version: PolicyVersion) -> (Vec<Prefix>, Vec<Copy>) {
        let donors: BTreeMap<&[i32], usize> = self
            .running()
            .enumerate()
            .filter(|(_, sequence)| sequence.cached > 0 && sequence.cached_by == version)
            .map(|(slot, sequence)| (&*sequence.prompt_ids, slot))
            .collect();
        let mut copies = Vec::new();
        let mut shared = BTreeMap::<&[i32], usize>::new();
        let mut prefixes = Vec::<Prefix>::new();
        let missing =
            |(_, sequence): &(usize, &Sequence)| sequence.cached == 0 && sequence.tokens() > 1;
        for (slot, sequence) in self.running().enumerate().filter(missing) {
            let prompt = &*sequence.prompt_ids;
            if let Some(from) = donors.get(prompt).filter(|_| sequence.is_fresh()) {
                copies.push(Copy { from: *from, to: slot, positions: prompt.len() - 1 });
            } else if let Some(prefix) = shared.get(prompt).filter(|_| sequence.is_fresh()) {
                prefixes[*prefix].slots.push(slot);
            } else {
                if sequence.is_fresh() {
                    shared.insert(prompt, prefixes.len());
                }
                prefixes.push(Prefix { tokens: sequence.prefix().collect(), slots: vec![slot] });
            }
        }
        (prefixes, copies)
    }

    fn held(&self) -> usize {
        self.running().map(Sequence::tokens).sum()
    }

    fn newest(&self) -> usize {
        let admissions = self.running.iter().enumerate().map(|(slot, row)| (row.admission, slot));
        admissions.max().expect("invariant: a response is running").1
    }

    fn take_up(&mut self, now: Nanos, copies: &mut Vec<Copy>) {
        let mut sequence = self.waiting.pop_front().expect("invariant: a response is waiting");
        sequence.start(now);
        let length = sequence.tokens();
        let moves =
            self.running.insert(RunningResponse { admission: self.admissions, sequence }, length);
        self.admissions += 1;
        self.follow(&moves, copies);
    }

    fn follow(&self, moves: &[Move], copies: &mut Vec<Copy>) {
        copies.extend(moves.iter().map(|Move { from, to }| Copy {
            from: *from,
            to: *to,
            positions: self.running[*to].sequence.cached,
        }));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rollpacker_dataflow::step::PromptId;

    use super::super::sampling::{RandomStream, Sampling};
    use super::*;

    fn id(prompt: u64) -> SampleId {
        SampleId { prompt: PromptId(prompt), ..SampleId::default() }
    }

    fn sequence(prompt: u64, prompt_ids: &[i32]) -> Sequence {
        let (endless, stream) =
            (Sampling::unrestricted(u32::MAX), RandomStream::new(0, id(prompt)));
        Sequence::new(id(prompt), Arc::from(prompt_ids), endless, stream)
    }

    /// Computes the missing prefixes and one token for each response, as an instance does.
    fn iterate(scheduler: &mut Scheduler) -> Vec<u64> {
        let mut copies = Vec::new();
        scheduler.preempt(&mut copies);
        scheduler.admit(Nanos(0), usize::MAX, &mut copies);
        scheduler.cached(PolicyVersion(0));
        for sequence in scheduler.running_mut() {
            sequence.push(5, -1.0, PolicyVersion(0), &[]);
        }
        scheduler.grown();
        scheduler.running().map(|sequence| sequence.id.prompt.0).collect()
    }

    #[test]
    fn the_newest_is_given_up_and_comes_back_first() {
        let mut scheduler = Scheduler::new(8, 59);
        (0..3).for_each(|prompt| scheduler.push(sequence(prompt, &[1, 2, 3, 4])));
        assert_eq!(
            iterate(&mut scheduler),
            [0, 1],
            "a third would leave room for fewer than 16 iterations"
        );
        let longest = (0..40)
            .map(|_| iterate(&mut scheduler))
            .take_while(|running| running.len() == 2)
            .count();
        assert_eq!(longest, 25, "two of 29 tokens fit the budget");
        assert_eq!(scheduler.waiting.front().map(|s| (s.id.prompt.0, s.preemptions)), Some((1, 1)));
        scheduler.remove(id(0), &mut Vec::new());
        assert_eq!(iterate(&mut scheduler), [1], "30 tokens of it, and no room for the next");
        assert_eq!(scheduler.running().next().map(|s| s.preemptions), Some(1));
    }

    #[test]
    fn one_response_runs_even_over_budget() {
        let mut scheduler = Scheduler::new(8, 3);
        scheduler.push(sequence(0, &[1; 9]));
        assert_eq!(iterate(&mut scheduler), [0]);
        assert_eq!(iterate(&mut scheduler), [0]);
    }

    #[test]
    fn samples_of_a_prompt_share_its_prefix() {
        let mut scheduler = Scheduler::new(8, 1000);
        (0..2).for_each(|prompt| scheduler.push(sequence(prompt, &[1, 2, 3])));
        scheduler.push(sequence(2, &[1, 2, 9]));
        scheduler.push(sequence(3, &[7]));
        scheduler.admit(Nanos(0), usize::MAX, &mut Vec::new());
        let expected = vec![
            Prefix { tokens: vec![1, 2], slots: vec![0, 1] },
            Prefix { tokens: vec![1, 2], slots: vec![2] },
        ];
        assert_eq!(scheduler.prefixes(PolicyVersion(0)), (expected, vec![]));
    }

    #[test]
    fn a_late_sample_copies_from_a_running_one_of_the_same_policy() {
        let mut scheduler = Scheduler::new(8, 1000);
        scheduler.push(sequence(0, &[1, 2, 3]));
        iterate(&mut scheduler);
        scheduler.push(sequence(1, &[1, 2, 3]));
        scheduler.admit(Nanos(0), usize::MAX, &mut Vec::new());
        let copy = Copy { from: 0, to: 1, positions: 2 };
        assert_eq!(scheduler.prefixes(PolicyVersion(0)), (vec![], vec![copy]));
        let alone = Prefix { tokens: vec![1, 2], slots: vec![1] };
        assert_eq!(scheduler.prefixes(PolicyVersion(1)), (vec![alone], vec![]));
    }

    proptest! {
        #[test]
        fn budget_and_slots_hold_and_nothing_is_lost(
            prompts in prop::collection::vec(1..20usize, 1..30),
            max_running in 1..6usize,
            kv_tokens in 60..200usize,
            lengths in prop::collection::vec(1..40usize, 30),
        ) {
            let mut scheduler = Scheduler::new(max_running, kv_tokens);
            for (prompt, length) in prompts.iter().enumerate() {
                scheduler.push(sequence(prompt as u64, &vec![1; *length]));
            }
            let mut done = Vec::new();
            while !scheduler.is_idle() {
                let mut copies = Vec::new();
                scheduler.preempt(&mut copies);
                scheduler.admit(Nanos(0), usize::MAX, &mut copies);
                prop_assert!(scheduler.running.len() <= max_running);
                prop_assert!(scheduler.held() <= kv_tokens);
                iterate(&mut scheduler);
                for slot in (0..scheduler.running.len()).rev() {
                    let sequence = &scheduler.running[slot].sequence;
                    let prompt = sequence.id.prompt.0 as usize;
                    if sequence.tokens() >= prompts[prompt] + lengths[prompt] {
                        done.push(scheduler.retire(slot, &mut copies).id.prompt.0);
                    }
                }
            }
            done.sort_unstable();
            prop_assert_eq!(done, (0..prompts.len() as u64).collect::<Vec<_>>());
        }
    }
}
