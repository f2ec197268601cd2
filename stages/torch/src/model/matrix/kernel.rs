//! The product of rows with packed weights, on a CPU.
//!
//! Weights are stored in float32 or rounded to bfloat16, which halves the memory to read; factors and sums are float32 in any case.
//!
//! The code is plain Rust over fixed-size arrays, which the compiler vectorizes for the instructions that [`Kernel::detect`] finds. An
//! element is summed in the order of the inputs, whatever the number of rows, so its bits are the same in every batch.

use std::ops::Range;

use half::bf16;
use rollpacker_stages::train::config::Precision;

use super::super::instructions::Instructions;
use super::super::kernel_threads;

/// Number of outputs whose weights are stored side by side.
pub(super) const PANEL: usize = 32;

/// Number of rows of a block. All rows of a block use a panel before the next one is read, so they must fit the processor's cache.
const BLOCK_ROWS: usize = 96;

/// Number of rows of the smaller tile. It takes as long as a tile of one row, which would wait for each of its sums.
const NARROW: usize = 4;

/// Number of rows up to which a product takes as long as with one row, because reading the weights takes most of the time.
const FREE_ROWS: usize = 8;

/// The kernel. A value exists only if the processor has the instructions that it needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel(Instructions);

/// Weights `[outputs, inputs]` as panels `[inputs, PANEL]` of outputs, the last filled up with zeros.
#[derive(Debug)]
pub(super) struct Panels {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    weights: Weights,
}

/// The weights of panels.
#[derive(Debug)]
enum Weights {
    Float32(Vec<f32>),
    /// Each as the upper half of a float32.
    Bfloat16(Vec<u16>),
}

/// A stored weight.
trait Weight: Copy + Default + Sync {
    fn value(self) -> f32;
}

impl Weight for f32 {
    #[inline(always)]
    fn value(self) -> f32 {
        self
    }
}

impl Weight for u16 {
    #[inline(always)]
    fn value(self) -> f32 {
        f32::from_bits(u32::from(self) << 16)
    }
}

/// A range of the outputs, and the sums of the rows of a block for them.
struct Share<'a> {
    outputs: Range<usize>,
    sums: Vec<&'a mut [f32]>,
}

impl Panels {
    /// Packs `weights [outputs, inputs]`, rounded to `precision`. There must be at least one of both.
    pub(super) fn new(weights: &[f32], inputs: usize, precision: Precision) -> Self {
        let outputs = weights.len() / inputs;
        let weights = match precision {
            Precision::Float32 => Weights::Float32(packed(weights, inputs)),
            Precision::Bfloat16 => {
                let rounded = weights.iter().map(|weight| bf16::from_f32(*weight).to_bits());
                Weights::Bfloat16(packed(&rounded.collect::<Vec<_>>(), inputs))
            }
        };
        Self { inputs, outputs, weights }
    }

    /// Returns the precision of the weights.
    pub(super) fn precision(&self) -> Precision {
        match self.weights {
            Weights::Float32(_) => Precision::Float32,
            Weights::Bfloat16(_) => Precision::Bfloat16,
        }
    }

    /// Returns the cost of a product with `rows` rows, in products of two numbers.
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

impl Kernel {
    /// Returns the fastest kernel that the processor can run. `None` if there is none, or this crate is compiled without vectorization.
    pub(super) fn detect() -> Option<Self> {
        Instructions::detect().map(Self)
    }

    /// Adds the product of `x [rows, inputs]` with the weights to `sums [rows, outputs]`. The [threads](kernel_threads) of the caller
    /// compute different blocks of rows, or different outputs if there are few rows.
    pub(super) fn add_product(self, x: &[f32], panels: &Panels, sums: &mut [f32]) {
        let Panels { inputs, outputs, .. } = *panels;
        let cost = |x: &[f32]| panels.cost(x.len() / inputs);
        let blocks = x.chunks(BLOCK_ROWS * inputs).zip(sums.chunks_mut(BLOCK_ROWS * outputs));
        if kernel_threads::worthwhile(cost(x)) <= blocks.len() {
            kernel_threads::each(blocks.collect(), |(x, sums)| {
                let sums = sums.chunks_exact_mut(outputs).collect();
                self.add(&self.transposed(x, inputs), panels, Share { outputs: 0..outputs, sums });
            });
        } else {
            for (x, sums) in blocks {
                let columns = self.transposed(x, inputs);
                kernel_threads::each(shares(outputs, cost(x), sums), |share| {
                    self.add(&columns, panels, share);
                });
            }
        }
    }

    /// Transposes the rows of a block, tile by tile.
    fn transposed(self, x: &[f32], inputs: usize) -> Vec<f32> {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => by_tiles::<AVX512_ROWS>(x, inputs),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => by_tiles::<AVX2_ROWS>(x, inputs),
        }
    }

    fn add(self, columns: &[f32], panels: &Panels, share: Share<'_>) {
        #[allow(
            unsafe_code,
            reason = "a function with target features is called by an unsafe call"
        )]
        match self.0 {
            // SAFETY: `detect`, the only constructor, has found AVX-512.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => unsafe { add_avx512(columns, panels, share) },
            // SAFETY: `detect`, the only constructor, has found AVX2 and FMA.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { add_avx2(columns, panels, share) },
        }
    }
}

/// Divides the sums of a block by outputs, at the ends of panels.
fn shares(outputs: usize, cost: usize, sums: &mut [f32]) -> Vec<Share<'_>> {
    let rows = sums.len() / outputs;
    let panels = kernel_threads::parts(outputs.div_ceil(PANEL), cost);
    let mut shares: Vec<Share<'_>> = panels
        .map(|panels| Share {
            outputs: panels.start * PANEL..(panels.end * PANEL).min(outputs),
            sums: Vec::with_capacity(rows),
        })
        .collect();
    for mut row in sums.chunks_exact_mut(outputs) {
        for Share { outputs, sums } in &mut shares {
            let (own, others) = row.split_at_mut(outputs.len());
            sums.push(own);
            row = others;
        }
    }
    shares
}

// A tile is as large as the registers allow: AVX-512 has 32 registers of 16 numbers, AVX2 16 of 8.

#[cfg(target_arch = "x86_64")]
const AVX512_ROWS: usize = 12;
#[cfg(target_arch = "x86_64")]
const AVX2_ROWS: usize = 6;

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn add_avx512(columns: &[f32], panels: &Panels, share: Share<'_>) {
    match &panels.weights {
        Weights::Float32(weights) => add::<AVX512_ROWS, 32, _>(columns, panels, weights, share),
        Weights::Bfloat16(weights) => add::<AVX512_ROWS, 32, _>(columns, panels, weights, share),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn add_avx2(columns: &[f32], panels: &Panels, share: Share<'_>) {
    match &panels.weights {
        Weights::Float32(weights) => add::<AVX2_ROWS, 16, _>(columns, panels, weights, share),
        Weights::Bfloat16(weights) => add::<AVX2_ROWS, 16, _>(columns, panels, weights, share),
    }
}

/// Computes tiles of up to `ROWS` rows and `WIDTH` outputs. All functions that this one calls are inlined, so that they are compiled for
/// the features of the caller.
#[inline(always)]
fn add<const ROWS: usize, const WIDTH: usize, W: Weight>(
    columns: &[f32],
    &Panels { inputs, .. }: &Panels,
    weights: &[W],
    Share { outputs, mut sums }: Share<'_>,
) {
    let (wide, rows) = tiled::<ROWS>(sums.len());
    for output in outputs.clone().step_by(WIDTH) {
        let at = output - outputs.start;
        let panel = &weights[output / PANEL * PANEL * inputs..][..PANEL * inputs];
        let panel = &panel[output % PANEL..];
        tiles::<ROWS, WIDTH, W>(0..wide, columns, inputs, panel, at, &mut sums);
        tiles::<NARROW, WIDTH, W>(wide..rows, columns, inputs, panel, at, &mut sums);
    }
}

/// Returns the number of rows of a block that are computed in tiles of `ROWS`, and the number of all rows with those that fill the last tile
/// of [`NARROW`].
#[inline(always)]
fn tiled<const ROWS: usize>(rows: usize) -> (usize, usize) {
    let wide = rows / ROWS * ROWS;
    (wide, wide + (rows - wide).next_multiple_of(NARROW))
}

/// Transposes the rows of a block `x [rows, inputs]`, tile by tile. The last tile is filled up with zeros.
fn by_tiles<const ROWS: usize>(x: &[f32], inputs: usize) -> Vec<f32> {
    let (wide, rows) = tiled::<ROWS>(x.len() / inputs);
    let mut columns = vec![0.0; rows * inputs];
    let (wide_rows, narrow_rows) = x.split_at(wide * inputs);
    let (wide_tiles, narrow_tiles) = columns.split_at_mut(wide * inputs);
    for (rows, tiles, tile) in [(wide_rows, wide_tiles, ROWS), (narrow_rows, narrow_tiles, NARROW)]
    {
        for (rows, columns) in rows.chunks(tile * inputs).zip(tiles.chunks_exact_mut(tile * inputs))
        {
            transpose(rows, inputs, columns, tile);
        }
    }
    columns
}

/// Adds the products of `rows`, whose number is a multiple of `ROWS`, with the first `WIDTH` outputs of `panel`, or of its second half, to
/// their sums, which begin at `at`. Rows without sums fill the last tile up.
#[inline(always)]
fn tiles<const ROWS: usize, const WIDTH: usize, W: Weight>(
    rows: Range<usize>,
    columns: &[f32],
    inputs: usize,
    panel: &[W],
    at: usize,
    sums: &mut [&mut [f32]],
) {
    for row in rows.step_by(ROWS) {
        let columns = &columns[row * inputs..][..ROWS * inputs];
        let product = tile::<ROWS, WIDTH, W>(columns, panel);
        for (sums, product) in sums[row..].iter_mut().zip(product) {
            let end = sums.len().min(at + WIDTH);
            for (sum, product) in sums[at..end].iter_mut().zip(product) {
                *sum += product;
            }
        }
    }
}

/// Returns the product of `columns [inputs, ROWS]` with the first `WIDTH` outputs of a panel, or of its second half.
///
/// The sums must stay in registers. A call in the loop, such as of `<[T; N]>::map`, which the compiler does not always inline, would store
/// and load all of them once per input.
#[inline(always)]
fn tile<const ROWS: usize, const WIDTH: usize, W: Weight>(
    columns: &[f32],
    panel: &[W],
) -> [[f32; WIDTH]; ROWS] {
    let mut sums = [[0.0; WIDTH]; ROWS];
    for (x, weights) in columns.as_chunks::<ROWS>().0.iter().zip(panel.chunks(PANEL)) {
        let Some(weights) = weights.first_chunk::<WIDTH>() else { break };
        let mut values = [0.0; WIDTH];
        for (value, weight) in values.iter_mut().zip(weights) {
            *value = weight.value();
        }
        for (sums, x) in sums.iter_mut().zip(x) {
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = x.mul_add(value, *sum);
            }
        }
    }
    sums
}
