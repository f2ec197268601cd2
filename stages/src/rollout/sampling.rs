//! Sampling options, and the random stream of a response.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rollpacker_dataflow::step::SampleId;

/// The options for sampling the tokens of a response, and the bounds of its length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits; finite and at least 0. With 0 the most likely token is chosen. (verl: `rollout.temperature`)
    pub temperature: f64,
    /// Nucleus sampling: the fewest most likely tokens whose share of the probability is at least this are kept. In (0, 1]; 1 turns it off.
    /// Applied after `top_k`: the share refers to the tokens that `top_k` keeps. (verl: `rollout.top_p`)
    pub top_p: f64,
    /// The number of most likely tokens that are kept; 0 turns it off. Tokens with the same probability as the last kept token are kept
    /// too. (verl: `rollout.top_k`, where -1 turns it off)
    pub top_k: u32,
    /// Number of tokens before which no end-of-sequence token is sampled; at most `max_new_tokens`.
    pub min_new_tokens: u32,
    /// Maximum number of tokens of a response, at which it is cut; at least 1. (verl: `data.max_response_length`; TRL:
    /// `max_completion_length`)
    pub max_new_tokens: u32,
}

impl Sampling {
    /// Returns options that sample from the policy's own distribution, up to `max_new_tokens`.
    #[must_use]
    pub fn unrestricted(max_new_tokens: u32) -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: 0, min_new_tokens: 0, max_new_tokens }
    }

    /// Returns options that choose the most likely token each time, up to `max_new_tokens`.
    #[must_use]
    pub fn greedy(max_new_tokens: u32) -> Self {
        Self { temperature: 0.0, ..Self::unrestricted(max_new_tokens) }
    }

    /// Returns `true` if both sample a token from the same distribution; lengths are ignored.
    #[must_use]
    pub fn has_same_distribution(&self, other: &Self) -> bool {
        (self.temperature, self.top_p, self.top_k) == (other.temperature, other.top_p, other.top_k)
    }

    /// Returns the first option that is out of bounds: its name, the bounds and its value. Returns `None` if all options are valid.
    #[must_use]
    pub fn invalid_option(&self) -> Option<(&'static str, &'static str, String)> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return Some((
                "temperature",
                "a finite number, at least 0",
                self.temperature.to_string(),
            ));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Some(("top_p", "in (0, 1]", self.top_p.to_string()));
        }
        if self.max_new_tokens == 0 {
            return Some(("max_new_tokens", "at least 1", "0".to_owned()));
        }
        (self.min_new_tokens > self.max_new_tokens)
            .then(|| ("min_new_tokens", "at most max_new_tokens", self.min_new_tokens.to_string()))
    }
}

/// Number of 32-bit words that the generator uses for a number.
const WORDS_PER_NUMBER: u128 = 2;

/// The random numbers of one response.
///
/// The generator is ChaCha8 keyed by the engine's seed, the step, the prompt and the sample, eight bytes each. Each token uses one number,
/// in order. A response therefore draws the same numbers in any batch, in any order and on any instance, and continues with them after a
/// preemption or a stop.
#[derive(Clone, Debug)]
pub struct RandomStream(ChaCha8Rng);

impl RandomStream {
    /// Returns the stream of response `id`.
    #[must_use]
    pub fn new(seed: u64, id: SampleId) -> Self {
        let mut key = [0; 32];
        for (bytes, word) in
            key.chunks_exact_mut(8).zip([seed, id.step.0, id.prompt.0, u64::from(id.sample)])
        {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Self::from_key(key)
    }

    /// Returns the stream of a key, for sequences that do not belong to a step.
    #[must_use]
    pub fn from_key(key: [u8; 32]) -> Self {
        Self(ChaCha8Rng::from_seed(key))
    }

    /// Skips the first `drawn` numbers of a new stream.
    #[must_use]
    pub fn skip(mut self, drawn: u32) -> Self {
        self.0.set_word_pos(WORDS_PER_NUMBER * u128::from(drawn));
        self
    }

    /// Returns the next number, uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use rollpacker_dataflow::step::{PromptId, Step};

    use super::*;

    fn first(seed: u64, step: u64, prompt: u64, sample: u32) -> f64 {
        RandomStream::new(seed, SampleId { step: Step(step), prompt: PromptId(prompt), sample })
            .uniform()
    }

    #[test]
    fn every_part_of_the_key_changes_the_stream() {
        let base = first(1, 2, 3, 4);
        assert_eq!(base, first(1, 2, 3, 4));
        for other in [
            first(0, 2, 3, 4),
            first(1, 0, 3, 4),
            first(1, 2, 0, 4),
            first(1, 2, 3, 0),
            first(2, 1, 3, 4),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn a_stream_continues_where_it_stopped() {
        let mut stream = RandomStream::new(0, SampleId::default());
        for drawn in 0..100 {
            let mut again = RandomStream::new(0, SampleId::default()).skip(drawn);
            assert_eq!(again.uniform(), stream.uniform(), "number {drawn}");
        }
    }

    #[test]
    fn numbers_are_uniform() {
        let mut stream = RandomStream::new(0, SampleId::default());
        let numbers: Vec<f64> = (0..10_000).map(|_| stream.uniform()).collect();
        assert!(numbers.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = numbers.iter().sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.015, "{mean}");
    }

    #[test]
    fn options_out_of_bounds_are_named() {
        let good = Sampling::unrestricted(8);
        assert_eq!(good.invalid_option(), None);
        let name = |bad: Sampling| bad.invalid_option().map(|(name, _, _)| name);
        assert_eq!(name(Sampling { temperature: f64::NAN, ..good }), Some("temperature"));
        assert_eq!(name(Sampling { top_p: 0.0, ..good }), Some("top_p"));
        assert_eq!(name(Sampling { max_new_tokens: 0, ..good }), Some("max_new_tokens"));
        assert_eq!(name(Sampling { min_new_tokens: 9, ..good }), Some("min_new_tokens"));
    }
}
