//! Process exit from a thread that is not the main thread.
#![allow(unsafe_code, reason = "the standard library has no exit that runs nothing")]

/// Ends the process with `status` immediately, without running destructors or exit handlers. Other threads run until the process ends, and
/// the exit handlers of libraries that they use could crash the process.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: `_exit` reads its argument only, and does not return.
    unsafe { libc::_exit(status) }
}
