//! The check that a server can honour the sampling options of a run, and the options of each call.

use rollpacker_stages::rollout::sampling::Sampling;
use serde::{Deserialize, Serialize};

use crate::server::Protocol;

/// The distribution whose log-probabilities a vLLM server returns (`vllm serve --logprobs-mode`).
///
/// Training needs log-probabilities after temperature and before truncation (`top_p` and `top_k`). Both modes return these
/// log-probabilities if the temperature is 1 and nothing is truncated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogprobsMode {
    /// Before temperature and truncation (`raw_logprobs`, which is vLLM's default).
    #[default]
    #[serde(alias = "raw_logprobs")]
    Raw,
    /// After temperature and truncation (`processed_logprobs`).
    #[serde(alias = "processed_logprobs")]
    Processed,
}

/// A sampling option that is out of bounds or that a server cannot honour.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{option}`: expected {expected}, found {found}")]
pub struct SamplingRefusal {
    /// The name of the option, as in [`Sampling`].
    pub option: &'static str,
    /// The values that are valid, or that the server honours.
    pub expected: String,
    /// The configured value.
    pub found: String,
}

/// Checks that a server can honour all options. For SGLang, `mode` has no effect.
///
/// # Errors
/// Returns the first option that is out of bounds or that the server cannot honour.
pub fn check(
    sampling: &Sampling,
    protocol: Protocol,
    mode: LogprobsMode,
) -> Result<(), SamplingRefusal> {
    let refuse = |option, expected: &str, found: String| {
        Err(SamplingRefusal { option, expected: expected.to_owned(), found })
    };
    if let Some((option, expected, found)) = sampling.invalid_option() {
        return refuse(option, expected, found);
    }
    // SGLang returns log-probabilities after temperature and before truncation.
    if protocol == Protocol::Sglang {
        return Ok(());
    }
    match mode {
        // Greedy sampling has no temperature to apply.
        LogprobsMode::Raw if sampling.temperature != 1.0 && sampling.temperature != 0.0 => refuse(
            "temperature",
            "1, because the server returns log-probabilities without temperature; for other values start vLLM with \
             `--logprobs-mode processed_logprobs` and set `logprobs_mode = \"processed\"`",
            sampling.temperature.to_string(),
        ),
        LogprobsMode::Processed if sampling.top_p != 1.0 => refuse(
            "top_p",
            "1, because the server returns log-probabilities after truncation (`logprobs_mode = \"processed\"`)",
            sampling.top_p.to_string(),
        ),
        LogprobsMode::Processed if sampling.top_k != 0 => refuse(
            "top_k",
            "0 (off), because the server returns log-probabilities after truncation (`logprobs_mode = \"processed\"`)",
            sampling.top_k.to_string(),
        ),
        _ => Ok(()),
    }
}

/// Returns the options for the rest of a response that has `kept` tokens. `kept` must be below `max_new_tokens`.
pub(crate) fn rest_of(sampling: &Sampling, kept: u32) -> Sampling {
    Sampling {
        min_new_tokens: sampling.min_new_tokens.saturating_sub(kept),
        max_new_tokens: sampling.max_new_tokens.saturating_sub(kept),
        ..*sampling
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(sampling: Sampling, mode: LogprobsMode) -> Option<&'static str> {
        check(&sampling, Protocol::Vllm, mode).err().map(|refusal| refusal.option)
    }

    #[test]
    fn options_that_would_change_the_log_probabilities_are_refused() {
        let plain = Sampling::unrestricted(8);
        let warm = Sampling { temperature: 0.7, ..plain };
        let top_p = Sampling { top_p: 0.9, ..plain };
        let top_k = Sampling { top_k: 5, ..plain };
        for mode in [LogprobsMode::Raw, LogprobsMode::Processed] {
            assert_eq!(refused(plain, mode), None);
            assert_eq!(refused(Sampling::greedy(8), mode), None);
        }
        assert_eq!(refused(warm, LogprobsMode::Raw), Some("temperature"));
        assert_eq!(refused(warm, LogprobsMode::Processed), None);
        assert_eq!(refused(top_p, LogprobsMode::Raw), None);
        assert_eq!(refused(top_p, LogprobsMode::Processed), Some("top_p"));
        assert_eq!(refused(top_k, LogprobsMode::Processed), Some("top_k"));
        assert_eq!(check(&warm, Protocol::Sglang, LogprobsMode::Raw), Ok(()));
    }

    #[test]
    fn kept_tokens_shorten_the_rest() {
        let sampling = Sampling { min_new_tokens: 3, ..Sampling::unrestricted(8) };
        assert_eq!(rest_of(&sampling, 5), Sampling::unrestricted(3));
    }
}
