//! `rollpacker sft`: trains a small model from scratch on demonstrations, as the initial model of a training run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use clap::Args;
use rollpacker_dataflow::clock::{Clock, Nanos, WallClock};
use rollpacker_datasets::{Cursor, Dataset, DatasetConfig, Prompt};
use rollpacker_files::{Inputs, NewFile, check_replaceable};
use rollpacker_model::tokenizer::{EOS, UNKNOWN};
use rollpacker_model::{
    ChatTemplate, FOLDER_FILES, Family, ModelConfig, PromptEncoder, Rope, Tokenizer,
};
use rollpacker_stages::device::DeviceChoice;
use rollpacker_stages::train::config::OptimizerConfig;
use rollpacker_stages::train::learning_rate::{Decay, LearningRate};
use rollpacker_torch::model::{Decoder, resolve_device};
use rollpacker_torch::train::sft::{Example, SftConfig, SftStep, fine_tune};
use tch::Device;

use super::exit_status::bad_input;
use crate::App;
use crate::memory::{self, Estimate, MicroBatches};
use crate::prompts::{batch_larger_than_dataset, chat_messages};
use crate::recipe::{Recipe, RecipeError, Sft};
use crate::terminal;

/// Train a small model from scratch on the demonstrations of a prompt dataset, and write it in Hugging Face format.
#[derive(Debug, Args)]
pub(crate) struct SftArgs {
    /// Recipe (TOML file) with a section `[sft]`.
    #[arg(long)]
    pub(crate) config: PathBuf,
    /// Settings that override the settings of the recipe, by their dotted names.
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Folder to write the model to; overrides `model.path`.
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
}

/// The resolved settings of a fine-tuning run.
#[derive(Clone, Debug)]
pub(crate) struct SftRecipe {
    /// The sizes of the model, its alphabet, and the field of `extra_info` that contains the demonstration.
    pub(crate) sft: Sft,
    /// The prompts with demonstrations.
    pub(crate) data: DatasetConfig,
    /// Optimizer, steps, batch and micro-batch sizes, threads and seed. The seed also determines the initial weights.
    pub(crate) training: SftConfig,
    pub(crate) device: DeviceChoice,
    /// Number of steps between two printed lines, at least 1.
    pub(crate) print_every: u64,
    /// The folder for the model and its tokenizer.
    pub(crate) out: PathBuf,
}

/// Returns the configuration of a new model with the vocabulary of `tokenizer`. The sizes are valid, because a recipe checks their ranges.
fn model(sft: &Sft, tokenizer: &Tokenizer) -> anyhow::Result<ModelConfig> {
    Ok(ModelConfig {
        family: Family::Qwen3,
        vocab_size: i64::try_from(tokenizer.vocab_size())?,
        hidden_size: sft.hidden_size,
        intermediate_size: sft.intermediate_size,
        layers: sft.num_hidden_layers,
        heads: sft.num_attention_heads,
        kv_heads: sft.num_key_value_heads,
        head_dim: sft.hidden_size / sft.num_attention_heads,
        rms_norm_eps: 1e-6,
        rope: Rope::Default { theta: 10_000.0 },
        tie_word_embeddings: sft.tie_word_embeddings,
        attention_bias: false,
        max_position_embeddings: sft.max_position_embeddings,
        initializer_range: 0.02,
        eos_token_ids: tokenizer.token_to_id(EOS).into_iter().collect(),
        bos_token_id: None,
        pad_token_id: tokenizer.token_to_id(rollpacker_model::tokenizer::PAD),
    })
}

/// Reads the recipe that the command line names and runs its fine-tuning.
///
/// A recipe, a dataset or an output folder that cannot be used, or a run that does not fit into memory, is reported on standard error with
/// exit status 2.
///
/// # Errors
/// If training fails, or the folder cannot be written.
pub(crate) fn run_args(args: SftArgs, app: &App) -> anyhow::Result<ExitCode> {
    let opened = Recipe::read_with(&args.config, &args.overrides, &app.schedules, &app.placements)
        .map_err(anyhow::Error::from)
        .and_then(|recipe| SftRecipe::resolve(&recipe, args.out))
        .and_then(|recipe| recipe.check_outputs(&args.config).map(|()| recipe))
        .and_then(SftRun::open);
    match opened {
        Ok(opened) => opened.train().map(|()| ExitCode::SUCCESS),
        Err(error) => Ok(bad_input(&error)),
    }
}

impl SftRecipe {
    /// Checks that the files of the model can be written, and that none of them is an input.
    fn check_outputs(&self, config: &Path) -> anyhow::Result<()> {
        let mut inputs = Inputs::of([config]);
        let data = self.data.paths().context("key `sft.train_files`")?;
        data.iter().for_each(|path| inputs.add(path));
        for name in FOLDER_FILES {
            check_replaceable(&self.out.join(name))?;
            inputs.check_output(&self.out.join(name))?;
        }
        Ok(())
    }

    fn resolve(recipe: &Recipe, out: Option<PathBuf>) -> anyhow::Result<Self> {
        let sft = &recipe.sft;
        let out = out.unwrap_or_else(|| recipe.model.path.clone());
        ensure!(
            !out.as_os_str().is_empty(),
            "key `model.path`: expected a folder to write, or --out"
        );
        let learning_rate = LearningRate {
            peak: sft.lr,
            warmup_steps: sft.lr_warmup_steps,
            decay: Decay::Constant,
        };
        let optimizer = OptimizerConfig {
            learning_rate,
            weight_decay: sft.weight_decay,
            ..OptimizerConfig::default()
        };
        Ok(Self {
            data: recipe.sft_data.clone(),
            training: SftConfig {
                optimizer,
                steps: sft.steps,
                batch_size: sft.batch_size,
                seed: recipe.run.seed,
                micro_batch_tokens: sft.micro_batch_tokens,
                threads: sft.threads,
            },
            device: recipe.run.device,
            print_every: sft.steps.div_ceil(12),
            sft: sft.clone(),
            out,
        })
    }
}

/// A fine-tuning run that is ready to train.
struct SftRun {
    recipe: SftRecipe,
    device: Device,
    tokenizer: Arc<Tokenizer>,
    model: ModelConfig,
    examples: Vec<Example>,
}

impl SftRun {
    /// Reads the demonstrations, and creates the folder of the model. Rejects a run that does not fit into memory, before any weights are
    /// allocated.
    ///
    /// # Errors
    ///
    /// If the device, the alphabet or the data cannot be used, a row has no demonstration, has an unknown character or is too long, there is
    /// not enough memory, or the model cannot be written.
    fn open(recipe: SftRecipe) -> anyhow::Result<Self> {
        let device = resolve_device(recipe.device).map_err(RecipeError::from)?;
        let tokenizer =
            Tokenizer::characters(&recipe.sft.alphabet).context("key `sft.alphabet`")?;
        let tokenizer = Arc::new(tokenizer);
        let model = model(&recipe.sft, &tokenizer)?;
        let (training, on_host) = (&recipe.training, device == Device::Cpu);
        let mut estimate = Estimate::default();
        estimate.extend(memory::fine_tuning_parts(&model, training, on_host));
        estimate.check()?;
        let examples = examples(&recipe, &tokenizer, &model)?;
        if on_host {
            estimate.extend(MicroBatches { model: &model, training, examples: &examples }.parts());
            estimate.check()?;
        }
        // Training takes long. Check first that the model can be written.
        fs::create_dir_all(&recipe.out)
            .with_context(|| format!("cannot create the folder {}", recipe.out.display()))?;
        drop(NewFile::create(&recipe.out.join(FOLDER_FILES[0]))?);
        Ok(Self { recipe, device, tokenizer, model, examples })
    }

    /// Trains the model, prints its progress on standard output, and writes the model.
    ///
    /// # Errors
    ///
    /// If the model cannot be created, training fails, or the folder cannot be written.
    fn train(self) -> anyhow::Result<()> {
        let Self { recipe, device, tokenizer, model, examples } = self;
        let training = &recipe.training;
        let mut decoder = Decoder::init(model, training.seed, device)?;
        print(&heading(training, decoder.config().parameter_count(), examples.len()));
        let mut progress = SftProgress::new(recipe.print_every, training.steps);
        fine_tune(&mut decoder, &examples, training, &mut |step| {
            progress.take(step).iter().for_each(|line| print(line));
        })?;
        save(&decoder, &tokenizer, &recipe.out)
    }
}

/// Returns the first line to print, preceded by a warning if a batch is larger than the dataset.
fn heading(training: &SftConfig, parameters: i64, rows: usize) -> String {
    let SftConfig { steps, batch_size, .. } = *training;
    let effect = "an update contains rows more than once";
    let warning = batch_larger_than_dataset("sft.batch_size", batch_size, rows as u64, effect);
    format!(
        "{}fine-tuning {parameters} parameters on {rows} demonstrations for {steps} steps",
        warning.map(|warning| warning + "\n").unwrap_or_default()
    )
}

/// Reads the dataset as token ids, in the order of its rows.
fn examples(
    recipe: &SftRecipe,
    tokenizer: &Arc<Tokenizer>,
    model: &ModelConfig,
) -> anyhow::Result<Vec<Example>> {
    let room = memory::available();
    let fits = |text: &str| {
        let needed = memory::min_activation_bytes(model, tokenizer.min_tokens(text.len()));
        room.is_none_or(|room| needed <= room.bytes)
    };
    let encoder = PromptEncoder { tokenizer: tokenizer.clone(), template: ChatTemplate::plain() };
    let data = Dataset::open(recipe.data.clone()).context("key `sft.train_files`")?;
    let prompts = data.prompts(Cursor::default())?.until_epoch(1);
    prompts
        .map(|prompt| {
            let prompt = prompt?;
            let location = || format!("{} row {}", prompt.file().display(), prompt.file_row());
            example(&prompt, &encoder, &recipe.sft.response_key, &fits)
                .and_then(|example| check_positions(&example, model).map(|()| example))
                .with_context(location)
        })
        .collect()
}

/// Tokenizes a row. A text whose activations would not fit into memory is rejected before it is tokenized.
fn example(
    prompt: &Prompt,
    encoder: &PromptEncoder,
    key: &str,
    fits: &dyn Fn(&str) -> bool,
) -> anyhow::Result<Example> {
    let extra = prompt.extra_info();
    let Some(demonstration) = extra.get(key).and_then(|value| value.as_str()) else {
        bail!(
            "`extra_info.{key}`: expected text, found {}",
            extra.get(key).map_or("nothing".into(), ToString::to_string)
        );
    };
    for text in prompt.messages().map(|message| message.content).chain([demonstration]) {
        ensure!(
            fits(text),
            "a text of {} bytes: training on its tokens at once needs more memory than is available; remove the row",
            text.len()
        );
    }
    let prompt_ids = encoder.encode(&chat_messages(prompt))?;
    let mut response_ids = encoder.tokenizer.encode(demonstration)?;
    let unknown = encoder.tokenizer.token_to_id(UNKNOWN);
    if prompt_ids.iter().chain(&response_ids).any(|&id| Some(id) == unknown) {
        bail!("the prompt or the demonstration contains a character that is not in `sft.alphabet`");
    }
    response_ids.extend(encoder.tokenizer.token_to_id(EOS));
    Ok(Example { prompt_ids, response_ids })
}

/// Rejects a row with more tokens than `max_position_embeddings` of the model.
fn check_positions(example: &Example, model: &ModelConfig) -> anyhow::Result<()> {
    let length = example.prompt_ids.len() + example.response_ids.len();
    ensure!(
        length as i64 <= model.max_position_embeddings,
        "expected a prompt and a demonstration of at most {} tokens, found {length}; remove the row, or increase `sft.max_position_embeddings`",
        model.max_position_embeddings
    );
    Ok(())
}

/// Writes the Hugging Face folder: configuration, weights and tokenizer.
fn save(decoder: &Decoder, tokenizer: &Tokenizer, folder: &Path) -> anyhow::Result<()> {
    decoder.save(folder)?;
    tokenizer.save(folder)?;
    print(&format!("wrote {}", folder.display()));
    Ok(())
}

/// Sums over the steps since the last printed line. The next line prints their mean loss and their throughput.
struct SftProgress {
    every: u64,
    steps: u64,
    clock: WallClock,
    since: Nanos,
    loss: f64,
    response_tokens: usize,
    tokens: usize,
}

impl SftProgress {
    fn new(every: u64, steps: u64) -> Self {
        let clock = WallClock::start();
        Self {
            every: every.max(1),
            steps,
            clock,
            since: clock.now(),
            loss: 0.0,
            response_tokens: 0,
            tokens: 0,
        }
    }

    /// Adds a step. Returns the line to print after every `every` steps and after the last step, and `None` after other steps.
    fn take(&mut self, step: &SftStep) -> Option<String> {
        self.loss += step.loss * step.response_tokens as f64;
        self.response_tokens += step.response_tokens;
        self.tokens += step.tokens;
        let done = step.step.0 + 1;
        if !done.is_multiple_of(self.every) && done != self.steps {
            return None;
        }
        let now = self.clock.now();
        let loss = self.loss / self.response_tokens.max(1) as f64;
        let speed = self.tokens as f64 / now.since(self.since).as_secs_f64().max(1e-9);
        (self.since, self.loss, self.response_tokens, self.tokens) = (now, 0.0, 0, 0);
        let (norm, rate) = (step.grad_norm, step.learning_rate);
        Some(format!(
            "step:{done} - sft/loss:{loss:.4} - sft/grad_norm:{norm:.3} - sft/lr:{rate:.2e} - perf/throughput:{speed:.0}"
        ))
    }
}

/// Prints a line. Errors are ignored, so that training continues when standard output is closed.
fn print(line: &str) {
    drop(terminal::print_line(line));
}

#[cfg(test)]
mod tests {
    use rollpacker_dataflow::step::Step;
    use rollpacker_datasets::WriteOptions;
    use rollpacker_datasets::generate::{ChainConfig, generate};

    use super::*;

    /// Opens and trains a fine-tuning run.
    fn run(recipe: SftRecipe) -> anyhow::Result<()> {
        SftRun::open(recipe)?.train()
    }

    fn recipe(folder: &Path) -> SftRecipe {
        let sft =
            Sft { hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, ..Sft::default() };
        SftRecipe {
            sft,
            data: DatasetConfig::of([folder.join("train.parquet").display().to_string()]),
            training: SftConfig { steps: 3, batch_size: 4, ..SftConfig::default() },
            device: DeviceChoice::Cpu,
            print_every: 2,
            out: folder.join("model"),
        }
    }

    fn task(folder: &Path) {
        let config = ChainConfig { rows: 8, validation_rows: 1, ..ChainConfig::default() };
        let _made = generate(&config, folder, WriteOptions::default()).unwrap();
    }

    #[test]
    fn trains_on_the_built_in_task_and_writes_a_folder_that_loads() {
        let folder = tempfile::tempdir().unwrap();
        task(folder.path());
        let recipe = recipe(folder.path());
        run(recipe.clone()).unwrap();
        let decoder =
            Decoder::load(&recipe.out, resolve_device(DeviceChoice::Cpu).unwrap()).unwrap();
        let tokenizer = Tokenizer::from_folder(&recipe.out).unwrap();
        assert_eq!(decoder.config().vocab_size, tokenizer.vocab_size() as i64);
        assert_eq!(decoder.config().eos_token_ids, [tokenizer.token_to_id(EOS).unwrap()]);
    }

    #[test]
    fn a_row_without_demonstration_is_named() {
        let folder = tempfile::tempdir().unwrap();
        task(folder.path());
        let mut recipe = recipe(folder.path());
        recipe.sft.response_key = "solution".to_owned();
        let error = format!("{:#}", run(recipe).unwrap_err());
        assert!(
            error.ends_with(
                "train.parquet row 0: `extra_info.solution`: expected text, found nothing"
            ),
            "{error}"
        );
    }

    #[test]
    fn a_character_outside_the_alphabet_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        task(folder.path());
        let mut recipe = recipe(folder.path());
        recipe.sft.alphabet = "0123456789+*=,:".to_owned();
        assert!(
            format!("{:#}", run(recipe).unwrap_err())
                .contains("a character that is not in `sft.alphabet`")
        );
    }

    #[test]
    fn a_progress_line_has_the_means_since_the_previous_one() {
        let step = |step, loss, response_tokens| SftStep {
            step: Step(step),
            loss,
            response_tokens,
            tokens: 10,
            grad_norm: 1.0,
            learning_rate: 1e-3,
        };
        let mut progress = SftProgress::new(2, 3);
        assert_eq!(progress.take(&step(0, 1.0, 3)), None);
        let line = progress.take(&step(1, 2.0, 1)).unwrap();
        assert!(
            line.starts_with("step:2 - sft/loss:1.2500 - sft/grad_norm:1.000 - sft/lr:1.00e-3 - "),
            "{line}"
        );
        assert!(progress.take(&step(2, 0.5, 1)).unwrap().starts_with("step:3 - sft/loss:0.5000"));
    }
}
