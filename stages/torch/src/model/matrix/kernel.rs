//! The product of rows with packed weights, on a CPU.
//!
//! The code is plain Rust over fixed-size arrays, which the compiler vectorizes for the instructions that [`Kernel::detect`] finds. An
//! element is summed in the order of the inputs, whatever the number of rows, so its bits are the same in every batch.

/// Number of outputs whose weights are stored side by side.
pub(super) const PANEL: usize = 32;

/// Maximum number of rows that use a panel before the next one is read, so that they stay in the processor's cache.
const BLOCK_ROWS: usize = 96;

/// The instructions that the processor has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel(Instructions);

#[derive(Clone, Copy, Debug)]
enum Instructions {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

/// Weights `[outputs, inputs]` as panels `[inputs, PANEL]` of outputs, the last filled up with zeros.
#[derive(Debug)]
pub(super) struct Panels {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    numbers: Vec<f32>,
}

impl Panels {
    /// Packs `weights [outputs, inputs]`. There must be at least one input.
    pub(super) fn new(weights: &[f32], inputs: usize) -> Self {
        let outputs = weights.len() / inputs;
        let mut numbers = vec![0.0; outputs.next_multiple_of(PANEL) * inputs];
        let rows = weights.chunks(PANEL * inputs);
        for (rows, panel) in rows.zip(numbers.chunks_exact_mut(PANEL * inputs)) {
            transpose(rows, inputs, panel, PANEL);
        }
        Self { inputs, outputs, numbers }
    }
}

/// Writes rows of `length` numbers as columns of a matrix with rows of `width` numbers.
#[inline(always)]
fn transpose(rows: &[f32], length: usize, columns: &mut [f32], width: usize) {
    for (at, row) in rows.chunks_exact(length).enumerate() {
        for (column, number) in columns[at..].iter_mut().step_by(width).zip(row) {
            *column = *number;
        }
    }
}

impl Kernel {
    /// Returns the fastest kernel that the processor can run. `None` if there is none, or this crate is compiled without vectorization.
    pub(super) fn detect() -> Option<Self> {
        if !cfg!(vectorized) {
            return None;
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            return Some(Self(Instructions::Avx512));
        } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Some(Self(Instructions::Avx2));
        }
        None
    }

    /// Adds the product of `x [rows, inputs]` with the weights to `sums [rows, outputs]`.
    pub(super) fn add_product(self, x: &[f32], panels: &Panels, sums: &mut [f32]) {
        #[allow(
            unsafe_code,
            reason = "a function with target features is called by an unsafe call"
        )]
        match self.0 {
            // SAFETY: `detect`, the only constructor, has found AVX-512.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => unsafe { add_avx512(x, panels, sums) },
            // SAFETY: `detect`, the only constructor, has found AVX2 and FMA.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { add_avx2(x, panels, sums) },
        }
    }
}

// A tile is as large as the registers allow: AVX-512 has 32 registers of 16 numbers, AVX2 16 of 8.

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn add_avx512(x: &[f32], panels: &Panels, sums: &mut [f32]) {
    add::<12, 32>(x, panels, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn add_avx2(x: &[f32], panels: &Panels, sums: &mut [f32]) {
    add::<6, 16>(x, panels, sums);
}

/// Computes tiles of up to `ROWS` rows and `WIDTH` outputs. All functions that this one calls are inlined, so that they are compiled for the
/// features of the caller.
#[inline(always)]
fn add<const ROWS: usize, const WIDTH: usize>(x: &[f32], panels: &Panels, sums: &mut [f32]) {
    let Panels { inputs, outputs, .. } = *panels;
    let blocks = x.chunks(BLOCK_ROWS * inputs).zip(sums.chunks_mut(BLOCK_ROWS * outputs));
    let mut columns = Vec::with_capacity(x.len().min(BLOCK_ROWS * inputs));
    for (x, sums) in blocks {
        columns.resize(x.len(), 0.0);
        let wide = by_tiles::<ROWS>(0, x, inputs, &mut columns);
        let narrow = by_tiles::<4>(wide, x, inputs, &mut columns);
        by_tiles::<1>(narrow, x, inputs, &mut columns);
        for output in (0..outputs).step_by(WIDTH) {
            tiles::<ROWS, WIDTH>(0..wide, &columns, panels, output, sums);
            tiles::<4, WIDTH>(wide..narrow, &columns, panels, output, sums);
            tiles::<1, WIDTH>(narrow..x.len() / inputs, &columns, panels, output, sums);
        }
    }
}

/// Transposes groups of `ROWS` rows of `x`, as many as there are from row `start` on, to the same place in `columns`. Returns the next row.
#[inline(always)]
fn by_tiles<const ROWS: usize>(
    start: usize,
    x: &[f32],
    inputs: usize,
    columns: &mut [f32],
) -> usize {
    let groups = x[start * inputs..].chunks_exact(ROWS * inputs);
    let end = start + ROWS * groups.len();
    for (rows, columns) in groups.zip(columns[start * inputs..].chunks_exact_mut(ROWS * inputs)) {
        transpose(rows, inputs, columns, ROWS);
    }
    end
}

/// Adds to the sums of `rows`, whose number is a multiple of `ROWS`, from `output` on.
#[inline(always)]
fn tiles<const ROWS: usize, const WIDTH: usize>(
    rows: std::ops::Range<usize>,
    columns: &[f32],
    panels: &Panels,
    output: usize,
    sums: &mut [f32],
) {
    let Panels { inputs, outputs, ref numbers } = *panels;
    let panel = &numbers[output / PANEL * PANEL * inputs..][..PANEL * inputs];
    let width = WIDTH.min(outputs - output);
    for row in rows.step_by(ROWS) {
        let columns = &columns[row * inputs..][..ROWS * inputs];
        let sums = &mut sums[row * outputs..][..ROWS * outputs];
        let product = tile::<ROWS, WIDTH>(columns, &panel[output % PANEL..]);
        for (sums, product) in sums.chunks_exact_mut(outputs).zip(product) {
            for (sum, product) in sums[output..output + width].iter_mut().zip(product) {
                *sum += product;
            }
        }
    }
}

/// Returns the product of `columns [inputs, ROWS]` with the first `WIDTH` outputs of a panel, or of its second half.
#[inline(always)]
fn tile<const ROWS: usize, const WIDTH: usize>(
    columns: &[f32],
    panel: &[f32],
) -> [[f32; WIDTH]; ROWS] {
    let mut sums = [[0.0; WIDTH]; ROWS];
    for (x, weights) in columns.as_chunks::<ROWS>().0.iter().zip(panel.chunks(PANEL)) {
        let Some(weights) = weights.first_chunk::<WIDTH>() else { break };
        for (sums, x) in sums.iter_mut().zip(x) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = x.mul_add(*weight, *sum);
            }
        }
    }
    sums
}
