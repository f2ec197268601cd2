//! Ranges of steps on the command line.

use std::fmt;
use std::str::FromStr;

/// A range of steps, counted from 1, both ends included: `12`, `3-8`, or `3-` to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepRange {
    first: u64,
    last: Option<u64>,
}

impl StepRange {
    pub(crate) const ALL: Self = Self { first: 1, last: None };

    pub(crate) fn contains(self, step: u64) -> bool {
        self.first <= step && self.last.is_none_or(|last| step <= last)
    }
}

impl FromStr for StepRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.parse::<u64>().ok().filter(|step| *step > 0);
        let last = if last.is_empty() { Some(None) } else { number(last).map(Some) };
        let range = number(first).zip(last).map(|(first, last)| Self { first, last });
        let range = range.filter(|range| range.last.is_none_or(|last| range.first <= last));
        range.ok_or_else(|| {
            "expected a step from 1 on, such as `12`, or a range, such as `3-8` or `3-`".to_owned()
        })
    }
}

impl fmt::Display for StepRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last {
            Some(last) if last == self.first => write!(f, "{last}"),
            Some(last) => write!(f, "{}-{last}", self.first),
            None => write!(f, "{}-", self.first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_and_printed() {
        for text in ["12", "3-8", "3-", "4-4"] {
            let range: StepRange = text.parse().expect("a range");
            assert_eq!(range.to_string(), text.replace("4-4", "4"));
            assert!(range.contains(range.first) && !range.contains(range.first - 1));
            assert_eq!(range.contains(u64::MAX), text == "3-");
        }
        for text in ["", "0", "-3", "8-3", "a", "1-b", "1-2-3", "-"] {
            assert!(text.parse::<StepRange>().is_err(), "{text}");
        }
    }
}
