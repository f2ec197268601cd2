//! Ending the process from a thread that is not its main one.
#![allow(unsafe_code, reason = "the standard library has no exit that runs nothing")]

/// Ends the process with `status`, at once. Neither destructors nor what libraries do at an exit runs: other threads go on until the last
/// instant, and a library that is taken down beneath them would crash the process instead.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: `_exit` reads its argument only, and does not return.
    unsafe { libc::_exit(status) }
}
