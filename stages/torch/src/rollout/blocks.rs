//! The blocks of the KV cache: which are in use, and by which sequences.
//!
//! The cache is divided into blocks of [`BLOCK`] positions of all layers, as in PagedAttention (Kwon et al. 2023). A sequence holds a table
//! of blocks, so its memory is proportional to its tokens, and it grows without a copy. Sequences with the same prompt share the blocks
//! that the prompt fills.
//!
//! This module only assigns block numbers. The memory is in [`kv_cache`](super::kv_cache).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of positions of a block. A sequence wastes half a block on average; smaller blocks need longer tables.
pub(super) const BLOCK: usize = 16;

/// The numbers of the blocks of a cache. Clones share the numbers.
///
/// The pool assigns the lowest free number, so that the blocks in use gather in few chunks of memory.
#[derive(Clone, Debug)]
pub(super) struct BlockPool(Arc<Mutex<PoolState>>);

#[derive(Debug)]
struct PoolState {
    /// Number of blocks of a chunk, the unit in which memory is allocated.
    chunk_blocks: usize,
    /// Number of blocks in use, by chunk.
    used: Vec<usize>,
    /// The free blocks of the chunks that `used` counts.
    free: BTreeSet<usize>,
}

/// A block in use. Dropping it returns its number to the pool.
#[derive(Debug)]
struct Block {
    number: usize,
    pool: BlockPool,
}

/// The blocks of a sequence, in the order of its positions.
#[derive(Debug)]
pub(super) struct BlockTable {
    blocks: Vec<Arc<Block>>,
    pool: BlockPool,
}

/// A copy of the memory of block number `from` to the memory of block number `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockCopy {
    pub(super) from: usize,
    pub(super) to: usize,
}

/// Returns the number of blocks that hold `positions` positions.
pub(super) fn blocks_of(positions: usize) -> usize {
    positions.div_ceil(BLOCK)
}

impl BlockPool {
    /// Creates a pool without blocks in use, whose memory is allocated in chunks of `chunk_blocks`.
    pub(super) fn new(chunk_blocks: usize) -> Self {
        Self(Arc::new(Mutex::new(PoolState {
            chunk_blocks,
            used: Vec::new(),
            free: BTreeSet::new(),
        })))
    }

    /// Returns a table without blocks.
    pub(super) fn table(&self) -> BlockTable {
        BlockTable { blocks: Vec::new(), pool: self.clone() }
    }

    /// Returns the number of blocks in use. A block that several tables share counts once.
    pub(super) fn used(&self) -> usize {
        self.state().used.iter().sum()
    }

    pub(super) fn used_by_chunk(&self) -> Vec<usize> {
        self.state().used.clone()
    }

    fn take(&self) -> Arc<Block> {
        let number = self.state().take();
        Arc::new(Block { number, pool: self.clone() })
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    fn take(&mut self) -> usize {
        if self.free.is_empty() {
            let start = self.used.len() * self.chunk_blocks;
            self.free.extend(start..start + self.chunk_blocks);
            self.used.push(0);
        }
        let number = self.free.pop_first().expect("invariant: a chunk was added");
        self.used[number / self.chunk_blocks] += 1;
        number
    }

    fn release(&mut self, number: usize) {
        self.used[number / self.chunk_blocks] -= 1;
        self.free.insert(number);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.pool.state().release(self.number);
    }
}

impl BlockTable {
    /// Returns the numbers of the blocks, in the order of the positions.
    pub(super) fn numbers(&self) -> impl ExactSizeIterator<Item = usize> {
        self.blocks.iter().map(|block| block.number)
    }

    /// Returns the number of blocks to add so that the table holds `positions` positions.
    pub(super) fn missing(&self, positions: usize) -> usize {
        blocks_of(positions).saturating_sub(self.blocks.len())
    }

    /// Adds blocks until the table holds `positions` positions.
    pub(super) fn grow(&mut self, positions: usize) {
        for _ in 0..self.missing(positions) {
            self.blocks.push(self.pool.take());
        }
    }

    /// Returns a table that holds the first `positions` positions of this table, and the copy to make once these positions are computed.
    ///
    /// The tables share the blocks that the positions fill; nothing is written to these blocks any more. If the last block is only
    /// partially filled, the new table gets a copy of the block, because both sequences write to it. Otherwise the copy is `None`.
    pub(super) fn share(&self, positions: usize) -> (Self, Option<BlockCopy>) {
        let full = positions / BLOCK;
        let mut shared = Self { blocks: self.blocks[..full].to_vec(), pool: self.pool.clone() };
        shared.grow(positions);
        let copy = shared
            .blocks
            .get(full)
            .map(|own| BlockCopy { from: self.blocks[full].number, to: own.number });
        (shared, copy)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn numbers(table: &BlockTable) -> Vec<usize> {
        table.numbers().collect()
    }

    #[test]
    fn a_table_holds_the_blocks_of_its_positions() {
        let pool = BlockPool::new(4);
        let mut table = pool.table();
        table.grow(BLOCK + 1);
        assert_eq!((numbers(&table), table.missing(2 * BLOCK)), (vec![0, 1], 0));
        table.grow(5 * BLOCK);
        assert_eq!((numbers(&table), pool.used_by_chunk()), (vec![0, 1, 2, 3, 4], vec![4, 1]));
        drop(table);
        assert_eq!(pool.used_by_chunk(), [0, 0]);
    }

    #[test]
    fn full_blocks_are_shared_and_the_partial_one_is_copied() {
        let pool = BlockPool::new(8);
        let mut first = pool.table();
        first.grow(2 * BLOCK + 5);
        let (second, copy) = first.share(2 * BLOCK + 3);
        assert_eq!((numbers(&second), copy), (vec![0, 1, 3], Some(BlockCopy { from: 2, to: 3 })));
        let (third, copy) = first.share(BLOCK);
        assert_eq!((numbers(&third), copy), (vec![0], None));
        assert_eq!(pool.used(), 4, "shared blocks count once");
        drop(first);
        assert_eq!(pool.used(), 3, "the others hold two blocks of the first");
        drop((second, third));
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn the_lowest_free_block_is_taken() {
        let pool = BlockPool::new(2);
        let mut tables: Vec<BlockTable> = (0..3).map(|_| pool.table()).collect();
        tables.iter_mut().for_each(|table| table.grow(2 * BLOCK));
        drop(tables.remove(1));
        let mut late = pool.table();
        late.grow(3 * BLOCK);
        assert_eq!(numbers(&late), [2, 3, 6]);
    }

    proptest! {
        #[test]
        fn the_blocks_in_use_are_those_of_the_tables(
            script in prop::collection::vec((0..3u8, 0..200usize, any::<prop::sample::Index>()), 1..60),
        ) {
            let pool = BlockPool::new(3);
            let mut tables: Vec<(BlockTable, usize)> = Vec::new();
            for (action, positions, which) in script {
                match action {
                    0 if !tables.is_empty() => drop(tables.swap_remove(which.index(tables.len()))),
                    1 if !tables.is_empty() => {
                        let (donor, held) = &tables[which.index(tables.len())];
                        let positions = positions.min(*held);
                        tables.push((donor.share(positions).0, positions));
                    }
                    _ => {
                        let mut table = pool.table();
                        table.grow(positions);
                        tables.push((table, positions));
                    }
                }
                let mut holders = BTreeMap::<usize, usize>::new();
                for (table, positions) in &tables {
                    prop_assert_eq!(table.numbers().len(), blocks_of(*positions));
                    table.numbers().for_each(|number| *holders.entry(number).or_default() += 1);
                }
                prop_assert_eq!(pool.used(), holders.len());
                for (chunk, used) in pool.used_by_chunk().into_iter().enumerate() {
                    let own = holders.range(3 * chunk..3 * (chunk + 1)).count();
                    prop_assert_eq!(used, own);
                }
            }
        }
    }
}
