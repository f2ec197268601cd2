//! The scheduler of an instance: it decides which responses run and which wait.

use std::collections::{BTreeMap, VecDeque};

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PolicyVersion, SampleId, Tick};

use super::blocks::{BlockCopy, BlockPool, BlockTable, blocks_of};
use super::kv_cache::CacheRow;
use super::sequence::Sequence;

/// Number of blocks per running response that must be free in the KV budget after a response is admitted, so that it is not preempted right
/// away. A response that runs alone needs none.
const RESERVED_BLOCKS: usize = 1;

/// Tokens to run through the model; their keys and values go to the blocks of a running response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) tokens: Vec<i32>,
    /// The row of the running response in the batch.
    pub(super) row: usize,
}

/// The work to do before the next iteration can run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PrefillPlan {
    pub(super) prefixes: Vec<Prefix>,
    /// The block copies to make after the prefixes are computed.
    pub(super) copies: Vec<BlockCopy>,
}

/// The responses of an instance: the queue of waiting responses, and the running batch.
///
/// Responses are admitted first come, first served. A running response holds the blocks of its tokens; blocks that responses share count
/// once. While the next iteration would exceed the budget, the most recently admitted response is preempted, unless it is the only one. A
/// preempted response waits at the front of the queue and is computed again later. It keeps its tokens and its random stream.
///
/// In deterministic mode, preemption affects when tokens are sampled, but not which tokens. In other modes it may affect both: recomputed
/// cache entries may differ in their last bits, and after a load the new weights recompute the prefix.
#[derive(Debug)]
pub(super) struct Scheduler {
    max_running: usize,
    kv_blocks: usize,
    pool: BlockPool,
    waiting: VecDeque<Sequence>,
    /// The running batch, the longest response first, so that adjacent rows are of similar length. All responses grow by one token per
    /// iteration, so they stay in order.
    running: Vec<RunningResponse>,
    admissions: u64,
}

/// A response of the running batch, with its blocks and the number of its admission.
#[derive(Debug)]
struct RunningResponse {
    admission: u64,
    sequence: Sequence,
    table: BlockTable,
}

/// The origin of the cache entries of a prefix.
enum PrefixSource {
    /// The response computes the cache entries.
    Computed,
    /// The response in this row has the cache entries or computes them.
    Shared(usize),
}

impl Scheduler {
    /// Creates a scheduler that runs up to `max_running` responses with up to `kv_tokens` tokens together, rounded up to blocks of `pool`.
    pub(super) fn new(max_running: usize, kv_tokens: usize, pool: BlockPool) -> Self {
        Self {
            max_running,
            kv_blocks: blocks_of(kv_tokens),
            pool,
            waiting: VecDeque::new(),
            running: Vec::new(),
            admissions: 0,
        }
    }

    /// Sets the maximum number of tokens of the running responses together, rounded up to blocks. Responses beyond this limit are preempted
    /// before the next iteration.
    pub(super) fn set_kv_tokens(&mut self, kv_tokens: usize) {
        self.kv_blocks = blocks_of(kv_tokens);
    }

    /// Adds a response at the end of the queue.
    pub(super) fn push(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    /// Returns `true` if no response runs or waits.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Returns the running responses in the order of their rows.
    pub(super) fn running(&self) -> impl ExactSizeIterator<Item = &Sequence> {
        self.running.iter().map(|row| &row.sequence)
    }

    /// Returns the running responses in the order of their rows. Each must grow by the same number of tokens.
    pub(super) fn running_mut(&mut self) -> impl ExactSizeIterator<Item = &mut Sequence> {
        self.running.iter_mut().map(|row| &mut row.sequence)
    }

    /// Returns the cache row of the last token of every running response, in the order of [`running`](Self::running).
    pub(super) fn last_token_rows(&self) -> Vec<CacheRow> {
        let last = |row: &RunningResponse| row.table.rows([row.sequence.tokens() - 1]);
        self.running.iter().flat_map(last).collect()
    }

    pub(super) fn cache_rows<'a>(&'a self, prefix: &'a Prefix) -> impl Iterator<Item = CacheRow> {
        self.running[prefix.row].table.rows(0..prefix.tokens.len())
    }

    /// Records that the prefixes of [`plan_prefill`](Self::plan_prefill) are in the cache, computed by the weights of `version`.
    pub(super) fn mark_cached(&mut self, version: PolicyVersion) {
        for sequence in self.running_mut().filter(|sequence| sequence.cached == 0) {
            sequence.cached = sequence.tokens() - 1;
            sequence.cache_version = version;
        }
    }

    /// Preempts responses until the next iteration fits the budget; at least one keeps running. Returns the number of preempted responses.
    pub(super) fn preempt(&mut self) -> usize {
        let before = self.running.len();
        while self.held() > self.kv_blocks && self.running.len() > 1 {
            let mut sequence = self.retire(self.newest());
            sequence.preempt();
            self.waiting.push_front(sequence);
        }
        before - self.running.len()
    }

    /// Returns the tick of the response that is furthest behind; every response ends later. [`Tick::MAX`] if there are no responses.
    pub(super) fn floor(&self) -> Tick {
        self.running().chain(&self.waiting).map(Sequence::tick).min().unwrap_or(Tick::MAX)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn waiting_tokens(&self) -> usize {
        self.waiting.iter().map(Sequence::tokens).sum()
    }

    /// Returns `true` if there is a row and budget for a response of `tokens` tokens in addition to all running and waiting responses, or
    /// if there are no other responses.
    pub(super) fn has_room_for(&self, tokens: usize) -> bool {
        let waiting: usize = self.waiting.iter().map(Sequence::tokens).map(blocks_of).sum();
        self.fits(self.running.len() + self.waiting.len(), self.held() + waiting, tokens)
    }

    /// Admits waiting responses in order, up to `max` tokens in total, until the next one does not fit.
    ///
    /// Blocks that a response will share count once for each response here, and once for all from the next iteration on.
    pub(super) fn admit(&mut self, now: Nanos, mut max: usize) {
        let mut held = self.held();
        while let Some(tokens) = self.waiting.front().map(Sequence::tokens) {
            if tokens > max || !self.fits(self.running.len(), held, tokens) {
                return;
            }
            held += blocks_of(tokens);
            max -= tokens;
            self.admit_next(now);
        }
    }

    /// Returns `true` if a response of `tokens` tokens fits in addition to `others` responses that hold `held` blocks. Without other
    /// responses, it fits even if it exceeds the budget.
    fn fits(&self, others: usize, held: usize, tokens: usize) -> bool {
        let room = held + blocks_of(tokens) + RESERVED_BLOCKS * (others + 1) <= self.kv_blocks;
        others < self.max_running && (room || others == 0)
    }

    /// Removes and returns the running response in `row`.
    pub(super) fn retire(&mut self, row: usize) -> Sequence {
        self.running.remove(row).sequence
    }

    /// Removes and returns a running or waiting response; `None` if there is no response `id`.
    pub(super) fn remove(&mut self, id: SampleId) -> Option<Sequence> {
        if let Some(place) = self.waiting.iter().position(|sequence| sequence.id == id) {
            return self.waiting.remove(place);
        }
        let row = self.running().position(|sequence| sequence.id == id)?;
        Some(self.retire(row))
    }

    /// Removes and returns all responses, the running responses first, and the number of responses that lose cached tokens.
    pub(super) fn drain(&mut self) -> (Vec<Sequence>, usize) {
        let running = self.running.drain(..).map(|row| row.sequence);
        let mut all: Vec<Sequence> = running.chain(self.waiting.drain(..)).collect();
        let cached = all.iter_mut().filter(|sequence| sequence.cached > 0);
        let lost = cached.map(Sequence::preempt).count();
        (all, lost)
    }

    /// Takes blocks for the next iteration, and returns the work to do before it.
    ///
    /// Responses to the same prompt share its computation and the blocks that it fills. A response without sampled tokens shares the prompt
    /// of a running response if weights of `version` prefilled the cache of the running response; entries of other versions are not reused.
    /// Otherwise the first new response to the prompt computes it for all others. A response with sampled tokens, such as a resumed or
    /// preempted response, computes its whole prefix.
    pub(super) fn plan_prefill(&mut self, version: PolicyVersion) -> PrefillPlan {
        let mut plan = PrefillPlan::default();
        for (row, source) in self.sources(version) {
            match source {
                PrefixSource::Computed => {
                    let tokens: Vec<i32> = self.running[row].sequence.prefix().collect();
                    self.running[row].table.grow(tokens.len());
                    plan.prefixes.push(Prefix { tokens, row });
                }
                PrefixSource::Shared(donor) => {
                    let positions = self.running[row].sequence.tokens() - 1;
                    let (table, copy) = self.running[donor].table.share(positions);
                    self.running[row].table = table;
                    plan.copies.extend(copy);
                }
            }
        }
        for RunningResponse { sequence, table, .. } in &mut self.running {
            table.grow(sequence.tokens());
        }
        plan
    }

    /// Returns the rows that have a prefix of at least one token that is not in the cache, each with the source of the prefix. A row that
    /// computes a prefix comes before the rows that share it.
    fn sources(&self, version: PolicyVersion) -> Vec<(usize, PrefixSource)> {
        let mut donors: BTreeMap<&[i32], usize> = self
            .running()
            .enumerate()
            .filter(|(_, sequence)| sequence.cached > 0 && sequence.cache_version == version)
            .map(|(row, sequence)| (&*sequence.prompt_ids, row))
            .collect();
        let missing =
            |(_, sequence): &(usize, &Sequence)| sequence.cached == 0 && sequence.tokens() > 1;
        let mut sources = Vec::new();
        for (row, sequence) in self.running().enumerate().filter(missing) {
            let prompt = &*sequence.prompt_ids;
            let donor = donors.get(prompt).filter(|_| sequence.is_fresh());
            sources.push((
                row,
                donor.map_or(PrefixSource::Computed, |row| PrefixSource::Shared(*row)),
            ));
            if sequence.is_fresh() {
                donors.entry(prompt).or_insert(row);
            }
        }
        sources
    }

    /// Returns the number of blocks that the running responses need for the next iteration. The new blocks of a response that was just
    /// admitted are not shared yet, and count as its own.
    fn held(&self) -> usize {
        let missing = self.running.iter().map(|row| row.table.missing(row.sequence.tokens()));
        self.pool.used() + missing.sum::<usize>()
    }

    fn newest(&self) -> usize {
        let admissions = self.running.iter().enumerate().map(|(row, one)| (one.admission, row));
        admissions.max().expect("invariant: a response is running").1
    }

    fn admit_next(&mut self, now: Nanos) {
        let mut sequence = self.waiting.pop_front().expect("invariant: a response is waiting");
        sequence.start(now);
        let tokens = sequence.tokens();
        let row = self.running.partition_point(|other| other.sequence.tokens() >= tokens);
        let (admission, table) = (self.admissions, self.pool.table());
        self.running.insert(row, RunningResponse { admission, sequence, table });
        self.admissions += 1;
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

    fn scheduler(max_running: usize, kv_tokens: usize) -> Scheduler {
        Scheduler::new(max_running, kv_tokens, BlockPool::new(4))
    }

    /// Computes the missing prefixes and one token for each response, as an instance does.
    fn iterate(scheduler: &mut Scheduler) -> Vec<u64> {
        scheduler.preempt();
        scheduler.admit(Nanos(0), usize::MAX);
        scheduler.plan_prefill(PolicyVersion(0));
        scheduler.mark_cached(PolicyVersion(0));
        for sequence in scheduler.running_mut() {
            sequence.push(5, -1.0, PolicyVersion(0), &[]);
        }
        scheduler.running().map(|sequence| sequence.id.prompt.0).collect()
    }

    #[test]
    fn the_newest_response_is_preempted_and_resumed_first() {
        // Four blocks.
        let mut scheduler = scheduler(8, 59);
        (0..3).for_each(|prompt| scheduler.push(sequence(prompt, &[1, 2, 3, 4])));
        assert_eq!(iterate(&mut scheduler), [0, 1], "a third would leave less than a block each");
        let longest = (0..40)
            .map(|_| iterate(&mut scheduler))
            .take_while(|running| running.len() == 2)
            .count();
        assert_eq!(longest, 28, "two of 32 tokens fit the budget");
        assert_eq!(scheduler.waiting.front().map(|s| (s.id.prompt.0, s.preemptions)), Some((1, 1)));
        scheduler.remove(id(0));
        assert_eq!(iterate(&mut scheduler), [1], "33 tokens of it, and no room for the next");
        assert_eq!(scheduler.running().next().map(|s| s.preemptions), Some(1));
    }

    #[test]
    fn one_response_runs_even_over_budget() {
        let mut scheduler = scheduler(8, 3);
        scheduler.push(sequence(0, &[1; 39]));
        assert_eq!(iterate(&mut scheduler), [0]);
        assert_eq!(iterate(&mut scheduler), [0]);
    }

    #[test]
    fn rows_are_ordered_by_length() {
        let mut scheduler = scheduler(8, 1000);
        let lengths = [3, 9, 1, 9];
        (0..)
            .zip(lengths)
            .for_each(|(prompt, length)| scheduler.push(sequence(prompt, &vec![1; length])));
        assert_eq!(iterate(&mut scheduler), [1, 3, 0, 2]);
        (0..5).for_each(|_| drop(iterate(&mut scheduler)));
        scheduler.push(sequence(4, &[1; 8]));
        assert_eq!(iterate(&mut scheduler), [1, 3, 0, 4, 2]);
    }

    fn tables(scheduler: &Scheduler) -> Vec<Vec<usize>> {
        scheduler.running.iter().map(|row| row.table.numbers().collect()).collect()
    }

    #[test]
    fn samples_of_a_prompt_share_its_prefix() {
        let mut scheduler = scheduler(8, 1000);
        let prompt = |last: i32| (1..20).chain([last]).collect::<Vec<i32>>();
        (0..2).for_each(|sample| scheduler.push(sequence(sample, &prompt(7))));
        scheduler.push(sequence(2, &prompt(9)));
        scheduler.push(sequence(3, &[7]));
        scheduler.admit(Nanos(0), usize::MAX);
        let computed = |row: usize| Prefix { tokens: (1..20).collect(), row };
        let copies = vec![BlockCopy { from: 1, to: 2 }];
        let expected = PrefillPlan { prefixes: vec![computed(0), computed(2)], copies };
        assert_eq!(scheduler.plan_prefill(PolicyVersion(0)), expected);
        assert_eq!(tables(&scheduler), [vec![0, 1], vec![0, 2], vec![3, 4], vec![5]]);
        assert_eq!(scheduler.held(), 6, "the block that is shared counts once");
    }

    #[test]
    fn a_late_sample_shares_with_a_running_one_of_the_same_policy() {
        let prompt: Vec<i32> = (0..18).collect();
        let admitted = || {
            let mut scheduler = scheduler(8, 1000);
            scheduler.push(sequence(0, &prompt));
            iterate(&mut scheduler);
            scheduler.push(sequence(1, &prompt));
            scheduler.admit(Nanos(0), usize::MAX);
            scheduler
        };
        let copies = vec![BlockCopy { from: 1, to: 2 }];
        let shared = PrefillPlan { prefixes: vec![], copies };
        assert_eq!(admitted().plan_prefill(PolicyVersion(0)), shared);
        let alone = Prefix { tokens: prompt[..17].to_vec(), row: 1 };
        let computed = PrefillPlan { prefixes: vec![alone], copies: vec![] };
        assert_eq!(admitted().plan_prefill(PolicyVersion(1)), computed);
    }

    proptest! {
        #[test]
        fn budget_and_rows_are_respected_and_no_response_is_lost(
            prompts in prop::collection::vec(1..20usize, 1..30),
            max_running in 1..6usize,
            kv_tokens in 60..200usize,
            lengths in prop::collection::vec(1..40usize, 30),
        ) {
            let mut scheduler = scheduler(max_running, kv_tokens);
            for (prompt, length) in prompts.iter().enumerate() {
                scheduler.push(sequence(prompt as u64, &vec![1; *length]));
            }
            let mut done = Vec::new();
            while !scheduler.is_idle() {
                iterate(&mut scheduler);
                prop_assert!(scheduler.running.len() <= max_running);
                prop_assert!(scheduler.pool.used() <= blocks_of(kv_tokens));
                for row in (0..scheduler.running.len()).rev() {
                    let sequence = &scheduler.running[row].sequence;
                    let prompt = sequence.id.prompt.0 as usize;
                    if sequence.tokens() >= prompts[prompt] + lengths[prompt] {
                        done.push(scheduler.retire(row).id.prompt.0);
                    }
                }
            }
            prop_assert_eq!(scheduler.pool.used(), 0);
            done.sort_unstable();
            prop_assert_eq!(done, (0..prompts.len() as u64).collect::<Vec<_>>());
        }
    }
}
