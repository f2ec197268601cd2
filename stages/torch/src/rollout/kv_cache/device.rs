//! The cache in tensors of any device.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tch::{Device, Kind, TchError, Tensor};

use super::super::blocks::{BLOCK, BlockCopy};
use super::super::grouping::Grouping;
use super::memory::{BlockMemory, CachePass, CacheRow, CacheShape, Chunks};

/// Chunks of blocks `[blocks, layers, 2, kv_heads, BLOCK, head_dim]`.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    shape: CacheShape,
    device: Device,
    chunks: Chunks<Tensor>,
}

/// A pass, with the indices that all layers use.
struct DevicePass<'a> {
    memory: &'a mut DeviceMemory,
    rows: &'a [CacheRow],
    grouping: Grouping,
    /// The places of the rows' keys in layer 0, a head each.
    written: Places,
    /// Computed when the first layer attends; a prefill only writes.
    groups: Option<Vec<AttentionGroup>>,
}

/// Adjacent rows that attend together.
struct AttentionGroup {
    rows: Range<i64>,
    /// The blocks of the keys in layer 0, by sequence, head and position. The rows share one sequence, or each has its own.
    blocks: Places,
    /// Number of positions that the rows attend to, including masked ones.
    extent: i64,
    /// `[rows, 1, 1, extent]`: 0 where a row has a token, otherwise minus infinity. `None` if no position is masked.
    mask: Option<Tensor>,
}

/// Keys or values of a layer.
#[derive(Clone, Copy)]
enum Part {
    Keys,
    Values,
}

/// A list of equally long pieces of the memory, spread over chunks. A piece has `positions` adjacent positions of one head.
struct Places {
    positions: usize,
    parts: Vec<ChunkPlaces>,
    /// The index of each piece in the parts, concatenated; `None` if there is only one part.
    order: Option<Tensor>,
}

/// The entries of a [`Places`] that lie in one chunk of memory.
struct ChunkPlaces {
    chunk: usize,
    /// Indices into the chunk, as a matrix with a row for each piece.
    index: Tensor,
    /// The index of each piece in the list.
    of: Tensor,
}

impl DeviceMemory {
    pub(super) fn new(shape: CacheShape, device: Device) -> Self {
        Self { shape, device, chunks: Chunks::new() }
    }

    /// Lists pieces, each given by its block and its index among the pieces of a layer's keys.
    fn places(
        &self,
        positions: usize,
        pieces: impl Iterator<Item = (usize, usize)>,
    ) -> Result<Places, TchError> {
        let CacheShape { layers, kv_heads, chunk_blocks, .. } = self.shape;
        let of_block = layers * 2 * kv_heads * (BLOCK / positions);
        let mut by_chunk = BTreeMap::<usize, (Vec<i64>, Vec<i64>)>::new();
        for (at, (block, piece)) in pieces.enumerate() {
            let (index, of) = by_chunk.entry(block / chunk_blocks).or_default();
            index.push((block % chunk_blocks * of_block + piece) as i64);
            of.push(at as i64);
        }
        let order = match by_chunk.len() {
            1 => None,
            _ => Some(self.tensor(&inverse(by_chunk.values().flat_map(|(_, of)| of)))?),
        };
        let parts = by_chunk.into_iter().map(|(chunk, (index, of))| {
            Ok(ChunkPlaces { chunk, index: self.tensor(&index)?, of: self.tensor(&of)? })
        });
        Ok(Places { positions, parts: parts.collect::<Result<_, TchError>>()?, order })
    }

    /// Returns a chunk as a matrix with a row for each piece of `positions`, from the given part of the layer on. Indices of layer 0 then
    /// have the same meaning in every layer.
    fn pieces(
        &self,
        chunk: usize,
        positions: usize,
        layer: usize,
        part: Part,
    ) -> Result<Tensor, TchError> {
        let CacheShape { kv_heads, head_dim, .. } = self.shape;
        let matrix = self.chunks.of(chunk).f_view([-1, (positions * head_dim) as i64])?;
        let start = (2 * layer + part as usize) * kv_heads * (BLOCK / positions);
        matrix.f_narrow(0, start as i64, matrix.size2()?.0 - start as i64)
    }

    /// Returns the listed pieces of a layer, `[pieces, positions * head_dim]`.
    fn gather(&self, places: &Places, layer: usize, part: Part) -> Result<Tensor, TchError> {
        let parts = places.parts.iter().map(|own| {
            self.pieces(own.chunk, places.positions, layer, part)?.f_index_select(0, &own.index)
        });
        let mut parts = parts.collect::<Result<Vec<_>, _>>()?;
        match &places.order {
            None => Ok(parts.swap_remove(0)),
            Some(order) => Tensor::f_cat(&parts, 0)?.f_index_select(0, order),
        }
    }

    /// Writes `values [pieces, positions * head_dim]` to the listed pieces of a layer.
    fn scatter(
        &self,
        places: &Places,
        layer: usize,
        part: Part,
        values: &Tensor,
    ) -> Result<(), TchError> {
        for own in &places.parts {
            let mut pieces = self.pieces(own.chunk, places.positions, layer, part)?;
            let _same_memory =
                pieces.f_index_copy_(0, &own.index, &values.f_index_select(0, &own.of)?)?;
        }
        Ok(())
    }

    fn tensor(&self, numbers: &[i64]) -> Result<Tensor, TchError> {
        Tensor::f_from_slice(numbers)?.f_to_device(self.device)
    }

    fn group(
        &self,
        rows: Range<usize>,
        extent: usize,
        all: &[CacheRow],
    ) -> Result<AttentionGroup, TchError> {
        let extent = extent.next_multiple_of(BLOCK);
        let own = &all[rows.clone()];
        let share = own.iter().all(|row| Arc::ptr_eq(&row.table, &own[0].table));
        let sequences = if share { &own[..1] } else { own };
        let kv_heads = self.shape.kv_heads;
        let pieces = sequences.iter().flat_map(|row| {
            // Positions beyond the table are masked. Any block will do, for example the first.
            let block = |at: usize| row.table.get(at).unwrap_or(&row.table[0]);
            (0..kv_heads)
                .flat_map(move |head| (0..extent / BLOCK).map(move |at| (*block(at), head)))
        });
        let even = own.iter().all(|row| row.length() == extent);
        Ok(AttentionGroup {
            rows: rows.start as i64..rows.end as i64,
            blocks: self.places(BLOCK, pieces)?,
            extent: extent as i64,
            mask: if even { None } else { Some(self.mask(own, extent as i64)?) },
        })
    }

    fn mask(&self, rows: &[CacheRow], extent: i64) -> Result<Tensor, TchError> {
        let lengths: Vec<i64> = rows.iter().map(|row| row.length() as i64).collect();
        let lengths = self.tensor(&lengths)?.f_view([-1, 1, 1, 1])?;
        let places = Tensor::f_arange(extent, (Kind::Int64, self.device))?;
        let absent = places.f_ge_tensor(&lengths)?;
        let zeros = Tensor::f_zeros(absent.size(), (Kind::Float, self.device))?;
        zeros.f_masked_fill(&absent, f64::NEG_INFINITY)
    }

    /// Maps q `[rows, kv_heads, group, head_dim]` to the attention of the group's rows, in the same shape. The query heads of a group are
    /// treated as the queries of their key head, so that keys and values are not repeated.
    fn attend(&self, layer: usize, group: &AttentionGroup, q: &Tensor) -> Result<Tensor, TchError> {
        let CacheShape { kv_heads, head_dim, .. } = self.shape;
        let rows = group.rows.end - group.rows.start;
        let cached = |part| {
            let gathered = self.gather(&group.blocks, layer, part)?;
            let shape = [-1, kv_heads as i64, group.extent, head_dim as i64];
            gathered.f_view(shape)?.f_expand([rows, -1, -1, -1], false)
        };
        let q = q.f_narrow(0, group.rows.start, rows)?;
        let (k, v) = (cached(Part::Keys)?, cached(Part::Values)?);
        let mask = group.mask.as_ref();
        Tensor::f_scaled_dot_product_attention(&q, &k, &v, mask, 0.0, false, None, false)
    }
}

impl BlockMemory for DeviceMemory {
    fn allocate(&mut self, chunk: usize) -> Result<(), TchError> {
        let CacheShape { layers, kv_heads, head_dim, chunk_blocks, .. } = self.shape;
        let size = [chunk_blocks, layers, 2, kv_heads, BLOCK, head_dim].map(|size| size as i64);
        self.chunks.insert(chunk, Tensor::f_zeros(size, (Kind::Float, self.device))?);
        Ok(())
    }

    fn free(&mut self, chunk: usize) {
        self.chunks.free(chunk);
    }

    fn holds(&self, chunk: usize) -> bool {
        self.chunks.holds(chunk)
    }

    fn copy(&mut self, BlockCopy { from, to }: BlockCopy) -> Result<(), TchError> {
        let CacheShape { chunk_blocks, .. } = self.shape;
        let block = |number: usize| {
            self.chunks.of(number / chunk_blocks).f_select(0, (number % chunk_blocks) as i64)
        };
        block(to)?.f_copy_(&block(from)?)
    }

    fn pass<'a>(
        &'a mut self,
        rows: &'a [CacheRow],
        grouping: Grouping,
    ) -> Result<Box<dyn CachePass + 'a>, TchError> {
        let CacheShape { kv_heads, .. } = self.shape;
        let places = rows.iter().flat_map(|row| {
            let at = row.position % BLOCK;
            (0..kv_heads).map(move |head| (row.block(), head * BLOCK + at))
        });
        let written = self.places(1, places)?;
        Ok(Box::new(DevicePass { memory: self, rows, grouping, written, groups: None }))
    }
}

impl DevicePass<'_> {
    fn groups(&self) -> Result<Vec<AttentionGroup>, TchError> {
        let lengths: Vec<usize> = self.rows.iter().map(CacheRow::length).collect();
        let groups = self.grouping.groups(&lengths).into_iter();
        groups.map(|(rows, extent)| self.memory.group(rows, extent, self.rows)).collect()
    }
}

impl CachePass for DevicePass<'_> {
    fn write(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> Result<(), TchError> {
        let CacheShape { head_dim, .. } = self.memory.shape;
        let rows = self.rows.len() as i64;
        for (part, new) in [(Part::Keys, k), (Part::Values, v)] {
            let new = new.f_narrow(0, 0, rows)?.f_reshape([-1, head_dim as i64])?;
            self.memory.scatter(&self.written, layer, part, &new)?;
        }
        Ok(())
    }

    fn attend(&mut self, layer: usize, q: &Tensor) -> Result<Tensor, TchError> {
        let CacheShape { heads, kv_heads, head_dim, .. } = self.memory.shape;
        let groups = match self.groups.take() {
            Some(groups) => groups,
            None => self.groups()?,
        };
        let q = q.f_reshape([-1, kv_heads as i64, (heads / kv_heads) as i64, head_dim as i64])?;
        let attended = groups.iter().map(|group| self.memory.attend(layer, group, &q));
        let mut attended = attended.collect::<Result<Vec<_>, _>>()?;
        self.groups = Some(groups);
        let beyond = q.size4()?.0 - self.rows.len() as i64;
        if beyond > 0 {
            attended.push(q.f_narrow(0, 0, beyond)?.f_zeros_like()?);
        }
        Tensor::f_cat(&attended, 0)?.f_reshape([-1, (heads * head_dim) as i64])
    }
}

/// Returns the inverse of a permutation.
fn inverse<'a>(permutation: impl Iterator<Item = &'a i64>) -> Vec<i64> {
    let mut pairs: Vec<(i64, i64)> = permutation.copied().zip(0..).collect();
    pairs.sort_unstable();
    pairs.into_iter().map(|(_, at)| at).collect()
}
