//! Generates the tables of `docs/algorithms.md`, and tests that the page contains them. There is a table for each kind of algorithm, and
//! one for the keys that have other names in other frameworks.

use std::fmt::Write;

use rollpacker_stages::catalog::{Choice, ListedEntry};

use super::Algorithms;
use crate::generated_page::assert_tables;
use crate::recipe::aliases::{ALIASES, Alias};

#[test]
fn the_page_of_algorithms_is_up_to_date() {
    let tables = format!("\n{}\n", tables(&Algorithms::default()));
    assert_tables(
        "docs/algorithms.md",
        &tables,
        "cargo test -p rollpacker --lib page_of_algorithms",
    );
}

fn tables(algorithms: &Algorithms) -> String {
    let mut text = String::new();
    let streams = |name: &str| match algorithms.advantages.make(&Choice::of(name)) {
        Ok(estimator) if estimator.whole_step() => "step",
        _ => "group",
    };
    table(&mut text, "algorithm.adv_estimator", algorithms.advantages.list(), Some(&streams));
    table(&mut text, "actor.policy_loss.loss_mode", algorithms.policy_losses.list(), None);
    table(
        &mut text,
        "actor.kl_loss_type, algorithm.kl_penalty",
        algorithms.kl_estimators.list(),
        None,
    );
    aliases(&mut text);
    text
}

fn table<'a>(
    text: &mut String,
    key: &str,
    entries: impl Iterator<Item = ListedEntry<'a>>,
    streams: Option<&dyn Fn(&str) -> &'static str>,
) {
    let column = |cell: &str| if streams.is_some() { format!(" {cell} |") } else { String::new() };
    // Writing to a string does not fail.
    let _ = writeln!(text, "### `{key}`\n");
    let _ = writeln!(
        text,
        "| name | computes | options |{} also known as | from |",
        column("waits for")
    );
    let _ = writeln!(text, "|---|---|---|{}---|---|", if streams.is_some() { "---|" } else { "" });
    for entry in entries {
        let waits = streams.map(|streams| streams(entry.name)).unwrap_or_default();
        let _ = writeln!(
            text,
            "| `{}` | {} | {} |{} {} | {} |",
            entry.name,
            entry.about.summary.replace('|', "\\|"),
            options(&entry),
            column(waits),
            also(&entry),
            entry.about.source,
        );
    }
    text.push('\n');
}

fn options(entry: &ListedEntry<'_>) -> String {
    let options = entry.docs.defaults.iter().map(|(name, value)| format!("`{name} = {value}`"));
    options.collect::<Vec<_>>().join(", ")
}

fn also(entry: &ListedEntry<'_>) -> String {
    let aliases = entry.about.aliases.iter().map(|(alias, peers)| format!("`{alias}` ({peers})"));
    aliases.collect::<Vec<_>>().join(", ")
}

fn aliases(text: &mut String) {
    let _ = writeln!(
        text,
        "### Keys of other frameworks\n\n| key | alias | framework |\n|---|---|---|"
    );
    for Alias { section, alias, key, peers } in ALIASES {
        let _ = writeln!(text, "| `{section}.{key}` | `{section}.{alias}` | {peers} |");
    }
}
