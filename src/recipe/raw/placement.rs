//! The section `[placement]`.

use rollpacker_operators::placement::StreamTrainerOptions;
use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::section;
use crate::placements::Placements;

documented! {
    /// The section `[placement]`: the name of a placement and its options.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct Placement {
        /// Division of the engine instances and their threads between rollout and training. Default: `fixed`.
        pub kind: String,
        /// Options of a placement that the program [adds](crate::App::placement). Default: none. The options of built-in placements are the
        /// other keys of this section.
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

section! {
    /// The options of `separate_pools`.
    SeparatePools {
        /// Number of instances whose threads train. From 1 to `rollout.instances - 1`. Default: half of them.
        training_instances: Option<u32> [instances] = None,
    }
}

section! {
    /// The options of `stream_trainer`.
    StreamTrainer {
        /// Rounds in which instances may be lent before the rollout has ended: `long` for all but speculative short rounds, or `all`.
        rounds: String = "long".to_owned(),
        /// Condition to lend instances: `adaptive` at the first milestone at which the remaining responses are projected to fit into the KV
        /// caches of fewer instances, or `fixed` at the share `from` of ended responses.
        trigger: String = "adaptive".to_owned(),
        /// First milestone, as a share of the responses that are expected to end by themselves, in (0, 1].
        from: f64 = 0.2,
        /// Last milestone of the trigger `adaptive`, from `from` to 1.
        to: f64 = 0.5,
        /// Distance between two milestones of the trigger `adaptive`, in (0, 1].
        every: f64 = 0.05,
        /// Minimum share of the instances that keeps generating, in (0, 1]. It must leave an instance to lend.
        keep: f64 = StreamTrainerOptions::paper().keep,
        /// Share of the remaining KV caches that the projected tokens may fill with the trigger `adaptive`, in (0, 1].
        headroom: f64 = StreamTrainerOptions::paper().headroom,
        /// Rule that chooses the number of devices of an instance for each round, as with `planner`; `fixed` keeps `tensor_parallel`.
        rule: String = "fixed".to_owned(),
        /// Number of devices of an instance in the first round of each kind, as with `planner`. From 1 to `rollout.instances`.
        tensor_parallel: u32 [devices] = 1,
    }
}

section! {
    /// The options of `planner`.
    Planner {
        /// Rule that chooses the number of devices of an instance for each round: `paper` doubles it if preemptions increase and halves it if
        /// there are none for four rounds (RollPacker, section 4.3); `predictive` takes the number with the shortest round that
        /// `rollout.profile` predicts; `fixed` keeps `tensor_parallel`.
        rule: String = "paper".to_owned(),
        /// Number of devices of an instance in the first round of each kind, a power of two that divides `rollout.instances`. A device is an
        /// instance's share of threads and KV cache. From 1 to `rollout.instances`.
        tensor_parallel: u32 [devices] = 1,
    }
}
