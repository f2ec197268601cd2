//! Ranges of numbers by key. Checks and the lists of keys both read them.

use std::fmt::Display;

use super::error::{Number, RecipeError, between, out_of_bounds};

/// A key of the settings `T`, and the range of its numbers. The macros `integer` and `number` create it.
pub(crate) struct Range<T> {
    pub(crate) key: &'static str,
    pub(crate) rule: Rule<T>,
}

/// The numbers that a key may have. `found` returns those of some settings.
pub(crate) enum Rule<T> {
    /// Integers from `least` to `most`.
    Between { found: fn(&T) -> Option<i128>, least: i128, most: i128 },
    /// Integers for which `fits` returns `true`.
    Integers { found: fn(&T) -> Option<i128>, fits: fn(i128) -> bool, expected: &'static str },
    /// Numbers for which `fits` returns `true`.
    Numbers { found: fn(&T) -> Vec<f64>, fits: fn(f64) -> bool, expected: &'static str },
}

impl<T> Range<T> {
    fn words(&self) -> String {
        match self.rule {
            Rule::Between { least, most, .. } => format!("from {least} to {most}"),
            Rule::Integers { expected, .. } | Rule::Numbers { expected, .. } => expected.to_owned(),
        }
    }

    fn check(&self, settings: &T) -> Result<(), RecipeError> {
        match self.rule {
            Rule::Between { found, least, most } => {
                found(settings).map_or(Ok(()), |value| between(self.key, value, least, most))
            }
            Rule::Integers { found, fits, expected } => {
                self.reject(found(settings).filter(|value| !fits(*value)), expected)
            }
            Rule::Numbers { found, fits, expected } => {
                let wrong = found(settings).into_iter().find(|value| !fits(*value));
                self.reject(wrong.map(Number), expected)
            }
        }
    }

    fn reject(&self, wrong: Option<impl Display>, expected: &str) -> Result<(), RecipeError> {
        wrong.map_or(Ok(()), |found| Err(out_of_bounds(self.key, expected, found)))
    }
}

/// Returns the range of a key in words, if the key has one.
pub(crate) fn words_of<T>(ranges: &[Range<T>], key: &str) -> Option<String> {
    ranges.iter().find(|range| range.key == key).map(Range::words)
}

/// Returns an error for each number that is out of the range of its key.
pub(crate) fn errors<T>(ranges: &[Range<T>], settings: &T) -> impl Iterator<Item = RecipeError> {
    ranges.iter().filter_map(|range| range.check(settings).err())
}

/// An integer that may be left out.
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

/// Numbers that may be left out.
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

/// A range of integers: `data.train_batch_size: 1, limits::PROMPTS`, or a predicate and its words.
macro_rules! integer {
    ($($part:ident).+: |$value:ident| $fits:expr, $expected:literal) => {
        Range { key: $crate::recipe::range::key!($($part).+), rule: $crate::recipe::range::Rule::Integers {
            found: |settings| settings.$($part).+.integer(),
            fits: |$value| $fits,
            expected: $expected,
        } }
    };
    ($($part:ident).+: $least:expr, $most:expr) => {
        Range { key: $crate::recipe::range::key!($($part).+), rule: $crate::recipe::range::Rule::Between {
            found: |settings| settings.$($part).+.integer(),
            least: $least,
            most: $most as i128,
        } }
    };
}

/// A range of numbers: a predicate and its words.
macro_rules! number {
    ($($part:ident).+: $fits:expr, $expected:literal) => {
        Range { key: $crate::recipe::range::key!($($part).+), rule: $crate::recipe::range::Rule::Numbers {
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
