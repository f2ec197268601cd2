//! Frontier groups first (RolloutPipe): the groups that the trainer needs next are generated first.
//!
//! # The paper
//! Rollout and trainer have separate devices. Complete groups go to the trainer's queue at once (the paper's CGP). Most schedules of this
//! crate do this: a group is admitted with the last of its responses, and its gradient is accumulated while other groups are generated.
//! When there are more requests than the engine can run at a time, the requests of the *frontier* are admitted to the engine first (the
//! paper's FGD). The frontier is the set of groups that form the next training batch. The trainer's first groups are then not delayed by
//! requests of its last groups.
//!
//! # This implementation
//! A round launches `prompts` fresh prompts with `responses` responses each and waits for all, as [`Synchronous`] does. It is one training
//! step, and its gradient is accumulated group by group. At most `slots` responses run; the others wait in the schedule, not in the engine,
//! and one is launched whenever another ends. `order = "group_major"` is FGD: the next request belongs to the group with the fewest
//! responses left to end. Ties go to the prompt that was read first. `order = "sample_major"` launches the first response of each prompt,
//! then the second of each, like a server that is sent the batch `responses` times. This order is CGP without FGD.

use rollpacker_dataflow::BoxError;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};

use super::error::positive;
use super::plan::{self, RoundRules};
use super::{Decision, Event, Schedule, ScheduleError, Synchronous, sync};

/// The documentation of the schedule in a catalog.
pub const ABOUT: About = About::new(
    &[],
    "waits for all responses, and launches those of the groups nearest to completion first",
    "RolloutPipe",
);

documented! {
    /// The configuration of [`FrontierGroup`].
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Config {
        /// The number of prompts in a round (P0). At least 1. (verl: `data.train_batch_size`)
        pub prompts: usize,
        /// The number of responses to each prompt (R0). At least 1. (verl: `rollout.n`, TRL: `num_generations`)
        pub responses: u32,
        /// The maximum number of responses that run at a time. At least 1.
        pub slots: usize [responses],
        /// The order in which waiting requests are launched: `group_major` launches a request of the group with the fewest unfinished
        /// responses; `sample_major` launches the first response of each prompt, then the second of each, and so on.
        pub order: Order,
        /// The maximum number of steps of the run, including steps before a resume; at least 1. If `None` (the default), the run lasts as
        /// long as the prompts. (verl: `trainer.total_training_steps`)
        #[serde(default)]
        pub total_steps: Option<u64>,
    }
}

/// The order in which waiting requests are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// A request of the group with the fewest unfinished responses, waiting or in flight, comes first.
    GroupMajor,
    /// The first response of each prompt is launched first, then the second of each.
    SampleMajor,
}

/// The frontier group schedule: synchronous rounds with a limit on running responses and a choice of the launch order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FrontierGroup(Synchronous);

impl FrontierGroup {
    /// Creates the schedule in its initial state.
    ///
    /// # Errors
    /// If a count of the configuration is 0.
    pub fn new(config: Config) -> Result<Self, ScheduleError> {
        let Config { prompts, responses, slots, order, total_steps } = config;
        positive("slots", slots as u64)?;
        let order = match order {
            Order::GroupMajor => plan::Order::Groups,
            Order::SampleMajor => plan::Order::Samples,
        };
        let rules = RoundRules { slots, order, ..RoundRules::default() };
        Synchronous::with_rules(sync::Config { prompts, responses, total_steps }, rules).map(Self)
    }
}

impl Schedule for FrontierGroup {
    fn on(&mut self, now: Nanos, event: Event) {
        self.0.on(now, event);
    }

    fn poll(&mut self) -> Option<Decision> {
        self.0.poll()
    }

    fn wants_prompts(&self) -> bool {
        self.0.wants_prompts()
    }

    fn is_out_of_steps(&self) -> bool {
        self.0.is_out_of_steps()
    }

    fn save(&self) -> Option<Vec<u8>> {
        self.0.save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        self.0.restore(saved)
    }
}
