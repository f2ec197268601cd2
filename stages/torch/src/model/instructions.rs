//! The vector instructions for which the kernels of this crate are compiled.

/// The vector instructions of a processor that has some.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Instructions {
    /// AVX-512 F.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Instructions {
    /// Returns the widest instructions that the processor has. `None` if there are none, or this crate is compiled without vectorization.
    pub(crate) fn detect() -> Option<Self> {
        if !cfg!(vectorized) {
            return None;
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            return Some(Self::Avx512);
        } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Some(Self::Avx2);
        }
        None
    }
}
