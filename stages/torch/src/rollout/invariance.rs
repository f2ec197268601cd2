//! Tests whether this machine computes bit-identical logits independent of the rest of the batch.
//!
//! The kernel of a matrix product and its order of summation depend on the machine and its libraries. Therefore invariance is measured, not
//! assumed, with the network that will run and in the shapes that it will use. One sequence is computed in passes of every size. Then its
//! last tokens are computed one by one, and some of its tokens together, each in another sequence with the same tokens.

use tch::{Kind, TchError, Tensor};

use super::blocks::BlockTable;
use super::grouping::EXTENT;
use super::kv_cache::{CacheRow, KvCache};
use super::passes::{Passes, Rows};
use crate::model::network::Network;

/// Ways to split rows into passes, the fastest first. The first allows every multiple of 8 up to 64 rows; the second has a single size, for
/// machines whose kernels depend on the number of rows.
const CANDIDATES: [Passes; 2] =
    [Passes { unit: 8, max: 64, slack: EXTENT }, Passes { unit: 16, max: 16, slack: 0 }];

/// Number of tokens of the test sequence: some tokens attend to one extent of the cache, the others to two.
const TOKENS: usize = EXTENT + ALONE;

/// Number of tokens at the end of the test sequence that are computed alone.
const ALONE: usize = 8;

/// The reason why generation cannot be deterministic on this machine.
#[derive(Debug, thiserror::Error)]
pub enum InvarianceError {
    /// The logits of a token are not bit-identical.
    #[error(
        "the kernels of this machine compute the logits of a token differently {circumstances}; deterministic generation needs them equal"
    )]
    Bits {
        /// The circumstances of the two computations, such as `in passes of 8 and of 64 rows`.
        circumstances: String,
    },
    /// A libtorch operation of the test failed.
    #[error("cannot test the kernels of this machine: {}", .0.to_string().lines().next().unwrap_or_default())]
    Torch(#[from] TchError),
}

/// Returns the fastest way of splitting rows into passes for which `network` computes bit-identical logits on this thread, independent of
/// the rest of the batch.
///
/// # Errors
/// Returns an error if no candidate gives bit-identical logits, or the network cannot be run.
pub(super) fn select_passes<N: Network>(network: &mut N) -> Result<Passes, InvarianceError> {
    let _no_grad = tch::no_grad_guard();
    let mut refused = None;
    for passes in CANDIDATES {
        match Trial::new(network, passes)?.run() {
            Err(InvarianceError::Bits { circumstances }) => {
                tracing::debug!(?passes, circumstances, "these passes are not invariant");
                refused = Some(InvarianceError::Bits { circumstances });
            }
            other => return other.map(|()| passes),
        }
    }
    Err(refused.expect("invariant: at least one choice of passes is tried"))
}

/// A test sequence and its reference logits.
struct Trial<'a, N> {
    network: &'a mut N,
    cache: KvCache,
    /// The blocks of each sequence of the trial. The sequences share no blocks.
    tables: Vec<BlockTable>,
    passes: Passes,
    tokens: Vec<i32>,
    /// The reference logits, `[TOKENS, vocab]`.
    logits: Tensor,
}

const SEQUENCES: usize = 4;

impl<'a, N: Network> Trial<'a, N> {
    fn new(network: &'a mut N, passes: Passes) -> Result<Self, TchError> {
        let mut cache = KvCache::new(network.config(), SEQUENCES * TOKENS, network.device());
        let mut tables: Vec<_> = (0..SEQUENCES).map(|_| cache.pool().table()).collect();
        tables.iter_mut().for_each(|table| table.grow(TOKENS));
        cache.fit()?;
        let vocab = network.config().vocab_size;
        let tokens = (0..TOKENS as i64).map(|at| ((at * 7919 + 13) % vocab) as i32).collect();
        let logits = Tensor::f_empty([0], (Kind::Float, network.device()))?;
        Ok(Self { network, cache, tables, passes, tokens, logits })
    }

    fn run(mut self) -> Result<(), InvarianceError> {
        let Passes { unit, max, .. } = self.passes;
        self.logits = self.prefix(0, max)?;
        for size in (unit..=max).step_by(unit) {
            let found = self.prefix(1, size)?;
            self.compare(&found, 0..TOKENS, &format!("in passes of {size} and of {max} rows"))?;
        }
        // All sequences have the same tokens. The rows below then overwrite cache entries with the same values.
        for sequence in 1..SEQUENCES {
            let _same_logits = self.prefix(sequence, max)?;
        }
        for position in TOKENS - ALONE..TOKENS {
            let found = self.rows(&[position])?;
            self.compare(&found, [position], "alone and with others of its sequence")?;
        }
        let positions = [TOKENS - 1, EXTENT, EXTENT / 2, 3];
        let found = self.rows(&positions)?;
        self.compare(&found, positions, "with other sequences")
    }

    /// Computes the logits of all tokens of a sequence in passes of at most `size` rows.
    fn prefix(&mut self, sequence: usize, size: usize) -> Result<Tensor, TchError> {
        let cache_rows: Vec<CacheRow> = self.tables[sequence].rows(0..TOKENS).collect();
        let tokens = self.tokens.clone();
        let passes = Passes { max: size, ..self.passes };
        self.compute(passes, &Rows { tokens: &tokens, cache_rows: &cache_rows })
    }

    /// Computes the logits of the tokens at `positions`, each in another sequence of the trial.
    fn rows(&mut self, positions: &[usize]) -> Result<Tensor, TchError> {
        let tokens: Vec<i32> = positions.iter().map(|position| self.tokens[*position]).collect();
        let cache_rows = self.tables.iter().zip(positions);
        let cache_rows: Vec<CacheRow> =
            cache_rows.flat_map(|(table, position)| table.rows([*position])).collect();
        self.compute(self.passes, &Rows { tokens: &tokens, cache_rows: &cache_rows })
    }

    fn compute(&mut self, passes: Passes, rows: &Rows<'_>) -> Result<Tensor, TchError> {
        let mut all = Vec::new();
        passes.run(self.network, &mut self.cache, rows, |network, hidden, part| {
            all.push(network.logits(&hidden)?.f_narrow(0, 0, part.len() as i64)?);
            Ok(())
        })?;
        Tensor::f_cat(&all, 0)
    }

    /// Returns an error unless `found` is bit-identical to the reference logits at `positions`. Zeros of different sign differ, and NaNs
    /// with the same bits are equal.
    fn compare(
        &self,
        found: &Tensor,
        positions: impl IntoIterator<Item = usize>,
        circumstances: &str,
    ) -> Result<(), InvarianceError> {
        let positions: Vec<i64> = positions.into_iter().map(|position| position as i64).collect();
        let positions = Tensor::f_from_slice(&positions)?.f_to_device(self.network.device())?;
        let expected = self.logits.f_index_select(0, &positions)?;
        let bits = |tensor: &Tensor| tensor.f_view_dtype(Kind::Int);
        if bits(found)?.f_equal(&bits(&expected)?)? {
            return Ok(());
        }
        Err(InvarianceError::Bits { circumstances: circumstances.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use rollpacker_model::ModelConfig;
    use tch::Device;

    use super::*;
    use crate::model::Decoder;
    use crate::model::network::Attend;

    /// A decoder on a machine with inexact kernels: the error of each logit depends on the index of its row and on the number of rows of
    /// the pass.
    struct Machine {
        decoder: Decoder,
        error: fn(place: i64, rows: i64) -> f32,
    }

    impl Network for Machine {
        fn config(&self) -> &ModelConfig {
            self.decoder.config()
        }

        fn device(&self) -> Device {
            Device::Cpu
        }

        fn forward(
            &mut self,
            ids: &Tensor,
            positions: &Tensor,
            attend: &mut Attend<'_>,
        ) -> Result<Tensor, TchError> {
            self.decoder.forward(ids, positions, attend)
        }

        fn logits(&mut self, hidden: &Tensor) -> Result<Tensor, TchError> {
            let rows = hidden.size2()?.0;
            let errors: Vec<f32> = (0..rows).map(|place| (self.error)(place, rows)).collect();
            self.decoder.logits(hidden)?.f_add(&Tensor::f_from_slice(&errors)?.f_unsqueeze(1)?)
        }
    }

    fn passes_where(error: fn(i64, i64) -> f32) -> Result<Passes, String> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/llama_untied");
        let decoder = Decoder::load(folder.as_ref(), Device::Cpu).unwrap();
        select_passes(&mut Machine { decoder, error }).map_err(|error| error.to_string())
    }

    #[test]
    fn kernels_that_round_alike_may_take_any_number_of_rows() {
        tch::set_num_threads(1);
        assert_eq!(passes_where(|_, _| 0.0), Ok(CANDIDATES[0]));
    }

    #[test]
    fn kernels_that_are_chosen_by_the_number_of_rows_get_one_number() {
        tch::set_num_threads(1);
        assert_eq!(passes_where(|_, rows| rows as f32), Ok(CANDIDATES[1]));
    }

    #[test]
    fn kernels_that_round_by_position_are_refused() {
        tch::set_num_threads(1);
        let refusal = passes_where(|place, _| if place == 7 { 1.0 } else { 0.0 }).unwrap_err();
        assert!(refusal.contains("differently alone and with others"), "{refusal}");
    }
}
