//! Curriculum: leaves out prompts that the policy recently solved always or never, before anything is generated for them.
//!
//! With group-relative advantages, a group whose responses all have the same reward has no gradient. DAPO (section 3.2) drops such groups
//! after the rollout, which costs their generation; [`dynamic`](crate::schedule::dynamic) does this. A curriculum avoids that cost for
//! prompts whose last result is known, as the difficulty pools of prime-rl do. Both can be combined.
//!
//! # The rule
//! Prompts arrive epoch after epoch. Each prompt is judged once per epoch, just before the schedule would receive it. The judgement depends
//! on the last known pass rate of the prompt's dataset row:
//!
//! - A row without a known pass rate is drawn.
//! - A row whose pass rate lies strictly between `min_pass_rate` and `max_pass_rate` is drawn.
//! - Any other row is skipped for this epoch as too hard or too easy, unless it is explored. The share `exploration` of these rows is drawn
//!   at random; seed, epoch and row determine the draw.
//!
//! Each prompt of an epoch is therefore either drawn or skipped, and both are counted. The run ends with an error if an epoch skips every
//! prompt, `exploration` is 0 and no new result was used since the epoch began. Later epochs would skip all prompts as well. With
//! exploration, the run ends with an error after 1,000 consecutive epochs without a drawn prompt and without a new result.
//!
//! # Pass rates
//! The pass rate of a group is the share of its responses whose score is at least `pass_score`. Groups that are trained on count with
//! their admitted responses. A group that a schedule rejects for lack of reward variance counts with its responses that were scored before.
//! Other prompts, such as deferred ones, and groups with a response that could not be scored, leave the history unchanged.
//!
//! # Determinism
//! The results of step `t` are used from step `t + 1 + staleness` on, even if they are known earlier. The policy of that step includes the
//! update of step `t`, so all results of step `t` are known by then. Prompts are judged one at a time and only when the schedule needs a
//! prompt. Decisions therefore depend neither on arrival times of scores nor on how far the reader is ahead.
//!
//! # Why not differential dataflow
//! The history of a row is its last result. Results of a step are final once the frontier has passed it, and the next result replaces
//! them, so nothing is ever revised. An ordered map is sufficient.
//!
//! Architecture invariant: no clock, no channel, no hash order.

mod results;

#[cfg(test)]
mod tests;

use rollpacker_stages::documented;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollpacker_dataflow::snapshot::RestoredSnapshot;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::draw::Draw;
use rollpacker_stages::train::{Metrics, named_metrics};
use serde::{Deserialize, Serialize};

use self::results::{PassRate, Results};
use crate::option_error::{OptionError, within};
use crate::resume::part::read_json;
use crate::resume::{ResumeError, SavedState};

/// The name of the snapshot part.
pub(crate) const PART: &str = "curriculum";

/// Separates the random draws of exploration from other draws with the same seed.
const EXPLORATION: u64 = u64::from_be_bytes(*b"explores");

documented! {
    /// The settings of a curriculum.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(
        default,
        deny_unknown_fields,
        expecting = "a table of `min_pass_rate`, `max_pass_rate`, `exploration` and `pass_score`"
    )]
    pub struct CurriculumOptions {
        /// Prompts with this pass rate or a lower one are too hard. At least 0, below `max_pass_rate`; default 0. (prime-rl:
        /// `hard_threshold`)
        pub min_pass_rate: f64,
        /// Prompts with this pass rate or a higher one are too easy. Above `min_pass_rate`, at most 1; default 1. (prime-rl:
        /// `easy_threshold`)
        pub max_pass_rate: f64,
        /// The share of too hard and too easy prompts that are drawn anyway. At least 0, below 1; default 0.1.
        pub exploration: f64,
        /// The minimum score of a response that passes. A finite number; default 1.
        pub pass_score: f64,
    }
}

impl Default for CurriculumOptions {
    /// Returns options that skip nine in ten of the prompts that the policy last solved always or never.
    fn default() -> Self {
        Self { min_pass_rate: 0.0, max_pass_rate: 1.0, exploration: 0.1, pass_score: 1.0 }
    }
}

impl CurriculumOptions {
    /// Returns the options if they are in range.
    ///
    /// # Errors
    /// If an option is out of range; the error names it.
    pub fn validated(self) -> Result<Self, OptionError> {
        let Self { min_pass_rate: min, max_pass_rate: max, exploration, pass_score } = self;
        let is_share = |share: f64| (0.0..1.0).contains(&share);
        within("min_pass_rate", min, is_share(min), "at least 0, below 1")?;
        let expected = "above min_pass_rate, at most 1";
        within("max_pass_rate", max, max > min && max <= 1.0, expected)?;
        within("exploration", exploration, is_share(exploration), "at least 0, below 1")?;
        within("pass_score", pass_score, pass_score.is_finite(), "a finite number")?;
        Ok(self)
    }
}

/// The decision to draw or to skip a prompt, with its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Drawn: no pass rate of its row is known.
    Untried,
    /// Drawn: its pass rate is within the bounds.
    InBounds,
    /// Drawn for exploration, although its pass rate is out of bounds.
    Explored,
    /// Skipped for this epoch: its pass rate is at least `max_pass_rate`.
    TooEasy,
    /// Skipped for this epoch: its pass rate is at most `min_pass_rate`.
    TooHard,
}

impl Judgement {
    /// Returns `true` if the schedule receives the prompt.
    #[must_use]
    pub fn is_drawn(self) -> bool {
        !matches!(self, Self::TooEasy | Self::TooHard)
    }
}

/// The numbers of judged prompts, by judgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgedPrompts {
    /// The number of prompts drawn because no pass rate of their row was known.
    pub untried: u64,
    /// The number of prompts drawn because their pass rate was within the bounds.
    pub in_bounds: u64,
    /// The number of prompts drawn for exploration.
    pub explored: u64,
    /// The number of prompts skipped as too easy.
    pub too_easy: u64,
    /// The number of prompts skipped as too hard.
    pub too_hard: u64,
}

impl JudgedPrompts {
    fn add(&mut self, judgement: Judgement) {
        *match judgement {
            Judgement::Untried => &mut self.untried,
            Judgement::InBounds => &mut self.in_bounds,
            Judgement::Explored => &mut self.explored,
            Judgement::TooEasy => &mut self.too_easy,
            Judgement::TooHard => &mut self.too_hard,
        } += 1;
    }

    /// Returns the number of drawn prompts.
    #[must_use]
    pub fn drawn(&self) -> u64 {
        self.untried + self.in_bounds + self.explored
    }

    /// Returns the number of skipped prompts.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.too_easy + self.too_hard
    }

    fn metrics(&self) -> Metrics {
        let counts = [
            ("curriculum/untried_prompts", self.untried),
            ("curriculum/in_bounds_prompts", self.in_bounds),
            ("curriculum/explored_prompts", self.explored),
            ("curriculum/skipped_easy_prompts", self.too_easy),
            ("curriculum/skipped_hard_prompts", self.too_hard),
        ];
        named_metrics(counts.map(|(name, count)| (name, count as f64)))
    }
}

/// The number of consecutive epochs without a drawn prompt and without a new result after which the run ends, if `exploration` is above 0.
/// If `exploration` is 0, the run ends after the first such epoch, because later epochs would skip all prompts as well.
const SKIPPED_EPOCHS: u32 = 1000;

/// The error of an epoch whose prompts were all skipped, although no new result was used since the epoch began. Later epochs are expected
/// to skip all prompts as well.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "the curriculum skipped all {} prompts of epoch {epoch}: {} are too easy (pass rate of at least {}) and {} are too hard (at most {}); \
     set data.curriculum.exploration above {}, or widen min_pass_rate and max_pass_rate",
    .skipped.skipped(), .skipped.too_easy, .options.max_pass_rate, .skipped.too_hard, .options.min_pass_rate, .options.exploration
)]
pub struct SkippedEpoch {
    epoch: u32,
    skipped: JudgedPrompts,
    options: CurriculumOptions,
}

/// The counts of skipped prompts of a run, readable during the run and after it. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct SkippedPrompts(Arc<[AtomicU64; 2]>);

impl SkippedPrompts {
    /// Returns the number of prompts skipped as too easy so far. A resumed run continues the count of its snapshot.
    #[must_use]
    pub fn too_easy(&self) -> u64 {
        self.0[0].load(Ordering::Relaxed)
    }

    /// Returns the number of prompts skipped as too hard so far. A resumed run continues the count of its snapshot.
    #[must_use]
    pub fn too_hard(&self) -> u64 {
        self.0[1].load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, totals: &JudgedPrompts) {
        self.0[0].store(totals.too_easy, Ordering::Relaxed);
        self.0[1].store(totals.too_hard, Ordering::Relaxed);
    }
}

/// The rule that judges prompts, with the history of pass rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curriculum {
    options: CurriculumOptions,
    seed: u64,
    staleness: u64,
    state: CurriculumState,
}

/// A curriculum of a run, and the counts of the prompts that it skips.
#[derive(Clone, Debug)]
pub struct CurriculumStage {
    /// The curriculum in its initial state.
    pub curriculum: Curriculum,
    /// The counts of skipped prompts, which the run updates.
    pub skipped: SkippedPrompts,
}

/// The part of a curriculum that a snapshot contains.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CurriculumState {
    /// The last known pass rate of each dataset row.
    pass_rates: BTreeMap<u64, PassRate>,
    /// The results that are not used yet.
    results: Results,
    /// The current epoch and the numbers of prompts judged in it. `None` before the first prompt and after the end of an epoch.
    epoch: Option<(u32, JudgedPrompts)>,
    /// `true` if new results were used since the current epoch began, so that later epochs may draw what it skipped.
    #[serde(default)]
    used_results: bool,
    /// The number of consecutive epochs before the current one whose prompts were all skipped and in which no new result was used.
    #[serde(default)]
    skipped_epochs: u32,
    /// The numbers of prompts judged since the last metrics.
    unreported: JudgedPrompts,
    /// The numbers of prompts judged in the whole run.
    totals: JudgedPrompts,
}

/// Rejects a snapshot with the state of a curriculum. Call this function for a run without a curriculum.
///
/// # Errors
/// If the snapshot has the state of a curriculum.
pub fn reject_unused_state(restored: &RestoredSnapshot) -> Result<(), ResumeError> {
    if restored.records(PART).next().is_none() {
        return Ok(());
    }
    let reason =
        "the run had a curriculum and is resumed without one: set data.curriculum as before";
    Err(ResumeError::Refused { step: restored.step(), part: PART, reason: reason.into() })
}

impl SavedState for CurriculumState {
    fn read(restored: &RestoredSnapshot) -> Result<Option<Self>, ResumeError> {
        read_json(restored, PART)
    }
}

impl Curriculum {
    /// Creates a curriculum without history, for a staleness of 0. `seed` selects the prompts that are explored.
    ///
    /// # Errors
    /// If an option is out of range; the error names it.
    pub fn new(options: CurriculumOptions, seed: u64) -> Result<Self, OptionError> {
        let options = options.validated()?;
        Ok(Self { options, seed, staleness: 0, state: CurriculumState::default() })
    }

    /// Sets the maximum staleness of policies. Results of step `t` are used from step `t + 1 + staleness` on.
    #[must_use]
    pub fn with_staleness(self, staleness: u64) -> Self {
        Self { staleness, ..self }
    }

    pub(crate) fn with_state(self, state: CurriculumState) -> Self {
        Self { state, ..self }
    }

    pub(crate) fn state(&self) -> &CurriculumState {
        &self.state
    }

    /// Judges the next prompt for a round of `step`. The prompt was read in `epoch` from dataset row `row`. `step` must not decrease
    /// between calls.
    ///
    /// # Errors
    /// If the prompt begins an epoch and [`end_of_epoch`](Self::end_of_epoch) fails for the epoch before.
    pub fn judge(&mut self, step: Step, epoch: u32, row: u64) -> Result<Judgement, SkippedEpoch> {
        self.use_results(step);
        if self.state.epoch.is_none_or(|(current, _)| current != epoch) {
            self.end_of_epoch()?;
            self.state.epoch = Some((epoch, JudgedPrompts::default()));
        }
        let judgement = self.judgement(epoch, row);
        let state = &mut self.state;
        let of_epoch = state.epoch.as_mut().map(|(_, judged)| judged);
        for judged in [&mut state.unreported, &mut state.totals].into_iter().chain(of_epoch) {
            judged.add(judgement);
        }
        Ok(judgement)
    }

    /// Ends the current epoch, if there is one.
    ///
    /// # Errors
    /// If all prompts of the epoch were skipped and no new result was used since the epoch began, and `exploration` is 0 or this is the
    /// 1,000th consecutive epoch of this kind.
    pub fn end_of_epoch(&mut self) -> Result<(), SkippedEpoch> {
        let used_results = std::mem::take(&mut self.state.used_results);
        let Some((epoch, skipped)) = self.state.epoch.take() else { return Ok(()) };
        if used_results || skipped.drawn() > 0 {
            self.state.skipped_epochs = 0;
            return Ok(());
        }
        self.state.skipped_epochs += 1;
        let options = self.options;
        if options.exploration > 0.0 && self.state.skipped_epochs < SKIPPED_EPOCHS {
            return Ok(());
        }
        Err(SkippedEpoch { epoch, skipped, options })
    }

    /// Records that the round of `step` has opened. Scores of steps that have not opened, or whose results have been used, are ignored.
    pub fn on_open(&mut self, step: Step) {
        self.state.results.on_open(step);
    }

    /// Records that the round of `step` has closed: the round admits and rejects no further prompt.
    pub fn on_close(&mut self, step: Step) {
        self.state.results.on_close(step);
    }

    /// Records the score of a response. `score` is NaN if the response could not be scored.
    pub fn on_score(&mut self, id: SampleId, score: f64) {
        let passed = (!score.is_nan()).then_some(score >= self.options.pass_score);
        self.state.results.on_score(id, passed);
    }

    /// Records that the responses with the indices `samples` form the group of a prompt in `step`. The prompt was read from dataset row
    /// `row`. The scores of the responses may be recorded later.
    pub fn on_admit(&mut self, step: Step, prompt: PromptId, row: u64, samples: Vec<u32>) {
        self.state.results.on_admit(step, prompt, row, samples);
    }

    /// Records that the group of a prompt, read from dataset row `row`, was rejected in `step` for lack of reward variance. The pass rate
    /// counts only the responses whose scores were recorded before this call.
    pub fn on_reject(&mut self, step: Step, prompt: PromptId, row: u64) {
        self.state.results.on_reject(step, prompt, row);
    }

    /// Returns the last step whose results the rounds of `step` use, or `None` if there is none.
    pub(crate) fn last_used(&self, step: Step) -> Option<Step> {
        step.0.checked_sub(self.staleness.saturating_add(1)).map(Step)
    }

    /// Returns the pass rate by which prompts of a dataset row are judged, in [0, 1]; `None` if no result of the row is used yet. Results
    /// that are recorded and not used yet have no effect.
    #[must_use]
    pub fn pass_rate(&self, row: u64) -> Option<f64> {
        self.state.pass_rates.get(&row).map(PassRate::share)
    }

    /// Returns the numbers of prompts judged since the run began. A resumed run continues the counts of its snapshot.
    #[must_use]
    pub fn totals(&self) -> &JudgedPrompts {
        &self.state.totals
    }

    /// Returns the numbers of prompts judged since the last call, and the number of dataset rows with a known pass rate, as metrics.
    pub(crate) fn take_metrics(&mut self) -> Metrics {
        let mut metrics = std::mem::take(&mut self.state.unreported).metrics();
        let known = self.state.pass_rates.len() as f64;
        metrics.insert("curriculum/known_prompts".to_owned(), known);
        metrics
    }

    fn judgement(&self, epoch: u32, row: u64) -> Judgement {
        let CurriculumOptions { min_pass_rate, max_pass_rate, exploration, .. } = self.options;
        let skipped = match self.pass_rate(row) {
            None => return Judgement::Untried,
            Some(rate) if rate <= min_pass_rate => Judgement::TooHard,
            Some(rate) if rate >= max_pass_rate => Judgement::TooEasy,
            Some(_) => return Judgement::InBounds,
        };
        let draw = Draw::new(self.seed).of(EXPLORATION).of(epoch.into()).of(row);
        if draw.uniform() < exploration { Judgement::Explored } else { skipped }
    }

    fn use_results(&mut self, step: Step) {
        let Some(last) = self.last_used(step) else { return };
        let CurriculumState { pass_rates, results, used_results, .. } = &mut self.state;
        for (row, rate) in results.take_until(last) {
            pass_rates.insert(row, rate);
            *used_results = true;
        }
    }
}
