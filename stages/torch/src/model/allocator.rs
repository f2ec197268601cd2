//! The allocator of the C library, from which libtorch takes its memory on the CPU.

/// Returns free memory of libtorch to the system.
///
/// The C library keeps freed memory for later allocations, and keeps more of it after large tensors are freed. After a model's weights are
/// packed, the C library may keep as much memory as the unpacked weights used.
///
/// The call takes milliseconds, and later allocations cause page faults, so call it rarely. Does nothing with C libraries other than glibc.
pub(crate) fn return_free_memory() {
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code, reason = "a function of the C library")]
    // SAFETY: the function may be called at any time and on any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
