//! The section `[reward]`: the rewards with their options, and the data sources that they score.

use std::collections::BTreeMap;

use rollpacker_operators::reward::LimitOptions;
use rollpacker_stages::reward::OnError;
use serde::{Deserialize, Serialize};
use toml::Table;

use crate::recipe::section::section;

section! {
    /// The section `[reward]`: the rewards, and which data sources they score.
    Reward {
        /// Maps each data source to the name of a reward, or to a table of rewards and weights. A trailing `*` matches any suffix. Default:
        /// `math` for all data sources.
        routes: BTreeMap<String, RouteTarget> = BTreeMap::from([("*".to_owned(), RouteTarget::One("math".to_owned()))]),
        /// Number of threads that score responses, from 1 to 4096; default 1. (verl: `reward.num_workers`)
        num_workers: usize [threads] = 1 => resumable,
        /// Reaction to an error of a reward, unless the reward's options set `on_error`: `drop_group` leaves the group out of the training;
        /// `tolerate` (the default) does the same, but ends the run after 32 consecutive errors; `zero` counts the reward as 0; `fail` ends
        /// the run.
        on_error: OnError = OnError::default(),
        /// Time limits of the test cases of code: `mode` (`adaptive` or `fixed`), `min_s`, `max_s`, `slack` and `audit_share`.
        timeout: LimitOptions = LimitOptions::default(),
        /// Options of each reward, by its name: the reward's own keys, the keys of its [guard](rollpacker_rewards::Guard), `on_error`, and
        /// `kind`. `kind` names the built-in or added reward if it differs from the name.
        options: BTreeMap<String, Table> = BTreeMap::new(),
    }
}

/// The reward, or the weighted sum of rewards, that scores the responses of a data source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "the name of a reward, or a table of rewards and their weights")]
pub enum RouteTarget {
    /// The name of one reward.
    One(String),
    /// The weighted sum of several rewards.
    Sum(BTreeMap<String, f64>),
}

impl std::fmt::Display for RouteTarget {
    /// Formats as `math`, or as `0.8 math + 0.2 format`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::One(name) => f.write_str(name),
            Self::Sum(terms) => {
                let terms: Vec<_> =
                    terms.iter().map(|(name, weight)| format!("{weight} {name}")).collect();
                f.write_str(&terms.join(" + "))
            }
        }
    }
}
