//! The built-in advantage estimators.

use rollpacker_stages::catalog::{About, Catalog, CatalogError, NoOptions, check_range};
use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};

use super::{
    Estimator, Gae, Gpg, Grpo, Opo, PassAtK, ReinforcePlusPlus, ReinforcePlusPlusBaseline, Rloo,
};

/// Returns the catalog of the built-in advantage estimators. Their names are the values of the recipe key `algorithm.adv_estimator`.
///
/// ```
/// use rollpacker_operators::advantage::{Advantage, Estimator, ScoredResponse, advantages};
/// use rollpacker_stages::catalog::{Choice, NoOptions};
///
/// struct Raw;
///
/// impl Advantage for Raw {
///     fn advantages(&self, group: &[ScoredResponse]) -> Vec<f64> {
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
        .described("reinforce_plus_plus", REINFORCE, |estimator: ReinforcePlusPlus| {
            share("gamma", estimator.gamma)?;
            Ok(Estimator::of_tokens(estimator))
        })
        .described("reinforce_plus_plus_baseline", REINFORCE_BASELINE, |_: NoOptions| {
            Ok(Estimator::of_tokens(ReinforcePlusPlusBaseline))
        })
        .described("gae", GAE, |estimator: Gae| {
            share("gamma", estimator.gamma)?;
            share("lam", estimator.lam)?;
            Ok(Estimator::of_tokens(estimator))
        })
}

documented! {
    /// The options of `grpo` and `grpo_passk`; see [`Grpo`].
    #[derive(Clone, Copy, Debug, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct GrpoOptions {
        /// `true` to divide by the standard deviation of the group. (verl: `algorithm.norm_adv_by_std_in_grpo`)
        norm_adv_by_std_in_grpo: bool,
        /// Added to the standard deviation of the group. From 1e-12 to 1e6.
        epsilon: f64,
    }
}

impl Default for GrpoOptions {
    fn default() -> Self {
        let Grpo { norm_by_std, epsilon } = Grpo::default();
        Self { norm_adv_by_std_in_grpo: norm_by_std, epsilon }
    }
}

impl GrpoOptions {
    /// Returns the options, or an error if `epsilon` is out of range. The lower bound is needed because the standard deviation of equal
    /// scores is 0, so that `epsilon` is the whole divisor.
    fn checked(self) -> Result<Self, CatalogError> {
        let is_in = |epsilon| (1e-12..=1e6).contains(&epsilon);
        check_range("epsilon", self.epsilon, is_in, "from 1e-12 to 1e6")?;
        Ok(self)
    }
}

impl From<GrpoOptions> for Grpo {
    fn from(options: GrpoOptions) -> Self {
        Self { norm_by_std: options.norm_adv_by_std_in_grpo, epsilon: options.epsilon }
    }
}

/// Returns an error that names `key` if `value` is not in [0, 1].
fn share(key: &str, value: f64) -> Result<(), CatalogError> {
    check_range(key, value, |value| (0.0..=1.0).contains(&value), "in [0, 1]")
}

const GRPO: About = About::new(
    &[("group_norm", "OpenRLHF"), ("grpo_vectorized", "verl")],
    "score minus the group mean, divided by the group's standard deviation",
    "DeepSeekMath, Shao et al. 2024, section 4.1",
);
const DR_GRPO: About =
    About::new(&[], "score minus the group mean", "Dr. GRPO, Liu et al. 2025, section 3.2");
const PASS_AT_K: About = About::new(
    &[],
    "best score of a group minus the second best, divided by the group's standard deviation; 0 for all other responses",
    "verl",
);
const RLOO: About = About::new(
    &[("rloo_vectorized", "verl")],
    "score minus the mean of the other scores of the group",
    "RLOO, Ahmadian et al. 2024, section 3",
);
const OPO: About =
    About::new(&[], "score minus the length-weighted group mean", "OPO, Hao et al. 2025");
const GPG: About = About::new(
    &[],
    "score minus the group mean, times the step's responses over those with a nonzero score",
    "GPG, Chu et al. 2025",
);
const REINFORCE: About = About::new(
    &[("reinforce", "OpenRLHF")],
    "discounted sum of the rewards from the token on, whitened over the step",
    "REINFORCE++, Hu 2025",
);
const REINFORCE_BASELINE: About = About::new(
    &[("reinforce_baseline", "OpenRLHF")],
    "score minus the group mean, whitened over the step",
    "REINFORCE++, Hu 2025",
);
const GAE: About = About::new(
    &[],
    "decayed sum of the critic's temporal-difference errors from the token on, whitened over the step if `whiten` is true",
    "GAE, Schulman et al. 2016, eq. 16",
);
