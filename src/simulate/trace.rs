//! Recorded lengths as a job has them.

use rollpacker_datasets::{Trace, TraceOptions};
use rollpacker_stages::model::tokenizer::Tokenizer;
use rollpacker_stages::rollout::simulated::lengths::{ENOUGH, Likeness};
use serde::Serialize;

use super::job::Job;
use super::raw::Lengths;
use crate::recipe::error::bound;

/// What a job has of a trace, and what it assumes beside it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceSummary {
    /// Files and column.
    pub trace: String,
    /// Responses that were recorded.
    pub responses: usize,
    /// `data.max_response_length`, tokens.
    pub max_response_length: u32,
    /// Responses that are longer, and end there.
    pub cut: usize,
    /// The column of prompt lengths; none: they are drawn from `lengths.population`.
    pub prompt_length_column: Option<String>,
    /// What is assumed of the responses to a prompt; none: nothing, there are enough of them.
    pub assumed: Option<Likeness>,
}

impl TraceSummary {
    /// Of a job with recorded lengths.
    #[must_use]
    pub fn of(job: &Job) -> Option<Self> {
        let Recording { trace, likeness } = &**job.trace.as_ref()?;
        let max_response_length = job.raw.data.max_response_length;
        let longer = trace.rows.iter().filter(|row| row.tokens > max_response_length);
        Some(Self {
            trace: trace.source.to_string(),
            responses: trace.rows.len(),
            max_response_length,
            cut: longer.count(),
            prompt_length_column: trace.source.prompt_length_column.clone(),
            assumed: likeness.map(|likeness| set(likeness, job.raw.lengths.correlation)),
        })
    }

    /// As a sentence.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { trace, responses, max_response_length, cut, .. } = self;
        match cut {
            0 => format!(
                "{trace}: {responses} responses, none longer than data.max_response_length = {max_response_length}."
            ),
            cut => format!(
                "{trace}: {cut} of {responses} responses are longer than data.max_response_length = {max_response_length}, and cut to it."
            ),
        }
    }

    /// What the trace does not tell, and what is assumed in its place.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let likeness = self.assumed?;
        let Likeness { estimate, low, high, .. } = likeness;
        let told = match estimate {
            Some(estimate) => format!("the trace gives a correlation of {estimate:.2}"),
            None => {
                "the trace does not tell how much the lengths of responses to one prompt differ"
                    .to_owned()
            }
        };
        let assumed = if low == high {
            format!("a correlation of {low:.2} is assumed")
        } else {
            format!(
                "figures are given for a correlation of {low:.2}{} and of {high:.2}; lengths.correlation sets one",
                if low == 0.0 { " (independent lengths)" } else { "" },
            )
        };
        Some(format!(
            "{}: {}, and {told}. Ranks of lengths follow a Gaussian copula within a prompt: {assumed}.",
            self.trace,
            recorded(likeness),
        ))
    }
}

/// What is assumed where a job may set the correlation.
fn set(likeness: Likeness, correlation: Option<f64>) -> Likeness {
    correlation.map_or(likeness, |set| Likeness { low: set, high: set, ..likeness })
}

/// How many responses a trace has to each prompt.
fn recorded(Likeness { prompts, responses_per_prompt, .. }: Likeness) -> String {
    match prompts {
        0 => "no prompt is recorded".to_owned(),
        _ => format!(
            "{prompts} prompts have {responses_per_prompt:.1} responses each on average, not all of them {ENOUGH}"
        ),
    }
}

/// A trace that is read once for all configurations of a sweep.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The recorded responses.
    pub trace: Trace,
    /// What they leave open of how alike the responses to a prompt are.
    pub likeness: Option<Likeness>,
}

impl Recording {
    /// Takes what a trace leaves open from its rows.
    #[must_use]
    pub fn of(trace: Trace) -> Self {
        let responses: Vec<_> = trace.rows.iter().map(|row| (row.prompt, row.tokens)).collect();
        Self { likeness: Likeness::of(&responses), trace }
    }
}

/// Reads the trace that a job names.
///
/// # Errors
/// If it names none, or the trace cannot be read.
pub(super) fn read_trace(lengths: &Lengths) -> anyhow::Result<Recording> {
    let expected = "a file or folder beside lengths.source = trace";
    let file = lengths.file.as_ref().ok_or_else(|| bound("lengths.file", expected, "nothing"))?;
    let tokenizer = lengths.tokenizer.as_deref().map(Tokenizer::from_folder).transpose()?;
    let count = tokenizer.map(|tokenizer| {
        move |text: &str| {
            tokenizer.encode(text).map(|ids| ids.len()).map_err(|error| error.to_string())
        }
    });
    let options = TraceOptions {
        length_column: lengths.length_column.clone(),
        prompt_column: lengths.prompt_column.clone(),
        prompt_length_column: lengths.prompt_length_column.clone(),
        count_tokens: count.as_ref().map(|count| count as _),
    };
    Ok(Recording::of(Trace::read(file, &options)?))
}
