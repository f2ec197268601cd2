//! Answers that are not streamed.

use super::VllmClient;
use super::client::score_request;
use super::protocol::{GenerateRequest, GenerateResponse, path};
use crate::http::ServerError;
use crate::server::{Finish, TokenChunk};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CompleteResponse {
    pub(crate) sampled: TokenChunk,
    pub(crate) finish: Finish,
}

impl VllmClient {
    /// Sends a request and returns the responses in the order of their indices. The request must not set `stream`, and must ask for
    /// log-probabilities.
    pub(crate) async fn generate_unstreamed(
        &self,
        request: &GenerateRequest,
    ) -> Result<Vec<CompleteResponse>, ServerError> {
        let answer = self.endpoint().post(path::GENERATE, request, self.call_limit()).await?;
        self.responses(answer, request)
    }

    /// Checks that the server accepts the prompt `tokens`, returns the log-probability of each of these tokens after the first, and samples
    /// one token with a log-probability. `tokens` must have at least 2 entries.
    pub(crate) async fn check_tokens(&self, tokens: &[i32], salt: &str) -> Result<(), ServerError> {
        let mut request = score_request(tokens, salt);
        request.sampling_params.logprobs = Some(0);
        let answer: GenerateResponse =
            self.endpoint().post(path::GENERATE, &request, self.call_limit()).await?;
        self.scores(&answer, tokens)?;
        let found: Vec<_> =
            self.responses(answer, &request)?.into_iter().map(|one| one.sampled).collect();
        match &found[..] {
            [TokenChunk { tokens, .. }] if tokens.len() == 1 => Ok(()),
            _ => {
                let found = format_args!("{found:?}");
                Err(self.endpoint().invalid_answer(
                    path::GENERATE,
                    "one response of one token",
                    found,
                ))
            }
        }
    }

    /// Returns the responses in the order of their indices. Fails if an index, a finish reason, a log-probability or a number of tokens is
    /// wrong.
    fn responses(
        &self,
        answer: GenerateResponse,
        request: &GenerateRequest,
    ) -> Result<Vec<CompleteResponse>, ServerError> {
        let max = request.sampling_params.max_tokens.unwrap_or(u32::MAX);
        let wrong = |expected: &str, found: &dyn std::fmt::Display| {
            self.endpoint().invalid_answer(path::GENERATE, expected, found)
        };
        let mut choices = answer.choices;
        choices.sort_by_key(|choice| choice.index);
        let responses = choices.iter().enumerate().map(|(at, choice)| {
            if choice.index as usize != at {
                return Err(wrong(&format!("the choice {at}"), &choice.index));
            }
            let sampled = self.tokens(choice)?;
            let outcome = self.outcome(choice)?;
            let finish = outcome.ok_or_else(|| wrong("a finish reason", &"none"))?.finish;
            let tokens = sampled.tokens.len();
            self.endpoint().check_length(path::GENERATE, tokens, max, Some(finish))?;
            Ok(CompleteResponse { sampled, finish })
        });
        let responses = responses.collect::<Result<Vec<_>, ServerError>>()?;
        let sampled: u64 = responses.iter().map(|one| one.sampled.tokens.len() as u64).sum();
        match answer.usage.map(|usage| usage.completion_tokens) {
            Some(counted) if counted != sampled => {
                Err(wrong(&format!("the {counted} tokens that the server counted"), &sampled))
            }
            _ => Ok(responses),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Endpoint;
    use crate::server::Limits;
    use crate::vllm::protocol::GenerateChoice;

    #[test]
    fn a_response_without_a_token_is_refused_unless_it_was_aborted() {
        let endpoint = Endpoint::new("http://127.0.0.1:1", None).expect("a valid URL");
        let client = VllmClient::new(endpoint, Limits::default());
        let responses = |reason: &str| {
            let finish_reason = Some(reason.to_owned());
            let choice = GenerateChoice { finish_reason, ..GenerateChoice::default() };
            let answer = GenerateResponse { choices: vec![choice], ..GenerateResponse::default() };
            client.responses(answer, &score_request(&[3, 4], "salt"))
        };
        assert_eq!(responses("abort").expect("no defect").len(), 1);
        for reason in ["stop", "length"] {
            let error = responses(reason).expect_err("a defect").to_string();
            assert!(error.ends_with("expected 1 to 1 tokens, found 0"), "{error}");
        }
    }
}
