//! Durations, as written in a recipe.

use rollpacker_dataflow::clock::Nanos;
use serde::{Deserialize, Serialize};

use super::error::{Number, RecipeError, out_of_bounds};
use super::limits;

/// A duration: a number of seconds, or a string of days, hours, minutes and seconds such as `1h30m`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "seconds, or a text such as `1h30m`")]
pub(crate) enum Period {
    Seconds(f64),
    /// Numbers with the units `d`, `h`, `m` and `s`, in this order, each unit at most once.
    Text(String),
}

/// The units and their seconds, largest first.
const UNITS: [(char, f64); 4] = [('d', 86_400.0), ('h', 3_600.0), ('m', 60.0), ('s', 1.0)];

impl Period {
    /// Returns the duration.
    ///
    /// # Errors
    /// If the value is negative, larger than 1e9 seconds or not a valid duration. The error names `key`.
    pub(super) fn nanos(&self, key: &str) -> Result<Nanos, RecipeError> {
        self.within(Nanos(0), key, "of at most 1e9 seconds")
    }

    /// Returns the duration of at least a nanosecond.
    ///
    /// # Errors
    /// As [`nanos`](Self::nanos), and also if the duration is 0.
    pub(super) fn positive_nanos(&self, key: &str) -> Result<Nanos, RecipeError> {
        self.within(Nanos(1), key, "above 0, of at most 1e9 seconds")
    }

    fn within(&self, min: Nanos, key: &str, range: &str) -> Result<Nanos, RecipeError> {
        let seconds = match self {
            Self::Seconds(seconds) => Some(*seconds),
            Self::Text(text) => seconds(text),
        };
        seconds
            .filter(|seconds| (0.0..=limits::MAX_SECONDS).contains(seconds))
            .map(Nanos::from_secs_f64)
            .filter(|duration| *duration >= min)
            .ok_or_else(|| {
                let expected = format!("seconds, or a text such as `1h30m`, {range}");
                out_of_bounds(key, expected, self)
            })
    }
}

fn seconds(text: &str) -> Option<f64> {
    let mut units = UNITS.into_iter();
    let mut sum = 0.0;
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let (number, after) = (rest[..end].trim(), &rest[end..]);
        let unit = after.chars().next()?;
        let (_, factor) = units.find(|(name, _)| *name == unit)?;
        sum += number.parse::<f64>().ok()? * factor;
        rest = after[unit.len_utf8()..].trim_start();
    }
    (!text.trim().is_empty()).then_some(sum)
}

impl std::fmt::Display for Period {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Seconds(seconds) => Number(*seconds).fmt(f),
            Self::Text(text) => write!(f, "`{text}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_each_unit_once_and_the_longest_first() {
        for (text, expected) in [
            ("90s", Some(90.0)),
            ("1h30m", Some(5_400.0)),
            (" 1d 2h 3m 4.5s ", Some(93_784.5)),
            ("0.5h", Some(1_800.0)),
            ("", None),
            ("90", None),
            ("m", None),
            ("30m1h", None),
            ("1h1h", None),
            ("1w", None),
            ("1h30", None),
        ] {
            let found = Period::Text(text.to_owned()).nanos("trainer.max_wall_time").ok();
            assert_eq!(found, expected.map(Nanos::from_secs_f64), "{text:?}");
        }
    }

    #[test]
    fn an_invalid_duration_is_refused_by_its_key() {
        for period in [
            Period::Seconds(-1.0),
            Period::Seconds(f64::NAN),
            Period::Seconds(f64::MAX),
            Period::Text("soon".into()),
            Period::Text("999999999d".into()),
        ] {
            let error = period.nanos("trainer.stall_timeout").expect_err("refused").to_string();
            assert!(error.starts_with("key `trainer.stall_timeout`: expected seconds"), "{error}");
        }
    }
    #[test]
    fn a_wall_time_of_0_is_refused_and_a_stall_timeout_of_0_is_not() {
        for period in [Period::Seconds(0.0), Period::Text("0h0m".into())] {
            assert_eq!(period.nanos("trainer.stall_timeout").ok(), Some(Nanos(0)));
            let error = period.positive_nanos("trainer.max_wall_time").expect_err("refused");
            let expected = format!(
                "key `trainer.max_wall_time`: expected seconds, or a text such as `1h30m`, above 0, of at most 1e9 seconds, found {period}"
            );
            assert_eq!(error.to_string(), expected);
        }
    }
}
