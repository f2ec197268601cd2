//! Lengths drawn from a table of percentiles.

use std::collections::BTreeMap;

use rollpacker_dataflow::step::SampleId;
use serde::{Deserialize, Serialize};

use super::population::{Latent, Population};
use super::{
    LengthModel, LengthModelError, MAX_TOKENS, PopulationConfig, PromptTraits, check, tokens,
};
use crate::cluster::calibration;
use rollpacker_stages::draw::{correlated, normal_cdf};

/// A table of percentiles for each domain; see [`EmpiricalDomain`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmpiricalConfig {
    /// The domains by name; at least one.
    pub domains: BTreeMap<String, EmpiricalDomain>,
}

/// The length distribution of a domain, as measured over many prompts, and the part of its variation that is between prompts.
///
/// The rank of a response that ends is computed from a normal variable that is correlated with the variables of the prompt's other
/// responses (a Gaussian copula). The overall distribution therefore follows the table at any correlation. Responses that never end belong
/// to some of the prompts only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmpiricalDomain {
    /// Weight of the domain; a finite number above 0. The share of its prompts is the weight divided by the sum of the weights of all
    /// domains.
    pub share: f64,
    /// Pairs of a percentile, from 0 to 100, and the number of tokens that this percentage of all responses does not exceed, from 1 to 1e9.
    /// At least two pairs, in ascending order. Interpolation is linear in the logarithm.
    pub percentiles: Vec<(f64, f64)>,
    /// Share of responses that never end by themselves and are cut at any cap; in [0, 1).
    pub endless: f64,
    /// Share of endless responses among the responses to a prompt that has endless responses; at least `endless`, in (0, 1].
    pub endless_of_hard: f64,
    /// Correlation of the lengths of two responses to a prompt, in normal scores, in [0, 1].
    pub correlation: f64,
}

impl EmpiricalConfig {
    /// Returns the length distributions of RollPacker's three tasks (Fig. 2a), each with a third of the prompts.
    #[must_use]
    pub fn rollpacker() -> Self {
        let domain = |&(name, endless, percentiles): &calibration::TaskLengths| {
            let domain = EmpiricalDomain {
                share: 1.0,
                percentiles: percentiles.to_vec(),
                endless,
                endless_of_hard: calibration::ENDLESS_OF_HARD,
                correlation: calibration::LENGTH_CORRELATION,
            };
            (name.to_owned(), domain)
        };
        Self { domains: calibration::LENGTHS.iter().map(domain).collect() }
    }
}

impl EmpiricalDomain {
    fn check(&self, name: &str) -> Result<(), LengthModelError> {
        let field = |field: &'static str| move || format!("{name}.{field}");
        let ascending = self.percentiles.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1);
        let bounded = self
            .percentiles
            .iter()
            .all(|(p, x)| (0.0..=100.0).contains(p) && (1.0..=MAX_TOKENS).contains(x));
        check(
            ascending && bounded && self.percentiles.len() > 1,
            field("percentiles"),
            "at least 2 ascending pairs of a percentile and 1 token or more, at most 1e9",
            &self.percentiles,
        )?;
        let Self { endless, endless_of_hard, correlation, .. } = *self;
        check((0.0..1.0).contains(&endless), field("endless"), "0 to 1", endless)?;
        let hard = endless_of_hard >= endless && endless_of_hard <= 1.0 && endless_of_hard > 0.0;
        check(hard, field("endless_of_hard"), "`endless` to 1", endless_of_hard)?;
        check((0.0..=1.0).contains(&correlation), field("correlation"), "0 to 1", correlation)
    }
}

/// A length model from an [`EmpiricalConfig`].
#[derive(Clone, Debug)]
pub struct Empirical {
    population: Population,
    domains: Vec<Domain>,
    cap: u32,
}

#[derive(Clone, Debug)]
struct Domain {
    /// Pairs of a share of the responses that end and the logarithm of the tokens that this share does not exceed.
    table: Vec<(f64, f64)>,
    /// Share of the prompts that have endless responses.
    hard: f64,
    endless_of_hard: f64,
    /// Correlation of a response with the variable that all responses to its prompt share: the square root of the correlation of two
    /// responses.
    loading: f64,
}

impl Empirical {
    /// Creates a model that draws by `seed` and cuts responses at `cap` tokens.
    ///
    /// # Errors
    /// Returns an error if a number is out of bounds or there are no domains.
    pub fn new(
        config: &EmpiricalConfig,
        population: &PopulationConfig,
        seed: u64,
        cap: u32,
    ) -> Result<Self, LengthModelError> {
        check(cap > 0, || "cap".to_owned(), "at least 1", cap)?;
        config.domains.iter().try_for_each(|(name, domain)| domain.check(name))?;
        let shares = config.domains.iter().map(|(name, domain)| (name.as_str(), domain.share));
        let population = Population::new(*population, seed, shares)?;
        Ok(Self { population, domains: config.domains.values().map(Domain::of).collect(), cap })
    }

    fn scale(&self, row: u64) -> f64 {
        self.population.draw(row, Latent::Length).normal()
    }
}

impl Domain {
    fn of(config: &EmpiricalDomain) -> Self {
        let ends = 1.0 - config.endless;
        Self {
            table: config.percentiles.iter().map(|(p, x)| (p / 100.0 / ends, x.ln())).collect(),
            hard: config.endless / config.endless_of_hard,
            endless_of_hard: config.endless_of_hard,
            loading: config.correlation.sqrt(),
        }
    }

    /// Returns the quantile at `below` of the lengths of the responses that end, in tokens.
    fn quantile(&self, below: f64) -> f64 {
        let above = self.table.partition_point(|(share, _)| *share < below);
        let above = above.clamp(1, self.table.len() - 1);
        let [(low, from), (high, to)] = [self.table[above - 1], self.table[above]];
        (from + (to - from) * ((below - low) / (high - low)).clamp(0.0, 1.0)).exp()
    }
}

impl LengthModel for Empirical {
    fn prompt(&self, row: u64) -> PromptTraits {
        self.population.traits(row, self.scale(row))
    }

    fn response(&self, row: u64, id: SampleId, draw: u32) -> u32 {
        let domain = &self.domains[self.population.domain(row)];
        let response =
            self.population.draw(row, Latent::Response).of_sample(id).of(u64::from(draw));
        let hard = self.population.draw(row, Latent::Hard).uniform() < domain.hard;
        if hard && response.of(0).uniform() < domain.endless_of_hard {
            return self.cap;
        }
        let normal = correlated(domain.loading, self.scale(row), response.of(1).normal());
        tokens(domain.quantile(normal_cdf(normal)), self.cap)
    }

    fn cap(&self) -> u32 {
        self.cap
    }
}
