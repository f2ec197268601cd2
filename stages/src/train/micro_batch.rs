//! Micro-batches: prompts and responses end to end, without padding.

use tch::{Device, TchError, Tensor};

/// A prompt and the response that the loss falls on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn<'a> {
    pub(crate) prompt: &'a [i32],
    pub(crate) response: &'a [i32],
}

impl Turn<'_> {
    /// Tokens that the model runs over: all but the last, which is only predicted.
    pub(crate) fn fed_tokens(&self) -> usize {
        (self.prompt.len() + self.response.len()).saturating_sub(1)
    }
}

/// Divides turns into micro-batches of at most `budget` fed tokens, or of one turn that is longer; the turns by their index.
///
/// Shorter turns come first, so that neighbours of equal length share the kernels of their attention. Turns without response are
/// left out.
pub(crate) fn plan(turns: &[Turn<'_>], budget: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> =
        (0..turns.len()).filter(|&at| !turns[at].response.is_empty()).collect();
    order.sort_by_key(|&at| turns[at].fed_tokens());
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut room = 0;
    for at in order {
        let tokens = turns[at].fed_tokens();
        match batches.last_mut() {
            Some(batch) if tokens <= room => batch.push(at),
            _ => {
                batches.push(vec![at]);
                room = budget.max(tokens);
            }
        }
        room -= tokens;
    }
    batches
}

/// Turns packed for the model.
#[derive(Debug)]
pub(crate) struct MicroBatch {
    /// What the model runs over, `[fed tokens]`.
    pub(crate) ids: Tensor,
    /// Fed tokens of each turn.
    pub(crate) lengths: Vec<i64>,
    /// Where in `ids` each response token is predicted, `[response tokens]`.
    pub(crate) positions: Tensor,
    /// The response tokens, `[response tokens]`.
    pub(crate) targets: Tensor,
}

impl MicroBatch {
    /// Packs turns; each has a prompt and a response of at least one token.
    pub(crate) fn pack(turns: &[Turn<'_>], device: Device) -> Result<Self, TchError> {
        let (mut ids, mut positions, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        for turn in turns {
            let predicted = ids.len() + turn.prompt.len() - 1;
            positions.extend((predicted..predicted + turn.response.len()).map(|at| at as i64));
            targets.extend(turn.response.iter().map(|&id| i64::from(id)));
            ids.extend(
                turn.prompt
                    .iter()
                    .chain(turn.response)
                    .take(turn.fed_tokens())
                    .map(|&id| i64::from(id)),
            );
        }
        let tensor = |values: &[i64]| Tensor::f_from_slice(values)?.f_to_device(device);
        Ok(Self {
            ids: tensor(&ids)?,
            lengths: turns.iter().map(|turn| turn.fed_tokens() as i64).collect(),
            positions: tensor(&positions)?,
            targets: tensor(&targets)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(lengths: &[(usize, usize)]) -> Vec<Turn<'static>> {
        static IDS: [i32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        lengths.iter().map(|&(p, r)| Turn { prompt: &IDS[..p], response: &IDS[8..8 + r] }).collect()
    }

    #[test]
    fn plans_shorter_turns_first_and_never_exceeds_the_budget() {
        let turns = turns(&[(4, 7), (2, 2), (1, 0), (2, 3), (2, 2), (8, 8)]);
        assert_eq!(plan(&turns, 10), [vec![1, 4, 3], vec![0], vec![5]]);
        assert_eq!(plan(&turns, 1).len(), 5);
        assert!(plan(&[], 10).is_empty());
    }

    #[test]
    fn the_position_of_a_target_is_one_before_it() {
        let batch = MicroBatch::pack(&turns(&[(3, 2), (1, 3)]), Device::Cpu).unwrap();
        let numbers = |t: &Tensor| Vec::<i64>::try_from(t).unwrap();
        assert_eq!(numbers(&batch.ids), [0, 1, 2, 8, 0, 8, 9]);
        assert_eq!(batch.lengths, [4, 3]);
        assert_eq!(numbers(&batch.positions), [2, 3, 4, 5, 6]);
        assert_eq!(numbers(&batch.targets), [8, 9, 8, 9, 10]);
    }
}
