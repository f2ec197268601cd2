//! Validates the requests to a torch engine.

use rollpacker_dataflow::step::SampleId;

use super::{Partial, Request, RolloutError};

/// Checks that the prompt has a token, that prompt and longest response together have at most `token_limit` tokens, and that resumed
/// responses can continue.
pub(super) fn check(
    request: &Request,
    token_limit: usize,
    max_new_tokens: u32,
) -> Result<(), RolloutError> {
    let Request { prompt, prompt_ids, resumed, .. } = request;
    let limit = token_limit.saturating_sub(max_new_tokens as usize);
    let tokens = prompt_ids.len();
    if tokens == 0 {
        let reason = format!("prompt {prompt} has no tokens");
        return Err(RolloutError::Engine { instance: 0, reason });
    }
    if tokens > limit {
        return Err(RolloutError::PromptTooLong { prompt: *prompt, tokens, limit });
    }
    check_samples(request)?;
    resumed.iter().try_for_each(|partial| check_partial(request, partial, max_new_tokens))
}

/// Checks that resumed samples were requested, are unique, and are in ascending order.
fn check_samples(request: &Request) -> Result<(), RolloutError> {
    let mut free = request.samples.clone();
    for Partial { sample, .. } in &request.resumed {
        if !free.contains(sample) {
            let expected = format!("one of {}..{}, ascending", free.start, free.end);
            return Err(resume_error(request, *sample, "sample", expected, sample.to_string()));
        }
        free.start = sample + 1;
    }
    Ok(())
}

fn check_partial(
    request: &Request,
    partial: &Partial,
    max_new_tokens: u32,
) -> Result<(), RolloutError> {
    let Partial { sample, response_length, response_ids, logprobs, token_versions, .. } = partial;
    let wrong =
        |field, expected, found| Err(resume_error(request, *sample, field, expected, found));
    if *response_length >= max_new_tokens {
        let expected = format!("fewer than the {max_new_tokens} tokens of the longest response");
        return wrong("response_length", expected, response_length.to_string());
    }
    for (field, found) in [
        ("response_ids", response_ids.len()),
        ("logprobs", logprobs.len()),
        ("token_versions", token_versions.len()),
    ] {
        if found != *response_length as usize {
            let expected = format!("{response_length} tokens (the response_length)");
            return wrong(field, expected, format!("{found} tokens"));
        }
    }
    Ok(())
}

fn resume_error(
    request: &Request,
    sample: u32,
    field: &'static str,
    expected: String,
    found: String,
) -> RolloutError {
    let id = SampleId { step: request.step, prompt: request.prompt, sample };
    RolloutError::Resume { id, field, expected, found }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rollpacker_dataflow::step::{PolicyVersion, PromptId, Step};

    use super::super::TokenVersions;
    use super::*;

    fn partial(sample: u32, tokens: usize) -> Partial {
        Partial {
            sample,
            response_length: tokens as u32,
            response_ids: vec![1; tokens],
            logprobs: vec![-1.0; tokens],
            token_versions: TokenVersions::of(PolicyVersion(0), tokens),
            ..Partial::default()
        }
    }

    fn validation_error(resumed: Vec<Partial>) -> Option<String> {
        let request = Request {
            step: Step(2),
            prompt: PromptId(5),
            samples: 1..4,
            prompt_ids: Arc::from([1, 2, 3]),
            resumed,
        };
        check(&request, 40, 8).err().map(|error| error.to_string())
    }

    #[test]
    fn partials_of_the_requested_samples_are_accepted() {
        assert_eq!(validation_error(vec![]), None);
        assert_eq!(validation_error(vec![partial(1, 7), partial(3, 0)]), None);
    }

    #[test]
    fn a_partial_that_cannot_be_resumed_is_named() {
        let check = |resumed, expected: &str| {
            assert_eq!(validation_error(resumed).as_deref(), Some(expected));
        };
        check(
            vec![partial(0, 2)],
            "cannot resume p5.0@2: `sample`: expected one of 1..4, ascending, found 0",
        );
        check(
            vec![partial(2, 2), partial(2, 2)],
            "cannot resume p5.2@2: `sample`: expected one of 3..4, ascending, found 2",
        );
        check(
            vec![partial(2, 8)],
            "cannot resume p5.2@2: `response_length`: expected fewer than the 8 tokens of the longest response, found 8",
        );
        check(
            vec![Partial { logprobs: vec![-1.0; 3], ..partial(2, 2) }],
            "cannot resume p5.2@2: `logprobs`: expected 2 tokens (the response_length), found 3 tokens",
        );
        check(
            vec![Partial { response_ids: vec![], ..partial(2, 2) }],
            "cannot resume p5.2@2: `response_ids`: expected 2 tokens (the response_length), found 0 tokens",
        );
        check(
            vec![Partial { token_versions: TokenVersions::default(), ..partial(2, 2) }],
            "cannot resume p5.2@2: `token_versions`: expected 2 tokens (the response_length), found 0 tokens",
        );
    }
}
