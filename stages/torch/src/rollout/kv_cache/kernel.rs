//! Attention of one token over the blocks of its sequence, on a CPU.
//!
//! The code is plain Rust over fixed-size arrays, which the compiler vectorizes for the instructions that [`Kernel::detect`] finds. A row
//! is summed in one order, which depends on its own length only, so its bits are the same in every batch.
//!
//! Keys are transposed within a block, `[head_dim, BLOCK]`: an array holds one number for each position, and the scores of a block are sums
//! of such arrays without a reduction across one. Values are `[BLOCK, head_dim]`, so that the weighted sum of a block is one of arrays,
//! too.

use super::super::blocks::BLOCK;
use crate::model::instructions::Instructions;

/// The kernel. A value exists only if the processor has the instructions for which it is compiled: AVX2 and FMA.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel(Instructions);

/// The query heads that attend to a key head, and the length of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadShape {
    pub(super) kv_heads: usize,
    pub(super) group: usize,
    pub(super) dim: usize,
}

impl Kernel {
    /// Returns the kernel. `None` if the processor cannot run it, or this crate is compiled without vectorization.
    pub(super) fn detect() -> Option<Self> {
        Instructions::detect().map(Self)
    }

    /// Writes the attention of the scaled queries `q [kv_heads, group, dim]` over the first `length` positions of `blocks` to `out`, which
    /// has the shape of `q`. A block is `[kv_heads, 2, BLOCK * dim]`: for each head its keys, then its values.
    ///
    /// `weights` is memory that is reused from call to call.
    pub(super) fn attend(
        self,
        shape: HeadShape,
        q: &[f32],
        blocks: &[&[f32]],
        length: usize,
        weights: &mut Vec<f32>,
        out: &mut [f32],
    ) {
        #[allow(
            unsafe_code,
            reason = "a function with target features is called by an unsafe call"
        )]
        match self.0 {
            // SAFETY: `detect`, the only constructor, has found AVX2 and FMA, also where it has found AVX-512.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 | Instructions::Avx2 => unsafe {
                attend_avx2(shape, q, blocks, length, weights, out);
            },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn attend_avx2(
    shape: HeadShape,
    q: &[f32],
    blocks: &[&[f32]],
    length: usize,
    weights: &mut Vec<f32>,
    out: &mut [f32],
) {
    attend(shape, q, blocks, length, weights, out);
}

/// Attends head by head. All functions that this one calls are inlined, so that they are compiled for the features of the caller.
#[inline(always)]
fn attend(
    HeadShape { kv_heads, group, dim }: HeadShape,
    q: &[f32],
    blocks: &[&[f32]],
    length: usize,
    weights: &mut Vec<f32>,
    out: &mut [f32],
) {
    let padded = blocks.len() * BLOCK;
    let unit = BLOCK * dim;
    weights.resize(group * padded, 0.0);
    for head in 0..kv_heads {
        let own = head * group * dim..(head + 1) * group * dim;
        let (q, out) = (&q[own.clone()], &mut out[own]);
        for (at, block) in blocks.iter().enumerate() {
            let keys = &block[2 * head * unit..][..unit];
            for (q, weights) in q.chunks_exact(dim).zip(weights.chunks_exact_mut(padded)) {
                weights[at * BLOCK..][..BLOCK].copy_from_slice(&scores(q, keys));
            }
        }
        for weights in weights.chunks_exact_mut(padded) {
            softmax(&mut weights[..length]);
        }
        out.fill(0.0);
        for (at, block) in blocks.iter().enumerate() {
            let values = &block[(2 * head + 1) * unit..][..unit];
            let positions = at * BLOCK..length.min((at + 1) * BLOCK);
            for (weights, out) in weights.chunks_exact(padded).zip(out.chunks_exact_mut(dim)) {
                accumulate(&weights[positions.clone()], values, out);
            }
        }
    }
}

/// Returns the product of `q [dim]` with each column of `keys [dim, BLOCK]`.
///
/// Four partial sums hide the latency of an addition.
#[inline(always)]
fn scores(q: &[f32], keys: &[f32]) -> [f32; BLOCK] {
    let mut sums = [[0.0; BLOCK]; 4];
    let (fours, rest) = q.as_chunks::<4>();
    let (keys, _) = keys.as_chunks::<BLOCK>();
    for (q, keys) in fours.iter().zip(keys.chunks_exact(4)) {
        for part in 0..4 {
            add_scaled(&mut sums[part], q[part], &keys[part]);
        }
    }
    for (q, keys) in rest.iter().zip(&keys[4 * fours.len()..]) {
        add_scaled(&mut sums[0], *q, keys);
    }
    let [a, b, c, d] = sums;
    std::array::from_fn(|at| (a[at] + b[at]) + (c[at] + d[at]))
}

/// Adds the sum of the rows of `values [.., dim]`, each times its weight, to `out [dim]`.
#[inline(always)]
fn accumulate(weights: &[f32], values: &[f32], out: &mut [f32]) {
    let dim = out.len();
    let mut start = 0;
    start = strips::<64>(start, weights, values, dim, out);
    start = strips::<16>(start, weights, values, dim, out);
    start = strips::<4>(start, weights, values, dim, out);
    strips::<1>(start, weights, values, dim, out);
}

/// Accumulates as many strips of `WIDTH` columns as there are from column `start`, each in registers. Returns the next column.
#[inline(always)]
fn strips<const WIDTH: usize>(
    mut start: usize,
    weights: &[f32],
    values: &[f32],
    dim: usize,
    out: &mut [f32],
) -> usize {
    while let Some(strip) = out.get_mut(start..).and_then(<[f32]>::first_chunk_mut::<WIDTH>) {
        let mut sums = *strip;
        for (weight, row) in weights.iter().zip(values.chunks_exact(dim)) {
            if let Some(row) = row[start..].first_chunk::<WIDTH>() {
                add_scaled(&mut sums, *weight, row);
            }
        }
        *strip = sums;
        start += WIDTH;
    }
    start
}

#[inline(always)]
fn add_scaled<const N: usize>(sums: &mut [f32; N], factor: f32, row: &[f32; N]) {
    for (sum, number) in sums.iter_mut().zip(row) {
        *sum = factor.mul_add(*number, *sum);
    }
}

/// Replaces scores by their softmax. A score that is not a number makes all weights not a number.
#[inline(always)]
fn softmax(scores: &mut [f32]) {
    let mut largest = [f32::NEG_INFINITY; BLOCK];
    for part in scores.chunks(BLOCK) {
        for (largest, score) in largest.iter_mut().zip(part) {
            *largest = if *score > *largest { *score } else { *largest };
        }
    }
    let largest = largest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0; BLOCK];
    for part in scores.chunks_mut(BLOCK) {
        for (sum, score) in sums.iter_mut().zip(part) {
            *score = exp(*score - largest);
            *sum += *score;
        }
    }
    let factor = sums.into_iter().sum::<f32>().recip();
    scores.iter_mut().for_each(|weight| *weight *= factor);
}

/// Returns `e^x` for `x <= 0`, with a relative error below 2e-7; `x` below -87 counts as -87. The exponential of the standard library is
/// not vectorized.
///
/// `x = n ln 2 + r` with an integer `n` and a small `r`: `e^x = 2^n e^r`, with the polynomial of Cephes for `e^r`. Adding `ROUND` rounds to
/// an integer, which is then in the low bits of the sum.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// 1.5 * 2^23
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts, of which the first has few bits.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    const COEFFICIENTS: [f32; 5] = [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    let x = if x < -87.0 { -87.0 } else { x };
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-LN_2[1], n.mul_add(-LN_2[0], x));
    let polynomial =
        COEFFICIENTS.into_iter().fold(1.987_569_1e-4, |sum: f32, next| sum.mul_add(r, next));
    let power = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    (polynomial.mul_add(r * r, r) + 1.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_precise_down_to_its_bound() {
        for step in 0..87_000 {
            let x = -(step as f32) / 1000.0;
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(error < 2e-7, "e^{x}: {error}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn weights_add_up_to_one_and_propagate_nan() {
        let mut scores: Vec<f32> = (0..37).map(|at| (at as f32).sin() * 20.0).collect();
        softmax(&mut scores);
        assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        let mut broken = [1.0, f32::NAN, 2.0];
        softmax(&mut broken);
        assert!(broken.iter().all(|weight| weight.is_nan()));
    }
}
