//! Ports for processes that are told of them before they listen.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// A port of this machine that nothing listens at, below those that a system lends to whoever connects.
pub(crate) fn reserved() -> u16 {
    /// Each process of tests begins elsewhere.
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 400) as u16 * 50;
    let next = || first + TAKEN.fetch_add(1, Ordering::Relaxed);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(next).find(is_free).expect("one is free")
}
