//! Upper bounds of settings.
//!
//! The bounds are far above what any run needs. They ensure that no sum or product of settings overflows, that no single setting requests
//! more threads than a system grants, and that a typing error is reported with its key. [`memory`](crate::memory) checks that a run fits
//! into the memory of this machine.

pub(crate) use rollpacker_dataflow::feedback::MAX_STALENESS;
use toml::{Table, Value};

use super::error::{Number, RecipeError, out_of_bounds};

/// Maximum number of threads of one setting, and maximum number of engine instances, each of which has threads of its own.
pub(crate) const MAX_THREADS: usize = 1024;
/// Maximum number of threads that score responses. They mostly wait.
pub(crate) const MAX_REWARD_THREADS: usize = 4096;
/// Maximum number of steps, epochs and updates.
pub(crate) const MAX_STEPS: u64 = 1_000_000_000;
/// Maximum number of prompts of a step, and of an update.
pub(crate) const MAX_PROMPTS: usize = 1 << 24;
/// Maximum number of responses to a prompt.
pub(crate) const MAX_RESPONSES: u32 = 1 << 20;
/// Maximum number of sampled responses to a validation prompt, which are all in flight and held at once.
pub(crate) const MAX_VALIDATION_RESPONSES: u32 = 1 << 10;
/// Maximum number of positions of a model. Positions are 32-bit integers.
pub(crate) const MAX_POSITIONS: i64 = i32::MAX as i64;
/// Maximum number of tokens that are held or processed at once.
pub(crate) const MAX_TOKENS: usize = 1 << 40;
/// Maximum absolute value of each integer in the options of a schedule, such as a number of rounds, prompts or responses.
pub(crate) const MAX_SCHEDULE_COUNT: u64 = 1 << 20;
/// Maximum number of responses that an instance runs at once, of groups that the trainer receives at once, of examples of an update, and of
/// snapshots kept.
pub(crate) const MAX_CONCURRENT: usize = 1 << 31;
/// Maximum duration in seconds: about 31 years.
pub(crate) const MAX_SECONDS: f64 = 1e9;
/// Maximum coefficient of a term of the loss or of the KL penalty in rewards, maximum ratio of probabilities, and maximum divergence.
pub(crate) const MAX_FACTOR: f64 = 1e6;
/// Maximum learning rate. Adam changes each weight by about this much in one update.
pub(crate) const MAX_LEARNING_RATE: f64 = 10.0;
/// Maximum weight decay. It is multiplied by the learning rate.
pub(crate) const MAX_WEIGHT_DECAY: f64 = 1e3;
/// Maximum number of workers of a process. The number of channels between them grows quadratically.
pub(crate) const MAX_WORKERS: usize = 256;
/// Maximum number of threads that the engine instances and trainers of a process have in total. Other threads, such as those that score
/// responses, do not count.
pub(crate) const MAX_TOTAL_THREADS: usize = 1 << 14;

/// The range of the absolute value of a number other than 0. Float32 represents such numbers with full precision, and float64 holds their
/// squares.
const MAGNITUDE: (f64, f64) = (1e-30, 1e30);

/// Removes values at any depth of a table that contain a float outside of `MAGNITUDE`, and returns their errors. Such floats could become
/// infinite, imprecise or 0 in a float32 tensor.
///
/// `key` is the dotted name of the table, or empty for the top level. `range` returns the range of a key in words, if the key has one of
/// its own. Numbers that are not finite are accepted here, because some keys give them a meaning. The checks of the other keys reject them.
pub(super) fn remove_extremes(
    key: &str,
    table: &mut Table,
    range: fn(&str) -> Option<String>,
) -> Vec<RecipeError> {
    let mut errors = Vec::new();
    table.retain(|inner, value| {
        let path = if key.is_empty() { inner.to_owned() } else { format!("{key}.{inner}") };
        if let Value::Table(table) = value {
            errors.extend(remove_extremes(&path, table, range));
            return true;
        }
        let extreme = extreme(value);
        errors.extend(extreme.map(|number| {
            let (min, max) = MAGNITUDE;
            let own = range(&path).map(|range| format!("{range}, and ")).unwrap_or_default();
            let expected = format!("{own}0, or a number from {min:e} to {max:e} in size");
            out_of_bounds(path, expected, Number(number))
        }));
        extreme.is_none()
    });
    errors
}

/// Returns the first float in a value whose absolute value is outside of `MAGNITUDE`, except 0 and floats that are not finite.
fn extreme(value: &Value) -> Option<f64> {
    let (min, max) = MAGNITUDE;
    match value {
        Value::Float(number) => {
            let size = number.abs();
            let fits = size == 0.0 || !size.is_finite() || (min..=max).contains(&size);
            (!fits).then_some(*number)
        }
        Value::Array(items) => items.iter().find_map(extreme),
        Value::Table(table) => table.values().find_map(extreme),
        _ => None,
    }
}

/// Rejects integers at any depth of `value` whose absolute value is larger than `max`. It serves options whose ranges other crates define.
pub(super) fn check_integers(key: &str, value: &Value, max: u64) -> Result<(), RecipeError> {
    check_all(key, value, &|key, value| match value.as_integer() {
        Some(number) if number.unsigned_abs() > max => {
            Err(out_of_bounds(key, format!("at most {max}"), number))
        }
        _ => Ok(()),
    })
}

/// Rejects numbers at any depth of `table` that are not finite. Options are passed on as JSON, which has no such numbers.
pub(crate) fn check_finite(key: &str, table: &Table) -> Result<(), RecipeError> {
    check_table(key, table, &|key, value| match value.as_float() {
        Some(number) if !number.is_finite() => Err(out_of_bounds(key, "a finite number", number)),
        _ => Ok(()),
    })
}

/// Calls `check` with each value at any depth of `value` that is neither a list nor a table, and with its key.
fn check_all(
    key: &str,
    value: &Value,
    check: &impl Fn(&str, &Value) -> Result<(), RecipeError>,
) -> Result<(), RecipeError> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| check_all(key, item, check)),
        Value::Table(table) => check_table(key, table, check),
        value => check(key, value),
    }
}

fn check_table(
    key: &str,
    table: &Table,
    check: &impl Fn(&str, &Value) -> Result<(), RecipeError>,
) -> Result<(), RecipeError> {
    let mut values = table.iter();
    values.try_for_each(|(inner, value)| check_all(&format!("{key}.{inner}"), value, check))
}
