//! `rollpacker keys`: lists the keys of recipes.

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use console::Term;

use super::bad_input;
use crate::App;
use crate::reference::{self, Entries};
use crate::terminal;

/// List the keys of recipes with type, unit, default, range, meaning, and the names of verl and TRL.
#[derive(Debug, Args)]
pub(crate) struct KeysArgs {
    /// Beginning of the keys to list, such as `rollout` or `actor.lr`. Default: all keys.
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: String,
    /// Print a JSON list of objects.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &KeysArgs, app: &App) -> anyhow::Result<ExitCode> {
    let sections = match reference::matching(sections(app), &args.prefix) {
        Ok(sections) => sections,
        Err(suggestions) => return Ok(bad_input(&unknown(&args.prefix, &suggestions))),
    };
    let text = if args.json {
        format!("{:#}\n", reference::json(&sections))
    } else {
        let width = Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
        reference::text(&sections, width)
    };
    terminal::print(&text).context("cannot print")?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the keys of all recipes that the program accepts.
pub(crate) fn sections(app: &App) -> Vec<reference::SectionKeys> {
    let placements = ("placement", "placement", app.placements.built_in().list().collect());
    let listed = std::iter::once(placements).chain(listed(app)).collect();
    let entries = Entries { schedules: &app.schedules, rewards: &app.rewards, listed };
    reference::all(&app.names(), &entries)
}

#[cfg(feature = "torch")]
fn listed(app: &App) -> Vec<reference::ListedEntries<'_>> {
    let algorithms = &app.algorithms;
    vec![
        ("rollout.engine_options", "engine", app.engines.list().collect()),
        ("algorithm.adv_options", "estimator", algorithms.advantages.list().collect()),
        ("actor.policy_loss", "loss", algorithms.policy_losses.list().collect()),
    ]
}

#[cfg(not(feature = "torch"))]
fn listed(_: &App) -> Vec<reference::ListedEntries<'_>> {
    Vec::new()
}

fn unknown(prefix: &str, suggestions: &[String]) -> anyhow::Error {
    let names = suggestions.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>();
    match names.is_empty() {
        true => anyhow!("no key begins with `{prefix}`; `rollpacker keys` lists all"),
        false => anyhow!("no key begins with `{prefix}`; did you mean {}?", names.join(", ")),
    }
}
