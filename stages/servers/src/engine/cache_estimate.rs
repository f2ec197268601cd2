//! The estimate of the size of a server's KV cache.

use tokio::time::Instant;

use crate::server::CacheUse;

/// The minimum used share of a KV cache, from 0 to 1, at which the size of the cache is estimated. At a lower share the estimate would be
/// rough, and the size of the cache does not limit the server.
const MIN_SHARE: f64 = 0.25;

/// The estimated size and the state of a server's KV cache.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CacheEstimate {
    /// The estimated size in tokens, as this engine counts running tokens; `None` if it is unknown.
    pub(super) tokens: Option<f64>,
    /// `true` if requests wait in the server.
    pub(super) is_full: bool,
    /// `true` while a reading is in progress.
    pub(super) is_polling: bool,
    /// The earliest time of the next reading; `None` before the first reading.
    pub(super) next_poll: Option<Instant>,
}

impl CacheEstimate {
    /// Records the use of the cache while responses with `load` tokens, prompts included, run on the server. `used` is `None` if the use is
    /// unknown.
    ///
    /// The estimate of the size is `load` divided by the used share. It therefore accounts for prompts that share their prefix, and for the
    /// requests of other clients. The size is unknown if the used share is unknown or below `MIN_SHARE`, or if `load` is 0.
    pub(super) fn update(&mut self, used: Option<CacheUse>, load: u64) {
        let known = used.filter(|used| used.share >= MIN_SHARE && load > 0);
        self.tokens = known.map(|used| load as f64 / used.share);
        self.is_full = used.is_some_and(|used| used.waiting > 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_follows_from_use_and_load() {
        let mut cache = CacheEstimate::default();
        cache.update(Some(CacheUse { share: 0.5, waiting: 0.0 }), 200);
        assert_eq!((cache.tokens, cache.is_full), (Some(400.0), false));
        cache.update(Some(CacheUse { share: 0.1, waiting: 2.0 }), 200);
        assert_eq!((cache.tokens, cache.is_full), (None, true));
        cache.update(None, 200);
        assert_eq!((cache.tokens, cache.is_full), (None, false));
    }
}
