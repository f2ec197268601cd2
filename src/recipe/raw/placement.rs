//! The section `[placement]`: the division of the engine instances between rollout and training.

use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};
use toml::Table;

use crate::placements::Placements;

documented! {
    /// The section `[placement]`: the name of a placement and its options.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct Placement {
        /// Division of the engine instances and their threads between rollout and training: the name of a built-in placement, or of one
        /// that the program [adds](crate::App::placement). Default: `fixed`.
        pub kind: String,
        /// Options of a placement that the program adds. Default: none. The options of built-in placements are the other keys of this
        /// section.
        pub options: Table,
        /// The options of a built-in placement.
        #[serde(flatten)]
        pub built_in_options: Table,
        /// The placements that `kind` may select.
        #[serde(skip)]
        pub placements: Placements,
    }
}

impl Default for Placement {
    fn default() -> Self {
        Self {
            kind: "fixed".to_owned(),
            options: Table::new(),
            built_in_options: Table::new(),
            placements: Placements::default(),
        }
    }
}
