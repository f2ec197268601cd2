//! Lengths that were recorded.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollpacker_dataflow::step::SampleId;

use super::pool::Pool;
use super::population::{Latent, Population};
use super::{LengthModel, LengthModelError, PopulationConfig, PromptTraits, check};
use crate::draw::{correlated, normal_cdf};

/// A recorded response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// What its prompt is known by: records of one prompt share it. `None`: unknown.
    pub prompt: Option<String>,
    /// Tokens of the prompt, where recorded.
    pub prompt_length: Option<u32>,
    /// Tokens of the response.
    pub response_length: u32,
}

/// A response of a live run, to be replayed by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Tokens of the response.
    pub response_length: u32,
    /// Whether it ended by itself; otherwise it is at least one token longer than recorded.
    pub whole: bool,
}

/// How a trace is read as a model.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceConfig {
    /// Kind of task of all its prompts.
    pub domain: String,
    /// What prompts have beside what is recorded.
    pub population: PopulationConfig,
    /// Correlation of the lengths of two responses to a prompt, in ranks of a normal, in [0, 1]; of prompts with fewer than [`ENOUGH`]
    /// recorded responses.
    pub correlation: f64,
    /// Seed of the draws.
    pub seed: u64,
    /// Responses are cut here, tokens.
    pub cap: u32,
}

/// Recorded responses of a prompt from which others to it can be drawn as they are. Drawn from `k` lengths, the variance within a prompt
/// is too small by a factor of `1 - 1/k`, and a prompt that is drawn anew has the lengths that it had. With 8 that is still seen in the
/// length bias of tail batching: 0.73 where it is 0.65.
pub const ENOUGH: usize = 32;

/// Lengths that were recorded.
///
/// A response whose id was recorded has the recorded length, or where it had been dropped, one drawn from the longer ones. Any other
/// belongs to a recorded prompt: dataset row `r` is the `r`-th, beginning again after the last. It is drawn from the lengths of that
/// prompt where there are [`ENOUGH`] of them.
///
/// Fewer do not tell how much the responses to a prompt differ. Ranks among all recorded lengths then follow a Gaussian copula with
/// [`TraceConfig::correlation`]: what the responses to a prompt share is drawn once a prompt, given its recorded lengths. All lengths
/// together are distributed as recorded, whatever the correlation. Without prompts, each record is taken to be a prompt of its own.
#[derive(Clone, Debug)]
pub struct Trace {
    population: Population,
    prompts: Vec<RecordedPrompt>,
    pool: Pool,
    replayed: BTreeMap<SampleId, Recorded>,
    /// Correlation of a response with what it shares with its siblings: the square root of that of two siblings.
    loading: f64,
    cap: u32,
}

#[derive(Clone, Debug)]
struct RecordedPrompt {
    /// Tokens of the prompt, where recorded.
    prompt_length: Option<u32>,
    /// Tokens of its responses, ascending once all are read.
    lengths: Vec<u32>,
    /// What the lengths say of the scale of the prompt: mean and standard deviation.
    scale: (f64, f64),
}

impl Trace {
    /// Reads `records`, in their order, as a model.
    ///
    /// # Errors
    /// If there are none, or a number is out of its bounds.
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
        trace.learn_scales();
        Ok(trace)
    }

    /// Replays these responses exactly.
    #[must_use]
    pub fn replaying(mut self, recorded: impl IntoIterator<Item = (SampleId, Recorded)>) -> Self {
        self.replayed.extend(recorded);
        self
    }

    /// Takes for each prompt the distribution of its scale given its recorded lengths: normal, as that of all prompts.
    fn learn_scales(&mut self) {
        let Self { population, prompts, pool, loading, .. } = self;
        let correlation = *loading * *loading;
        for (number, prompt) in (0..).zip(prompts) {
            let ties = population.draw(number, Latent::Tie);
            let scores = (0..).zip(&prompt.lengths);
            let sum: f64 =
                scores.map(|(n, length)| pool.score(*length, ties.of(n).uniform())).sum();
            let count = prompt.lengths.len() as f64;
            let information = 1.0 - correlation + count * correlation;
            prompt.scale = match information > 0.0 {
                true => (*loading * sum / information, ((1.0 - correlation) / information).sqrt()),
                false => (0.0, 1.0),
            };
        }
    }

    fn recorded_prompt(&self, row: u64) -> &RecordedPrompt {
        &self.prompts[(row % self.prompts.len() as u64) as usize]
    }

    /// How long the responses to the prompt in `row` are beside those to others, in standard deviations.
    fn scale(&self, row: u64) -> f64 {
        let prompt = self.recorded_prompt(row);
        if prompt.tells() {
            return self.pool.score(prompt.lengths[prompt.lengths.len() / 2], 0.5);
        }
        let (mean, deviation) = prompt.scale;
        mean + deviation * self.population.draw(row, Latent::Length).normal()
    }
}

impl RecordedPrompt {
    /// Whether the recorded lengths tell how those of other responses are distributed.
    fn tells(&self) -> bool {
        self.lengths.len() >= ENOUGH
    }
}

/// Records by prompt, in the order of their first appearance.
#[derive(Default)]
struct Prompts {
    position: BTreeMap<String, usize>,
    prompts: Vec<RecordedPrompt>,
}

impl Prompts {
    /// The prompts of `records`, and all lengths. Records without a key are prompts of their own where none has one, and in the pool of
    /// lengths alone otherwise.
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
                let longer = self.pool.beyond(recorded.response_length);
                if longer.is_empty() { self.cap } else { longer[response.below(longer.len())] }
            }
            None if prompt.tells() => prompt.lengths[response.below(prompt.lengths.len())],
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
