//! Partial rollouts (Kimi k1.5, section 2.6.2; APRIL): the tail of a round is paused and resumed in the next round.
//!
//! # The papers
//! A round launches more prompts than it trains on. When enough groups are complete, the responses in flight are stopped and their tokens
//! kept. The next round resumes them first, under its own policy, from where they stopped. No token is discarded, and no round waits for
//! the longest response. A response may therefore be sampled by several policies; each token keeps the log-probability and the policy
//! version with which it was sampled.
//!
//! # This implementation
//! A round launches `ceil(oversubscription * prompts)` prompts with `responses` responses each: first the paused prompts, then fresh
//! prompts. It admits the first `prompts` groups that complete. All responses of the other groups are paused, including responses that have
//! ended. A response that has ended is kept whole, and each later round that launches its prompt returns it again.
//!
//! - **Versions.** No response takes part in more than `max_versions` rounds. Kimi k1.5 discards responses that would exceed the limit;
//!   here the round waits for them instead. It reserves places for as many of the oldest groups as must be admitted now so that all are
//!   admitted in time. Discarding would resample the longest responses until they are short. For this to suffice, `max_versions` must be at
//!   least `oversubscription`. With staleness `k`, the policies of a response may be up to `k` further versions old.
//! - **End of an epoch.** The last rounds of an epoch launch the prompts that are left. The last round waits for all of them, and may be
//!   smaller.
//! - **End of the run.** No round launches more prompts than the rest of the run can admit, so no response stays paused.
//!   A run that is resumed with fewer steps rejects the prompts that are left after its last round.

use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::{at_least, positive};
use super::plan::{LeftoverPrompt, Plan, RoundRules};
use super::pool::Pool;
use super::prompt_store::{PromptStore, RoundShare};
use super::round::OpenRound;
use super::round_policy::RoundPolicy;
use super::rounds::{NextAction, Rounds, times};
use super::speculation::{check_factor, scaled};
use super::{Reason, RoundKind, ScheduleError};

/// The lane of the groups that a round must admit.
const DUE: &str = "due";

/// The documentation of the schedule in a catalog.
pub const ABOUT: About = About::new(
    &[],
    "ends a round with its batch, and continues the responses still running in the next round",
    "Kimi k1.5, section 2.6.2; APRIL",
);

documented! {
    /// The configuration of [`Partial`].
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Config {
        /// The number of groups admitted in a round (P0). At least 1. (verl: `data.train_batch_size`)
        pub prompts: usize,
        /// The number of responses in a group (R0). At least 1. (verl: `rollout.n`, TRL: `num_generations`)
        pub responses: u32,
        /// The ratio of prompts launched in a round to prompts admitted, from 1 to 1000.
        pub oversubscription: f64,
        /// The maximum number of rounds that a response may take part in, and thus of policy versions that it may span. At least
        /// `oversubscription`.
        pub max_versions: u64 [rounds],
        /// The maximum number of steps of the run, including steps before a resume; at least 1. If `None` (the default), the run lasts as
        /// long as the prompts. (verl: `trainer.total_training_steps`)
        #[serde(default)]
        pub total_steps: Option<u64>,
    }
}

/// The partial rollout schedule: a round pauses its unfinished responses, and the next round resumes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Partial {
    config: Config,
    launched: usize,
    stock: PromptStore,
    rounds: Rounds,
}

impl Partial {
    /// Creates the schedule in its initial state.
    ///
    /// # Errors
    /// If a count is 0, `oversubscription` is not from 1 to 1000, or `max_versions` is less than `oversubscription`.
    pub fn new(config: Config) -> Result<Self, ScheduleError> {
        positive("prompts", config.prompts as u64)?;
        positive("responses", config.responses.into())?;
        positive("total_steps", config.total_steps.unwrap_or(1))?;
        check_factor("oversubscription", config.oversubscription)?;
        let launched = scaled(config.oversubscription, config.prompts);
        let min = launched.div_ceil(config.prompts) as u64;
        at_least("max_versions", config.max_versions, min, "to keep up with `oversubscription`")?;
        let rounds = Rounds::new(config.total_steps);
        Ok(Self { config, launched, stock: PromptStore::default(), rounds })
    }

    /// Returns the number of oldest groups that the upcoming round must admit. Each later round can admit one quota, and each group must be
    /// admitted within `max_versions` rounds of its first launch.
    fn due_groups(&self) -> usize {
        let step = self.rounds.upcoming();
        let due = |(before, left): (usize, &LeftoverPrompt)| {
            let since = left.since.unwrap_or(step);
            let rounds =
                since.0.saturating_add(self.config.max_versions - 1).saturating_sub(step.0);
            (before + 1).saturating_sub(times(rounds, self.config.prompts))
        };
        self.stock.leftover().iter().enumerate().map(due).max().unwrap_or(0)
    }
}

impl RoundPolicy for Partial {
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

    fn pauses(&self) -> bool {
        true
    }

    fn round_size(&self) -> Option<(usize, u32)> {
        Some((self.launched, self.config.responses))
    }

    fn next(&self) -> NextAction<RoundShare> {
        self.stock.next(&self.rounds, self.launched, self.config.prompts)
    }

    fn open(&mut self, share: RoundShare) {
        let due = self.due_groups().min(self.config.prompts);
        let taken = self.stock.take(share);
        let (launched, quota) = (taken.len(), self.config.prompts.min(taken.len()));
        let lanes: [Arc<str>; 2] = [DUE.into(), Arc::default()];
        let lane = |index: usize| &lanes[usize::from(index >= due)];
        let planned = |(index, left): (usize, LeftoverPrompt)| left.planned(lane(index), 0);
        self.rounds.open(Plan {
            round: if launched > quota { RoundKind::Short } else { RoundKind::Full },
            reason: match (share.fresh, quota < self.config.prompts) {
                (_, true) => Reason::EpochEnd,
                (0, false) => Reason::Queued,
                (_, false) => Reason::Fresh,
            },
            epoch: share.epoch,
            samples: self.config.responses,
            responses: self.config.responses,
            prompts: taken.into_iter().enumerate().map(planned).collect(),
            places: BTreeMap::from([(lanes[0].clone(), due), (lanes[1].clone(), quota - due)]),
            rules: RoundRules { pauses: true, ..RoundRules::default() },
        });
    }

    fn close(&mut self, round: OpenRound) {
        self.stock.close(round, &mut self.rounds);
    }
}
