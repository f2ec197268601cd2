//! Log-probabilities of given tokens, with ranks and the most likely tokens.

use rollpacker_stages::serving::TokenLogprob;
use tch::{Kind, TchError, Tensor};

use crate::model::inference::InferenceDecoder;
use crate::model::network::Network;

/// Maximum number of logits that are computed at once for a prompt, unless one row has more. A tensor of them takes 64 MiB.
const LOGITS: i64 = 1 << 24;

/// Returns the log-probability, in nats, and the rank, from 1, of one token per row of `logits [n, vocab]`. Each has the `top` most likely
/// tokens of its row, or all tokens if the vocabulary is smaller.
pub(super) fn of_rows(
    logits: &Tensor,
    tokens: &[i64],
    top: u32,
) -> Result<Vec<TokenLogprob>, TchError> {
    let logprobs = logits.f_log_softmax(-1, Kind::Float)?;
    let tokens = Tensor::f_from_slice(tokens)?.f_to_device(logits.device())?.f_unsqueeze(1)?;
    let own = logprobs.f_gather(-1, &tokens, false)?;
    let above =
        logprobs.f_gt_tensor(&own)?.f_sum_dim_intlist([-1_i64].as_slice(), false, Kind::Int64)?;
    let above: Vec<i64> = Vec::try_from(above)?;
    let own: Vec<f32> = Vec::try_from(own.f_squeeze_dim(1)?)?;
    let likeliest = likeliest(&logprobs, top, own.len())?;
    let scored = own.into_iter().zip(above).zip(likeliest);
    Ok(scored
        .map(|((logprob, above), top)| TokenLogprob { logprob, rank: rank(above), top })
        .collect())
}

/// Returns the log-probabilities of the tokens of a prompt from the second on, as [`of_rows`] does, computed in one pass over the prompt.
/// The prompt must not be empty.
pub(super) fn of_prompt(
    decoder: &mut InferenceDecoder,
    prompt: &[i32],
    top: u32,
) -> Result<Vec<TokenLogprob>, TchError> {
    let ids: Vec<i64> = prompt.iter().copied().map(i64::from).collect();
    let input = Tensor::f_from_slice(&ids)?.f_to_device(decoder.device())?;
    let hidden = decoder.forward_packed(&input, &[ids.len() as i64])?;
    let rows = usize::try_from(LOGITS / decoder.config().vocab_size).unwrap_or(1).max(1);
    let mut all = Vec::with_capacity(ids.len());
    for (part, next) in ids[1..].chunks(rows).enumerate() {
        let states = hidden.f_narrow(0, (part * rows) as i64, next.len() as i64)?;
        all.extend(of_rows(&decoder.logits(&states)?, next, top)?);
    }
    Ok(all)
}

/// Returns the `top` most likely tokens of each of `rows` rows with their log-probabilities, or all tokens if the vocabulary is smaller.
fn likeliest(logprobs: &Tensor, top: u32, rows: usize) -> Result<Vec<Vec<(i32, f32)>>, TchError> {
    let width = i64::from(top).min(logprobs.size2()?.1);
    if width == 0 {
        return Ok(vec![Vec::new(); rows]);
    }
    let (values, tokens) = logprobs.f_topk(width, -1, true, true)?;
    let values: Vec<f32> = Vec::try_from(values.f_reshape([-1])?)?;
    let tokens: Vec<i64> = Vec::try_from(tokens.f_reshape([-1])?)?;
    let pairs: Vec<(i32, f32)> =
        tokens.into_iter().zip(values).map(|(token, value)| (token as i32, value)).collect();
    Ok(pairs.chunks(width as usize).map(<[_]>::to_vec).collect())
}

fn rank(above: i64) -> u32 {
    u32::try_from(above).unwrap_or(u32::MAX).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_rank_and_likeliest_tokens() {
        let probabilities = [0.1_f32, 0.4, 0.2, 0.3, 0.25, 0.25, 0.5, 0.0];
        let logits = Tensor::from_slice(&probabilities).log().view([2, 4]);
        let scored = of_rows(&logits, &[2, 0], 2).unwrap();
        let close = |found: f32, expected: f32| (found.exp() - expected).abs() < 1e-6;
        assert_eq!(scored.iter().map(|one| one.rank).collect::<Vec<_>>(), [3, 2]);
        assert!(close(scored[0].logprob, 0.2) && close(scored[1].logprob, 0.25));
        assert_eq!(scored[0].top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [1, 3]);
        assert!(close(scored[0].top[0].1, 0.4) && close(scored[1].top[0].1, 0.5));
        assert!(of_rows(&logits, &[2, 0], 0).unwrap()[0].top.is_empty());
        assert_eq!(of_rows(&logits, &[2, 0], 9).unwrap()[0].top.len(), 4);
    }
}
