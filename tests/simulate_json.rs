//! Compares the output of `rollpacker simulate --json` with its documentation page: both must have the same fields.

#![cfg(feature = "cli")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Returns the JSON that the program prints with these arguments.
fn json(folder: &Path, args: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_rollpacker"))
        .current_dir(folder)
        .arg("simulate")
        .args(args)
        .arg("--json")
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON and nothing else")
}

/// Adds the path of each field to `into`. Keys that are data, such as the names of rounds, appear as `*`. Statistics and pairs count as one
/// field.
fn collect(path: &str, value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            let names: Vec<&str> = fields.keys().map(String::as_str).collect();
            let is_value = matches!(names[..], ["mean", "sd"] | ["low", "high"] | ["high", "low"]);
            for (name, value) in fields.iter().filter(|_| !is_value) {
                let name = if path.ends_with(".rounds") { "*" } else { name };
                let field =
                    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
                into.insert(field.clone());
                collect(&field, value, into);
            }
        }
        // A pair of a name and a statistic has no fields of its own.
        Value::Array(items) => {
            items.iter().for_each(|item| collect(&format!("{path}[]"), item, into));
        }
        _ => {}
    }
}

/// Returns the fields in the first table of the page after the mark `name`.
fn documented(name: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/simulate-json.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let mark = format!("<!-- fields: {name} -->");
    let (_, table) = page.split_once(&mark).expect("the mark");
    let rows = table.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.split('`').nth(1).expect("a field").to_owned()).collect()
}

fn check(name: &str, found: &BTreeSet<String>) {
    let documented = documented(name);
    let absent: Vec<_> = found.difference(&documented).collect();
    assert!(absent.is_empty(), "not in docs/simulate-json.md: {absent:#?}");
    let gone: Vec<_> = documented.difference(found).collect();
    assert!(gone.is_empty(), "in docs/simulate-json.md, and not in the output: {gone:#?}");
}

#[test]
fn the_fields_of_a_job_are_those_of_its_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/sim/7b.toml");
    let config = config.to_str().expect("text");
    let lengths: String = (0..200).map(|n| format!("{n},{}\n", 50 + n * n / 5)).collect();
    std::fs::write(folder.path().join("t.csv"), format!("prompt_id,tokens\n{lengths}"))
        .expect("written");
    let small = ["--config", config, "sim.steps=2", "data.train_batch_size=16"];
    let swept = ["--trace", "t.csv", "--sweep", "schedule.name=sync,fused,tail_batching"];
    let mut found = BTreeSet::new();
    let swept = json(folder.path(), &[&small[..], &swept].concat());
    collect("", &swept, &mut found);
    check("simulate", &found);
    let plain = json(folder.path(), &small);
    assert_eq!((&plain["advice"], &plain["trace"]), (&Value::Array(vec![]), &Value::Array(vec![])));
    let several = json(folder.path(), &[&small[..], &small[..2]].concat());
    assert_eq!(several.as_array().map(Vec::len), Some(2));
}

#[test]
fn the_fields_of_a_paper_are_those_of_the_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let args = ["paper", "--only", "Fig. 14c", "--seeds", "1", "--steps", "5"];
    let mut found = BTreeSet::new();
    collect("", &json(folder.path(), &args), &mut found);
    check("paper", &found);
}
