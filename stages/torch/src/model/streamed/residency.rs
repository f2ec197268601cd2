//! The choice of resident layers: as many as the budget has room for in addition to the expected tokens.

use super::super::checkpoint::Scratch;
use super::super::{ModelConfig, layout};

/// The memory that a model may use on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Bytes for weights, keys and values, activations, and the reading buffers.
    pub bytes: u64,
    /// `true` to read the next layers into a second buffer while a layer computes. `false` uses one buffer, which leaves room for one more
    /// resident layer; it exists for comparison in measurements.
    pub prefetch: bool,
}

impl MemoryBudget {
    /// Returns a budget of `bytes`, with prefetch.
    #[must_use]
    pub fn of_bytes(bytes: u64) -> Self {
        Self { bytes, prefetch: true }
    }
}

/// The maximum number of tokens that a model must have room for. They use memory in addition to the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Number of KV-cache positions to reserve memory for, over all sequences, including the unused parts of chunks and the copies that
    /// attention makes.
    pub cached: u64,
    /// Number of tokens of one forward pass, which is largest when several prompts are prefilled together.
    pub pass: u64,
    /// Number of rows of one call of `logits`: the sequences that are sampled together.
    pub rows: u64,
}

const FLOAT: u64 = size_of::<f32>() as u64;

impl Demand {
    /// Returns the bytes of the keys and values, plus the larger of the activations of a pass and the logits.
    ///
    /// The activations of one layer count, in float32, with the cosines and sines of the rotation. In the feed-forward block, the widest
    /// point holds the gate and up projections with their results, three copies of the residual stream, three tensors of the size of the
    /// queries, and three of the size of the keys. In attention, it holds two copies of the residual stream and six tensors of either size,
    /// among them the rotated tensors and their inputs. Logits count three times, for the copies that sampling makes.
    #[must_use]
    pub fn bytes(&self, config: &ModelConfig) -> u64 {
        let [hidden, inner, layers, head_dim] =
            [config.hidden_size, config.intermediate_size, config.layers, config.head_dim]
                .map(count);
        let (q, kv) = (count(config.heads) * head_dim, count(config.kv_heads) * head_dim);
        let feed_forward = 3 * hidden + 3 * q + 3 * kv + 4 * inner;
        let attention = 2 * hidden + 6 * q + 6 * kv;
        let pass = self.pass * (feed_forward.max(attention) + 2 * head_dim);
        let logits = 3 * self.rows * count(config.vocab_size);
        FLOAT * (self.cached * layers * 2 * kv + pass.max(logits))
    }
}

/// The set of resident layers, and the number of buffers for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residency {
    /// `true` at the index of each resident layer.
    resident: Vec<bool>,
    buffers: usize,
    need: MemoryNeed,
}

/// The memory that a model needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Embedding, final norm and head.
    pub outer: u64,
    /// The parameters of one layer.
    pub layer: u64,
    /// The keys and values of the expected tokens, plus the larger of their activations and logits.
    pub demand: u64,
    /// Buffers for pieces that are read from the files.
    pub reading: u64,
}

impl MemoryNeed {
    /// Computes the memory of a model for `demand`, with weights in float32. Of `budget`, only `prefetch` has an effect: it doubles
    /// `reading`.
    #[must_use]
    pub fn of(config: &ModelConfig, budget: MemoryBudget, demand: Demand) -> Self {
        let layer =
            layout::layer_parameters(config).iter().map(|(_, shape)| values(shape)).sum::<u64>();
        let all = count(config.parameter_count());
        Self {
            outer: FLOAT * (all - count(config.layers) * layer),
            layer: FLOAT * layer,
            demand: demand.bytes(config),
            // The prefetching thread has its own scratch buffer.
            reading: Scratch::BYTES * if budget.prefetch { 2 } else { 1 },
        }
    }

    /// Returns the number of bytes that the model needs with `layers` layers in memory, resident or in a buffer.
    #[must_use]
    pub fn with_layers(&self, layers: usize) -> u64 {
        self.outer + self.demand + self.reading + self.layer * layers as u64
    }
}

impl Residency {
    /// Chooses as many resident layers as `budget` has room for in addition to embedding, norm, head, the tokens and the buffers
    /// (RollPacker, section 4.3).
    ///
    /// A larger budget never makes fewer layers resident. Resident layers are spread evenly, so that as much compute as possible lies
    /// between the reads of adjacent streamed layers.
    ///
    /// # Errors
    /// Returns an error with the smallest sufficient budget if `budget` is too small.
    pub fn of(
        config: &ModelConfig,
        budget: MemoryBudget,
        demand: Demand,
    ) -> Result<Self, BudgetTooSmall> {
        let need = MemoryNeed::of(config, budget, demand);
        let layers = count(config.layers) as usize;
        let buffers = if budget.prefetch { 2 } else { 1 };
        let min = need.with_layers(buffers.min(layers));
        let spare = budget.bytes.checked_sub(min).ok_or(BudgetTooSmall { need, min })?;
        // `held` counts resident layers and buffers. If it covers all layers, none is streamed and the buffers are used as layers.
        let held = buffers.min(layers) as u64 + spare / need.layer;
        if held >= layers as u64 {
            return Ok(Self { resident: vec![true; layers], buffers: 0, need });
        }
        let kept = held as usize - buffers;
        // Layer i is resident where floor(i * kept / layers) increases, which spreads `kept` layers evenly.
        let before = |layer: usize| layer * kept / layers;
        let resident = (0..layers).map(|layer| before(layer + 1) > before(layer)).collect();
        Ok(Self { resident, buffers, need })
    }

    /// Returns `true` if layer `index` is resident.
    ///
    /// # Panics
    /// Panics if the model has no layer `index`.
    #[must_use]
    pub fn is_resident(&self, index: usize) -> bool {
        self.resident[index]
    }

    /// Returns the number of resident layers.
    #[must_use]
    pub fn resident(&self) -> usize {
        self.resident.iter().filter(|resident| **resident).count()
    }

    /// Returns the indices of the layers that are not resident, in the order of the network.
    pub fn streamed(&self) -> impl Iterator<Item = usize> {
        self.resident
            .iter()
            .enumerate()
            .filter_map(|(index, resident)| (!resident).then_some(index))
    }

    /// Returns the number of buffers for streamed layers; 0 if all layers are resident.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.buffers
    }

    /// Returns the bytes that the model uses, the expected tokens included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.need.with_layers(self.resident() + self.buffers)
    }

    /// Returns the memory that the model needs, by purpose.
    #[must_use]
    pub fn need(&self) -> MemoryNeed {
        self.need
    }
}

/// The error of a budget that has no room for embedding, norm, head, the tokens and the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetTooSmall {
    /// The memory that the model needs, by purpose.
    pub need: MemoryNeed,
    /// The smallest sufficient budget, in bytes.
    pub min: u64,
}

fn values(shape: &[i64]) -> u64 {
    shape.iter().map(|&size| count(size)).product()
}

/// Converts a size of a configuration, which must be positive, to an unsigned number.
fn count(size: i64) -> u64 {
    size.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::config;
    use super::*;

    fn residency(layers: i64, held: u64, prefetch: bool) -> Residency {
        let config = config(layers);
        let budget = MemoryBudget { bytes: 0, prefetch };
        let bytes = MemoryNeed::of(&config, budget, Demand::default()).with_layers(held as usize);
        Residency::of(&config, MemoryBudget { bytes, prefetch }, Demand::default()).unwrap()
    }

    fn check(layers: i64, held: u64, resident: &[usize], buffers: usize) {
        let found = residency(layers, held, true);
        let indices: Vec<usize> =
            (0..layers as usize).filter(|&index| found.is_resident(index)).collect();
        assert_eq!((indices.as_slice(), found.buffers()), (resident, buffers));
    }

    #[test]
    fn resident_layers_are_spread_evenly() {
        check(6, 2, &[], 2);
        check(6, 3, &[5], 2);
        check(6, 4, &[2, 5], 2);
        check(6, 5, &[1, 3, 5], 2);
        check(6, 6, &[0, 1, 2, 3, 4, 5], 0);
        check(6, 60, &[0, 1, 2, 3, 4, 5], 0);
        check(8, 4, &[3, 7], 2);
    }

    #[test]
    fn without_prefetch_one_buffer_is_a_layer_more() {
        let found = residency(6, 3, false);
        assert_eq!((found.resident(), found.buffers()), (2, 1));
        assert_eq!(residency(6, 3, true).resident(), 1);
    }

    #[test]
    fn a_model_of_few_layers_needs_no_buffers() {
        check(1, 1, &[0], 0);
        check(2, 2, &[0, 1], 0);
    }

    #[test]
    fn a_budget_that_is_too_small_names_the_minimum() {
        let config = config(6);
        let demand = Demand { cached: 100, pass: 10, rows: 4 };
        let refused = Residency::of(&config, MemoryBudget::of_bytes(1000), demand).unwrap_err();
        let min = MemoryBudget::of_bytes(refused.min);
        assert_eq!(Residency::of(&config, min, demand).unwrap().resident(), 0);
        let less = MemoryBudget::of_bytes(refused.min - 1);
        assert_eq!(Residency::of(&config, less, demand).unwrap_err(), refused);
    }

    #[test]
    fn sizes_are_those_of_the_configuration() {
        let config = config(6);
        let need = MemoryNeed::of(&config, MemoryBudget::of_bytes(0), Demand::default());
        assert_eq!(need.outer + 6 * need.layer, 4 * config.parameter_count() as u64);
        let kv = |cached| Demand { cached, ..Demand::default() }.bytes(&config);
        assert_eq!(kv(10), 10 * 4 * 2 * (config.layers * config.kv_heads * config.head_dim) as u64);
    }

    fn any_demand() -> impl Strategy<Value = Demand> {
        (0..5000_u64, 0..500_u64, 0..100_u64).prop_map(|(cached, pass, rows)| Demand {
            cached,
            pass,
            rows,
        })
    }

    proptest! {
        #[test]
        fn a_larger_budget_keeps_no_fewer_layers_and_is_never_exceeded(
            layers in 1..40_i64,
            bytes in 0..6_000_000_u64,
            more in 0..500_000_u64,
            prefetch: bool,
            demand in any_demand(),
        ) {
            let config = config(layers);
            let of = |bytes| Residency::of(&config, MemoryBudget { bytes, prefetch }, demand);
            let Ok(small) = of(bytes) else { return Ok(()) };
            let large = of(bytes + more).unwrap();
            prop_assert!(small.bytes() <= bytes);
            prop_assert!(large.resident() >= small.resident());
            prop_assert_eq!(small.streamed().count() + small.resident(), layers as usize);
            // One more layer would not have fitted.
            prop_assert!(small.buffers() == 0 || small.bytes() + small.need().layer > bytes);
        }

        #[test]
        fn more_tokens_never_keep_more(demand in any_demand(), more in any_demand()) {
            let config = config(12);
            let both = Demand {
                cached: demand.cached + more.cached,
                pass: demand.pass + more.pass,
                rows: demand.rows + more.rows,
            };
            let of = |demand| Residency::of(&config, MemoryBudget::of_bytes(5_000_000), demand);
            if let (Ok(fewer), Ok(more)) = (of(demand), of(both)) {
                prop_assert!(more.resident() <= fewer.resident());
            }
        }

        #[test]
        fn streamed_layers_are_never_bunched(layers in 3..40_i64, held in 2..40_u64) {
            let found = residency(layers, held, true);
            let resident: Vec<usize> =
                (0..layers as usize).filter(|&index| found.is_resident(index)).collect();
            let gaps = resident.windows(2).map(|pair| pair[1] - pair[0]);
            let (min, max) = gaps.fold((usize::MAX, 0), |(a, b), gap| (a.min(gap), b.max(gap)));
            prop_assert!(resident.len() < 2 || max - min <= 1);
        }
    }
}
