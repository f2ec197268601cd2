//! Tail batching (RollPacker, NSDI '26, section 3): long responses are packed into a few rounds.
//!
//! # The paper
//! A *short* round launches `ceil(eta_prompts * prompts)` fresh prompts with `ceil(eta_responses * responses)` responses each. A prompt
//! finishes when `responses` of its responses have ended; these form its group, and the other responses are aborted. The first `prompts`
//! prompts to finish are admitted. When the last of them is admitted, all responses in flight are aborted, and the prompts that did not
//! finish enter the long-prompt queue in launch order. When the queue holds `prompts` prompts, a *long* round launches exactly its first
//! `prompts` with `responses` responses each, and waits for all of them. Factors of 1 give the variants of Fig. 12: `eta_responses = 1`
//! speculates on prompts only, and `eta_prompts = 1` speculates on responses only. A response that reaches its length limit counts as
//! ended.
//!
//! # Beyond the paper
//! - **Domains.** Each domain has a quota, and the rules above hold within each domain. A short round launches `ceil(eta_prompts * quota)`
//!   prompts of a domain and admits the first `quota` to finish. A long round waits until the queue holds the quota of every domain. A
//!   domain with less than a quota of fresh prompts left in the epoch takes part in long rounds only, first with its queued prompts and
//!   then with its fresh ones. Its places in short rounds stay empty, and so do the places in long rounds that it cannot fill. Rounding up
//!   lets the queues of domains with small quotas grow faster while they wait for other domains. The age limit bounds these queues. If a
//!   domain is rarer in the data than its quota requires, the schedule reads ahead.
//! - **Age.** No prompt stays in the queue for more than `max_queue_age` rounds after the round that deferred it. A long round runs early
//!   when a prompt would exceed this limit after another short round. Fresh prompts then fill the long round, without speculation. A short
//!   round launches only as many prompts as long rounds can then serve in time. This is fewer than in the paper only if `eta_prompts` is
//!   above 2 or quotas are served unevenly.
//! - **End of an epoch.** When less than a quota of fresh prompts remains in every domain, long rounds drain the queue and then the fresh
//!   prompts. With one quota, only the last round of an epoch is smaller. The next epoch begins when no prompt of the current epoch is
//!   left, so each epoch trains on each of its prompts once. Prompts of the next epoch may be offered earlier; they wait.
//! - **End of the run.** With `r` rounds left, including the current one, a short round launches only as many prompts as leave at most
//!   `r - 1` quotas in the queue. A long round runs when the queue already holds more. The queue is therefore empty after the last round,
//!   except in a run that is resumed with fewer steps. The last round of such a run rejects the prompts that are left in the queue.
//! - **Dynamic sampling** (section 7). With `filter_zero_variance`, a group without reward variance, or with a response that could not be
//!   scored, is rejected instead of admitted, and is never queued. Another prompt is launched in its place. In a long round, this is the
//!   next prompt of the queue, if there is one. If the epoch has no prompt left, or the bound allows none, the round admits fewer groups or
//!   the run fails.
//! - **Partial rollouts** (section 6.7). With `keep_partial`, the responses of a deferred prompt are paused, including those that have
//!   ended, and the long round resumes them. They span the policies of both rounds, which are at most `max_queue_age + 1` steps apart. With
//!   surplus responses, the long round resumes more responses than a group needs and keeps the first responses to end, which prefers short
//!   responses. With `eta_responses = 1`, the long round keeps all responses.
//! - **Selection.** `weighted` decides as the paper does, with speculation on prompts only. It weights the responses of long rounds so that
//!   the trained lengths match the lengths of the policy. The weight of a response that is sampled again for a deferred prompt is the
//!   probability of its length among the lost responses, divided by its probability among the responses sampled again. Both are estimated
//!   during the run. With surplus responses some lengths are never trained on, which no weight can correct, so `weighted` rejects
//!   `eta_responses` above 1.
//! - **Duplicates.** Rows are distinguished by their id only; two equal rows are two prompts.

use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use std::collections::BTreeMap;
use std::sync::Arc;

use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::rollout::FinishReason;
use serde::{Deserialize, Serialize};

use super::error::positive;
use super::inclusion::Inclusion;
use super::long_prompt_queue::LongPromptQueue;
use super::plan::{LeftoverPrompt, Plan, PlannedPrompt, RoundRules};
use super::pool::Pool;
use super::prompt_store::defer_rest;
use super::round::{OpenRound, Vacancy};
use super::round_policy::RoundPolicy;
use super::rounds::{NextAction, Rounds, times};
use super::speculation::{check_factor, scaled};
use super::variance::ZeroVarianceFilter;
use super::{Decision, Offer, Reason, RoundKind, ScheduleError};

/// The documentation of the schedule in a catalog.
pub const ABOUT: About = About::new(
    &[],
    "speculative short rounds keep the first responses, and long rounds generate the deferred prompts",
    "RollPacker, section 3",
);

documented! {
    /// The configuration of [`TailBatching`].
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Config {
        /// The number of prompts admitted in a round (P0). At least 1. (verl: `data.train_batch_size`)
        pub prompts: usize,
        /// The number of responses in a group (R0). At least 1, and at least 2 with `filter_zero_variance`. (verl: `rollout.n`, TRL:
        /// `num_generations`)
        pub responses: u32,
        /// The ratio of prompts launched in a short round to prompts admitted, from 1 to 1000. Default: 1.25, as in the paper.
        #[serde(default = "paper")]
        pub eta_prompts: f64,
        /// The ratio of responses launched per prompt in a short round to responses of a group, from 1 to 1000. Must be 1 with
        /// `selection = "weighted"`. Default: 1.25, as in the paper.
        #[serde(default = "paper")]
        pub eta_responses: f64,
        /// The number of prompts admitted in a round by domain. Each value is at least 1, and the values sum to `prompts`. Prompts of other
        /// domains are rejected. If empty (the default), there is one quota for all prompts.
        #[serde(default)]
        pub quotas: BTreeMap<Arc<str>, usize>,
        /// The maximum number of rounds that a prompt may stay in the queue after the round that deferred it; 0 launches it in the next
        /// round. From 0 to 1048576. If `None` (the default), there is no limit.
        #[serde(default)]
        pub max_queue_age: Option<u64> [rounds],
        /// The maximum number of steps of the run, including steps before a resume; at least 1. If `None` (the default), the run lasts as
        /// long as the prompts. (verl: `trainer.total_training_steps`)
        #[serde(default)]
        pub total_steps: Option<u64> [steps],
        /// The filter that rejects and replaces groups without reward variance, and groups with a response that could not be scored: a
        /// table of `max_generated_batches`, the maximum number of prompts that a round may launch divided by the number of groups that it
        /// admits, and `on_exhausted`, `"fail"` or `"smaller_step"`, if these prompts cannot fill the round. Needs groups of at least 2
        /// responses. If `None` (the default), such groups are admitted. (verl: `algorithm.filter_groups`)
        #[serde(default)]
        pub filter_zero_variance: Option<ZeroVarianceFilter>,
        /// `true` to resume, in the long round, the responses that a short round cut off, instead of generating them again. With
        /// `eta_responses` above 1, the long round resumes more responses than a group needs, and keeps the first `responses` to end.
        /// Cannot be combined with `selection = "weighted"`. Default: `false`.
        #[serde(default)]
        pub keep_partial: bool,
        /// The weights of responses in the loss: `fastest` weights each response with 1; `weighted` corrects for the preference of short
        /// rounds for short responses, and requires `eta_responses = 1` and `keep_partial = false`. Default: `fastest`.
        #[serde(default)]
        pub selection: Selection,
        /// The maximum weight of a response with `selection = "weighted"`, from 1 to 1000. The maximum bounds the variance, but leaves some
        /// bias where it takes effect. Default: 16.
        #[serde(default = "max_weight")]
        pub max_weight: f64,
    }
}

impl Config {
    /// Returns the configuration of the paper for rounds of `prompts` groups of `responses` responses; other settings have their defaults.
    #[must_use]
    pub fn new(prompts: usize, responses: u32) -> Self {
        Self {
            prompts,
            responses,
            eta_prompts: paper(),
            eta_responses: paper(),
            quotas: BTreeMap::new(),
            max_queue_age: None,
            total_steps: None,
            filter_zero_variance: None,
            keep_partial: false,
            selection: Selection::default(),
            max_weight: MAX_WEIGHT,
        }
    }
}

/// The weights of responses in the loss. Short rounds keep the responses that end first, which are shorter than the policy's responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    /// Weight 1 each, as in the paper. The trained responses are then shorter than the responses of the policy.
    #[default]
    Fastest,
    /// Weights responses of long rounds by their lengths, as the [module](self) describes. Requires `eta_responses = 1` and
    /// `keep_partial = false`. Corrects the mean trained length within 1 %, and the group-relative gradient within 7 %, on known
    /// distributions (`docs/bias.md`).
    Weighted,
}

/// The default of `Config::max_weight`. Estimated weights rarely exceed it.
pub const MAX_WEIGHT: f64 = 16.0;

fn max_weight() -> f64 {
    MAX_WEIGHT
}

/// The tail batching schedule: speculative short rounds, and long rounds for the prompts that the short rounds defer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TailBatching {
    lanes: BTreeMap<Arc<str>, LaneQuota>,
    one_lane: bool,
    responses: u32,
    short_responses: u32,
    max_queue_age: Option<u64>,
    filter: Option<ZeroVarianceFilter>,
    keep_partial: bool,
    pool: Pool,
    queue: LongPromptQueue,
    rounds: Rounds,
    /// Present only if `selection` is `weighted`.
    inclusion: Option<Inclusion>,
}

/// The numbers of prompts that a round admits and launches in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LaneQuota {
    /// The number admitted in each round.
    quota: usize,
    /// The maximum number launched in a short round.
    short: usize,
}

/// The kind of an upcoming round, the reason for this kind, and the prompts of each lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upcoming {
    round: RoundKind,
    reason: Reason,
    epoch: u32,
    shares: Vec<LaneShare>,
}

/// The prompts that a lane contributes to an upcoming round.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LaneShare {
    lane: Arc<str>,
    queued: usize,
    fresh: usize,
    places: usize,
}

/// Returns the speculation factor of the paper's experiments.
fn paper() -> f64 {
    1.25
}

impl TailBatching {
    /// Creates the schedule in its initial state.
    ///
    /// # Errors
    /// If a count or quota is 0, a factor or `max_weight` is not from 1 to 1000, or the quotas do not sum to `prompts`. Also if the filter
    /// does not fit the other settings, or `weighted` is combined with surplus responses or with `keep_partial`.
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
        let lane = |quota| LaneQuota { quota, short: scaled(config.eta_prompts, quota) };
        Ok(Self {
            lanes: quotas.into_iter().map(|(name, quota)| (name, lane(quota))).collect(),
            one_lane,
            responses: config.responses,
            short_responses,
            max_queue_age: config.max_queue_age,
            filter: config.filter_zero_variance,
            keep_partial: config.keep_partial,
            pool: Pool::default(),
            queue: LongPromptQueue::default(),
            rounds: Rounds::new(config.total_steps),
            inclusion,
        })
    }

    /// Returns the share of each lane, or `None` if some lane needs further prompts to determine its share.
    fn shares(
        &self,
        share: impl Fn(&Arc<str>, LaneQuota) -> Option<LaneShare>,
    ) -> Option<Vec<LaneShare>> {
        self.lanes.iter().map(|(name, &lane)| share(name, lane)).collect()
    }

    /// Returns the reason why the upcoming round must be a long one, or `None` if it may be a short one.
    ///
    /// The conditions are checked in a fixed order. The conditions that depend on the queue alone come first: full queues, the age limit,
    /// and the end of the run. Only then does the method consult the pool of fresh prompts. The answer is thus independent of how many
    /// prompts of the epoch were read so far, except where the epoch really is exhausted. A lane is *spent* when all prompts of its epoch
    /// were read and fewer than a quota are left.
    fn long_round_reason(&self, epoch: u32) -> Option<Reason> {
        let all = |test: &dyn Fn(&str, LaneQuota) -> bool| {
            self.lanes.iter().all(|(name, &lane)| test(name, lane))
        };
        let is_full = |name: &str, lane: LaneQuota| self.queue.len(name) >= lane.quota;
        let is_spent = |name: &str, lane: LaneQuota| self.is_spent(epoch, name, lane);
        if all(&is_full) {
            Some(Reason::QueueFull)
        } else if !all(&|name, lane| self.is_in_time(name, lane)) {
            Some(Reason::QueueAge)
        } else if !all(&|name, lane| {
            self.queue.len(name) <= times(self.rounds.remaining() - 1, lane.quota)
        }) {
            Some(Reason::RunEnd)
        } else if all(&is_spent) && !self.lanes.iter().any(|(name, &lane)| is_full(name, lane)) {
            Some(Reason::EpochEnd)
        } else {
            all(&|name, lane| is_full(name, lane) || is_spent(name, lane))
                .then_some(Reason::QueueFull)
        }
    }

    /// Returns `true` if no queued prompt of the lane would exceed the age limit after a short round now.
    fn is_in_time(&self, name: &str, lane: LaneQuota) -> bool {
        let step = self.rounds.upcoming();
        self.max_queue_age.is_none_or(|age| !self.queue.is_overdue(name, lane.quota, step, age))
    }

    /// Returns `true` if all prompts of the epoch were read and a lane has fewer fresh prompts left than its quota. Such a lane takes no
    /// part in short rounds.
    fn is_spent(&self, epoch: u32, name: &str, lane: LaneQuota) -> bool {
        self.pool.has_whole_epoch(epoch) && self.pool.len(epoch, name) < lane.quota
    }

    fn long_share(&self, epoch: u32, name: &Arc<str>, lane: LaneQuota) -> Option<LaneShare> {
        let queued = self.queue.len(name).min(lane.quota);
        let fresh = self.pool.available(epoch, name, lane.quota - queued)?;
        Some(LaneShare { lane: Arc::clone(name), queued, fresh, places: queued + fresh })
    }

    fn short_share(&self, epoch: u32, name: &Arc<str>, lane: LaneQuota) -> Option<LaneShare> {
        let wanted = lane.short.min(lane.quota.saturating_add(self.room(name, lane)));
        let fresh = if self.is_spent(epoch, name, lane) {
            0
        } else {
            self.pool.available(epoch, name, wanted)?
        };
        Some(LaneShare { lane: Arc::clone(name), queued: 0, fresh, places: fresh.min(lane.quota) })
    }

    /// Returns the number of prompts that a short round may defer without violating the age limit or leaving prompts in the queue at the
    /// end of the run.
    fn room(&self, name: &str, lane: LaneQuota) -> usize {
        let by_age = self.max_queue_age.map_or(u64::MAX, |age| age.saturating_add(1));
        let rounds = by_age.min(self.rounds.remaining() - 1);
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

    /// Returns the maximum number of prompts that a short round launches over all domains, and the number of responses to each.
    fn round_size(&self) -> Option<(usize, u32)> {
        let prompts =
            self.lanes.values().fold(0, |sum: usize, lane| sum.saturating_add(lane.short));
        Some((prompts, self.short_responses))
    }

    fn filter(&self) -> Option<&ZeroVarianceFilter> {
        self.filter.as_ref()
    }

    fn quota(&self, lane: &str) -> usize {
        self.lanes.get(lane).map_or(0, |lane| lane.quota)
    }

    /// Returns a prompt for a vacancy. In a long round, the deferred prompts of the lane come before fresh prompts.
    fn replacement(&mut self, Vacancy { epoch, lane, .. }: &Vacancy) -> NextAction<PlannedPrompt> {
        let is_long = self.rounds.kind() == Some(RoundKind::Long);
        match self.queue.take(lane, usize::from(is_long)).pop() {
            Some(queued) => NextAction::Round(queued.planned(lane, 0)),
            None => self.pool.take_one(*epoch, lane).map(|fresh| fresh.planned(lane, 0)),
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
                self.pool.reach_epoch(epoch);
                self.rounds.decide(Decision::Reject { prompt, reason: Reason::NoQuota });
            }
        }
    }

    fn next(&self) -> NextAction<Upcoming> {
        if self.rounds.remaining() == 0 {
            return NextAction::Finish;
        }
        let Some(epoch) = self.queue.epoch().or_else(|| self.pool.first_epoch()) else {
            return if self.pool.is_over() { NextAction::Finish } else { NextAction::Prompts };
        };
        let (round, reason, shares) = match self.long_round_reason(epoch) {
            Some(reason) => (
                RoundKind::Long,
                reason,
                self.shares(|name, lane| self.long_share(epoch, name, lane)),
            ),
            None => (
                RoundKind::Short,
                Reason::Fresh,
                self.shares(|name, lane| self.short_share(epoch, name, lane)),
            ),
        };
        shares.map_or(NextAction::Prompts, |shares| {
            NextAction::Round(Upcoming { round, reason, epoch, shares })
        })
    }

    fn close(&mut self, round: OpenRound) {
        let (step, epoch) = (round.step(), round.epoch());
        let mut deferred = Vec::new();
        for (lane, left) in defer_rest(round, &mut self.rounds) {
            deferred.push(left.prompt);
            self.queue.put(epoch, lane, left, step);
        }
        if self.rounds.remaining() == 0 {
            for prompt in self.queue.clear() {
                self.rounds.decide(Decision::Reject { prompt, reason: Reason::RunEnd });
            }
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
        for LaneShare { lane, queued, fresh, .. } in &shares {
            let fresh = self.pool.take(epoch, lane, *fresh).into_iter().map(LeftoverPrompt::fresh);
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
            samples: if round == RoundKind::Short { self.short_responses } else { self.responses },
            responses: self.responses,
            prompts,
            places: places.collect(),
            rules: RoundRules {
                pauses: self.keep_partial,
                filters: self.filter.is_some(),
                ..RoundRules::default()
            },
        });
    }
}

impl Config {
    fn check(&self) -> Result<(), ScheduleError> {
        positive("prompts", self.prompts as u64)?;
        positive("responses", self.responses.into())?;
        positive("total_steps", self.total_steps.unwrap_or(1))?;
        check_factor("eta_prompts", self.eta_prompts)?;
        check_factor("eta_responses", self.eta_responses)?;
        if self.selection != Selection::Fastest && self.eta_responses > 1.0 {
            return Err(ScheduleError::Weighted { eta_responses: self.eta_responses });
        }
        if self.selection != Selection::Fastest && self.keep_partial {
            let (with, why) =
                ("`selection = \"weighted\"`", "it weights only responses sampled again");
            return Err(ScheduleError::Conflict { key: "keep_partial", with, why });
        }
        check_factor("max_weight", self.max_weight)?;
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
        match self.quotas.values().fold(0, |sum: usize, quota| sum.saturating_add(*quota)) {
            found if found == self.prompts || self.quotas.is_empty() => Ok(()),
            found => Err(ScheduleError::Quotas { found, expected: self.prompts }),
        }
    }
}
