//! Micro-batches: prompts and responses packed without padding.

use rollpacker_stages::train::Sequence;
use tch::{Device, TchError, Tensor};

use super::shared_prompts::{Family, SharedPrompts};
use crate::model::Decoder;

/// A prompt and a response. Only the response carries loss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromptResponse<'a> {
    pub(crate) prompt: &'a [i32],
    pub(crate) response: &'a [i32],
}

impl<'a> PromptResponse<'a> {
    /// Returns the prompt and the response of a sequence.
    pub(crate) fn of(sequence: &Sequence<'a>) -> Self {
        Self { prompt: sequence.prompt_ids, response: sequence.response_ids }
    }

    /// Returns the number of tokens that the model processes: all but the last, which is only predicted.
    pub(crate) fn fed_tokens(&self) -> usize {
        (self.prompt.len() + self.response.len()).saturating_sub(1)
    }
}

/// Divides turns into micro-batches of at most `budget` fed tokens; a longer turn is a micro-batch of its own. Returns the indices of the
/// turns. There are about `parts(tokens)` micro-batches of about the same number of fed tokens, or more if the budget requires it, where
/// `tokens` is the number of all fed tokens.
///
/// Adjacent turns with the same prompt stay adjacent and share its tokens. If there are none, shorter turns come first, so that adjacent
/// turns have equal lengths and share their attention kernels. Turns without a response are left out.
pub(crate) fn plan(
    turns: &[PromptResponse<'_>],
    budget: usize,
    parts: impl FnOnce(usize) -> usize,
) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> =
        (0..turns.len()).filter(|&at| !turns[at].response.is_empty()).collect();
    if order.windows(2).all(|pair| turns[pair[0]].prompt != turns[pair[1]].prompt) {
        order.sort_by_key(|&at| turns[at].fed_tokens());
    }
    let costs = costs(order.iter().map(|&at| turns[at]));
    let total: usize = costs.iter().sum();
    let parts = parts(total);
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let (mut before, mut room) = (0, 0);
    for (at, cost) in order.into_iter().zip(costs) {
        // A part ends between the two turns that are nearest to its share of the tokens.
        let part_is_full = (2 * before + cost) * parts > 2 * batches.len() * total;
        match batches.last_mut() {
            Some(batch) if cost <= room && !part_is_full => {
                room -= cost;
                batch.push(at);
            }
            _ => {
                batches.push(vec![at]);
                room = budget.saturating_sub(turns[at].fed_tokens());
            }
        }
        before += cost;
    }
    batches
}

/// Returns the number of tokens that each turn adds to a micro-batch that holds the turn before it, which may have the same prompt.
fn costs<'a>(turns: impl Iterator<Item = PromptResponse<'a>>) -> Vec<usize> {
    let mut previous = None;
    turns
        .map(|turn| {
            let shares = previous.replace(turn.prompt) == Some(turn.prompt);
            if shares { turn.response.len().saturating_sub(1) } else { turn.fed_tokens() }
        })
        .collect()
}

/// Turns packed for the model.
#[derive(Debug)]
pub(crate) struct MicroBatch {
    /// The input of the model, `[fed tokens]`. A prompt that adjacent turns share appears once, before their responses.
    ids: Tensor,
    layout: Layout,
    /// The position in `ids` from which each response token is predicted, `[response tokens]`.
    predicted: Tensor,
    /// The response tokens, `[response tokens]`.
    pub(crate) targets: Tensor,
}

#[derive(Debug)]
enum Layout {
    /// The number of fed tokens of each turn; no turns share a prompt.
    Apart(Vec<i64>),
    Shared(SharedPrompts),
}

impl MicroBatch {
    /// Packs turns. Each must have a prompt and a response of at least one token.
    pub(crate) fn pack(turns: &[PromptResponse<'_>], device: Device) -> Result<Self, TchError> {
        let (mut ids, mut predicted, mut families) = (Vec::new(), Vec::new(), Vec::new());
        for family in turns.chunk_by(|a, b| a.prompt == b.prompt) {
            let prompt = family[0].prompt;
            ids.extend(prompt.iter().map(|&id| i64::from(id)));
            let last_of_prompt = ids.len() - 1;
            for PromptResponse { response, .. } in family {
                predicted.extend([last_of_prompt as i64]);
                predicted.extend((ids.len()..).take(response.len() - 1).map(|at| at as i64));
                ids.extend(response[..response.len() - 1].iter().map(|&id| i64::from(id)));
            }
            let responses = family.iter().map(|turn| turn.response.len() as i64 - 1).collect();
            families.push(Family { prompt: prompt.len() as i64, responses });
        }
        let targets: Vec<i64> =
            turns.iter().flat_map(|turn| turn.response).map(|&id| i64::from(id)).collect();
        let layout = if families.len() == turns.len() {
            Layout::Apart(turns.iter().map(|turn| turn.fed_tokens() as i64).collect())
        } else {
            Layout::Shared(SharedPrompts::new(families, device)?)
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
            Layout::Apart(lengths) => decoder.forward_packed(&self.ids, lengths)?,
            Layout::Shared(shared) => {
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

    fn turns(lengths: &[(usize, usize)]) -> Vec<PromptResponse<'static>> {
        static IDS: [i32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        lengths
            .iter()
            .map(|&(p, r)| PromptResponse { prompt: &IDS[..p], response: &IDS[8..8 + r] })
            .collect()
    }

    #[test]
    fn plans_shorter_turns_first_and_never_exceeds_the_budget() {
        let turns = turns(&[(4, 7), (2, 2), (1, 0), (3, 1), (2, 3), (8, 8)]);
        assert_eq!(plan(&turns, 10, |_| 1), [vec![1, 3, 4], vec![0], vec![5]]);
        assert_eq!(plan(&turns, 1, |_| 1).len(), 5);
        assert!(plan(&[], 10, |_| 2).is_empty());
    }

    #[test]
    fn adjacent_turns_of_a_prompt_stay_together_and_share_the_budget() {
        let turns = turns(&[(4, 7), (4, 2), (4, 1), (2, 3), (4, 2)]);
        assert_eq!(plan(&turns, 11, |_| 1), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(plan(&turns, 10, |_| 1), [vec![0], vec![1, 2, 3], vec![4]]);
    }

    #[test]
    fn parts_have_about_the_same_number_of_tokens() {
        let shared = turns(&[(4, 5), (4, 5), (4, 5), (4, 5)]);
        assert_eq!(plan(&shared, 100, |_| 2), [vec![0, 1], vec![2, 3]], "12 tokens each");
        let apart = turns(&[(1, 4), (2, 3), (3, 2), (4, 1), (1, 8)]);
        assert_eq!(plan(&apart, 100, |_| 2), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(plan(&apart, 4, |_| 2).len(), 5, "the budget limits parts");
        assert_eq!(plan(&turns(&[(1, 4), (2, 8)]), 100, |_| 2).len(), 2, "the last turn is long");
        assert_eq!(
            plan(&turns(&[(4, 7), (4, 1)]), 100, |_| 1),
            [vec![0, 1]],
            "the last adds no token"
        );
        assert_eq!(plan(&apart, 100, |_| 9).len(), 5, "a turn is not divided");
    }

    fn numbers(tensor: &Tensor) -> Vec<i64> {
        Vec::try_from(tensor).unwrap()
    }

    #[test]
    fn the_position_of_a_target_is_one_before_it() {
        let batch = MicroBatch::pack(&turns(&[(3, 2), (1, 3)]), Device::Cpu).unwrap();
        assert_eq!(numbers(&batch.ids), [0, 1, 2, 8, 0, 8, 9]);
        assert!(matches!(&batch.layout, Layout::Apart(lengths) if lengths == &[4, 3]));
        assert_eq!(numbers(&batch.predicted), [2, 3, 4, 5, 6]);
        assert_eq!(numbers(&batch.targets), [8, 9, 8, 9, 10]);
    }

    #[test]
    fn a_shared_prompt_predicts_the_first_token_of_each_response() {
        let batch = MicroBatch::pack(&turns(&[(3, 2), (3, 1), (3, 3)]), Device::Cpu).unwrap();
        assert_eq!(numbers(&batch.ids), [0, 1, 2, 8, 8, 9]);
        assert_eq!(numbers(&batch.predicted), [2, 3, 2, 2, 4, 5]);
        assert_eq!(numbers(&batch.targets), [8, 9, 8, 8, 9, 10]);
    }
}
