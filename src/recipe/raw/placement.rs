//! The section `[placement]`.

use serde::{Deserialize, Serialize};
use toml::Table;

use super::section;
use crate::placements::Placements;

section! {
    /// The section `[placement]`: how engine instances and their threads are divided between rollout and training.
    Placement {
        /// Division of the instances: `fixed`, the default, runs the trainer with `actor.threads` next to all instances; `time_sharing`
        /// trains with the threads of all instances when the rollout of the step has ended; `separate_pools` has instances that only
        /// generate and threads that only train; `stream_trainer` lends instances to training during the tail of a round (RollPacker,
        /// Algorithm 1); `planner` is `time_sharing` with instances that compute on several devices, as `rule` decides for each round.
        /// Other names are those of placements that the program [adds](crate::App::placement).
        kind: String = "fixed".to_owned(),
        /// Number of instances whose threads train, with `separate_pools`. From 1 to `rollout.instances - 1`. Default: half of them.
        training_instances: Option<u32> [instances] = None,
        /// Rounds in which instances may be lent before the rollout has ended, with `stream_trainer`: `long` (the default) for all but
        /// speculative short rounds, or `all`.
        rounds: Option<String> = None,
        /// Condition to lend instances, with `stream_trainer`: `adaptive` (the default) at the first milestone at which the remaining
        /// responses are projected to fit into the KV caches of fewer instances, or `fixed` at the share `from` of ended responses.
        trigger: Option<String> = None,
        /// First milestone, as a share of the responses that are expected to end by themselves, in (0, 1]. Default: 0.2.
        from: Option<f64> = None,
        /// Last milestone of the trigger `adaptive`, from `from` to 1. Default: 0.5.
        to: Option<f64> = None,
        /// Distance between two milestones of the trigger `adaptive`, in (0, 1]. Default: 0.05.
        every: Option<f64> = None,
        /// Minimum share of the instances that keeps generating, in (0, 1]. Default: 0.5.
        keep: Option<f64> = None,
        /// Share of the remaining KV caches that the projected tokens may fill, in (0, 1]. Default: 0.95.
        headroom: Option<f64> = None,
        /// Rule that chooses the number of devices of an instance for each round, with `planner` or `stream_trainer`: `paper`, the default
        /// with `planner`, doubles it if preemptions increase and halves it if there are none for four rounds (RollPacker, section 4.3);
        /// `predictive` takes the number with the shortest round that `rollout.profile` predicts; `fixed`, the default with
        /// `stream_trainer`, keeps `tensor_parallel`.
        rule: Option<String> = None,
        /// Number of devices of an instance in the first round of each kind, with `planner` or `stream_trainer`; a power of two that
        /// divides `rollout.instances`. A device is an instance's share of threads and KV cache. From 1 to `rollout.instances`. Default: 1.
        tensor_parallel: Option<u32> [devices] = None,
        /// Options of a placement that the program adds. Default: none. The options of built-in placements are the other keys of this
        /// section.
        options: Table = Table::new(),
        /// The placements that the program adds.
        #[serde(skip)]
        placements: Placements = Placements::default(),
    }
}
