use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, from_value, json, to_value};

use super::*;

/// Checks that JSON that vLLM's clients send is the same after it was read and written again.
fn same<T: Serialize + DeserializeOwned>(written: &Value) {
    let read: T = from_value(written.clone()).unwrap();
    assert_eq!(&to_value(read).unwrap(), written);
}

#[test]
fn a_request_sends_only_what_is_set() {
    same::<GenerateRequest>(&json!({
        "request_id": "p7-3",
        "model": "M",
        "token_ids": [1],
        "sampling_params": {"n": 1, "temperature": 1.0, "max_tokens": 512, "logprobs": 0, "detokenize": false},
        "cache_salt": "v17",
    }));
    same::<CollectiveRpcRequest>(
        &json!({"method": "reload_weights", "kwargs": {"weights_path": "/w/v17"}}),
    );
    same::<AbortRequest>(&json!({}));
}

#[test]
fn a_prompt_is_a_text_or_token_ids_or_a_list_of_either() {
    for prompt in [json!("a"), json!([3, 4]), json!(["a", "b"]), json!([[3], "a"])] {
        same::<CompletionRequest>(&json!({ "prompt": prompt }));
    }
    for prompt in
        [json!([]), json!([[]]), json!([1.5]), json!([1_u64 << 31]), json!([1, "a"]), json!(null)]
    {
        let refused = from_value::<CompletionRequest>(json!({ "prompt": prompt })).unwrap_err();
        assert!(
            refused.to_string().ends_with(&format!("a list of either, found {prompt}")),
            "{refused}"
        );
    }
}

#[test]
fn options_without_a_field_are_kept() {
    let read: SamplingParams = from_value(json!({"temperature": 0.5, "min_p": 0.1})).unwrap();
    assert_eq!(read.other["min_p"], 0.1);
    assert_eq!(read.temperature, Some(0.5));
}

#[test]
fn a_response_is_read_with_the_fields_that_vllm_adds() {
    let read: GenerateResponse = from_value(json!({
        "request_id": "generate-tokens-p7-3", "output_mode": "tokens", "model": "M", "created": 1,
        "choices": [{
            "index": 0, "token_ids": [5], "finish_reason": "stop", "stop_reason": null, "routed_experts": null,
            "logprobs": {"content": [{"token_id": 5, "logprob": -0.1, "rank": 1, "top_logprobs": []}]},
            "weight_versions": [{"version": "17", "start": 0, "end": 1}],
        }],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "prompt_tokens_details": null},
        "prompt_logprobs": [null, {"9": {"logprob": -1.5, "rank": 2, "decoded_token": null}}],
    }))
    .unwrap();
    let choice = &read.choices[0];
    assert_eq!(choice.token_ids.as_deref(), Some(&[5][..]));
    assert_eq!(choice.logprobs.as_ref().unwrap().content.as_ref().unwrap()[0].logprob, -0.1);
    assert_eq!(choice.weight_versions.as_ref().unwrap()[0].version, "17");
    assert_eq!(read.prompt_logprobs.unwrap()[1].as_ref().unwrap()["9"].logprob, -1.5);
}

#[test]
fn an_event_of_an_aborted_response_has_no_tokens() {
    let read: GenerateResponse = from_value(json!({
        "request_id": "generate-tokens-p7-3",
        "choices": [{"index": 0, "logprobs": {"content": []}, "finish_reason": "abort", "token_ids": []}],
    }))
    .unwrap();
    assert_eq!(read.choices[0].finish_reason.as_deref(), Some("abort"));
}

#[test]
fn a_log_probability_that_is_null_is_nan() {
    let read: Logprob = from_value(json!({"token_id": 5, "logprob": null})).unwrap();
    assert!(read.logprob.is_nan());
    let read: PromptLogprob = from_value(json!({"logprob": null})).unwrap();
    assert!(read.logprob.is_nan());
    assert!(from_value::<Logprob>(json!({"token_id": 5})).is_err(), "a missing one is an error");
}

#[test]
fn a_request_with_an_unknown_field_is_refused() {
    // An abort without ids would abort all requests.
    let refused = from_value::<AbortRequest>(json!({"rid": "p7-3"})).unwrap_err().to_string();
    assert!(refused.contains("`rid`"), "{refused}");
    let load = json!({"method": "reload_weights", "kwarg": {"weights_path": "/w/v17"}});
    assert!(from_value::<CollectiveRpcRequest>(load).is_err());
}

#[test]
fn a_pause_aborts_by_default() {
    assert_eq!(PauseMode::default(), PauseMode::Abort);
    assert_eq!(to_value(PauseMode::Keep).unwrap(), PauseMode::Keep.as_str());
}
