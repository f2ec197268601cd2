//! Code that is compiled for the vector instructions of the processor.

use pulp::{Arch, WithSimd};

/// The vector instructions of a processor, for which the kernels of this crate are compiled.
///
/// `with_simd` of a kernel, and all functions that it calls, must be `#[inline(always)]`: they are compiled for the instructions of their
/// caller. Sums that must stay in registers are vectors of [`pulp`], because the compiler does not always vectorize a loop over an array of
/// sums.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instructions(Arch);

impl Instructions {
    /// Returns the widest instructions that the processor has: AVX-512, otherwise AVX2 and FMA. `None` if the processor has neither, if it
    /// is not an x86-64, because the kernels are not tested on others, or if this crate is compiled without vectorization.
    pub(crate) fn detect() -> Option<Self> {
        let arch = Arch::new();
        let has_kernels = cfg!(all(vectorized, target_arch = "x86_64"));
        (has_kernels && !matches!(arch, Arch::Scalar)).then_some(Self(arch))
    }

    /// Returns all sets of instructions that the processor has and kernels are compiled for.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn all() -> Vec<Self> {
        let widest = Self::detect();
        let narrower = match widest {
            Some(Self(Arch::V4(simd))) => Some(Self(Arch::V3(*simd))),
            _ => None,
        };
        widest.into_iter().chain(narrower).collect()
    }

    pub(crate) fn run<K: WithSimd>(self, kernel: K) -> K::Output {
        self.0.dispatch(kernel)
    }
}

/// Asks the processor to read numbers into its cache, because they are needed soon. Does nothing on processors other than x86-64.
#[inline(always)]
pub(crate) fn prefetch<T>(numbers: &[T]) {
    /// The size of a cache line in bytes.
    const LINE: usize = 64;
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (numbers, LINE);
    #[cfg(target_arch = "x86_64")]
    for first in numbers.iter().step_by(LINE / size_of::<T>()) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the pointer is that of a reference, the instruction changes nothing but the cache, and every x86-64 has it.
        #[allow(unsafe_code, reason = "the standard library has no safe prefetch")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(first).cast());
        }
    }
}

/// Returns `e^x` for `x <= 0`, with a relative error below 2e-7; `x` below -87 counts as -87. The exponential of the standard library is
/// not vectorized.
///
/// `x = n ln 2 + r` with an integer `n` and a small `r`: `e^x = 2^n e^r`, with the polynomial of Cephes for `e^r`. Adding `ROUND` rounds to
/// an integer, which is then in the low bits of the sum.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// 1.5 * 2^23
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 as a sum. The first number has few bits, so that its product with `n` is exact.
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
}
