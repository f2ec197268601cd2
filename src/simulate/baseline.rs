//! The baseline of a job, and the canonical form by which identical runs are found.

use rollpacker_operators::reward::LimitMode;

use super::job::Job;
use super::raw::{HandOut, JudgeSharing, Layout, Pipeline, Planner, RawJob, Stream, Training};
use crate::recipe::schedule::ScheduleSection;

impl RawJob {
    /// Returns the `sync` job that speed-ups are relative to: the same cluster, model, data and steps.
    #[must_use]
    pub fn baseline(&self) -> Self {
        let mut raw = self.clone();
        raw.schedule = ScheduleSection::named("sync");
        let placements = raw.pipeline.placements.clone();
        raw.pipeline = Pipeline { placements, ..Pipeline::default() };
        raw.stream = Stream::default();
        raw.planner = Planner::default();
        raw.rollout.dispatch = None;
        raw.rollout.hand_out = HandOut::Together;
        (raw.tasks.judge_placement, raw.tasks.judge_sharing) = (None, JudgeSharing::Mps);
        (raw.tasks.timeout, raw.tasks.audit_share, raw.tasks.reference_time) = (None, None, None);
        raw
    }

    /// Returns `true` if the baseline keeps the override `setting`, `key=value`: its key describes the job, not the schedule.
    pub(super) fn is_kept_by_baseline(setting: &str) -> bool {
        const REMOVED_PREFIXES: [&str; 11] = [
            "schedule.",
            "pipeline.",
            "stream.",
            "planner.",
            "rollout.dispatch=",
            "rollout.hand_out=",
            "tasks.judge_placement=",
            "tasks.judge_sharing=",
            "tasks.timeout=",
            "tasks.audit_share=",
            "tasks.reference_time=",
        ];
        !REMOVED_PREFIXES.iter().any(|left| setting.starts_with(left))
    }
}

// A sweep runs equal baselines only once. `canonical` removes the differences in notation that do not change the outcome: defaults that
// depend on the schedule are written out, and keys without effect are cleared.
impl Job {
    /// Returns the job in canonical form; jobs with equal canonical forms have the same outcome.
    #[must_use]
    pub(super) fn canonical(&self) -> RawJob {
        let mut raw = self.raw.clone();
        let layout = self.training_layout;
        raw.training = Training {
            tensor_parallel: layout.tensor_parallel,
            pipeline_parallel: layout.pipeline,
            context_parallel: layout.context,
            micro_batch_tokens: layout.micro_batch_tokens,
            layout: Layout::Written,
        };
        raw.pipeline.placement = Some(self.placement.name().to_owned());
        raw.pipeline.reward = Some(self.scoring);
        raw.rollout.dispatch = Some(self.dispatch);
        raw.tasks.judge_placement = Some(self.judge);
        raw.tasks.timeout = Some(self.timeout);
        let adapts = self.timeout == LimitMode::Adaptive;
        raw.tasks.audit_share = adapts.then_some(self.limits().audit_share);
        raw.tasks.reference_time = adapts.then_some(self.raw.tasks.reference_time.unwrap_or(true));
        // `sync` reads each prompt at most once within such a run, so the length of the epoch has no effect.
        let read = self.total_steps().saturating_mul(raw.data.train_batch_size as u64);
        if raw.schedule.name == "sync" && read <= self.prompts() {
            (raw.data.prompts, raw.data.epoch_rounds) = (None, None);
        }
        raw
    }
}
