//! The cache in tensors of any device.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tch::{Device, Kind, TchError, Tensor};

use super::super::blocks::{BLOCK, BlockCopy};
use super::super::grouping::Grouping;
use super::memory::{BlockMemory, CachePass, CacheRow, CacheShape, Chunks};

/// The memory of the cache: chunks of blocks, each a tensor `[blocks, layers, 2, kv_heads, BLOCK, head_dim]`.
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
    /// The pieces that the rows are written to: one position of one head each.
    written: PieceIndices,
    /// The groups of rows that attend together; `None` until the first layer attends. A pass that only writes needs no groups.
    groups: Option<Vec<AttentionGroup>>,
}

/// Adjacent rows that attend together.
struct AttentionGroup {
    rows: Range<i64>,
    /// The blocks by sequence, head and position. If all rows belong to one sequence, its blocks are listed once; otherwise they are listed
    /// for each row.
    blocks: PieceIndices,
    /// Number of positions that the rows attend to, including masked positions.
    extent: i64,
    /// `[rows, 1, 1, extent]`: 0 at the positions that a row attends to, otherwise minus infinity. `None` if no position is masked.
    mask: Option<Tensor>,
}

/// A list of equally long pieces of the memory, each with `positions` adjacent positions of one head: first the pieces of the keys, then
/// the pieces of the values.
struct PieceIndices {
    positions: usize,
    /// The chunks, each with the indices of its pieces. The indices are computed for layer 0 and are valid for every layer, because the
    /// view of a layer begins with its keys.
    parts: Vec<(usize, Tensor)>,
    /// The order of the pieces; `None` if all pieces are in one chunk.
    order: Option<ChunkOrder>,
}

/// The order of pieces of several chunks.
struct ChunkOrder {
    /// The index of each piece in the list, chunk after chunk.
    listed: Tensor,
    /// The inverse of `listed`.
    inverse: Tensor,
    /// Number of pieces of each chunk.
    sizes: Vec<i64>,
}

impl DeviceMemory {
    pub(super) fn new(shape: CacheShape, device: Device) -> Self {
        Self { shape, device, chunks: Chunks::new() }
    }

    /// Returns the pieces of `positions` positions at `places`: first the pieces of the keys, then the pieces of the values. A place is the
    /// number of a block, and the index of a piece among the keys of one layer of the block.
    fn piece_indices(
        &self,
        positions: usize,
        places: impl Iterator<Item = (usize, usize)> + Clone,
    ) -> Result<PieceIndices, TchError> {
        let CacheShape { layers, kv_heads, chunk_blocks, .. } = self.shape;
        let of_part = kv_heads * (BLOCK / positions);
        let values = places.clone().map(|(block, piece)| (block, of_part + piece));
        let mut by_chunk = BTreeMap::<usize, (Vec<i64>, Vec<i64>)>::new();
        for (at, (block, piece)) in places.chain(values).enumerate() {
            let (index, listed) = by_chunk.entry(block / chunk_blocks).or_default();
            index.push((block % chunk_blocks * layers * 2 * of_part + piece) as i64);
            listed.push(at as i64);
        }
        let order = if by_chunk.len() > 1 {
            let listed: Vec<i64> =
                by_chunk.values().flat_map(|(_, listed)| listed).copied().collect();
            Some(ChunkOrder {
                inverse: self.tensor(&inverse(&listed))?,
                listed: self.tensor(&listed)?,
                sizes: by_chunk.values().map(|(index, _)| index.len() as i64).collect(),
            })
        } else {
            None
        };
        let parts =
            by_chunk.into_iter().map(|(chunk, (index, _))| Ok((chunk, self.tensor(&index)?)));
        Ok(PieceIndices { positions, parts: parts.collect::<Result<_, TchError>>()?, order })
    }

    /// Returns the pieces of `positions` positions of a chunk as the rows of a matrix, from the first piece of the keys of `layer` in the
    /// first block to the end of the chunk.
    fn pieces(&self, chunk: usize, positions: usize, layer: usize) -> Result<Tensor, TchError> {
        let CacheShape { kv_heads, head_dim, .. } = self.shape;
        let matrix = self.chunks.of(chunk).f_view([-1, (positions * head_dim) as i64])?;
        let start = (2 * layer * kv_heads * (BLOCK / positions)) as i64;
        matrix.f_narrow(0, start, matrix.size2()?.0 - start)
    }

    /// Returns the listed pieces of a layer, `[pieces, positions * head_dim]`.
    fn gather(&self, indices: &PieceIndices, layer: usize) -> Result<Tensor, TchError> {
        let parts = indices.parts.iter().map(|(chunk, index)| {
            self.pieces(*chunk, indices.positions, layer)?.f_index_select(0, index)
        });
        let mut parts = parts.collect::<Result<Vec<_>, _>>()?;
        match &indices.order {
            None => Ok(parts.swap_remove(0)),
            Some(order) => Tensor::f_cat(&parts, 0)?.f_index_select(0, &order.inverse),
        }
    }

    /// Writes `values [pieces, positions * head_dim]` to the listed pieces of a layer.
    fn scatter(
        &self,
        indices: &PieceIndices,
        layer: usize,
        values: Tensor,
    ) -> Result<(), TchError> {
        let parts = match &indices.order {
            None => vec![values],
            Some(order) => values
                .f_index_select(0, &order.listed)?
                .f_split_with_sizes(order.sizes.as_slice(), 0)?,
        };
        for ((chunk, index), values) in indices.parts.iter().zip(parts) {
            let mut pieces = self.pieces(*chunk, indices.positions, layer)?;
            let _same_memory = pieces.f_index_copy_(0, index, &values)?;
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
            blocks: self.piece_indices(BLOCK, pieces)?,
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

    /// Returns the attention of the rows of `group`. `q` has the queries of all rows of the pass,
    /// `[n, kv_heads, heads / kv_heads, head_dim]`; the result has the same layout, for the rows of `group`. The query heads that share a
    /// key head are treated as queries of this head, so that keys and values are not repeated.
    fn attend(&self, layer: usize, group: &AttentionGroup, q: &Tensor) -> Result<Tensor, TchError> {
        let CacheShape { kv_heads, head_dim, .. } = self.shape;
        let rows = group.rows.end - group.rows.start;
        let cached = self.gather(&group.blocks, layer)?;
        let cached = cached.f_view([2, -1, kv_heads as i64, group.extent, head_dim as i64])?;
        let part = |at| cached.f_select(0, at)?.f_expand([rows, -1, -1, -1], false);
        let (k, v) = (part(0)?, part(1)?);
        let q = q.f_narrow(0, group.rows.start, rows)?;
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
        let written = self.piece_indices(1, places)?;
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
        let new = Tensor::f_cat(&[k.f_narrow(0, 0, rows)?, v.f_narrow(0, 0, rows)?], 0)?;
        self.memory.scatter(&self.written, layer, new.f_view([-1, head_dim as i64])?)
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
        let attended = match attended.as_slice() {
            [one] => one.shallow_clone(),
            several => Tensor::f_cat(several, 0)?,
        };
        attended.f_reshape([-1, (heads * head_dim) as i64])
    }
}

fn inverse(permutation: &[i64]) -> Vec<i64> {
    let mut inverse = vec![0; permutation.len()];
    for (at, &to) in (0..).zip(permutation) {
        inverse[to as usize] = at;
    }
    inverse
}
