//! Tests of the numeric flags of the command line.

use std::any::TypeId;
use std::num::NonZero;

use rollpacker::cli;

use crate::program::{self, Case};
use crate::workspace::{RECIPE, TestWorkspace};

/// Values of a flag: bounds of numeric types, numbers beyond them, the smallest and the largest float, NaN, infinity and an empty text.
const VALUES: [&str; 11] = [
    "-1",
    "0",
    "1",
    "4294967295",
    "18446744073709551615",
    "99999999999999999999",
    "5e-324",
    "1.7976931348623157e308",
    "nan",
    "inf",
    "",
];

const JOB: &str = "[cluster]\ngpus = 8\n[model]\nname = \"Qwen2.5-7B\"\n[data]\ntrain_batch_size = 4\nmax_response_length = 64\n\
                   [schedule]\nname = \"fused\"\n[sim]\nsteps = 1\n";

/// Returns a command line of the subcommand that ends soon, with the further flags that `flag` needs. `NUMBER` stands for the number of the
/// run, so that each run writes its own files.
fn line(subcommand: &str, flag: &str) -> Vec<&'static str> {
    let (line, with_settings): (&[&str], &[&str]) = match (subcommand, flag) {
        ("train", "process") => (&["train", "--config", "recipe.toml"], &["--hostfile", "hosts"]),
        ("train", _) => (&["train", "--config", "recipe.toml", "--dry-run"], &[]),
        ("simulate", "gantt_step") => {
            (&["simulate", "--config", "job.toml"], &["--report", "report-NUMBER.html"])
        }
        ("simulate", "perfetto_steps") => {
            (&["simulate", "--config", "job.toml"], &["--perfetto", "trace-NUMBER.json"])
        }
        ("simulate", _) => (&["simulate", "--config", "job.toml"], &[]),
        ("simulate paper", "steps") => {
            (&["simulate", "paper", "--only", "Table 1", "--seeds", "1"], &[])
        }
        ("simulate paper", _) => (&["simulate", "paper", "--commands"], &[]),
        ("profile", _) => (
            &["profile", "--simulated", "--config", "job.toml", "--output", "p-NUMBER.parquet"],
            &[],
        ),
        ("score", _) => (&["score", "--reward", "math", "--input", "rows.jsonl"], &[]),
        ("show", _) => (&["show", "shown"], &[]),
        ("view", _) => (&["view", "data"], &[]),
        ("data inspect", _) => (&["data", "inspect", "data/train.parquet"], &[]),
        ("data validate", _) => (&["data", "validate", "data/train.parquet"], &[]),
        ("data convert", _) => {
            (&["data", "convert", "data/train.parquet", "--output", "c-NUMBER.parquet"], &[])
        }
        ("data generate", _) => (
            &["data", "generate", "--output", "generated-NUMBER"],
            &["--validation-rows", "4", "--rows", "16"],
        ),
        ("keys", _) => (&["keys", "rollout"], &[]),
        // No server listens at this port.
        ("probe", _) => (&["probe", "http://127.0.0.1:9", "--model", "model"], &[]),
        other => panic!("no command line is known for {other:?}: add one here"),
    };
    let own = format!("--{}", flag.replace('_', "-"));
    let with_settings = with_settings.chunks(2).filter(|pair| pair[0] != own).flatten();
    line.iter().chain(with_settings).copied().collect()
}

/// Collects the numeric flags of a command and its subcommands: the subcommand, the id, and the name on the command line.
fn flags(path: &str, command: &clap::Command, into: &mut Vec<(String, String, String)>) {
    let numbers = [
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<f64>(),
        TypeId::of::<NonZero<u64>>(),
        TypeId::of::<NonZero<usize>>(),
    ];
    for arg in command.get_arguments() {
        let parsed = arg.get_value_parser().type_id();
        if let Some(long) =
            arg.get_long().filter(|_| numbers.iter().any(|number| parsed == *number))
        {
            into.push((path.to_owned(), arg.get_id().to_string(), format!("--{long}")));
        }
    }
    for inner in command.get_subcommands() {
        let name = inner.get_name();
        flags(format!("{path} {name}").trim_start(), inner, into);
    }
}

#[test]
fn every_numeric_flag_is_accepted_or_named() {
    let workspace = TestWorkspace::new(RECIPE);
    workspace.write("job.toml", JOB);
    workspace.write("hosts", "localhost:1\nlocalhost:2\n");
    workspace.write(
        "rows.jsonl",
        "{\"data_source\": \"x\", \"response\": \"1\", \"ground_truth\": \"1\"}\n",
    );
    std::fs::create_dir(workspace.path("shown")).expect("created");
    workspace.write("shown/metrics.jsonl", "{\"step\": 1, \"round\": \"sync\", \"data\": {}}\n");
    let mut found = Vec::new();
    flags("", &cli::command(), &mut found);
    assert!(found.len() > 15, "{found:?}");
    let mut cases = Vec::new();
    for (subcommand, id, long) in found {
        // These cases do not end soon: a valid process index waits for the other processes, more steps of the papers take too long, and a
        // server does not end. `tests/serve.rs` tests the flags of `serve`; `view` has only a port.
        let skipped = |value: &str| {
            subcommand == "serve"
                || (subcommand == "view" && (value == "0" || value == "1"))
                || (id == "process" && (value == "0" || value == "1"))
                || (subcommand == "simulate paper"
                    && id == "steps"
                    && value != "0"
                    && value != "-1")
        };
        for value in VALUES.into_iter().filter(|value| !skipped(value)) {
            let number = cases.len().to_string();
            let line = line(&subcommand, &id).into_iter();
            let line = line.map(|arg| arg.replace("NUMBER", &number));
            let args = line.chain([format!("{long}={value}")]).collect();
            let of_sim = if long == "--seeds" { "sim.seeds" } else { long.as_str() };
            let file = if long == "--process" { "process" } else { long.as_str() };
            cases.push(Case { args, keys: vec![long.clone(), of_sim.to_owned(), file.to_owned()] });
        }
    }
    program::check(&workspace, &cases);
}
