//! The traits of simulated prompts other than the lengths of their responses.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{LengthModelError, MAX_SPREAD, MAX_TOKENS, PromptTraits, check};
use rollpacker_stages::draw::{Draw, correlated, normal_cdf, normal_quantile};

/// A log-normal distribution of numbers of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogNormal {
    /// Median, in tokens; from 1 to 1e9.
    pub median: f64,
    /// Standard deviation of the logarithm; from 0 to 10.
    pub spread: f64,
}

/// The distribution of pass rates over prompts: `cdf(quantile(median) - spread * difficulty)`. `cdf` and `quantile` belong to the standard
/// normal distribution, and `difficulty` is a standard normal variable of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassRate {
    /// Pass rate of the median prompt, in (0, 1).
    pub median: f64,
    /// Spread of the pass rates between prompts; from 0 to 10. With 0 all prompts have the same pass rate.
    pub spread: f64,
    /// Correlation of the difficulty of a prompt with the length of its responses, in [-1, 1].
    pub length_correlation: f64,
}

/// The distributions of the traits of prompts other than the lengths of their responses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PopulationConfig {
    /// The distribution of the number of tokens of a prompt.
    pub prompt_length: LogNormal,
    /// The distribution of the share of correct responses.
    pub pass_rate: PassRate,
}

impl Default for PopulationConfig {
    fn default() -> Self {
        Self {
            prompt_length: LogNormal { median: 250.0, spread: 0.4 },
            pass_rate: PassRate { median: 0.5, spread: 1.2, length_correlation: 0.5 },
        }
    }
}

/// Maximum length of a prompt, as a multiple of the median.
const MAX_MEDIAN_RATIO: f64 = 8.0;

/// Maximum absolute value of a standard normal draw.
const MAX_NORMAL_DRAW: f64 = 8.3;

impl PopulationConfig {
    /// Returns the maximum length of a prompt, in tokens.
    #[must_use]
    pub fn longest_prompt(&self) -> u32 {
        let LogNormal { median, spread } = self.prompt_length;
        (median * (spread * MAX_NORMAL_DRAW).exp().min(MAX_MEDIAN_RATIO)) as u32
    }

    pub(super) fn check(&self) -> Result<(), LengthModelError> {
        let Self { prompt_length: LogNormal { median, spread }, pass_rate } = self;
        let name = |field: &str| {
            let field = field.to_owned();
            move || field
        };
        check(*median >= 1.0, name("prompt_length.median"), "at least 1", median)?;
        check(*median <= MAX_TOKENS, name("prompt_length.median"), "at most 1e9", median)?;
        check(*spread >= 0.0, name("prompt_length.spread"), "at least 0", spread)?;
        check(*spread <= MAX_SPREAD, name("prompt_length.spread"), "at most 10", spread)?;
        let PassRate { median, spread, length_correlation } = pass_rate;
        check(*median > 0.0 && *median < 1.0, name("pass_rate.median"), "0 to 1", median)?;
        check(*spread >= 0.0, name("pass_rate.spread"), "at least 0", spread)?;
        check(*spread <= MAX_SPREAD, name("pass_rate.spread"), "at most 10", spread)?;
        check(
            length_correlation.abs() <= 1.0,
            name("pass_rate.length_correlation"),
            "-1 to 1",
            length_correlation,
        )
    }
}

/// The quantities that are drawn for a prompt or for its responses; keys for [`Draw::of`].
#[derive(Clone, Copy)]
pub(super) enum Latent {
    Domain,
    PromptLength,
    Difficulty,
    /// Length of the responses to a prompt relative to the responses to other prompts.
    Length,
    Tail,
    Hard,
    Response,
    /// Rank of a recorded length among equal lengths.
    Tie,
}

/// The source of the traits of a run's prompts: a seed, the configured distributions and the domains.
#[derive(Clone, Debug)]
pub(super) struct Population {
    draw: Draw,
    config: PopulationConfig,
    /// Names of the domains, each with the cumulative share of prompts up to and including it.
    domains: Vec<(Arc<str>, f64)>,
}

impl Population {
    /// Creates the prompts of `domains`, each with its relative share.
    pub(super) fn new<'a>(
        config: PopulationConfig,
        seed: u64,
        domains: impl Iterator<Item = (&'a str, f64)>,
    ) -> Result<Self, LengthModelError> {
        config.check()?;
        let mut sum = 0.0;
        let mut cumulative = Vec::new();
        for (name, share) in domains {
            let field = || format!("{name}.share");
            check(share > 0.0, field, "more than 0", share)?;
            check(share.is_finite(), field, "a finite number", share)?;
            sum += share;
            cumulative.push((Arc::from(name), sum));
        }
        cumulative.iter_mut().for_each(|(_, share)| *share /= sum);
        if cumulative.is_empty() {
            return Err(LengthModelError::Empty("domains"));
        }
        Ok(Self { draw: Draw::new(seed), config, domains: cumulative })
    }

    /// Returns the draw of a quantity for the prompt in `row`.
    pub(super) fn draw(&self, row: u64, latent: Latent) -> Draw {
        self.draw.of(row).of(latent as u64)
    }

    /// Returns the index of the domain of the prompt in `row`.
    pub(super) fn domain(&self, row: u64) -> usize {
        let at = self.draw(row, Latent::Domain).uniform();
        self.domains.partition_point(|(_, cumulative)| *cumulative < at).min(self.domains.len() - 1)
    }

    pub(super) fn domain_name(&self, domain: usize) -> Arc<str> {
        self.domains[domain].0.clone()
    }

    /// Returns the traits of the prompt in `row`, whose responses are `length` standard deviations longer than average.
    pub(super) fn traits(&self, row: u64, length: f64) -> PromptTraits {
        PromptTraits {
            domain: self.domain_name(self.domain(row)),
            prompt_length: self.prompt_length(row),
            pass_rate: self.pass_rate(row, length),
        }
    }

    pub(super) fn prompt_length(&self, row: u64) -> u32 {
        let LogNormal { median, spread } = self.config.prompt_length;
        let drawn = median * (spread * self.draw(row, Latent::PromptLength).normal()).exp();
        drawn.clamp(16.0_f64.min(median), MAX_MEDIAN_RATIO * median) as u32
    }

    /// Returns the pass rate of the prompt in `row`, whose responses are `length` standard deviations longer than average.
    pub(super) fn pass_rate(&self, row: u64, length: f64) -> f64 {
        let PassRate { median, spread, length_correlation } = self.config.pass_rate;
        let own = self.draw(row, Latent::Difficulty).normal();
        let difficulty = correlated(length_correlation, length, own);
        normal_cdf(normal_quantile(median) - spread * difficulty)
    }
}
