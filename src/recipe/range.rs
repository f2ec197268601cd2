//! Ranges of the numbers that keys may have. The checks and the lists of keys use the same ranges.

use std::fmt::Display;

use super::error::{Number, RecipeError, between, out_of_bounds};

/// A key of the settings `T`, and the range of its numbers. The macros `integer` and `number` create it.
pub(crate) struct Range<T> {
    pub(crate) key: &'static str,
    pub(crate) rule: RangeRule<T>,
}

/// The numbers that a key may have. `found` reads the numbers of the key from the settings; `None` and an empty list are accepted.
/// `expected` describes the range in errors.
pub(crate) enum RangeRule<T> {
    /// Integers from `min` to `max`, both included.
    Between { found: fn(&T) -> Option<i128>, min: i128, max: i128 },
    /// Integers for which `fits` returns `true`.
    Integers { found: fn(&T) -> Option<i128>, fits: fn(i128) -> bool, expected: &'static str },
    /// Numbers for which `fits` returns `true`.
    Numbers { found: fn(&T) -> Vec<f64>, fits: fn(f64) -> bool, expected: &'static str },
}

impl<T> Range<T> {
    fn words(&self) -> String {
        match self.rule {
            RangeRule::Between { min, max, .. } => format!("from {min} to {max}"),
            RangeRule::Integers { expected, .. } | RangeRule::Numbers { expected, .. } => {
                expected.to_owned()
            }
        }
    }

    fn check(&self, settings: &T) -> Result<(), RecipeError> {
        match self.rule {
            RangeRule::Between { found, min, max } => {
                found(settings).map_or(Ok(()), |value| between(self.key, value, min, max))
            }
            RangeRule::Integers { found, fits, expected } => {
                self.reject(found(settings).filter(|value| !fits(*value)), expected)
            }
            RangeRule::Numbers { found, fits, expected } => {
                let wrong = found(settings).into_iter().find(|value| !fits(*value));
                self.reject(wrong.map(Number), expected)
            }
        }
    }

    fn reject(&self, wrong: Option<impl Display>, expected: &str) -> Result<(), RecipeError> {
        wrong.map_or(Ok(()), |found| Err(out_of_bounds(self.key, expected, found)))
    }
}

/// Returns the range of a key in words, or `None` if the key has no range.
pub(crate) fn range_text<T>(ranges: &[Range<T>], key: &str) -> Option<String> {
    ranges.iter().find(|range| range.key == key).map(Range::words)
}

/// Returns an error for each key with a number out of its range.
pub(crate) fn errors<T>(ranges: &[Range<T>], settings: &T) -> impl Iterator<Item = RecipeError> {
    ranges.iter().filter_map(|range| range.check(settings).err())
}

/// A setting of an integer type, which may be optional.
pub(crate) trait Integer: Copy {
    fn integer(self) -> Option<i128>;
}

macro_rules! integers {
    ($($type:ty),*) => {
        $(impl Integer for $type {
            fn integer(self) -> Option<i128> {
                i128::try_from(self).ok()
            }
        })*
    };
}

integers!(u32, u64, usize, i64);

impl<T: Integer> Integer for Option<T> {
    fn integer(self) -> Option<i128> {
        self.and_then(T::integer)
    }
}

/// A setting of one or two numbers, which may be optional.
pub(crate) trait Numbers: Copy {
    fn numbers(self) -> Vec<f64>;
}

impl Numbers for f64 {
    fn numbers(self) -> Vec<f64> {
        vec![self]
    }
}

impl Numbers for (f64, f64) {
    fn numbers(self) -> Vec<f64> {
        vec![self.0, self.1]
    }
}

impl Numbers for Option<f64> {
    fn numbers(self) -> Vec<f64> {
        self.into_iter().collect()
    }
}

/// Creates a range of integers. The key is followed by its minimum and maximum, as in `data.train_batch_size: 1, limits::MAX_PROMPTS`, or
/// by a predicate and its description.
macro_rules! integer {
    ($($part:ident).+: |$value:ident| $fits:expr, $expected:literal) => {
        Range { key: $crate::recipe::range::key!($($part).+), rule: $crate::recipe::range::RangeRule::Integers {
            found: |settings| settings.$($part).+.integer(),
            fits: |$value| $fits,
            expected: $expected,
        } }
    };
    ($($part:ident).+: $min:expr, $max:expr) => {
        Range { key: $crate::recipe::range::key!($($part).+), rule: $crate::recipe::range::RangeRule::Between {
            found: |settings| settings.$($part).+.integer(),
            min: $min,
            max: $max as i128,
        } }
    };
}

/// Creates a range of numbers. The key is followed by a predicate and its description.
macro_rules! number {
    ($($part:ident).+: $fits:expr, $expected:literal) => {
        Range { key: $crate::recipe::range::key!($($part).+), rule: $crate::recipe::range::RangeRule::Numbers {
            found: |settings| settings.$($part).+.numbers(),
            fits: $fits,
            expected: $expected,
        } }
    };
}

macro_rules! key {
    ($first:ident $(.$part:ident)*) => { concat!(stringify!($first) $(, ".", stringify!($part))*) };
}

pub(crate) use {integer, key, number};
