//! Chains of one-digit maps, composed from left to right modulo 10.
//!
//! A prompt is a digit followed by maps, such as `3+4*7`. It is read from left to right, without precedence, and only the last digit is
//! kept. The worked solution is `3+4=7,7*7=9,A:9`; the direct solution is `A:9`. Every map is a bijection of the digits (adding 1 to 9, or
//! multiplying by 3, 7 or 9, which are coprime to 10). No map discards the digit before it, as `*0` would, so the last maps alone do not
//! determine the answer. The worked solution is easier to learn: each of its steps is one of 120 facts, while the direct answer is a
//! function of the whole prompt.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, LogNormal};
use serde::{Deserialize, Serialize};

/// All characters that occur in prompts and solutions.
pub const ALPHABET: &str = "0123456789+*=,:A";

/// The text before the answer.
pub const ANSWER: &str = "A:";

/// The distribution of the number of maps per prompt: log-normal, rounded to a whole number of at least 1, and redrawn above the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChainLengths {
    /// The median number of maps, before rounding and redrawing. From 1 to `max`; default: 6.
    pub median: f64,
    /// The standard deviation of the natural logarithm of the number of maps, before rounding and redrawing. From 0 to 3; default: 0.8.
    pub sigma: f64,
    /// The maximum number of maps. From 1 to 4,096; default: 96.
    pub max: u32,
}

impl Default for ChainLengths {
    fn default() -> Self {
        Self { median: 6.0, sigma: 0.8, max: 96 }
    }
}

impl ChainLengths {
    fn draw(self, random: &mut ChaCha8Rng) -> u32 {
        let lengths = LogNormal::new(self.median.ln(), self.sigma)
            .expect("invariant: sigma was checked to be finite");
        loop {
            let maps = lengths.sample(random).round().max(1.0);
            if maps <= f64::from(self.max) {
                return maps as u32;
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum DigitMap {
    Add(u8),
    Multiply(u8),
}

impl DigitMap {
    fn draw(random: &mut ChaCha8Rng) -> Self {
        if random.random_bool(0.5) {
            Self::Add(random.random_range(1..=9))
        } else {
            Self::Multiply([3, 7, 9][random.random_range(0..3)])
        }
    }

    fn apply(self, digit: u8) -> u8 {
        match self {
            Self::Add(by) => (digit + by) % 10,
            Self::Multiply(by) => (digit * by) % 10,
        }
    }
}

impl std::fmt::Display for DigitMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Add(by) => write!(f, "+{by}"),
            Self::Multiply(by) => write!(f, "*{by}"),
        }
    }
}

/// The kind of solution in a demonstration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demonstration {
    /// A solution with every step and the answer.
    Worked,
    /// A solution with the answer only.
    Direct,
}

impl Demonstration {
    pub(crate) fn draw(random: &mut ChaCha8Rng, direct_share: f64) -> Self {
        if random.random_bool(direct_share) { Self::Direct } else { Self::Worked }
    }
}

/// A digit and the maps to apply to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    start: u8,
    maps: Vec<DigitMap>,
}

impl Chain {
    /// Draws a random chain. The parameters of `lengths` must be within their bounds.
    pub(crate) fn draw(random: &mut ChaCha8Rng, lengths: ChainLengths) -> Self {
        let count = lengths.draw(random);
        Self {
            start: random.random_range(0..10),
            maps: (0..count).map(|_| DigitMap::draw(random)).collect(),
        }
    }

    /// Returns the number of maps.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.maps.len()
    }

    /// Returns the prompt, such as `3+4*7`.
    #[must_use]
    pub fn prompt(&self) -> String {
        self.maps.iter().fold(self.start.to_string(), |prompt, map| format!("{prompt}{map}"))
    }

    /// Returns the answer, a digit.
    #[must_use]
    pub fn answer(&self) -> u8 {
        self.maps.iter().fold(self.start, |digit, map| map.apply(digit))
    }

    /// Returns the worked solution, such as `3+4=7,7*7=9,A:9`.
    #[must_use]
    pub fn worked_solution(&self) -> String {
        let mut solution = String::new();
        let mut digit = self.start;
        for map in &self.maps {
            let next = map.apply(digit);
            solution.push_str(&format!("{digit}{map}={next},"));
            digit = next;
        }
        solution + &self.direct_solution()
    }

    /// Returns the direct solution, such as `A:9`.
    #[must_use]
    pub fn direct_solution(&self) -> String {
        format!("{ANSWER}{}", self.answer())
    }

    /// Returns the solution of the given kind.
    #[must_use]
    pub fn demonstration(&self, kind: Demonstration) -> String {
        match kind {
            Demonstration::Worked => self.worked_solution(),
            Demonstration::Direct => self.direct_solution(),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_chain_is_evaluated_from_left_to_right() {
        let chain = Chain { start: 3, maps: vec![DigitMap::Add(4), DigitMap::Multiply(7)] };
        assert_eq!(chain.prompt(), "3+4*7");
        assert_eq!(chain.worked_solution(), "3+4=7,7*7=9,A:9");
        assert_eq!(chain.direct_solution(), "A:9");
    }

    #[test]
    fn every_map_is_a_bijection_other_than_the_identity() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for map in (0..1000).map(|_| DigitMap::draw(&mut random)) {
            let mut images: Vec<u8> = (0..10).map(|digit| map.apply(digit)).collect();
            assert_ne!(images, (0..10).collect::<Vec<_>>(), "{map}");
            images.sort_unstable();
            assert_eq!(images, (0..10).collect::<Vec<_>>(), "{map}");
        }
    }

    #[test]
    fn lengths_have_their_median_and_a_long_tail() {
        let mut random = ChaCha8Rng::seed_from_u64(2);
        let mut lengths: Vec<u32> =
            (0..20_000).map(|_| ChainLengths::default().draw(&mut random)).collect();
        lengths.sort_unstable();
        assert_eq!(lengths[10_000], 6);
        assert!(lengths[0] == 1 && (80..=96).contains(&lengths[19_999]));
    }

    #[test]
    fn the_alphabet_is_complete() {
        let mut random = ChaCha8Rng::seed_from_u64(3);
        for _ in 0..100 {
            let chain = Chain::draw(&mut random, ChainLengths::default());
            assert!(
                (chain.prompt() + &chain.worked_solution())
                    .chars()
                    .all(|character| ALPHABET.contains(character))
            );
        }
    }
}
