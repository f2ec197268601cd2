//! How the stream trainer decides, as a recipe writes it.

use serde::{Deserialize, Serialize};

use super::PlacementError;
use super::error::within;
use crate::schedule::Round;

/// How a [`StreamTrainer`](super::StreamTrainer) decides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// In which rounds devices may leave the rollout.
    pub rounds: Rounds,
    /// When they leave.
    pub trigger: Trigger,
    /// The least share of the instances that keeps generating, in (0, 1]; the paper keeps half.
    pub keep: f64,
    /// The share of the kept caches that a projection may fill, in (0, 1]; the paper has 0.95.
    pub headroom: f64,
    /// Whether the last responses may be merged onto fewer, wider instances when that is predicted to end the step sooner.
    pub consolidate: bool,
}

/// Kinds of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounds {
    /// Those that wait for each response, as in the paper.
    Long,
    /// Speculative ones as well.
    All,
}

/// When devices leave the rollout. Shares are of the responses that are expected to end by themselves: all launched ones, less what the
/// last round of the kind dropped.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Trigger {
    /// Never: rollout and training take turns on all devices.
    Never,
    /// At a share of the responses, whether the rest fits or not (Table 3).
    Fixed {
        /// The share, in (0, 1).
        share: f64,
    },
    /// Algorithm 1: at the first of the milestones `from`, `from + every`, ..., `to` at which the rest is projected to fit.
    Adaptive {
        /// The first milestone.
        from: f64,
        /// The last milestone.
        to: f64,
        /// Between two.
        every: f64,
    },
    /// When it is predicted that the step ends sooner, and not sooner still when more responses have ended.
    Predicted {
        /// No earlier than this share.
        from: f64,
        /// Asked again after this share, and more often in the tail.
        every: f64,
    },
}

impl Options {
    /// The paper's: long rounds, milestones from 20 to 50 % in steps of 5, half of the instances, 95 % of their caches.
    #[must_use]
    pub fn paper() -> Self {
        Self {
            rounds: Rounds::Long,
            trigger: Trigger::Adaptive { from: 0.2, to: 0.5, every: 0.05 },
            keep: 0.5,
            headroom: 0.95,
            consolidate: false,
        }
    }

    /// What predictions can do: all rounds, as few as a quarter of the instances, consolidation of the last.
    #[must_use]
    pub fn predicted() -> Self {
        Self {
            rounds: Rounds::All,
            trigger: Trigger::Predicted { from: 0.2, every: 0.02 },
            keep: 0.25,
            headroom: 0.95,
            consolidate: true,
        }
    }

    /// The options, if they are in range.
    ///
    /// # Errors
    /// If a share is not.
    pub fn validated(self) -> Result<Self, PlacementError> {
        let share = |field, found| within(field, "in (0, 1]", f64::MIN_POSITIVE..=1.0, found);
        share("keep", self.keep)?;
        share("headroom", self.headroom)?;
        match self.trigger {
            Trigger::Never => {}
            Trigger::Fixed { share: found } => share("share", found)?,
            Trigger::Adaptive { from, to, every } => {
                share("from", from)?;
                share("every", every)?;
                within("to", "at least `from`, at most 1", from..=1.0, to)?;
            }
            Trigger::Predicted { from, every } => {
                share("from", from)?;
                share("every", every)?;
            }
        }
        Ok(self)
    }

    /// Whether devices may leave a round of the kind.
    pub(super) fn streams(self, round: Round) -> bool {
        self.trigger != Trigger::Never && (self.rounds == Rounds::All || round != Round::Short)
    }

    /// Whether predictions are compared: to consolidate, or where devices may still leave by them.
    pub(super) fn compares(self, leaves: bool) -> bool {
        self.consolidate || leaves && matches!(self.trigger, Trigger::Predicted { .. })
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::paper()
    }
}

impl Trigger {
    /// Milestones at or under a share of the responses; 0 where predictions decide.
    pub(super) fn reached(self, share: f64) -> u32 {
        match self {
            Self::Never | Self::Predicted { .. } => 0,
            Self::Fixed { share: at } => u32::from(share + ROUNDING >= at),
            Self::Adaptive { from, to, every } => {
                let passed = ((share.min(to) - from + ROUNDING) / every).floor() + 1.0;
                passed.max(0.0) as u32
            }
        }
    }

    /// From which share on, and after which share again, predictions are compared.
    pub(super) fn cadence(self) -> (f64, f64) {
        match self {
            Self::Predicted { from, every } => (from, every),
            _ => (0.5, 0.05),
        }
    }
}

/// Absorbs the rounding of sums of hundredths.
const ROUNDING: f64 = 1e-9;
