//! GPG: the policy gradient without a ratio.

use tch::TchError;

use super::{PolicyLoss, TokenLoss, Tokens};

/// REINFORCE: the loss of a token is minus the advantage times the log-probability (Chu et al. 2025, GPG).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gpg;

impl PolicyLoss for Gpg {
    fn tokens(&self, tokens: &Tokens<'_>) -> Result<TokenLoss, TchError> {
        let loss = tokens.logprobs.f_mul(tokens.advantages)?.f_neg()?;
        Ok(TokenLoss { loss, metrics: Vec::new() })
    }
}
