//! Synchronous rounds (verl): a round launches the prompts of one step and waits for all of their responses.
//!
//! A round launches `prompts` fresh prompts with `responses` responses each. A prompt is admitted as soon as its responses have ended, so
//! that its rewards and gradients are computed while other responses are generated. The round closes with its last response. The last round
//! of an epoch takes the prompts that are left.

use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};

use super::ScheduleError;
use super::error::positive;
use super::plan::{Plan, RoundRules};
use super::pool::Pool;
use super::prompt_store::{PromptStore, RoundShare};
use super::round::OpenRound;
use super::round_policy::RoundPolicy;
use super::rounds::{NextAction, Rounds};

/// The documentation of the schedule in a catalog, if the stages run one after the other.
pub const ABOUT: About = About::new(
    &[],
    "waits for all responses; scoring follows the rollout, and training follows scoring",
    "veRL",
);

/// The documentation of the schedule in a catalog, if the stages overlap.
pub const FUSED: About = About::new(
    &[],
    "waits for all responses; scores them as they end, and trains on each group when it is complete",
    "RLHFuse",
);

documented! {
    /// The configuration of [`Synchronous`].
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Config {
        /// The number of prompts in a round. At least 1. (verl: `data.train_batch_size`)
        pub prompts: usize,
        /// The number of responses to each prompt. At least 1. (verl: `rollout.n`, TRL: `num_generations`)
        pub responses: u32,
        /// The maximum number of steps of the run, including steps before a resume; at least 1. If `None` (the default), the run lasts as
        /// long as the prompts. (verl: `trainer.total_training_steps`)
        #[serde(default)]
        pub total_steps: Option<u64>,
    }
}

/// The synchronous schedule: a round waits for all of its responses.
///
/// Not named `Sync`, which would shadow the marker trait wherever it is imported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Synchronous {
    config: Config,
    rules: RoundRules,
    stock: PromptStore,
    rounds: Rounds,
}

impl Synchronous {
    /// Creates the schedule in its initial state.
    ///
    /// # Errors
    /// If a count of the configuration is 0.
    pub fn new(config: Config) -> Result<Self, ScheduleError> {
        Self::with_rules(config, RoundRules::default())
    }

    /// Creates the schedule with `rules` for launching requests.
    pub(super) fn with_rules(config: Config, rules: RoundRules) -> Result<Self, ScheduleError> {
        positive("prompts", config.prompts as u64)?;
        positive("responses", config.responses.into())?;
        positive("total_steps", config.total_steps.unwrap_or(1))?;
        let rounds = Rounds::new(config.total_steps);
        Ok(Self { config, rules, stock: PromptStore::default(), rounds })
    }
}

impl RoundPolicy for Synchronous {
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

    fn next(&self) -> NextAction<RoundShare> {
        self.stock.next(&self.rounds, self.config.prompts, self.config.prompts)
    }

    fn open(&mut self, share: RoundShare) {
        let Config { prompts, responses, .. } = self.config;
        let plan = Plan::new(share.epoch, self.stock.take(share), prompts, responses);
        self.rounds.open(Plan { rules: self.rules.clone(), ..plan });
    }

    fn close(&mut self, round: OpenRound) {
        self.stock.close(round, &mut self.rounds);
    }
}
