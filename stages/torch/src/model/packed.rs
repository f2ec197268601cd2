//! Causal attention within concatenated sequences.

use tch::{TchError, Tensor};

/// The boundaries of the sequences in a pack.
pub(crate) struct Packing {
    /// Runs of adjacent sequences of equal length.
    runs: Vec<EqualLengthRun>,
    tokens: Vec<i64>,
}

/// Adjacent sequences of equal length.
#[derive(Clone, Copy)]
struct EqualLengthRun {
    length: i64,
    sequences: i64,
}

impl Packing {
    pub(crate) fn new(lengths: &[i64], tokens: i64) -> Result<Self, TchError> {
        if let Some(wrong) = lengths.iter().find(|&&length| length <= 0) {
            return Err(TchError::Shape(format!("a sequence of {wrong} tokens in a pack")));
        }
        let total: i64 = lengths.iter().sum();
        if total != tokens || total == 0 {
            return Err(TchError::Shape(format!(
                "sequences of {total} tokens in a pack of {tokens}"
            )));
        }
        let runs: Vec<EqualLengthRun> = lengths
            .chunk_by(|a, b| a == b)
            .map(|run| EqualLengthRun { length: run[0], sequences: run.len() as i64 })
            .collect();
        let tokens = runs.iter().map(|run| run.length * run.sequences).collect();
        Ok(Self { runs, tokens })
    }

    /// Returns the position of each token within its sequence, `[tokens]`.
    pub(crate) fn positions(&self) -> Result<Tensor, TchError> {
        let positions: Vec<i64> = self
            .runs
            .iter()
            .flat_map(|run| (0..run.sequences).flat_map(|_| 0..run.length))
            .collect();
        Tensor::f_from_slice(&positions)
    }

    /// Computes causal attention within each sequence. Maps q `[tokens, heads, dim]`, k and v `[tokens, kv_heads, dim]` to
    /// `[tokens, heads * dim]`.
    ///
    /// The tensors are split and concatenated once each. A narrow view per sequence would cost a pass over all tokens per sequence in the
    /// backward pass.
    pub(crate) fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor, TchError> {
        let split = |x: &Tensor| x.f_split_with_sizes(self.tokens.as_slice(), 0);
        let (q, k, v) = (split(q)?, split(k)?, split(v)?);
        let attended = self
            .runs
            .iter()
            .zip(q.iter().zip(k.iter().zip(&v)))
            .map(|(run, (q, (k, v)))| run.attend(q, k, v));
        let attended = attended.collect::<Result<Vec<_>, _>>()?;
        Tensor::f_cat(&attended, 0)?.f_flatten(1, -1)
    }
}

impl EqualLengthRun {
    /// Computes causal attention within each sequence of the run. The result has the shape of q, `[sequences * length, heads, dim]`.
    fn attend(self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor, TchError> {
        let by_head =
            |x: &Tensor| x.f_unflatten(0, [self.sequences, self.length])?.f_transpose(1, 2);
        let grouped = q.size()[1] != k.size()[1];
        let (q, k, v) = (by_head(q)?, by_head(k)?, by_head(v)?);
        let attended = Tensor::f_scaled_dot_product_attention::<&Tensor>(
            &q, &k, &v, None, 0.0, true, None, grouped,
        )?;
        attended.f_transpose(1, 2)?.f_flatten(0, 1)
    }
}
