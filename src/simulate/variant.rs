//! The schedules of `schedule.name=all`, with the settings that their authors describe or with extensions of this project.

/// A schedule with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The name of the variant in tables.
    pub label: &'static str,
    /// The name of the schedule.
    pub schedule: &'static str,
    /// The settings in addition to the schedule's name, `key=value` each.
    pub settings: &'static [&'static str],
}

impl Variant {
    const fn new(
        label: &'static str,
        schedule: &'static str,
        settings: &'static [&'static str],
    ) -> Self {
        Self { label, schedule, settings }
    }

    /// Returns all settings, including the schedule's name.
    pub fn overrides(&self) -> impl Iterator<Item = String> {
        let name = format!("schedule.name={}", self.schedule);
        std::iter::once(name).chain(self.settings.iter().map(|&setting| setting.to_owned()))
    }
}

/// Returns every schedule with its settings, starting with the baseline. A schedule may occur several times with different settings.
pub fn all() -> impl Iterator<Item = &'static Variant> {
    ALL.iter()
}

const ALL: &[Variant] = &[
    // veRL.
    Variant::new("sync", "sync", &[]),
    // `sync` with better stages: requests handed out one by one, and parallelism by predicted time for rollout and trainer.
    Variant::new(
        "sync tuned",
        "sync",
        &["rollout.hand_out=streamed", "planner.rule=predictive", "training.layout=planned"],
    ),
    // RLHFuse as RollPacker strengthens it (section 6.1): with the stream trainer.
    Variant::new("fused", "fused", &["pipeline.placement=stream"]),
    // RollPacker; and its rounds with speculation on prompts alone, weighted to correct the length bias.
    Variant::new(
        "tail_batching",
        "tail_batching",
        &["schedule.eta_prompts=1.25", "schedule.eta_responses=1.25"],
    ),
    Variant::new(
        "tail_batching weighted",
        "tail_batching",
        &["schedule.eta_prompts=1.25", "schedule.eta_responses=1", "schedule.selection=weighted"],
    ),
    // Both with extensions beyond the paper: requests handed out one by one, and the layout of the trainer by predicted time. The second
    // also streams the groups of short rounds and merges stragglers onto wider instances.
    Variant::new(
        "tail_batching tuned",
        "tail_batching",
        &[
            "schedule.eta_prompts=1.25",
            "schedule.eta_responses=1.25",
            "rollout.hand_out=streamed",
            "training.layout=planned",
        ],
    ),
    Variant::new(
        "tail_batching weighted tuned",
        "tail_batching",
        &[
            "schedule.eta_prompts=1.25",
            "schedule.eta_responses=1",
            "schedule.selection=weighted",
            "rollout.hand_out=streamed",
            "stream.rounds=all",
            "stream.consolidate=true",
            "training.layout=planned",
        ],
    ),
    // The extended stages without any selection.
    Variant::new(
        "fused tuned",
        "fused",
        &[
            "rollout.hand_out=streamed",
            "pipeline.placement=stream",
            "stream.rounds=all",
            "stream.trigger=predicted",
            "planner.rule=predictive",
            "training.layout=planned",
        ],
    ),
    // Long prompts share rounds from the second epoch on; with epochs of ten rounds, a run of the default 40 steps has several epochs.
    Variant::new("history_sorted", "history_sorted", &["data.epoch_rounds=10"]),
    // DAPO.
    Variant::new(
        "dynamic",
        "dynamic",
        &["schedule.max_generated_batches=10", "schedule.on_exhausted=smaller_step"],
    ),
    // SortedRL.
    Variant::new("sorted", "sorted", &["schedule.group_size=4", "schedule.mode=on_policy"]),
    Variant::new(
        "sorted partial",
        "sorted",
        &["schedule.group_size=4", "schedule.mode=partial", "schedule.carry_over=true"],
    ),
    // Kimi k1.5 and APRIL.
    Variant::new(
        "partial",
        "partial",
        &["schedule.oversubscription=1.5", "schedule.max_versions=4"],
    ),
    // RolloutPipe.
    Variant::new("frontier_group", "frontier_group", &["schedule.order=group_major"]),
    // Seer's order of hand-out. The order matters only if a round has more responses than the engine has slots, or than `schedule.slots`.
    Variant::new("longest_first", "longest_first", &[]),
    // AReaL: generation that updates interrupt, up to four steps ahead of the trainer, on GPUs of its own.
    Variant::new(
        "partial asynchronous",
        "partial",
        &[
            "schedule.oversubscription=1",
            "schedule.max_versions=5",
            "pipeline.staleness=4",
            "pipeline.placement=separate",
            "pipeline.reward=streamed",
            "pipeline.gradient=streamed",
        ],
    ),
    // One step off the policy, on GPUs of their own: StreamRL, and the one-off baseline of RollPacker's section 6.7.
    Variant::new(
        "sync one-off",
        "sync",
        &[
            "pipeline.staleness=1",
            "pipeline.placement=separate",
            "pipeline.reward=streamed",
            "pipeline.gradient=streamed",
        ],
    ),
    Variant::new(
        "tail_batching one-off",
        "tail_batching",
        &[
            "schedule.eta_prompts=1.25",
            "schedule.eta_responses=1.25",
            "pipeline.staleness=1",
            "pipeline.placement=separate",
        ],
    ),
];
