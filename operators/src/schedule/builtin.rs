//! The schedules that come with the house, as one type.

use rollpacker_dataflow::clock::Nanos;
use serde::{Deserialize, Serialize};

use super::{Decision, Event, HistorySorted, Schedule, Synchronous, TailBatching};

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

impl Schedule for Builtin {
    fn on(&mut self, now: Nanos, event: Event) {
        match self {
            Self::Sync(schedule) => schedule.on(now, event),
            Self::HistorySorted(schedule) => schedule.on(now, event),
            Self::TailBatching(schedule) => schedule.on(now, event),
        }
    }

    fn poll(&mut self) -> Option<Decision> {
        match self {
            Self::Sync(schedule) => schedule.poll(),
            Self::HistorySorted(schedule) => schedule.poll(),
            Self::TailBatching(schedule) => schedule.poll(),
        }
    }

    fn wants_prompts(&self) -> bool {
        match self {
            Self::Sync(schedule) => schedule.wants_prompts(),
            Self::HistorySorted(schedule) => schedule.wants_prompts(),
            Self::TailBatching(schedule) => schedule.wants_prompts(),
        }
    }
}
