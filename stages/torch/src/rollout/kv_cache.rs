//! Keys and values of the running responses, and attention over them.
//!
//! The memory consists of chunks of [blocks](super::blocks), of one of two kinds:
//!
//! - [Host memory](host): a kernel of this crate computes the attention and reads the blocks in place.
//! - [Device memory](device): the chunks are tensors. The blocks of the rows that attend together are gathered, and libtorch computes the
//!   attention. This kind serves CUDA devices, and CPUs on which the kernel cannot run.

mod device;
mod host;
mod kernel;
mod memory;

use rollpacker_model::ModelConfig;
use tch::{Device, TchError};

use self::device::DeviceMemory;
use self::host::HostMemory;
use self::kernel::AttentionKernel;
use self::memory::{BlockMemory, CacheShape};
use super::blocks::{BlockCopy, BlockPool, blocks_of};
use super::grouping::Grouping;
use crate::model::allocator::return_free_memory;

pub(super) use self::memory::{CachePass, CacheRow};

/// Maximum size of a chunk in the memory of the host, in bytes, unless a block is larger. Small chunks waste little memory when partly
/// used. With the header of the allocator, a chunk fits into two huge pages of 2 MiB. A chunk of 4 MiB would occupy a part of a third one.
const HOST_CHUNK: usize = (4 << 20) - (64 << 10);

/// Maximum size of a chunk in the memory of a device, in bytes, unless a block is larger. A layer launches kernels for each chunk, so few
/// chunks are fast.
const DEVICE_CHUNK: usize = 1 << 30;

/// Number of chunks without blocks in use that are kept, so that a sequence that comes and goes does not allocate each time.
const SPARE_CHUNKS: usize = 1;

/// The blocks of a cache and their memory, which grows and shrinks with the number of blocks in use.
#[derive(Debug)]
pub(super) struct KvCache {
    pool: BlockPool,
    memory: Box<dyn BlockMemory>,
    shape: CacheShape,
    /// The number of chunks with blocks in use when free memory of the process was last returned to the system; 0 if it never was.
    chunks_at_return: usize,
}

impl KvCache {
    /// Creates a cache that is meant for `tokens` tokens, and allocates no memory yet. The caller must limit the blocks in use; the cache
    /// itself has no limit.
    ///
    /// Chunks have at most as many blocks as `tokens` need. A chunk is added only when all others are full. The number of chunks therefore
    /// never exceeds the number that the peak of the blocks in use fills, the last one partly.
    pub(super) fn new(config: &ModelConfig, tokens: usize, device: Device) -> Self {
        let (kernel, chunk) = match device {
            Device::Cpu => (AttentionKernel::detect(), HOST_CHUNK),
            _ => (None, DEVICE_CHUNK),
        };
        let shape = CacheShape::new(config, tokens, chunk);
        let max = blocks_of(tokens).saturating_mul(shape.block_floats() * size_of::<f32>());
        tracing::info!(tokens, bytes = max, "budget of a KV cache");
        match kernel {
            Some(kernel) => Self::over(shape, HostMemory::new(shape, kernel)),
            None => Self::over(shape, DeviceMemory::new(shape, device)),
        }
    }

    fn over(shape: CacheShape, memory: impl BlockMemory + 'static) -> Self {
        let pool = BlockPool::new(shape.chunk_blocks);
        Self { pool, memory: Box::new(memory), shape, chunks_at_return: 0 }
    }

    pub(super) fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Allocates memory for the blocks in use, and frees all but [`SPARE_CHUNKS`] of the chunks without blocks in use. Before that, returns
    /// free memory of the process to the system if the number of chunks in use has grown by more than an eighth since it last did so.
    pub(super) fn fit(&mut self) -> Result<(), TchError> {
        let mut spare = SPARE_CHUNKS;
        let before = self.bytes();
        let used_by_chunk = self.pool.used_by_chunk();
        let used = used_by_chunk.iter().filter(|used| **used > 0).count();
        if used > self.chunks_at_return + self.chunks_at_return / 8 {
            // Otherwise, the peak memory of the process would include the temporary tensors of earlier passes. This is done rarely, because
            // it slows down the next pass.
            return_free_memory();
            self.chunks_at_return = used;
        }
        for (chunk, used) in used_by_chunk.into_iter().enumerate() {
            match (used > 0, self.memory.holds(chunk)) {
                (true, false) => self.memory.allocate(chunk)?,
                (false, true) if spare > 0 => spare -= 1,
                (false, true) => self.memory.free(chunk),
                _ => {}
            }
        }
        let bytes = self.bytes();
        if bytes != before {
            tracing::debug!(before, bytes, "the size of the KV cache changes");
        }
        Ok(())
    }

    /// Frees all memory. No block may be in use.
    pub(super) fn clear(&mut self) {
        (0..self.pool.used_by_chunk().len()).for_each(|chunk| self.memory.free(chunk));
    }

    /// Returns the bytes of the allocated memory.
    pub(super) fn bytes(&self) -> usize {
        let chunks = (0..self.pool.used_by_chunk().len()).filter(|chunk| self.memory.holds(*chunk));
        chunks.count() * self.shape.chunk_floats() * size_of::<f32>()
    }

    /// Copies a block to another, in all layers.
    pub(super) fn copy(&mut self, copy: BlockCopy) -> Result<(), TchError> {
        self.memory.copy(copy)
    }

    /// Prepares a pass over the tokens of `rows`, whose blocks must be in use and have memory. `grouping` is used where rows are padded to
    /// attend together.
    pub(super) fn pass<'a>(
        &'a mut self,
        rows: &'a [CacheRow],
        grouping: Grouping,
    ) -> Result<Box<dyn CachePass + 'a>, TchError> {
        self.memory.pass(rows, grouping)
    }
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::super::blocks::{BLOCK, BlockTable};
    use super::*;
    use crate::model::kernel_threads::tests::on_threads;

    const LAYERS: i64 = 2;
    const HEADS: i64 = 4;
    const KV_HEADS: i64 = 2;

    fn config(head_dim: i64) -> ModelConfig {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/qwen2_tied");
        let other = ModelConfig::from_folder(folder.as_ref()).unwrap();
        ModelConfig { layers: LAYERS, heads: HEADS, kv_heads: KV_HEADS, head_dim, ..other }
    }

    /// Returns caches in all kinds of memory that this machine has, with two blocks to a chunk.
    fn caches(head_dim: i64) -> Vec<KvCache> {
        let shape = CacheShape { chunk_blocks: 2, ..CacheShape::new(&config(head_dim), 1000, 1) };
        let device = KvCache::over(shape, DeviceMemory::new(shape, Device::Cpu));
        let host = AttentionKernel::detect()
            .map(|kernel| KvCache::over(shape, HostMemory::new(shape, kernel)));
        std::iter::once(device).chain(host).collect()
    }

    /// Returns numbers `[rows, heads, head_dim]` that `seed` determines.
    fn numbers(rows: usize, heads: i64, head_dim: i64, seed: usize) -> Tensor {
        let size = [rows as i64, heads, head_dim];
        let angles = Tensor::arange(size.iter().product::<i64>(), (Kind::Float, Device::Cpu));
        (angles * (0.37 + seed as f64)).sin().view(size)
    }

    /// A sequence in a cache, with the keys and values that were written for it, `[positions, kv_heads, head_dim]`, of each layer.
    struct Written {
        table: BlockTable,
        layers: Vec<(Tensor, Tensor)>,
        length: usize,
    }

    /// Writes `length` positions of a sequence in one pass.
    fn write(cache: &mut KvCache, length: usize, head_dim: i64, seed: usize) -> Written {
        let mut table = cache.pool().table();
        table.grow(length);
        cache.fit().unwrap();
        let rows: Vec<CacheRow> = table.rows(0..length).collect();
        let mut pass = cache.pass(&rows, Grouping::Similar).unwrap();
        let layers = (0..LAYERS as usize).map(|layer| {
            let of = |part| numbers(length, KV_HEADS, head_dim, 4 * seed + 2 * layer + part);
            let (k, v) = (of(0), of(1));
            pass.write(layer, &k, &v).unwrap();
            (k, v)
        });
        let layers = layers.collect();
        Written { table, layers, length }
    }

    /// Returns the attention of `q [heads, head_dim]` by libtorch, `[heads * head_dim]`.
    fn expected(q: &Tensor, (k, v): &(Tensor, Tensor)) -> Tensor {
        let by_head = |x: &Tensor| x.transpose(0, 1).unsqueeze(0);
        let (q, k, v) = (q.unsqueeze(0).unsqueeze(2), by_head(k), by_head(v));
        Tensor::scaled_dot_product_attention::<&Tensor>(&q, &k, &v, None, 0.0, false, None, true)
            .reshape([-1])
    }

    /// Checks the attention of the last token of each sequence, and that a padding row is zero.
    fn check(cache: &mut KvCache, all: &[&Written], head_dim: i64, grouping: Grouping) {
        let last = |one: &&Written| one.table.rows([one.length - 1]);
        let rows: Vec<CacheRow> = all.iter().flat_map(last).collect();
        let q = numbers(rows.len() + 1, HEADS, head_dim, 99);
        let mut pass = cache.pass(&rows, grouping).unwrap();
        for layer in 0..LAYERS as usize {
            let found = pass.attend(layer, &q).unwrap();
            assert_eq!(found.size(), [all.len() as i64 + 1, HEADS * head_dim]);
            for (row, one) in (0..).zip(all) {
                let expected = expected(&q.get(row), &one.layers[layer]);
                let near = found.get(row).allclose(&expected, 1e-5, 1e-5, false);
                assert!(near, "row {row} of layer {layer}, {grouping:?}");
            }
            assert_eq!(found.get(all.len() as i64).abs().max().double_value(&[]), 0.0);
        }
    }

    #[test]
    fn attention_over_blocks_is_that_of_libtorch() {
        for head_dim in [24, 64, 128, 7] {
            for mut cache in caches(head_dim) {
                let lengths = [1, 15, 16, 17, 40, 33, 130];
                let all: Vec<Written> = (0..)
                    .zip(lengths)
                    .map(|(seed, length)| write(&mut cache, length, head_dim, seed))
                    .collect();
                let all: Vec<&Written> = all.iter().collect();
                for slack in [0, 64] {
                    check(&mut cache, &all, head_dim, Grouping::Extents { slack });
                }
                check(&mut cache, &all, head_dim, Grouping::Similar);
                check(&mut cache, &all, head_dim, Grouping::Few);
            }
        }
    }

    #[test]
    fn threads_change_no_bit_of_the_attention() {
        for mut cache in caches(64) {
            let long = write(&mut cache, 900, 64, 1);
            for positions in [899..900, 890..900, 500..900] {
                let rows: Vec<CacheRow> = long.table.rows(positions).collect();
                let attend = |cache: &mut KvCache, rows: &[CacheRow]| {
                    let q = numbers(rows.len(), HEADS, 64, 7);
                    cache.pass(rows, Grouping::Similar).unwrap().attend(1, &q).unwrap()
                };
                let alone = attend(&mut cache, &rows);
                let together = on_threads(3, || attend(&mut cache, &rows));
                assert_eq!(together, alone, "{} rows", rows.len());
            }
        }
    }

    #[test]
    fn a_row_of_a_prompt_attends_to_the_positions_before_it() {
        for mut cache in caches(64) {
            let written = write(&mut cache, 70, 64, 1);
            let rows: Vec<CacheRow> = written.table.rows([3, 20, 69]).collect();
            let q = numbers(3, HEADS, 64, 7);
            let mut pass = cache.pass(&rows, Grouping::Extents { slack: 0 }).unwrap();
            let found = pass.attend(1, &q).unwrap();
            for (row, length) in [4, 21, 70].into_iter().enumerate() {
                let (k, v) = &written.layers[1];
                let visible = (k.narrow(0, 0, length), v.narrow(0, 0, length));
                let expected = expected(&q.get(row as i64), &visible);
                assert!(found.get(row as i64).allclose(&expected, 1e-5, 1e-5, false), "{row}");
            }
        }
    }

    #[test]
    fn sequences_that_share_a_prefix_do_not_disturb_each_other() {
        for mut cache in caches(24) {
            let first = write(&mut cache, 40, 24, 1);
            let (table, copy) = first.table.share(37);
            cache.fit().unwrap();
            copy.into_iter().for_each(|copy| cache.copy(copy).unwrap());
            let rows: Vec<CacheRow> = table.rows([37]).collect();
            let mut layers = Vec::new();
            let mut pass = cache.pass(&rows, Grouping::Similar).unwrap();
            for (layer, (k, v)) in first.layers.iter().enumerate() {
                let own = numbers(1, KV_HEADS, 24, 50 + layer);
                pass.write(layer, &own, &own).unwrap();
                let after = |x: &Tensor| Tensor::cat(&[&x.narrow(0, 0, 37), &own], 0);
                layers.push((after(k), after(v)));
            }
            drop(pass);
            let second = Written { table, layers, length: 38 };
            check(&mut cache, &[&first, &second], 24, Grouping::Similar);
        }
    }

    #[test]
    fn the_memory_follows_the_blocks_in_use() {
        for mut cache in caches(24) {
            let chunk = cache.shape.chunk_floats() * size_of::<f32>();
            let chunks = |cache: &mut KvCache| {
                cache.fit().unwrap();
                cache.bytes() / chunk
            };
            assert_eq!(chunks(&mut cache), 0);
            let mut tables: Vec<BlockTable> = (0..4).map(|_| cache.pool.table()).collect();
            tables.iter_mut().for_each(|table| table.grow(3 * BLOCK));
            assert_eq!(chunks(&mut cache), 6);
            tables.truncate(1);
            assert_eq!(chunks(&mut cache), 2 + SPARE_CHUNKS);
            tables[0].grow(7 * BLOCK);
            assert_eq!(chunks(&mut cache), 4);
            tables.clear();
            assert_eq!(chunks(&mut cache), SPARE_CHUNKS);
            cache.clear();
            assert_eq!(cache.bytes(), 0);
        }
    }
}
