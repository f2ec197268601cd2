//! Lengths with two modes: the body, and a tail whose probability depends on the prompt.

use std::collections::BTreeMap;

use rollpacker_dataflow::step::SampleId;
use serde::{Deserialize, Serialize};
use statrs::distribution::{Beta, ContinuousCDF};

use super::population::{Latent, Population};
use super::{
    LengthModel, LengthModelError, MAX_SPREAD, MAX_TOKENS, PopulationConfig, PromptTraits, check,
    tokens,
};
use rollpacker_stages::draw::{correlated, normal_cdf};

/// Two log-normal modes for each domain; see [`TwoModeDomain`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TwoModeConfig {
    /// The domains by name; at least one.
    pub domains: BTreeMap<String, TwoModeDomain>,
}

/// The length distribution of a domain. A prompt has a scale `b`, normal with mean 0 and standard deviation `prompt_spread`, and a tail
/// probability `q ~ Beta` with mean `tail_share`. `z` is a standard normal variable of the response. The response has
/// `median * exp(b + response_spread * z)` tokens or, with probability `q`, `tail_median * exp(tail_pull * b + tail_spread * z)` tokens.
///
/// A single log-normal cannot match both the median and the maximum of RollPacker's Fig. 2a.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TwoModeDomain {
    /// Weight of the domain; a finite number above 0. The share of its prompts is the weight divided by the sum of the weights of all
    /// domains.
    pub share: f64,
    /// Median length in the body, in tokens; from 0.001 to 1e9.
    pub median: f64,
    /// Standard deviation of the logarithm of the length between prompts, in the body; from 0 to 10.
    pub prompt_spread: f64,
    /// Standard deviation of the logarithm of the length within a prompt, in the body; from 0 to 10.
    pub response_spread: f64,
    /// Share of responses in the tail, in (0, 1).
    pub tail_share: f64,
    /// Concentration of the tail probabilities of prompts: the sum of the parameters of the Beta distribution; from 0.001 to 1e9. Larger
    /// values make prompts more alike.
    pub tail_concentration: f64,
    /// Median length in the tail, in tokens; from 0.001 to 1e9.
    pub tail_median: f64,
    /// Standard deviation of the logarithm of the length within a prompt, in the tail; from 0 to 10.
    pub tail_spread: f64,
    /// Factor by which a prompt's scale `b` acts on the tail; from -100 to 100.
    pub tail_pull: f64,
    /// Correlation of a prompt's scale with its tail probability, in [-1, 1].
    pub correlation: f64,
}

impl Default for TwoModeDomain {
    /// Returns the parameters that were fitted to medians, 75th percentiles and maxima of RollPacker's Figs. 2a and 4a, all domains
    /// together.
    fn default() -> Self {
        Self {
            share: 1.0,
            median: 465.0,
            prompt_spread: 0.47,
            response_spread: 0.33,
            tail_share: 0.18,
            tail_concentration: 3.7,
            tail_median: 5000.0,
            tail_spread: 0.72,
            tail_pull: 0.3,
            correlation: 0.48,
        }
    }
}

/// Maximum absolute value of `tail_pull`.
const MAX_PULL: f64 = 100.0;

/// A length model from a [`TwoModeConfig`].
#[derive(Clone, Debug)]
pub struct TwoMode {
    population: Population,
    domains: Vec<(TwoModeDomain, BetaQuantile)>,
    cap: u32,
}

impl TwoMode {
    /// Creates a model that draws by `seed` and cuts responses at `cap` tokens.
    ///
    /// # Errors
    /// Returns an error if a number is out of bounds or there are no domains.
    pub fn new(
        config: &TwoModeConfig,
        population: &PopulationConfig,
        seed: u64,
        cap: u32,
    ) -> Result<Self, LengthModelError> {
        check(cap > 0, || "cap".to_owned(), "at least 1", cap)?;
        config.domains.iter().try_for_each(|(name, domain)| domain.check(name))?;
        let shares = config.domains.iter().map(|(name, domain)| (name.as_str(), domain.share));
        let population = Population::new(*population, seed, shares)?;
        let quantile = |domain: &TwoModeDomain| {
            let alpha = domain.tail_share * domain.tail_concentration;
            BetaQuantile::new(alpha, domain.tail_concentration - alpha)
        };
        let domains = config.domains.values().map(|domain| (*domain, quantile(domain))).collect();
        Ok(Self { population, domains, cap })
    }

    /// Returns the scale of a prompt, in standard deviations.
    fn scale(&self, row: u64) -> f64 {
        self.population.draw(row, Latent::Length).normal()
    }

    fn tail_chance(&self, row: u64, domain: usize, scale: f64) -> f64 {
        let (config, quantile) = &self.domains[domain];
        let own = self.population.draw(row, Latent::Tail).normal();
        quantile.at(correlated(config.correlation, scale, own))
    }
}

impl TwoModeDomain {
    fn check(&self, name: &str) -> Result<(), LengthModelError> {
        let field = |field: &'static str| move || format!("{name}.{field}");
        let positive = [
            ("median", self.median),
            ("tail_median", self.tail_median),
            ("tail_concentration", self.tail_concentration),
        ];
        for (label, value) in positive {
            check(value > 0.0, field(label), "more than 0", value)?;
            check((1e-3..=MAX_TOKENS).contains(&value), field(label), "0.001 to 1e9", value)?;
        }
        let spreads = [
            ("prompt_spread", self.prompt_spread),
            ("response_spread", self.response_spread),
            ("tail_spread", self.tail_spread),
        ];
        let pull = self.tail_pull;
        check(pull.abs() <= MAX_PULL, field("tail_pull"), "from -100 to 100", pull)?;
        for (label, value) in spreads {
            check(value >= 0.0, field(label), "at least 0", value)?;
            check(value <= MAX_SPREAD, field(label), "at most 10", value)?;
        }
        let Self { tail_share, correlation, .. } = *self;
        check(tail_share > 0.0 && tail_share < 1.0, field("tail_share"), "0 to 1", tail_share)?;
        check(correlation.abs() <= 1.0, field("correlation"), "-1 to 1", correlation)
    }
}

impl LengthModel for TwoMode {
    fn prompt(&self, row: u64) -> PromptTraits {
        self.population.traits(row, self.scale(row))
    }

    fn response(&self, row: u64, id: SampleId, draw: u32) -> u32 {
        let domain = self.population.domain(row);
        let scale = self.scale(row);
        let response =
            self.population.draw(row, Latent::Response).of_sample(id).of(u64::from(draw));
        let (config, _) = &self.domains[domain];
        let b = config.prompt_spread * scale;
        let z = response.of(1).normal();
        let drawn = if response.of(0).uniform() < self.tail_chance(row, domain, scale) {
            config.tail_median * (config.tail_pull * b + config.tail_spread * z).exp()
        } else {
            config.median * (b + config.response_spread * z).exp()
        };
        tokens(drawn, self.cap)
    }

    fn cap(&self) -> u32 {
        self.cap
    }
}

/// Quantiles of a Beta distribution as a function of a standard normal variable. They are tabulated, because the inverse has no closed
/// form.
#[derive(Clone, Debug)]
struct BetaQuantile(Vec<f64>);

/// The table ranges from minus this number of standard deviations to plus this number.
const TABLE_DEVIATIONS: f64 = 5.0;
const ENTRIES_PER_DEVIATION: f64 = 64.0;

impl BetaQuantile {
    fn new(alpha: f64, beta: f64) -> Self {
        let beta = Beta::new(alpha, beta).expect("invariant: both parameters are more than 0");
        let entries = (2.0 * TABLE_DEVIATIONS * ENTRIES_PER_DEVIATION) as u32 + 1;
        let at =
            |entry: u32| normal_cdf(f64::from(entry) / ENTRIES_PER_DEVIATION - TABLE_DEVIATIONS);
        Self((0..entries).map(|entry| beta.inverse_cdf(at(entry))).collect())
    }

    fn at(&self, normal: f64) -> f64 {
        let position = (normal.clamp(-TABLE_DEVIATIONS, TABLE_DEVIATIONS) + TABLE_DEVIATIONS)
            * ENTRIES_PER_DEVIATION;
        let low = (position as usize).min(self.0.len() - 2);
        let above = position - low as f64;
        self.0[low] + above * (self.0[low + 1] - self.0[low])
    }
}
