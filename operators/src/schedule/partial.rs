//! Partial rollouts (Kimi k1.5, section 2.6.2; APRIL): the tail of a round is stopped, and goes on in the next.
//!
//! # The papers
//! A round launches more prompts than it trains on. When enough groups are complete, what still runs is stopped and its tokens kept; the
//! next round takes these up first, under its own policy, from where they were. No token is thrown away, and no round waits for the
//! longest response. A response may so be sampled by several policies; each token keeps the log-probability and the version of its own.
//!
//! # Here
//! A round launches `ceil(oversubscription * prompts)` prompts with `responses` responses each: first those that were stopped, then fresh
//! ones. It admits the first `prompts` groups that complete. All responses of the others are paused, those that have ended too: these
//! wait, whole, for the rest of their group, and are given again by the round that completes it.
//!
//! - **Versions.** No response takes part in more than `max_versions` rounds. Kimi k1.5 gives up what is older; here the round waits for
//!   it instead: places are set aside for as many of the oldest groups as must be admitted now so that all can be in time. Giving up
//!   would sample the longest responses anew until they are short. For the waiting to suffice, `max_versions` must be at least
//!   `oversubscription`. With staleness `k` the policies of a response are up to `k` versions older still.
//! - **An epoch's end.** The last rounds of an epoch launch what is left and wait for all of it in the last, which may be smaller.
//! - **The run's end.** No round launches more than the rest of the run can admit, so nothing is left stopped.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::{at_least, positive};
use super::plan::{Leftover, Plan, Rules};
use super::pool::Pool;
use super::round::OpenRound;
use super::round_policy::RoundPolicy;
use super::rounds::{Next, Rounds, times};
use super::speculation::{factor, scaled};
use super::stock::{Share, Stock};
use super::{Reason, Round, ScheduleError};

/// The lane of the groups that a round must admit.
const DUE: &str = "due";

/// What [`Partial`] is told at the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Groups admitted in a round: P0.
    pub prompts: usize,
    /// Responses of a group: R0.
    pub responses: u32,
    /// Prompts launched in a round over prompts admitted: 1 or more.
    pub oversubscription: f64,
    /// Rounds that a response may take part in, and so policy versions that it may span: at least `oversubscription`.
    pub max_versions: u64,
    /// Steps of the run, counted from step 0; none: as many as the prompts give.
    #[serde(default)]
    pub total_steps: Option<u64>,
}

/// The partial rollout schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Partial {
    config: Config,
    launched: usize,
    stock: Stock,
    rounds: Rounds,
}

impl Partial {
    /// A schedule at its start.
    ///
    /// # Errors
    /// If a count is 0, the factor is not within 1 and 1000, or above `max_versions`.
    pub fn new(config: Config) -> Result<Self, ScheduleError> {
        positive("prompts", config.prompts as u64)?;
        positive("responses", config.responses.into())?;
        positive("total_steps", config.total_steps.unwrap_or(1))?;
        factor("oversubscription", config.oversubscription)?;
        let launched = scaled(config.oversubscription, config.prompts);
        let least = launched.div_ceil(config.prompts) as u64;
        at_least("max_versions", config.max_versions, least, "for the rounds to keep up with it")?;
        let rounds = Rounds::new(config.total_steps);
        Ok(Self { config, launched, stock: Stock::default(), rounds })
    }

    /// How many of the oldest groups the upcoming round must admit: each later round can admit a quota, and each group must be admitted
    /// within `max_versions` rounds of its first launch.
    fn due(&self) -> usize {
        let step = self.rounds.upcoming();
        let due = |(before, left): (usize, &Leftover)| {
            let since = left.since.unwrap_or(step);
            let rounds = (since.0 + self.config.max_versions - 1).saturating_sub(step.0);
            (before + 1).saturating_sub(times(rounds, self.config.prompts))
        };
        self.stock.left().iter().enumerate().map(due).max().unwrap_or(0)
    }
}

impl RoundPolicy for Partial {
    type Upcoming = Share;

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

    fn next(&self) -> Next<Share> {
        self.stock.next(&self.rounds, self.launched, self.config.prompts)
    }

    fn open(&mut self, share: Share) {
        let due = self.due().min(self.config.prompts);
        let taken = self.stock.take(share);
        let (launched, quota) = (taken.len(), self.config.prompts.min(taken.len()));
        let lanes: [Arc<str>; 2] = [DUE.into(), Arc::default()];
        let lane = |index: usize| &lanes[usize::from(index >= due)];
        let planned = |(index, left): (usize, Leftover)| left.planned(lane(index), 0);
        self.rounds.open(Plan {
            round: if launched > quota { Round::Short } else { Round::Full },
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
            rules: Rules { pauses: true, ..Rules::default() },
        });
    }

    fn close(&mut self, round: OpenRound) {
        self.stock.close(round, &mut self.rounds);
    }
}
