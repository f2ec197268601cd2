//! Prompts of a job, and the length model of their responses.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_datasets::Trace;
use rollpacker_simulated::rollout::lengths::{
    self, EmpiricalConfig, EmpiricalDomain, LengthModel, LengthModelError, LengthsConfig,
    PopulationConfig, Recorded, TraceConfig, TraceRecord, TwoModeConfig, TwoModeDomain,
};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::job::Job;
use super::raw::{Lengths, Source, Tasks};
use crate::recipe::RecipeError;
use crate::recipe::error::out_of_bounds;
use crate::recipe::value::read_value;

/// Returns the length model of a run with `seed`.
///
/// # Errors
/// If a key of `[lengths]` is invalid, or if the trace has no responses.
pub(super) fn lengths(job: &Job, seed: u64) -> anyhow::Result<Arc<dyn LengthModel>> {
    let Some(recording) = &job.trace else { return Ok(drawing_model(job, seed)?) };
    let domain = largest(&job.raw.tasks).to_owned();
    let (population, cap) = (population(&job.raw.lengths)?, job.raw.data.max_response_length);
    let correlation = job.correlation();
    let config = TraceConfig { domain, population, correlation, seed, cap };
    Ok(Arc::new(recorded(&recording.trace, &config)?))
}

/// Returns the length that no prompt of the job exceeds, in tokens.
///
/// # Errors
/// If `lengths.population` cannot be read.
pub(super) fn longest_prompt(lengths: &Lengths, trace: Option<&Trace>) -> Result<u32, RecipeError> {
    let drawn = population(lengths)?.longest_prompt();
    let Some(trace) = trace else { return Ok(drawn) };
    let lengths = trace.rows.iter().map(|row| row.prompt_tokens.unwrap_or(drawn));
    Ok(lengths.max().unwrap_or(drawn))
}

/// Checks the keys of `[lengths]` without building the model of a trace. A trace that was read is always valid.
///
/// # Errors
/// If a key of `[lengths]` has a wrong type or is out of its bounds, or if the domains do not match the kinds of tasks.
pub(super) fn check(job: &Job) -> Result<(), RecipeError> {
    drawing_model(job, job.raw.sim.seed).map(drop)
}

/// Returns the model that draws lengths: the configured model, or the model of RollPacker's paper if the source is a trace.
fn drawing_model(job: &Job, seed: u64) -> Result<Arc<dyn LengthModel>, RecipeError> {
    let lengths = &job.raw.lengths;
    let shares = shares(&job.raw.tasks);
    let config = match lengths.source {
        Source::TwoMode => LengthsConfig::TwoMode(TwoModeConfig {
            domains: domains(&lengths.domains, &shares, |share| TwoModeDomain {
                share,
                ..TwoModeDomain::default()
            })?,
        }),
        Source::Empirical => LengthsConfig::Empirical(EmpiricalConfig {
            domains: read_domains::<EmpiricalDomain>(&lengths.domains, &shares)?,
        }),
        Source::Paper | Source::Trace => {
            LengthsConfig::Empirical(paper(&shares, lengths.correlation))
        }
    };
    let cap = job.raw.data.max_response_length;
    config.build(&population(lengths)?, seed, cap).map_err(|error| domain_error(error, &shares))
}

fn population(lengths: &Lengths) -> Result<PopulationConfig, RecipeError> {
    match &lengths.population {
        Some(table) => read_value("lengths.population", Value::Table(table.clone())),
        None => Ok(PopulationConfig::default()),
    }
}

/// Maps an error of a length model to the key of the job.
fn domain_error(error: LengthModelError, domains: &BTreeMap<String, f64>) -> RecipeError {
    match error {
        LengthModelError::Field { field, expected, found } => {
            let is_domain = domains.keys().any(|name| field.starts_with(&format!("{name}.")));
            let section = if is_domain { "domains" } else { "population" };
            out_of_bounds(format!("lengths.{section}.{field}"), expected, found)
        }
        LengthModelError::Empty(_) => out_of_bounds("lengths.domains", "at least one", "none"),
    }
}

/// Returns the kinds of tasks that the job has, with their shares.
fn shares(tasks: &Tasks) -> BTreeMap<String, f64> {
    [("math", tasks.math), ("code", tasks.code), ("judge", tasks.judge)]
        .into_iter()
        .filter(|(_, share)| *share > 0.0)
        .map(|(name, share)| (name.to_owned(), share))
        .collect()
}

fn paper(shares: &BTreeMap<String, f64>, correlation: Option<f64>) -> EmpiricalConfig {
    let mut paper = EmpiricalConfig::rollpacker();
    paper
        .domains
        .retain(|name, domain| shares.get(name).inspect(|share| domain.share = **share).is_some());
    if let Some(correlation) = correlation {
        paper.domains.values_mut().for_each(|domain| domain.correlation = correlation);
    }
    paper
}

/// Returns the domains as written, or the default domain of each kind of task.
fn domains<D: DeserializeOwned>(
    written: &BTreeMap<String, Table>,
    shares: &BTreeMap<String, f64>,
    default: impl Fn(f64) -> D,
) -> Result<BTreeMap<String, D>, RecipeError> {
    if written.is_empty() {
        return Ok(shares.iter().map(|(name, &share)| (name.clone(), default(share))).collect());
    }
    read_domains(written, shares)
}

fn read_domains<D: DeserializeOwned>(
    written: &BTreeMap<String, Table>,
    shares: &BTreeMap<String, f64>,
) -> Result<BTreeMap<String, D>, RecipeError> {
    if !written.keys().eq(shares.keys()) {
        let names =
            |of: Vec<&String>| of.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let expected =
            format!("one for each task that has a share: {}", names(shares.keys().collect()));
        let found = names(written.keys().collect());
        let found = if found.is_empty() { "none" } else { &found };
        return Err(out_of_bounds("lengths.domains", expected, found));
    }
    let domain = |(name, table): (&String, &Table)| {
        let key = format!("lengths.domains.{name}");
        if table.contains_key("share") {
            let reason = format!("expected no value: the share is that of tasks.{name}");
            return Err(RecipeError::Type { key: format!("{key}.share"), reason });
        }
        let mut table = table.clone();
        table.insert("share".to_owned(), Value::Float(shares[name]));
        Ok((name.clone(), read_value(&key, Value::Table(table))?))
    };
    written.iter().map(domain).collect()
}

/// Returns the kind of task of the responses of a trace: the kind with the largest share. Of kinds with equal shares, math precedes code,
/// and code precedes judge.
fn largest(tasks: &Tasks) -> &'static str {
    let shares = [("judge", tasks.judge), ("code", tasks.code), ("math", tasks.math)];
    let largest = shares.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    largest.expect("invariant: three tasks exist").0
}

/// Builds the length model of a trace. Responses with a recorded step, prompt and sample are replayed; all others are drawn as
/// [`lengths::Trace`] describes. The length of a dropped response is drawn from the recorded lengths that are longer (Kaplan-Meier).
fn recorded(trace: &Trace, config: &TraceConfig) -> anyhow::Result<lengths::Trace> {
    let records = trace.uncensored(config.seed).into_iter().map(|row| TraceRecord {
        prompt: row.prompt.map(|prompt| prompt.to_string()),
        prompt_length: row.prompt_tokens.map(|tokens| tokens.max(1)),
        response_length: row.tokens,
    });
    // Run folders number their steps from 1.
    let replayed = trace.rows.iter().filter_map(|row| {
        let step = Step(row.step?.checked_sub(1)?);
        let id = SampleId { step, prompt: PromptId(row.prompt?), sample: row.sample? };
        // A complete response has at least one token. A dropped one may have none.
        let response_length = row.tokens.max(u32::from(row.is_complete));
        Some((id, Recorded { response_length, whole: row.is_complete }))
    });
    Ok(lengths::Trace::new(records, config)?.replaying(replayed))
}

#[cfg(test)]
mod tests {
    use rollpacker_datasets::TraceOptions;

    use super::*;

    #[test]
    fn a_complete_response_without_tokens_is_replayed_with_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.csv");
        let rows = "step,prompt_id,sample,tokens\n1,0,0,0\n2,0,0,7\n";
        std::fs::write(&path, rows).expect("written");
        let trace = Trace::read(&path, &TraceOptions::default()).expect("read");
        let (domain, population) = ("math".to_owned(), PopulationConfig::default());
        let config = TraceConfig { domain, population, correlation: 0.0, seed: 0, cap: 100 };
        let model = recorded(&trace, &config).expect("a trace");
        let length = |step| {
            let id = SampleId { step: Step(step), prompt: PromptId(0), sample: 0 };
            model.response(0, id, 0)
        };
        assert_eq!([length(0), length(1)], [1, 7]);
    }
}
