//! Process exit from a thread that is not the main thread.
#![allow(unsafe_code, reason = "the standard library has no exit that runs nothing")]

/// Ends the process with `status` immediately, without running destructors or exit handlers. Exit handlers could crash the process, because
/// other threads may still use the libraries that the handlers tear down.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: `_exit` reads its argument only, and does not return.
    unsafe { libc::_exit(status) }
}
