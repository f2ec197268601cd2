//! Whether this machine computes a token to the same bits in whatever company.
//!
//! Which kernel a matrix product takes, and in which order it sums, is a matter of the machine and its libraries. So it is not assumed but
//! seen, with the network that is to run and in the shapes that it will run in: one sequence is computed in passes of every size, and its
//! last tokens alone, and beside others.

use tch::{Kind, TchError, Tensor};

use super::kv_cache::{Extent, KvCache};
use super::passes::{EXTENT, Passes, Rows, Slots};
use super::scheduler::Copy;
use crate::model::network::Network;

/// Ways to cut passes, the fastest first. The first takes any number of rows; the second has one size, for kernels that
/// are chosen by the number of rows.
const WAYS: [Passes; 2] =
    [Passes { unit: 8, most: 64, slack: EXTENT }, Passes { unit: 16, most: 16, slack: 0 }];

/// Tokens of the sequence that is computed: some see one extent of the cache, some two.
const TOKENS: usize = EXTENT + ALONE;

/// Tokens that are computed alone.
const ALONE: usize = 8;

/// Why there is no way.
#[derive(Debug, thiserror::Error)]
pub enum Variance {
    /// Logits of a token are not the same to the bit.
    #[error(
        "the kernels of this machine compute the logits of a token differently {company}; deterministic generation needs them equal"
    )]
    Company {
        /// Beside what.
        company: String,
    },
    /// The network cannot be run.
    #[error("cannot try the kernels of this machine: {}", .0.to_string().lines().next().unwrap_or_default())]
    Torch(#[from] TchError),
}

/// The fastest way of cutting passes in which `network` computes the same bits on this thread, whatever is beside.
///
/// # Errors
/// If there is none, or the network cannot be run.
pub(super) fn passes<N: Network>(network: &mut N) -> Result<Passes, Variance> {
    let _no_grad = tch::no_grad_guard();
    let mut refused = None;
    for passes in WAYS {
        match Trial::new(network, passes)?.run() {
            Err(Variance::Company { company }) => {
                tracing::debug!(?passes, company, "these passes are not invariant");
                refused = Some(Variance::Company { company });
            }
            other => return other.map(|()| passes),
        }
    }
    Err(refused.expect("invariant: there are ways"))
}

/// A sequence, and its logits as first computed.
struct Trial<'a, N> {
    network: &'a mut N,
    cache: KvCache,
    passes: Passes,
    tokens: Vec<i32>,
    /// `[TOKENS, vocab]`
    logits: Tensor,
}

/// Slots of a trial.
const SLOTS: usize = 4;

impl<'a, N: Network> Trial<'a, N> {
    fn new(network: &'a mut N, passes: Passes) -> Result<Self, TchError> {
        let capacity = TOKENS.next_multiple_of(EXTENT);
        let extent = Extent { slots: SLOTS as i64, capacity: capacity as i64 };
        let mut cache = KvCache::new(network.config(), extent, network.device())?;
        cache.reserve(SLOTS, capacity)?;
        let vocab = network.config().vocab_size;
        let tokens = (0..TOKENS as i64).map(|at| ((at * 7919 + 13) % vocab) as i32).collect();
        let logits = Tensor::f_empty([0], (Kind::Float, network.device()))?;
        Ok(Self { network, cache, passes, tokens, logits })
    }

    fn run(mut self) -> Result<(), Variance> {
        let Passes { unit, most, .. } = self.passes;
        self.logits = self.prefix(0, most)?;
        for size in (unit..=most).step_by(unit) {
            let found = self.prefix(1, size)?;
            self.compare(&found, 0..TOKENS, &format!("in passes of {size} and of {most} rows"))?;
        }
        // All but the last tokens are copied, and what is computed writes the rest again.
        (1..SLOTS).try_for_each(|to| self.cache.copy(Copy { from: 0, to, positions: TOKENS }))?;
        for position in TOKENS - ALONE..TOKENS {
            let found = self.rows(&[position])?;
            self.compare(&found, [position], "alone and beside others of its sequence")?;
        }
        let positions = [TOKENS - 1, EXTENT, EXTENT / 2, 3];
        let found = self.rows(&positions)?;
        self.compare(&found, positions, "beside other sequences")
    }

    /// Logits of the sequence, computed in passes of `size` into a slot.
    fn prefix(&mut self, slot: usize, size: usize) -> Result<Tensor, TchError> {
        let positions: Vec<usize> = (0..TOKENS).collect();
        let tokens = self.tokens.clone();
        let passes = Passes { most: size, ..self.passes };
        self.compute(
            passes,
            &Rows { tokens: &tokens, positions: &positions, slots: Slots::In(slot) },
        )
    }

    /// Logits of the tokens at `positions`, each in a slot of its own.
    fn rows(&mut self, positions: &[usize]) -> Result<Tensor, TchError> {
        let tokens: Vec<i32> = positions.iter().map(|position| self.tokens[*position]).collect();
        self.compute(self.passes, &Rows { tokens: &tokens, positions, slots: Slots::From(0) })
    }

    fn compute(&mut self, passes: Passes, rows: &Rows<'_>) -> Result<Tensor, TchError> {
        let mut all = Vec::new();
        passes.run(self.network, &mut self.cache, rows, |network, hidden, part| {
            all.push(network.logits(&hidden)?.f_narrow(0, 0, part.len() as i64)?);
            Ok(())
        })?;
        Tensor::f_cat(&all, 0)
    }

    /// Compares bits, so that zeros of either sign differ and numbers that are none do not.
    fn compare(
        &self,
        found: &Tensor,
        positions: impl IntoIterator<Item = usize>,
        company: &str,
    ) -> Result<(), Variance> {
        let positions: Vec<i64> = positions.into_iter().map(|position| position as i64).collect();
        let positions = Tensor::f_from_slice(&positions)?.f_to_device(self.network.device())?;
        let expected = self.logits.f_index_select(0, &positions)?;
        let bits = |tensor: &Tensor| tensor.f_view_dtype(Kind::Int);
        if bits(found)?.f_equal(&bits(&expected)?)? {
            return Ok(());
        }
        Err(Variance::Company { company: company.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::model::network::Attend;
    use crate::model::{Decoder, ModelConfig};

    /// A decoder on a machine of bad kernels: each logit is off by what its row's place, and the rows of its pass, make of it.
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
        passes(&mut Machine { decoder, error }).map_err(|variance| variance.to_string())
    }

    #[test]
    fn kernels_that_round_alike_may_take_any_number_of_rows() {
        tch::set_num_threads(1);
        assert_eq!(passes_where(|_, _| 0.0), Ok(WAYS[0]));
    }

    #[test]
    fn kernels_that_are_chosen_by_the_number_of_rows_get_one_number() {
        tch::set_num_threads(1);
        assert_eq!(passes_where(|_, rows| rows as f32), Ok(WAYS[1]));
    }

    #[test]
    fn kernels_that_round_by_place_are_refused() {
        tch::set_num_threads(1);
        let refusal = passes_where(|place, _| if place == 7 { 1.0 } else { 0.0 }).unwrap_err();
        assert!(refusal.contains("differently alone and beside others"), "{refusal}");
    }
}
