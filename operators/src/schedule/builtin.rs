//! The built-in schedules as one type that can be cloned and compared.

use rollpacker_dataflow::BoxError;
use rollpacker_dataflow::clock::Nanos;
use serde::{Deserialize, Serialize};

use super::{
    Decision, Dynamic, Event, FrontierGroup, HistorySorted, Partial, Schedule, Sorted, Synchronous,
    TailBatching,
};

macro_rules! builtin {
    ($($(#[$meta:meta])* $name:ident($schedule:ty),)*) => {
        /// A built-in schedule by value: it can be cloned, compared and serialized. Recipes select schedules by name instead.
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
    /// Waits for every launched response. Includes `Synchronous::longest_first`, which also orders the launches.
    Sync(Synchronous),
    /// Waits for every launched response; long prompts share rounds.
    HistorySorted(HistorySorted),
    /// Runs speculative short rounds, and long rounds for the prompts that the short rounds defer.
    TailBatching(TailBatching),
    /// Replaces groups without reward variance.
    Dynamic(Dynamic),
    /// Loads prompts in large batches and trains on the groups with the shortest responses first.
    Sorted(Sorted),
    /// Pauses the responses that are in flight when a round is full, and continues them in the next round.
    Partial(Partial),
    /// Waits for every launched response, and can launch requests of the groups that are closest to completion first.
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

    fn round_size(&self) -> Option<(usize, u32)> {
        self.inner().round_size()
    }

    fn is_out_of_steps(&self) -> bool {
        self.inner().is_out_of_steps()
    }

    fn save(&self) -> Option<Vec<u8>> {
        self.inner().save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        self.inner_mut().restore(saved)
    }
}
