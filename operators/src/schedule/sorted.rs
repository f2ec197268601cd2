//! Sorted batches (SortedRL): many prompts are loaded at once, and trained the shortest first.
//!
//! # The paper
//! A *group* of prompts, several training batches large, is loaded; no prompt of the next group before all of this one are trained on. At
//! most as many responses run as the engine has slots; the others wait. As soon as a batch of responses is there, the policy is updated
//! with it: the short ones come first, so each update trains on responses of similar length, and no slot idles behind a long one. What runs
//! at a harvest is dropped and generated again by the new policy (*on-policy*), or stopped and resumed (*partial*).
//!
//! # Here
//! The paper harvests single responses. Our unit of training is the group of R0 responses to a prompt, without which there is no
//! advantage; so what the paper says of a response holds for a prompt with all of its responses. To keep the words apart, the paper's
//! group is a *load* here: `group_size * prompts` prompts.
//!
//! A round launches the prompts of the load, at most `slots` responses at a time, until `harvest` groups are complete; the `prompts`
//! shortest of them, by tokens, are admitted, and all else is stopped. `harvest = prompts` admits each group when it is complete, in
//! the order in which they end; a larger one waits for more to choose from. `group_size` rounds consume a load.
//!
//! - `mode = "on_policy"`: what is stopped is aborted, deferred, and launched anew after the prompts of the load that have not run yet: it
//!   is known to be long. Every response is sampled by one policy. `harvest` is `prompts`: whatever else were complete would be lost.
//! - `mode = "partial"`: what is stopped is paused, responses that have ended with it, and resumed first. A response spans at most
//!   `group_size` policies, or twice as many with carry-over.
//! - `carry_over = true` (partial mode): slots that the load cannot fill any more are given to prompts of the next one. These are not
//!   admitted before it is their load's turn. Without it the last rounds of a load leave slots empty.
//! - **An epoch's end.** The last load of an epoch is what is left; its last round admits what is left.
//! - **The run's end.** No more is loaded than the rest of the run can admit.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::{at_least, positive};
use super::plan::{Leftover, Plan, Planned, Rules};
use super::pool::Pool;
use super::round::OpenRound;
use super::round_policy::RoundPolicy;
use super::rounds::{Next, Rounds, times};
use super::stock::{defer_rest, queue};
use super::{Reason, Round, ScheduleError};

/// The lane of the next load; that of the current one has no name.
const AHEAD: &str = "ahead";

/// What [`Sorted`] is told at the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Groups admitted in a round: P0.
    pub prompts: usize,
    /// Responses of a group: R0.
    pub responses: u32,
    /// Rounds that a load lasts: the paper's group size, in batches of `prompts`.
    pub group_size: usize,
    /// Responses that run at a time.
    pub slots: usize,
    /// Complete groups that a round waits for, at least `prompts`; none: as many.
    #[serde(default)]
    pub harvest: Option<usize>,
    /// What becomes of responses that run at a harvest.
    pub mode: Mode,
    /// Whether slots that the load leaves empty are given to the next one.
    #[serde(default)]
    pub carry_over: bool,
    /// Steps of the run, counted from step 0; none: as many as the prompts give.
    #[serde(default)]
    pub total_steps: Option<u64>,
}

/// What becomes of responses that run at a harvest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// They are dropped, and their prompts launched anew.
    OnPolicy,
    /// Their tokens are kept, and they go on in the next round.
    Partial,
}

/// The sorted schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sorted {
    config: Config,
    pool: Pool,
    epoch: u32,
    /// What is left of the current load.
    load: Vec<Leftover>,
    /// The next one, as far as it is loaded.
    ahead: Vec<Leftover>,
    rounds: Rounds,
}

/// What an upcoming round loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loads {
    epoch: u32,
    load: usize,
    ahead: usize,
}

impl Sorted {
    /// A schedule at its start.
    ///
    /// # Errors
    /// If a count is 0, a harvest is smaller than a round or larger than a load, or on-policy mode is to keep something.
    pub fn new(config: Config) -> Result<Self, ScheduleError> {
        config.check()?;
        let rounds = Rounds::new(config.total_steps);
        let (load, ahead) = (Vec::new(), Vec::new());
        Ok(Self { config, pool: Pool::default(), epoch: 0, load, ahead, rounds })
    }

    /// Prompts that the upcoming round would load, and load ahead, were there enough.
    fn wanted(&self) -> (usize, usize) {
        let most = self.config.group_size.saturating_mul(self.config.prompts);
        let room = times(self.rounds.left(), self.config.prompts);
        let load = if self.load.is_empty() { most.min(room) } else { 0 };
        let room = room.saturating_sub(self.load.len() + load);
        let ahead = if self.config.carry_over { most.min(room) } else { 0 };
        (load, ahead.saturating_sub(self.ahead.len()))
    }

    /// In partial mode what was stopped goes first, in on-policy mode what has not run yet.
    fn planned(&self, left: Leftover, lane: &Arc<str>) -> Planned {
        let goes_first = left.since.is_some() == (self.config.mode == Mode::Partial);
        let priority = if **lane == *AHEAD { 2 } else { u8::from(!goes_first) };
        left.planned(lane, priority)
    }
}

impl RoundPolicy for Sorted {
    type Upcoming = Loads;

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

    fn next(&self) -> Next<Loads> {
        if self.rounds.left() == 0 {
            return Next::Finish;
        }
        let epoch = if self.load.is_empty() { self.pool.first_epoch() } else { Some(self.epoch) };
        let Some(epoch) = epoch else {
            return if self.pool.is_over() { Next::Finish } else { Next::Prompts };
        };
        let (load, ahead) = self.wanted();
        let Some(fresh) = self.pool.fresh(epoch, "", load + ahead) else { return Next::Prompts };
        let load = load.min(fresh);
        Next::Round(Loads { epoch, load, ahead: fresh - load })
    }

    fn open(&mut self, Loads { epoch, load, ahead }: Loads) {
        let fresh = self.pool.take(epoch, "", load + ahead).into_iter().map(Leftover::fresh);
        self.epoch = epoch;
        self.load.extend(fresh);
        let loaded_ahead = self.load.split_off(self.load.len() - ahead);
        self.ahead.extend(loaded_ahead);
        let (current, next) = (std::mem::take(&mut self.load), std::mem::take(&mut self.ahead));
        let quota = self.config.prompts.min(current.len());
        let launched = current.len();
        let lanes: [Arc<str>; 2] = [Arc::default(), AHEAD.into()];
        let prompts = current.into_iter().map(|left| self.planned(left, &lanes[0]));
        let prompts = prompts.chain(next.into_iter().map(|left| self.planned(left, &lanes[1])));
        let plan = Plan {
            round: if launched > quota { Round::Short } else { Round::Full },
            reason: if load > 0 { Reason::Fresh } else { Reason::Queued },
            epoch,
            samples: self.config.responses,
            responses: self.config.responses,
            prompts: prompts.collect(),
            places: BTreeMap::from([(lanes[0].clone(), quota)]),
            rules: Rules {
                slots: self.config.slots,
                harvest: self.config.chooses().map(|harvest| harvest.min(launched)),
                pauses: self.config.mode == Mode::Partial,
                ..Rules::default()
            },
        };
        self.rounds.open(plan);
    }

    fn close(&mut self, round: OpenRound) {
        let step = round.step();
        for (lane, left) in defer_rest(round, &mut self.rounds) {
            if *lane == *AHEAD { self.ahead.push(left) } else { self.load.push(left) }
        }
        if self.load.is_empty() {
            self.load = std::mem::take(&mut self.ahead);
        }
        self.rounds.close(step, queue(self.load.iter().chain(&self.ahead), step));
    }
}

impl Config {
    /// The harvest, if it leaves a choice.
    fn chooses(&self) -> Option<usize> {
        self.harvest.filter(|&harvest| harvest > self.prompts)
    }

    fn check(&self) -> Result<(), ScheduleError> {
        positive("prompts", self.prompts as u64)?;
        positive("responses", self.responses.into())?;
        positive("group_size", self.group_size as u64)?;
        positive("slots", self.slots as u64)?;
        positive("total_steps", self.total_steps.unwrap_or(1))?;
        let harvest = self.harvest.unwrap_or(self.prompts);
        at_least("harvest", harvest as u64, self.prompts as u64, "which a round admits")?;
        let least = harvest.div_ceil(self.prompts) as u64;
        at_least("group_size", self.group_size as u64, least, "for a load to hold the harvest")?;
        let on_policy = self.mode == Mode::OnPolicy;
        let refused =
            |key, why| Err(ScheduleError::Conflict { key, with: "`mode = \"on_policy\"`", why });
        match (self.carry_over, self.chooses()) {
            (true, _) if on_policy => refused("carry_over", "what it runs ahead would be aborted"),
            (_, Some(_)) if on_policy => refused("harvest", "complete groups would be lost"),
            _ => Ok(()),
        }
    }
}
