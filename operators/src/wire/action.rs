//! The values of the column `action` of [`REQUESTS`](rollpacker_dataflow::schema::REQUESTS).

/// `action` of a request that launches responses.
pub(crate) const LAUNCH: u8 = 0;
/// `action` of a request that aborts a response.
pub(crate) const ABORT: u8 = 1;
/// `action` of a request that pauses a response.
pub(crate) const PAUSE: u8 = 2;
/// `action` of a request that announces that a tick has passed.
pub(crate) const ADVANCE: u8 = 3;
