//! Export of the timelines of a sweep in the Chrome trace format, which Perfetto reads.

use std::io::{self, BufWriter};
use std::path::Path;

use anyhow::Context;
use rollpacker_files::NewFile;
use serde_json::json;

use super::configuration::ConfigurationRuns;
use crate::timeline::chrome::ChromeTrace;

/// Writes the recorded timeline of the first seed of each configuration to a file, with the job's `title` as metadata. The configurations
/// are side by side: the virtual time of each begins at 0.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, title: &str, runs: &[ConfigurationRuns]) -> anyhow::Result<()> {
    let out = BufWriter::new(NewFile::create(path)?);
    let out = trace(out, title, runs);
    let file = out.and_then(|out| out.into_inner().map_err(io::IntoInnerError::into_error));
    Ok(file.with_context(|| format!("cannot write {}", path.display()))?.finish()?)
}

fn trace<W: io::Write>(out: W, title: &str, runs: &[ConfigurationRuns]) -> io::Result<W> {
    let mut trace = ChromeTrace::new(out, &json!({"job": title}))?;
    for run in runs {
        let label = if runs.len() == 1 { "" } else { &run.label };
        let mut tracks = trace.run(label);
        let steps = run.outcomes.iter().flat_map(|outcome| &outcome.timeline);
        steps.into_iter().try_for_each(|step| trace.step(&mut tracks, step))?;
    }
    trace.finish()
}
