//! `rollpacker profile`: what the iterations of the rollout engine cost.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::Args;
use rollpacker_dataflow::clock::{Nanos, WallClock};
use rollpacker_stages::model::{Decoder, DeviceChoice, ModelConfig};
use rollpacker_stages::rollout::profile::grid::doublings;
use rollpacker_stages::rollout::profile::torch::TorchMeasure;
use rollpacker_stages::rollout::profile::{Grid, Phase, Row, measure};

use super::BAD_INPUT;
use crate::profile;
use crate::recipe::Recipe;
use crate::session::{check_context, engine_config};

/// Tokens of the shortest sequences that are measured; below, an iteration costs the same.
const SHORTEST: u32 = 16;

/// Measure what the iterations of the rollout engine cost, over batch sizes, lengths and instances.
#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    /// The recipe, a TOML file: its model, device and engine are measured, up to its longest prompts and responses.
    #[arg(long)]
    config: PathBuf,
    /// Settings that replace those of the recipe, by their dotted names.
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Parquet file to write.
    #[arg(long, short, default_value = "profile.parquet")]
    output: PathBuf,
    /// Seconds to measure for; the finer the grid, and the more repeats, the longer.
    #[arg(long, default_value_t = 240.0)]
    budget: f64,
}

pub(crate) fn run(args: ProfileArgs) -> anyhow::Result<ExitCode> {
    let (mut engine, grid, clock) = match open(&args) {
        Ok(opened) => opened,
        Err(error) => {
            drop(writeln!(std::io::stderr(), "error: {error:#}"));
            return Ok(ExitCode::from(BAD_INPUT));
        }
    };
    let rows = measure(&grid, &mut engine, &*clock, Nanos::from_secs_f64(args.budget))?;
    profile::write(&args.output, &rows)?;
    let (measured, points) = (rows.len(), grid.points().len());
    let text =
        format!("{}wrote {}: {measured} of {points} points\n", table(&rows), args.output.display());
    write!(std::io::stdout(), "{text}").context("cannot print")?;
    Ok(ExitCode::SUCCESS)
}

fn open(args: &ProfileArgs) -> anyhow::Result<(TorchMeasure, Grid, Arc<WallClock>)> {
    ensure!(
        args.budget > 0.0 && args.budget.is_finite(),
        "option `--budget`: expected seconds above 0, found {}",
        args.budget
    );
    let recipe = Recipe::read(&args.config, &args.overrides)?;
    let folder = &recipe.raw.model.path;
    check_context(&recipe, &ModelConfig::from_folder(folder)?)?;
    let device = recipe.raw.trainer.device.parse::<DeviceChoice>()?.resolve()?;
    let clock = Arc::new(WallClock::start());
    let decoder = |_instance| Decoder::load(folder, device);
    let engine = TorchMeasure::start(engine_config(&recipe), decoder, clock.clone())?;
    Ok((engine, grid(&recipe), clock))
}

/// Up to what the recipe lets an instance hold.
fn grid(recipe: &Recipe) -> Grid {
    let (data, rollout) = (&recipe.raw.data, &recipe.raw.rollout);
    let tokens = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
    let longest_prompt = tokens(data.max_prompt_length);
    let longest = longest_prompt.saturating_add(data.max_response_length);
    Grid {
        instances: doublings(1, rollout.instances),
        tensor_parallel: 1,
        batch_sizes: doublings(1, tokens(rollout.max_num_seqs)),
        prompt_lengths: doublings(SHORTEST, longest_prompt),
        context_lengths: doublings(SHORTEST, longest),
        kv_cache_tokens: rollout.kv_cache_tokens,
    }
}

/// Milliseconds, a block for each phase and instance count: batch sizes down, tokens across. Points that were not measured are blank.
fn table(rows: &[Row]) -> String {
    let block = |row: &Row| (row.phase, row.instances);
    rows.chunk_by(|one, next| block(one) == block(next)).map(block_text).collect()
}

fn block_text(rows: &[Row]) -> String {
    let Row { phase, instances, .. } = rows[0];
    let what = match phase {
        Phase::Prefill => "prefill: milliseconds by batch size and prompt length",
        Phase::Decode => "decode: milliseconds by batch size and context length",
    };
    let mut lengths: Vec<u32> = rows.iter().map(|row| row.tokens).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let header: String = lengths.iter().map(|length| format!("{length:>10}")).collect();
    let lines = rows.chunk_by(|one, next| one.batch_size == next.batch_size);
    let lines: String = lines.map(|line| line_text(line, &lengths)).collect();
    let plural = if instances == 1 { "instance" } else { "instances" };
    format!("{what}, {instances} {plural}\n{:>8}{header}\n{lines}\n", "")
}

/// The rows of one batch size.
fn line_text(rows: &[Row], lengths: &[u32]) -> String {
    let cell = |length: &u32| {
        let row = rows.iter().find(|row| row.tokens == *length);
        row.map_or(format!("{:>10}", ""), |row| format!("{:>10.3}", row.seconds * 1e3))
    };
    let cells: String = lengths.iter().map(cell).collect();
    format!("{:>8}{}\n", rows[0].batch_size, cells).trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn times_stand_by_batch_size_and_length() {
        let row = |phase, instances, batch_size, tokens, seconds| Row {
            phase,
            instances,
            tensor_parallel: 1,
            batch_size,
            tokens,
            seconds,
            repeats: 3,
        };
        let rows = [
            row(Phase::Prefill, 1, 1, 16, 0.001),
            row(Phase::Decode, 2, 1, 16, 0.001_25),
            row(Phase::Decode, 2, 1, 512, 0.002),
            row(Phase::Decode, 2, 64, 16, 1.5),
        ];
        expect![[r#"
            prefill: milliseconds by batch size and prompt length, 1 instance
                            16
                   1     1.000

            decode: milliseconds by batch size and context length, 2 instances
                            16       512
                   1     1.250     2.000
                  64  1500.000

        "#]]
        .assert_eq(&table(&rows));
    }

    #[test]
    fn the_grid_goes_up_to_what_the_recipe_allows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recipe.toml");
        std::fs::write(&path, "").unwrap();
        let settings = [
            "rollout.instances=3",
            "rollout.max_num_seqs=6",
            "data.max_prompt_length=40",
            "data.max_response_length=60",
        ];
        let recipe = Recipe::read(&path, &settings.map(str::to_owned)).unwrap();
        let expected = Grid {
            instances: vec![1, 2, 3],
            tensor_parallel: 1,
            batch_sizes: vec![1, 2, 4, 6],
            prompt_lengths: vec![16, 32, 40],
            context_lengths: vec![16, 32, 64, 100],
            kv_cache_tokens: 262_144,
        };
        assert_eq!(grid(&recipe), expected);
    }
}
