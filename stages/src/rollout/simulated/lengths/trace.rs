//! Lengths that were recorded.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollpacker_dataflow::step::SampleId;

use super::population::{Latent, Population};
use super::{LengthModel, LengthModelError, PopulationConfig, PromptTraits, check};
use crate::draw::normal_quantile;

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
    /// Seed of the draws.
    pub seed: u64,
    /// Responses are cut here, tokens.
    pub cap: u32,
}

/// Lengths that were recorded.
///
/// A response whose id was recorded has the recorded length, or where it had been dropped, one drawn from the longer ones. Any other is
/// drawn from the records of its prompt: dataset row `r` is the `r`-th recorded prompt, beginning again after the last. Without prompts
/// all records are one pool, and the lengths of a group are independent: a trace without prompts says nothing of its tail's sharing.
#[derive(Clone, Debug)]
pub struct Trace {
    population: Population,
    prompts: Vec<RecordedPrompt>,
    /// All lengths, ascending.
    pool: Vec<u32>,
    replayed: BTreeMap<SampleId, Recorded>,
    cap: u32,
}

#[derive(Clone, Debug)]
struct RecordedPrompt {
    /// Tokens of the prompt, where recorded.
    prompt_length: Option<u32>,
    /// Tokens of its responses, ascending once all are read.
    lengths: Vec<u32>,
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
        check(config.cap > 0, || "cap".to_owned(), "at least 1", config.cap)?;
        let domain = [(config.domain.as_str(), 1.0)].into_iter();
        let population = Population::new(config.population, config.seed, domain)?;
        let mut prompts = Prompts::default();
        records.into_iter().for_each(|record| prompts.add(record));
        let Prompts { prompts, pool, .. } = prompts.sorted();
        if pool.is_empty() {
            return Err(LengthModelError::Empty("trace"));
        }
        Ok(Self { population, prompts, pool, replayed: BTreeMap::new(), cap: config.cap })
    }

    /// Replays these responses exactly.
    #[must_use]
    pub fn replaying(mut self, recorded: impl IntoIterator<Item = (SampleId, Recorded)>) -> Self {
        self.replayed.extend(recorded);
        self
    }

    fn recorded_prompt(&self, row: u64) -> Option<&RecordedPrompt> {
        let count = self.prompts.len() as u64;
        (count > 0).then(|| &self.prompts[(row % count) as usize])
    }

    /// Where the prompt's mean length stands among all lengths, in standard deviations of their logarithms.
    fn scale(&self, row: u64) -> f64 {
        let Some(RecordedPrompt { lengths, .. }) = self.recorded_prompt(row) else {
            return self.population.draw(row, Latent::Length).normal();
        };
        let middle = lengths[lengths.len() / 2];
        let below = self.pool.partition_point(|length| *length < middle);
        let up_to = self.pool.partition_point(|length| *length <= middle);
        normal_quantile((below + up_to + 1) as f64 / (2 * self.pool.len() + 2) as f64)
    }

    fn draw(&self, lengths: &[u32], row: u64, id: SampleId, draw: u32) -> u32 {
        let response = self.population.draw(row, Latent::Response).of_sample(id);
        lengths[response.of(u64::from(draw)).below(lengths.len())]
    }
}

/// Records by prompt, in the order of their first appearance.
#[derive(Default)]
struct Prompts {
    position: BTreeMap<String, usize>,
    prompts: Vec<RecordedPrompt>,
    pool: Vec<u32>,
}

impl Prompts {
    fn add(&mut self, record: TraceRecord) {
        self.pool.push(record.response_length.max(1));
        let Some(key) = record.prompt else { return };
        let next = self.prompts.len();
        let position = *self.position.entry(key).or_insert(next);
        if position == next {
            let prompt_length = record.prompt_length;
            self.prompts.push(RecordedPrompt { prompt_length, lengths: Vec::new() });
        }
        self.prompts[position].lengths.push(record.response_length.max(1));
    }

    fn sorted(mut self) -> Self {
        self.pool.sort_unstable();
        self.prompts.iter_mut().for_each(|prompt| prompt.lengths.sort_unstable());
        self
    }
}

impl LengthModel for Trace {
    fn prompt(&self, row: u64) -> PromptTraits {
        let recorded = self.recorded_prompt(row).and_then(|prompt| prompt.prompt_length);
        PromptTraits {
            domain: Arc::clone(&self.population.domain_name(0)),
            prompt_length: recorded.unwrap_or_else(|| self.population.prompt_length(row)),
            pass_rate: self.population.pass_rate(row, self.scale(row)),
        }
    }

    fn response(&self, row: u64, id: SampleId, draw: u32) -> u32 {
        let lengths = match self.replayed.get(&id) {
            Some(recorded) if recorded.whole => return recorded.response_length.min(self.cap),
            Some(recorded) => {
                let longer = self.pool.partition_point(|l| *l <= recorded.response_length);
                &self.pool[longer..]
            }
            None => self.recorded_prompt(row).map_or(&*self.pool, |prompt| &prompt.lengths),
        };
        if lengths.is_empty() {
            return self.cap;
        }
        self.draw(lengths, row, id, draw).min(self.cap)
    }

    fn cap(&self) -> u32 {
        self.cap
    }
}
