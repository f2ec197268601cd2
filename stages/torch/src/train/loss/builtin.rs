//! The built-in losses and KL estimators.

use std::sync::Arc;

use rollpacker_stages::catalog::{About, Catalog, NoOptions};
use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};

use super::{
    Abs, Cispo, GeoMean, Gpg, Gspo, K1, K2, K3, KlEstimator, PolicyLoss, Sapo, SharedKl,
    SharedPolicyLoss, StraightThrough, Vanilla,
};

/// Returns the built-in policy losses, by the names of `actor.policy_loss.loss_mode`.
///
/// ```
/// use std::sync::Arc;
/// use rollpacker_stages::catalog::NoOptions;
/// use rollpacker_torch::train::loss::{PolicyLoss, SharedPolicyLoss, TokenLoss, Tokens, policy_losses};
///
/// #[derive(Debug)]
/// struct Reinforce;
///
/// impl PolicyLoss for Reinforce {
///     fn tokens(&self, tokens: &Tokens<'_>) -> Result<TokenLoss, tch::TchError> {
///         let loss = tokens.logprobs.f_mul(tokens.advantages)?.f_neg()?;
///         Ok(TokenLoss { loss, metrics: Vec::new() })
///     }
/// }
///
/// let losses = policy_losses()
///     .with("reinforce", |_: NoOptions| Ok(Arc::new(Reinforce) as SharedPolicyLoss));
/// assert!(losses.names().any(|name| name == "reinforce"));
/// ```
#[must_use]
pub fn policy_losses() -> Catalog<SharedPolicyLoss> {
    Catalog::new("policy loss")
        .described("vanilla", VANILLA, |loss: Vanilla| Ok(shared(loss.checked()?)))
        .described("dapo", DAPO, |dapo: Dapo| Ok(shared(Vanilla::from(dapo).checked()?)))
        .described("gspo", GSPO, |loss: Gspo| Ok(shared(loss.checked()?)))
        .described("cispo", CISPO, |loss: Cispo| Ok(shared(loss.checked()?)))
        .described("geo_mean", GEO_MEAN, |loss: GeoMean| Ok(shared(loss.checked()?)))
        .described("sapo", SAPO, |loss: Sapo| Ok(shared(loss.checked()?)))
        .described("gpg", GPG, |_: NoOptions| Ok(shared(Gpg)))
}

/// Returns the built-in KL estimators, by the names of `actor.kl_loss_type` and `algorithm.kl_penalty`.
#[must_use]
pub fn kl_estimators() -> Catalog<SharedKl> {
    let plain: [(_, _, SharedKl); 4] = [
        ("kl", KL, Arc::new(K1)),
        ("abs", ABS, Arc::new(Abs)),
        ("mse", MSE, Arc::new(K2)),
        ("low_var_kl", LOW_VAR, Arc::new(K3)),
    ];
    let through: [(_, _, SharedKl); 3] = [
        ("kl+", KL_PLUS, straight_through(K1)),
        ("abs+", ABS_PLUS, straight_through(Abs)),
        ("low_var_kl+", LOW_VAR_PLUS, straight_through(K3)),
    ];
    plain.into_iter().chain(through).fold(
        Catalog::new("KL estimator"),
        |catalog, (name, about, estimator)| {
            catalog.described(name, about, move |_: NoOptions| Ok(estimator.clone()))
        },
    )
}

fn shared(loss: impl PolicyLoss + 'static) -> SharedPolicyLoss {
    Arc::new(loss)
}

fn straight_through(estimator: impl KlEstimator + 'static) -> SharedKl {
    Arc::new(StraightThrough(Arc::new(estimator)))
}

documented! {
    /// [`Vanilla`] with the bounds of DAPO: a higher upper bound, and a dual clip that rarely applies.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Dapo {
        /// The ratio is clipped below at `1 - clip_ratio_low`. In [0, 1]; default 0.2. (verl: `actor.clip_ratio_low`)
        clip_ratio_low: f64,
        /// The ratio is clipped above at `1 + clip_ratio_high`. At least 0; default 0.28. (verl: `actor.clip_ratio_high`)
        clip_ratio_high: f64,
        /// The loss of a token with advantage `a < 0` is at most `-a * clip_ratio_c`. Above 1; default 10. (verl: `actor.clip_ratio_c`)
        clip_ratio_c: f64,
    }
}

impl Default for Dapo {
    fn default() -> Self {
        Self { clip_ratio_low: 0.2, clip_ratio_high: 0.28, clip_ratio_c: 10.0 }
    }
}

impl From<Dapo> for Vanilla {
    fn from(dapo: Dapo) -> Self {
        let Dapo { clip_ratio_low, clip_ratio_high, clip_ratio_c } = dapo;
        Self { clip_ratio_low, clip_ratio_high, clip_ratio_c }
    }
}

const VANILLA: About = About::new(
    &[("ppo", "OpenRLHF")],
    "the clipped ratio, and a dual clip for negative advantages",
    "PPO, Schulman et al. 2017, eq. 7; Ye et al. 2020, eq. 5",
);
const DAPO: About = About::new(
    &[],
    "`vanilla` with a higher upper bound and a looser dual clip",
    "DAPO, Yu et al. 2025, section 3.1",
);
const GSPO: About =
    About::new(&[], "the clipped ratio of whole sequences", "GSPO, Zheng et al. 2025, section 4.3");
const CISPO: About = About::new(
    &[],
    "the log-probability, weighted by the clipped ratio without its gradient",
    "MiniMax-M1 2025, section 3.1",
);
const GEO_MEAN: About = About::new(
    &[("gmpo", "GMPO")],
    "the geometric mean over a sequence of clipped ratios; always `seq-mean-token-mean`",
    "GMPO, Zhao et al. 2025, section 3",
);
const SAPO: About = About::new(
    &[],
    "a sigmoid of the ratio instead of a clip; always `seq-mean-token-mean`",
    "SAPO, Gao et al. 2025",
);
const GPG: About = About::new(&[], "the log-probability, without a ratio", "GPG, Chu et al. 2025");

const SCHULMAN: &str = "Schulman 2020";
const KL: About = About::new(&[("k1", "verl, slime, OpenRLHF")], "`log p - log r`", SCHULMAN);
const ABS: About = About::new(&[], "`|log p - log r|`", SCHULMAN);
const MSE: About =
    About::new(&[("k2", "verl, slime, OpenRLHF")], "`(log p - log r)^2 / 2`", SCHULMAN);
const LOW_VAR: About =
    About::new(&[("k3", "verl, slime, OpenRLHF")], "`r/p - 1 - log(r/p)`, within 10", SCHULMAN);
const KL_PLUS: About = About::new(&[("k1+", "verl")], "`kl` with the gradient of `mse`", SCHULMAN);
const ABS_PLUS: About = About::new(&[], "`abs` with the gradient of `mse`", SCHULMAN);
const LOW_VAR_PLUS: About =
    About::new(&[("k3+", "verl")], "`low_var_kl` with the gradient of `mse`", SCHULMAN);
