//! Attention over responses that share the tokens of their prompt.

use tch::{Device, TchError, Tensor};

/// A prompt and its responses, by their numbers of fed tokens. A response of one token has 0 fed tokens, because its last token is not fed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PromptGroup {
    pub(crate) prompt: i64,
    pub(crate) responses: Vec<i64>,
}

/// Concatenated groups: prompt, first response, second response, ..., next prompt.
///
/// The layers process every prompt once instead of once per response. Only the attention treats prompt and response as one sequence, and
/// computes the prompt's rows again for each response. This costs little, because attention is a small part of the work for short
/// sequences.
#[derive(Debug)]
pub(crate) struct SharedPrompts {
    groups: Vec<PromptGroup>,
    /// The number of fed tokens of each prompt and response, in the order of the tokens.
    pieces: Vec<i64>,
    /// `[tokens]`; the position of each token in its sequence of prompt and response.
    positions: Tensor,
}

impl SharedPrompts {
    pub(crate) fn new(groups: Vec<PromptGroup>, device: Device) -> Result<Self, TchError> {
        let pieces = groups
            .iter()
            .flat_map(|f| std::iter::once(f.prompt).chain(f.responses.iter().copied()))
            .collect();
        let positions: Vec<i64> = groups
            .iter()
            .flat_map(|f| {
                (0..f.prompt)
                    .chain(f.responses.iter().flat_map(|&tokens| f.prompt..f.prompt + tokens))
            })
            .collect();
        Ok(Self {
            groups,
            pieces,
            positions: Tensor::f_from_slice(&positions)?.f_to_device(device)?,
        })
    }

    pub(crate) fn positions(&self) -> &Tensor {
        &self.positions
    }

    /// Computes causal attention within each sequence of prompt and response. Maps q `[tokens, heads, dim]`, k and v
    /// `[tokens, kv_heads, dim]` to `[tokens, heads * dim]`.
    pub(crate) fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor, TchError> {
        let split = |x: &Tensor| x.f_split_with_sizes(self.pieces.as_slice(), 0);
        let (q, k, v) = (split(q)?, split(k)?, split(v)?);
        let mut attended = Vec::with_capacity(self.pieces.len());
        for group in &self.groups {
            let prompt = attended.len();
            attended.push(causal(&q[prompt], &k[prompt], &v[prompt])?);
            for (at, &tokens) in (prompt + 1..).zip(&group.responses) {
                let whole = |x: &[Tensor]| Tensor::f_cat(&[&x[prompt], &x[at]], 0);
                let rows = causal(&whole(&q)?, &whole(&k)?, &whole(&v)?)?;
                attended.push(rows.f_narrow(0, group.prompt, tokens)?);
            }
        }
        Tensor::f_cat(&attended, 0)?.f_flatten(1, -1)
    }
}

/// Computes causal attention of one sequence: q `[n, heads, dim]`, k and v `[n, kv_heads, dim]` to `[n, heads, dim]`.
fn causal(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor, TchError> {
    let by_head = |x: &Tensor| x.f_transpose(0, 1)?.f_unsqueeze(0);
    let grouped = q.size()[1] != k.size()[1];
    let attended = Tensor::f_scaled_dot_product_attention::<&Tensor>(
        &by_head(q)?,
        &by_head(k)?,
        &by_head(v)?,
        None,
        0.0,
        true,
        None,
        grouped,
    )?;
    attended.f_squeeze_dim(0)?.f_transpose(0, 1)
}
