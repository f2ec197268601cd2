//! History-sorted rounds: prompts that are expected to be long share rounds, by the lengths observed in earlier epochs.
//!
//! Every round launches its prompts with `responses` responses each, waits for all, and trains on all; nothing is aborted or deferred. The
//! only difference from [`sync`](super::sync) is which prompts share a round. In the first epoch the prompts are taken in the order in
//! which they are read. From the second epoch on, the prompts of a window (by default the epoch) are sorted by length and cut into rounds.
//! The length of a prompt is the mean length of the responses to its dataset row that ended by themselves. Only the last epoch with such a
//! response counts. Prompts without a length come first. The tail of an epoch then falls into few rounds, and the other rounds end early.
//! The rounds of a window run in the order of the earliest read of their prompts, which is independent of length.
//!
//! # Why it is unbiased
//! The rounds of a window are fixed when the first of them opens, from responses of closed steps. The prompts of a step are therefore
//! chosen before any of their responses is sampled. Every sampled response is trained on with weight 1, and the number of responses to a
//! prompt does not depend on their lengths. Hence, given the past, each trained response has the distribution of the policy of its step,
//! and each prompt counts once per epoch. Selection by *realized* length, the source of the bias of speculation, does not occur. Sorting
//! does change the composition of single steps. The prompts of one step are alike, so the gradient of a step estimates the gradient of its
//! stratum. The mean over the epoch equals the mean of `sync`. A narrower window mixes more prompts and saves less time.

use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rollpacker_dataflow::step::{PromptId, SampleId};
use rollpacker_stages::rollout::FinishReason;
use serde::{Deserialize, Serialize};

use super::error::positive;
use super::plan::{LeftoverPrompt, Plan, RoundRules};
use super::pool::Pool;
use super::round::OpenRound;
use super::round_policy::RoundPolicy;
use super::rounds::{NextAction, Rounds};
use super::{Offer, Queue, Reason, RoundKind, ScheduleError};

/// The documentation of the schedule in a catalog.
pub const ABOUT: About = About::new(
    &[],
    "waits for all responses; from the second epoch on, prompts with long histories share rounds",
    "this project",
);

documented! {
    /// The configuration of [`HistorySorted`].
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Config {
        /// The number of prompts in a round. At least 1. (verl: `data.train_batch_size`)
        pub prompts: usize,
        /// The number of responses to each prompt. At least 1. (verl: `rollout.n`, TRL: `num_generations`)
        pub responses: u32,
        /// The number of rounds whose prompts are read ahead and sorted together. At least 1. If `None` (the default), all rounds of an
        /// epoch.
        #[serde(default)]
        pub window: Option<usize> [rounds],
        /// The maximum number of steps of the run, including steps before a resume; at least 1. If `None` (the default), the run lasts as
        /// long as the prompts. (verl: `trainer.total_training_steps`)
        #[serde(default)]
        pub total_steps: Option<u64>,
    }
}

/// The history-sorted schedule: synchronous rounds of prompts whose responses had similar lengths in earlier epochs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistorySorted {
    config: Config,
    lane: Arc<str>,
    pool: Pool,
    rounds: Rounds,
    /// The dataset row of each offered prompt whose round has not closed.
    rows: BTreeMap<PromptId, u64>,
    /// The observed lengths by dataset row.
    history: BTreeMap<u64, Drawn>,
    /// The first epoch of the run, in which no row has a known length.
    first_epoch: Option<u32>,
    /// The rounds of the current window that have not opened.
    planned: VecDeque<PlannedRound>,
}

/// The number of whole responses to a dataset row, and their total number of tokens, in `epoch`: the last epoch with such a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Drawn {
    epoch: u32,
    responses: u64,
    tokens: u64,
}

/// The prompts of an upcoming round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PlannedRound {
    epoch: u32,
    prompts: Vec<PromptId>,
}

impl HistorySorted {
    /// Creates the schedule in its initial state.
    ///
    /// # Errors
    /// If a count of the configuration is 0.
    pub fn new(config: Config) -> Result<Self, ScheduleError> {
        positive("prompts", config.prompts as u64)?;
        positive("responses", config.responses.into())?;
        positive("window", config.window.unwrap_or(1) as u64)?;
        positive("total_steps", config.total_steps.unwrap_or(1))?;
        let rounds = Rounds::new(config.total_steps);
        Ok(Self {
            config,
            lane: "".into(),
            pool: Pool::default(),
            rounds,
            rows: BTreeMap::new(),
            history: BTreeMap::new(),
            first_epoch: None,
            planned: VecDeque::new(),
        })
    }

    /// Returns the maximum number of prompts that are sorted together. In the first epoch, without known lengths, one round is enough.
    fn window(&self, epoch: u32) -> usize {
        if self.first_epoch.is_none_or(|first| first == epoch) {
            self.config.prompts
        } else {
            self.config
                .window
                .map_or(usize::MAX, |rounds| rounds.saturating_mul(self.config.prompts))
        }
    }

    /// Takes the prompts of the next window from the pool, sorts them by expected length, and cuts them into rounds.
    fn plan(&mut self) {
        let Some(epoch) = self.pool.first_epoch() else { return };
        let mut prompts = self.pool.take(epoch, &self.lane, self.window(epoch));
        self.first_epoch.get_or_insert(epoch);
        prompts.sort_by_key(|prompt| (self.mean_length(*prompt), *prompt));
        let rounds = prompts.chunks(self.config.prompts);
        let mut rounds: Vec<PlannedRound> =
            rounds.map(|prompts| PlannedRound { epoch, prompts: prompts.to_vec() }).collect();
        rounds.sort_by_key(|group| group.prompts.iter().min().copied());
        self.planned = rounds.into();
    }

    /// Returns the mean length, in tokens and rounded down, of the whole responses to the prompt's dataset row in the last epoch that had
    /// any; `None` if the row has no whole response yet.
    fn mean_length(&self, prompt: PromptId) -> Option<u64> {
        let drawn = self.history.get(self.rows.get(&prompt)?)?;
        drawn.tokens.checked_div(drawn.responses)
    }
}

impl RoundPolicy for HistorySorted {
    type Upcoming = ();

    fn rounds(&mut self) -> &mut Rounds {
        &mut self.rounds
    }

    fn rounds_ref(&self) -> &Rounds {
        &self.rounds
    }

    fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    fn offer(&mut self, Offer { prompt, epoch, row, .. }: Offer) {
        self.rows.insert(prompt, row);
        self.pool.put(epoch, &self.lane, prompt);
    }

    fn next(&self) -> NextAction<()> {
        if self.rounds.remaining() == 0 {
            return NextAction::Finish;
        }
        if !self.planned.is_empty() {
            return NextAction::Round(());
        }
        let Some(epoch) = self.pool.first_epoch() else {
            return if self.pool.is_over() { NextAction::Finish } else { NextAction::Prompts };
        };
        let is_there = self.pool.len(epoch, &self.lane) >= self.window(epoch);
        if is_there || self.pool.has_whole_epoch(epoch) {
            NextAction::Round(())
        } else {
            NextAction::Prompts
        }
    }

    fn on_response(&mut self, id: SampleId, tokens: u32, reason: FinishReason) {
        if reason.is_whole()
            && let (Some(row), Some(epoch)) = (self.rows.get(&id.prompt), self.rounds.open_epoch())
        {
            let fresh = Drawn { epoch, responses: 0, tokens: 0 };
            let drawn = self.history.entry(*row).or_insert(fresh);
            if drawn.epoch != epoch {
                *drawn = fresh;
            }
            drawn.responses += 1;
            drawn.tokens += u64::from(tokens);
        }
        self.rounds.on_response(id, tokens, reason);
    }

    fn open(&mut self, (): ()) {
        if self.planned.is_empty() {
            self.plan();
        }
        let Some(PlannedRound { epoch, prompts }) = self.planned.pop_front() else { return };
        let places = prompts.len();
        let planned = |prompt| LeftoverPrompt::fresh(prompt).planned(&self.lane, 0);
        self.rounds.open(Plan {
            round: RoundKind::Full,
            reason: if places < self.config.prompts { Reason::EpochEnd } else { Reason::Fresh },
            epoch,
            samples: self.config.responses,
            responses: self.config.responses,
            prompts: prompts.into_iter().map(planned).collect(),
            places: BTreeMap::from([(Arc::clone(&self.lane), places)]),
            rules: RoundRules::default(),
        });
    }

    fn close(&mut self, round: OpenRound) {
        for prompt in round.prompts() {
            self.rows.remove(&prompt);
        }
        self.rounds.close(round.step(), Queue::default());
    }
}
