//! Dynamic sampling (DAPO, section 3.2): prompts are launched until a step has enough groups with reward variance.
//!
//! # The paper
//! A group whose responses all have the same reward has zero advantage and no gradient. DAPO samples prompts until `prompts` groups contain
//! both right and wrong responses, and trains on these.
//!
//! # This implementation
//! A round launches `gen_prompts` prompts with `responses` responses each. A group is judged when all of its responses are scored. A group
//! without variance, or with a response that could not be scored, is rejected and never launched again. Another prompt is launched in its
//! place at once, not in batches. A group with variance is admitted. When the last place is taken, all responses in flight are aborted, and
//! the undecided prompts are deferred to the next round. With `gen_prompts = prompts`, no response is aborted, and short responses are not
//! preferred. A larger value hides the latency of rejections, but prefers short responses.
//!
//! A group has variance if its rewards are not all equal; there is no threshold on the variance.
//!
//! - **The bound.** A round launches at most `max_generated_batches * prompts` prompts. If these prompts cannot fill the round, the run
//!   fails or the step trains on the groups that exist, according to `on_exhausted`. The run fails as soon as it is certain that the round
//!   cannot be filled.
//! - **End of an epoch.** The last round of an epoch admits the groups that exist, if any; this is not a failure.
//! - **Tail batching** filters in the same way: see [`tail_batching::Config::filter_zero_variance`](super::tail_batching::Config).

use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};

use super::ScheduleError;
use super::error::{at_least, positive};
use super::plan::{Plan, PlannedPrompt, RoundRules};
use super::pool::Pool;
use super::prompt_store::{PromptStore, RoundShare};
use super::round::{OpenRound, Vacancy};
use super::round_policy::RoundPolicy;
use super::rounds::{NextAction, Rounds};
use super::variance::{OnExhausted, ZeroVarianceFilter};

/// The documentation of the schedule in a catalog.
pub const ABOUT: About = About::new(
    &[],
    "launches further prompts until the step has enough groups whose rewards differ",
    "DAPO, section 3.2",
);

documented! {
    /// The configuration of [`Dynamic`].
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Config {
        /// The number of groups admitted in a round (P0). At least 1. (verl: `data.train_batch_size`)
        pub prompts: usize,
        /// The number of responses in a group (R0). At least 2. (verl: `rollout.n`, TRL: `num_generations`)
        pub responses: u32,
        /// The number of prompts launched at the start of a round, at least `prompts`. If `None` (the default), it is `prompts`.
        #[serde(default)]
        pub gen_prompts: Option<usize> [prompts],
        /// The maximum number of prompts that a round may launch, in batches of `prompts`. Must allow the prompts that a round launches at
        /// its start (`gen_prompts`). From 1 to 1048576. (verl: `algorithm.filter_groups.max_num_gen_batches`)
        pub max_generated_batches: usize [batches],
        /// The action to take when a round has launched its maximum number of prompts and too few groups have reward variance: `fail` ends
        /// the run with an error; `smaller_step` trains on the groups that exist, possibly none.
        pub on_exhausted: OnExhausted,
        /// The maximum number of steps of the run, including steps before a resume; at least 1. If `None` (the default), the run lasts as
        /// long as the prompts. (verl: `trainer.total_training_steps`)
        #[serde(default)]
        pub total_steps: Option<u64>,
    }
}

/// The dynamic sampling schedule: a round launches prompts until enough groups have reward variance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dynamic {
    config: Config,
    filter: ZeroVarianceFilter,
    stock: PromptStore,
    rounds: Rounds,
}

impl Dynamic {
    /// Creates the schedule in its initial state.
    ///
    /// # Errors
    /// If a count is 0, `responses` is less than 2, `gen_prompts` is less than `prompts`, or `max_generated_batches` does not allow the
    /// prompts launched at the start of a round.
    pub fn new(config: Config) -> Result<Self, ScheduleError> {
        let Config { prompts, max_generated_batches, on_exhausted, .. } = config;
        positive("prompts", prompts as u64)?;
        positive("total_steps", config.total_steps.unwrap_or(1))?;
        let launched = config.launched();
        at_least("gen_prompts", launched as u64, prompts as u64, "the groups that a round admits")?;
        let filter = ZeroVarianceFilter { max_generated_batches, on_exhausted };
        filter.check(config.responses, launched, prompts)?;
        let rounds = Rounds::new(config.total_steps);
        Ok(Self { config, filter, stock: PromptStore::default(), rounds })
    }
}

impl Config {
    /// Returns the number of prompts that a round launches at its start.
    fn launched(&self) -> usize {
        self.gen_prompts.unwrap_or(self.prompts)
    }
}

impl RoundPolicy for Dynamic {
    type Upcoming = RoundShare;

    fn rounds(&mut self) -> &mut Rounds {
        &mut self.rounds
    }

    fn rounds_ref(&self) -> &Rounds {
        &self.rounds
    }

    fn pool(&mut self) -> &mut Pool {
        &mut self.stock.pool
    }

    fn filter(&self) -> Option<&ZeroVarianceFilter> {
        Some(&self.filter)
    }

    fn quota(&self, _lane: &str) -> usize {
        self.config.prompts
    }

    fn replacement(&mut self, Vacancy { epoch, lane, .. }: &Vacancy) -> NextAction<PlannedPrompt> {
        self.stock.pool.take_one(*epoch, lane).map(|fresh| fresh.planned(lane, 0))
    }

    fn round_size(&self) -> Option<(usize, u32)> {
        Some((self.config.launched(), self.config.responses))
    }

    fn next(&self) -> NextAction<RoundShare> {
        self.stock.next(&self.rounds, self.config.launched(), self.config.prompts)
    }

    fn open(&mut self, share: RoundShare) {
        let Config { prompts, responses, .. } = self.config;
        let plan = Plan::new(share.epoch, self.stock.take(share), prompts, responses);
        let rules = RoundRules { filters: true, ..RoundRules::default() };
        self.rounds.open(Plan { rules, ..plan });
    }

    fn close(&mut self, round: OpenRound) {
        self.stock.close(round, &mut self.rounds);
    }
}
