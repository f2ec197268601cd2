//! The schedules that come with the house, as one type.

use rollpacker_dataflow::clock::Nanos;
use serde::{Deserialize, Serialize};

use super::{
    Decision, Dynamic, Event, FrontierGroup, HistorySorted, Partial, Schedule, Sorted, Synchronous,
    TailBatching,
};

/// Any built-in schedule: what a recipe chooses by name, and what a snapshot holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Builtin {
    /// Everything launched is waited for.
    Sync(Synchronous),
    /// Everything launched is waited for; long prompts share rounds.
    HistorySorted(HistorySorted),
    /// Speculative short rounds, and long rounds for what they defer.
    TailBatching(TailBatching),
    /// Groups without variance of reward are replaced.
    Dynamic(Dynamic),
    /// Prompts are loaded in large batches, and trained the shortest first.
    Sorted(Sorted),
    /// The tail is stopped, and goes on in the next round.
    Partial(Partial),
    /// Groups that are closest to completion go first.
    FrontierGroup(FrontierGroup),
}

impl From<Synchronous> for Builtin {
    fn from(schedule: Synchronous) -> Self {
        Self::Sync(schedule)
    }
}

impl From<HistorySorted> for Builtin {
    fn from(schedule: HistorySorted) -> Self {
        Self::HistorySorted(schedule)
    }
}

impl From<TailBatching> for Builtin {
    fn from(schedule: TailBatching) -> Self {
        Self::TailBatching(schedule)
    }
}

impl From<Dynamic> for Builtin {
    fn from(schedule: Dynamic) -> Self {
        Self::Dynamic(schedule)
    }
}

impl From<Sorted> for Builtin {
    fn from(schedule: Sorted) -> Self {
        Self::Sorted(schedule)
    }
}

impl From<Partial> for Builtin {
    fn from(schedule: Partial) -> Self {
        Self::Partial(schedule)
    }
}

impl From<FrontierGroup> for Builtin {
    fn from(schedule: FrontierGroup) -> Self {
        Self::FrontierGroup(schedule)
    }
}

impl Builtin {
    fn inner(&self) -> &dyn Schedule {
        match self {
            Self::Sync(schedule) => schedule,
            Self::HistorySorted(schedule) => schedule,
            Self::TailBatching(schedule) => schedule,
            Self::Dynamic(schedule) => schedule,
            Self::Sorted(schedule) => schedule,
            Self::Partial(schedule) => schedule,
            Self::FrontierGroup(schedule) => schedule,
        }
    }

    fn inner_mut(&mut self) -> &mut dyn Schedule {
        match self {
            Self::Sync(schedule) => schedule,
            Self::HistorySorted(schedule) => schedule,
            Self::TailBatching(schedule) => schedule,
            Self::Dynamic(schedule) => schedule,
            Self::Sorted(schedule) => schedule,
            Self::Partial(schedule) => schedule,
            Self::FrontierGroup(schedule) => schedule,
        }
    }
}

impl Schedule for Builtin {
    fn on(&mut self, now: Nanos, event: Event) {
        self.inner_mut().on(now, event);
    }

    fn poll(&mut self) -> Option<Decision> {
        self.inner_mut().poll()
    }

    fn wants_prompts(&self) -> bool {
        self.inner().wants_prompts()
    }

    fn wants_scores(&self) -> bool {
        self.inner().wants_scores()
    }
}
