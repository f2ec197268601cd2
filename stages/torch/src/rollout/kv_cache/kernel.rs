//! Attention of one token over the blocks of its sequence, on a CPU.
//!
//! A row is summed in one order, which depends on its own length only, so its results are bit-identical in every batch.
//!
//! Keys are transposed within a block, `[head_dim, BLOCK]`, so that a vector holds one number of each of several positions. The scores of
//! these positions are sums of such vectors, without a reduction across a vector. Values are `[BLOCK, head_dim]`, so that their weighted
//! sum is also a sum of vectors.

use pulp::{Simd, WithSimd};

use super::super::blocks::BLOCK;
use crate::model::vectorized::{Instructions, exp};

/// The attention kernel. A value exists only if the processor can run it.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionKernel(Instructions);

/// The attention of the scaled queries `q [kv_heads, group, dim]` over the first `length` positions of `blocks`. The result is written to
/// `out`, in the shape of `q`.
pub(super) struct Attention<'a> {
    pub(super) shape: HeadShape,
    pub(super) q: &'a [f32],
    /// The blocks of the sequence, each `[kv_heads, 2, BLOCK * dim]`: the keys of a head, then its values.
    pub(super) blocks: &'a [&'a [f32]],
    pub(super) length: usize,
    /// A buffer for the attention weights. It is reused from call to call.
    pub(super) weights: &'a mut Vec<f32>,
    pub(super) out: &'a mut [f32],
}

/// The shape of the heads: `kv_heads` key heads, `group` query heads for each key head, and `dim` numbers per head.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadShape {
    pub(super) kv_heads: usize,
    pub(super) group: usize,
    pub(super) dim: usize,
}

impl AttentionKernel {
    /// Returns the kernel. `None` if the processor cannot run it, or this crate is compiled without vectorization.
    pub(super) fn detect() -> Option<Self> {
        Instructions::detect().map(Self)
    }

    pub(super) fn attend(self, attention: Attention<'_>) {
        self.0.run(attention);
    }
}

impl WithSimd for Attention<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { shape, q, blocks, length, weights, out } = self;
        let HeadShape { kv_heads, group, dim } = shape;
        let padded = blocks.len() * BLOCK;
        let unit = BLOCK * dim;
        weights.resize(group * padded, 0.0);
        for head in 0..kv_heads {
            let own = head * group * dim..(head + 1) * group * dim;
            let (q, out) = (&q[own.clone()], &mut out[own]);
            for (at, block) in blocks.iter().enumerate() {
                let keys = &block[2 * head * unit..][..unit];
                for (q, weights) in q.chunks_exact(dim).zip(weights.chunks_exact_mut(padded)) {
                    scores(simd, q, keys, &mut weights[at * BLOCK..][..BLOCK]);
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
                    accumulate(simd, &weights[positions.clone()], values, out);
                }
            }
        }
    }
}

/// Writes the products of `q [dim]` with each column of `keys [dim, BLOCK]` to `scores [BLOCK]`.
///
/// Four partial sums hide the latency of an addition.
#[inline(always)]
fn scores<S: Simd>(simd: S, q: &[f32], keys: &[f32], scores: &mut [f32]) {
    let (fours, rest) = q.as_chunks::<4>();
    let (keys, rest_keys) = keys.split_at(4 * BLOCK * fours.len());
    for (at, scores) in S::as_mut_simd_f32s(scores).0.iter_mut().enumerate() {
        let key = |keys: &[f32]| S::as_simd_f32s(keys).0[at];
        let mut sums = [simd.splat_f32s(0.0); 4];
        for (q, keys) in fours.iter().zip(keys.chunks_exact(4 * BLOCK)) {
            for part in 0..4 {
                let key = key(&keys[part * BLOCK..][..BLOCK]);
                sums[part] = simd.mul_add_f32s(simd.splat_f32s(q[part]), key, sums[part]);
            }
        }
        for (q, keys) in rest.iter().zip(rest_keys.chunks_exact(BLOCK)) {
            sums[0] = simd.mul_add_f32s(simd.splat_f32s(*q), key(keys), sums[0]);
        }
        let [a, b, c, d] = sums;
        *scores = simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d));
    }
}

/// Adds the sum of the rows of `values [.., dim]`, each times its weight, to `out [dim]`.
#[inline(always)]
fn accumulate<S: Simd>(simd: S, weights: &[f32], values: &[f32], out: &mut [f32]) {
    let dim = out.len();
    let rows = || weights.iter().zip(values.chunks_exact(dim));
    let (vectors, rest) = S::as_mut_simd_f32s(out);
    let start = dim - rest.len();
    let (strips, single) = vectors.as_chunks_mut::<4>();
    let after = 4 * strips.len();
    for (at, strip) in (0..).step_by(4).zip(strips) {
        add_strip(simd, rows(), at, strip);
    }
    for (at, strip) in (after..).zip(single.as_chunks_mut::<1>().0) {
        add_strip(simd, rows(), at, strip);
    }
    for (weight, row) in rows() {
        for (out, number) in rest.iter_mut().zip(&row[start..]) {
            *out = weight.mul_add(*number, *out);
        }
    }
}

/// Adds the sum of weighted rows to a strip of vectors, which begins at vector `at` of a row. The sums stay in registers.
#[inline(always)]
fn add_strip<'a, S: Simd, const N: usize>(
    simd: S,
    rows: impl Iterator<Item = (&'a f32, &'a [f32])>,
    at: usize,
    strip: &mut [S::f32s; N],
) {
    let mut sums = *strip;
    for (weight, row) in rows {
        let (weight, row) = (simd.splat_f32s(*weight), &S::as_simd_f32s(row).0[at..][..N]);
        for (sum, number) in sums.iter_mut().zip(row) {
            *sum = simd.mul_add_f32s(weight, *number, *sum);
        }
    }
    *strip = sums;
}

/// Replaces scores by their softmax. If a score is NaN, all weights are NaN.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn all_instructions_compute_the_same_bits() {
        let numbers =
            |count: usize| -> Vec<f32> { (0..count).map(|at| (at as f32).sin()).collect() };
        for (dim, length) in [(64, 40_usize), (80, 16), (10, 3)] {
            let shape = HeadShape { kv_heads: 2, group: 3, dim };
            let (q, blocks) = (numbers(6 * dim), numbers(3 * 4 * BLOCK * dim));
            let blocks: Vec<&[f32]> =
                blocks.chunks(4 * BLOCK * dim).take(length.div_ceil(BLOCK)).collect();
            let attended = Instructions::all().into_iter().map(|instructions| {
                let (mut weights, mut out) = (Vec::new(), vec![0.0; q.len()]);
                let (weights, blocks) = (&mut weights, &blocks[..]);
                let attention = Attention { shape, q: &q, blocks, length, weights, out: &mut out };
                AttentionKernel(instructions).attend(attention);
                out
            });
            let attended: Vec<Vec<f32>> = attended.collect();
            assert!(attended.windows(2).all(|pair| pair[0] == pair[1]), "{dim} {length}");
        }
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
