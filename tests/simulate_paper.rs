//! Tests of `rollpacker simulate paper`: the form of its output, and the accuracy of the model where the tests bound it.
//!
//! Seeds are fixed, so the numbers are the same on every machine. The bounds are acceptance criteria, not the accuracy reached.

#![cfg(feature = "cli")]

use std::process::{Command, Output};

use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cell {
    source: String,
    item: String,
    setting: String,
    cell: String,
    paper: f64,
    ours: f64,
    error: f64,
    fitted: bool,
}

fn paper(args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_rollpacker");
    Command::new(program).args(["simulate", "paper"]).args(args).output().expect("it runs")
}

fn cells(only: &[&str]) -> Vec<Cell> {
    let mut args = vec!["--json", "--seeds", "1", "--steps", "20"];
    args.extend(only.iter().flat_map(|item| ["--only", item]));
    let output = paper(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("an array of cells and nothing else")
}

/// Fails with all cells whose error is larger than `bound`.
fn check(cells: &[Cell], bound: f64) {
    let far: Vec<_> = cells.iter().filter(|cell| cell.error.abs() > bound).collect();
    assert!(far.is_empty(), "cells with an error above {bound}: {far:#?}");
}

#[test]
fn a_setting_that_no_job_has_is_bad_input() {
    let end = paper(&["--only", "Table 2", "rollout.nope=1"]);
    let error = String::from_utf8_lossy(&end.stderr);
    assert_eq!(end.status.code(), Some(2), "{error}");
    assert!(error.contains("unknown key `rollout.nope`"), "{error}");
}

#[test]
fn speed_ups_and_steps_are_near_those_of_the_paper() {
    let cells = cells(&["Table 2", "Fig. 10"]);
    let (table, steps): (Vec<_>, Vec<_>) =
        cells.into_iter().partition(|cell| cell.item == "Table 2");
    let steps: Vec<_> =
        steps.into_iter().filter(|cell| !cell.cell.contains("standard deviation")).collect();
    assert_eq!((table.len(), steps.len()), (12, 12));
    check(&table, 0.15);
    check(&steps, 0.15);
    for cell in &table {
        assert_eq!(cell.source, "RollPacker (NSDI '26)");
        assert!(cell.setting.starts_with("section 6.2"), "{cell:?}");
        assert!((cell.ours / cell.paper - 1.0 - cell.error).abs() < 1e-9, "{cell:?}");
        assert!(cell.fitted, "{cell:?}");
    }
    let stream: Vec<_> = table.iter().filter(|cell| cell.cell.ends_with("+stream")).collect();
    assert!(stream.iter().all(|cell| cell.ours > 1.9), "{stream:#?}");
}

#[test]
fn small_effects_have_the_signs_of_the_paper() {
    let cells = cells(&["Table 3", "Table 4"]);
    assert!(cells.iter().all(|cell| !cell.fitted));
    let of = |name: &str| cells.iter().filter(|cell| cell.cell.ends_with(name)).collect::<Vec<_>>();
    let signs = of("signs that agree");
    assert_eq!(signs.len(), 2);
    assert!(signs.iter().all(|cell| cell.ours == 1.0), "{signs:#?}");
    let ratios = of("over without");
    assert_eq!(ratios.len(), 8);
    assert!(ratios.iter().all(|cell| cell.error.abs() < 0.1), "{ratios:#?}");
}

#[test]
fn held_out_runs_are_near_as_well() {
    let cells = cells(&["Fig. 15", "repository run"]);
    assert_eq!(cells.len(), 7);
    assert!(cells.iter().all(|cell| !cell.fitted));
    check(&cells, 0.2);
}

#[test]
fn bars_of_the_repository_script_are_near_without_a_fit() {
    let cells = cells(&["Fig. 12"]);
    let script: Vec<_> =
        cells.iter().filter(|cell| cell.cell.starts_with("8k, repository")).collect();
    let fitted: Vec<_> =
        script.iter().filter(|cell| cell.fitted).map(|cell| cell.cell.as_str()).collect();
    assert_eq!(fitted, ["8k, repository 1, s"]);
    let bars: Vec<_> = script.iter().filter(|cell| cell.cell.ends_with(", s")).collect();
    assert_eq!(bars.len(), 8);
    let near = bars.iter().filter(|cell| cell.error.abs() <= 0.15).count();
    assert!(near >= 7, "{bars:#?}");
}

#[test]
fn code_rewards_of_the_repository_take_the_time_of_their_limit() {
    let cells = cells(&["code rewards"]);
    let seconds: Vec<_> = cells.iter().map(|cell| (cell.cell.as_str(), cell.ours)).collect();
    let [("adaptive, short, s", adaptive), _, ("fixed, short, s", fixed), _] = seconds[..] else {
        panic!("{seconds:?}")
    };
    assert!(fixed > adaptive + 20.0, "{seconds:?}");
    assert!(cells.iter().all(|cell| !cell.fitted));
}

#[test]
fn the_throughput_that_set_a_constant_is_marked_as_fitted() {
    let fitted = cells(&["SortedRL"]).into_iter().filter(|cell| cell.fitted);
    let fitted: Vec<_> = fitted.map(|cell| cell.cell).collect();
    assert_eq!(fitted, ["partial: throughput over baseline"]);
}

#[test]
fn the_table_counts_its_cells_and_the_commands_are_listed() {
    let output = paper(&["--only", "Fig. 14c", "--seeds", "1"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("RollPacker (NSDI '26), Fig. 14c\n  adaptive, short, s"), "{text}");
    assert!(text.contains("cells that the model was fitted to"), "{text}");
    let output = paper(&["--only", "Fig. 14c", "--commands"]);
    let text = String::from_utf8(output.stdout).expect("text");
    let command =
        "rollpacker simulate --config configs/sim/7b.toml --seeds 2 pipeline.gradient=whole_step";
    assert!(text.contains(command), "{text}");
}

#[test]
fn an_unknown_figure_is_refused_with_the_known_ones() {
    let output = paper(&["--only", "Table 9"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).expect("text");
    assert!(error.contains("--only Table 9: expected a part of one of RollPacker"), "{error}");
}
