//! Keys and values of the running responses, and attention over them.

use std::ops::Range;

use rollpacker_model::ModelConfig;
use tch::{Device, Kind, TchError, Tensor};

use super::batch::runs;
use super::passes::Slots;
use super::scheduler::{Copy, Prefix};

/// Number of positions of a slot that are allocated first.
const FIRST_CAPACITY: i64 = 64;

/// Keys and values of the sequences in the slots, `[layers, 2, slots, kv_heads, capacity, head_dim]` in one allocation.
///
/// Slots in use are `0..n`, so that attention reads views of the memory. Slots and capacity grow on demand by doubling, up to the limits.
/// Every slot has the capacity of the longest sequence so far.
#[derive(Debug)]
pub(super) struct KvCache {
    memory: Tensor,
    layers: Vec<KeysValues>,
    shape: CacheShape,
    limit: Extent,
    /// `[capacity]`, int64: 0, 1, ...
    places: Tensor,
    device: Device,
}

/// A number of slots, and the positions of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) slots: i64,
    pub(super) capacity: i64,
}

/// The dimensions of the cache, from which the size of its memory follows.
#[derive(Clone, Copy, Debug)]
struct CacheShape {
    layers: i64,
    heads: i64,
    kv_heads: i64,
    head_dim: i64,
    extent: Extent,
}

/// The keys and values of a layer, `[slots, kv_heads, capacity, head_dim]` each; views of the cache's memory.
#[derive(Debug)]
struct KeysValues {
    keys: Tensor,
    values: Tensor,
}

/// The plan of a pass with one token per row: where each row writes, and what it attends to. It is the same for every layer.
#[derive(Debug)]
pub(super) struct DecodePlan {
    /// `[n * kv_heads]`, int64: row indices into the flattened memory.
    targets: Tensor,
    /// Number of rows; padding rows beyond it are not read.
    rows: i64,
    runs: Vec<AttentionRun>,
}

/// Adjacent rows of similar length, which attend together.
#[derive(Debug)]
struct AttentionRun {
    rows: Range<i64>,
    /// One slot for each row, or one slot for all rows.
    slots: Range<i64>,
    /// Number of positions that the rows attend to, including masked ones.
    longest: i64,
    /// `[rows, 1, 1, longest]`: 0 where a row has a token, otherwise minus infinity. `None` if all rows are equally long.
    mask: Option<Tensor>,
}

impl KvCache {
    /// Creates a cache that grows up to `limit`.
    pub(super) fn new(
        config: &ModelConfig,
        limit: Extent,
        device: Device,
    ) -> Result<Self, TchError> {
        let shape = CacheShape {
            layers: config.layers,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            extent: limit.first(),
        };
        Self::empty(shape, limit, device)
    }

    /// Frees the memory. Nothing is cached afterwards.
    pub(super) fn clear(&mut self) -> Result<(), TchError> {
        let shape = CacheShape { extent: self.limit.first(), ..self.shape };
        *self = Self::empty(shape, self.limit, self.device)?;
        Ok(())
    }

    fn empty(shape: CacheShape, limit: Extent, device: Device) -> Result<Self, TchError> {
        let memory = shape.allocate(device)?;
        let layers = shape.layers(&memory)?;
        Ok(Self { memory, layers, shape, limit, places: places(shape.extent, device)?, device })
    }

    /// Makes room for `slots` sequences of up to `capacity` tokens.
    pub(super) fn reserve(&mut self, slots: usize, capacity: usize) -> Result<(), TchError> {
        let Extent { slots: had_slots, capacity: had_capacity } = self.shape.extent;
        let extent = Extent {
            slots: grown(had_slots, slots as i64, self.limit.slots),
            capacity: grown(had_capacity, capacity as i64, self.limit.capacity),
        };
        if extent == self.shape.extent {
            return Ok(());
        }
        self.shape.extent = extent;
        let memory = self.shape.allocate(self.device)?;
        memory.f_narrow(2, 0, had_slots)?.f_narrow(4, 0, had_capacity)?.f_copy_(&self.memory)?;
        self.layers = self.shape.layers(&memory)?;
        self.memory = memory;
        self.places = places(extent, self.device)?;
        Ok(())
    }

    /// Copies the first positions of a slot to another, in all layers.
    pub(super) fn copy(&mut self, Copy { from, to, positions }: Copy) -> Result<(), TchError> {
        if positions == 0 {
            return Ok(());
        }
        let slot =
            |slot: usize| self.memory.f_select(2, slot as i64)?.f_narrow(3, 0, positions as i64);
        slot(to)?.f_copy_(&slot(from)?)
    }

    /// Computes the attention of whole prefixes that are concatenated, and writes their keys and values to the slots.
    ///
    /// Maps q `[n, heads, head_dim]`, k and v `[n, kv_heads, head_dim]` to `[n, heads * head_dim]`.
    pub(super) fn prefill(
        &mut self,
        layer: usize,
        prefixes: &[Prefix],
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
    ) -> Result<Tensor, TchError> {
        let mut start = 0;
        let mut attended = Vec::with_capacity(prefixes.len());
        for prefix in prefixes {
            let length = prefix.tokens.len() as i64;
            let part = |x: &Tensor| x.f_narrow(0, start, length)?.f_transpose(0, 1)?.f_unsqueeze(0);
            let (k, v) = (part(k)?, part(v)?);
            self.layers[layer].fill(&prefix.slots, length, &k, &v)?;
            let heads = attention(&part(q)?, &k, &v, Causal::Yes)?;
            attended.push(heads.f_squeeze_dim(0)?.f_transpose(0, 1)?);
            start += length;
        }
        Tensor::f_cat(&attended, 0)?.f_reshape([-1, self.shape.heads * self.shape.head_dim])
    }

    /// Plans an iteration in which the row of slot `i` writes the last of its `lengths[i]` tokens and attends to all of them.
    pub(super) fn plan(&self, lengths: &[usize]) -> Result<DecodePlan, TchError> {
        let run = |rows: Range<usize>| {
            let own = &lengths[rows.clone()];
            let longest = own.iter().copied().max().unwrap_or(0);
            let even = own.iter().all(|length| *length == longest);
            self.run(rows, lengths, Slots::From(0), longest, even)
        };
        let runs = runs(lengths).into_iter().map(run).collect::<Result<_, _>>()?;
        let (rows, targets) = (lengths.len() as i64, self.targets(lengths, Slots::From(0))?);
        Ok(DecodePlan { targets, rows, runs })
    }

    /// Plans rows that write the last of their `lengths` tokens and attend to all of them. `runs` lists ranges of rows with the number of
    /// positions that they read; positions beyond a row's length are masked.
    pub(super) fn plan_in(
        &self,
        lengths: &[usize],
        slots: Slots,
        runs: impl Iterator<Item = (Range<usize>, usize)>,
    ) -> Result<DecodePlan, TchError> {
        let run = |(rows, longest)| self.run(rows, lengths, slots, longest, false);
        let runs = runs.map(run).collect::<Result<_, _>>()?;
        let (rows, targets) = (lengths.len() as i64, self.targets(lengths, slots)?);
        Ok(DecodePlan { targets, rows, runs })
    }

    /// Returns `[n * kv_heads]`, int64: the indices in the flattened memory of the last of the `lengths` tokens of each row.
    fn targets(&self, lengths: &[usize], slots: Slots) -> Result<Tensor, TchError> {
        let CacheShape { kv_heads, extent, .. } = self.shape;
        let target = |(row, length): (usize, usize)| {
            let slot = slots.of(&(row..row + 1)).start;
            (0..kv_heads)
                .map(move |head| (slot * kv_heads + head) * extent.capacity + length as i64 - 1)
        };
        let targets: Vec<i64> = lengths.iter().copied().enumerate().flat_map(target).collect();
        Tensor::f_from_slice(&targets)?.f_to_device(self.device)
    }

    /// Computes the attention of one token of each row over the row's tokens; shapes as in [`prefill`](Self::prefill). Rows beyond those of
    /// the plan are zero.
    ///
    /// The query heads of a group are treated as the queries of their key head, so that keys and values are read once per group and not
    /// repeated.
    pub(super) fn decode(
        &mut self,
        layer: usize,
        plan: &DecodePlan,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
    ) -> Result<Tensor, TchError> {
        let CacheShape { heads, kv_heads, head_dim, .. } = self.shape;
        let cached = &self.layers[layer];
        let own = |x: &Tensor| x.f_narrow(0, 0, plan.rows);
        cached.write(&plan.targets, &own(k)?, &own(v)?)?;
        let q = q.f_reshape([-1, kv_heads, heads / kv_heads, head_dim])?;
        let mut attended =
            plan.runs.iter().map(|run| cached.attend(&q, run)).collect::<Result<Vec<_>, _>>()?;
        let beyond = q.size4()?.0 - plan.rows;
        if beyond > 0 {
            let size = [beyond, kv_heads, heads / kv_heads, head_dim];
            attended.push(Tensor::f_zeros(size, (Kind::Float, self.device))?);
        }
        let all = if attended.len() == 1 {
            attended.swap_remove(0)
        } else {
            Tensor::f_cat(&attended, 0)?
        };
        all.f_reshape([-1, heads * head_dim])
    }

    fn run(
        &self,
        rows: Range<usize>,
        lengths: &[usize],
        slots: Slots,
        longest: usize,
        even: bool,
    ) -> Result<AttentionRun, TchError> {
        let lengths: Vec<i64> = lengths[rows.clone()].iter().map(|length| *length as i64).collect();
        let mask = if even { None } else { Some(self.mask(&lengths, longest as i64)?) };
        let slots = slots.of(&rows);
        Ok(AttentionRun {
            rows: rows.start as i64..rows.end as i64,
            slots,
            longest: longest as i64,
            mask,
        })
    }

    fn mask(&self, lengths: &[i64], longest: i64) -> Result<Tensor, TchError> {
        let lengths =
            Tensor::f_from_slice(lengths)?.f_to_device(self.device)?.f_view([-1, 1, 1, 1])?;
        let absent = self.places.f_narrow(0, 0, longest)?.f_ge_tensor(&lengths)?;
        let zeros = Tensor::f_zeros(absent.size(), (Kind::Float, self.device))?;
        zeros.f_masked_fill(&absent, f64::NEG_INFINITY)
    }
}

impl Extent {
    /// Returns the extent that is allocated before the need is known.
    fn first(self) -> Self {
        Self { slots: self.slots.min(1), capacity: self.capacity.min(FIRST_CAPACITY) }
    }
}

impl CacheShape {
    /// Allocates zeros. Masked positions are multiplied by 0, so they must hold finite numbers.
    fn allocate(self, device: Device) -> Result<Tensor, TchError> {
        let Extent { slots, capacity } = self.extent;
        let size = [self.layers, 2, slots, self.kv_heads, capacity, self.head_dim];
        Tensor::f_zeros(size, (Kind::Float, device))
    }

    fn layers(self, memory: &Tensor) -> Result<Vec<KeysValues>, TchError> {
        let layer = |layer| {
            let both = memory.f_select(0, layer)?;
            Ok(KeysValues { keys: both.f_select(0, 0)?, values: both.f_select(0, 1)? })
        };
        (0..self.layers).map(layer).collect()
    }
}

impl KeysValues {
    /// Writes k and v `[1, kv_heads, length, head_dim]` to the start of each of `slots`.
    fn fill(&self, slots: &[usize], length: i64, k: &Tensor, v: &Tensor) -> Result<(), TchError> {
        for slot in slots {
            for (cached, new) in [(&self.keys, k), (&self.values, v)] {
                cached.f_narrow(0, *slot as i64, 1)?.f_narrow(2, 0, length)?.f_copy_(new)?;
            }
        }
        Ok(())
    }

    /// Writes k and v `[n, kv_heads, head_dim]` to the rows `targets` of the flattened memory.
    fn write(&self, targets: &Tensor, k: &Tensor, v: &Tensor) -> Result<(), TchError> {
        let head_dim = k.size3()?.2;
        for (cached, new) in [(&self.keys, k), (&self.values, v)] {
            let _same_memory = cached.f_view([-1, head_dim])?.f_index_copy_(
                0,
                targets,
                &new.f_reshape([-1, head_dim])?,
            )?;
        }
        Ok(())
    }

    /// Maps q `[n, kv_heads, group, head_dim]` to the attention of the run's rows, in the same shape.
    fn attend(&self, q: &Tensor, run: &AttentionRun) -> Result<Tensor, TchError> {
        let part = |x: &Tensor, rows: &Range<i64>| x.f_narrow(0, rows.start, rows.end - rows.start);
        let cached = |x: &Tensor| {
            let rows = run.rows.end - run.rows.start;
            part(x, &run.slots)?.f_narrow(2, 0, run.longest)?.f_expand([rows, -1, -1, -1], false)
        };
        attention(
            &part(q, &run.rows)?,
            &cached(&self.keys)?,
            &cached(&self.values)?,
            Causal::No(run.mask.as_ref()),
        )
    }
}

/// The keys that a query attends to.
#[derive(Clone, Copy)]
enum Causal<'a> {
    /// The positions up to that of the row.
    Yes,
    /// The positions that the mask permits; all positions without a mask.
    No(Option<&'a Tensor>),
}

fn attention(q: &Tensor, k: &Tensor, v: &Tensor, causal: Causal<'_>) -> Result<Tensor, TchError> {
    let (mask, is_causal) = match causal {
        Causal::Yes => (None, true),
        Causal::No(mask) => (mask, false),
    };
    let grouped = q.size4()?.1 != k.size4()?.1;
    Tensor::f_scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, None, grouped)
}

fn places(extent: Extent, device: Device) -> Result<Tensor, TchError> {
    Tensor::f_arange(extent.capacity, (Kind::Int64, device))
}

/// Returns `had`, doubled until it holds `needed` or reaches the limit.
fn grown(had: i64, needed: i64, limit: i64) -> i64 {
    let mut size = had;
    while size < needed {
        size = (size * 2).min(limit).max(size + 1);
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double_up_to_the_limit() {
        assert_eq!(grown(64, 64, 100), 64);
        assert_eq!(grown(64, 65, 300), 128);
        assert_eq!(grown(64, 290, 300), 300);
    }
}
