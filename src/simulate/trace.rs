//! Recorded lengths as a job has them.

use rollpacker_datasets::{Trace, TraceOptions};
use rollpacker_stages::model::tokenizer::Tokenizer;
use serde::Serialize;

use super::job::Job;
use super::raw::Lengths;
use crate::recipe::error::bound;

/// What the longest response of a job leaves of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cut {
    /// Files and column.
    pub trace: String,
    /// Responses that were recorded.
    pub responses: usize,
    /// `data.max_response_length`, tokens.
    pub max_response_length: u32,
    /// Responses that are longer, and end there.
    pub cut: usize,
}

impl Cut {
    /// Of a job with recorded lengths.
    #[must_use]
    pub fn of(job: &Job) -> Option<Self> {
        let trace = job.trace.as_ref()?;
        let max_response_length = job.raw.data.max_response_length;
        let longer = trace.rows.iter().filter(|row| row.tokens > max_response_length);
        Some(Self {
            trace: trace.source.to_string(),
            responses: trace.rows.len(),
            max_response_length,
            cut: longer.count(),
        })
    }

    /// As a sentence.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { trace, responses, max_response_length, cut } = self;
        match cut {
            0 => format!(
                "{trace}: {responses} responses, none longer than data.max_response_length = {max_response_length}."
            ),
            cut => format!(
                "{trace}: {cut} of {responses} responses are longer than data.max_response_length = {max_response_length}, and cut to it."
            ),
        }
    }
}

/// Reads the trace that a job names.
///
/// # Errors
/// If it names none, or the trace cannot be read.
pub(super) fn read_trace(lengths: &Lengths) -> anyhow::Result<Trace> {
    let expected = "a file or folder beside lengths.source = trace";
    let file = lengths.file.as_ref().ok_or_else(|| bound("lengths.file", expected, "nothing"))?;
    let tokenizer = lengths.tokenizer.as_deref().map(Tokenizer::from_folder).transpose()?;
    let count = tokenizer.map(|tokenizer| {
        move |text: &str| {
            tokenizer.encode(text).map(|ids| ids.len()).map_err(|error| error.to_string())
        }
    });
    Ok(Trace::read(
        file,
        &TraceOptions {
            length_column: lengths.length_column.clone(),
            prompt_column: lengths.prompt_column.clone(),
            count_tokens: count.as_ref().map(|count| count as _),
        },
    )?)
}
