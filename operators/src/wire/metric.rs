//! The names of metrics that one operator writes and others read.

/// The metric with the load time of a step's weights, in seconds: from the request to load them until all instances of the engine have
/// loaded them. It is missing for an engine that [does not report it](rollpacker_stages::rollout::RolloutEngine::loaded_at).
pub(crate) const LOAD: &str = "rollout/load_s";
