//! What a torch engine refuses to generate.

use rollpacker_dataflow::step::SampleId;

use super::{Partial, Request, RolloutError};

/// Checks that prompt and longest response fit into `token_limit` tokens, and that resumed responses can go on.
pub(super) fn check(
    request: &Request,
    token_limit: usize,
    max_new_tokens: u32,
) -> Result<(), RolloutError> {
    let Request { prompt, prompt_ids, resumed, .. } = request;
    let limit = token_limit.saturating_sub(max_new_tokens as usize);
    let tokens = prompt_ids.len();
    if tokens == 0 {
        let reason = format!("prompt {prompt} has no token");
        return Err(RolloutError::Engine { instance: 0, reason });
    }
    if tokens > limit {
        return Err(RolloutError::PromptTooLong { prompt: *prompt, tokens, limit });
    }
    check_samples(request)?;
    resumed.iter().try_for_each(|partial| check_partial(request, partial, max_new_tokens))
}

/// Resumed samples are asked for, each once, and ascend.
fn check_samples(request: &Request) -> Result<(), RolloutError> {
    let mut free = request.samples.clone();
    for Partial { sample, .. } in &request.resumed {
        if !free.contains(sample) {
            let expected = format!("one of {}..{}, ascending", free.start, free.end);
            return Err(defect(request, *sample, "sample", expected, sample.to_string()));
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
    let wrong = |field, expected, found| Err(defect(request, *sample, field, expected, found));
    if *response_length >= max_new_tokens {
        let expected = format!("less than the {max_new_tokens} tokens of the longest response");
        return wrong("response_length", expected, response_length.to_string());
    }
    for (field, found) in [
        ("response_ids", response_ids.len()),
        ("logprobs", logprobs.len()),
        ("token_versions", token_versions.len()),
    ] {
        if found != *response_length as usize {
            let expected = format!("{response_length}, the response_length");
            return wrong(field, expected, format!("of {found} tokens"));
        }
    }
    Ok(())
}

fn defect(
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

    use super::*;

    fn partial(sample: u32, tokens: usize) -> Partial {
        Partial {
            sample,
            response_length: tokens as u32,
            response_ids: vec![1; tokens],
            logprobs: vec![-1.0; tokens],
            token_versions: vec![PolicyVersion(0); tokens],
            ..Partial::default()
        }
    }

    fn refused(resumed: Vec<Partial>) -> Option<String> {
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
    fn partials_of_the_samples_asked_for_are_taken() {
        assert_eq!(refused(vec![]), None);
        assert_eq!(refused(vec![partial(1, 7), partial(3, 0)]), None);
    }

    #[test]
    fn what_cannot_go_on_is_named() {
        let check = |resumed, expected: &str| {
            assert_eq!(refused(resumed).as_deref(), Some(expected));
        };
        check(
            vec![partial(0, 2)],
            "cannot resume p5.0@2: sample 0, expected one of 1..4, ascending",
        );
        check(
            vec![partial(2, 2), partial(2, 2)],
            "cannot resume p5.2@2: sample 2, expected one of 3..4, ascending",
        );
        check(
            vec![partial(2, 8)],
            "cannot resume p5.2@2: response_length 8, expected less than the 8 tokens of the longest response",
        );
        check(
            vec![Partial { logprobs: vec![-1.0; 3], ..partial(2, 2) }],
            "cannot resume p5.2@2: logprobs of 3 tokens, expected 2, the response_length",
        );
        check(
            vec![Partial { response_ids: vec![], ..partial(2, 2) }],
            "cannot resume p5.2@2: response_ids of 0 tokens, expected 2, the response_length",
        );
        check(
            vec![Partial { token_versions: vec![], ..partial(2, 2) }],
            "cannot resume p5.2@2: token_versions of 0 tokens, expected 2, the response_length",
        );
    }
}
