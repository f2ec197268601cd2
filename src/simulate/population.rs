//! The prompts of a job, and how long the responses to them are.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_datasets::Trace;
use rollpacker_stages::rollout::simulated::lengths::{
    self, EmpiricalConfig, EmpiricalDomain, LengthModel, LengthsConfig, PopulationConfig, Recorded,
    TraceConfig, TraceRecord, TwoModeConfig, TwoModeDomain,
};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::job::{Job, read_value};
use super::raw::{Source, Tasks};
use crate::recipe::RecipeError;

/// The length model of a run with `seed`.
///
/// # Errors
/// If a key of `[lengths]` is out of its bounds.
pub(super) fn lengths(job: &Job, seed: u64) -> anyhow::Result<Arc<dyn LengthModel>> {
    let lengths = &job.raw.lengths;
    let population: PopulationConfig = match &lengths.population {
        Some(table) => read_value("lengths.population", Value::Table(table.clone()))?,
        None => PopulationConfig::default(),
    };
    let cap = job.raw.data.max_response_length;
    if let Some(trace) = &job.trace {
        return Ok(Arc::new(recorded(trace, population, seed, cap)?));
    }
    let shares = shares(&job.raw.tasks);
    let config = match lengths.source {
        Source::TwoMode => LengthsConfig::TwoMode(TwoModeConfig {
            domains: domains(&lengths.domains, &shares, |share| TwoModeDomain {
                share,
                ..TwoModeDomain::default()
            })?,
        }),
        Source::Empirical => LengthsConfig::Empirical(EmpiricalConfig {
            domains: read_domains::<EmpiricalDomain>(&lengths.domains)?,
        }),
        Source::Paper | Source::Trace => LengthsConfig::Empirical(paper(&shares)),
    };
    Ok(config.build(&population, seed, cap)?)
}

/// Kinds of tasks that a job has, with their shares.
fn shares(tasks: &Tasks) -> BTreeMap<String, f64> {
    [("math", tasks.math), ("code", tasks.code), ("judge", tasks.judge)]
        .into_iter()
        .filter(|(_, share)| *share > 0.0)
        .map(|(name, share)| (name.to_owned(), share))
        .collect()
}

fn paper(shares: &BTreeMap<String, f64>) -> EmpiricalConfig {
    let mut paper = EmpiricalConfig::rollpacker();
    paper
        .domains
        .retain(|name, domain| shares.get(name).inspect(|share| domain.share = **share).is_some());
    paper
}

/// The domains that are written, or the default of each kind of task.
fn domains<D: DeserializeOwned>(
    written: &BTreeMap<String, Table>,
    shares: &BTreeMap<String, f64>,
    default: impl Fn(f64) -> D,
) -> Result<BTreeMap<String, D>, RecipeError> {
    if written.is_empty() {
        return Ok(shares.iter().map(|(name, &share)| (name.clone(), default(share))).collect());
    }
    read_domains(written)
}

fn read_domains<D: DeserializeOwned>(
    written: &BTreeMap<String, Table>,
) -> Result<BTreeMap<String, D>, RecipeError> {
    let domain = |(name, table): (&String, &Table)| {
        let key = format!("lengths.domains.{name}");
        Ok((name.clone(), read_value(&key, Value::Table(table.clone()))?))
    };
    written.iter().map(domain).collect()
}

/// A trace as a model. Responses whose step, prompt and sample are recorded are replayed; the others are drawn from all.
fn recorded(
    trace: &Trace,
    population: PopulationConfig,
    seed: u64,
    cap: u32,
) -> anyhow::Result<lengths::Trace> {
    let records = trace.rows.iter().map(|row| TraceRecord {
        prompt: row.prompt.map(|prompt| prompt.to_string()),
        prompt_length: None,
        response_length: row.tokens,
    });
    let replayed = trace.rows.iter().filter_map(|row| {
        let id =
            SampleId { step: Step(row.step?), prompt: PromptId(row.prompt?), sample: row.sample? };
        Some((id, Recorded { response_length: row.tokens, whole: row.whole }))
    });
    let config = TraceConfig { domain: "math".to_owned(), population, seed, cap };
    Ok(lengths::Trace::new(records, &config)?.replaying(replayed))
}
