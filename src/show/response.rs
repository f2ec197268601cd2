//! Responses of a step, from the rollouts of a run folder.

use std::path::Path;

use arrow_array::types::{Float32Type, Float64Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::draw::Draw;
use serde::Serialize;

use crate::run_files::ROLLOUTS_FOLDER;
use crate::run_reader::{self, ReadError, Rollouts, dialogue, rollout_steps};

/// The responses to show, as the options of `rollpacker show` select them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponsePick {
    /// The step, from 1; `None` selects the last step with rollouts.
    pub(crate) step: Option<u64>,
    /// The prompt whose responses are all selected, in the order of their samples; `None` selects the best, worst and random responses.
    pub(crate) prompt: Option<u64>,
    /// The maximum number of best, of worst and of random responses.
    pub(crate) count: usize,
}

/// A response with its reward.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ShownResponse {
    /// The reason of the choice: `best`, `worst`, `random` or `prompt`.
    pub(crate) pick: &'static str,
    /// The id of the prompt in the run.
    pub(crate) prompt_id: u64,
    /// The index of the response in its group, from 0.
    pub(crate) sample: u32,
    pub(crate) data_source: Option<String>,
    /// The messages of the prompt, each with its role; `None` if the rollouts do not contain them.
    pub(crate) prompt: Option<String>,
    /// The reference answer; `None` if the prompt has none.
    pub(crate) ground_truth: Option<String>,
    pub(crate) text: String,
    /// The length of the response in tokens.
    pub(crate) tokens: u32,
    pub(crate) finish_reason: String,
    /// The score; `None` for a response that was not trained on.
    pub(crate) score: Option<f64>,
    /// The mean advantage of the tokens; `None` if the response has no advantages.
    pub(crate) advantage: Option<f64>,
    /// The components of the score, as JSON; `None` if there are none.
    pub(crate) components: Option<String>,
    /// The labels of the reward, as JSON; `None` if there are none.
    pub(crate) labels: Option<String>,
    /// The reason why the score, or a part of it, could not be computed; `None` if there was no error or the response was not trained on.
    pub(crate) reward_error: Option<String>,
}

const COLUMNS: [&str; 13] = [
    column::PROMPT_ID,
    column::SAMPLE,
    column::DATA_SOURCE,
    column::MESSAGES,
    column::GROUND_TRUTH,
    column::RESPONSE_TEXT,
    column::RESPONSE_LENGTH,
    column::FINISH_REASON,
    column::SCORE,
    column::ADVANTAGES,
    column::COMPONENTS,
    column::LABELS,
    column::REWARD_ERROR,
];

/// Returns the step whose responses are shown; `None` if the run wrote no rollouts and neither a step nor a prompt is requested.
///
/// # Errors
/// If the requested step has no rollouts, or a prompt is requested and the run wrote no rollouts.
pub(super) fn step_of(folder: &Path, pick: &ResponsePick) -> Result<Option<u64>, ReadError> {
    let steps = rollout_steps(folder);
    let requested = pick.step.or_else(|| steps.last().copied());
    match requested {
        Some(step) if steps.binary_search(&step).is_ok() => Ok(Some(step)),
        None if pick.prompt.is_none() => Ok(None),
        _ => Err(ReadError::NoResponses(no_responses_text(folder, pick.step, &steps))),
    }
}

fn no_responses_text(folder: &Path, step: Option<u64>, steps: &[u64]) -> String {
    let option = if step.is_some() { "--step" } else { "--prompt" };
    let requested = step.map_or_else(String::new, |step| format!(" of step {step}"));
    let found = match (steps.first(), steps.last()) {
        (Some(first), Some(last)) => format!("found steps from {first} to {last}"),
        _ => "found none; `trainer.write_rollouts` writes them".to_owned(),
    };
    let folder = folder.join(ROLLOUTS_FOLDER);
    format!("option `{option}`: expected rollouts{requested} in {}, {found}", folder.display())
}

/// Reads the selected responses of a step.
///
/// # Errors
/// If the file cannot be read, a column is missing, or the selected prompt has no responses in the step.
pub(super) fn read(
    folder: &Path,
    step: u64,
    pick: &ResponsePick,
) -> Result<Vec<ShownResponse>, ReadError> {
    let Some(prompt) = pick.prompt else {
        let rows = Rollouts::read(folder, step, &COLUMNS)?;
        return Ok(pick_responses(responses(&rows)?, step, pick.count));
    };
    let rows = Rollouts::of_prompt(folder, step, &COLUMNS, prompt)?;
    let mut own = responses(&rows)?;
    own.sort_by_key(|one| one.sample);
    if own.is_empty() {
        let text = format!(
            "option `--prompt`: expected a prompt with responses in {}, found {prompt}",
            rows.path().display()
        );
        return Err(ReadError::NoResponses(text));
    }
    Ok(own)
}

fn responses(rows: &Rollouts) -> Result<Vec<ShownResponse>, ReadError> {
    (0..rows.len()).map(|row| response(rows, row)).collect()
}

fn response(rows: &Rollouts, row: usize) -> Result<ShownResponse, ReadError> {
    let text = |name: &str| Ok(run_reader::text(rows.texts(name)?, row).map(str::to_owned));
    let number = |name: &str| Ok(rows.numbers::<UInt32Type>(name)?.value(row));
    let empty = |json: Option<String>| json.filter(|json| json != "{}" && !json.is_empty());
    Ok(ShownResponse {
        pick: "prompt",
        prompt_id: rows.numbers::<UInt64Type>(column::PROMPT_ID)?.value(row),
        sample: number(column::SAMPLE)?,
        data_source: text(column::DATA_SOURCE)?,
        prompt: text(column::MESSAGES)?.map(|messages| dialogue(&messages)),
        ground_truth: text(column::GROUND_TRUTH)?,
        text: text(column::RESPONSE_TEXT)?.unwrap_or_default(),
        tokens: number(column::RESPONSE_LENGTH)?,
        finish_reason: text(column::FINISH_REASON)?.unwrap_or_default(),
        score: run_reader::number(rows.numbers::<Float64Type>(column::SCORE)?, row),
        advantage: rows.list::<Float32Type>(column::ADVANTAGES, row)?.as_deref().and_then(mean),
        components: empty(text(column::COMPONENTS)?),
        labels: empty(text(column::LABELS)?),
        reward_error: text(column::REWARD_ERROR)?,
    })
}

/// Returns the mean; `None` for no values.
fn mean(values: &[f32]) -> Option<f64> {
    let sum: f64 = values.iter().copied().map(f64::from).sum();
    (!values.is_empty()).then(|| sum / values.len() as f64)
}

/// Returns the best responses with a score, then the worst, then random ones: up to `count` of each, and at most a third of the responses
/// with a score, rounded up. No response occurs twice.
fn pick_responses(all: Vec<ShownResponse>, step: u64, count: usize) -> Vec<ShownResponse> {
    let mut scored: Vec<_> = all.into_iter().filter(|one| one.score.is_some()).collect();
    let order = |one: &ShownResponse, other: &ShownResponse| {
        let score = |own: &ShownResponse| own.score.unwrap_or(f64::NEG_INFINITY);
        let id = (one.prompt_id, one.sample).cmp(&(other.prompt_id, other.sample));
        score(other).total_cmp(&score(one)).then(id)
    };
    scored.sort_by(order);
    let count = count.min(scored.len().div_ceil(3));
    let take = |from: &mut Vec<ShownResponse>, at: usize, pick: &'static str| {
        (at < from.len()).then(|| ShownResponse { pick, ..from.remove(at) })
    };
    let mut picked = Vec::new();
    picked.extend((0..count).filter_map(|_| take(&mut scored, 0, "best")));
    let worst: Vec<_> = (0..count)
        .filter_map(|_| {
            let last = scored.len().checked_sub(1)?;
            take(&mut scored, last, "worst")
        })
        .collect();
    picked.extend(worst);
    // The draw of a response is keyed by step and id, so that a step has the same random responses at each call.
    let drawn = |one: &ShownResponse| {
        let id = SampleId { step: Step(step), prompt: PromptId(one.prompt_id), sample: one.sample };
        Draw::new(0).of_sample(id).uniform()
    };
    scored.sort_by(|one, other| drawn(one).total_cmp(&drawn(other)));
    picked.extend((0..count).filter_map(|_| take(&mut scored, 0, "random")));
    picked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(sample: u32, score: f64) -> ShownResponse {
        ShownResponse {
            pick: "prompt",
            prompt_id: 0,
            sample,
            data_source: None,
            prompt: None,
            ground_truth: None,
            text: String::new(),
            tokens: 0,
            finish_reason: "stop".to_owned(),
            score: Some(score),
            advantage: None,
            components: None,
            labels: None,
            reward_error: None,
        }
    }

    #[test]
    fn best_and_worst_come_first_and_none_twice() {
        let all: Vec<_> = (0..9).map(|sample| scored(sample, f64::from(sample))).collect();
        let picked = pick_responses(all, 1, 3);
        let of = |pick: &str| {
            let own = picked.iter().filter(|one| one.pick == pick);
            own.map(|one| one.sample).collect::<Vec<_>>()
        };
        assert_eq!((of("best"), of("worst")), (vec![8, 7, 6], vec![0, 1, 2]));
        let mut random = of("random");
        random.sort_unstable();
        assert_eq!(random, [3, 4, 5]);
    }

    #[test]
    fn few_responses_are_shared() {
        assert_eq!(pick_responses(vec![scored(0, 1.0)], 1, 3).len(), 1);
        assert_eq!(pick_responses(vec![ShownResponse { score: None, ..scored(0, 1.0) }], 1, 3), []);
    }
}
