//! The trait for the memory of the blocks of a KV cache, and the types that its implementations share.

use std::fmt::Debug;
use std::sync::Arc;

use rollpacker_model::ModelConfig;
use tch::{TchError, Tensor};

use super::super::blocks::{BLOCK, BlockCopy, BlockTable, blocks_of};
use super::super::grouping::Grouping;

/// The dimensions of the cache, from which the size of its memory follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CacheShape {
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) chunk_blocks: usize,
}

/// The memory of the blocks, on one kind of device.
pub(super) trait BlockMemory: Debug + Send {
    /// Allocates a chunk. All numbers in the chunk must be finite, because masked positions are multiplied by 0.
    fn allocate(&mut self, chunk: usize) -> Result<(), TchError>;

    /// Frees a chunk, if it is allocated.
    fn free(&mut self, chunk: usize);

    /// Returns `true` if a chunk is allocated.
    fn holds(&self, chunk: usize) -> bool;

    /// Copies a block, in all layers.
    fn copy(&mut self, copy: BlockCopy) -> Result<(), TchError>;

    /// Prepares a pass over `rows`. `grouping` selects the rows that are padded and attend in one operation. Implementations that attend
    /// row by row ignore it.
    fn pass<'a>(
        &'a mut self,
        rows: &'a [CacheRow],
        grouping: Grouping,
    ) -> Result<Box<dyn CachePass + 'a>, TchError>;
}

/// Access to the cache during a forward pass. Each row of the pass is a token. Methods are called layer by layer. A row must be written, in
/// this pass or before, when it attends.
pub(in super::super) trait CachePass {
    /// Writes k and v `[n, kv_heads, head_dim]` to the positions of the pass's rows. `n` may exceed the number of rows of the pass; the
    /// surplus rows are ignored.
    fn write(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> Result<(), TchError>;

    /// Maps q `[n, heads, head_dim]` to the attention of each row over the positions of its sequence up to the row's own position,
    /// `[n, heads * head_dim]`. The surplus rows of the result are zero.
    fn attend(&mut self, layer: usize, q: &Tensor) -> Result<Tensor, TchError>;
}

/// The allocated chunks, by number.
#[derive(Debug)]
pub(super) struct Chunks<T>(Vec<Option<T>>);

/// The location of a token in the cache: the blocks of its sequence, and its position in the sequence.
#[derive(Clone, Debug)]
pub(in super::super) struct CacheRow {
    pub(super) table: Arc<[usize]>,
    pub(super) position: usize,
}

impl<T> Chunks<T> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn insert(&mut self, chunk: usize, memory: T) {
        self.0.resize_with(self.0.len().max(chunk + 1), || None);
        self.0[chunk] = Some(memory);
    }

    pub(super) fn free(&mut self, chunk: usize) {
        if let Some(chunk) = self.0.get_mut(chunk) {
            *chunk = None;
        }
    }

    pub(super) fn holds(&self, chunk: usize) -> bool {
        self.0.get(chunk).is_some_and(Option::is_some)
    }

    pub(super) fn of(&self, chunk: usize) -> &T {
        self.0[chunk].as_ref().expect("invariant: blocks in use have memory")
    }

    pub(super) fn of_mut(&mut self, chunk: usize) -> &mut T {
        self.0[chunk].as_mut().expect("invariant: blocks in use have memory")
    }
}

impl BlockTable {
    /// Returns the cache rows of the tokens at `positions` of this sequence, which the table must hold.
    pub(in super::super) fn rows<P: IntoIterator<Item = usize>>(
        &self,
        positions: P,
    ) -> impl Iterator<Item = CacheRow> + use<P> {
        let table: Arc<[usize]> = self.numbers().collect();
        positions.into_iter().map(move |position| CacheRow { table: Arc::clone(&table), position })
    }
}

impl CacheRow {
    pub(in super::super) fn position(&self) -> usize {
        self.position
    }

    /// Returns the number of positions that the row attends to.
    pub(super) fn length(&self) -> usize {
        self.position + 1
    }

    /// Returns the number of the block of the row's position.
    pub(super) fn block(&self) -> usize {
        self.table[self.position / BLOCK]
    }
}

impl CacheShape {
    pub(super) fn new(config: &ModelConfig, tokens: usize, chunk_bytes: usize) -> Self {
        let count = |number: i64| usize::try_from(number).unwrap_or(0);
        let shape = Self {
            layers: count(config.layers),
            heads: count(config.heads),
            kv_heads: count(config.kv_heads),
            head_dim: count(config.head_dim),
            chunk_blocks: 1,
        };
        let fitting = chunk_bytes / size_of::<f32>() / shape.block_floats().max(1);
        Self { chunk_blocks: fitting.min(blocks_of(tokens)).max(1), ..shape }
    }

    /// Returns the number of floats of the keys, or of the values, of a block for one head of one layer.
    pub(super) fn unit_floats(self) -> usize {
        BLOCK * self.head_dim
    }

    /// Returns the number of floats of a layer of a block.
    pub(super) fn layer_floats(self) -> usize {
        2 * self.kv_heads * self.unit_floats()
    }

    pub(super) fn block_floats(self) -> usize {
        self.layers * self.layer_floats()
    }

    pub(super) fn chunk_floats(self) -> usize {
        self.chunk_blocks * self.block_floats()
    }
}
