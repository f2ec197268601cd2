//! Lengths from recorded responses.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollpacker_dataflow::step::SampleId;

use super::pool::Pool;
use super::population::{Latent, Population};
use super::{LengthModel, LengthModelError, PopulationConfig, PromptTraits, check};
use rollpacker_stages::draw::{correlated, normal_cdf};

/// A recorded response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// The key of the prompt, which the records of one prompt share; `None` if it is unknown.
    pub prompt: Option<String>,
    /// Number of tokens of the prompt, if recorded.
    pub prompt_length: Option<u32>,
    /// Number of tokens of the response; 0 counts as 1.
    pub response_length: u32,
}

/// A response of a live run, to be replayed by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Number of tokens of the response.
    pub response_length: u32,
    /// `true` if the response ended by itself; otherwise it is at least one token longer than recorded.
    pub whole: bool,
}

/// The parameters with which a trace is used as a length model.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceConfig {
    /// The kind of task of all prompts.
    pub domain: String,
    /// The distributions of the traits that records do not have: pass rates, and the lengths of prompts whose length was not recorded.
    pub population: PopulationConfig,
    /// Correlation of the lengths of two responses to a prompt, in normal scores, in [0, 1]. It applies to prompts with fewer than
    /// [`MIN_RECORDED_RESPONSES`] recorded responses.
    pub correlation: f64,
    /// Seed of the draws.
    pub seed: u64,
    /// Length at which responses are cut, in tokens.
    pub cap: u32,
}

/// Minimum number of recorded responses of a prompt for drawing other responses directly from their lengths. When drawing from `k` lengths,
/// the variance within a prompt is too small by a factor of `1 - 1/k`, and a prompt that is drawn again repeats its lengths. With 8, this
/// is still visible in the length bias of tail batching: 0.73 instead of 0.65.
pub const MIN_RECORDED_RESPONSES: usize = 32;

/// A length model of recorded responses.
///
/// A response whose id was recorded has the recorded length. If the recorded response had been dropped, the length is drawn from the longer
/// recorded lengths, or is the cap if there are none. Any other response belongs to a recorded prompt: dataset row `r`, from 0, is the
/// recorded prompt `r` modulo the number of recorded prompts. The length of the response is drawn from the lengths of that prompt if there
/// are at least [`MIN_RECORDED_RESPONSES`] of them.
///
/// Fewer lengths do not determine how much the responses to a prompt differ. In that case the ranks among all recorded lengths follow a
/// Gaussian copula with [`TraceConfig::correlation`]: the part that the responses to a prompt share is drawn once per prompt, given its
/// recorded lengths. All lengths together are distributed as recorded at any correlation. If no record has a prompt, each record is treated
/// as its own prompt. Otherwise a record without a prompt counts only among all recorded lengths. No length exceeds the cap.
#[derive(Clone, Debug)]
pub struct Trace {
    population: Population,
    prompts: Vec<RecordedPrompt>,
    pool: Pool,
    replayed: BTreeMap<SampleId, Recorded>,
    /// Correlation of a response with the variable that all responses to its prompt share: the square root of the correlation of two
    /// responses.
    loading: f64,
    cap: u32,
}

#[derive(Clone, Debug)]
struct RecordedPrompt {
    /// Number of tokens of the prompt, if recorded.
    prompt_length: Option<u32>,
    /// Lengths of the prompt's responses, ascending once all are read.
    lengths: Vec<u32>,
    /// Mean and standard deviation of the prompt's scale, given its lengths.
    scale: (f64, f64),
}

impl Trace {
    /// Creates a model from `records`, in their order.
    ///
    /// # Errors
    /// Returns an error if there are no records, or a number is out of bounds.
    pub fn new(
        records: impl IntoIterator<Item = TraceRecord>,
        config: &TraceConfig,
    ) -> Result<Self, LengthModelError> {
        let TraceConfig { correlation, seed, cap, .. } = *config;
        check(cap > 0, || "cap".to_owned(), "at least 1", cap)?;
        let field = || "correlation".to_owned();
        check((0.0..=1.0).contains(&correlation), field, "0 to 1", correlation)?;
        let domain = [(config.domain.as_str(), 1.0)].into_iter();
        let population = Population::new(config.population, seed, domain)?;
        let (prompts, lengths) = Prompts::of(records);
        if lengths.is_empty() {
            return Err(LengthModelError::Empty("trace"));
        }
        let mut trace = Self {
            population,
            prompts,
            pool: Pool::new(lengths),
            replayed: BTreeMap::new(),
            loading: correlation.sqrt(),
            cap,
        };
        trace.estimate_scales();
        Ok(trace)
    }

    /// Adds responses of a live run, which are replayed by their ids.
    #[must_use]
    pub fn replaying(mut self, recorded: impl IntoIterator<Item = (SampleId, Recorded)>) -> Self {
        self.replayed.extend(recorded);
        self
    }

    /// Computes for each prompt the distribution of its scale given its recorded lengths.
    ///
    /// The model has one factor: the score of a response is `loading * scale + sqrt(1 - correlation) * own`, where `scale` and `own` are
    /// standard normal and `correlation = loading^2`. Given `n` scores with sum `s`, the scale is normal with mean
    /// `loading * s / (1 - correlation + n * correlation)` and variance `(1 - correlation) / (1 - correlation + n * correlation)`. Equal
    /// lengths have tied ranks, so their scores are drawn within the range of the tie.
    fn estimate_scales(&mut self) {
        let Self { population, prompts, pool, loading, .. } = self;
        let correlation = *loading * *loading;
        for (number, prompt) in (0..).zip(prompts) {
            let ties = population.draw(number, Latent::Tie);
            let scores = (0..).zip(&prompt.lengths);
            let sum: f64 =
                scores.map(|(n, length)| pool.score(*length, ties.of(n).uniform())).sum();
            let count = prompt.lengths.len() as f64;
            let information = 1.0 - correlation + count * correlation;
            prompt.scale = if information > 0.0 {
                (*loading * sum / information, ((1.0 - correlation) / information).sqrt())
            } else {
                (0.0, 1.0)
            };
        }
    }

    fn recorded_prompt(&self, row: u64) -> &RecordedPrompt {
        &self.prompts[(row % self.prompts.len() as u64) as usize]
    }

    /// Returns the length of the responses to the prompt in `row` relative to the responses to other prompts, in standard deviations.
    fn scale(&self, row: u64) -> f64 {
        let prompt = self.recorded_prompt(row);
        if prompt.has_own_lengths() {
            return self.pool.score(prompt.lengths[prompt.lengths.len() / 2], 0.5);
        }
        let (mean, deviation) = prompt.scale;
        mean + deviation * self.population.draw(row, Latent::Length).normal()
    }
}

impl RecordedPrompt {
    /// Returns `true` if there are enough recorded lengths to draw other responses from them.
    fn has_own_lengths(&self) -> bool {
        self.lengths.len() >= MIN_RECORDED_RESPONSES
    }
}

/// Records grouped by prompt, in the order of their first appearance.
#[derive(Default)]
struct Prompts {
    position: BTreeMap<String, usize>,
    prompts: Vec<RecordedPrompt>,
}

impl Prompts {
    /// Returns the prompts of `records`, and all lengths. If no record has a key, each record is its own prompt. Otherwise records without
    /// a key count only in the pool of lengths.
    fn of(records: impl IntoIterator<Item = TraceRecord>) -> (Vec<RecordedPrompt>, Vec<u32>) {
        let (mut known, mut single, mut pool) = (Self::default(), Vec::new(), Vec::new());
        for record in records {
            let length = record.response_length.max(1);
            pool.push(length);
            match &record.prompt {
                Some(key) => known.add(key, record.prompt_length, length),
                None => single.push(RecordedPrompt::new(record.prompt_length, vec![length])),
            }
        }
        let mut prompts = if known.prompts.is_empty() { single } else { known.prompts };
        prompts.iter_mut().for_each(|prompt| prompt.lengths.sort_unstable());
        (prompts, pool)
    }

    fn add(&mut self, key: &str, prompt_length: Option<u32>, length: u32) {
        if let Some(&position) = self.position.get(key) {
            self.prompts[position].lengths.push(length);
            return;
        }
        self.position.insert(key.to_owned(), self.prompts.len());
        self.prompts.push(RecordedPrompt::new(prompt_length, vec![length]));
    }
}

impl RecordedPrompt {
    fn new(prompt_length: Option<u32>, lengths: Vec<u32>) -> Self {
        Self { prompt_length, lengths, scale: (0.0, 1.0) }
    }
}

impl LengthModel for Trace {
    fn prompt(&self, row: u64) -> PromptTraits {
        let recorded = self.recorded_prompt(row).prompt_length;
        PromptTraits {
            domain: Arc::clone(&self.population.domain_name(0)),
            prompt_length: recorded.unwrap_or_else(|| self.population.prompt_length(row)),
            pass_rate: self.population.pass_rate(row, self.scale(row)),
        }
    }

    fn response(&self, row: u64, id: SampleId, draw: u32) -> u32 {
        let response =
            self.population.draw(row, Latent::Response).of_sample(id).of(u64::from(draw));
        let recorded = self.replayed.get(&id);
        let prompt = self.recorded_prompt(row);
        let length = match recorded {
            Some(recorded) if recorded.whole => recorded.response_length,
            Some(recorded) => {
                let longer = self.pool.longer_than(recorded.response_length);
                if longer.is_empty() { self.cap } else { longer[response.below(longer.len())] }
            }
            None if prompt.has_own_lengths() => {
                prompt.lengths[response.below(prompt.lengths.len())]
            }
            None => {
                let normal = correlated(self.loading, self.scale(row), response.normal());
                self.pool.quantile(normal_cdf(normal))
            }
        };
        length.min(self.cap)
    }

    fn cap(&self) -> u32 {
        self.cap
    }
}
