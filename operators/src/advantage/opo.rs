//! OPO: the baseline that minimizes the variance of the gradient.

use super::{Advantage, ScoredResponse};

/// The score minus the length-weighted mean of the group's scores. This baseline is optimal if the gradients of all tokens have equal norm
/// (Hao et al. 2025, OPO; verl's `opo`). The mean of a group of one, or of a group without tokens, is taken as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opo;

impl Advantage for Opo {
    fn advantages(&self, group: &[ScoredResponse]) -> Vec<f64> {
        let tokens: f64 = group.iter().map(|one| one.tokens as f64).sum();
        let weighted: f64 = group.iter().map(|one| one.score * one.tokens as f64).sum();
        let baseline = if group.len() > 1 && tokens > 0.0 { weighted / tokens } else { 0.0 };
        group.iter().map(|one| one.score - baseline).collect()
    }
}
