//! `rollpacker data`: inspect, validate, convert and generate prompt datasets.

use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use rollpacker_datasets::convert::{OutputFormat, convert};
use rollpacker_datasets::generate::{ChainConfig, ChainLengths, generate};
use rollpacker_datasets::inspect::{FileFacts, Inspection, inspect};
use rollpacker_datasets::validate::{Defect, Validation, validate};
use rollpacker_datasets::{Compression, DatasetConfig, DatasetError, PromptColumns, WriteOptions};

use super::exit_status::{BAD_INPUT, bad_input};
use crate::terminal::{self, escape_line};

/// Inspect, validate, convert and generate prompt datasets.
#[derive(Debug, Args)]
pub(crate) struct DataArgs {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Debug, Subcommand)]
enum DataCommand {
    /// Describe a dataset: rows, columns, data sources, prompt lengths, reference answers and samples.
    Inspect(InspectArgs),
    /// Check every row and list the defects by kind; exit with 2 if a row cannot be used.
    Validate(ValidateArgs),
    /// Convert between Parquet in verl's schema and JSON lines.
    Convert(ConvertArgs),
    /// Generate train.parquet and validation.parquet of the built-in task.
    Generate(GenerateArgs),
}

#[derive(Debug, Args)]
struct Input {
    /// Parquet or JSONL files, or globs.
    #[arg(required = true)]
    files: Vec<String>,
    /// Column of the prompt; a dot selects a field of a struct. (verl: data.prompt_key)
    #[arg(long)]
    prompt_key: Option<String>,
    /// Column of the data source, which selects the reward. (verl: data.reward_fn_key)
    #[arg(long)]
    data_source_key: Option<String>,
    /// Column of the reference answer.
    #[arg(long)]
    ground_truth_key: Option<String>,
    /// Column of additional information.
    #[arg(long)]
    extra_info_key: Option<String>,
    /// Column of the domain.
    #[arg(long)]
    domain_key: Option<String>,
    /// Data source of rows that name none.
    #[arg(long, default_value = "unknown")]
    default_data_source: String,
    /// Further columns to copy into extra_info; `*` for all [default: none; for `convert`, all].
    #[arg(long, value_delimiter = ',')]
    extra_columns: Vec<String>,
}

#[derive(Debug, Args)]
struct InspectArgs {
    #[command(flatten)]
    input: Input,
    /// Number of prompts to show.
    #[arg(long, default_value_t = 2)]
    samples: usize,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ValidateArgs {
    #[command(flatten)]
    input: Input,
    /// Maximum number of locations to list for each kind of defect.
    #[arg(long, default_value_t = 5)]
    first: usize,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ConvertArgs {
    #[command(flatten)]
    input: Input,
    /// File to write.
    #[arg(short, long)]
    output: PathBuf,
    /// Format to write [default: verl for a .parquet file, messages otherwise].
    #[arg(long, value_enum)]
    to: Option<TargetFramework>,
    #[command(flatten)]
    writing: WriteArgs,
}

#[derive(Debug, Args)]
struct GenerateArgs {
    /// Folder to write into.
    #[arg(short, long)]
    output: PathBuf,
    /// Number of training prompts.
    #[arg(long, default_value_t = ChainConfig::default().rows)]
    rows: u64,
    /// Number of held-out prompts.
    #[arg(long, default_value_t = ChainConfig::default().validation_rows)]
    validation_rows: u64,
    /// Seed of the generator.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Median number of maps of a prompt. The prompt `3+4*7` has two maps: `+4` and `*7`.
    #[arg(long, default_value_t = ChainLengths::default().median)]
    median: f64,
    /// Standard deviation of the logarithm of the number of maps.
    #[arg(long, default_value_t = ChainLengths::default().sigma)]
    sigma: f64,
    /// Maximum number of maps of a prompt.
    #[arg(long, default_value_t = ChainLengths::default().max)]
    max_maps: u32,
    /// Share of demonstrations without a worked solution, from 0 to 1.
    #[arg(long, default_value_t = ChainConfig::default().direct_share)]
    direct_share: f64,
    #[command(flatten)]
    writing: WriteArgs,
}

#[derive(Debug, Args)]
struct WriteArgs {
    /// Compression of Parquet pages [default: snappy].
    #[arg(long, value_enum)]
    compression: Option<Codec>,
    /// Maximum number of rows of a Parquet row group, at least 1 [default: 65536].
    #[arg(long)]
    row_group_rows: Option<NonZero<usize>>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Codec {
    Snappy,
    Zstd,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TargetFramework {
    /// Parquet in verl's schema.
    Verl,
    /// JSON lines in ROLL's columns.
    Roll,
    /// JSON lines with a list of messages.
    Messages,
}

impl Input {
    fn config(&self) -> DatasetConfig {
        DatasetConfig {
            columns: PromptColumns {
                prompt: self.prompt_key.clone(),
                data_source: self.data_source_key.clone(),
                ground_truth: self.ground_truth_key.clone(),
                extra_info: self.extra_info_key.clone(),
                domain: self.domain_key.clone(),
            },
            extra_columns: self.extra_columns.clone(),
            default_data_source: self.default_data_source.clone(),
            ..DatasetConfig::of(self.files.iter().cloned())
        }
    }
}

impl WriteArgs {
    fn options(&self) -> WriteOptions {
        let default = WriteOptions::default();
        let compression = self.compression.map_or(default.compression, |codec| match codec {
            Codec::Snappy => Compression::Snappy,
            Codec::Zstd => Compression::Zstd,
        });
        let row_group_rows = self.row_group_rows.map_or(default.row_group_rows, NonZero::get);
        WriteOptions { compression, row_group_rows }
    }

    /// Checks that no option of Parquet is given for a file of JSON lines.
    fn check_unused(&self) -> Result<(), DatasetError> {
        let compression = self.compression.and_then(|codec| codec.to_possible_value());
        let compression = compression.map(|codec| ("--compression", codec.get_name().to_owned()));
        let rows = self.row_group_rows.map(|rows| ("--row-group-rows", rows.to_string()));
        compression.or(rows).map_or(Ok(()), |(key, found)| {
            let expected = "an output in Parquet with this option";
            Err(DatasetError::Setting { key, expected, found })
        })
    }
}

/// Runs a subcommand. The exit status is 2 if the input, an option or the output cannot be used, or if `validate` finds a row that cannot
/// be used, and 0 otherwise. The errors are printed on standard error. With `--json`, the defects of rows are printed in the JSON object
/// instead.
///
/// # Errors
///
/// If the report cannot be printed.
pub(crate) fn run(args: DataArgs) -> anyhow::Result<ExitCode> {
    let report = match args.command {
        DataCommand::Inspect(args) => inspect_report(&args)?,
        DataCommand::Validate(args) => validate_report(&args)?,
        DataCommand::Convert(args) => convert_report(&args),
        DataCommand::Generate(args) => generate_report(&args),
    };
    match report {
        Ok((text, code)) => {
            terminal::print_line(text.trim_end()).context("cannot print the report")?;
            Ok(code)
        }
        Err(error) => Ok(bad_input(&error.into())),
    }
}

/// The text to print and the exit status, or the error of the input, of an option or of the output.
type DataReport = Result<(String, ExitCode), DatasetError>;

fn inspect_report(args: &InspectArgs) -> anyhow::Result<DataReport> {
    let inspection = match inspect(&args.input.config(), args.samples) {
        Ok(inspection) => inspection,
        Err(error) => return Ok(Err(error)),
    };
    let text = if args.json {
        serde_json::to_string_pretty(&inspection)?
    } else {
        inspection_text(&inspection)
    };
    Ok(Ok((text, ExitCode::SUCCESS)))
}

fn validate_report(args: &ValidateArgs) -> anyhow::Result<DataReport> {
    let validation = match validate(&args.input.config(), args.first) {
        Ok(validation) => validation,
        Err(error) => return Ok(Err(error)),
    };
    let text =
        if args.json { serde_json::to_string_pretty(&validation)? } else { summary(&validation) };
    let code = if validation.errors > 0 { ExitCode::from(BAD_INPUT) } else { ExitCode::SUCCESS };
    let (errors, warnings): (Vec<&Defect>, Vec<&Defect>) =
        validation.defects.iter().partition(|defect| !defect.warning);
    let listed = [errors, warnings].concat().into_iter().map(defect_text).collect::<String>();
    if !args.json && !listed.is_empty() {
        terminal::warn(listed.trim_end());
    }
    Ok(Ok((text, code)))
}

fn convert_report(args: &ConvertArgs) -> DataReport {
    let parquet = args.output.extension().is_some_and(|extension| extension == "parquet");
    let format = match args.to {
        Some(TargetFramework::Verl) => OutputFormat::Verl,
        None if parquet => OutputFormat::Verl,
        Some(TargetFramework::Roll) => OutputFormat::Roll,
        Some(TargetFramework::Messages) | None => OutputFormat::Messages,
    };
    if parquet != (format == OutputFormat::Verl) {
        // Readers tell the formats apart by the extension.
        let expected = match format {
            OutputFormat::Verl => "a name that ends with `.parquet` with `--to verl`",
            _ => "a name that ends with `.jsonl` with `--to roll` and `--to messages`",
        };
        let (key, found) = ("--output", args.output.display().to_string());
        return Err(DatasetError::Setting { key, expected, found });
    }
    if !parquet {
        args.writing.check_unused()?;
    }
    let mut config = args.input.config();
    if config.extra_columns.is_empty() {
        config.extra_columns.push("*".to_owned()); // by default a conversion keeps all columns
    }
    let rows = convert(&config, &args.output, format, args.writing.options())?;
    Ok((format!("{}: {rows} rows", args.output.display()), ExitCode::SUCCESS))
}

fn generate_report(args: &GenerateArgs) -> DataReport {
    let config = ChainConfig {
        rows: args.rows,
        validation_rows: args.validation_rows,
        seed: args.seed,
        lengths: ChainLengths { median: args.median, sigma: args.sigma, max: args.max_maps },
        direct_share: args.direct_share,
    };
    let made = generate(&config, &args.output, args.writing.options()).map_err(name_flag)?;
    let files = format!(
        "{}: {} rows\n{}: {} rows",
        made.train.display(),
        args.rows,
        made.validation.display(),
        args.validation_rows
    );
    let (median, longest) = (made.median_solution_chars, made.longest_solution_chars);
    Ok((
        format!("{files}\nworked solutions: median {median}, longest {longest} characters"),
        ExitCode::SUCCESS,
    ))
}

/// Replaces the setting that an error names by the flag that sets it.
fn name_flag(error: DatasetError) -> DatasetError {
    let DatasetError::Setting { key, expected, found } = error else { return error };
    let (key, expected) = match key {
        "rows" => ("--rows", expected),
        "validation_rows" => ("--validation-rows", expected),
        "direct_share" => ("--direct-share", expected),
        "lengths.median" => ("--median", "1 to `--max-maps`"),
        "lengths.sigma" => ("--sigma", expected),
        "lengths.max" => ("--max-maps", expected),
        other => (other, expected),
    };
    DatasetError::Setting { key, expected, found }
}

fn summary(validation: &Validation) -> String {
    let Validation { files, rows, errors, warnings, .. } = validation;
    format!("{files} files, {rows} rows, {errors} errors, {warnings} warnings")
}

fn defect_text(defect: &Defect) -> String {
    let severity = if defect.warning { "warning" } else { "error" };
    let kind = serde_json::to_value(defect.kind)
        .ok()
        .and_then(|kind| kind.as_str().map(str::to_owned))
        .unwrap_or_default();
    let column = defect
        .column
        .as_ref()
        .map_or(String::new(), |column| format!(", column `{}`", escape_line(column)));
    let mut text = format!(
        "{severity}: {kind}{column}: {} found, expected {}\n",
        defect.count, defect.expected
    );
    for location in &defect.first {
        let row = location.row.map_or(String::new(), |row| format!(" row {row}"));
        let (file, found) = (location.file.display().to_string(), escape_line(&location.found));
        text += &format!("  {}{row}: found {found}\n", escape_line(&file));
    }
    match defect.count - defect.first.len() as u64 {
        0 => text,
        more => text + &format!("  and {more} more\n"),
    }
}

fn inspection_text(inspection: &Inspection) -> String {
    let mut text: String = inspection.files.iter().map(file_text).collect();
    text += &format!("rows           {} ({} unusable)\n", inspection.rows, inspection.bad_rows);
    text += &frequency_text("data sources", &inspection.data_sources);
    text += &frequency_text("domains", &inspection.domains);
    text += &frequency_text("ground truths", &inspection.ground_truths);
    if let Some(p) = inspection.prompt_chars {
        let (min, p50, p90, p99, max, mean) = (p.min, p.p50, p.p90, p.p99, p.max, p.mean);
        text += &format!(
            "prompt chars   min {min}, p50 {p50}, p90 {p90}, p99 {p99}, max {max}, mean {mean:.1}\n"
        );
    }
    for sample in &inspection.samples {
        let sample = serde_json::to_string_pretty(sample).unwrap_or_else(|error| error.to_string());
        text += &format!("sample         {sample}\n");
    }
    text
}

fn file_text(file: &FileFacts) -> String {
    let mut text = format!("{}\n", escape_line(&file.path.display().to_string()));
    text += &format!(
        "  {}, {} bytes, {} rows, {} row groups\n",
        file.format, file.bytes, file.rows, file.row_groups
    );
    for (name, data_type) in &file.columns {
        let roots = |path: &str| path == name || path.split('.').next() == Some(name);
        let parts: Vec<_> = file
            .parts
            .iter()
            .filter(|(_, path)| roots(path))
            .map(|(part, _)| part.as_str())
            .collect();
        let role =
            if parts.is_empty() { String::new() } else { format!("  <- {}", parts.join(", ")) };
        text += &format!("  {}\n", escape_line(&format!("{name}: {data_type}{role}")));
    }
    text
}

/// Formats the 20 most frequent values with their counts, and the number of other values.
fn frequency_text(title: &str, counts: &std::collections::BTreeMap<String, u64>) -> String {
    let mut commonest: Vec<_> = counts.iter().collect();
    commonest.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let shown: Vec<_> = commonest
        .iter()
        .take(20)
        .map(|(value, count)| format!("{} {count}", escape_line(value)))
        .collect();
    let more = commonest.len().saturating_sub(20);
    let rest = if more > 0 { format!(", and {more} more") } else { String::new() };
    format!("{title:<14} {}{rest}\n", shown.join(", "))
}
