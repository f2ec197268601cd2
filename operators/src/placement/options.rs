//! The options of the stream trainer, as written in a recipe.

use serde::{Deserialize, Serialize};

use super::PlacementError;
use super::error::within;
use crate::wire::decision::RoundKind;

/// The options of a [`StreamTrainer`](super::StreamTrainer).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamTrainerOptions {
    /// The kinds of rounds in which devices may leave the rollout. Default: `long`.
    pub rounds: RoundFilter,
    /// The condition for devices to leave the rollout. Default: `adaptive` with `from = 0.2`, `to = 0.5` and `every = 0.05`.
    pub trigger: Trigger,
    /// The minimum share of the instances that keeps generating after a scale-down, in (0, 1]. A consolidation may leave fewer instances.
    /// Default: 0.5, as in the paper.
    pub keep: f64,
    /// With [`Trigger::Adaptive`], the maximum share of the KV caches of the kept instances that the projected tokens of the running
    /// responses may fill, in (0, 1]. Default: 0.95, as in the paper.
    pub headroom: f64,
    /// `true` to merge the last responses onto fewer, wider instances when this is predicted to end the step sooner. Default: `false`.
    pub consolidate: bool,
}

/// The kinds of rounds to which an option applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundFilter {
    /// All rounds except [short](RoundKind::Short) ones, as in the paper.
    Long,
    /// All rounds, including [short](RoundKind::Short) ones.
    All,
}

/// The condition for devices to leave the rollout. A share is the number of responses that ended by themselves divided by the number of
/// responses that are expected to do so. The expected number is the number of launched responses times the share that ended by themselves
/// in the last round of the kind. The first round of a kind expects all launched responses to end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Trigger {
    /// Devices never leave: rollout and training alternate on all devices.
    Never,
    /// Devices leave at a fixed share of ended responses, even if the remaining responses do not fit on fewer instances (RollPacker, Table
    /// 3).
    Fixed {
        /// The share, in (0, 1].
        share: f64,
    },
    /// Devices leave at the first of the milestones `from`, `from + every`, ... up to `to` at which the remaining responses are projected
    /// to fit on fewer instances (RollPacker, Algorithm 1).
    Adaptive {
        /// The first milestone, in (0, 1].
        from: f64,
        /// The upper bound of the milestones, from `from` to 1.
        to: f64,
        /// The distance between milestones, in (0, 1].
        every: f64,
    },
    /// Devices leave as soon as the step is predicted to end sooner after a scale-down, unless waiting for more responses is predicted to
    /// be better. Predictions need the lengths of an earlier round, so no devices leave before a first round has ended.
    Predicted {
        /// The minimum share at which predictions are compared, in (0, 1].
        from: f64,
        /// The share of responses between comparisons, in (0, 1]. In the tail, predictions are compared more often.
        every: f64,
    },
}

impl StreamTrainerOptions {
    /// Returns the options of the paper: long rounds, milestones from 20 to 50 % in steps of 5 %, at least half of the instances, and 95 %
    /// of their caches.
    #[must_use]
    pub fn paper() -> Self {
        Self {
            rounds: RoundFilter::Long,
            trigger: Trigger::Adaptive { from: 0.2, to: 0.5, every: 0.05 },
            keep: 0.5,
            headroom: 0.95,
            consolidate: false,
        }
    }

    /// Returns options that use predictions: all rounds, at least a quarter of the instances, and consolidation of the last responses.
    #[must_use]
    pub fn predicted() -> Self {
        Self {
            rounds: RoundFilter::All,
            trigger: Trigger::Predicted { from: 0.2, every: 0.02 },
            keep: 0.25,
            headroom: 0.95,
            consolidate: true,
        }
    }

    /// Returns the options if they are in range.
    ///
    /// # Errors
    /// If a share is out of range.
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

    /// Returns `true` if devices may leave a round of the kind.
    pub(super) fn allows_scale_down(self, round: RoundKind) -> bool {
        self.trigger != Trigger::Never
            && (self.rounds == RoundFilter::All || round != RoundKind::Short)
    }

    /// Returns `true` if predictions are compared: to consolidate, or because the trigger uses predictions and devices may still leave
    /// (`leaves`).
    pub(super) fn compares_predictions(self, leaves: bool) -> bool {
        self.consolidate || leaves && matches!(self.trigger, Trigger::Predicted { .. })
    }
}

impl Default for StreamTrainerOptions {
    fn default() -> Self {
        Self::paper()
    }
}

impl Trigger {
    /// Returns the number of milestones at or below `share`, the share of ended responses. Returns 0 for `Never` and `Predicted`, which
    /// have no milestones.
    pub(super) fn milestones_reached(self, share: f64) -> u32 {
        match self {
            Self::Never | Self::Predicted { .. } => 0,
            Self::Fixed { share: at } => u32::from(share + ROUNDING >= at),
            Self::Adaptive { from, to, every } => {
                let passed = ((share.min(to) - from + ROUNDING) / every).floor() + 1.0;
                passed.max(0.0) as u32
            }
        }
    }

    /// Returns the share of ended responses from which predictions are compared, and the maximum distance between two comparisons, as a
    /// share of the expected responses. Triggers other than `Predicted` need predictions only to consolidate, and use 0.5 and 0.05.
    pub(super) fn comparison_cadence(self) -> (f64, f64) {
        match self {
            Self::Predicted { from, every } => (from, every),
            _ => (0.5, 0.05),
        }
    }
}

/// The tolerance for rounding errors in milestones, such as `0.2 + 3 * 0.05`.
const ROUNDING: f64 = 1e-9;
