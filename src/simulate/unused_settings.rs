//! Settings that have no effect in combination with other settings. A job that contains such a setting is rejected. If a sweep makes a
//! setting of the job useless, the setting is dropped.

use rollpacker_operators::overlap::{GroupDelivery, Scoring};
use rollpacker_operators::reward::LimitMode;
use toml::{Table, Value};

use super::placement::SimulatedPlacement;
use super::raw::{JudgeSharing, Model, Planner, RawJob, Source, Stream, Trigger};
use crate::code_list::code_list;
use crate::placements::PlannerRule;
use crate::recipe::RecipeError;
use crate::recipe::error::out_of_bounds;

impl RawJob {
    /// Returns an error that names the first setting that has no effect in this job.
    pub(super) fn reject_unused(&self) -> Result<(), RecipeError> {
        let placement = self.placement()?;
        if let Some((key, found)) = self.unused_stream(&placement).next() {
            return Err(out_of_bounds(key, self.stream_needs(&placement), found));
        }
        let keeps = match placement {
            SimulatedPlacement::Separate => Some("the pools keep their GPUs"),
            SimulatedPlacement::Custom(_) => Some("it chooses the GPUs of an instance"),
            SimulatedPlacement::Colocated | SimulatedPlacement::Stream => None,
        };
        if let Some(reason) = keeps.filter(|_| self.planner.rule != PlannerRule::Fixed) {
            let expected =
                format!("fixed with pipeline.placement = {}: {reason}", placement.name());
            return Err(out_of_bounds("planner.rule", expected, text(&self.planner.rule)));
        }
        let options = &self.pipeline.placement_options;
        if !options.is_empty() && !matches!(placement, SimulatedPlacement::Custom(_)) {
            let expected = "no value unless pipeline.placement is one that the program adds";
            let found = code_list(options.keys());
            return Err(out_of_bounds("pipeline.placement_options", expected, found));
        }
        if self.scoring() == Scoring::AfterRollout
            && self.tasks.timeout == Some(LimitMode::Adaptive)
        {
            let expected =
                "fixed with rewards after the rollout: no execution times are known before";
            return Err(out_of_bounds("tasks.timeout", expected, "adaptive"));
        }
        if self.tasks.judge_sharing != JudgeSharing::Mps && !self.judges_beside_rollout() {
            let expected =
                "mps: no judge shares the GPUs of the rollout while responses are generated";
            return Err(out_of_bounds(
                "tasks.judge_sharing",
                expected,
                text(&self.tasks.judge_sharing),
            ));
        }
        if let (LimitMode::Fixed, Some((key, found))) = (self.timeout(), self.adapting().next()) {
            let expected = "no value with tasks.timeout = fixed: only adaptive limits use it";
            return Err(out_of_bounds(key, expected, found));
        }
        let name = &self.model.name;
        if self.model.shape.is_some() && *name != Model::default().name {
            let expected = "no value with model.shape, which replaces the named model";
            return Err(out_of_bounds("model.name", expected, format!("`{name}`")));
        }
        if let (Some(_), Some(rounds)) = (self.data.prompts, self.data.epoch_rounds) {
            let expected = "no value with data.prompts: both set the prompts of an epoch";
            return Err(out_of_bounds("data.epoch_rounds", expected, rounds));
        }
        self.reject_unused_lengths()
    }

    /// Returns the settings that only adaptive limits use, with their values.
    fn adapting(&self) -> impl Iterator<Item = (&'static str, String)> {
        let share = self.tasks.audit_share.map(|share| ("tasks.audit_share", share.to_string()));
        let reference_time = self.tasks.reference_time;
        share.into_iter().chain(
            reference_time
                .map(|reference_time| ("tasks.reference_time", reference_time.to_string())),
        )
    }

    fn reject_unused_lengths(&self) -> Result<(), RecipeError> {
        let lengths = &self.lengths;
        let unused = [
            ("lengths.file", lengths.file.is_some()),
            ("lengths.length_column", lengths.length_column.is_some()),
            ("lengths.prompt_column", lengths.prompt_column.is_some()),
            ("lengths.prompt_length_column", lengths.prompt_length_column.is_some()),
            ("lengths.tokenizer", lengths.tokenizer.is_some()),
        ];
        let source = text(&lengths.source);
        match unused.into_iter().find(|(_, unused)| *unused) {
            Some((key, _)) if lengths.source != Source::Trace => {
                return Err(out_of_bounds("lengths.source", format!("trace with {key}"), source));
            }
            _ => {}
        }
        let drawn_alike = matches!(lengths.source, Source::Paper | Source::Trace);
        if lengths.correlation.is_some() && !drawn_alike {
            let expected = "paper or trace with lengths.correlation: each domain sets its own";
            return Err(out_of_bounds("lengths.source", expected, source));
        }
        let named = !lengths.domains.is_empty();
        if named && drawn_alike {
            let expected = "two_mode or empirical with lengths.domains";
            return Err(out_of_bounds("lengths.source", expected, source));
        }
        Ok(())
    }

    /// Drops settings of the job that a sweep has made useless.
    ///
    /// A sweep applies `settings` to the job. If a swept value, such as another schedule or placement, gives a setting of the job no
    /// effect, the setting is dropped rather than rejected: the job as written may use it in another configuration. A combination that the
    /// job itself writes is not touched; [`reject_unused`](Self::reject_unused) still rejects it. The order of the checks matters, because
    /// a dropped setting affects the checks after it.
    ///
    /// # Errors
    /// If the job names a schedule or a placement that does not exist, or if the placement rejects its options.
    pub(super) fn drop_unused(&mut self, settings: &[String]) -> Result<(), RecipeError> {
        let sets = |key: &str| {
            settings.iter().any(|setting| setting.split_once('=').is_some_and(|(of, _)| of == key))
        };
        let decides = |key: &str, written: bool| sets(key) || sets("schedule.name") && !written;
        let placement = self.placement()?;
        if decides("pipeline.placement", self.pipeline.placement.is_some()) {
            self.drop_unused_placement(&placement);
        }
        if placement == SimulatedPlacement::Stream && sets("stream.trigger") {
            self.drop_unused_stream(&placement);
        }
        if decides("pipeline.reward", self.pipeline.reward.is_some())
            && self.scoring() == Scoring::AfterRollout
        {
            self.tasks.timeout = self.tasks.timeout.filter(|timeout| *timeout == LimitMode::Fixed);
        }
        let times_out = sets("pipeline.reward") || sets("schedule.name");
        if (times_out || sets("tasks.timeout")) && self.timeout() == LimitMode::Fixed {
            (self.tasks.audit_share, self.tasks.reference_time) = (None, None);
        }
        let moves_judge =
            ["schedule.name", "pipeline.reward", "tasks.judge", "tasks.judge_placement"];
        if moves_judge.into_iter().any(sets) && !self.judges_beside_rollout() {
            self.tasks.judge_sharing = JudgeSharing::Mps;
        }
        if decides("pipeline.gradient", self.pipeline.gradient.is_some()) {
            let max_groups = self.pipeline.max_groups.take();
            if matches!(self.delivery()?, GroupDelivery::Streamed { .. }) {
                self.pipeline.max_groups = max_groups;
            }
        }
        match (sets("data.prompts"), sets("data.epoch_rounds")) {
            (true, false) => self.data.epoch_rounds = None,
            (false, true) => self.data.prompts = None,
            _ => {}
        }
        match (sets("model.name"), sets("model.shape")) {
            (true, false) => self.model.shape = None,
            (false, true) => self.model.name = Model::default().name,
            _ => {}
        }
        if sets("lengths.source") {
            self.drop_unused_lengths();
        }
        Ok(())
    }

    fn drop_unused_placement(&mut self, placement: &SimulatedPlacement) {
        self.drop_unused_stream(placement);
        if matches!(placement, SimulatedPlacement::Separate | SimulatedPlacement::Custom(_)) {
            self.planner = Planner::default();
        }
        if *placement != SimulatedPlacement::Separate {
            self.pipeline.training_gpus = None;
        }
        if !matches!(placement, SimulatedPlacement::Custom(_)) {
            self.pipeline.placement_options.clear();
        }
    }

    /// Drops the settings that the source of lengths does not use.
    pub(super) fn drop_unused_lengths(&mut self) {
        let lengths = &mut self.lengths;
        if lengths.source != Source::Trace {
            (lengths.file, lengths.tokenizer) = (None, None);
            (lengths.length_column, lengths.prompt_column) = (None, None);
            lengths.prompt_length_column = None;
        }
        match lengths.source {
            Source::Paper | Source::Trace => lengths.domains.clear(),
            Source::TwoMode | Source::Empirical => lengths.correlation = None,
        }
    }

    fn drop_unused_stream(&mut self, placement: &SimulatedPlacement) {
        let mut table = table(&self.stream);
        let default = table_of_defaults();
        for key in self.unused_by_stream(placement) {
            table.insert((*key).to_owned(), default[*key].clone());
        }
        self.stream =
            Value::Table(table).try_into().expect("invariant: a written section can be read");
    }

    /// Returns the keys of `[stream]` that differ from the default and have no effect, with their values.
    fn unused_stream(
        &self,
        placement: &SimulatedPlacement,
    ) -> impl Iterator<Item = (String, String)> + use<> {
        let (table, default) = (table(&self.stream), table_of_defaults());
        self.unused_by_stream(placement).iter().filter_map(move |key| {
            let value = &table[*key];
            let shown = || value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            (*value != default[*key]).then(|| (format!("stream.{key}"), shown()))
        })
    }

    fn unused_by_stream(&self, placement: &SimulatedPlacement) -> &'static [&'static str] {
        const ALL: [&str; 9] = [
            "rounds",
            "trigger",
            "from",
            "to",
            "every",
            "keep",
            "headroom",
            "consolidate",
            "kv_transfer_bandwidth",
        ];
        const NEVER_TRIGGERED: &[&str] = &["rounds", "from", "to", "every", "keep", "headroom"];
        match placement {
            SimulatedPlacement::Colocated | SimulatedPlacement::Separate => return &ALL,
            // Such a placement may move responses, too, and then uses `kv_transfer_bandwidth`.
            SimulatedPlacement::Custom(_) => {
                return ALL.split_last().expect("invariant: not empty").1;
            }
            SimulatedPlacement::Stream => {}
        }
        match self.stream.trigger {
            // A consolidation moves responses, too.
            Trigger::Never if self.stream.consolidate => NEVER_TRIGGERED,
            Trigger::Never => {
                &["rounds", "from", "to", "every", "keep", "headroom", "kv_transfer_bandwidth"]
            }
            Trigger::Fixed => &["to", "every", "headroom"],
            Trigger::Predicted => &["to", "headroom"],
            Trigger::Adaptive => &[],
        }
    }

    fn stream_needs(&self, placement: &SimulatedPlacement) -> String {
        match placement {
            SimulatedPlacement::Stream => {
                format!("no value with stream.trigger = {}", text(&self.stream.trigger))
            }
            SimulatedPlacement::Custom(own) => {
                format!(
                    "no value with pipeline.placement = {}, which has its own options",
                    own.name()
                )
            }
            placement => format!(
                "no value with pipeline.placement = {}: no GPUs move from the rollout to the trainer",
                placement.name()
            ),
        }
    }
}

fn table(stream: &Stream) -> Table {
    Table::try_from(stream).expect("invariant: a section is a table")
}

fn table_of_defaults() -> Table {
    table(&Stream::default())
}

/// Returns the name of a choice as a job spells it.
pub(super) fn text(choice: &impl serde::Serialize) -> String {
    let value = Value::try_from(choice).expect("invariant: a choice is a name");
    value.as_str().map(str::to_owned).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use toml::Table;

    use super::*;
    use crate::recipe::{from_table, overlay};

    fn raw(settings: &[&str]) -> RawJob {
        let mut table = Table::new();
        settings.iter().for_each(|setting| overlay(&mut table, setting).expect("valid"));
        from_table(table).expect("valid")
    }

    /// Returns the job `written` after a sweep has set `swept_keys`, without the settings that then have no effect.
    fn swept(written: &[&str], swept_keys: &[&str]) -> RawJob {
        let mut raw = raw(&[written, swept_keys].concat());
        let swept_keys: Vec<String> =
            swept_keys.iter().map(|&setting| setting.to_owned()).collect();
        raw.drop_unused(&swept_keys).expect("valid");
        raw
    }

    #[test]
    fn settings_that_a_swept_schedule_cannot_use_are_left_out() {
        let written = [
            "stream.keep=0.25",
            "planner.rule=paper",
            "tasks.timeout=adaptive",
            "pipeline.max_groups=4",
        ];
        let separate = swept(&written, &["schedule.name=frontier_group"]);
        assert_eq!(
            (&separate.stream, separate.planner.rule),
            (&Stream::default(), PlannerRule::Fixed)
        );
        assert_eq!(separate.tasks.timeout, Some(LimitMode::Adaptive));
        assert_eq!(separate.pipeline.max_groups, Some(4));
        let sync = swept(&written, &["schedule.name=sync"]);
        assert_eq!((&sync.stream, sync.planner.rule), (&Stream::default(), PlannerRule::Paper));
        assert_eq!((sync.tasks.timeout, sync.pipeline.max_groups), (None, None));
        let kept = swept(&written, &["schedule.name=tail_batching"]);
        assert_eq!(kept, raw(&[&written[..], &["schedule.name=tail_batching"]].concat()));
        for raw in [separate, sync, kept] {
            raw.reject_unused().expect("nothing is idle");
        }
    }

    #[test]
    fn conflicting_settings_of_the_job_itself_are_refused() {
        let placed = ["pipeline.placement=separate", "planner.rule=paper"];
        let error = swept(&placed, &["schedule.name=sync"]).reject_unused().expect_err("refused");
        assert!(error.to_string().starts_with("key `planner.rule`"), "{error}");
        let scored = ["pipeline.reward=after_rollout", "tasks.timeout=adaptive"];
        let error = swept(&scored, &["schedule.name=sync"]).reject_unused().expect_err("refused");
        assert!(error.to_string().starts_with("key `tasks.timeout`"), "{error}");
        let other = swept(&["schedule.name=sync", "stream.keep=0.25"], &["rollout.n=4"]);
        other.reject_unused().expect_err("the sweep did not bring it");
    }

    #[test]
    fn sharing_gpus_with_a_judge_requires_a_judge_on_them() {
        let sharing = "tasks.judge_sharing=time_slicing";
        raw(&["schedule.name=tail_batching", sharing]).reject_unused().expect("a colocated judge");
        for without in ["schedule.name=sync", "tasks.judge=0", "pipeline.reward=after_rollout"] {
            let error = raw(&["schedule.name=tail_batching", sharing, without])
                .reject_unused()
                .expect_err("no judge during the rollout");
            assert!(error.to_string().starts_with("key `tasks.judge_sharing`"), "{error}");
            let left = swept(&["schedule.name=tail_batching", sharing], &[without]);
            assert_eq!(left.tasks.judge_sharing, JudgeSharing::Mps);
        }
        let baseline = raw(&["schedule.name=tail_batching", sharing]).baseline();
        baseline.reject_unused().expect("the judge of `sync` has GPUs of its own");
    }

    /// Checks that the last setting of `written` is dropped in a sweep over `setting`, and refused in a job that sets both.
    fn check_unused(written: &[&str], setting: &str) {
        let kept = raw(&[&written[..written.len() - 1], &[setting]].concat());
        assert_eq!(swept(written, &[setting]), kept);
        let raw = raw(&[written, &[setting]].concat());
        let error = raw.reject_unused().expect_err("it has no effect").to_string();
        let (key, _) = written[written.len() - 1].split_once('=').expect("a setting");
        assert!(error.starts_with(&format!("key `{key}`")), "{error}");
    }

    #[test]
    fn a_shape_replaces_a_name() {
        let written = ["model.shape={name = \"own\"}", "model.name=Qwen3-8B"];
        let error = raw(&written).reject_unused().expect_err("it has no effect").to_string();
        assert!(error.starts_with("key `model.name`: expected no value"), "{error}");
        let by_name = swept(&written[..1], &written[1..]);
        assert_eq!(by_name.model, raw(&written[1..]).model);
        let by_shape = swept(&written[1..], &written[..1]);
        assert_eq!(by_shape.model, raw(&written[..1]).model);
    }

    #[test]
    fn a_swept_trigger_and_source_leave_the_keys_of_others() {
        let fixed = swept(&["stream.to=0.7", "stream.from=0.3"], &["stream.trigger=fixed"]);
        assert_eq!((fixed.stream.from, fixed.stream.to), (0.3, Stream::default().to));
        for trigger in ["never", "fixed", "predicted"] {
            let trigger = format!("stream.trigger={trigger}");
            check_unused(&["schedule.name=tail_batching", "stream.headroom=0.9"], &trigger);
        }
        for unused in ["stream.keep=0.25", "stream.kv_transfer_bandwidth=1e9"] {
            check_unused(&["schedule.name=tail_batching", unused], "stream.trigger=never");
        }
        let merged = ["stream.consolidate=true", "stream.kv_transfer_bandwidth=1e9"];
        let merged = raw(&[&merged[..], &["stream.trigger=never"]].concat());
        merged.reject_unused().expect("responses move when they are merged");
        let raw = swept(&["lengths.file=a.csv"], &["lengths.source=paper"]);
        assert_eq!(raw.lengths.file, None);
    }
}
