//! The cache in the memory of the host.

use tch::{TchError, Tensor};

use super::super::blocks::{BLOCK, BlockCopy, blocks_of};
use super::super::grouping::Grouping;
use super::kernel::{Attention, AttentionKernel, HeadShape};
use super::memory::{BlockMemory, CachePass, CacheRow, CacheShape, Chunks};
use crate::model::{host, kernel_threads};

/// The memory of the cache: chunks of blocks `[layers, kv_heads, 2, BLOCK * head_dim]`. The two parts are keys and values in the layout of
/// the [`AttentionKernel`].
#[derive(Debug)]
pub(super) struct HostMemory {
    shape: CacheShape,
    chunks: Chunks<Box<[f32]>>,
    kernel: AttentionKernel,
}

struct HostPass<'a> {
    memory: &'a mut HostMemory,
    rows: &'a [CacheRow],
}

/// A part of a layer's attention, for one thread: the queries of adjacent pieces, and the slice for their outputs. A piece is a row, or one
/// KV head of a row with its query heads.
struct AttentionShare<'a> {
    /// The number of pieces of a row: 1, or the number of KV heads.
    pieces: usize,
    /// The index of the first piece, counted over all rows.
    first: usize,
    q: &'a [f32],
    attended: &'a mut [f32],
}

impl HostMemory {
    pub(super) fn new(shape: CacheShape, kernel: AttentionKernel) -> Self {
        Self { shape, chunks: Chunks::new(), kernel }
    }

    fn block(&self, number: usize) -> &[f32] {
        let (chunk, start) = self.place(number);
        &self.chunks.of(chunk)[start..start + self.shape.block_floats()]
    }

    fn block_mut(&mut self, number: usize) -> &mut [f32] {
        let (chunk, start) = self.place(number);
        let end = start + self.shape.block_floats();
        &mut self.chunks.of_mut(chunk)[start..end]
    }

    fn layer(&self, number: usize, layer: usize) -> &[f32] {
        let floats = self.shape.layer_floats();
        &self.block(number)[layer * floats..][..floats]
    }

    /// Returns the chunk of a block, and the index of the block's first float in the chunk.
    fn place(&self, number: usize) -> (usize, usize) {
        let CacheShape { chunk_blocks, .. } = self.shape;
        (number / chunk_blocks, number % chunk_blocks * self.shape.block_floats())
    }

    /// Writes k and v `[kv_heads, head_dim]` of one token.
    fn write(&mut self, layer: usize, row: &CacheRow, k: &[f32], v: &[f32]) {
        let CacheShape { head_dim, .. } = self.shape;
        let (unit, floats) = (self.shape.unit_floats(), self.shape.layer_floats());
        let at = row.position % BLOCK;
        let own = &mut self.block_mut(row.block())[layer * floats..][..floats];
        let heads = k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim));
        for (cached, (k, v)) in own.chunks_exact_mut(2 * unit).zip(heads) {
            let (keys, values) = cached.split_at_mut(unit);
            for (key, k) in keys[at..].iter_mut().step_by(BLOCK).zip(k) {
                *key = *k;
            }
            values[at * head_dim..][..head_dim].copy_from_slice(v);
        }
    }
}

impl BlockMemory for HostMemory {
    fn allocate(&mut self, chunk: usize) -> Result<(), TchError> {
        self.chunks.insert(chunk, vec![0.0; self.shape.chunk_floats()].into());
        Ok(())
    }

    fn free(&mut self, chunk: usize) {
        self.chunks.free(chunk);
    }

    fn holds(&self, chunk: usize) -> bool {
        self.chunks.holds(chunk)
    }

    fn copy(&mut self, BlockCopy { from, to }: BlockCopy) -> Result<(), TchError> {
        let copied = self.block(from).to_vec();
        self.block_mut(to).copy_from_slice(&copied);
        Ok(())
    }

    fn pass<'a>(
        &'a mut self,
        rows: &'a [CacheRow],
        _grouping: Grouping,
    ) -> Result<Box<dyn CachePass + 'a>, TchError> {
        Ok(Box::new(HostPass { memory: self, rows }))
    }
}

impl HostPass<'_> {
    /// Divides the rows and their heads among the threads of the caller, so that a long row does not leave the other threads without work.
    fn shares<'a>(&self, q: &'a [f32], attended: &'a mut [f32]) -> Vec<AttentionShare<'a>> {
        let CacheShape { heads, kv_heads, head_dim, .. } = self.memory.shape;
        let width = heads * head_dim;
        let costs = self.rows.iter().map(|row| 2 * row.length() * width);
        let pieces =
            if kernel_threads::part_count(costs.clone().sum()) == 1 { 1 } else { kv_heads };
        let costs: Vec<usize> =
            costs.flat_map(|cost| std::iter::repeat_n(cost / pieces, pieces)).collect();
        let piece = width / pieces;
        kernel_threads::split(attended, piece, kernel_threads::balanced_ranges(&costs))
            .map(|(part, attended)| {
                let q = &q[part.start * piece..part.end * piece];
                AttentionShare { pieces, first: part.start, q, attended }
            })
            .collect()
    }

    fn attend_share(&self, layer: usize, share: AttentionShare<'_>) {
        let AttentionShare { pieces, first, q, attended } = share;
        let HostMemory { shape, kernel, .. } = *self.memory;
        let CacheShape { heads, kv_heads, head_dim, .. } = shape;
        let heads_of_piece =
            HeadShape { kv_heads: kv_heads / pieces, group: heads / kv_heads, dim: head_dim };
        let piece = heads * head_dim / pieces;
        let (mut blocks, mut weights) = (Vec::new(), Vec::new());
        let both = q.chunks_exact(piece).zip(attended.chunks_exact_mut(piece));
        for (at, (q, attended)) in (first..).zip(both) {
            let (row, start) =
                (&self.rows[at / pieces], at % pieces * shape.layer_floats() / pieces);
            let table = &row.table[..blocks_of(row.length())];
            blocks.clear();
            blocks.extend(table.iter().map(|number| &self.memory.layer(*number, layer)[start..]));
            kernel.attend(Attention {
                shape: heads_of_piece,
                q,
                blocks: &blocks,
                length: row.length(),
                weights: &mut weights,
                out: attended,
            });
        }
    }
}

impl CachePass for HostPass<'_> {
    fn write(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> Result<(), TchError> {
        let CacheShape { kv_heads, head_dim, .. } = self.memory.shape;
        // libtorch copies columns of a larger tensor. A copy by Rust would make its allocator reserve several MiB for each thread.
        let (k, v) = (k.f_contiguous()?, v.f_contiguous()?);
        let (k, v) = (host::floats(&k)?, host::floats(&v)?);
        let tokens = k.chunks_exact(kv_heads * head_dim).zip(v.chunks_exact(kv_heads * head_dim));
        for (row, (k, v)) in self.rows.iter().zip(tokens) {
            self.memory.write(layer, row, k, v);
        }
        Ok(())
    }

    fn attend(&mut self, layer: usize, q: &Tensor) -> Result<Tensor, TchError> {
        let HostMemory { shape: CacheShape { heads, head_dim, .. }, .. } = *self.memory;
        let rows = q.size3()?.0;
        let q = q.f_mul_scalar((head_dim as f64).sqrt().recip())?;
        let q = host::floats(&q)?;
        host::create_tensor(&[rows, (heads * head_dim) as i64], None, |attended| {
            kernel_threads::each(self.shares(&q, attended), |share| {
                self.attend_share(layer, share)
            });
        })
    }
}
