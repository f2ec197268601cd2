//! Micro-batches: prompts and responses packed without padding.

use rollpacker_stages::train::Sequence;
use tch::{Device, TchError, Tensor};

use super::shared_prompts::{PromptGroup, SharedPrompts};
use crate::model::Decoder;

/// A prompt and a response. Only the response carries loss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromptResponse<'a> {
    pub(crate) prompt: &'a [i32],
    pub(crate) response: &'a [i32],
}

impl<'a> PromptResponse<'a> {
    pub(crate) fn of(sequence: &Sequence<'a>) -> Self {
        Self { prompt: sequence.prompt_ids, response: sequence.response_ids }
    }

    /// Returns the number of tokens that the model processes: all but the last, which is only predicted.
    pub(crate) fn fed_tokens(&self) -> usize {
        (self.prompt.len() + self.response.len()).saturating_sub(1)
    }
}

/// Divides pairs of a prompt and a response into micro-batches of at most `budget` [fed tokens](PromptResponse::fed_tokens). A longer pair
/// shares its micro-batch only with pairs that add no fed tokens to it. Returns the indices of the pairs of each micro-batch.
///
/// The number of micro-batches is about `parts(tokens)`, or larger if the budget requires it. `tokens` is the number of fed tokens of all
/// pairs, in which shared prompts count once. All micro-batches have about the same number of fed tokens.
///
/// Adjacent pairs with the same prompt stay adjacent and share its tokens. If no adjacent pairs have the same prompt, shorter pairs come
/// first, so that adjacent pairs have equal lengths and share their attention kernels. Pairs without a response are left out.
pub(crate) fn plan(
    pairs: &[PromptResponse<'_>],
    budget: usize,
    parts: impl FnOnce(usize) -> usize,
) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> =
        (0..pairs.len()).filter(|&at| !pairs[at].response.is_empty()).collect();
    if order.windows(2).all(|order_pair| pairs[order_pair[0]].prompt != pairs[order_pair[1]].prompt)
    {
        order.sort_by_key(|&at| pairs[at].fed_tokens());
    }
    let costs = costs(order.iter().map(|&at| pairs[at]));
    let total: usize = costs.iter().sum();
    let parts = parts(total);
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let (mut before, mut room) = (0, 0);
    for (at, cost) in order.into_iter().zip(costs) {
        // A part ends between the two pairs that are nearest to its share of the tokens.
        let part_is_full = (2 * before + cost) * parts > 2 * batches.len() * total;
        match batches.last_mut() {
            Some(batch) if cost <= room && !part_is_full => {
                room -= cost;
                batch.push(at);
            }
            _ => {
                batches.push(vec![at]);
                room = budget.saturating_sub(pairs[at].fed_tokens());
            }
        }
        before += cost;
    }
    batches
}

/// Returns the number of tokens that each pair adds to a micro-batch that holds the pair before it, which may have the same prompt.
fn costs<'a>(pairs: impl Iterator<Item = PromptResponse<'a>>) -> Vec<usize> {
    let mut previous = None;
    pairs
        .map(|pair| {
            let shares = previous.replace(pair.prompt) == Some(pair.prompt);
            if shares { pair.response.len().saturating_sub(1) } else { pair.fed_tokens() }
        })
        .collect()
}

/// Pairs of a prompt and a response, packed without padding into the input of a forward pass.
#[derive(Debug)]
pub(crate) struct MicroBatch {
    /// The input of the model, `[fed tokens]`. A prompt that adjacent pairs share appears once, before their responses.
    ids: Tensor,
    layout: PackLayout,
    /// The position in `ids` from which each response token is predicted, `[response tokens]`.
    predicted: Tensor,
    /// The response tokens, `[response tokens]`.
    pub(crate) targets: Tensor,
}

#[derive(Debug)]
enum PackLayout {
    /// The number of fed tokens of each pair; no pairs share a prompt.
    Separate(Vec<i64>),
    /// The prompts and responses; at least two adjacent pairs share a prompt.
    Shared(SharedPrompts),
}

impl MicroBatch {
    /// Packs pairs. Each must have a prompt and a response of at least one token.
    pub(crate) fn pack(pairs: &[PromptResponse<'_>], device: Device) -> Result<Self, TchError> {
        let (mut ids, mut predicted, mut groups) = (Vec::new(), Vec::new(), Vec::new());
        for group in pairs.chunk_by(|a, b| a.prompt == b.prompt) {
            let prompt = group[0].prompt;
            ids.extend(prompt.iter().map(|&id| i64::from(id)));
            let last_of_prompt = ids.len() - 1;
            for PromptResponse { response, .. } in group {
                predicted.extend([last_of_prompt as i64]);
                predicted.extend((ids.len()..).take(response.len() - 1).map(|at| at as i64));
                ids.extend(response[..response.len() - 1].iter().map(|&id| i64::from(id)));
            }
            let responses = group.iter().map(|pair| pair.response.len() as i64 - 1).collect();
            groups.push(PromptGroup { prompt: prompt.len() as i64, responses });
        }
        let targets: Vec<i64> =
            pairs.iter().flat_map(|pair| pair.response).map(|&id| i64::from(id)).collect();
        let layout = if groups.len() == pairs.len() {
            PackLayout::Separate(pairs.iter().map(|pair| pair.fed_tokens() as i64).collect())
        } else {
            PackLayout::Shared(SharedPrompts::new(groups, device)?)
        };
        let tensor = |values: &[i64]| Tensor::f_from_slice(values)?.f_to_device(device);
        Ok(Self {
            ids: tensor(&ids)?,
            layout,
            predicted: tensor(&predicted)?,
            targets: tensor(&targets)?,
        })
    }

    /// Returns the hidden states that predict the response tokens, `[response tokens, hidden]`.
    pub(crate) fn hidden(&self, decoder: &Decoder) -> Result<Tensor, TchError> {
        let hidden = match &self.layout {
            PackLayout::Separate(lengths) => decoder.forward_packed(&self.ids, lengths)?,
            PackLayout::Shared(shared) => {
                decoder.forward(&self.ids, shared.positions(), &mut |_, q, k, v| {
                    shared.attend(q, k, v)
                })?
            }
        };
        hidden.f_index_select(0, &self.predicted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs_of_lengths(lengths: &[(usize, usize)]) -> Vec<PromptResponse<'static>> {
        static IDS: [i32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        lengths
            .iter()
            .map(|&(p, r)| PromptResponse { prompt: &IDS[..p], response: &IDS[8..8 + r] })
            .collect()
    }

    #[test]
    fn plans_shorter_turns_first_and_never_exceeds_the_budget() {
        let pairs = pairs_of_lengths(&[(4, 7), (2, 2), (1, 0), (3, 1), (2, 3), (8, 8)]);
        assert_eq!(plan(&pairs, 10, |_| 1), [vec![1, 3, 4], vec![0], vec![5]]);
        assert_eq!(plan(&pairs, 1, |_| 1).len(), 5);
        assert!(plan(&[], 10, |_| 2).is_empty());
    }

    #[test]
    fn adjacent_turns_of_a_prompt_stay_together_and_share_the_budget() {
        let pairs = pairs_of_lengths(&[(4, 7), (4, 2), (4, 1), (2, 3), (4, 2)]);
        assert_eq!(plan(&pairs, 11, |_| 1), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(plan(&pairs, 10, |_| 1), [vec![0], vec![1, 2, 3], vec![4]]);
    }

    #[test]
    fn parts_have_about_the_same_number_of_tokens() {
        let shared = pairs_of_lengths(&[(4, 5), (4, 5), (4, 5), (4, 5)]);
        assert_eq!(plan(&shared, 100, |_| 2), [vec![0, 1], vec![2, 3]], "12 tokens each");
        let apart = pairs_of_lengths(&[(1, 4), (2, 3), (3, 2), (4, 1), (1, 8)]);
        assert_eq!(plan(&apart, 100, |_| 2), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(plan(&apart, 4, |_| 2).len(), 5, "the budget limits parts");
        assert_eq!(
            plan(&pairs_of_lengths(&[(1, 4), (2, 8)]), 100, |_| 2).len(),
            2,
            "the last pair is long"
        );
        assert_eq!(
            plan(&pairs_of_lengths(&[(4, 7), (4, 1)]), 100, |_| 1),
            [vec![0, 1]],
            "the last adds no token"
        );
        assert_eq!(plan(&apart, 100, |_| 9).len(), 5, "a pair is not divided");
    }

    fn numbers(tensor: &Tensor) -> Vec<i64> {
        Vec::try_from(tensor).unwrap()
    }

    #[test]
    fn the_position_of_a_target_is_one_before_it() {
        let batch = MicroBatch::pack(&pairs_of_lengths(&[(3, 2), (1, 3)]), Device::Cpu).unwrap();
        assert_eq!(numbers(&batch.ids), [0, 1, 2, 8, 0, 8, 9]);
        assert!(matches!(&batch.layout, PackLayout::Separate(lengths) if lengths == &[4, 3]));
        assert_eq!(numbers(&batch.predicted), [2, 3, 4, 5, 6]);
        assert_eq!(numbers(&batch.targets), [8, 9, 8, 9, 10]);
    }

    #[test]
    fn a_shared_prompt_predicts_the_first_token_of_each_response() {
        let batch =
            MicroBatch::pack(&pairs_of_lengths(&[(3, 2), (3, 1), (3, 3)]), Device::Cpu).unwrap();
        assert_eq!(numbers(&batch.ids), [0, 1, 2, 8, 8, 9]);
        assert_eq!(numbers(&batch.predicted), [2, 3, 2, 2, 4, 5]);
        assert_eq!(numbers(&batch.targets), [8, 9, 8, 8, 9, 10]);
    }
}
