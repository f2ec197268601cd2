//! Reserved ports for processes that need their port number before they listen on it.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Returns a free port of this machine below the ephemeral range.
pub(crate) fn reserved() -> u16 {
    /// The number of ports tried. Test processes begin at different ports, unless their ids are equal modulo 400.
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 400) as u16 * 50;
    let next = || first + TAKEN.fetch_add(1, Ordering::Relaxed);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(next).find(is_free).expect("one is free")
}
