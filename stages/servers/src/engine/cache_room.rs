//! The room in the KV cache of a server.

use tokio::time::Instant;

use crate::server::CacheUse;

/// The least used share of a KV cache from which its size is estimated. Below it, the estimate is rough and the room is no bottleneck.
const LEAST_SHARE: f64 = 0.25;

/// The estimated size and the state of a server's KV cache.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CacheRoom {
    /// The size in running tokens, as this engine counts them; `None` if it is unknown.
    pub(super) tokens: Option<f64>,
    /// `true` if requests wait in the server.
    pub(super) is_full: bool,
    /// `true` while a reading is in progress.
    pub(super) is_polled: bool,
    /// The time of the next reading.
    pub(super) due: Option<Instant>,
}

impl CacheRoom {
    /// Records the use of the cache at a time at which `load` tokens were running.
    ///
    /// The size follows from both, in the unit of `load`: prompts that share their prefix, and the requests of others, are accounted for.
    pub(super) fn update(&mut self, used: Option<CacheUse>, load: u64) {
        let known = used.filter(|used| used.share >= LEAST_SHARE && load > 0);
        self.tokens = known.map(|used| load as f64 / used.share);
        self.is_full = used.is_some_and(|used| used.waiting > 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_follows_from_use_and_load() {
        let mut room = CacheRoom::default();
        room.update(Some(CacheUse { share: 0.5, waiting: 0.0 }), 200);
        assert_eq!((room.tokens, room.is_full), (Some(400.0), false));
        room.update(Some(CacheUse { share: 0.1, waiting: 2.0 }), 200);
        assert_eq!((room.tokens, room.is_full), (None, true));
        room.update(None, 200);
        assert_eq!((room.tokens, room.is_full), (None, false));
    }
}
