//! Longest groups first, by probes (Seer): responses to prompts with long answers start early, so that none of them runs alone at the end.
//!
//! # The paper
//! Seer (arXiv 2511.14617) is synchronous and on-policy. Responses to one prompt have similar lengths. One response of each group, the
//! *probe*, is therefore generated before the others. The length of the probe is the estimate for the group. A longer response of the group
//! that ends later replaces the estimate. Waiting requests of the group with the longest estimate are launched first. A group whose probe
//! still runs may be long, so it comes before all groups with an estimate.
//!
//! # This implementation
//! A round launches `prompts` fresh prompts with `responses` responses each and waits for all, as [`Synchronous`] does. At most `slots`
//! responses run; the others wait in the schedule, and one is launched whenever another ends. The probes come first, in the order in which
//! their prompts were read. Next come the groups without an estimate, and then the groups with an estimate, in descending order of the
//! estimate. Ties go to the prompt that was read first. Without waiting requests the order has no effect, so `slots` has to be less than
//! the responses of a round. A good value is the number of responses that fit into the KV caches of the engine without preemptions.
//!
//! Every response is trained on, and lengths only change the order of launches. The trained lengths therefore have the length distribution
//! of the policy.
//!
//! Two parts of Seer are not in this schedule: moving requests between instances with their KV cache, and speculative decoding with
//! drafts from the same group.

use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};

use super::error::positive;
use super::plan::{Order, RoundRules};
use super::{ScheduleError, Synchronous, sync};

/// The documentation of the schedule in a catalog.
pub const ABOUT: About = About::new(
    &[],
    "waits for all responses, and launches those of the prompts with the longest responses so far first",
    "Seer",
);

documented! {
    /// The configuration of [`Synchronous::longest_first`].
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Config {
        /// The number of prompts in a round. At least 1. (verl: `data.train_batch_size`)
        pub prompts: usize,
        /// The number of responses to each prompt. At least 1. (verl: `rollout.n`, TRL: `num_generations`)
        pub responses: u32,
        /// The maximum number of responses that run at a time. At least 1.
        pub slots: usize [responses],
        /// The maximum number of steps of the run, including steps before a resume; at least 1. If `None` (the default), the run lasts as
        /// long as the prompts. (verl: `trainer.total_training_steps`)
        #[serde(default)]
        pub total_steps: Option<u64>,
    }
}

impl Synchronous {
    /// Creates the schedule, which launches one response to each prompt first. Next come responses to prompts of which no response has
    /// ended, and then responses to the prompt with the longest ended response.
    ///
    /// # Errors
    /// If a count of the configuration is 0.
    pub fn longest_first(config: Config) -> Result<Self, ScheduleError> {
        let Config { prompts, responses, slots, total_steps } = config;
        positive("slots", slots as u64)?;
        let rules = RoundRules { slots, order: Order::LongestFirst, ..RoundRules::default() };
        Self::with_rules(sync::Config { prompts, responses, total_steps }, rules)
    }
}
