//! Traces of recorded lengths, as used by a job.

use rollpacker_dataflow::BoxError;
use rollpacker_datasets::{Trace, TraceOptions};
use rollpacker_simulated::rollout::lengths::{CorrelationEstimate, MIN_RECORDED_RESPONSES};
use serde::Serialize;

use super::raw::Lengths;
use crate::recipe::error::out_of_bounds;

/// A summary of the trace of a job: the number of its responses, how many of them are truncated, and what is assumed where it has no data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceSummary {
    /// A description of the trace: its files and its column of lengths.
    pub trace: String,
    /// The number of recorded responses.
    pub responses: usize,
    /// `data.max_response_length`, in tokens.
    pub max_response_length: u32,
    /// The number of responses that are longer than `max_response_length` and are truncated.
    pub cut: usize,
    /// The column of prompt lengths; `None` if prompt lengths are drawn from `lengths.population`.
    pub prompt_length_column: Option<String>,
    /// The assumed correlation of the lengths of responses to the same prompt; `None` if the trace has enough responses to determine it.
    pub assumed: Option<CorrelationEstimate>,
}

impl TraceSummary {
    /// Returns a sentence with the number of responses and the number of them that are truncated.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { trace, responses, max_response_length, cut, .. } = self;
        match cut {
            0 => format!(
                "{trace}: {responses} responses, none longer than data.max_response_length = {max_response_length}."
            ),
            cut => format!(
                "{trace}: {cut} of {responses} responses are longer than data.max_response_length = {max_response_length} and are truncated."
            ),
        }
    }

    /// Returns a warning about what the trace does not determine and what is assumed instead; `None` if nothing is assumed.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let correlation_estimate = self.assumed?;
        let CorrelationEstimate { estimate, low, high, .. } = correlation_estimate;
        let estimated = match estimate {
            Some(estimate) => format!("the trace gives a correlation of {estimate:.2}"),
            None => {
                "the trace does not determine how much the lengths of responses to one prompt differ"
                    .to_owned()
            }
        };
        let assumed = if low == high {
            format!("a correlation of {low:.2} is assumed")
        } else {
            format!(
                "figures are shown for correlations of {low:.2}{} and {high:.2}; set lengths.correlation to choose one",
                if low == 0.0 { " (independent lengths)" } else { "" },
            )
        };
        Some(format!(
            "{}: {}, and {estimated}. Ranks of lengths follow a Gaussian copula within a prompt: {assumed}.",
            self.trace,
            recorded(correlation_estimate),
        ))
    }
}

/// Returns the estimate, narrowed to the correlation that the job sets if it sets one.
pub(super) fn with_correlation(
    correlation_estimate: CorrelationEstimate,
    correlation: Option<f64>,
) -> CorrelationEstimate {
    correlation.map_or(correlation_estimate, |set| CorrelationEstimate {
        low: set,
        high: set,
        ..correlation_estimate
    })
}

/// Describes the number of responses to each prompt in the trace.
fn recorded(
    CorrelationEstimate { prompts, responses_per_prompt, .. }: CorrelationEstimate,
) -> String {
    match prompts {
        0 => "no prompt is recorded".to_owned(),
        _ => format!(
            "{prompts} prompts have {responses_per_prompt:.1} responses each on average, and some have fewer than {MIN_RECORDED_RESPONSES}"
        ),
    }
}

/// A trace with the estimate of its within-prompt correlation. It is read once and shared by the configurations of a sweep that use it.
#[derive(Clone, Debug)]
pub struct SharedTrace {
    /// The recorded responses.
    pub trace: Trace,
    /// The interval of the within-prompt correlation; `None` if the trace has enough responses to each prompt to determine it.
    pub correlation_estimate: Option<CorrelationEstimate>,
}

impl SharedTrace {
    /// Estimates the within-prompt correlation of a trace from its complete responses, or from all responses if none is complete. Dropped
    /// responses are left out, because all dropped responses to a prompt are cut at the same time, which would raise the estimate.
    #[must_use]
    pub fn of(trace: Trace) -> Self {
        let has_whole = trace.rows.iter().any(|row| row.is_complete);
        let known = trace.rows.iter().filter(|row| row.is_complete || !has_whole);
        let responses: Vec<_> = known.map(|row| (row.prompt, row.tokens)).collect();
        Self { correlation_estimate: CorrelationEstimate::of(&responses), trace }
    }
}

/// Reads the trace of a job.
///
/// # Errors
/// If the job names no trace, or if the trace or its tokenizer cannot be read.
pub(super) fn read_trace(lengths: &Lengths) -> anyhow::Result<SharedTrace> {
    let expected = "a file or folder with lengths.source = trace";
    let file =
        lengths.file.as_ref().ok_or_else(|| out_of_bounds("lengths.file", expected, "nothing"))?;
    let count = lengths.tokenizer.as_deref().map(token_counter).transpose()?;
    let options = TraceOptions {
        length_column: lengths.length_column.clone(),
        prompt_column: lengths.prompt_column.clone(),
        prompt_length_column: lengths.prompt_length_column.clone(),
        count_tokens: count.as_deref(),
    };
    Ok(SharedTrace::of(Trace::read(file, &options)?))
}

type TokenCounter = Box<dyn Fn(&str) -> Result<usize, BoxError>>;

/// Returns a function that counts tokens with the tokenizer of a model folder.
#[cfg(feature = "tokenizer")]
fn token_counter(folder: &std::path::Path) -> anyhow::Result<TokenCounter> {
    let tokenizer = rollpacker_model::Tokenizer::from_folder(folder)?;
    Ok(Box::new(move |text| Ok(tokenizer.encode(text)?.len())))
}

#[cfg(not(feature = "tokenizer"))]
fn token_counter(_: &std::path::Path) -> anyhow::Result<TokenCounter> {
    anyhow::bail!(
        "key `lengths.tokenizer` needs the feature `tokenizer`, which this program was built without"
    )
}
