//! The schedules that come with the house, as one type.

use rollpacker_dataflow::clock::Nanos;
use serde::{Deserialize, Serialize};

use super::{
    Decision, Dynamic, Event, FrontierGroup, HistorySorted, Partial, Schedule, Sorted, Synchronous,
    TailBatching,
};

macro_rules! builtin {
    ($($(#[$meta:meta])* $name:ident($schedule:ty),)*) => {
        /// Any built-in schedule: what a recipe chooses by name, and what a snapshot holds.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Builtin { $($(#[$meta])* $name($schedule),)* }

        $(impl From<$schedule> for Builtin {
            fn from(schedule: $schedule) -> Self {
                Self::$name(schedule)
            }
        })*

        impl Builtin {
            fn inner(&self) -> &dyn Schedule {
                match self { $(Self::$name(schedule) => schedule,)* }
            }

            fn inner_mut(&mut self) -> &mut dyn Schedule {
                match self { $(Self::$name(schedule) => schedule,)* }
            }
        }
    };
}

builtin! {
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

    fn pauses(&self) -> bool {
        self.inner().pauses()
    }

    fn save(&self) -> Option<Vec<u8>> {
        self.inner().save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), String> {
        self.inner_mut().restore(saved)
    }
}
