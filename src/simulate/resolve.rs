//! Resolves jobs: looks up names, fills in defaults, and checks everything on which a run could fail at its start.

use std::path::Path;
use std::sync::Arc;

use rollpacker_simulated::cluster::{Calibration, Hardware, ModelShape};
use rollpacker_simulated::rollout::lengths::MIN_RECORDED_RESPONSES;
use rollpacker_stages::wrong_value::one_of;
use toml::Value;

use super::job::Job;
use super::outcome::GanttStep;
use super::overrides::read_table;
use super::placement::SimulatedPlacement;
use super::raw::{Layout, RawJob, Source};
use super::trace::{SharedTrace, read_trace};
use super::{calibration_bounds, layout, placement, population};
use crate::placements::Placements;
use crate::recipe::error::out_of_bounds;
use crate::recipe::schedule::Schedules;
use crate::recipe::value::read_value;
use crate::recipe::{RecipeError, schedule};

impl Job {
    /// Reads and checks a job.
    ///
    /// # Errors
    /// If the file cannot be read or a setting is invalid; the error names the key, or the file, row and column of the trace.
    pub fn read(path: &Path, overrides: &[String]) -> anyhow::Result<Self> {
        Self::read_with(path, overrides, &Schedules::default(), &Placements::default())
    }

    /// Reads and checks a job that may name one of `schedules` or one of `placements`.
    ///
    /// # Errors
    /// In the same cases as [`read`](Self::read).
    pub fn read_with(
        path: &Path,
        overrides: &[String],
        schedules: &Schedules,
        placements: &Placements,
    ) -> anyhow::Result<Self> {
        let table = read_table(path, overrides)?;
        let mut raw: RawJob = crate::recipe::from_table(table)?;
        raw.schedule.schedules = schedules.clone();
        raw.pipeline.placements = placements.clone();
        Self::resolve(raw, None)
    }

    /// Checks a job, and resolves its names and defaults. Reads the trace that the job names unless the caller passes one that was read
    /// before. Ignores `trace` if `lengths.source` is not `trace`.
    ///
    /// # Errors
    /// In the same cases as [`read`](Self::read).
    pub fn resolve(raw: RawJob, trace: Option<Arc<SharedTrace>>) -> anyhow::Result<Self> {
        raw.check()?;
        raw.reject_unused()?;
        let placement = raw.placement()?;
        let trace = match (raw.lengths.source, trace) {
            (Source::Trace, None) => Some(Arc::new(read_trace(&raw.lengths)?)),
            (Source::Trace, read) => read,
            _ => None,
        };
        if let (Some(recording), Some(correlation)) = (&trace, raw.lengths.correlation)
            && recording.correlation_estimate.is_none()
        {
            let expected = format!(
                "no value: the trace has at least {MIN_RECORDED_RESPONSES} responses to each prompt"
            );
            return Err(out_of_bounds("lengths.correlation", expected, correlation).into());
        }
        let recorded = trace.as_deref().map(|recording| &recording.trace);
        let longest_prompt = population::longest_prompt(&raw.lengths, recorded)?;
        let mut job = Self {
            hardware: hardware(&raw)?,
            model: model(&raw)?,
            calibration: calibration(&raw)?,
            scoring: raw.scoring(),
            delivery: raw.delivery()?,
            training_gpus: training_gpus(&raw, &placement)?,
            placement,
            training_layout: layout::written(&raw.training),
            dispatch: raw.dispatch(),
            judge: raw.judge(),
            timeout: raw.timeout(),
            trace,
            longest_prompt,
            charted: GanttStep::None,
            traced_steps: 0,
            raw,
        };
        if job.raw.training.layout == Layout::Planned {
            job.training_layout = layout::planned(&job);
        }
        schedule::check_scoring(&*job.schedule()?, job.scoring)?;
        population::check(&job)?;
        placement::policy(&job)?;
        layout::check(&job)?;
        Ok(job)
    }
}

fn training_gpus(raw: &RawJob, placement: &SimulatedPlacement) -> Result<u32, RecipeError> {
    let takes_turns =
        matches!(placement, SimulatedPlacement::Colocated | SimulatedPlacement::Stream);
    if raw.pipeline.staleness > 0 && takes_turns {
        let expected =
            "0, unless pipeline.placement = separate: overlapping steps need separate GPUs";
        return Err(out_of_bounds("pipeline.staleness", expected, raw.pipeline.staleness));
    }
    let (key, gpus) = ("pipeline.training_gpus", raw.cluster.gpus);
    if *placement != SimulatedPlacement::Separate {
        let expected = "pipeline.placement = separate with it";
        return raw
            .pipeline
            .training_gpus
            .map_or(Ok(gpus), |found| Err(out_of_bounds(key, expected, found)));
    }
    let (instance, replica) = (raw.rollout.tensor_parallel, raw.training.replica());
    let fits = |training: &u32| {
        *training > 0
            && *training < gpus
            && u64::from(*training).is_multiple_of(replica)
            && (gpus - training).is_multiple_of(instance)
    };
    let half = gpus / 2;
    let default = || (1..=half).rev().find(fits).or_else(|| (half..gpus).find(fits));
    let training = raw.pipeline.training_gpus.or_else(default).unwrap_or(half);
    if fits(&training) {
        return Ok(training);
    }
    let expected = format!(
        "more than 0 and less than cluster.gpus = {gpus}, a multiple of {replica} (a replica) that leaves a multiple of {instance} (an instance)"
    );
    Err(out_of_bounds(key, expected, training))
}

fn hardware(raw: &RawJob) -> Result<Hardware, RecipeError> {
    let key = "cluster.hardware";
    let mut hardware: Hardware = match &raw.cluster.hardware {
        Value::String(name) => Hardware::built_in(name)
            .ok_or_else(|| unknown(key, name, &Hardware::names(), "a table, or "))?,
        table => read_value(key, table.clone())?,
    };
    calibration_bounds::check_hardware(&hardware)?;
    if let Some(gpus) = raw.cluster.gpus_per_server {
        hardware.devices_per_server = gpus;
    }
    let groups = [
        ("rollout.tensor_parallel", raw.rollout.tensor_parallel),
        ("training.tensor_parallel", raw.training.tensor_parallel),
    ];
    for (key, tensor_parallel) in groups {
        if tensor_parallel > hardware.devices_per_server {
            let expected = format!(
                "at most {}, the GPUs of a server (cluster.gpus_per_server or cluster.hardware.devices_per_server)",
                hardware.devices_per_server
            );
            return Err(out_of_bounds(key, expected, tensor_parallel));
        }
    }
    Ok(hardware)
}

fn model(raw: &RawJob) -> Result<ModelShape, RecipeError> {
    match &raw.model.shape {
        Some(shape) => {
            let model = read_value("model.shape", Value::Table(shape.clone()))?;
            calibration_bounds::check_model(&model).map(|()| model)
        }
        None => ModelShape::built_in(&raw.model.name)
            .ok_or_else(|| unknown("model.name", &raw.model.name, &ModelShape::names(), "")),
    }
}

fn calibration(raw: &RawJob) -> Result<Calibration, RecipeError> {
    let mut calibration: Calibration = match &raw.calibration {
        Some(table) => read_value("calibration", Value::Table(table.clone()))?,
        None => Calibration::default(),
    };
    if let Some(share) = raw.rollout.gpu_memory_utilization {
        calibration.memory_share = share;
    }
    calibration_bounds::check_calibration(&calibration)?;
    let controllers = f64::from(raw.cluster.controllers);
    for serial in [
        &mut calibration.dispatch_interval,
        &mut calibration.scoring_interval,
        &mut calibration.padding_per_token,
    ] {
        *serial /= controllers;
    }
    Ok(calibration)
}

/// Returns the error for an unknown name, with the nearest known name as a hint. `alternative` precedes the names in the message and says
/// what else the key accepts; it is empty if the key accepts only names.
fn unknown(
    key: &'static str,
    name: &str,
    names: &[&'static str],
    alternative: &str,
) -> RecipeError {
    out_of_bounds(key, format!("{alternative}{}", one_of(names, name)), format!("`{name}`"))
}
