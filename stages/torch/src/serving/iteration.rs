//! A decode iteration of an instance, and the report of its tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_stages::serving::{ServedToken, TokenLogprob};
use tch::{Kind, TchError, Tensor};

use super::logprobs;
use super::worker::{Worker, generation_of};
use crate::model::kernel_threads;
use crate::rollout::generator::{AdmissionWork, EndedSequence, GeneratorError};
use crate::rollout::sequence::Sequence;

impl Worker {
    /// Runs one iteration: admits and prefills waiting responses, samples a token for every running response, and reports tokens and ends.
    pub(super) fn iterate(&mut self) -> Result<(), GeneratorError> {
        let admission = self.generator.admit_and_prefill(Nanos(0), usize::MAX)?;
        let (logits, sampled) = kernel_threads::with_polling_threads(|| {
            let logits = self.generator.logits()?;
            let allowed = self.without_stop_tokens(&logits)?;
            let sampled = self.generator.sample(allowed.as_ref().unwrap_or(&logits))?;
            Ok::<_, GeneratorError>((logits, sampled))
        })?;
        self.count_iteration(admission);
        self.report(&logits, &sampled.tokens)?;
        let ended = self.generator.append_tokens(sampled)?;
        self.count_requests();
        for EndedSequence { sequence, reason } in ended {
            self.end(sequence.id, reason);
        }
        self.close_if_drained();
        Ok(())
    }

    /// Returns the logits without the stop tokens of responses that are too short to end; `None` if there are no such stop tokens. The
    /// sampler does the same for the end-of-sequence tokens of the model.
    fn without_stop_tokens(&self, logits: &Tensor) -> Result<Option<Tensor>, TchError> {
        let vocab = logits.size2()?.1;
        let rows = self.generator.running().enumerate().filter(|(_, one)| !one.may_end());
        let places: Vec<i64> = rows
            .flat_map(|(row, sequence)| {
                let tokens = sequence.ends.stop_token_ids.iter();
                tokens.map(move |token| row as i64 * vocab + i64::from(*token))
            })
            .collect();
        if places.is_empty() {
            return Ok(None);
        }
        let places = Tensor::f_from_slice(&places)?.f_to_device(logits.device())?;
        let mask = Tensor::f_zeros([logits.size2()?.0 * vocab], (Kind::Bool, logits.device()))?;
        let mask = mask.f_index_fill(0, &places, 1)?.f_view_as(logits)?;
        logits.f_masked_fill(&mask, f64::NEG_INFINITY).map(Some)
    }

    /// Passes the sampled tokens, one per running response, to their receivers.
    fn report(&mut self, logits: &Tensor, tokens: &[i64]) -> Result<(), TchError> {
        let mut scored = self.scores(logits, tokens)?;
        let Self { generator, open, label, .. } = self;
        for (row, (sequence, token)) in generator.running().zip(tokens).enumerate() {
            if let Some(open) = open.get_mut(&generation_of(sequence.id)) {
                let (id, version) = (*token as i32, Arc::clone(label));
                let token = ServedToken { id, logprob: scored.remove(&row), version };
                open.receiver.token(sequence.id.sample, token);
            }
        }
        Ok(())
    }

    /// Returns the log-probabilities of the tokens, by row, for the rows whose requests ask for log-probabilities.
    fn scores(
        &self,
        logits: &Tensor,
        tokens: &[i64],
    ) -> Result<BTreeMap<usize, TokenLogprob>, TchError> {
        let wanted = |sequence: &Sequence| self.open.get(&generation_of(sequence.id))?.logprobs;
        let rows = self.generator.running().enumerate();
        let rows: Vec<(usize, u32)> =
            rows.filter_map(|(row, sequence)| Some((row, wanted(sequence)?))).collect();
        let Some(top) = rows.iter().map(|(_, top)| *top).max() else { return Ok(BTreeMap::new()) };
        let scored = if rows.len() == tokens.len() {
            logprobs::of_rows(logits, tokens, top)?
        } else {
            let places: Vec<i64> = rows.iter().map(|(row, _)| *row as i64).collect();
            let tokens: Vec<i64> = rows.iter().map(|(row, _)| tokens[*row]).collect();
            let places = Tensor::f_from_slice(&places)?.f_to_device(logits.device())?;
            logprobs::of_rows(&logits.f_index_select(0, &places)?, &tokens, top)?
        };
        let own = scored.into_iter().zip(rows).map(|(mut scored, (row, top))| {
            scored.top.truncate(top as usize);
            (row, scored)
        });
        Ok(own.collect())
    }

    fn count_iteration(&self, admission: AdmissionWork) {
        let rows = self.generator.running().len() as u64;
        self.counters.update(|statistics| {
            statistics.iterations += 1;
            statistics.sampled_tokens += rows;
            statistics.prefilled_tokens += admission.prefilled as u64;
            statistics.preemptions += admission.preempted as u64;
        });
    }
}
