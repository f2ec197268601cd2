//! The estimators that recipes can name.

use rollpacker_stages::catalog::{About, Catalog, CatalogError, NoOptions};
use serde::{Deserialize, Serialize};

use super::{
    Estimator, Gae, Gpg, Grpo, Opo, PassAtK, ReinforcePlusPlus, ReinforcePlusPlusBaseline, Rloo,
};

/// The estimators of advantages that come with the project, by the names of `algorithm.adv_estimator`.
///
/// ```
/// use rollpacker_operators::advantage::{Advantage, Estimator, Scored, advantages};
/// use rollpacker_stages::catalog::{Choice, NoOptions};
///
/// struct Raw;
///
/// impl Advantage for Raw {
///     fn advantages(&self, group: &[Scored]) -> Vec<f64> {
///         group.iter().map(|one| one.score).collect()
///     }
/// }
///
/// let estimators = advantages().with("raw", |_: NoOptions| Ok(Estimator::from(Raw)));
/// assert!(estimators.make(&Choice::of("raw")).is_ok());
/// ```
#[must_use]
pub fn advantages() -> Catalog<Estimator> {
    Catalog::new("estimator of advantages")
        .described("grpo", GRPO, |options: GrpoOptions| Ok(Grpo::from(options.checked()?).into()))
        .described("dr_grpo", DR_GRPO, |_: NoOptions| {
            Ok(Grpo { norm_by_std: false, ..Grpo::default() }.into())
        })
        .described("grpo_passk", PASS_AT_K, |options: GrpoOptions| {
            let Grpo { norm_by_std, epsilon } = options.checked()?.into();
            Ok(PassAtK { norm_by_std, epsilon }.into())
        })
        .described("rloo", RLOO, |_: NoOptions| Ok(Rloo.into()))
        .described("opo", OPO, |_: NoOptions| Ok(Opo.into()))
        .described("gpg", GPG, |_: NoOptions| Ok(Estimator::of_tokens(Gpg)))
        .described("reinforce_plus_plus", REINFORCE, |options: Discount| {
            let Discount { gamma } = options;
            share("gamma", gamma)?;
            Ok(Estimator::of_tokens(ReinforcePlusPlus { gamma }))
        })
        .described("reinforce_plus_plus_baseline", REINFORCE_BASELINE, |_: NoOptions| {
            Ok(Estimator::of_tokens(ReinforcePlusPlusBaseline))
        })
        .described("gae", GAE, |options: GaeOptions| {
            let GaeOptions { gamma, lam, whiten } = options;
            share("gamma", gamma)?;
            share("lam", lam)?;
            Ok(Estimator::of_tokens(Gae { gamma, lam, whiten }))
        })
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct GrpoOptions {
    norm_adv_by_std_in_grpo: bool,
    epsilon: f64,
}

impl Default for GrpoOptions {
    fn default() -> Self {
        let Grpo { norm_by_std, epsilon } = Grpo::default();
        Self { norm_adv_by_std_in_grpo: norm_by_std, epsilon }
    }
}

impl GrpoOptions {
    /// The same, its bounds checked: a group whose scores are all equal is divided by `epsilon` alone.
    fn checked(self) -> Result<Self, CatalogError> {
        if (1e-12..=1e6).contains(&self.epsilon) {
            Ok(self)
        } else {
            Err(CatalogError::bound("epsilon", "from 1e-12 to 1e6", self.epsilon))
        }
    }
}

impl From<GrpoOptions> for Grpo {
    fn from(options: GrpoOptions) -> Self {
        Self { norm_by_std: options.norm_adv_by_std_in_grpo, epsilon: options.epsilon }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Discount {
    gamma: f64,
}

impl Default for Discount {
    fn default() -> Self {
        Self { gamma: 1.0 }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct GaeOptions {
    gamma: f64,
    lam: f64,
    whiten: bool,
}

impl Default for GaeOptions {
    fn default() -> Self {
        Self { gamma: 1.0, lam: 1.0, whiten: true }
    }
}

fn share(key: &str, value: f64) -> Result<(), CatalogError> {
    if (0.0..=1.0).contains(&value) {
        Ok(())
    } else {
        Err(CatalogError::bound(key, "in [0, 1]", value))
    }
}

const GRPO: About = About::new(
    &[("group_norm", "OpenRLHF"), ("grpo_vectorized", "verl")],
    "score less the group's mean, over its deviation",
    "DeepSeekMath, Shao et al. 2024, section 4.1",
);
const DR_GRPO: About =
    About::new(&[], "score less the group's mean", "Dr. GRPO, Liu et al. 2025, section 3.2");
const PASS_AT_K: About = About::new(
    &[],
    "for the best of a group, how far it is above the second, over the group's deviation",
    "verl",
);
const RLOO: About = About::new(
    &[("rloo_vectorized", "verl")],
    "score less the mean of the others of the group",
    "RLOO, Ahmadian et al. 2024, section 3",
);
const OPO: About =
    About::new(&[], "score less the group's mean, weighted by length", "OPO, Hao et al. 2025");
const GPG: About = About::new(
    &[],
    "score less the group's mean, times the step's responses over those that scored",
    "GPG, Chu et al. 2025",
);
const REINFORCE: About = About::new(
    &[("reinforce", "OpenRLHF")],
    "discounted rewards from the token on, whitened over the step",
    "REINFORCE++, Hu 2025",
);
const REINFORCE_BASELINE: About = About::new(
    &[("reinforce_baseline", "OpenRLHF")],
    "score less the group's mean, whitened over the step",
    "REINFORCE++, Hu 2025",
);
const GAE: About = About::new(
    &[],
    "errors of a critic from the token on, decayed, whitened over the step",
    "GAE, Schulman et al. 2016, eq. 16",
);
