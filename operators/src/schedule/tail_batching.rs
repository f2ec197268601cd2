//! Tail batching (RollPacker, NSDI '26, section 3): long responses are packed into few rounds.
//!
//! # The paper
//! A *short* round launches `ceil(eta_prompts * prompts)` fresh prompts with `ceil(eta_responses * responses)` responses each. A prompt
//! is finished when `responses` of its responses are; these form its group, the others are aborted. The first `prompts` prompts to
//! finish are admitted. With the last of them everything that still runs is aborted, and the prompts that did not finish enter the
//! long-prompt queue in launch order. When the queue holds `prompts`, a *long* round launches exactly its first `prompts` with
//! `responses` responses each, and waits for all. Factors of 1 give the variants of Fig. 12: `eta_responses = 1` speculates on prompts
//! only, `eta_prompts = 1` on responses only. A response that ended at its length limit has ended like any other.
//!
//! # Beyond the paper
//! - **Domains.** Each domain has a quota, and the above holds within each: a short round launches `ceil(eta_prompts * quota)` of it and
//!   admits the first `quota`; a long round waits until the queue holds every quota. A domain of which the epoch has less than a quota
//!   of fresh prompts left takes part in long rounds only, with its queue and then these; its places in short rounds stay empty, as do
//!   those in long rounds that it cannot fill. Rounding up favours the queues of small quotas, which grow while they wait for the
//!   others; the age limit bounds them. A domain that the data holds more rarely than its quota says makes the schedule read ahead.
//! - **Age.** No prompt is in the queue for more than `max_queue_age` rounds after that which deferred it. A long round is run early
//!   when a short one would break this, and filled up with fresh prompts, one by one no speculation either; and a short round launches
//!   only as many as long rounds can then serve in time, which is fewer than the paper's only where `eta_prompts` is above 2 or quotas
//!   are served unevenly.
//! - **An epoch's end.** When less than a quota of fresh prompts remains of every domain, long rounds drain the queue and then these. With
//!   one quota only the last round of an epoch is smaller. The next epoch begins when nothing is left of this one, so each epoch trains on
//!   each of its prompts once. Prompts of the next epoch may be offered before; they wait.
//! - **The run's end.** With `r` rounds left, this one included, a short round launches only as many as leave at most `r - 1` quotas in
//!   the queue, and a long round is run when it already holds more. So the queue is empty after the last.
//! - **Dynamic sampling** (section 7). With `filter_zero_variance`, a group without variance of reward is rejected instead of admitted, and
//!   never queued; another prompt is launched in its place, in a long round the next of the queue. When the epoch has none left, or
//!   the bound allows none, the round admits fewer groups, or the run fails.
//! - **Partial rollouts** (section 6.7). With `keep_partial`, the responses of a prompt that is put off are paused, those that have ended
//!   too, and the long round goes on from there. They span the policies of both rounds, at most `max_queue_age + 2` steps apart.
//!   With surplus responses the long round, too, keeps the first of those that go on: `eta_responses = 1` selects none by length.
//! - **Selection.** `weighted` decides as the paper does, with speculation on prompts alone, and weighs what long rounds train on so that
//!   the lengths trained on are the policy's: new draws of a prompt that was cut off count by the inverse of their inclusion, estimated
//!   as the run goes. With surplus responses some lengths are never trained on, and no weight makes up for that, so these are refused.
//! - **Duplicates.** Rows are told apart by their id alone; two equal rows are two prompts.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::rollout::FinishReason;
use serde::{Deserialize, Serialize};

use super::error::positive;
use super::inclusion::Inclusion;
use super::plan::{Leftover, Plan, Planned, Rules};
use super::pool::Pool;
use super::queue::LongPrompts;
use super::round::{OpenRound, Vacancy};
use super::round_policy::RoundPolicy;
use super::rounds::{Next, Rounds, times};
use super::speculation::{factor, scaled};
use super::variance::ZeroVarianceFilter;
use super::{Decision, Offer, Reason, Round, ScheduleError};

/// What [`TailBatching`] is told at the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Prompts admitted in a round: P0.
    pub prompts: usize,
    /// Responses of a group: R0.
    pub responses: u32,
    /// Prompts launched in a short round over prompts admitted: 1 or more; the paper's 1.25 if left out.
    #[serde(default = "paper")]
    pub eta_prompts: f64,
    /// Responses launched in a short round over responses of a group: 1 or more; the paper's 1.25 if left out.
    #[serde(default = "paper")]
    pub eta_responses: f64,
    /// Prompts admitted in a round by domain, summing to `prompts`; prompts of other domains are rejected. Empty: one quota for all.
    #[serde(default)]
    pub quotas: BTreeMap<Arc<str>, usize>,
    /// Rounds that a prompt may be in the queue after that which deferred it: 0 sends it to the next.
    #[serde(default)]
    pub max_queue_age: Option<u64>,
    /// Steps of the run, counted from step 0; none: as many as the prompts give.
    #[serde(default)]
    pub total_steps: Option<u64>,
    /// Groups without variance of reward are rejected and replaced; none: they are admitted.
    #[serde(default)]
    pub filter_zero_variance: Option<ZeroVarianceFilter>,
    /// Whether what a short round cuts off goes on in a long round, instead of being generated anew. With `eta_responses` above 1 the long
    /// round, too, keeps the first of what goes on; not to be had with `weighted`.
    #[serde(default)]
    pub keep_partial: bool,
    /// How what finishes first counts in the loss.
    #[serde(default)]
    pub selection: Selection,
    /// The greatest weight of `weighted`, at least 1: bounds the variance, and leaves some bias where it binds.
    #[serde(default = "max_weight")]
    pub max_weight: f64,
}

/// How responses that are selected for finishing first count in the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    /// 1 each, as in the paper: the lengths trained on are shorter than the policy's.
    #[default]
    Fastest,
    /// By inverse inclusion; needs `eta_responses = 1`. Corrects the trained lengths within 1 %, and the group-relative gradient within 7 %
    /// on known distributions (`docs/bias.md`).
    Weighted,
}

/// The greatest weight unless told otherwise; the estimate rarely asks for more.
pub const MAX_WEIGHT: f64 = 16.0;

fn max_weight() -> f64 {
    MAX_WEIGHT
}

/// The tail batching schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TailBatching {
    lanes: BTreeMap<Arc<str>, Lane>,
    one_lane: bool,
    responses: u32,
    short_responses: u32,
    max_queue_age: Option<u64>,
    filter: Option<ZeroVarianceFilter>,
    keep_partial: bool,
    pool: Pool,
    queue: LongPrompts,
    rounds: Rounds,
    /// Only where what is selected is weighed.
    inclusion: Option<Inclusion>,
}

/// How many prompts of a domain a round takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Lane {
    /// Admitted in each round.
    quota: usize,
    /// Launched in a short round.
    short: usize,
}

/// An upcoming round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Upcoming {
    round: Round,
    reason: Reason,
    epoch: u32,
    shares: Vec<Share>,
}

/// What a lane gives to an upcoming round.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Share {
    lane: Arc<str>,
    queued: usize,
    fresh: usize,
    places: usize,
}

/// The speculation factor of the paper's runs.
fn paper() -> f64 {
    1.25
}

impl TailBatching {
    /// A schedule at its start.
    ///
    /// # Errors
    /// If a count or quota is 0, a factor is not within 1 and 1000, the quotas do not sum to the prompts of a round, or `weighted` is
    /// asked for together with surplus responses.
    pub fn new(config: Config) -> Result<Self, ScheduleError> {
        config.check()?;
        let inclusion = match config.selection {
            Selection::Fastest => None,
            Selection::Weighted => Some(Inclusion::new(config.max_weight)),
        };
        let short_responses = scaled(config.eta_responses, config.responses as usize);
        let short_responses = u32::try_from(short_responses).unwrap_or(u32::MAX);
        let one_lane = config.quotas.is_empty();
        let quotas =
            if one_lane { BTreeMap::from([("".into(), config.prompts)]) } else { config.quotas };
        let lane = |quota| Lane { quota, short: scaled(config.eta_prompts, quota) };
        Ok(Self {
            lanes: quotas.into_iter().map(|(name, quota)| (name, lane(quota))).collect(),
            one_lane,
            responses: config.responses,
            short_responses,
            max_queue_age: config.max_queue_age,
            filter: config.filter_zero_variance,
            keep_partial: config.keep_partial,
            pool: Pool::default(),
            queue: LongPrompts::default(),
            rounds: Rounds::new(config.total_steps),
            inclusion,
        })
    }

    /// Prompts that a short round launches, over all domains, and responses to each.
    #[must_use]
    pub fn launched(&self) -> (usize, u32) {
        (self.lanes.values().map(|lane| lane.short).sum(), self.short_responses)
    }

    /// What each lane gives, unless one cannot say yet.
    fn shares(&self, share: impl Fn(&Arc<str>, Lane) -> Option<Share>) -> Option<Vec<Share>> {
        self.lanes.iter().map(|(name, &lane)| share(name, lane)).collect()
    }

    /// Why the upcoming round must be a long one, if it must. What the queue alone says comes first, so that the answer does not hang on
    /// how much of the epoch is known.
    fn why_long(&self, epoch: u32) -> Option<Reason> {
        let all = |test: &dyn Fn(&str, Lane) -> bool| {
            self.lanes.iter().all(|(name, &lane)| test(name, lane))
        };
        let is_full = |name: &str, lane: Lane| self.queue.len(name) >= lane.quota;
        let is_spent = |name: &str, lane: Lane| self.is_spent(epoch, name, lane);
        if all(&is_full) {
            Some(Reason::QueueFull)
        } else if !all(&|name, lane| self.is_in_time(name, lane)) {
            Some(Reason::QueueAge)
        } else if !all(&|name, lane| {
            self.queue.len(name) <= times(self.rounds.left() - 1, lane.quota)
        }) {
            Some(Reason::RunEnd)
        } else if all(&is_spent) && !self.lanes.iter().any(|(name, &lane)| is_full(name, lane)) {
            Some(Reason::EpochEnd)
        } else {
            all(&|name, lane| is_full(name, lane) || is_spent(name, lane))
                .then_some(Reason::QueueFull)
        }
    }

    /// Whether no queued prompt of a lane would become too old, were the upcoming round a short one.
    fn is_in_time(&self, name: &str, lane: Lane) -> bool {
        let step = self.rounds.upcoming();
        self.max_queue_age.is_none_or(|age| !self.queue.is_overdue(name, lane.quota, step, age))
    }

    /// Whether the epoch has too few fresh prompts left of a lane for a short round.
    fn is_spent(&self, epoch: u32, name: &str, lane: Lane) -> bool {
        self.pool.has_all_of(epoch) && self.pool.len(epoch, name) < lane.quota
    }

    fn long_share(&self, epoch: u32, name: &Arc<str>, lane: Lane) -> Option<Share> {
        let queued = self.queue.len(name).min(lane.quota);
        let fresh = self.pool.fresh(epoch, name, lane.quota - queued)?;
        Some(Share { lane: Arc::clone(name), queued, fresh, places: queued + fresh })
    }

    fn short_share(&self, epoch: u32, name: &Arc<str>, lane: Lane) -> Option<Share> {
        let wanted = lane.short.min(lane.quota.saturating_add(self.room(name, lane)));
        let fresh = if self.is_spent(epoch, name, lane) {
            0
        } else {
            self.pool.fresh(epoch, name, wanted)?
        };
        Some(Share { lane: Arc::clone(name), queued: 0, fresh, places: fresh.min(lane.quota) })
    }

    /// How many prompts a short round may defer so that the age limit and the run's end can be kept.
    fn room(&self, name: &str, lane: Lane) -> usize {
        let by_age = self.max_queue_age.map_or(u64::MAX, |age| age.saturating_add(1));
        let rounds = by_age.min(self.rounds.left() - 1);
        times(rounds, lane.quota).saturating_sub(self.queue.len(name))
    }
}

impl RoundPolicy for TailBatching {
    type Upcoming = Upcoming;

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
        self.keep_partial
    }

    fn filter(&self) -> Option<&ZeroVarianceFilter> {
        self.filter.as_ref()
    }

    fn quota(&self, lane: &str) -> usize {
        self.lanes.get(lane).map_or(0, |lane| lane.quota)
    }

    /// A long round goes on with its queue before it takes a fresh prompt.
    fn replacement(&mut self, Vacancy { epoch, lane, .. }: &Vacancy) -> Next<Planned> {
        let is_long = self.rounds.kind() == Some(Round::Long);
        match self.queue.take(lane, usize::from(is_long)).pop() {
            Some(queued) => Next::Round(queued.planned(lane, 0)),
            None => self.pool.one_more(*epoch, lane).map(|fresh| fresh.planned(lane, 0)),
        }
    }

    fn on_response(&mut self, id: SampleId, tokens: u32, reason: FinishReason) {
        let open = self.rounds.open_step();
        self.rounds.on_response(id, tokens, reason);
        if let Some(inclusion) = &mut self.inclusion {
            inclusion.on_response(open, id, tokens, reason.is_whole());
            self.rounds.decided().for_each(|decision| inclusion.weigh(decision));
        }
    }

    fn on_score(&mut self, id: SampleId, score: f64) {
        self.rounds.on_score(id, score);
        if let Some(inclusion) = &mut self.inclusion {
            self.rounds.decided().for_each(|decision| inclusion.weigh(decision));
        }
    }

    fn offer(&mut self, Offer { prompt, epoch, domain, .. }: Offer) {
        let lane = if self.one_lane { "" } else { &*domain };
        match self.lanes.get_key_value(lane) {
            Some((lane, _)) => self.pool.put(epoch, lane, prompt),
            None => {
                self.pool.reach(epoch);
                self.rounds.decide(Decision::Reject { prompt, reason: Reason::NoQuota });
            }
        }
    }

    fn next(&self) -> Next<Upcoming> {
        if self.rounds.left() == 0 {
            return Next::Finish;
        }
        let Some(epoch) = self.queue.epoch().or_else(|| self.pool.first_epoch()) else {
            return if self.pool.is_over() { Next::Finish } else { Next::Prompts };
        };
        let (round, reason, shares) = match self.why_long(epoch) {
            Some(reason) => {
                (Round::Long, reason, self.shares(|name, lane| self.long_share(epoch, name, lane)))
            }
            None => (
                Round::Short,
                Reason::Fresh,
                self.shares(|name, lane| self.short_share(epoch, name, lane)),
            ),
        };
        shares
            .map_or(Next::Prompts, |shares| Next::Round(Upcoming { round, reason, epoch, shares }))
    }

    fn close(&mut self, round: OpenRound) {
        let (step, epoch) = (round.step(), round.epoch());
        let mut deferred = Vec::new();
        for (lane, left, _) in round.into_rest() {
            self.rounds.decide(Decision::Defer { prompt: left.prompt, reason: Reason::RoundFull });
            deferred.push(left.prompt);
            self.queue.put(epoch, lane, left, step);
        }
        if let Some(inclusion) = &mut self.inclusion {
            inclusion.close(step, &deferred);
        }
        self.rounds.close(step, self.queue.report(step));
    }

    fn open(&mut self, Upcoming { round, reason, epoch, shares }: Upcoming) {
        if let Some(inclusion) = &mut self.inclusion {
            inclusion.open();
        }
        let mut prompts = Vec::new();
        for Share { lane, queued, fresh, .. } in &shares {
            let fresh = self.pool.take(epoch, lane, *fresh).into_iter().map(Leftover::fresh);
            let taken = self.queue.take(lane, *queued).into_iter().chain(fresh);
            prompts.extend(taken.map(|left| left.planned(lane, 0)));
        }
        let places = shares
            .into_iter()
            .map(|share| (share.lane, share.places))
            .filter(|(_, places)| *places > 0);
        self.rounds.open(Plan {
            round,
            reason,
            epoch,
            samples: if round == Round::Short { self.short_responses } else { self.responses },
            responses: self.responses,
            prompts,
            places: places.collect(),
            rules: Rules {
                pauses: self.keep_partial,
                filters: self.filter.is_some(),
                ..Rules::default()
            },
        });
    }
}

impl Config {
    fn check(&self) -> Result<(), ScheduleError> {
        positive("prompts", self.prompts as u64)?;
        positive("responses", self.responses.into())?;
        positive("total_steps", self.total_steps.unwrap_or(1))?;
        factor("eta_prompts", self.eta_prompts)?;
        factor("eta_responses", self.eta_responses)?;
        if self.selection != Selection::Fastest && self.eta_responses > 1.0 {
            return Err(ScheduleError::Weighted { eta_responses: self.eta_responses });
        }
        if self.selection != Selection::Fastest && self.keep_partial {
            let (with, why) = ("`selection = \"weighted\"`", "there are no new draws to weigh");
            return Err(ScheduleError::Conflict { key: "keep_partial", with, why });
        }
        factor("max_weight", self.max_weight)?;
        for (domain, &quota) in &self.quotas {
            positive(&format!("quotas.{domain}"), quota as u64)?;
        }
        if let Some(filter) = self.filter_zero_variance {
            let lanes = if self.quotas.is_empty() {
                vec![self.prompts]
            } else {
                self.quotas.values().copied().collect()
            };
            for quota in lanes {
                filter.check(self.responses, scaled(self.eta_prompts, quota), quota)?;
            }
        }
        match self.quotas.values().sum() {
            found if found == self.prompts || self.quotas.is_empty() => Ok(()),
            found => Err(ScheduleError::Quotas { found, expected: self.prompts }),
        }
    }
}
