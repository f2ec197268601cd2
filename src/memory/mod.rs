//! Estimates the minimum memory of a run before the run starts. A run that cannot fit is rejected with an error that names its settings,
//! and is not killed by the kernel later.
//!
//! An [`Estimate`] is a sum of [`MemoryPart`]s, each of which is a product of settings and model sizes. It is a lower bound: a part only
//! counts memory that the run allocates even if all responses are short. Fragmentation, the program itself and GPU memory are not counted.
//! Therefore a run that fits is never rejected, but an accepted run may still be too large.

mod available;
#[cfg(all(feature = "torch", feature = "cli"))]
mod fine_tuning;
mod model;
mod part;
#[cfg(feature = "cli")]
mod simulation;
#[cfg(feature = "torch")]
mod training;

use std::fmt;

pub use available::{Available, Limit, available};
#[cfg(all(feature = "torch", feature = "cli"))]
pub(crate) use fine_tuning::{MicroBatches, fine_tuning_parts, min_activation_bytes};
pub(crate) use model::judge_parts;
#[cfg(all(feature = "torch", feature = "cli"))]
pub(crate) use model::kv_cache_bytes_per_token;
#[cfg(all(feature = "servers", feature = "torch"))]
pub(crate) use model::serving_part;
pub use part::MemoryPart;
#[cfg(feature = "cli")]
pub(crate) use simulation::simulation_parts;
#[cfg(all(feature = "torch", feature = "cli"))]
pub(crate) use training::profiling_parts;
#[cfg(feature = "torch")]
pub(crate) use training::{TrainingMemory, training_parts};

/// A lower bound on the memory that a run needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    parts: Vec<MemoryPart>,
}

/// The error of a run that needs more memory than is available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not enough memory: the run needs at least {}, and {} are available ({}). The largest parts are {}; lower these settings or free memory",
    ByteSize(*.needed), ByteSize(.available.bytes), .available.limit, list(.largest)
)]
pub struct OutOfMemory {
    /// The minimum number of bytes that the run needs.
    pub needed: u64,
    /// The memory that the process can allocate, and the limit that determines it.
    pub available: Available,
    /// The largest parts, at most three, in descending order of size. Parts below 1 % of `needed` are left out.
    pub largest: Vec<MemoryPart>,
}

/// Maximum number of parts that an error names.
const MAX_NAMED_PARTS: usize = 3;

impl Estimate {
    /// Adds a part.
    #[must_use]
    pub fn with(mut self, part: MemoryPart) -> Self {
        self.parts.push(part);
        self
    }

    /// Returns the sum of the parts in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// Rejects a run that needs more memory than this process can allocate. Accepts every run if the system does not report its memory.
    ///
    /// # Errors
    /// If the run needs more than is available.
    pub fn check(&self) -> Result<(), OutOfMemory> {
        available().map_or(Ok(()), |available| self.check_against(available))
    }

    /// Rejects a run that needs more than `available`.
    ///
    /// # Errors
    /// If the run needs more than `available.bytes`.
    pub fn check_against(&self, available: Available) -> Result<(), OutOfMemory> {
        let needed = self.bytes();
        if needed <= available.bytes {
            return Ok(());
        }
        let mut largest = self.parts.clone();
        largest.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        // Parts below 1 % do not help the user.
        largest.retain(|part| part.bytes >= needed / 100);
        largest.truncate(MAX_NAMED_PARTS);
        Err(OutOfMemory { needed, available, largest })
    }
}

impl Extend<MemoryPart> for Estimate {
    fn extend<I: IntoIterator<Item = MemoryPart>>(&mut self, parts: I) {
        self.parts.extend(parts);
    }
}

fn list(parts: &[MemoryPart]) -> String {
    let part = |part: &MemoryPart| {
        let MemoryPart { description, bytes, settings } = part;
        format!("{} for {description} ({})", ByteSize(*bytes), settings.join(", "))
    };
    parts.iter().map(part).collect::<Vec<_>>().join(", ")
}

/// A number of bytes, printed in the largest unit from MiB to EiB in which it is at least 1, or else in bytes.
pub(crate) struct ByteSize(pub(crate) u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 5] = [
            ("EiB", 1 << 60),
            ("PiB", 1 << 50),
            ("TiB", 1 << 40),
            ("GiB", 1 << 30),
            ("MiB", 1 << 20),
        ];
        match UNITS.into_iter().find(|(_, unit)| self.0 >= *unit) {
            Some((name, unit)) => write!(f, "{:.1} {name}", self.0 as f64 / unit as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::part::setting;
    use super::*;

    #[test]
    fn an_estimate_that_does_not_fit_names_its_largest_parts() {
        let estimate = Estimate::default()
            .with(MemoryPart::new("prompts", [setting("data.train_batch_size", 16)], [16, 300]))
            .with(MemoryPart::new(
                "logits",
                [setting("sft.batch_size", 4_000_000)],
                [4_000_000, 1 << 18],
            ))
            .with(MemoryPart::new("weights", [setting("model.path", "m")], [1 << 36]));
        let available = Available { bytes: 21 << 30, limit: Limit::Machine };
        let error = estimate.check_against(available).expect_err("refused");
        expect![
            "not enough memory: the run needs at least 1.0 TiB, and 21.0 GiB are available (free memory of the machine). The largest parts are 976.6 GiB for logits (sft.batch_size = 4000000), 64.0 GiB for weights (model.path = m); lower these settings or free memory"
        ]
        .assert_eq(&error.to_string());
        assert_eq!(
            estimate.check_against(Available { bytes: 1 << 41, limit: Limit::Machine }),
            Ok(())
        );
    }

    #[test]
    fn sums_saturate_at_the_maximum() {
        let part = MemoryPart::new("weights", [], [u64::MAX, 4]);
        let estimate = Estimate::default().with(part.clone()).with(part);
        assert_eq!(estimate.bytes(), u64::MAX);
        assert_eq!(ByteSize(u64::MAX).to_string(), "16.0 EiB");
    }
}
