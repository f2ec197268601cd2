//! The parts of an estimate.

use std::fmt;

/// One kind of memory that a run needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPart {
    /// A description of the content, such as `the weights of a judge`.
    pub description: &'static str,
    /// The minimum size in bytes.
    pub bytes: u64,
    /// The settings that determine the size, each as `key = value`.
    pub settings: Vec<String>,
}

impl MemoryPart {
    /// Returns a part whose size in bytes is the product of `factors`.
    pub(crate) fn new(
        description: &'static str,
        settings: impl IntoIterator<Item = String>,
        factors: impl IntoIterator<Item = u64>,
    ) -> Self {
        let bytes = factors.into_iter().fold(1, u64::saturating_mul);
        Self { description, bytes, settings: settings.into_iter().collect() }
    }
}

/// Returns a setting as `key = value`.
pub(crate) fn setting(key: &str, value: impl fmt::Display) -> String {
    format!("{key} = {value}")
}
