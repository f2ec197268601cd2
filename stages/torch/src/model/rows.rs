//! The operations between the matrix products of a layer, for inference on a CPU.
//!
//! libtorch computes a norm by seven operations and a rotation by three. In a decode iteration of few rows, the calls take several times as
//! long as their arithmetic; with many rows, each operation reads and writes all of them. Here a row is computed completely while it is in
//! the cache.
//!
//! A row is computed in one order, whatever the number of rows and threads, so its results are bit-identical in every batch.

use std::borrow::Cow;

use pulp::{Simd, WithSimd};
use tch::{TchError, Tensor};

use super::vectorized::{Instructions, exp};
use super::{host, kernel_threads};

/// Number of partial sums of a norm. Several independent sums hide the latency of an addition.
const LANES: usize = 16;

/// The assumed cost of an element of a result, in multiplications of the matrix kernel.
const COST: usize = 8;

/// The CPU kernels for the operations between the matrix products of a layer. A value exists only if the processor has the instructions for
/// which they are compiled.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowOperations(Instructions);

/// An RMS norm of `weight.len()` numbers.
#[derive(Debug)]
pub(super) struct RmsNorm<'a> {
    pub(super) weight: Cow<'a, [f32]>,
    pub(super) eps: f32,
}

/// Adjacent heads of `dim` numbers each in the columns of a row.
#[derive(Debug)]
pub(super) struct HeadColumns<'a> {
    /// The index of the first column.
    pub(super) start: usize,
    pub(super) heads: usize,
    pub(super) dim: usize,
    /// The norm that is applied to each head before the rotation; `None` if the model has none.
    pub(super) norm: Option<RmsNorm<'a>>,
}

/// An operation that computes a result row by row. Implementations of `write` must be `#[inline(always)]`, so that they are compiled for
/// the instructions of their caller.
trait RowOperation: Sync {
    /// Writes row `row` of the result to `out`.
    fn write(&self, row: usize, out: &mut [f32]);
}

/// Rows of `width` numbers of a result, from row `first`.
struct OutputRows<'a, O> {
    operation: &'a O,
    first: usize,
    width: usize,
    out: &'a mut [f32],
}

struct Normalized<'a> {
    x: &'a [f32],
    norm: &'a RmsNorm<'a>,
}

struct Rotated<'a> {
    x: &'a [f32],
    width: usize,
    columns: &'a HeadColumns<'a>,
    cos: &'a [f32],
    sin: &'a [f32],
}

struct Gated<'a> {
    gate_up: &'a [f32],
}

impl RowOperations {
    /// Returns the kernels. `None` if the processor cannot run them, or this crate is compiled without vectorization.
    pub(super) fn detect() -> Option<Self> {
        Instructions::detect().map(Self)
    }

    /// Applies `norm` to each row of `x [n, width]`.
    pub(super) fn normalize(self, x: &Tensor, norm: &RmsNorm<'_>) -> Result<Tensor, TchError> {
        let (rows, width) = x.size2()?;
        self.each(&[rows, width], &Normalized { x: &host::floats(x)?, norm })
    }

    /// Rotates the heads in `columns` of each row of `x [n, width]`, after the norm of `columns` if there is one. Returns the heads as
    /// `[n, heads, dim]`.
    ///
    /// Each pair `(h[i], h[i + dim / 2])` of a head `h` is rotated by an angle of its own. `cos` and `sin` have `dim` numbers for each row;
    /// the sine is negated in the first half.
    pub(super) fn rotate(
        self,
        x: &Tensor,
        columns: &HeadColumns<'_>,
        cos: &Tensor,
        sin: &Tensor,
    ) -> Result<Tensor, TchError> {
        let (rows, width) = x.size2()?;
        let (x, cos, sin) = (host::floats(x)?, host::floats(cos)?, host::floats(sin)?);
        let size = [rows, columns.heads as i64, columns.dim as i64];
        let width = width as usize;
        self.each(&size, &Rotated { x: &x, width, columns, cos: &cos, sin: &sin })
    }

    /// Returns `silu(gate) * up` for `gate_up [n, 2 * inner]`, as `[n, inner]`.
    pub(super) fn gate(self, gate_up: &Tensor) -> Result<Tensor, TchError> {
        let (rows, width) = gate_up.size2()?;
        self.each(&[rows, width / 2], &Gated { gate_up: &host::floats(gate_up)? })
    }

    /// Returns a tensor of size `size [n, ..]` that an operation writes row by row, on the kernel threads of the caller.
    fn each<O: RowOperation>(self, size: &[i64], operation: &O) -> Result<Tensor, TchError> {
        let rows = size.first().map_or(0, |rows| *rows as usize);
        host::create_tensor(size, None, |out| {
            let width = out.len() / rows;
            let parts = kernel_threads::parts(rows, COST * out.len());
            let parts = kernel_threads::split(out, width, parts).map(|(rows, out)| OutputRows {
                operation,
                first: rows.start,
                width,
                out,
            });
            kernel_threads::each(parts.collect(), |part| self.0.run(part));
        })
    }
}

impl<O: RowOperation> WithSimd for OutputRows<'_, O> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        for (row, out) in (self.first..).zip(self.out.chunks_exact_mut(self.width)) {
            self.operation.write(row, out);
        }
    }
}

impl RowOperation for Normalized<'_> {
    #[inline(always)]
    fn write(&self, row: usize, out: &mut [f32]) {
        self.norm.write(&self.x[row * out.len()..][..out.len()], out);
    }
}

impl RowOperation for Rotated<'_> {
    #[inline(always)]
    fn write(&self, row: usize, out: &mut [f32]) {
        let HeadColumns { start, heads, dim, ref norm } = *self.columns;
        let x = &self.x[row * self.width + start..][..heads * dim];
        let (cos, sin) = (&self.cos[row * dim..][..dim], &self.sin[row * dim..][..dim]);
        for (x, out) in x.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
            match norm {
                Some(norm) => norm.write(x, out),
                None => out.copy_from_slice(x),
            }
            let (first, second) = out.split_at_mut(dim / 2);
            let (cos_first, cos_second) = cos.split_at(dim / 2);
            let (sin_first, sin_second) = sin.split_at(dim / 2);
            for at in 0..dim / 2 {
                let pair = (first[at], second[at]);
                first[at] = pair.1.mul_add(sin_first[at], pair.0 * cos_first[at]);
                second[at] = pair.0.mul_add(sin_second[at], pair.1 * cos_second[at]);
            }
        }
    }
}

impl RowOperation for Gated<'_> {
    #[inline(always)]
    fn write(&self, row: usize, out: &mut [f32]) {
        let inner = out.len();
        let (gate, up) = self.gate_up[2 * row * inner..][..2 * inner].split_at(inner);
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            // `exp` accepts only numbers up to 0.
            let power = exp(-gate.abs());
            let numerator = if *gate < 0.0 { power } else { 1.0 };
            *out = gate * numerator / (1.0 + power) * up;
        }
    }
}

impl RmsNorm<'_> {
    #[inline(always)]
    fn write(&self, x: &[f32], out: &mut [f32]) {
        let mut squares = [0.0; LANES];
        let (chunks, rest) = x.as_chunks::<LANES>();
        for x in chunks {
            for (sum, x) in squares.iter_mut().zip(x) {
                *sum = x.mul_add(*x, *sum);
            }
        }
        for (sum, x) in squares.iter_mut().zip(rest) {
            *sum = x.mul_add(*x, *sum);
        }
        let mean = squares.iter().sum::<f32>() / x.len() as f32;
        let factor = (mean + self.eps).sqrt().recip();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(self.weight.iter()) {
            *out = x * factor * weight;
        }
    }
}
