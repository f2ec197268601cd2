//! The token generator: a network, its KV cache and its running batch.

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PolicyVersion, SampleId, Tick};
use tch::{TchError, Tensor};

use super::FinishReason;
use super::blocks::{BLOCK, blocks_of};
use super::grouping::Grouping;
use super::kv_cache::{CacheRow, KvCache};
use super::passes::{Passes, Rows};
use super::sampler::{Sampled, Sampler};
use super::scheduler::{PrefillPlan, Prefix, Scheduler};
use super::sequence::{Sequence, TokenDraw};
use crate::model::kernel_threads;
use crate::model::network::{LARGE_PASS, Network};
use crate::model::packed::Packing;
use crate::model::streamed::Demand;

/// Continuous batching over a network: sequences are added and are returned when they end.
///
/// The generator has no commands, events or clock; a rollout instance, a serving instance and a judge each wrap one. An iteration consists
/// of [`admit_and_prefill`](Self::admit_and_prefill), [`decode`](Self::decode) and [`append_tokens`](Self::append_tokens), in this order.
/// Outside deterministic mode, [`logits`](Self::logits) and [`sample`](Self::sample) can replace `decode`.
pub(crate) struct Generator<N> {
    network: N,
    version: PolicyVersion,
    cache: KvCache,
    sampler: Sampler,
    scheduler: Scheduler,
    /// The passes of deterministic mode, in which tokens must not depend on the other sequences in the batch; `None` in the default mode.
    passes: Option<Passes>,
}

/// The limits on the sequences of a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// Maximum number of sequences that run at once.
    pub(crate) max_running: usize,
    /// Maximum number of tokens that the running sequences hold in the KV cache together, rounded up to blocks.
    pub(crate) kv_cache_tokens: usize,
    /// Maximum number of tokens of a sequence, prompt and response together.
    pub(crate) token_limit: usize,
}

impl Capacity {
    /// Returns the numbers of tokens and rows that a network must have memory for in addition to its weights: in the KV cache, in the
    /// largest prefill pass, and when the running sequences are sampled together. Cached tokens count twice. The reasons are that memory is
    /// allocated in whole chunks of blocks, of which the last may be partly unused, and that attention copies the keys and values of one
    /// layer at a time.
    pub(crate) fn demand(&self) -> Demand {
        let Self { max_running, kv_cache_tokens, token_limit } = *self;
        let pass = LARGE_PASS.max(token_limit).min(kv_cache_tokens);
        let max =
            blocks_of(token_limit).saturating_mul(max_running).min(blocks_of(kv_cache_tokens));
        let cached = max.saturating_mul(2 * BLOCK);
        // Each running sequence holds at least one block.
        let rows = max_running.min(blocks_of(kv_cache_tokens));
        Demand { cached: cached as u64, pass: pass as u64, rows: rows as u64 }
    }
}

/// The work of one call of [`Generator::admit_and_prefill`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AdmissionWork {
    /// Number of preempted sequences, which must be computed again.
    pub(crate) preempted: usize,
    /// Number of prefilled tokens, each of which was run through the network.
    pub(crate) prefilled: usize,
}

/// A sequence that has ended by itself, not by an abort.
#[derive(Debug)]
pub(crate) struct EndedSequence {
    pub(crate) sequence: Sequence,
    pub(crate) reason: FinishReason,
}

/// The error that stops a generator.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GeneratorError {
    #[error("{}", .0.to_string().lines().next().unwrap_or_default())]
    Torch(#[from] TchError),
    #[error("the log-probability of a token of {id} is not finite under policy {version}")]
    NotFinite { id: SampleId, version: PolicyVersion },
}

impl<N: Network> Generator<N> {
    /// Creates a generator without sequences, whose network has the weights of version 0.
    pub(crate) fn new(network: N, capacity: Capacity) -> Result<Self, TchError> {
        let Capacity { max_running, kv_cache_tokens, .. } = capacity;
        let (model, device) = (network.config(), network.device());
        let cache = KvCache::new(model, kv_cache_tokens, device);
        Ok(Self {
            sampler: Sampler::new(model.vocab_size, &model.eos_token_ids, device)?,
            scheduler: Scheduler::new(max_running, kv_cache_tokens, cache.pool().clone()),
            cache,
            version: PolicyVersion(0),
            passes: None,
            network,
        })
    }

    /// Creates a generator that computes bit-identical tokens independent of the rest of the batch. `passes` must be invariant on this
    /// machine.
    pub(crate) fn invariant(
        network: N,
        capacity: Capacity,
        passes: Passes,
    ) -> Result<Self, TchError> {
        Ok(Self { passes: Some(passes), ..Self::new(network, capacity)? })
    }

    pub(crate) fn network(&self) -> &N {
        &self.network
    }

    /// Returns the network. Call [`set_version`](Self::set_version) after loading other weights into it.
    pub(crate) fn network_mut(&mut self) -> &mut N {
        &mut self.network
    }

    /// Sets the version of the weights from the next iteration on. The cache is kept.
    pub(crate) fn set_version(&mut self, version: PolicyVersion) {
        self.version = version;
    }

    /// Sets the maximum number of tokens that the running sequences hold in the KV cache together.
    pub(crate) fn set_kv_cache_tokens(&mut self, tokens: usize) {
        self.scheduler.set_kv_tokens(tokens);
    }

    /// Adds a sequence at the end of the queue.
    pub(crate) fn push(&mut self, sequence: Sequence) {
        self.scheduler.push(sequence);
    }

    /// Returns the floor, a tick that precedes the end of every sequence. Returns [`Tick::MAX`] if there are no sequences.
    pub(super) fn floor(&self) -> Tick {
        self.scheduler.floor()
    }

    /// Returns `true` if no sequence runs or waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// Returns the running sequences in the order of their rows.
    pub(crate) fn running(&self) -> impl ExactSizeIterator<Item = &Sequence> {
        self.scheduler.running()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.scheduler.waiting()
    }

    pub(crate) fn waiting_tokens(&self) -> usize {
        self.scheduler.waiting_tokens()
    }

    /// Returns `true` if there is a row and KV budget for a sequence of `tokens` tokens in addition to all running and waiting sequences,
    /// or if there are no other sequences.
    pub(crate) fn has_room_for(&self, tokens: usize) -> bool {
        self.scheduler.has_room_for(tokens)
    }

    /// Preempts sequences that exceed the KV budget, admits waiting sequences that fit and have at most `max` tokens together, and prefills
    /// the prefixes that are not in the cache. `now` is recorded as the start of a sequence that is admitted for the first time.
    pub(crate) fn admit_and_prefill(
        &mut self,
        now: Nanos,
        max: usize,
    ) -> Result<AdmissionWork, GeneratorError> {
        let preempted = self.scheduler.preempt();
        self.scheduler.admit(now, max);
        let PrefillPlan { prefixes, copies } = self.scheduler.plan_prefill(self.version);
        self.cache.fit()?;
        let prefilled = match self.passes {
            Some(passes) => prefixes
                .iter()
                .map(|prefix| self.prefill_in_passes(passes, prefix))
                .sum::<Result<_, _>>()?,
            None => kernel_threads::with_libtorch_threads(|| {
                let max = self.network.max_pass_tokens();
                packs(&prefixes, max)
                    .into_iter()
                    .map(|pack| self.prefill(pack))
                    .sum::<Result<_, _>>()
            })?,
        };
        copies.into_iter().try_for_each(|copy| self.cache.copy(copy))?;
        self.scheduler.mark_cached(self.version);
        Ok(AdmissionWork { preempted, prefilled })
    }

    /// Samples the next token of every running sequence. At least one sequence must be running.
    pub(crate) fn decode(&mut self) -> Result<Sampled, GeneratorError> {
        kernel_threads::with_polling_threads(|| self.decode_batch())
    }

    fn decode_batch(&mut self) -> Result<Sampled, GeneratorError> {
        if let Some(passes) = self.passes {
            let tokens: Vec<i32> = self.running().map(Sequence::last_token).collect();
            let (cache_rows, draws) = (self.scheduler.last_token_rows(), self.draws());
            return self.decode_in_passes(
                passes,
                &Rows { tokens: &tokens, cache_rows: &cache_rows },
                &draws,
            );
        }
        let logits = self.logits()?;
        self.sample(&logits)
    }

    /// Returns the logits of the next token of every running sequence, `[n, vocab]`, in the order of [`running`](Self::running). At least
    /// one sequence must be running.
    pub(crate) fn logits(&mut self) -> Result<Tensor, GeneratorError> {
        let ids: Vec<i64> = self.running().map(Sequence::last_token).map(i64::from).collect();
        let cache_rows = self.scheduler.last_token_rows();
        let (ids, positions) = (self.tensor(&ids)?, self.positions(&cache_rows)?);
        let Self { network, cache, .. } = self;
        let mut pass = cache.pass(&cache_rows, Grouping::on(network.device()))?;
        let hidden = network.forward(&ids, &positions, &mut |layer, q, k, v| {
            pass.write(layer, k, v)?;
            pass.attend(layer, q)
        })?;
        Ok(network.logits(&hidden)?)
    }

    /// Samples the next token of every running sequence from `logits [n, vocab]`. Call this once per iteration, because it advances the
    /// random streams.
    pub(crate) fn sample(&mut self, logits: &Tensor) -> Result<Sampled, GeneratorError> {
        let draws = self.draws();
        Ok(self.sampler.sample(logits, &draws)?)
    }

    fn draws(&mut self) -> Vec<TokenDraw> {
        self.scheduler.running_mut().map(Sequence::draw).collect()
    }

    /// Decodes as [`decode`](Self::decode) does, in the passes of deterministic mode. Padding rows repeat the draw of the pass's last row;
    /// their tokens are dropped.
    fn decode_in_passes(
        &mut self,
        passes: Passes,
        rows: &Rows<'_>,
        draws: &[TokenDraw],
    ) -> Result<Sampled, GeneratorError> {
        let Self { network, cache, sampler, .. } = self;
        let mut sampled = Sampled::default();
        passes.run(network, cache, rows, |network, hidden, part| {
            let rows = part.len();
            let mut draws = draws[part].to_vec();
            draws.resize(passes.padded(rows), draws[rows - 1]);
            sampled.extend(sampler.sample(&network.logits(&hidden)?, &draws)?, rows);
            Ok(())
        })?;
        Ok(sampled)
    }

    /// Appends the sampled tokens to the running sequences. Removes and returns the sequences that end with their new token, ordered by id.
    /// Returns an error if a log-probability is not finite.
    pub(crate) fn append_tokens(
        &mut self,
        sampled: Sampled,
    ) -> Result<Vec<EndedSequence>, GeneratorError> {
        let eos = &self.network.config().eos_token_ids;
        let mut ended = Vec::new();
        let tokens = sampled.tokens.into_iter().zip(sampled.logprobs);
        for (row, (sequence, (token, logprob))) in
            self.scheduler.running_mut().zip(tokens).enumerate()
        {
            if !logprob.is_finite() {
                let (id, version) = (sequence.id, self.version);
                return Err(GeneratorError::NotFinite { id, version });
            }
            let end = sequence.push(token as i32, logprob, self.version, eos);
            ended.extend(end.map(|reason| (row, reason)));
        }
        self.retire(&ended)
    }

    /// Removes and returns a running or waiting sequence; `None` if there is no sequence `id`.
    pub(crate) fn remove(&mut self, id: SampleId) -> Result<Option<Sequence>, GeneratorError> {
        let removed = self.scheduler.remove(id);
        self.cache.fit()?;
        Ok(removed)
    }

    /// Removes and returns all sequences, the running sequences first, and the number of sequences that lose cached tokens.
    pub(crate) fn drain(&mut self) -> (Vec<Sequence>, usize) {
        self.scheduler.drain()
    }

    /// Frees the memory of the cache. No sequence may be running.
    pub(crate) fn free(&mut self) {
        self.cache.clear();
    }

    /// Computes prefixes in one forward pass. Returns the number of tokens that were run through the network.
    fn prefill(&mut self, prefixes: &[Prefix]) -> Result<usize, TchError> {
        let ids: Vec<i64> =
            prefixes.iter().flat_map(|prefix| &prefix.tokens).copied().map(i64::from).collect();
        let lengths: Vec<i64> = prefixes.iter().map(|prefix| prefix.tokens.len() as i64).collect();
        let packing = Packing::new(&lengths, ids.len() as i64)?;
        let cache_rows: Vec<CacheRow> =
            prefixes.iter().flat_map(|prefix| self.scheduler.cache_rows(prefix)).collect();
        let tokens = ids.len();
        let (ids, positions) = (self.tensor(&ids)?, self.positions(&cache_rows)?);
        let Self { network, cache, .. } = self;
        let mut pass = cache.pass(&cache_rows, Grouping::Similar)?;
        let _hidden = network.forward(&ids, &positions, &mut |layer, q, k, v| {
            pass.write(layer, k, v)?;
            packing.attend(q, k, v)
        })?;
        Ok(tokens)
    }

    /// Prefills one prefix as [`prefill`](Self::prefill) does, in the passes of deterministic mode.
    fn prefill_in_passes(&mut self, passes: Passes, prefix: &Prefix) -> Result<usize, TchError> {
        let cache_rows: Vec<CacheRow> = self.scheduler.cache_rows(prefix).collect();
        let rows = Rows { tokens: &prefix.tokens, cache_rows: &cache_rows };
        passes.run(&mut self.network, &mut self.cache, &rows, |_, _hidden, _| Ok(()))?;
        Ok(cache_rows.len())
    }

    /// Removes the sequences of the given rows, which must be in ascending order. Returns the sequences ordered by id.
    fn retire(
        &mut self,
        ended: &[(usize, FinishReason)],
    ) -> Result<Vec<EndedSequence>, GeneratorError> {
        // In descending order, because removing a row moves only later ones.
        let sequences = ended.iter().rev().map(|(row, reason)| EndedSequence {
            sequence: self.scheduler.retire(*row),
            reason: *reason,
        });
        let mut sequences: Vec<EndedSequence> = sequences.collect();
        if !sequences.is_empty() {
            self.cache.fit()?;
        }
        sequences.sort_by_key(|ended| ended.sequence.id);
        Ok(sequences)
    }

    fn positions(&self, cache_rows: &[CacheRow]) -> Result<Tensor, TchError> {
        let positions: Vec<i64> = cache_rows.iter().map(|row| row.position() as i64).collect();
        self.tensor(&positions)
    }

    fn tensor(&self, numbers: &[i64]) -> Result<Tensor, TchError> {
        Tensor::f_from_slice(numbers)?.f_to_device(self.network.device())
    }
}

/// Splits prefixes into runs of at most `max` tokens. A longer prefix is a run of its own.
fn packs(prefixes: &[Prefix], max: usize) -> Vec<&[Prefix]> {
    let mut packs = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (at, prefix) in prefixes.iter().enumerate() {
        tokens += prefix.tokens.len();
        if tokens > max && at > start {
            packs.push(&prefixes[start..at]);
            (start, tokens) = (at, prefix.tokens.len());
        }
    }
    packs.extend((start < prefixes.len()).then(|| &prefixes[start..]));
    packs
}

#[cfg(test)]
mod tests;
