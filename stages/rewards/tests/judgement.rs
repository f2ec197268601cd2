//! The reward `code` on hostile programs, which pass without solving the task, and on honest ones, each with the verdicts that it may get.
//!
//! `judgement/hostile.jsonl` and `judgement/honest.jsonl` hold one program per line. A hostile program lists its permitted outcomes and its
//! highest score. An honest program records the result of plain pytest or Python, with which the reward must agree.

use futures::executor::block_on;
use futures::future::join_all;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_rewards::{Code, CodeConfig, CodeScore};
use rollpacker_stages::reward::{Context, Limits, Reward, Sample, Score};
use serde::Deserialize;
use serde_json::Value;

/// The percentage of honest programs whose verdict may differ from that of plain Python.
const TOLERATED_PERCENT: usize = 3;
/// The time limit of each test case in charged seconds, unless the program names the recipe `long.toml` or `fraction.toml`.
const SECONDS: f64 = 3.0;
const LONG_SECONDS: f64 = 8.0;
const FRACTION_SECONDS: f64 = 1.0;

#[derive(Deserialize)]
struct Program {
    name: String,
    response: String,
    ground_truth: Value,
    extra_info: Option<Value>,
    /// Modules beyond the standard library that the interpreter must have. Programs that need any are skipped.
    #[serde(default)]
    needs: String,
    #[serde(default)]
    recipe: String,
    #[serde(default)]
    expect: Vec<String>,
    #[serde(default, rename = "most")]
    max: f64,
    /// `true` if plain Python passes the program; `None` if plain Python does not run such a test.
    plain_passes: Option<bool>,
}

impl Program {
    fn sample(&self) -> Sample {
        let truth = match &self.ground_truth {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let mut sample = Sample::of("s", &self.response, Some(&truth));
        sample.extra_info = self.extra_info.as_ref().map(Value::to_string);
        sample
    }

    fn seconds(&self) -> f64 {
        match self.recipe.as_str() {
            "fraction.toml" => FRACTION_SECONDS,
            "long.toml" => LONG_SECONDS,
            _ => SECONDS,
        }
    }
}

fn programs(text: &str) -> Vec<Program> {
    let rows = text.lines().map(|line| serde_json::from_str(line).expect("a program"));
    rows.filter(|program: &Program| program.needs.is_empty()).collect()
}

fn start(score: CodeScore) -> Code {
    let mut config = CodeConfig { score, ..CodeConfig::default() };
    config.sandbox.slots = 2;
    Code::start(config).expect("there is a sandbox")
}

/// Returns the programs with their scores, or with the error of scoring.
fn scored(text: &str) -> Vec<(Program, Result<Score, String>)> {
    let (all, fraction) = (start(CodeScore::All), start(CodeScore::Fraction));
    let programs = programs(text);
    let scores = programs.iter().map(|program| {
        let code = if program.recipe == "fraction.toml" { &fraction } else { &all };
        async move {
            let limits = Limits::fixed(Nanos::from_secs_f64(program.seconds()));
            let context = Context::detached().with_limits(limits);
            code.score(&program.sample(), &context).await.map_err(|error| error.to_string())
        }
    });
    let scores = block_on(join_all(scores));
    programs.into_iter().zip(scores).collect()
}

#[test]
fn no_hostile_program_passes_or_ends_in_an_error() {
    let scored = scored(include_str!("judgement/hostile.jsonl"));
    let wrong = scored.iter().filter_map(|(program, score)| {
        let score = match score {
            Ok(score) => score,
            Err(error) => return Some(format!("{}: {error}", program.name)),
        };
        let outcome = &score.labels["outcome"];
        let right = score.value <= program.max && program.expect.contains(outcome);
        (!right).then(|| format!("{}: {} with {:?}", program.name, score.value, score.labels))
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), scored.len(), wrong.join("\n"));
}

#[test]
fn ordinary_programs_get_the_verdict_of_plain_python() {
    let scored = scored(include_str!("judgement/honest.jsonl"));
    let judged: Vec<_> = scored
        .iter()
        .filter_map(|(program, score)| Some((program, score, program.plain_passes?)))
        .collect();
    let wrong = judged.iter().filter_map(|(program, score, passes)| {
        let agrees = score.as_ref().is_ok_and(|score| (score.value > 0.0) == *passes);
        (!agrees).then(|| format!("{}: {score:?}", program.name))
    });
    let wrong: Vec<_> = wrong.collect();
    let tolerated = judged.len() * TOLERATED_PERCENT / 100;
    assert!(wrong.len() <= tolerated, "{} of {}:\n{}", wrong.len(), judged.len(), wrong.join("\n"));
}
