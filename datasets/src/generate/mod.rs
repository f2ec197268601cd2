//! The built-in task: prompts for training a small model, with verifiable answers and worked solutions whose lengths have a long tail.

pub mod chain;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use rand::SeedableRng;
use rand::seq::{SliceRandom, index};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use serde_json::json;

pub use self::chain::{ALPHABET, Chain, ChainLengths, Demonstration};
use crate::error::DatasetError;
use crate::message::Message;
use crate::prompt::PromptRow;
use crate::shape::Shape;
use crate::writer::{PromptWriter, WriteOptions};

/// The `data_source` of the built-in task.
pub const DATA_SOURCE: &str = "rollpacker/chain";
/// The domain of the built-in task.
pub const DOMAIN: &str = "chain";

/// The maximum number of prompts per file: the digests of all drawn prompts are held in memory.
const MAX_ROWS: u64 = 100_000_000;

/// The configuration of the generator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChainConfig {
    /// The number of prompts in `train.parquet`. From 1 to 100,000,000; default: 16,384.
    pub rows: u64,
    /// The number of prompts in `validation.parquet`. From 1 to 100,000,000; default: 512. Both files have the same distribution and no
    /// prompt in common.
    pub validation_rows: u64,
    /// The seed of all random choices. Default: 0.
    pub seed: u64,
    /// The distribution of the number of maps per prompt.
    pub lengths: ChainLengths,
    /// The share of demonstrations with the direct solution. From 0 to 1; default: 0.65.
    pub direct_share: f64,
}

impl Default for ChainConfig {
    fn default() -> Self {
        Self {
            rows: 16_384,
            validation_rows: 512,
            seed: 0,
            lengths: ChainLengths::default(),
            direct_share: 0.65,
        }
    }
}

/// The result of [`generate`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generated {
    /// The file of the training prompts, each with a demonstration in `extra_info.demonstration`.
    pub train: PathBuf,
    /// The file of the held-out prompts, without demonstrations.
    pub validation: PathBuf,
    /// The total number of prompts in the two files.
    pub rows: u64,
    /// The median length of the worked solutions of `train`, in characters.
    pub median_solution_chars: u64,
    /// The length of the longest worked solution of `train`, in characters.
    pub longest_solution_chars: u64,
}

/// Writes `train.parquet` and `validation.parquet` into a folder, which is created if necessary. No prompt occurs twice, in one file or
/// across both.
///
/// The held-out prompts are a uniform choice among all drawn prompts, in random order. A contiguous range of draws would be biased: since
/// no prompt occurs twice, short prompts run out, and later draws are longer than earlier ones.
///
/// Memory: at most about 20 bytes per prompt, the held-out prompts, and one row group.
///
/// # Errors
///
/// If a setting is out of bounds, there are not enough different prompts, the path of a file holds something that is not a regular file,
/// the folder cannot be created, or a file cannot be written. In these cases, neither file is replaced, with one exception:
/// `validation.parquet` is replaced first and stays replaced if `train.parquet` cannot be completed afterwards.
pub fn generate(
    config: &ChainConfig,
    folder: &Path,
    options: WriteOptions,
) -> Result<Generated, DatasetError> {
    config.check()?;
    std::fs::create_dir_all(folder).map_err(DatasetError::io(folder, "create"))?;
    let (train, validation) = (folder.join("train.parquet"), folder.join("validation.parquet"));
    let mut source = ChainSource {
        random: ChaCha8Rng::seed_from_u64(config.seed),
        seen: HashSet::new(),
        config,
    };
    let mut lengths = std::collections::BTreeMap::new();

    let mut choice = ChaCha8Rng::seed_from_u64(config.seed);
    choice.set_stream(HOLD_OUT_STREAM);
    let mut held_out = HeldOut::choose(config, &mut choice);
    let mut writer = PromptWriter::create(&train, extra_shape(true), options)?;
    let mut index = 0;
    while index < config.rows || held_out.is_incomplete() {
        let chain = source.draw()?;
        let Some(chain) = held_out.take(chain) else { continue };
        *lengths.entry(chain.worked_solution().len() as u64).or_insert(0) += 1;
        let demonstration = Demonstration::draw(&mut source.random, config.direct_share);
        writer.write(row(&chain, index, "train", Some(demonstration)))?;
        index += 1;
    }
    // The training file is published last, so that its presence implies that of the validation file.
    let rows = held_out.write(&validation, &mut choice, options)? + writer.finish()?;

    let percentiles = crate::inspect::percentiles(&lengths).unwrap_or_default();
    let (median_solution_chars, longest_solution_chars) = (percentiles.p50, percentiles.max);
    Ok(Generated { train, validation, rows, median_solution_chars, longest_solution_chars })
}

/// The stream of the random number generator that chooses the held-out prompts.
const HOLD_OUT_STREAM: u64 = 1;

/// The prompts of the validation file.
struct HeldOut {
    held_indices: HashSet<usize>,
    drawn: usize,
    chains: Vec<Chain>,
}

impl HeldOut {
    fn choose(config: &ChainConfig, random: &mut ChaCha8Rng) -> Self {
        let size = |rows: u64| usize::try_from(rows).unwrap_or(usize::MAX);
        let held_out = size(config.validation_rows);
        let all = size(config.rows).saturating_add(held_out);
        let held_indices = index::sample(random, all, held_out).into_iter().collect();
        Self { held_indices, drawn: 0, chains: Vec::new() }
    }

    fn is_incomplete(&self) -> bool {
        self.chains.len() < self.held_indices.len()
    }

    /// Stores `chain` if it is held out, and returns it otherwise.
    fn take(&mut self, chain: Chain) -> Option<Chain> {
        let is_held_out = self.held_indices.contains(&self.drawn);
        self.drawn += 1;
        if !is_held_out {
            return Some(chain);
        }
        self.chains.push(chain);
        None
    }

    /// Writes the prompts in random order and returns their number.
    fn write(
        mut self,
        file: &Path,
        random: &mut ChaCha8Rng,
        options: WriteOptions,
    ) -> Result<u64, DatasetError> {
        self.chains.shuffle(random);
        let mut writer = PromptWriter::create(file, extra_shape(false), options)?;
        for (index, chain) in (0..).zip(&self.chains) {
            writer.write(row(chain, index, "validation", None))?;
        }
        writer.finish()
    }
}

impl ChainConfig {
    fn check(&self) -> Result<(), DatasetError> {
        let bound = |key, holds: bool, expected, found: String| {
            if holds { Ok(()) } else { Err(DatasetError::Setting { key, expected, found }) }
        };
        let ChainLengths { median, sigma, max } = self.lengths;
        let within = 1..=MAX_ROWS;
        bound("rows", self.rows >= 1, "at least 1", self.rows.to_string())?;
        bound("rows", within.contains(&self.rows), "at most 100000000", self.rows.to_string())?;
        bound(
            "validation_rows",
            self.validation_rows >= 1,
            "at least 1",
            self.validation_rows.to_string(),
        )?;
        bound(
            "validation_rows",
            within.contains(&self.validation_rows),
            "at most 100000000",
            self.validation_rows.to_string(),
        )?;
        bound(
            "direct_share",
            (0.0..=1.0).contains(&self.direct_share),
            "0 to 1",
            format!("{:?}", self.direct_share),
        )?;
        // Checked before the median, whose bound it is.
        bound("lengths.max", (1..=4096).contains(&max), "1 to 4096", max.to_string())?;
        bound(
            "lengths.median",
            median >= 1.0 && median <= f64::from(max),
            "1 to `lengths.max`",
            format!("{median:?}"),
        )?;
        bound("lengths.sigma", (0.0..=3.0).contains(&sigma), "0 to 3", format!("{sigma:?}"))
    }
}

struct ChainSource<'a> {
    config: &'a ChainConfig,
    random: ChaCha8Rng,
    /// Digests of the drawn prompts. On a collision, a new prompt is discarded and another is drawn, which does no harm.
    seen: HashSet<u64>,
}

/// The number of consecutive draws of known prompts after which drawing fails.
const MAX_REDRAWS: u32 = 10_000;

impl ChainSource<'_> {
    /// Draws a prompt that has not been drawn before.
    fn draw(&mut self) -> Result<Chain, DatasetError> {
        for _ in 0..MAX_REDRAWS {
            let chain = Chain::draw(&mut self.random, self.config.lengths);
            let mut hasher = DefaultHasher::new();
            chain.hash(&mut hasher);
            if self.seen.insert(hasher.finish()) {
                return Ok(chain);
            }
        }
        let found = format!(
            "{}, but no more than {} short prompts differ",
            self.config.rows,
            self.seen.len()
        );
        Err(DatasetError::Setting { key: "rows", expected: "fewer rows or longer prompts", found })
    }
}

fn row(chain: &Chain, index: u64, split: &str, demonstration: Option<Demonstration>) -> PromptRow {
    let mut extra = serde_json::Map::new();
    extra.insert("index".to_owned(), json!(index));
    extra.insert("split".to_owned(), json!(split));
    extra.insert("steps".to_owned(), json!(chain.steps()));
    if let Some(demonstration) = demonstration {
        extra.insert("demonstration".to_owned(), json!(chain.demonstration(demonstration)));
    }
    PromptRow {
        row: index,
        epoch: 0,
        data_source: DATA_SOURCE.to_owned(),
        domain: DOMAIN.to_owned(),
        messages: vec![Message { role: "user".to_owned(), content: chain.prompt() }],
        ground_truth: Some(chain.answer().to_string()),
        extra_info: extra,
    }
}

fn extra_shape(demonstrated: bool) -> Shape {
    let mut fields = vec![("index", Shape::Int), ("split", Shape::Text), ("steps", Shape::Int)];
    fields.extend(demonstrated.then_some(("demonstration", Shape::Text)));
    Shape::Struct(fields.into_iter().map(|(name, shape)| (name.to_owned(), shape)).collect())
}
