//! `rollpacker keys`: lists the keys of recipes and of simulated jobs.

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use console::Term;

use super::exit_status::bad_input;
use crate::App;
use crate::code_list::code_list;
use crate::recipe::RawRecipe;
use crate::reference::{self, Entries};
use crate::simulate::raw::RawJob;
use crate::terminal;

/// List the keys of recipes, or of simulated jobs, with type, unit, default, range, meaning, and the names of verl and TRL.
#[derive(Debug, Args)]
pub(crate) struct KeysArgs {
    /// Beginning of the keys to list, such as `rollout` or `actor.lr`. Default: all keys.
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: String,
    /// List the keys of the jobs that `rollpacker simulate` runs, instead of the keys of recipes.
    #[arg(long)]
    job: bool,
    /// Print a JSON array with an object for each key: key, of, type, unit, default, range, meaning, verl, trl, aliases and resumable. A
    /// field without a value is null or empty.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &KeysArgs, app: &App) -> anyhow::Result<ExitCode> {
    let all = if args.job { job_sections(app) } else { sections(app) };
    let sections = match reference::matching(all, &args.prefix) {
        Ok(sections) => sections,
        Err(suggestions) => return Ok(bad_input(&unknown(args, &suggestions, app))),
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

/// Returns the recipe keys that the program accepts, by section.
pub(crate) fn sections(app: &App) -> Vec<reference::SectionKeys> {
    let placements = ("placement", "placement", app.placements.built_in().list().collect());
    let listed = std::iter::once(placements).chain(listed(app)).collect();
    let entries = Entries { schedules: &app.schedules, rewards: &app.rewards, listed };
    reference::all::<RawRecipe>(&app.names(), &entries)
}

/// Returns the keys of simulated jobs that the program accepts, by section.
pub(crate) fn job_sections(app: &App) -> Vec<reference::SectionKeys> {
    let entries = Entries { schedules: &app.schedules, rewards: &app.rewards, listed: Vec::new() };
    reference::all::<RawJob>(&app.names(), &entries)
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

fn unknown(args: &KeysArgs, suggestions: &[String], app: &App) -> anyhow::Error {
    let prefix = &args.prefix;
    if !args.job && reference::matching(job_sections(app), prefix).is_ok() {
        return anyhow!(
            "no key of recipes begins with `{prefix}`, but of simulated jobs: `rollpacker keys --job {prefix}`"
        );
    }
    let all = if args.job { "rollpacker keys --job" } else { "rollpacker keys" };
    if suggestions.is_empty() {
        anyhow!("no key begins with `{prefix}`; `{all}` lists all")
    } else {
        anyhow!("no key begins with `{prefix}`; did you mean {}?", code_list(suggestions))
    }
}
