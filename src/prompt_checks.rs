//! Checks of the first prompts of a run for mistakes that training would not report.

use std::collections::{BTreeMap, HashSet};

use rollpacker_datasets::{Cursor, Dataset, Prompt};

use crate::code_list::code_list;
use crate::prompts::{PromptError, PromptReader, chat_messages};

/// The maximum number of training prompts that are checked for unknown tokens and for chat markup.
const MAX_CHECKED_PROMPTS: usize = 256;
/// The maximum number of training prompts, and of validation prompts, that are compared with each other.
const MAX_COMPARED_PROMPTS: usize = 4096;
/// The share of unknown tokens, or of prompts with chat markup, above which a warning is returned.
const WARNING_SHARE: f64 = 0.01;

/// The maximum number of domains that a message names.
pub(crate) const MAX_NAMED_DOMAINS: usize = 10;

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

/// Returns a warning if `responses` is 1 and the estimator compares the responses of a group.
pub(crate) fn single_response_warning(estimator: &str, responses: u32) -> Option<String> {
    (responses == 1 && GROUP_RELATIVE.contains(&estimator)).then(|| {
        format!(
            "warning: `rollout.n = 1` with `algorithm.adv_estimator = \"{estimator}\"`: the advantage of a response is then its score, without a \
             baseline; set `rollout.n` to at least 2, usually 8 or more"
        )
    })
}

/// Returns a warning if `trainer.test_freq`, the number of steps between two validations, is set without validation data.
pub(crate) fn no_validation_data_warning(test_freq: u64, has_data: bool) -> Option<String> {
    (test_freq > 0 && !has_data).then(|| {
        format!(
            "warning: `trainer.test_freq = {test_freq}` without `data.val_files`: the run validates no policy; set `data.val_files`, or \
             leave `trainer.test_freq` out"
        )
    })
}

/// Returns warnings about the first training prompts: unknown tokens, chat markup (checked if `applies_template`), prompts that end with a
/// message of the assistant, and prompts that are also prompts of `validation`. `None` skips the last check.
///
/// # Errors
/// If a dataset cannot be read, a checked prompt cannot be used, or every training prompt is too long.
pub(crate) fn warnings(
    reader: &PromptReader,
    validation: Option<&Dataset>,
    applies_template: bool,
) -> Result<Vec<String>, PromptError> {
    let overlap = match validation {
        Some(validation) => overlap_warning(&reader.dataset, validation)?,
        None => None,
    };
    let marked = if applies_template { markup_warning(&reader.dataset)? } else { None };
    let answered = assistant_warning(&reader.dataset)?;
    let warnings = unknown_token_warning(reader)?.into_iter().chain(marked).chain(answered);
    Ok(warnings.chain(overlap).collect())
}

/// Returns a warning if training prompts belong to domains without a quota. `domains` are the rows of each domain, `quotas` the domains
/// with a quota.
pub(crate) fn no_quota_warning(domains: &BTreeMap<String, u64>, quotas: &[&str]) -> Option<String> {
    let others = || domains.iter().filter(|(domain, _)| !quotas.contains(&domain.as_str()));
    let (found, all) = (others().map(|(_, rows)| rows).sum::<u64>(), domains.values().sum::<u64>());
    (found > 0).then(|| {
        let names = code_list(others().map(|(domain, _)| domain).take(MAX_NAMED_DOMAINS));
        format!(
            "warning: {found} of the {all} training prompts have a domain without a quota ({names}) and are rejected; add it to `schedule.quotas`"
        )
    })
}

/// Returns a warning if training prompts end with a message of the assistant, which usually is the answer.
fn assistant_warning(dataset: &Dataset) -> Result<Option<String>, PromptError> {
    let (mut all, mut found) = (0_usize, 0_usize);
    for prompt in first_prompts(dataset, MAX_CHECKED_PROMPTS)? {
        all += 1;
        found +=
            usize::from(prompt?.messages().last().is_some_and(|last| last.role == "assistant"));
    }
    Ok((found as f64 > WARNING_SHARE * all as f64).then(|| {
        format!(
            "warning: {found} of the first {all} prompts end with a message of the assistant, so the model may see the answer; set \
             `data.prompt_key` to a column without answers, or remove these messages"
        )
    }))
}

fn unknown_token_warning(reader: &PromptReader) -> Result<Option<String>, PromptError> {
    let Some((unknown, name)) = reader.encoder.tokenizer.unknown() else { return Ok(None) };
    let (mut all, mut found) = (0_usize, 0_usize);
    for ids in reader.first_prompts(MAX_CHECKED_PROMPTS)? {
        let ids = ids?;
        all += ids.len();
        found += ids.iter().filter(|&&id| id == unknown).count();
    }
    let share = found as f64 / all.max(1) as f64;
    Ok((share > WARNING_SHARE).then(|| {
        format!(
            "warning: {:.1} % of the tokens of the first prompts are `{name}`, the unknown token: the model does not see the text behind \
             them; use a model whose tokenizer knows these characters, or convert the prompts",
            100.0 * share
        )
    }))
}

fn markup_warning(dataset: &Dataset) -> Result<Option<String>, PromptError> {
    let (mut all, mut found, mut example) = (0_usize, 0_usize, "");
    for prompt in first_prompts(dataset, MAX_CHECKED_PROMPTS)? {
        all += 1;
        let messages = chat_messages(&prompt?);
        let markup = MARKUP
            .into_iter()
            .find(|markup| messages.iter().any(|message| message.content.contains(markup)));
        if let Some(markup) = markup {
            (found, example) = (found + 1, markup);
        }
    }
    Ok((found as f64 > WARNING_SHARE * all as f64).then(|| {
        format!(
            "warning: {found} of the first {all} prompts contain `{example}`, the markup of a chat template, and the template of the model is \
             applied to them again; set `data.apply_chat_template = false` to train on them as they are"
        )
    }))
}

fn overlap_warning(
    training: &Dataset,
    validation: &Dataset,
) -> Result<Option<String>, PromptError> {
    let at_least = if validation.len() > MAX_COMPARED_PROMPTS as u64 { "at least " } else { "" };
    let validation: HashSet<String> = first_prompts(validation, MAX_COMPARED_PROMPTS)?
        .map(|prompt| prompt.map(|prompt| prompt.messages_json()))
        .collect::<Result<_, _>>()?;
    let (mut all, mut found) = (0_usize, 0_usize);
    for prompt in first_prompts(training, MAX_COMPARED_PROMPTS)? {
        all += 1;
        found += usize::from(validation.contains(&prompt?.messages_json()));
    }
    Ok((found > 0).then(|| {
        format!(
            "warning: {at_least}{found} of the first {all} training prompts are validation prompts, too: validation scores do not show \
             what the model learned beyond them; remove them from `data.train_files`"
        )
    }))
}

/// Returns the first `max` prompts of the first epoch.
fn first_prompts(
    dataset: &Dataset,
    max: usize,
) -> Result<impl Iterator<Item = Result<Prompt, PromptError>>, PromptError> {
    let prompts = dataset.prompts(Cursor::default())?.until_epoch(1);
    Ok(prompts.take(max).map(|prompt| prompt.map_err(PromptError::from)))
}
