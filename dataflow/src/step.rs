//! The timestamps of the dataflow, and the identifiers that travel with it.

use std::fmt;

use differential_dataflow::lattice::Lattice;
use serde::{Deserialize, Serialize};
use timely::order::{PartialOrder, TotalOrder};
use timely::progress::timestamp::{PathSummary, Refines, Timestamp};

/// One RL step: the timestamp of every stream.
///
/// Steps count from 0 and are totally ordered. A frontier past `Step(t)` means that no data of step `t` is in flight.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Step(pub u64);

impl Step {
    /// A time later than every step, for work that is done once when no step is left.
    pub const END: Self = Self(u64::MAX);

    /// Returns the step after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the step counted from 1, as it appears in output, in metrics and in the names of rollout files.
    #[must_use]
    pub fn ordinal(self) -> Ordinal {
        Ordinal(self)
    }
}

/// Displays a [`Step`] counted from 1, and [`Step::END`] as `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ordinal(Step);

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == Step::END { self.0.fmt(f) } else { self.0.next().fmt(f) }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::END { f.pad("end") } else { self.0.fmt(f) }
    }
}

impl PartialOrder for Step {
    fn less_equal(&self, other: &Self) -> bool {
        self <= other
    }
}

impl TotalOrder for Step {}

impl Lattice for Step {
    fn join(&self, other: &Self) -> Self {
        *self.max(other)
    }
    fn meet(&self, other: &Self) -> Self {
        *self.min(other)
    }
}

impl Timestamp for Step {
    type Summary = Steps;
    fn minimum() -> Self {
        Self(0)
    }
}

impl Refines<()> for Step {
    fn to_inner(_: ()) -> Self {
        Self(0)
    }
    fn to_outer(self) {}
    fn summarize(_: Steps) {}
}

/// A number of steps by which a path through the graph advances a [`Step`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Steps(pub u64);

impl PartialOrder for Steps {
    fn less_equal(&self, other: &Self) -> bool {
        self <= other
    }
}

impl PathSummary<Step> for Steps {
    fn results_in(&self, src: &Step) -> Option<Step> {
        src.0.checked_add(self.0).map(Step)
    }
    fn followed_by(&self, other: &Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Steps)
    }
}

/// The logical time of lockstep mode, in which every response in flight gains one token per tick. Races between responses are decided by
/// ticks instead of wall time.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Tick(pub u64);

impl Tick {
    /// The latest tick. As a lower bound for ends, it states that no response is in flight.
    pub const MAX: Self = Self(u64::MAX);
}

/// A version of the weights: 0 is the policy that a run starts from, `v` the policy after `v` updates.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct PolicyVersion(pub u64);

impl fmt::Display for PolicyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

/// A prompt of a run, identified by its position in the reading order, counted over all epochs.
///
/// Two equal rows of a dataset are two prompts, and so is one row in two epochs.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct PromptId(pub u64);

impl fmt::Display for PromptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

/// A response, identified by the step that launched it, its prompt and the index of the sample.
///
/// A prompt that is deferred and launched again gets new responses with a different step. If a later step continues a paused response, the
/// response gets a new id with that step.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct SampleId {
    /// The step that launched the response, or that continues it after a pause.
    pub step: Step,
    /// The prompt that the response answers.
    pub prompt: PromptId,
    /// The index of the response among the responses to the prompt, from 0.
    pub sample: u32,
}

impl fmt::Display for SampleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}@{}", self.prompt, self.sample, self.step)
    }
}
