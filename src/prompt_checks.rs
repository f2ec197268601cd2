//! Checks of the first prompts of a run for mistakes that training would not report.

use std::collections::HashSet;

use rollpacker_datasets::{Cursor, Dataset, Prompt};

use crate::prompts::{PromptError, PromptReader, chat};

/// The number of training prompts that are checked for unknown tokens and for chat markup.
const CHECKED: usize = 256;
/// The number of training and of validation prompts that are compared with each other.
const COMPARED: usize = 4096;
/// The share of unknown tokens, and of prompts with chat markup, from which a warning is given.
const BOUND: f64 = 0.01;

/// Text with which the chat templates of common models begin a message.
const MARKUP: [&str; 7] = [
    "<|im_start|>",
    "<|start_header_id|>",
    "<start_of_turn>",
    "<|user|>",
    "<|turn>",
    "[INST]",
    "<｜User｜>",
];

/// The advantage estimators that compare the responses of a group.
const GROUP_RELATIVE: [&str; 7] =
    ["grpo", "dr_grpo", "grpo_passk", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline"];

/// Returns a warning if groups of one response leave an estimator nothing to compare.
pub(crate) fn group_of_one(estimator: &str, responses: u32) -> Option<String> {
    (responses == 1 && GROUP_RELATIVE.contains(&estimator)).then(|| {
        format!(
            "warning: `rollout.n = 1` with `algorithm.adv_estimator = \"{estimator}\"`: the advantage of a response is then its score, without a \
             baseline; set `rollout.n` to at least 2, usually 8 or more"
        )
    })
}

/// Returns warnings about the training prompts that `reader` reads, and about the validation prompts.
///
/// # Errors
/// At the first prompt that cannot be used.
pub(crate) fn warnings(
    reader: &PromptReader,
    validation: Option<&Dataset>,
    applies_template: bool,
) -> Result<Vec<String>, PromptError> {
    let overlap = match validation {
        Some(validation) => overlap(&reader.dataset, validation)?,
        None => None,
    };
    let marked = if applies_template { marked(&reader.dataset)? } else { None };
    Ok(unknown_tokens(reader)?.into_iter().chain(marked).chain(overlap).collect())
}

fn unknown_tokens(reader: &PromptReader) -> Result<Option<String>, PromptError> {
    let Some((unknown, name)) = reader.encoder.tokenizer.unknown() else { return Ok(None) };
    let (mut all, mut found) = (0_usize, 0_usize);
    for ids in reader.first_prompts(CHECKED)? {
        let ids = ids?;
        all += ids.len();
        found += ids.iter().filter(|&&id| id == unknown).count();
    }
    let share = found as f64 / all.max(1) as f64;
    Ok((share > BOUND).then(|| {
        format!(
            "warning: {:.1} % of the tokens of the first prompts are `{name}`, the unknown token: the model does not see the text behind \
             them; use a model whose tokenizer knows these characters, or convert the prompts",
            100.0 * share
        )
    }))
}

fn marked(dataset: &Dataset) -> Result<Option<String>, PromptError> {
    let (mut all, mut found, mut example) = (0_usize, 0_usize, "");
    for prompt in first(dataset, CHECKED)? {
        all += 1;
        let messages = chat(&prompt?);
        let markup = MARKUP
            .into_iter()
            .find(|markup| messages.iter().any(|message| message.content.contains(markup)));
        if let Some(markup) = markup {
            (found, example) = (found + 1, markup);
        }
    }
    Ok((found as f64 > BOUND * all as f64).then(|| {
        format!(
            "warning: {found} of the first {all} prompts contain `{example}`, the markup of a chat template, and the template of the model is \
             applied to them again; set `data.apply_chat_template = false` to train on them as they are"
        )
    }))
}

fn overlap(training: &Dataset, validation: &Dataset) -> Result<Option<String>, PromptError> {
    let least = if validation.len() > COMPARED as u64 { "at least " } else { "" };
    let validation: HashSet<String> = first(validation, COMPARED)?
        .map(|prompt| prompt.map(|prompt| prompt.messages_json()))
        .collect::<Result<_, _>>()?;
    let (mut all, mut found) = (0_usize, 0_usize);
    for prompt in first(training, COMPARED)? {
        all += 1;
        found += usize::from(validation.contains(&prompt?.messages_json()));
    }
    Ok((found > 0).then(|| {
        format!(
            "warning: {least}{found} of the first {all} training prompts are validation prompts, too: validation scores do not show \
             what the model learned beyond them; remove them from `data.train_files`"
        )
    }))
}

/// Returns the first prompts of one epoch.
fn first(
    dataset: &Dataset,
    most: usize,
) -> Result<impl Iterator<Item = Result<Prompt, PromptError>>, PromptError> {
    let prompts = dataset.prompts(Cursor::default())?.until_epoch(1);
    Ok(prompts.take(most).map(|prompt| prompt.map_err(PromptError::from)))
}
