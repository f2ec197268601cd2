//! The first and the last lines that `rollpacker train` prints.

use std::path::Path;

use rollpacker_model::{Family, ModelConfig};
use serde_json::{Map, Value, json};

use crate::lifetime::EndReason;
use crate::memory::{self, ByteSize};
use crate::progress::Console;
use crate::recipe::Recipe;
use crate::reporter::expected_steps;
use crate::session::Session;
use crate::terminal::escape_line;

/// The facts that are printed at the start of a run, as pairs of a name and a text.
pub(crate) struct StartBanner(Vec<(&'static str, String)>);

impl StartBanner {
    pub(crate) fn of(recipe: &Recipe, session: &Session) -> Self {
        let facts = [
            ("run folder", recipe.run.default_local_dir.display().to_string()),
            ("model", model(&recipe.model.path)),
            ("data", data(recipe, session)),
            ("recipe", algorithm(recipe, session.prompts())),
            ("schedule", schedule(recipe)),
            ("rewards", rewards(recipe)),
            ("engine", engine(recipe)),
            ("trainer", trainer(recipe, &session.device())),
        ];
        let placement = recipe.describe_placement().map(|text| ("placement", text));
        // The size of the caches of other engines is unknown.
        let cache = if session.has_torch_engine() { kv_cache(recipe) } else { None };
        let cache = cache.map(|text| ("KV cache", text));
        Self(facts.into_iter().chain(cache).chain(placement).collect())
    }

    /// Prints the version of the program and the facts, one per line. If the console prints JSON, prints only the facts, as one JSON line.
    pub(crate) fn print(&self, console: &Console) {
        if crate::terminal::is_json() {
            let fact = |(name, text): &(&str, String)| (name.replace(' ', "_"), json!(text));
            console.print("start", self.0.iter().map(fact).collect());
            return;
        }
        console.print_line(&format!("rollpacker {}", env!("CARGO_PKG_VERSION")));
        for (name, text) in &self.0 {
            console.print_line(&format!("  {name:<11} {}", escape_line(text)));
        }
    }
}

fn model(folder: &Path) -> String {
    let config = ModelConfig::from_folder(folder).ok();
    let size = config.map_or_else(String::new, |config| {
        let family = match config.family {
            Family::Qwen2 => "Qwen2",
            Family::Qwen3 => "Qwen3",
            Family::Llama => "Llama",
        };
        let count = short_count(config.parameter_count().max(0).cast_unsigned());
        format!(": {family}, {count} parameters")
    });
    format!("{}{size}", folder.display())
}

/// Formats a number with three significant digits and a suffix, such as `596M`. Numbers below 1000 are printed in full.
fn short_count(count: u64) -> String {
    let units = [(1_000_000_000, "B"), (1_000_000, "M"), (1_000, "K")];
    let Some((unit, suffix)) = units.into_iter().find(|(unit, _)| count >= *unit) else {
        return count.to_string();
    };
    let value = count as f64 / unit as f64;
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$}{suffix}")
}

fn data(recipe: &Recipe, session: &Session) -> String {
    let files = |files: &[String]| files.join(", ");
    let trained = format!("{}: {} prompts", files(&recipe.train_data.files), session.prompts());
    match recipe.val_data.as_ref().zip(session.validation_prompts()) {
        Some((data, prompts)) => {
            format!("{trained}; validation: {}: {prompts} prompts", files(&data.files))
        }
        None => trained,
    }
}

fn algorithm(recipe: &Recipe, prompts: u64) -> String {
    format!(
        "{}, {} prompts x {} responses a step, at most {} tokens each, about {} steps, learning rate {}",
        recipe.choices.estimator.name(),
        recipe.data.train_batch_size,
        recipe.rollout.n,
        recipe.data.max_response_length,
        expected_steps(recipe, prompts),
        recipe.trainer.optimizer.learning_rate.peak,
    )
}

fn schedule(recipe: &Recipe) -> String {
    let name = recipe.schedule_name();
    let (prompts, responses) = recipe.launched;
    if (prompts, responses) == (recipe.data.train_batch_size, recipe.rollout.n) {
        name.to_owned()
    } else {
        format!("{name}, rounds launch up to {prompts} prompts x {responses} responses")
    }
}

fn rewards(recipe: &Recipe) -> String {
    let routes = recipe.reward.routes.iter();
    routes.map(|(source, routed)| format!("{source} = {routed}")).collect::<Vec<_>>().join(", ")
}

fn engine(recipe: &Recipe) -> String {
    let (name, slots) = (recipe.choices.engine.name(), recipe.rollout.max_num_seqs);
    let instances = recipe.engine_instances();
    format!("{name}, {instances} instances, at most {slots} responses each at once")
}

/// Describes the KV cache of an instance of the torch engine: its capacity in tokens and in bytes. Returns `None` if the configuration of
/// the model cannot be read.
fn kv_cache(recipe: &Recipe) -> Option<String> {
    let config = ModelConfig::from_folder(&recipe.model.path).ok()?;
    let tokens = recipe.rollout.kv_cache_tokens as u64;
    let bytes = ByteSize(memory::kv_cache_bytes_per_token(&config).saturating_mul(tokens));
    Some(format!("at most {tokens} tokens an instance, {bytes}"))
}

fn trainer(recipe: &Recipe, device: &str) -> String {
    let threads = recipe.trainer.threads;
    let workers = match recipe.run.workers {
        0 | 1 => String::new(),
        workers => format!(", {workers} workers"),
    };
    let threads = if recipe.has_fixed_placement() && device == "cpu" {
        format!(", {threads} thread{}", if threads == 1 { "" } else { "s" })
    } else {
        String::new()
    };
    format!("{} on {device}{threads}{workers}", recipe.choices.trainer.name())
}

/// Returns the last line of a run: the run folder, the folder of the trained model, and the command that shows the run. If the run ended
/// early, the line says how to resume it instead of the command.
pub(crate) fn end_line(run: &Path, model: &Path, ended: EndReason) -> String {
    let next = next_command(run, ended);
    format!("run folder: {}, model: {}, next: {next}", displayed_path(run), displayed_path(model))
}

/// Returns the content of the last line as the fields of a JSON line.
pub(crate) fn end_fields(run: &Path, model: &Path, ended: EndReason) -> Map<String, Value> {
    let fields = [
        ("run_folder", run.display().to_string()),
        ("model", model.display().to_string()),
        ("next", next_command(run, ended)),
    ];
    fields.map(|(name, text)| (name.to_owned(), json!(text))).into_iter().collect()
}

fn next_command(run: &Path, ended: EndReason) -> String {
    match ended {
        EndReason::Finished => format!("rollpacker show {}", shell_word(run)),
        EndReason::Stopped | EndReason::OutOfTime => {
            "the same command with `--resume` continues from the last snapshot, if the run took any"
                .to_owned()
        }
    }
}

fn displayed_path(path: &Path) -> String {
    escape_line(&path.display().to_string()).into_owned()
}

/// Returns a path as an argument of a shell command, in quotes if it is empty, begins with `-` or has special characters. A path that
/// begins with `-` gets the prefix `./`, so that it is not taken for an option.
fn shell_word(path: &Path) -> String {
    let text = displayed_path(path);
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:@%,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('-') {
        return text;
    }
    let quoted = text.replace('\'', r"'\''");
    let dash = if quoted.starts_with('-') { "./" } else { "" };
    format!("'{dash}{quoted}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_three_digits() {
        let counts = [7, 999, 1_234, 25_600, 596_049_920, 7_615_616_512, 123_000_000_000];
        let short = counts.map(short_count);
        assert_eq!(short, ["7", "999", "1.23K", "25.6K", "596M", "7.62B", "123B"]);
    }

    #[test]
    fn the_last_line_names_a_command_that_a_shell_can_run() {
        let line = |run: &str| end_line(Path::new(run), Path::new("m"), EndReason::Finished);
        assert_eq!(line("r/1"), "run folder: r/1, model: m, next: rollpacker show r/1");
        assert!(line("my run's").ends_with(r"rollpacker show 'my run'\''s'"));
        assert!(line("-r").ends_with("rollpacker show './-r'"));
        let stopped = end_line(Path::new("r"), Path::new("m"), EndReason::Stopped);
        assert!(stopped.contains("--resume"));
    }
}
