//! `rollpacker score`: scores the rows of a file with a reward.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, IntoInnerError, Write};
use std::num::NonZero;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::Args;
use rollpacker_dataflow::bridge::TaskRuntime;
use rollpacker_dataflow::clock::WallClock;
use rollpacker_datasets::DatasetConfig;
use rollpacker_files::{Inputs, NewFile};
use rollpacker_stages::wrong_value::one_of;
use toml::Table;

use super::exit_status::bad_input;
use crate::App;
use crate::memory::{Estimate, judge_parts};
use crate::progress::RowProgress;
use crate::recipe::{Recipe, Reward, RouteTarget, overlay};
use crate::rewards::rewards;
use crate::score::{ScoreColumns, ScoreSummary, Scoring};
use crate::terminal::{self, JsonRows};

/// Maximum of `--concurrency`. All concurrently scored rows are in memory.
const CONCURRENCY: usize = 1 << 16;

/// Score the rows of a file with a reward, without training.
///
/// A row has the columns data_source, response, ground_truth, extra_info, prompt and further columns; only the response is required. Exits
/// with 1 if a row has no score, unless `--allow-errors` is given, and with 2 if the reward or the file cannot be used, or the file has no
/// rows or no row with a column that an option names.
#[derive(Debug, Args)]
pub(crate) struct ScoreArgs {
    /// Name of a reward, or a recipe (TOML file) with routes, options and columns.
    #[arg(long)]
    reward: String,
    /// Parquet or JSONL file, or a pipe of JSONL.
    #[arg(long, short)]
    input: PathBuf,
    /// File to write, one JSON object per line in the order of the rows; `-` for standard output. The file appears after all rows are
    /// scored.
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Print the summary as one JSON object.
    #[arg(long)]
    json: bool,
    /// Option of the reward or of its guard; with a recipe, any setting by its dotted name.
    #[arg(long = "option", value_name = "KEY=VALUE")]
    options: Vec<String>,
    /// Maximum number of rows scored at once, from 1 to 65536.
    #[arg(long, default_value_t = 32)]
    concurrency: usize,
    /// Exit with 0 even if some rows have no score.
    #[arg(long)]
    allow_errors: bool,
    #[command(flatten)]
    columns: ColumnArgs,
}

#[derive(Debug, Args)]
struct ColumnArgs {
    /// Column of the response; a dot selects a field of a struct [default: response, solution_str, completion, output, generation or
    /// response_text].
    #[arg(long)]
    response_key: Option<String>,
    /// Column of the data source, which selects the reward. (verl: data.reward_fn_key)
    #[arg(long, alias = "reward-fn-key")]
    data_source_key: Option<String>,
    /// Column of the reference answer.
    #[arg(long)]
    ground_truth_key: Option<String>,
    /// Column of the prompt.
    #[arg(long)]
    prompt_key: Option<String>,
    /// Column of additional information.
    #[arg(long)]
    extra_info_key: Option<String>,
    /// Column that identifies the prompt of a row, for rewards that score whole groups [default: uid, group_id, prompt_id, index or
    /// extra_info.index].
    #[arg(long)]
    group_key: Option<String>,
    /// Further columns to pass to the reward in extra_info; `*` for all [default: all, or `data.extra_columns` of the recipe].
    #[arg(long, value_delimiter = ',')]
    extra_columns: Option<Vec<String>>,
    /// Data source of rows that name none.
    #[arg(long, default_value = "unknown")]
    default_data_source: String,
}

pub(crate) fn run(args: ScoreArgs, app: &App) -> anyhow::Result<ExitCode> {
    let (scoring, output) = match args.open(app) {
        Ok(opened) => opened,
        Err(error) => return Ok(bad_input(&error)),
    };
    let summary = match score(&args, scoring, output) {
        Ok(summary) => summary,
        // The reader of the rows has closed its end, as `head` does.
        Err(error) if is_closed(&error) => return Ok(ExitCode::SUCCESS),
        Err(error) => return Ok(bad_input(&error)),
    };
    args.print(&summary)?;
    let failed = summary.failed() > 0 && !args.allow_errors;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn is_closed(error: &anyhow::Error) -> bool {
    let error = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn score(args: &ScoreArgs, scoring: Scoring, mut output: Output) -> anyhow::Result<ScoreSummary> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let runtime =
        TaskRuntime::start(cores, "reward").context("cannot start the threads of the rewards")?;
    let progress = RowProgress::new();
    let scored = runtime.handle().block_on(scoring.run(&args.input, &mut output, |done, all| {
        progress.done(done, all);
    }));
    progress.finish();
    let summary = scored?;
    output.finish()?;
    Ok(summary)
}

/// The destination of the scored rows, as `--output` selects it.
enum Output {
    Nowhere(io::Sink),
    Terminal(JsonRows),
    File(BufWriter<NewFile>),
}

impl Output {
    /// Moves a finished file into place. Until then, the path keeps its previous content.
    fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::Nowhere(_) | Self::Terminal(_) => Ok(()),
            Self::File(file) => {
                Ok(file.into_inner().map_err(IntoInnerError::into_error)?.finish()?)
            }
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Nowhere(sink) => sink.write(bytes),
            Self::Terminal(rows) => rows.write(bytes),
            Self::File(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Nowhere(sink) => sink.flush(),
            Self::Terminal(rows) => rows.flush(),
            Self::File(file) => file.flush(),
        }
    }
}

impl ScoreArgs {
    fn open(&self, app: &App) -> anyhow::Result<(Scoring, Output)> {
        ensure!(self.concurrency > 0, "option `--concurrency`: expected at least 1, found 0");
        ensure!(
            self.concurrency <= CONCURRENCY,
            "option `--concurrency`: expected at most {CONCURRENCY}, found {}",
            self.concurrency
        );
        let ScoreSection { reward, columns, mut inputs } = self.section(app)?;
        let mut estimate = Estimate::default();
        estimate.extend(judge_parts(&reward));
        estimate.check()?;
        inputs.add(&self.input);
        let output = self.output(&inputs)?;
        let scoring = Scoring {
            router: rewards(&reward, &app.rewards)?,
            columns,
            concurrency: self.concurrency,
            limits: reward.timeout.fixed_limits()?,
            clock: Arc::new(WallClock::start()),
        };
        Ok((scoring, output))
    }

    fn section(&self, app: &App) -> anyhow::Result<ScoreSection> {
        let path = Path::new(&self.reward);
        if path.extension().is_some_and(|extension| extension == "toml") {
            let recipe = Recipe::read_with(path, &self.options, &app.schedules, &app.placements)?;
            let columns = self.columns.or_recipe(Some(&recipe.train_data));
            let mut inputs = recipe.inputs();
            inputs.add(path);
            return Ok(ScoreSection { reward: recipe.reward, columns, inputs });
        }
        let mut options = Table::new();
        for option in &self.options {
            overlay(&mut options, option)?;
        }
        let names: Vec<&str> = app.rewards.names().collect();
        ensure!(
            names.contains(&self.reward.as_str()) || options.contains_key("kind"),
            "option `--reward`: expected a recipe, whose name ends with `.toml`, or {}, found `{}`",
            one_of(&names, &self.reward),
            self.reward
        );
        let reward = Reward {
            routes: BTreeMap::from([("*".to_owned(), RouteTarget::One(self.reward.clone()))]),
            options: BTreeMap::from([(self.reward.clone(), options)]),
            ..Reward::default()
        };
        let inputs = reward.inputs();
        Ok(ScoreSection { reward, columns: self.columns.or_recipe(None), inputs })
    }

    fn output(&self, inputs: &Inputs) -> anyhow::Result<Output> {
        Ok(match &self.output {
            None => Output::Nowhere(io::sink()),
            Some(path) if is_standard(path) => {
                let output = io::stdout().as_fd().try_clone_to_owned();
                let output = File::from(output.context("cannot open standard output")?);
                inputs.check_open("standard output", &output)?;
                Output::Terminal(JsonRows::new())
            }
            Some(path) => {
                inputs.check_output(path)?;
                Output::File(BufWriter::new(NewFile::create(path)?))
            }
        })
    }

    /// Prints the summary on standard output, or on standard error if the rows go to standard output.
    fn print(&self, summary: &ScoreSummary) -> anyhow::Result<()> {
        let text = if self.json { serde_json::to_string(summary)? } else { summary.text() };
        match self.output.as_deref() {
            Some(path) if is_standard(path) => terminal::warn(text.trim_end()),
            _ => terminal::print_line(text.trim_end()).context("cannot print")?,
        }
        Ok(())
    }
}

/// The rewards and columns to score with, and the input files that they were read from or that they name.
struct ScoreSection {
    reward: Reward,
    columns: ScoreColumns,
    inputs: Inputs,
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl ColumnArgs {
    /// Returns the columns that the command line names. The columns of the data source, of the reference answer and of the prompt, and the
    /// further columns, default to those of the recipe, if there is one.
    fn or_recipe(&self, recipe: Option<&DatasetConfig>) -> ScoreColumns {
        let columns = recipe.map(|data| data.columns.clone()).unwrap_or_default();
        let extra = || recipe.map(|data| data.extra_columns.clone());
        ScoreColumns {
            response: self.response_key.clone(),
            data_source: self.data_source_key.clone().or(columns.data_source),
            ground_truth: self.ground_truth_key.clone().or(columns.ground_truth),
            prompt: self.prompt_key.clone().or(columns.prompt),
            extra_info: self.extra_info_key.clone(),
            group: self.group_key.clone(),
            extra_columns: self.extra_columns.clone().or_else(extra),
            default_data_source: self.default_data_source.clone(),
            required: self.named(),
        }
    }

    /// Returns the columns that the command line names and at least one row must have. The columns of the response, the reference answer
    /// and the group are not among them: a row that lacks one of these, if it needs it, gets an error of its own.
    fn named(&self) -> BTreeSet<String> {
        let extra = self.extra_columns.iter().flatten().filter(|name| *name != "*");
        let named = [&self.data_source_key, &self.prompt_key, &self.extra_info_key];
        named.into_iter().flatten().chain(extra).cloned().collect()
    }
}
