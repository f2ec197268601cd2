//! The product of rows with packed weights, on a CPU.
//!
//! Weights are stored in float32 or rounded to bfloat16, which halves the memory to read; factors and sums are float32 in any case.
//!
//! Each element of a product is summed in the order of the inputs, whatever the number of rows, so it is bit-identical in every batch.

use std::cell::Cell;
use std::ops::Range;

use half::bf16;
use pulp::{Simd, WithSimd};
use rollpacker_stages::train::config::Precision;

use super::super::kernel_threads;
use super::super::vectorized::{Instructions, prefetch};

/// Number of outputs whose weights are stored side by side.
pub(super) const PANEL: usize = 32;

/// Number of rows of a block. All rows of a block use a panel before the next one is read, so they must fit the processor's cache.
const BLOCK_ROWS: usize = 96;

/// Number of rows of the largest tile on a processor with 32 vector registers. Each row has two vectors of sums in registers.
const WIDE_TILE: usize = 12;
/// Number of rows of the largest tile on a processor with 16 vector registers.
const MEDIUM_TILE: usize = 6;

/// Number of rows of the smallest tile. A tile of one row would take as long, because it has only two sums and each addition waits for the
/// previous one.
const NARROW_TILE: usize = 4;

/// Number of rows of a tile between [`NARROW_TILE`] and [`WIDE_TILE`]. It is used only on a processor with 32 vector registers.
const HALF_TILE: usize = 8;

/// Number of inputs that a tile processes between two fetches of weights of the next panel.
const PREFETCH_INPUTS: usize = 8;

/// Number of rows up to which a product takes as long as with one row, because reading the weights takes most of the time.
const FREE_ROWS: usize = 8;

/// The kernel of matrix products. A value exists only if the processor can run it.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatrixKernel(Instructions);

/// Weights `[outputs, inputs]` as panels `[inputs, PANEL]` of outputs. The last panel is padded with zeros.
#[derive(Debug)]
pub(super) struct Panels {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    weights: PanelWeights,
}

#[derive(Debug)]
enum PanelWeights {
    Float32(Vec<f32>),
    /// Each weight as the upper 16 bits of a float32.
    Bfloat16(Vec<u16>),
}

trait Weight: Copy + Default + Sync {
    /// Returns the first two vectors of `weights`, as float32.
    fn vectors<S: Simd>(simd: S, weights: &[Self]) -> [S::f32s; 2];
}

impl Weight for f32 {
    #[inline(always)]
    fn vectors<S: Simd>(_simd: S, weights: &[Self]) -> [S::f32s; 2] {
        let vectors = S::as_simd_f32s(weights).0;
        [vectors[0], vectors[1]]
    }
}

impl Weight for u16 {
    #[inline(always)]
    fn vectors<S: Simd>(simd: S, weights: &[Self]) -> [S::f32s; 2] {
        let mut values = [0.0; PANEL];
        for (value, weight) in values.iter_mut().zip(&weights[..2 * S::F32_LANES]) {
            *value = f32::from_bits(u32::from(*weight) << 16);
        }
        f32::vectors(simd, &values)
    }
}

/// A range of outputs, and the sums of these outputs in each row of a block.
struct OutputShare<'a> {
    outputs: Range<usize>,
    sums: Vec<&'a mut [f32]>,
}

impl Panels {
    /// Packs `weights [outputs, inputs]`, rounded to `precision`. There must be at least one output and one input.
    pub(super) fn new(weights: &[f32], inputs: usize, precision: Precision) -> Self {
        let outputs = weights.len() / inputs;
        let weights = match precision {
            Precision::Float32 => PanelWeights::Float32(packed(weights, inputs)),
            Precision::Bfloat16 => {
                let rounded = weights.iter().map(|weight| bf16::from_f32(*weight).to_bits());
                PanelWeights::Bfloat16(packed(&rounded.collect::<Vec<_>>(), inputs))
            }
        };
        Self { inputs, outputs, weights }
    }

    /// Returns the cost of a product with `rows` rows, in multiplications. A group of up to [`FREE_ROWS`] rows costs as much as one row.
    fn cost(&self, rows: usize) -> usize {
        self.inputs * self.outputs * rows.div_ceil(FREE_ROWS)
    }
}

/// Returns the panels of `weights [outputs, inputs]`.
fn packed<W: Weight>(weights: &[W], inputs: usize) -> Vec<W> {
    let outputs = weights.len() / inputs;
    let mut panels = vec![W::default(); outputs.next_multiple_of(PANEL) * inputs];
    let rows = weights.chunks(PANEL * inputs);
    for (rows, panel) in rows.zip(panels.chunks_exact_mut(PANEL * inputs)) {
        transpose(rows, inputs, panel, PANEL);
    }
    panels
}

/// Writes rows of `length` numbers as columns of a matrix with rows of `width` numbers.
#[inline(always)]
fn transpose<T: Copy>(rows: &[T], length: usize, columns: &mut [T], width: usize) {
    for (at, row) in rows.chunks_exact(length).enumerate() {
        for (column, number) in columns[at..].iter_mut().step_by(width).zip(row) {
            *column = *number;
        }
    }
}

impl MatrixKernel {
    /// Returns the fastest kernel that the processor can run. `None` if the processor can run no kernel, or this crate is compiled without
    /// vectorization.
    pub(super) fn detect() -> Option<Self> {
        Instructions::detect().map(Self)
    }

    /// Adds the product of `x [rows, inputs]` with the weights to `sums [rows, outputs]`. The [threads](kernel_threads) of the caller
    /// compute different blocks of rows, or different outputs if there are few rows.
    pub(super) fn add_product(self, x: &[f32], panels: &Panels, sums: &mut [f32]) {
        let Panels { inputs, outputs, .. } = *panels;
        let cost = |x: &[f32]| panels.cost(x.len() / inputs);
        let blocks = x.chunks(BLOCK_ROWS * inputs).zip(sums.chunks_mut(BLOCK_ROWS * outputs));
        if kernel_threads::part_count(cost(x)) <= blocks.len() {
            kernel_threads::each(blocks.collect(), |(x, sums)| {
                let sums = sums.chunks_exact_mut(outputs).collect();
                let share = OutputShare { outputs: 0..outputs, sums };
                self.with_columns(x, inputs, |columns| self.add(columns, panels, share));
            });
        } else {
            for (x, sums) in blocks {
                self.with_columns(x, inputs, |columns| {
                    kernel_threads::each(shares(outputs, cost(x), sums), |share| {
                        self.add(columns, panels, share);
                    });
                });
            }
        }
    }

    /// Calls `multiply` with the rows `x [rows, inputs]` as [`Tiles`] transpose them.
    fn with_columns(self, x: &[f32], inputs: usize, multiply: impl FnOnce(&[f32])) {
        // A thread keeps its buffer, because the allocator would reserve several MiB for each size of buffer.
        thread_local!(static COLUMNS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) });
        let mut columns = COLUMNS.take();
        self.0.run(Tiles { x, inputs, columns: &mut columns });
        multiply(&columns);
        COLUMNS.set(columns);
    }

    fn add(self, columns: &[f32], panels: &Panels, share: OutputShare<'_>) {
        let Panels { inputs, .. } = *panels;
        match &panels.weights {
            PanelWeights::Float32(weights) => {
                self.0.run(Addition { columns, inputs, weights, share })
            }
            PanelWeights::Bfloat16(weights) => {
                self.0.run(Addition { columns, inputs, weights, share })
            }
        }
    }
}

/// Divides the sums of a block into shares for the threads. Each share has the outputs of whole panels.
fn shares(outputs: usize, cost: usize, sums: &mut [f32]) -> Vec<OutputShare<'_>> {
    let rows = sums.len() / outputs;
    let panels = kernel_threads::parts(outputs.div_ceil(PANEL), cost);
    let mut shares: Vec<OutputShare<'_>> = panels
        .map(|panels| OutputShare {
            outputs: panels.start * PANEL..(panels.end * PANEL).min(outputs),
            sums: Vec::with_capacity(rows),
        })
        .collect();
    for mut row in sums.chunks_exact_mut(outputs) {
        for OutputShare { outputs, sums } in &mut shares {
            let (own, others) = row.split_at_mut(outputs.len());
            sums.push(own);
            row = others;
        }
    }
    shares
}

/// Returns the number of rows of the largest tile.
const fn tile_rows<S: Simd>() -> usize {
    if S::REGISTER_COUNT < 32 { MEDIUM_TILE } else { WIDE_TILE }
}

/// The division of the rows of a block into tiles. The last tile is padded with rows of zeros.
#[derive(Clone, Copy)]
struct Tiling {
    /// The number of rows of the largest tile.
    tile: usize,
    /// The number of rows of all tiles of the largest size, padding included.
    full: usize,
    /// The number of rows of a smaller last tile; 0 if there is none.
    last: usize,
}

impl Tiling {
    #[inline(always)]
    fn of<S: Simd>(rows: usize) -> Self {
        let tile = tile_rows::<S>();
        let full = rows / tile * tile;
        match rows - full {
            0 => Self { tile, full, last: 0 },
            rest if rest <= NARROW_TILE => Self { tile, full, last: NARROW_TILE },
            rest if rest <= HALF_TILE && HALF_TILE < tile => Self { tile, full, last: HALF_TILE },
            _ => Self { tile, full: full + tile, last: 0 },
        }
    }

    #[inline(always)]
    fn count(self) -> usize {
        self.full / self.tile + usize::from(self.last > 0)
    }
}

/// Transposes the rows of a block `x [rows, inputs]`, tile by tile. The last tile is padded with zeros.
struct Tiles<'a> {
    x: &'a [f32],
    inputs: usize,
    /// Receives the result. Its contents are replaced.
    columns: &'a mut Vec<f32>,
}

impl WithSimd for Tiles<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Self { x, inputs, columns } = self;
        let Tiling { tile, full, last } = Tiling::of::<S>(x.len() / inputs);
        columns.clear();
        columns.resize((full + last) * inputs, 0.0);
        let (of_full, of_last) = columns.split_at_mut(full * inputs);
        let (full_x, last_x) = x.split_at(x.len().min(full * inputs));
        let tiles = of_full.chunks_exact_mut(tile * inputs);
        for (x, columns) in full_x.chunks(tile * inputs).zip(tiles) {
            transpose(x, inputs, columns, tile);
        }
        transpose(last_x, inputs, of_last, last.max(1));
    }
}

/// Adds the products of a block with the weights of a share's outputs to the sums of the share.
struct Addition<'a, W> {
    /// The rows of the block, transposed by [`Tiles`].
    columns: &'a [f32],
    inputs: usize,
    weights: &'a [W],
    share: OutputShare<'a>,
}

impl<W: Weight> WithSimd for Addition<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { columns, inputs, weights, share: OutputShare { outputs, mut sums } } = self;
        let tiling = Tiling::of::<S>(sums.len());
        let Tiling { tile, full, last } = tiling;
        let width = 2 * S::F32_LANES;
        for output in outputs.clone().step_by(width) {
            let (panel, later) =
                weights[output / PANEL * PANEL * inputs..].split_at(PANEL * inputs);
            let column = output % PANEL;
            // The tiles of a panel fetch equal parts of the next one, which arrive while they compute.
            let is_last = output / PANEL == (outputs.end - 1) / PANEL;
            let next = if is_last { &[] } else { &later[..PANEL * inputs] };
            let part = next.len().div_ceil(PANEL / width * tiling.count()).max(1);
            let mut ahead = next.chunks(part).skip(column / width * tiling.count());
            let strip = Strip { panel, inputs, column, start: output - outputs.start };
            if tile == WIDE_TILE {
                strip.add_tiles::<S, WIDE_TILE>(simd, 0..full, columns, &mut sums, &mut ahead);
            } else {
                strip.add_tiles::<S, MEDIUM_TILE>(simd, 0..full, columns, &mut sums, &mut ahead);
            }
            let rest = full..full + last;
            if last == HALF_TILE && tile == WIDE_TILE {
                strip.add_tiles::<S, HALF_TILE>(simd, rest, columns, &mut sums, &mut ahead);
            } else {
                strip.add_tiles::<S, NARROW_TILE>(simd, rest, columns, &mut sums, &mut ahead);
            }
        }
    }
}

/// Two adjacent vectors of the outputs of a panel.
struct Strip<'a, W> {
    panel: &'a [W],
    inputs: usize,
    /// The index of the strip's first output in the panel.
    column: usize,
    /// The index of the strip's first output in each row of `sums`.
    start: usize,
}

impl<W: Weight> Strip<'_, W> {
    /// Adds the products of `rows`, whose number is a multiple of `ROWS`, to their sums. The padding rows of the last tile have no sums.
    /// Each tile also fetches the next part of `ahead` into the cache.
    #[inline(always)]
    fn add_tiles<'a, S: Simd, const ROWS: usize>(
        &self,
        simd: S,
        rows: Range<usize>,
        columns: &[f32],
        sums: &mut [&mut [f32]],
        ahead: &mut impl Iterator<Item = &'a [W]>,
    ) where
        W: 'a,
    {
        for row in rows.step_by(ROWS) {
            let columns = &columns[row * self.inputs..][..ROWS * self.inputs];
            let product = self.tile::<S, ROWS>(simd, columns, ahead.next().unwrap_or_default());
            for (sums, product) in sums[row..].iter_mut().zip(product) {
                let sums = sums[self.start..].chunks_mut(S::F32_LANES);
                for (sums, product) in sums.zip(product) {
                    let sum = simd.add_f32s(simd.partial_load_f32s(sums), product);
                    simd.partial_store_f32s(sums, sum);
                }
            }
        }
    }

    /// Returns the product of `columns [inputs, ROWS]` with the weights of the strip. Fetches `ahead` into the cache meanwhile.
    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize>(
        &self,
        simd: S,
        columns: &[f32],
        ahead: &[W],
    ) -> [[S::f32s; 2]; ROWS] {
        let mut sums = [[simd.splat_f32s(0.0); 2]; ROWS];
        let (columns, _) = columns.as_chunks::<ROWS>();
        let mut ahead =
            ahead.chunks(ahead.len().div_ceil(self.inputs.div_ceil(PREFETCH_INPUTS)).max(1));
        for (columns, panel) in
            columns.chunks(PREFETCH_INPUTS).zip(self.panel.chunks(PREFETCH_INPUTS * PANEL))
        {
            prefetch(ahead.next().unwrap_or_default());
            for (x, weights) in columns.iter().zip(panel.chunks_exact(PANEL)) {
                let [first, second] = W::vectors(simd, &weights[self.column..]);
                for ([sum_of_first, sum_of_second], x) in sums.iter_mut().zip(x) {
                    let x = simd.splat_f32s(*x);
                    *sum_of_first = simd.mul_add_f32s(x, first, *sum_of_first);
                    *sum_of_second = simd.mul_add_f32s(x, second, *sum_of_second);
                }
            }
        }
        sums
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn all_instructions_sum_in_the_order_of_the_inputs() {
        let (inputs, outputs) = (37, 70);
        let numbers = |count: usize, seed: usize| -> Vec<f32> {
            (0..count).map(|at| ((at * 7 + seed) as f32).sin()).collect()
        };
        let weights = numbers(inputs * outputs, 1);
        let panels = Panels::new(&weights, inputs, Precision::Float32);
        for instructions in Instructions::all() {
            for rows in [1, 4, 5, 8, 9, 12, 20, 23, 100] {
                let x = numbers(rows * inputs, 2);
                let mut sums = vec![0.0; rows * outputs];
                MatrixKernel(instructions).add_product(&x, &panels, &mut sums);
                let expected = x.chunks(inputs).flat_map(|x| {
                    weights.chunks(inputs).map(move |weights| {
                        let products = x.iter().zip(weights);
                        products.fold(0.0, |sum: f32, (x, weight)| x.mul_add(*weight, sum))
                    })
                });
                assert!(expected.eq(sums), "{instructions:?}, {rows} rows");
            }
        }
    }
}
