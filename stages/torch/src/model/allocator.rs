//! The allocator of the C library, from which libtorch takes its memory.

/// Returns free memory of libtorch to the system.
///
/// The C library keeps freed memory for later allocations, and raises the amount when large tensors are freed. After weights were packed,
/// that is as much as they had, although the packed weights are in other memory. Costs milliseconds, and the next tensors take page faults,
/// so call it rarely. Does nothing with other C libraries than glibc.
pub(crate) fn return_free_memory() {
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code, reason = "a function of the C library")]
    // SAFETY: the function may be called at any time and on any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
