//! Advantages: how much better a response, or each of its tokens, is than expected.
//!
//! An estimator of whole groups ([`Advantage`]) works on groups as they become complete, during the rollout. An estimator of tokens
//! ([`TokenAdvantage`]) may normalize over all tokens of a step. It then waits until all groups of the step are complete, and so does the
//! gradient.

mod builtin;
mod gae;
mod gpg;
mod grpo;
mod operator;
mod opo;
mod pass_at_k;
mod reinforce;
mod token_rewards;
mod whiten;

use std::sync::Arc;

use rollpacker_dataflow::fault::{HasOrigin, Origin};

pub use crate::kl_controller::{KlControl, KlController};
pub use builtin::advantages;
pub use gae::Gae;
pub use gpg::Gpg;
pub use grpo::{Grpo, Rloo};
pub use operator::AdvantageExt;
pub use opo::Opo;
pub use pass_at_k::PassAtK;
pub use reinforce::{ReinforcePlusPlus, ReinforcePlusPlusBaseline};

/// One response of a group, as input of an estimator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoredResponse {
    /// The score of the response, minus the KL penalty of its tokens if the reward has a KL penalty.
    pub score: f64,
    /// The number of sampled tokens; 0 if the engine counts tokens without sampling them.
    pub tokens: usize,
}

/// An advantage estimator that uses one group at a time.
///
/// # Contract
/// Returns one number per response, in the order of the responses. Each number must be finite as an `f32` and applies to every token of its
/// response. A result with another count or with a number that is not finite ends the run with an [`EstimateError`]. The result must not
/// depend on other groups: groups are trained on while later ones are still being generated.
///
/// # Example
/// ```
/// use rollpacker_operators::advantage::{Advantage, ScoredResponse};
///
/// /// The score minus the highest score of the group.
/// struct Regret;
///
/// impl Advantage for Regret {
///     fn advantages(&self, group: &[ScoredResponse]) -> Vec<f64> {
///         let best = group.iter().map(|one| one.score).fold(f64::NEG_INFINITY, f64::max);
///         group.iter().map(|one| one.score - best).collect()
///     }
/// }
///
/// let group = [1.0, 0.0, 0.5].map(|score| ScoredResponse { score, tokens: 10 });
/// assert_eq!(Regret.advantages(&group), [0.0, -1.0, -0.5]);
/// ```
pub trait Advantage: Send + Sync {
    /// Returns the advantage of each response of `group`, in the order of `group`, which is never empty.
    fn advantages(&self, group: &[ScoredResponse]) -> Vec<f64>;
}

/// One response with a reward for each token, as input of an estimator.
#[derive(Clone, Debug, PartialEq)]
pub struct Trajectory {
    /// The id of the prompt. Trajectories with the same prompt are adjacent.
    pub group: u64,
    /// The score of the response, minus the KL penalty of its tokens if the reward has a KL penalty.
    pub score: f64,
    /// The reward of each sampled token, minus the KL penalty if there is one. The part of the score that is not assigned to single tokens
    /// is added to the last token.
    pub rewards: Vec<f64>,
    /// The value that the critic predicts at each sampled token. May be empty unless the estimator [needs
    /// values](TokenAdvantage::needs_values).
    pub values: Vec<f64>,
}

/// The advantages and returns of a [`Trajectory`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Estimate {
    /// One advantage per token.
    pub advantages: Vec<f64>,
    /// The value that a critic should have predicted at each token. May be empty unless the estimator [needs
    /// values](TokenAdvantage::needs_values).
    pub returns: Vec<f64>,
}

/// An advantage estimator that works on tokens.
///
/// # Contract
/// Returns one estimate per trajectory, in their order, with one advantage for each token, and one return for each token if the estimator
/// [needs values](Self::needs_values). All numbers must be finite as an `f32`. A violation ends the run with an [`EstimateError`].
///
/// # Example
/// ```
/// use rollpacker_operators::advantage::{Estimate, Estimator, TokenAdvantage, Trajectory};
///
/// /// The sum of the rewards from each token on, without a baseline.
/// struct RewardToGo;
///
/// impl TokenAdvantage for RewardToGo {
///     fn estimate(&self, trajectories: &[Trajectory]) -> Vec<Estimate> {
///         let estimate = |one: &Trajectory| {
///             let from = |token: usize| one.rewards[token..].iter().sum::<f64>();
///             let advantages = (0..one.rewards.len()).map(from).collect();
///             Estimate { advantages, ..Estimate::default() }
///         };
///         trajectories.iter().map(estimate).collect()
///     }
///
///     fn whole_step(&self) -> bool {
///         false
///     }
/// }
///
/// let rewards = vec![0.25, 0.0, 0.75];
/// let trajectory = Trajectory { group: 0, score: 1.0, rewards, values: Vec::new() };
/// let estimates = Estimator::of_tokens(RewardToGo).estimate(&[trajectory])?;
/// assert_eq!(estimates[0].advantages, [1.0, 0.75, 0.75]);
/// # Ok::<(), rollpacker_operators::advantage::EstimateError>(())
/// ```
pub trait TokenAdvantage: Send + Sync {
    /// Returns one estimate per trajectory, in order. `trajectories` holds whole groups: all groups of a step in the order of their prompts
    /// if [`whole_step`](Self::whole_step) is `true`, and some of the groups in any order otherwise.
    fn estimate(&self, trajectories: &[Trajectory]) -> Vec<Estimate>;

    /// Returns `true` if the estimator needs all groups of a step at once. Default: `true`.
    fn whole_step(&self) -> bool {
        true
    }

    /// Returns `true` if the estimator needs the values of a critic. Default: `false`.
    fn needs_values(&self) -> bool {
        false
    }
}

/// An advantage estimator that computes either one advantage per response or one per token.
#[derive(Clone)]
pub enum Estimator {
    /// An estimator of one group at a time.
    Group(Arc<dyn Advantage>),
    /// An estimator of token advantages.
    Token(Arc<dyn TokenAdvantage>),
}

impl Estimator {
    /// Creates an estimator that works on tokens.
    pub fn of_tokens(estimator: impl TokenAdvantage + 'static) -> Self {
        Self::Token(Arc::new(estimator))
    }

    /// Returns `true` if the estimator needs all groups of a step at once.
    #[must_use]
    pub fn whole_step(&self) -> bool {
        matches!(self, Self::Token(estimator) if estimator.whole_step())
    }

    /// Returns `true` if the estimator needs the values of a critic.
    #[must_use]
    pub fn needs_values(&self) -> bool {
        matches!(self, Self::Token(estimator) if estimator.needs_values())
    }

    /// Returns one estimate per trajectory, in order. `trajectories` must hold whole groups, and the responses of a group must be adjacent.
    ///
    /// # Errors
    /// If the estimator violates its contract.
    pub fn estimate(&self, trajectories: &[Trajectory]) -> Result<Vec<Estimate>, EstimateError> {
        let estimates = match self {
            Self::Group(estimator) => {
                let groups = trajectories.chunk_by(|one, next| one.group == next.group);
                let estimates = groups.map(|group| of_group(estimator.as_ref(), group));
                return Ok(estimates.collect::<Result<Vec<_>, _>>()?.concat());
            }
            Self::Token(estimator) => estimator.estimate(trajectories),
        };
        EstimateError::check_count(estimates.len(), trajectories.len())?;
        for (estimate, of) in estimates.iter().zip(trajectories) {
            EstimateError::check_tokens("advantages", &estimate.advantages, of)?;
            if self.needs_values() {
                EstimateError::check_tokens("returns", &estimate.returns, of)?;
            }
        }
        Ok(estimates)
    }
}

/// A violation of the contract of an [`Advantage`] or a [`TokenAdvantage`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EstimateError {
    /// The number of estimates, or of advantages of a group, differs from the number of responses that the estimator received.
    #[error(
        "the advantage estimator violates its contract: expected one estimate for each of {expected} responses, found {found}"
    )]
    Responses {
        /// The number of responses.
        expected: usize,
        /// The number of estimates.
        found: usize,
    },
    /// The number of advantages or returns of a response differs from the number of its tokens.
    #[error(
        "the advantage estimator violates its contract: expected {expected} numbers in `{field}`, one for each token of a response to prompt {prompt}, found {found}"
    )]
    Tokens {
        /// `advantages` or `returns`.
        field: &'static str,
        /// The id of the prompt.
        prompt: u64,
        /// The number of tokens.
        expected: usize,
        /// The number of advantages or returns.
        found: usize,
    },
    /// A number is not finite as an `f32`, the type that training uses.
    #[error(
        "the advantage estimator violates its contract: expected finite numbers in `{field}` for a response to prompt {prompt}, found {found:?}"
    )]
    NotFinite {
        /// `advantages` or `returns`.
        field: &'static str,
        /// The id of the prompt.
        prompt: u64,
        /// The number that is not finite as an `f32`.
        found: f64,
    },
}

impl HasOrigin for EstimateError {
    fn origin(&self) -> Origin {
        Origin::Program
    }
}

impl EstimateError {
    fn check_count(found: usize, expected: usize) -> Result<(), Self> {
        if found == expected { Ok(()) } else { Err(Self::Responses { expected, found }) }
    }

    fn check_tokens(field: &'static str, list: &[f64], of: &Trajectory) -> Result<(), Self> {
        let (prompt, expected, found) = (of.group, of.rewards.len(), list.len());
        if found != expected {
            return Err(Self::Tokens { field, prompt, expected, found });
        }
        list.iter().try_for_each(|&number| Self::check_finite(field, number, prompt))
    }

    fn check_finite(field: &'static str, found: f64, prompt: u64) -> Result<(), Self> {
        let is_finite = (found as f32).is_finite();
        if is_finite { Ok(()) } else { Err(Self::NotFinite { field, prompt, found }) }
    }
}

/// Returns the advantages of the group of a prompt.
///
/// # Errors
/// If the estimator violates its contract.
fn checked_advantages(
    estimator: &dyn Advantage,
    prompt: u64,
    group: &[ScoredResponse],
) -> Result<Vec<f64>, EstimateError> {
    let advantages = estimator.advantages(group);
    EstimateError::check_count(advantages.len(), group.len())?;
    let check = |&one: &f64| EstimateError::check_finite("advantages", one, prompt);
    advantages.iter().try_for_each(check)?;
    Ok(advantages)
}

fn of_group(
    estimator: &dyn Advantage,
    group: &[Trajectory],
) -> Result<Vec<Estimate>, EstimateError> {
    let scored: Vec<ScoredResponse> = group
        .iter()
        .map(|one| ScoredResponse { score: one.score, tokens: one.rewards.len() })
        .collect();
    let prompt = group.first().map_or(0, |one| one.group);
    let advantages = checked_advantages(estimator, prompt, &scored)?;
    let spread = |(one, advantage): (&ScoredResponse, f64)| Estimate {
        advantages: vec![advantage; one.tokens],
        returns: Vec::new(),
    };
    Ok(scored.iter().zip(advantages).map(spread).collect())
}

impl<A: Advantage + 'static> From<A> for Estimator {
    fn from(estimator: A) -> Self {
        Self::Group(Arc::new(estimator))
    }
}
