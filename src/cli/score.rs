//! `rollpacker score`: a reward, tried on the rows of a file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::Args;
use rollpacker_dataflow::clock::WallClock;
use toml::Table;

use super::BAD_INPUT;
use crate::progress::Rows;
use crate::recipe::raw::{self, Routed};
use crate::recipe::{Recipe, overlay};
use crate::rewards::rewards;
use crate::score::{Columns, Scoring, Summary};

/// Score rows of a file by a reward, outside of any training.
///
/// Every row is data_source, response, ground_truth, extra_info, further columns and the prompt, as far as they are there. Exits with 1 if a
/// row has no score, unless `--allow-errors`, and with 2 for a reward or a file that cannot be used.
#[derive(Debug, Args)]
pub(crate) struct ScoreArgs {
    /// Name of a reward, or a recipe (a TOML file): its routes, options and columns.
    #[arg(long)]
    reward: String,
    /// Parquet or JSONL file.
    #[arg(long, short)]
    input: PathBuf,
    /// File to write, one JSON line a row in their order; `-` for standard output.
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Print the summary as one JSON object.
    #[arg(long)]
    json: bool,
    /// Option of the reward, of its guard, or with a recipe any of its settings by its dotted name.
    #[arg(long = "option", value_name = "KEY=VALUE")]
    options: Vec<String>,
    /// Rows that are scored at once.
    #[arg(long, default_value_t = 32)]
    concurrency: usize,
    /// Exit with 0 even if rows have no score.
    #[arg(long)]
    allow_errors: bool,
    #[command(flatten)]
    columns: ColumnArgs,
}

#[derive(Debug, Args)]
struct ColumnArgs {
    /// Column of the response; a dot leads into a struct [default: response, solution_str, completion, output or generation].
    #[arg(long)]
    response_key: Option<String>,
    /// Column that says where a prompt comes from.
    #[arg(long, alias = "reward-fn-key")]
    data_source_key: Option<String>,
    /// Column of the reference answer.
    #[arg(long)]
    ground_truth_key: Option<String>,
    /// Column of the prompt.
    #[arg(long)]
    prompt_key: Option<String>,
    /// Column of everything else.
    #[arg(long)]
    extra_info_key: Option<String>,
    /// Column that rows of one prompt have in common, for rewards of whole groups [default: uid, group_id, prompt_id, index or
    /// extra_info.index].
    #[arg(long)]
    group_key: Option<String>,
    /// Further columns to hand to the reward within extra_info; `*` for all [default: all, or the recipe's].
    #[arg(long, value_delimiter = ',')]
    extra_columns: Option<Vec<String>>,
    /// Data source of rows that name none.
    #[arg(long, default_value = "unknown")]
    default_data_source: String,
}

pub(crate) fn run(args: ScoreArgs) -> anyhow::Result<ExitCode> {
    let (scoring, output) = match args.open() {
        Ok(opened) => opened,
        Err(error) => return bad_input(&error),
    };
    let summary = match score(&args, scoring, output) {
        Ok(summary) => summary,
        Err(error) => return bad_input(&error),
    };
    args.print(&summary).context("cannot print")?;
    let failed = summary.failed() > 0 && !args.allow_errors;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn bad_input(error: &anyhow::Error) -> anyhow::Result<ExitCode> {
    drop(writeln!(io::stderr(), "error: {error:#}"));
    Ok(ExitCode::from(BAD_INPUT))
}

fn score(
    args: &ScoreArgs,
    scoring: Scoring,
    mut output: Box<dyn Write>,
) -> anyhow::Result<Summary> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("reward")
        .enable_all()
        .build()
        .context("cannot start the threads of the rewards")?;
    let progress = Rows::new();
    let scored = runtime.block_on(scoring.run(&args.input, &mut output, |done, all| {
        progress.done(done, all);
    }));
    progress.finish();
    scored
}

impl ScoreArgs {
    fn open(&self) -> anyhow::Result<(Scoring, Box<dyn Write>)> {
        ensure!(self.concurrency > 0, "option `--concurrency`: expected at least 1, found 0");
        let (section, columns) = self.section()?;
        let scoring = Scoring {
            router: rewards(&section, &super::registry())?,
            columns,
            concurrency: self.concurrency,
            limits: section.timeout.unlearned()?,
            clock: Arc::new(WallClock::start()),
        };
        Ok((scoring, self.output()?))
    }

    /// The rewards, and which column is what.
    fn section(&self) -> anyhow::Result<(raw::Reward, Columns)> {
        if Path::new(&self.reward).extension().is_some_and(|extension| extension == "toml") {
            let recipe = Recipe::read(Path::new(&self.reward), &self.options)?;
            let columns = self.columns.over(Some(&recipe.raw.data));
            return Ok((recipe.raw.reward, columns));
        }
        let mut options = Table::new();
        for option in &self.options {
            overlay(&mut options, option)?;
        }
        let section = raw::Reward {
            routes: BTreeMap::from([("*".to_owned(), Routed::One(self.reward.clone()))]),
            options: BTreeMap::from([(self.reward.clone(), options)]),
            ..raw::Reward::default()
        };
        Ok((section, self.columns.over(None)))
    }

    fn output(&self) -> anyhow::Result<Box<dyn Write>> {
        Ok(match &self.output {
            None => Box::new(io::sink()),
            Some(path) if path.as_os_str() == "-" => Box::new(BufWriter::new(io::stdout())),
            Some(path) => {
                let file = File::create(path)
                    .with_context(|| format!("cannot create {}", path.display()))?;
                Box::new(BufWriter::new(file))
            }
        })
    }

    /// The summary, on standard output unless the rows are there.
    fn print(&self, summary: &Summary) -> anyhow::Result<()> {
        let text = match self.json {
            true => format!("{}\n", serde_json::to_string(summary)?),
            false => summary.text(),
        };
        match self.output.as_deref() {
            Some(path) if path.as_os_str() == "-" => io::stderr().write_all(text.as_bytes())?,
            _ => io::stdout().write_all(text.as_bytes())?,
        }
        Ok(())
    }
}

impl ColumnArgs {
    /// The columns of the command line, and where it says nothing those of a recipe.
    fn over(&self, recipe: Option<&raw::Data>) -> Columns {
        let data = recipe.cloned().unwrap_or_default();
        let extra = || recipe.map(|data| data.extra_columns.clone());
        Columns {
            response: self.response_key.clone(),
            data_source: self.data_source_key.clone().or(data.reward_fn_key),
            ground_truth: self.ground_truth_key.clone().or(data.ground_truth_key),
            prompt: self.prompt_key.clone().or(data.prompt_key),
            extra_info: self.extra_info_key.clone(),
            group: self.group_key.clone(),
            extra_columns: self.extra_columns.clone().or_else(extra),
            default_data_source: self.default_data_source.clone(),
        }
    }
}
