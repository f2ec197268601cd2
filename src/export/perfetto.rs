//! Traces of Perfetto: the responses and the stages of the steps of a run.

use std::io::{self, BufWriter, ErrorKind};
use std::path::Path;

use anyhow::Context;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_files::{Inputs, NewFile};
use serde_json::json;

use super::rollouts;
use super::step_range::StepRange;
use crate::run_files;
use crate::run_reader::{ReadError, StepMetrics};
use crate::show::RunRecord;
use crate::timeline::chrome::ChromeTrace;
use crate::timeline::continuations::Continuations;
use crate::timeline::{Interval, TimelineResponse, TimelineStep};

/// The counts of a trace that was written.
#[derive(Debug)]
pub(crate) struct TraceFile {
    pub(crate) steps: usize,
    pub(crate) responses: u64,
    /// The number of steps in the trace that have no rollouts in the run folder.
    pub(crate) without_rollouts: usize,
}

/// Writes the steps of a run that `range` selects to `path`.
///
/// # Errors
/// If no step is selected, the steps have no times, rollouts cannot be read, or the file cannot be written or would replace an input.
pub(crate) fn write(run: &RunRecord, range: StepRange, path: &Path) -> anyhow::Result<TraceFile> {
    let selected: Vec<_> = run.training_steps().filter(|line| range.contains(line.step)).collect();
    if selected.is_empty() {
        let found = run.steps;
        let message = if found == 0 {
            format!("the run in {} has no complete step yet", run.folder.display())
        } else {
            format!("option `--steps`: expected steps of the run, which has {found}, found {range}")
        };
        return Err(ReadError::NoResponses(message).into());
    }
    let files = selected.iter().map(|line| run_files::rollouts(&run.folder, line.step));
    Inputs::of(files.chain([run.metrics_file()])).check_output(path)?;
    let origins = origins(run, &selected)?;
    let start = origins.first().copied().unwrap_or(0.0);
    let failed = || format!("cannot write {}", path.display());
    let facts = json!({"run": run.folder, "start_unix_s": start});
    let out = BufWriter::new(NewFile::create(path)?);
    let mut trace = ChromeTrace::new(out, &facts).with_context(failed)?;
    let mut tracks = trace.run("");
    let mut without_rollouts = 0;
    let continuations = continuations(run, range)?;
    for (line, origin) in selected.iter().zip(origins) {
        let mut step = step(run, line, Nanos::from_secs_f64(origin - start))?;
        continuations.complete(&mut step);
        without_rollouts += usize::from(step.responses.is_empty());
        trace.step(&mut tracks, &step).with_context(failed)?;
    }
    let responses = trace.responses();
    let out =
        trace.finish().and_then(|out| out.into_inner().map_err(io::IntoInnerError::into_error));
    out.with_context(failed)?.finish()?;
    Ok(TraceFile { steps: selected.len(), responses, without_rollouts })
}

/// Returns the time at which the clock of each step showed 0, in seconds since 1970.
///
/// A resumed run starts a new clock, after its previous step was reported. An estimated start before that report therefore belongs to the
/// same clock. All steps of one clock share its first estimate, because the delay between the end of a step and its report varies.
fn origins(run: &RunRecord, lines: &[&StepMetrics]) -> Result<Vec<f64>, ReadError> {
    let mut origins: Vec<f64> = Vec::with_capacity(lines.len());
    let mut previous = f64::NEG_INFINITY;
    for line in lines {
        let Some((reported, closed)) = line.unix_s.zip(line.clock_s) else {
            return Err(without_times(run, line));
        };
        let own = reported - closed;
        let last = origins.last().copied().filter(|_| own < previous);
        origins.push(last.unwrap_or(own));
        previous = reported;
    }
    Ok(origins)
}

fn without_times(run: &RunRecord, line: &StepMetrics) -> ReadError {
    ReadError::File {
        path: format!("{}, step {}", run.metrics_file().display(), line.step),
        reason: "expected the fields `unix_s` and `clock_s`, which earlier versions did not write"
            .to_owned(),
    }
}

/// Returns the scores of responses that steps in `range` sampled and a later step trained on. The later step may be outside of `range`.
fn continuations(run: &RunRecord, range: StepRange) -> Result<Continuations, ReadError> {
    let mut continuations = Continuations::default();
    for line in run.training_steps().skip_while(|line| !range.contains(line.step)) {
        if !range.contains(line.step) && !continuations.has_open() {
            break;
        }
        let responses = responses(run, line.step)?;
        continuations.observe(line.step, &responses, range.contains(line.step));
    }
    Ok(continuations)
}

/// Reads the responses of a step. Returns an empty list if the step has no file of rollouts.
fn responses(run: &RunRecord, step: u64) -> Result<Vec<TimelineResponse>, ReadError> {
    let path = run_files::rollouts(&run.folder, step);
    match path.try_exists() {
        Ok(true) => rollouts::read(&run.folder, step),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(ReadError::file(&path)(&error)),
        _ => Ok(Vec::new()),
    }
}

/// Reads a step. `origin` is the time in the trace at which the clock of the step showed 0.
fn step(run: &RunRecord, line: &StepMetrics, origin: Nanos) -> Result<TimelineStep, ReadError> {
    let mut responses = responses(run, line.step)?;
    let shift = |interval: &mut Interval| {
        interval.0.0 += origin.0;
        interval.1.0 += origin.0;
    };
    for response in &mut responses {
        response.rollout.iter_mut().chain(&mut response.scoring).for_each(shift);
    }
    let closed = Nanos::from_secs_f64(line.clock_s.unwrap_or(0.0));
    let step = TimelineStep {
        step: line.step,
        round: line.round.clone(),
        responses,
        ..TimelineStep::default()
    };
    Ok(step.with_stages(Nanos(closed.0 + origin.0), |name| line.get(name)))
}
