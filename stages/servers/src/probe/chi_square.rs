//! Pearson's chi-square test of sampled tokens against a distribution.

use statrs::distribution::{ChiSquared, ContinuousCDF};

/// The minimum expected count of a bin. It is so large that the statistic nearly follows the chi-square distribution.
const MIN_EXPECTED_COUNT: f64 = 10.0;

/// A partition of the vocabulary into bins. A likely token has a bin of its own; unlikely tokens share a bin with others of nearly the same
/// probability.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bins {
    /// The bin of each token.
    bin: Vec<usize>,
    /// The expected count of each bin.
    expected: Vec<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ChiSquare {
    /// Pearson's statistic: the sum of `(observed - expected)^2 / expected` over the bins.
    pub(super) statistic: f64,
    /// The degrees of freedom: the number of bins minus 1.
    pub(super) degrees: usize,
    /// The p-value: the probability of this statistic or a larger one if the tokens have the expected distribution.
    pub(super) p: f64,
}

impl Bins {
    /// Creates bins for `draws` draws from the distribution with the log-probabilities `logprobs`, one in nats for each token.
    pub(super) fn new(logprobs: &[f32], draws: usize) -> Self {
        let expected = |token: usize| f64::from(logprobs[token]).exp() * draws as f64;
        let mut tokens: Vec<usize> = (0..logprobs.len()).collect();
        tokens.sort_by(|one, other| logprobs[*other].total_cmp(&logprobs[*one]));
        let (mut bin, mut counts) = (vec![0; logprobs.len()], Vec::new());
        let mut count = 0.0;
        for &token in &tokens {
            bin[token] = counts.len();
            count += expected(token);
            if count >= MIN_EXPECTED_COUNT {
                counts.push(std::mem::take(&mut count));
            }
        }
        // The rest joins the last bin that is large enough.
        if let Some(last) = counts.last_mut() {
            *last += count;
        } else {
            counts.push(count);
        }
        let last = counts.len() - 1;
        bin.iter_mut().for_each(|bin| *bin = (*bin).min(last));
        Self { bin, expected: counts }
    }

    pub(super) fn len(&self) -> usize {
        self.expected.len()
    }

    /// Compares the counts of `tokens` in the bins with the expected counts. There must be 2 bins or more, and as many tokens as the draws
    /// for which the bins were created. Returns `None` if a token is not in the vocabulary.
    pub(super) fn test(&self, tokens: &[i32]) -> Option<ChiSquare> {
        let mut observed = vec![0_u64; self.len()];
        for token in tokens {
            observed[*self.bin.get(usize::try_from(*token).ok()?)?] += 1;
        }
        Some(chi_square(&observed, &self.expected))
    }
}

/// Compares observed with expected counts, which have the same sum, in 2 bins or more.
fn chi_square(observed: &[u64], expected: &[f64]) -> ChiSquare {
    let terms = observed.iter().zip(expected).map(|(&o, &e)| (o as f64 - e).powi(2) / e);
    let (statistic, degrees) = (terms.sum::<f64>(), observed.len().saturating_sub(1));
    let p = ChiSquared::new(degrees as f64).map_or(1.0, |law| law.sf(statistic));
    ChiSquare { statistic, degrees, p }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uniform(tokens: usize) -> Vec<f32> {
        vec![-(tokens as f32).ln(); tokens]
    }

    /// The statistics are the 0.95 and 0.99 quantiles from tables.
    #[test]
    fn p_values_are_those_of_tables() {
        for (statistic, degrees, p) in [(3.841, 1, 0.05), (18.307, 10, 0.05), (15.086, 5, 0.01)] {
            let law = ChiSquared::new(f64::from(degrees)).unwrap();
            assert!((law.sf(statistic) - p).abs() < 1e-4, "{statistic} {degrees}");
        }
        // 204 throws of a die.
        let die = chi_square(&[22, 24, 38, 30, 46, 44], &[34.0; 6]);
        assert!((die.statistic - 520.0 / 34.0).abs() < 1e-9 && die.degrees == 5);
        assert!(die.p > 0.005 && die.p < 0.01, "{}", die.p);
    }

    #[test]
    fn unlikely_tokens_share_bins() {
        let half = 0.5_f32.ln();
        let mut logprobs = vec![half];
        logprobs.extend(uniform(5000).iter().map(|logprob| logprob + half));
        let bins = Bins::new(&logprobs, 1000);
        assert!(bins.expected.iter().all(|&count| count >= MIN_EXPECTED_COUNT));
        assert!((bins.expected.iter().sum::<f64>() - 1000.0).abs() < 0.1);
        assert!((48..=51).contains(&bins.len()), "{}", bins.len());
        assert_eq!(Bins::new(&[0.0, -100.0], 1000).len(), 1, "there is nothing to test");
    }

    #[test]
    fn an_equal_distribution_passes_and_another_does_not() {
        let bins = Bins::new(&uniform(20), 1000);
        let even: Vec<i32> = (0..1000).map(|draw| draw % 20).collect();
        assert!(bins.test(&even).unwrap().p > 0.999);
        // Twice as many draws from one half of the vocabulary, as a truncation would do.
        let truncated: Vec<i32> = (0..1000).map(|draw| draw % 10).collect();
        assert!(bins.test(&truncated).unwrap().p < 1e-9);
        assert_eq!(bins.test(&[20]), None);
        assert_eq!(bins.test(&[-1]), None);
    }
}
