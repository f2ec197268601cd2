//! Samples tokens from logits, on the device of the logits.

use tch::{Device, Kind, TchError, Tensor};

use super::sampling::Sampling;
use super::sequence::TokenDraw;

/// The minimum temperature of random sampling. Logits that are divided by a much lower temperature are infinite.
const MIN_TEMPERATURE: f64 = 1e-5;

/// Samples a token for each row of a batch of logits.
///
/// Rows with the same temperature, top-k and top-p are processed together, as a group.
///
/// At temperature 0 and below [`MIN_TEMPERATURE`], the token is the most likely one. Otherwise top-k and top-p restrict the tokens, and
/// each row is sampled by inversion at its own uniform number. The sampled token is the first, in order of token ids, at which the
/// cumulative share of the remaining probability exceeds the uniform number. Cumulative sums are in float64, so that rare tokens of large
/// vocabularies keep their probability. End-of-sequence tokens are excluded if the response may not end yet, and the sampled token is
/// replaced by an end-of-sequence token if the response must end.
#[derive(Debug)]
pub(super) struct Sampler {
    /// The token that ends a response of forced length: the model's first end-of-sequence token, or 0 if it has none.
    end: i64,
    /// `[1, vocab]`, bool: `true` for the end-of-sequence tokens.
    ends: Tensor,
    device: Device,
}

/// The sampled tokens, by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sampled {
    pub(crate) tokens: Vec<i64>,
    /// Log-probabilities of the tokens, in nats: after the division by the temperature, before end-of-sequence tokens are masked or forced,
    /// and before top-k and top-p. Below [`MIN_TEMPERATURE`], they are the log-probabilities of temperature 1. NaN if a logit of the row is
    /// NaN or positive infinity.
    pub(crate) logprobs: Vec<f32>,
}

impl Sampled {
    /// Appends the first `rows` tokens of `others`, with their log-probabilities.
    pub(super) fn extend(&mut self, others: Self, rows: usize) {
        self.tokens.extend(others.tokens.into_iter().take(rows));
        self.logprobs.extend(others.logprobs.into_iter().take(rows));
    }
}

impl Sampler {
    /// Creates a sampler over `vocab` tokens, of which `eos` end a response.
    pub(super) fn new(vocab: i64, eos: &[i32], device: Device) -> Result<Self, TchError> {
        let ids: Vec<i64> = eos.iter().copied().map(i64::from).collect();
        let mut ends = Tensor::f_zeros([1, vocab], (Kind::Bool, device))?;
        if !ids.is_empty() {
            let ids = Tensor::f_from_slice(&ids)?.f_to_device(device)?;
            let _same_tensor = ends.f_index_fill_(1, &ids, 1)?;
        }
        Ok(Self { end: ids.first().copied().unwrap_or(0), ends, device })
    }

    /// Samples one token from each row of `logits [n, vocab]` with the draw of the same index. Returns no tokens if there are no draws.
    pub(super) fn sample(&self, logits: &Tensor, draws: &[TokenDraw]) -> Result<Sampled, TchError> {
        let Some(TokenDraw { sampling, .. }) = draws.first() else { return Ok(Sampled::default()) };
        if draws.iter().all(|draw| draw.sampling.has_same_distribution(sampling)) {
            return self.sample_group(logits, draws, sampling);
        }
        let mut sampled =
            Sampled { tokens: vec![0; draws.len()], logprobs: vec![0.0; draws.len()] };
        for rows in group_by_sampling(draws) {
            let at: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
            let at = Tensor::f_from_slice(&at)?.f_to_device(self.device)?;
            let own: Vec<TokenDraw> = rows.iter().map(|row| draws[*row]).collect();
            let part =
                self.sample_group(&logits.f_index_select(0, &at)?, &own, &own[0].sampling)?;
            for (row, (token, logprob)) in
                rows.iter().zip(part.tokens.into_iter().zip(part.logprobs))
            {
                (sampled.tokens[*row], sampled.logprobs[*row]) = (token, logprob);
            }
        }
        Ok(sampled)
    }

    /// Samples all rows with the temperature, top-k and top-p of `sampling`.
    fn sample_group(
        &self,
        logits: &Tensor,
        draws: &[TokenDraw],
        sampling: &Sampling,
    ) -> Result<Sampled, TchError> {
        let is_greedy = sampling.temperature < MIN_TEMPERATURE;
        let temperature = if is_greedy { 1.0 } else { sampling.temperature };
        let logprobs = apply_temperature(logits, temperature)?.f_log_softmax(-1, Kind::Float)?;
        let allowed = self.mask_end_tokens(&logprobs, draws)?;
        let allowed = allowed.as_ref().unwrap_or(&logprobs);
        let drawn = if is_greedy {
            allowed.f_argmax(-1, true)?
        } else {
            self.sample_by_inversion(allowed, draws, sampling)?
        };
        let tokens = self.force_end_tokens(drawn, draws)?;
        let logprobs = logprobs.f_gather(-1, &tokens, false)?;
        Ok(Sampled {
            tokens: Vec::try_from(tokens.f_squeeze_dim(1)?)?,
            logprobs: Vec::try_from(logprobs.f_squeeze_dim(1)?)?,
        })
    }

    fn mask_end_tokens(
        &self,
        logprobs: &Tensor,
        draws: &[TokenDraw],
    ) -> Result<Option<Tensor>, TchError> {
        if draws.iter().all(|draw| draw.may_end) {
            return Ok(None);
        }
        let held_back = self.column(draws.iter().map(|draw| !draw.may_end))?;
        logprobs.f_masked_fill(&held_back.f_logical_and(&self.ends)?, f64::NEG_INFINITY).map(Some)
    }

    /// Returns `[n, 1]`: the token at the uniform number of each draw.
    fn sample_by_inversion(
        &self,
        logprobs: &Tensor,
        draws: &[TokenDraw],
        sampling: &Sampling,
    ) -> Result<Tensor, TchError> {
        let kept = truncate(logprobs.f_exp()?, sampling)?;
        let cumulative = kept.f_cumsum(-1, Kind::Double)?;
        let vocab = cumulative.size2()?.1;
        let uniform = self.column(draws.iter().map(|draw| draw.uniform))?;
        // Truncated probabilities are not renormalized, so the uniform number is scaled by their sum.
        let at = uniform.f_mul(&cumulative.f_narrow(1, vocab - 1, 1)?)?;
        let drawn = at.f_searchsorted::<Tensor>(&cumulative, false, true, "right", None)?;
        // An index past the end occurs only if the probabilities are not finite. The caller detects this by the log-probability.
        drawn.f_clamp_max(vocab - 1)
    }

    fn force_end_tokens(&self, drawn: Tensor, draws: &[TokenDraw]) -> Result<Tensor, TchError> {
        if draws.iter().all(|draw| !draw.must_end) {
            return Ok(drawn);
        }
        drawn.f_masked_fill(&self.column(draws.iter().map(|draw| draw.must_end))?, self.end)
    }

    fn column<T: tch::kind::Element>(
        &self,
        values: impl Iterator<Item = T>,
    ) -> Result<Tensor, TchError> {
        Tensor::f_from_slice(&values.collect::<Vec<_>>())?.f_unsqueeze(1)?.f_to_device(self.device)
    }
}

/// Groups rows with the same temperature, top-k and top-p, ordered by the first row of each group.
fn group_by_sampling(draws: &[TokenDraw]) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = Vec::new();
    for (row, draw) in draws.iter().enumerate() {
        let own = all
            .iter_mut()
            .find(|rows| draws[rows[0]].sampling.has_same_distribution(&draw.sampling));
        match own {
            Some(rows) => rows.push(row),
            None => all.push(vec![row]),
        }
    }
    all
}

fn apply_temperature(logits: &Tensor, temperature: f64) -> Result<Tensor, TchError> {
    match temperature {
        1.0 => Ok(logits.shallow_clone()),
        temperature => logits.f_div_scalar(temperature),
    }
}

/// Sets the probabilities outside top-k and top-p to zero, and does not normalize the others. Tokens as likely as the last kept token are
/// also kept.
fn truncate(probabilities: Tensor, sampling: &Sampling) -> Result<Tensor, TchError> {
    let vocab = probabilities.size2()?.1;
    let top_k = match i64::from(sampling.top_k) {
        0 => vocab,
        top_k => top_k.min(vocab),
    };
    if top_k == vocab && sampling.top_p >= 1.0 {
        return Ok(probabilities);
    }
    let (likeliest, _) = probabilities.f_topk(top_k, -1, true, true)?;
    let last = last_kept(&likeliest, sampling.top_p)?;
    let dropped = probabilities.f_lt_tensor(&likeliest.f_gather(1, &last, false)?)?;
    probabilities.f_masked_fill(&dropped, 0.0)
}

/// Returns `[n, 1]`: the index of the last probability to keep in `likeliest [n, k]`, which is in descending order.
fn last_kept(likeliest: &Tensor, top_p: f64) -> Result<Tensor, TchError> {
    let cumulative = likeliest.f_cumsum(-1, Kind::Double)?;
    let last = likeliest.size2()?.1 - 1;
    let wanted = cumulative.f_narrow(1, last, 1)?.f_mul_scalar(top_p)?;
    wanted.f_searchsorted::<Tensor>(&cumulative, false, false, "left", None)?.f_clamp_max(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBABILITIES: [f32; 4] = [0.1, 0.4, 0.2, 0.3];

    fn sample(rows: &Tensor, draws: &[TokenDraw]) -> Sampled {
        Sampler::new(4, &[1], Device::Cpu).unwrap().sample(rows, draws).unwrap()
    }

    fn draw(uniform: f64) -> TokenDraw {
        let sampling = Sampling::unrestricted(1);
        TokenDraw { sampling, uniform, may_end: true, must_end: false }
    }

    fn rows(count: usize) -> Tensor {
        Tensor::from_slice(&PROBABILITIES).log().repeat([count as i64, 1])
    }

    /// Returns the tokens that are sampled with `sampling` at each of `draws` from the same distribution.
    fn tokens(sampling: Sampling, draws: &[TokenDraw]) -> Vec<i64> {
        let draws: Vec<TokenDraw> =
            draws.iter().map(|draw| TokenDraw { sampling, ..*draw }).collect();
        sample(&rows(draws.len()), &draws).tokens
    }

    fn at(uniforms: &[f64]) -> Vec<TokenDraw> {
        uniforms.iter().map(|uniform| draw(*uniform)).collect()
    }

    #[test]
    fn tokens_are_drawn_by_inverse_transform_sampling() {
        let draws = at(&[0.0, 0.09, 0.11, 0.49, 0.51, 0.69, 0.71, 1.0 - f64::EPSILON]);
        assert_eq!(tokens(Sampling::unrestricted(1), &draws), [0, 0, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn a_low_temperature_sharpens_the_distribution() {
        let cold = Sampling { temperature: 0.5, ..Sampling::unrestricted(1) };
        // Squares over their sum: 1, 16, 4 and 9 of 30.
        let draws = at(&[0.9 / 30.0, 1.1 / 30.0, 16.9 / 30.0, 17.1 / 30.0, 21.1 / 30.0]);
        assert_eq!(tokens(cold, &draws), [0, 1, 1, 2, 3]);
        assert_eq!(tokens(Sampling::greedy(1), &draws), [1; 5]);
    }

    #[test]
    fn a_tiny_temperature_draws_the_most_likely_token() {
        for temperature in [1e-40, f64::MIN_POSITIVE, 1e-6] {
            let sampling = Sampling { temperature, ..Sampling::unrestricted(1) };
            let sampled = sample(&rows(1), &[TokenDraw { sampling, ..draw(0.9) }]);
            assert_eq!(sampled.tokens, [1], "{temperature}");
            assert!((sampled.logprobs[0] - 0.4_f32.ln()).abs() < 1e-6, "{temperature}");
        }
    }

    #[test]
    fn only_the_most_likely_tokens_are_drawn() {
        let uniforms = at(&[0.01, 0.56, 0.58, 0.99]);
        let two = Sampling { top_k: 2, ..Sampling::unrestricted(1) };
        assert_eq!(tokens(two, &uniforms), [1, 1, 3, 3]);
        let seven_tenths = Sampling { top_p: 0.69, ..Sampling::unrestricted(1) };
        assert_eq!(tokens(seven_tenths, &uniforms), [1, 1, 3, 3]);
        let a_bit_more = Sampling { top_p: 0.71, ..Sampling::unrestricted(1) };
        assert_eq!(tokens(a_bit_more, &at(&[0.01, 0.46, 0.99])), [1, 2, 3]);
        let one = Sampling { top_p: 1e-9, ..Sampling::unrestricted(1) };
        assert_eq!(tokens(one, &uniforms), [1; 4]);
        let both = Sampling { top_k: 2, top_p: 0.5, ..Sampling::unrestricted(1) };
        assert_eq!(tokens(both, &uniforms), [1; 4], "0.4 of 0.7 is more than half");
    }

    #[test]
    fn end_tokens_are_suppressed_and_forced_per_row() {
        let held_back = TokenDraw { may_end: false, ..draw(0.2) };
        let forced = TokenDraw { may_end: false, must_end: true, ..draw(0.9) };
        assert_eq!(tokens(Sampling::unrestricted(1), &[draw(0.2), held_back, forced]), [1, 2, 1]);
        assert_eq!(tokens(Sampling::greedy(1), &[draw(0.2), held_back, forced]), [1, 3, 1]);
    }

    #[test]
    fn logprobs_are_those_before_truncation_and_suppression() {
        let sampling = Sampling { top_k: 1, ..Sampling::unrestricted(1) };
        let forced = TokenDraw { sampling, may_end: false, must_end: true, ..draw(0.9) };
        let sampled =
            sample(&rows(2), &[TokenDraw { sampling, may_end: false, ..draw(0.5) }, forced]);
        assert_eq!(sampled.tokens, [3, 1]);
        for (found, expected) in sampled.logprobs.iter().zip([0.3f32, 0.4]) {
            assert!((found - expected.ln()).abs() < 1e-6);
        }
    }

    #[test]
    fn rows_with_different_sampling_match_each_row_alone() {
        let of = [
            Sampling::unrestricted(1),
            Sampling::greedy(2),
            Sampling { temperature: 0.5, ..Sampling::unrestricted(1) },
            Sampling { top_k: 2, ..Sampling::unrestricted(1) },
            Sampling::unrestricted(7),
            Sampling::greedy(1),
        ];
        let draws: Vec<TokenDraw> = of
            .iter()
            .zip([0.05, 0.9, 0.55, 0.99, 0.95, 0.01])
            .map(|(sampling, uniform)| TokenDraw { sampling: *sampling, ..draw(uniform) })
            .collect();
        assert_eq!(group_by_sampling(&draws), [vec![0, 4], vec![1, 5], vec![2], vec![3]]);
        let mixed = sample(&rows(6), &draws);
        let alone: Vec<Sampled> =
            draws.iter().map(|draw| sample(&rows(1), std::slice::from_ref(draw))).collect();
        let tokens: Vec<i64> = alone.iter().map(|one| one.tokens[0]).collect();
        let logprobs: Vec<f32> = alone.iter().map(|one| one.logprobs[0]).collect();
        assert_eq!(mixed, Sampled { tokens, logprobs });
        assert_eq!(mixed.tokens, [0, 1, 1, 3, 3, 1]);
    }

    #[test]
    fn nan_logits_show_in_the_logprob() {
        let rows = Tensor::from_slice(&[f32::NAN; 4]).unsqueeze(0);
        assert!(sample(&rows, &[draw(0.5)]).logprobs[0].is_nan());
    }
}
