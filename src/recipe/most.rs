//! The largest values of settings that count something.
//!
//! They are far above what any run needs. Below them no sum or product of settings overflows, no setting alone asks the system for more
//! threads than it gives, and a slip of the pen is an error that names its key. Whether a run fits this machine is a question of its
//! [memory](crate::memory).

use toml::Value;

use super::error::{Number, RecipeError, bound};

/// Threads, and engine instances and workers, which have threads of their own.
pub(crate) const THREADS: usize = 1024;
/// Threads that score; they mostly wait.
pub(crate) const REWARD_THREADS: usize = 4096;
/// Steps, epochs and updates.
pub(crate) const STEPS: u64 = 1_000_000_000;
/// Steps that a policy may be behind.
pub(crate) const STALENESS: u64 = 1 << 16;
/// Prompts of a step.
pub(crate) const PROMPTS: usize = 1 << 24;
/// Responses to a prompt.
pub(crate) const RESPONSES: u32 = 1 << 20;
/// Positions of a model, of which each has a number of 32 bits.
pub(crate) const POSITIONS: i64 = i32::MAX as i64;
/// Tokens that are held or processed at once.
pub(crate) const TOKENS: usize = 1 << 40;
/// What options of schedules count: rounds, prompts and responses.
pub(crate) const OF_SCHEDULE: u64 = 1 << 20;
/// Responses that run at once, examples of an update, snapshots that are kept.
pub(crate) const AT_ONCE: usize = 1 << 31;
/// Seconds: 31 years.
pub(crate) const SECONDS: f64 = 1e9;
/// Factors of a loss, and of ratios of probabilities.
pub(crate) const FACTOR: f64 = 1e6;
/// Learning rates: Adam moves every weight by as much in an update.
pub(crate) const LEARNING_RATE: f64 = 10.0;
/// Weight decay, which is multiplied by the learning rate.
pub(crate) const WEIGHT_DECAY: f64 = 1e3;
/// Workers of a process. Channels between them grow with their square.
pub(crate) const WORKERS: usize = 256;
/// Threads of a process, all together.
pub(crate) const ALL_THREADS: usize = 1 << 14;

/// The range of the magnitude of numbers: what float32 holds with all its digits, and squared still in float64.
const MAGNITUDE: (f64, f64) = (1e-30, 1e30);

/// Refuses numbers anywhere below `value` that would become infinite, or 0, where tensors hold them. Numbers that are not finite are left
/// to the bounds of their keys, as some mean something.
pub(super) fn check_magnitudes(key: &str, value: &Value) -> Result<(), RecipeError> {
    match value {
        Value::Float(number) => {
            let (least, most) = MAGNITUDE;
            let size = number.abs();
            if size == 0.0 || !size.is_finite() || (least..=most).contains(&size) {
                return Ok(());
            }
            Err(bound(
                key,
                format!("0, or a number from {least:e} to {most:e} in size"),
                Number(*number),
            ))
        }
        Value::Array(items) => items.iter().try_for_each(|item| check_magnitudes(key, item)),
        Value::Table(table) => table.iter().try_for_each(|(inner, value)| {
            let path = if key.is_empty() { inner.clone() } else { format!("{key}.{inner}") };
            check_magnitudes(&path, value)
        }),
        _ => Ok(()),
    }
}

/// Refuses whole numbers anywhere below `value` that are larger than `most` in size. For options that are defined elsewhere.
pub(super) fn check_integers(key: &str, value: &Value, most: u64) -> Result<(), RecipeError> {
    match value {
        Value::Integer(number) if number.unsigned_abs() > most => {
            Err(bound(key, format!("at most {most}"), number))
        }
        Value::Array(items) => items.iter().try_for_each(|item| check_integers(key, item, most)),
        Value::Table(table) => table
            .iter()
            .try_for_each(|(inner, value)| check_integers(&format!("{key}.{inner}"), value, most)),
        _ => Ok(()),
    }
}
