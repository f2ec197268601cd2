//! Advantages: how much better each response, or each of its tokens, is than what was to be expected.
//!
//! An estimator that looks at one group at a time ([`Advantage`]) works on groups as they become complete, beside the rollout. One that
//! looks at tokens ([`TokenAdvantage`]) may normalise over all tokens of a step; it then has to wait until the step's groups are all there,
//! and so does the gradient.

mod builtin;
mod gae;
mod gpg;
mod grpo;
mod kl_controller;
mod operator;
mod opo;
mod pass_at_k;
mod reinforce;
mod token_rewards;
mod whiten;

use std::sync::Arc;

pub use builtin::advantages;
pub use gae::Gae;
pub use gpg::Gpg;
pub use grpo::{Grpo, Rloo};
pub use kl_controller::{KlControl, KlController};
pub use operator::AdvantageExt;
pub use opo::Opo;
pub use pass_at_k::PassAtK;
pub use reinforce::{ReinforcePlusPlus, ReinforcePlusPlusBaseline};

/// One response of a group, for an estimator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// The reward, less the KL penalty if there is one.
    pub score: f64,
    /// Sampled tokens.
    pub tokens: usize,
}

/// An estimator of advantages that looks at one group at a time.
///
/// # Contract
/// One number a response, in their order; each counts for every token of its response. Must not depend on other groups: groups are
/// trained on while later ones are still being generated.
pub trait Advantage: Send + Sync {
    /// The advantages of a group.
    fn advantages(&self, group: &[Scored]) -> Vec<f64>;
}

impl<A: Advantage + ?Sized> Advantage for Arc<A> {
    fn advantages(&self, group: &[Scored]) -> Vec<f64> {
        self.as_ref().advantages(group)
    }
}

/// One response, token by token.
#[derive(Clone, Debug, PartialEq)]
pub struct Trajectory {
    /// The prompt: responses of a group are neighbours.
    pub group: u64,
    /// The reward, less the KL penalty if there is one.
    pub score: f64,
    /// The same by sampled token; what is not said of single tokens falls on the last.
    pub rewards: Vec<f64>,
    /// What the critic predicts at each sampled token; empty unless the estimator [needs](TokenAdvantage::needs_values) it.
    pub values: Vec<f64>,
}

/// What is said of a [`Trajectory`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Estimate {
    /// One advantage a token.
    pub advantages: Vec<f64>,
    /// What a critic should have predicted at each token; empty for an estimator that needs none.
    pub returns: Vec<f64>,
}

/// An estimator of advantages that looks at tokens.
///
/// # Contract
/// One estimate a trajectory, in their order, of as many advantages as it has tokens.
pub trait TokenAdvantage: Send + Sync {
    /// The estimates of groups: of all of a step, ordered by prompt, or of any of it.
    fn estimate(&self, trajectories: &[Trajectory]) -> Vec<Estimate>;

    /// Whether it must see all groups of a step at once.
    fn whole_step(&self) -> bool {
        true
    }

    /// Whether it needs the values of a critic.
    fn needs_values(&self) -> bool {
        false
    }
}

/// An estimator of either kind.
#[derive(Clone)]
pub enum Estimator {
    /// Looks at one group at a time.
    Group(Arc<dyn Advantage>),
    /// Looks at tokens.
    Token(Arc<dyn TokenAdvantage>),
}

impl Estimator {
    /// Of tokens.
    pub fn of_tokens(estimator: impl TokenAdvantage + 'static) -> Self {
        Self::Token(Arc::new(estimator))
    }

    /// Whether it must see all groups of a step at once.
    #[must_use]
    pub fn whole_step(&self) -> bool {
        matches!(self, Self::Token(estimator) if estimator.whole_step())
    }

    /// Whether it needs the values of a critic.
    #[must_use]
    pub fn needs_values(&self) -> bool {
        matches!(self, Self::Token(estimator) if estimator.needs_values())
    }

    /// The estimates of whole groups.
    ///
    /// # Panics
    /// If an estimator does not keep its contract.
    #[must_use]
    pub fn estimate(&self, trajectories: &[Trajectory]) -> Vec<Estimate> {
        let estimates = match self {
            Self::Group(estimator) => trajectories
                .chunk_by(|one, next| one.group == next.group)
                .flat_map(|group| of_group(estimator.as_ref(), group))
                .collect(),
            Self::Token(estimator) => estimator.estimate(trajectories),
        };
        let fits = |(one, of): (&Estimate, &Trajectory)| one.advantages.len() == of.rewards.len();
        assert!(
            estimates.len() == trajectories.len() && estimates.iter().zip(trajectories).all(fits),
            "invariant: an estimator gives one advantage a token"
        );
        estimates
    }
}

fn of_group(estimator: &dyn Advantage, group: &[Trajectory]) -> Vec<Estimate> {
    let scored: Vec<Scored> =
        group.iter().map(|one| Scored { score: one.score, tokens: one.rewards.len() }).collect();
    let advantages = estimator.advantages(&scored);
    assert_eq!(
        advantages.len(),
        group.len(),
        "invariant: an estimator gives one advantage a response"
    );
    let spread = |(one, advantage): (&Scored, f64)| Estimate {
        advantages: vec![advantage; one.tokens],
        returns: Vec::new(),
    };
    scored.iter().zip(advantages).map(spread).collect()
}

impl<A: Advantage + 'static> From<A> for Estimator {
    fn from(estimator: A) -> Self {
        Self::Group(Arc::new(estimator))
    }
}
