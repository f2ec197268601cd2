//! Amounts of memory in recipes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An amount of memory: a number of bytes, or a text such as `1.5GiB`. Units are `B`, `KB` to `TB` (powers of 1000) and `KiB` to `TiB`
/// (powers of 1024). A text without a unit is a number of bytes. A fraction of a byte is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "u64")]
pub struct Bytes(pub u64);

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number of bytes, or a text such as `1.5GiB`")]
enum Written {
    Number(u64),
    Text(String),
}

/// An error for a text that is not an amount of memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a number of bytes, or a text such as `1.5GiB`, found `{0}`")]
pub struct ParseBytesError(String);

/// The units and their sizes in bytes. `B` comes last, because it is a suffix of all others.
const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, ParseBytesError> {
        let wrong = || ParseBytesError(text.to_owned());
        let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
        let (number, unit) = unit.unwrap_or((text, 1));
        let number: f64 = number.trim().parse().map_err(|_| wrong())?;
        let bytes = number * unit as f64;
        if (0.0..=u64::MAX as f64).contains(&bytes) { Ok(Self(bytes as u64)) } else { Err(wrong()) }
    }
}

impl TryFrom<Written> for Bytes {
    type Error = ParseBytesError;

    fn try_from(written: Written) -> Result<Self, ParseBytesError> {
        match written {
            Written::Number(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse(),
        }
    }
}

impl From<Bytes> for u64 {
    fn from(bytes: Bytes) -> Self {
        bytes.0
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_units() {
        let read = |json: &str| serde_json::from_str::<Bytes>(json).map(|bytes| bytes.0).ok();
        assert_eq!(read("4096"), Some(4096));
        assert_eq!(read("\"4096\""), Some(4096));
        assert_eq!(read("\"1.5GiB\""), Some(3 << 29));
        assert_eq!(read("\"2 MB\""), Some(2_000_000));
        assert_eq!(read("\"12B\""), Some(12));
        for wrong in ["\"much\"", "\"-1GiB\"", "\"GiB\"", "\"nan\"", "-1", "true", "\"1gib\""] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        let error = "much".parse::<Bytes>().unwrap_err().to_string();
        assert_eq!(error, "expected a number of bytes, or a text such as `1.5GiB`, found `much`");
    }
}
