//! Frontier groups first (RolloutPipe): the groups that the trainer can have next are generated first.
//!
//! # The paper
//! Rollout and trainer have devices of their own. Complete groups go to the trainer's queue at once (CGP), which they do under every
//! schedule here: a group is admitted with the last of its responses, and its gradient accumulated while others are generated. When
//! there are more requests than the engine runs at a time, those of the *frontier*, the groups that form the next training batch, are
//! admitted to it first (FGD), so that the trainer's first groups are not held up by requests of its last.
//!
//! # Here
//! A round launches `prompts` fresh prompts with `responses` responses each and waits for all, as [`Synchronous`] does; it is one
//! training step, and its gradient is accumulated group by group. At most `slots` responses run; the others wait here, not in the
//! engine, and one is launched whenever another ends. `order = "group_major"` is FGD: the next request is one of the group that has the
//! fewest responses left to end, and of the first such in the order of prompts. `order = "sample_major"` launches the first response
//! of each prompt, then the second of each, as a server does that is sent the batch `responses` times: what is left then is CGP alone.

use rollpacker_dataflow::clock::Nanos;
use serde::{Deserialize, Serialize};

use super::error::positive;
use super::plan::{self, Rules};
use super::{Decision, Event, Schedule, ScheduleError, Synchronous, sync};

/// What [`FrontierGroup`] is told at the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Prompts of a round: P0.
    pub prompts: usize,
    /// Responses to each prompt: R0.
    pub responses: u32,
    /// Responses that run at a time.
    pub slots: usize,
    /// Which of those that wait is launched first.
    pub order: Order,
    /// Steps of the run, counted from step 0; none: as many as the prompts give.
    #[serde(default)]
    pub total_steps: Option<u64>,
}

/// Which request is launched first of those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// One of the group with the fewest responses left to end.
    GroupMajor,
    /// The first response of each prompt, then the second of each.
    SampleMajor,
}

/// The frontier group schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FrontierGroup(Synchronous);

impl FrontierGroup {
    /// A schedule at its start.
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
        let rules = Rules { slots, order, ..Rules::default() };
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

    fn save(&self) -> Option<Vec<u8>> {
        self.0.save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), String> {
        self.0.restore(saved)
    }
}
