//! The vector instructions for which the kernels of this crate are compiled.

/// The widest vector instructions of a processor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Instructions {
    /// AVX-512 F, besides AVX2 and FMA.
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
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            let wide = is_x86_feature_detected!("avx512f");
            return Some(if wide { Self::Avx512 } else { Self::Avx2 });
        }
        None
    }
}
