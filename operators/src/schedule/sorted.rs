//! Sorted batches (SortedRL): many prompts are loaded at once, and the shortest responses are trained on first.
//!
//! # The paper
//! A *group* of prompts, several training batches large, is loaded. No prompt of the next group is loaded before all prompts of this group
//! are trained on. At most as many responses run as the engine has slots; the others wait. As soon as a batch of responses is complete, the
//! policy is updated with this batch. Short responses come first, so each update trains on responses of similar length, and no slot waits
//! for a long response. Responses that are running at a harvest are dropped and generated again by the new policy (*on-policy*), or stopped
//! and resumed (*partial*).
//!
//! # This implementation
//! The paper harvests single responses. Here the unit of training is the group of R0 responses to a prompt, which the advantage requires.
//! Statements of the paper about a response therefore apply to a prompt with all of its responses. To avoid confusion, the paper's group is
//! called a *load* here: `group_size * prompts` prompts.
//!
//! A round launches the prompts of the load, at most `slots` responses at a time, until `harvest` groups are complete. The `prompts`
//! complete groups with the fewest tokens are admitted, and the responses of all other groups are stopped. `harvest = prompts` admits each
//! group when it is complete; a larger value waits for more groups to choose from. `group_size` rounds consume a load.
//!
//! - `mode = "on_policy"`: stopped responses are aborted, and their prompts are deferred. Later rounds launch these prompts after the
//!   prompts of the load that have not run yet, because prompts that were stopped are long. Every response is sampled by one policy.
//!   `harvest` must be `prompts`, since further complete groups would be lost.
//! - `mode = "partial"`: stopped responses are paused, together with the responses of the same groups that have ended, and are resumed
//!   first. A response spans at most `group_size` policies, or twice as many with carry-over.
//! - `carry_over = true` (partial mode): slots that the load can no longer fill are given to prompts of the next load. Prompts of the next
//!   load are not admitted before their load is current. Without carry-over, the last rounds of a load leave slots empty.
//! - **End of an epoch.** The last load of an epoch consists of the prompts that are left; its last round admits what is left.
//! - **End of the run.** No more prompts are loaded than the rest of the run can admit.

use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::{at_least, positive};
use super::plan::{LeftoverPrompt, Plan, PlannedPrompt, RoundRules};
use super::pool::Pool;
use super::prompt_store::{defer_rest, queue};
use super::round::OpenRound;
use super::round_policy::RoundPolicy;
use super::rounds::{NextAction, Rounds, times};
use super::{Reason, RoundKind, ScheduleError};

/// The lane of the next load; the lane of the current load is unnamed.
const AHEAD: &str = "ahead";

/// The documentation of the schedule in a catalog.
pub const ABOUT: About = About::new(
    &[],
    "loads several batches of prompts and trains on the shortest responses first",
    "SortedRL",
);

documented! {
    /// The configuration of [`Sorted`].
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Config {
        /// The number of groups admitted in a round (P0). At least 1. (verl: `data.train_batch_size`)
        pub prompts: usize,
        /// The number of responses in a group (R0). At least 1. (verl: `rollout.n`, TRL: `num_generations`)
        pub responses: u32,
        /// The number of rounds that use up a load (the prompts that are loaded at once, a group in the paper): a load has
        /// `group_size * prompts` prompts. At least 1.
        pub group_size: usize [rounds],
        /// The maximum number of responses that run at a time. At least 1.
        pub slots: usize [responses],
        /// The number of complete groups that a round waits for before it admits the shortest groups, from `prompts` to
        /// `group_size * prompts`. If `None` (the default), it is `prompts`.
        #[serde(default)]
        pub harvest: Option<usize> [groups],
        /// The treatment of responses that are running when a round has its complete groups: `on_policy` aborts them and launches their
        /// prompts again in a later round, and `harvest` must then be `prompts`; `partial` pauses them and resumes them in the next round.
        pub mode: Mode,
        /// `true` to give the slots that the current load cannot fill to prompts of the next load. Requires `mode = "partial"`. Default:
        /// `false`.
        #[serde(default)]
        pub carry_over: bool,
        /// The maximum number of steps of the run, including steps before a resume; at least 1. If `None` (the default), the run lasts as
        /// long as the prompts. (verl: `trainer.total_training_steps`)
        #[serde(default)]
        pub total_steps: Option<u64>,
    }
}

/// The treatment of responses that are running at a harvest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Abort the responses and launch their prompts again.
    OnPolicy,
    /// Pause the responses and resume them in the next round.
    Partial,
}

/// The sorted schedule: each round of a load of prompts admits the complete groups with the fewest tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sorted {
    config: Config,
    pool: Pool,
    epoch: u32,
    /// The prompts of the current load that were not admitted; empty while a round is open.
    load: Vec<LeftoverPrompt>,
    /// The prompts of the next load, as far as it is loaded; empty while a round is open.
    ahead: Vec<LeftoverPrompt>,
    rounds: Rounds,
}

/// The numbers of prompts that an upcoming round adds to the current and to the next load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpcomingLoads {
    epoch: u32,
    load: usize,
    ahead: usize,
}

impl Sorted {
    /// Creates the schedule in its initial state.
    ///
    /// # Errors
    /// If a count is 0, `harvest` is less than `prompts` or more than a load, or on-policy mode is combined with `carry_over` or with a
    /// `harvest` above `prompts`.
    pub fn new(config: Config) -> Result<Self, ScheduleError> {
        config.check()?;
        let rounds = Rounds::new(config.total_steps);
        let (load, ahead) = (Vec::new(), Vec::new());
        Ok(Self { config, pool: Pool::default(), epoch: 0, load, ahead, rounds })
    }

    /// Returns the numbers of prompts that the upcoming round would add to the current and to the next load if enough were available.
    fn wanted(&self) -> (usize, usize) {
        let max = self.config.load();
        let room = times(self.rounds.remaining(), self.config.prompts);
        let load = if self.load.is_empty() { max.min(room) } else { 0 };
        let room = room.saturating_sub(self.load.len() + load);
        let ahead = if self.config.carry_over { max.min(room) } else { 0 };
        (load, ahead.saturating_sub(self.ahead.len()))
    }

    /// Assigns the launch priority. In partial mode, prompts that were stopped come first. In on-policy mode, prompts that have not run yet
    /// come first. Prompts of the next load come last.
    fn planned(&self, left: LeftoverPrompt, lane: &Arc<str>) -> PlannedPrompt {
        let goes_first = left.since.is_some() == (self.config.mode == Mode::Partial);
        let priority = if **lane == *AHEAD { 2 } else { u8::from(!goes_first) };
        left.planned(lane, priority)
    }
}

impl RoundPolicy for Sorted {
    type Upcoming = UpcomingLoads;

    fn rounds(&mut self) -> &mut Rounds {
        &mut self.rounds
    }

    fn rounds_ref(&self) -> &Rounds {
        &self.rounds
    }

    fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    fn pauses(&self) -> bool {
        self.config.mode == Mode::Partial
    }

    fn round_size(&self) -> Option<(usize, u32)> {
        let loads = 1 + usize::from(self.config.carry_over);
        Some((self.config.load().saturating_mul(loads), self.config.responses))
    }

    fn next(&self) -> NextAction<UpcomingLoads> {
        if self.rounds.remaining() == 0 {
            return NextAction::Finish;
        }
        let epoch = if self.load.is_empty() { self.pool.first_epoch() } else { Some(self.epoch) };
        let Some(epoch) = epoch else {
            return if self.pool.is_over() { NextAction::Finish } else { NextAction::Prompts };
        };
        let (load, ahead) = self.wanted();
        let Some(fresh) = self.pool.available(epoch, "", load.saturating_add(ahead)) else {
            return NextAction::Prompts;
        };
        let load = load.min(fresh);
        NextAction::Round(UpcomingLoads { epoch, load, ahead: fresh - load })
    }

    fn open(&mut self, UpcomingLoads { epoch, load, ahead }: UpcomingLoads) {
        let fresh = self.pool.take(epoch, "", load + ahead).into_iter().map(LeftoverPrompt::fresh);
        self.epoch = epoch;
        self.load.extend(fresh);
        // The prompts were taken in reading order: the last `ahead` of them belong to the next load.
        let loaded_ahead = self.load.split_off(self.load.len() - ahead);
        self.ahead.extend(loaded_ahead);
        let (current, next) = (std::mem::take(&mut self.load), std::mem::take(&mut self.ahead));
        let quota = self.config.prompts.min(current.len());
        let launched = current.len();
        let lanes: [Arc<str>; 2] = [Arc::default(), AHEAD.into()];
        let prompts = current.into_iter().map(|left| self.planned(left, &lanes[0]));
        let prompts = prompts.chain(next.into_iter().map(|left| self.planned(left, &lanes[1])));
        let plan = Plan {
            round: if launched > quota { RoundKind::Short } else { RoundKind::Full },
            reason: if load > 0 { Reason::Fresh } else { Reason::Queued },
            epoch,
            samples: self.config.responses,
            responses: self.config.responses,
            prompts: prompts.collect(),
            places: BTreeMap::from([(lanes[0].clone(), quota)]),
            rules: RoundRules {
                slots: self.config.slots,
                harvest: self.config.selective_harvest().map(|harvest| harvest.min(launched)),
                pauses: self.config.mode == Mode::Partial,
                ..RoundRules::default()
            },
        };
        self.rounds.open(plan);
    }

    fn close(&mut self, round: OpenRound) {
        let step = round.step();
        for (lane, left) in defer_rest(round, &mut self.rounds) {
            if *lane == *AHEAD { self.ahead.push(left) } else { self.load.push(left) }
        }
        // The load is consumed: the next one becomes current, including its prompts that already ran.
        if self.load.is_empty() {
            self.load = std::mem::take(&mut self.ahead);
        }
        self.rounds.close(step, queue(self.load.iter().chain(&self.ahead), step));
    }
}

impl Config {
    /// Returns the number of prompts in a load.
    fn load(&self) -> usize {
        self.group_size.saturating_mul(self.prompts)
    }

    /// Returns `harvest` if it is greater than `prompts`, so that a round selects among complete groups; `None` otherwise.
    fn selective_harvest(&self) -> Option<usize> {
        self.harvest.filter(|&harvest| harvest > self.prompts)
    }

    fn check(&self) -> Result<(), ScheduleError> {
        positive("prompts", self.prompts as u64)?;
        positive("responses", self.responses.into())?;
        positive("group_size", self.group_size as u64)?;
        positive("slots", self.slots as u64)?;
        positive("total_steps", self.total_steps.unwrap_or(1))?;
        let harvest = self.harvest.unwrap_or(self.prompts);
        at_least("harvest", harvest as u64, self.prompts as u64, "the groups that a round admits")?;
        let min = harvest.div_ceil(self.prompts) as u64;
        at_least("group_size", self.group_size as u64, min, "for a load to hold the harvest")?;
        let on_policy = self.mode == Mode::OnPolicy;
        let refused =
            |key, why| Err(ScheduleError::Conflict { key, with: "`mode = \"on_policy\"`", why });
        match (self.carry_over, self.selective_harvest()) {
            (true, _) if on_policy => refused("carry_over", "the next load would be aborted"),
            (_, Some(_)) if on_policy => refused("harvest", "complete groups would be lost"),
            _ => Ok(()),
        }
    }
}
