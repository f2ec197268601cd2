//! Generations, which decide which of several processes may write into the folder of a run.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The number of a process among the processes that have claimed the folder of a run, from 1 in the order of the claims. 0 means that no
/// generation was claimed.
///
/// A process claims the next generation by creating a file exclusively, so no two processes claim the same generation. The other processes
/// of a cluster join the generation of the first process. Before a process commits, it checks that no newer generation was claimed. A
/// process that was presumed dead but still runs thus detects its successor and ends.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}", self.0)
    }
}

impl FromStr for Generation {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}
