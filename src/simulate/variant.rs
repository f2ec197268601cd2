//! The schedules that `schedule.name=all` stands for, each with the settings that make it what its authors describe.

/// A schedule by name, with settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its name in tables.
    pub label: &'static str,
    /// What it sets in a job, `key=value`.
    pub settings: &'static [&'static str],
}

/// Every schedule, from the baseline on.
pub const ALL: &[Variant] = &[
    Variant { label: "sync", settings: &["schedule.name=sync"] },
    Variant { label: "fused", settings: &["schedule.name=fused"] },
    Variant { label: "tail_batching", settings: &["schedule.name=tail_batching"] },
];
