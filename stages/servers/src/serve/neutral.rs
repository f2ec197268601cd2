//! Parameters that this server does not implement, and the values at which they have no effect.

use serde_json::{Map, Value};

use super::error::ApiError;

/// The values at which a parameter has no effect.
#[derive(Clone, Copy, Debug, PartialEq)]
enum NeutralValue {
    Number(f64),
    Bool(bool),
    Text(&'static str),
    /// An empty list, object or text.
    Empty,
    /// Any value: the parameter describes the caller and not the response.
    Any,
}

use NeutralValue::{Any, Bool, Empty, Number, Text};

/// Parameters of OpenAI and vLLM that this server does not implement, with the values that have no effect. [`refuse`] handles
/// `response_format`, which has no effect if its type is `text`.
const UNSUPPORTED_PARAMETERS: &[(&str, NeutralValue)] = &[
    ("add_special_tokens", Bool(false)),
    ("allowed_token_ids", Empty),
    ("bad_words", Empty),
    ("best_of", Number(1.0)),
    ("chat_template_kwargs", Empty),
    ("continue_final_message", Bool(false)),
    ("documents", Empty),
    ("echo", Bool(false)),
    ("flat_logprobs", Bool(false)),
    ("frequency_penalty", Number(0.0)),
    ("length_penalty", Number(1.0)),
    ("logit_bias", Empty),
    ("logprob_token_ids", Empty),
    ("metadata", Any),
    ("min_p", Number(0.0)),
    ("output_mode", Text("tokens")),
    ("parallel_tool_calls", Any),
    ("presence_penalty", Number(0.0)),
    ("priority", Number(0.0)),
    ("repetition_penalty", Number(1.0)),
    ("return_token_offsets", Bool(false)),
    ("service_tier", Text("auto")),
    ("spaces_between_special_tokens", Bool(true)),
    ("store", Bool(false)),
    ("suffix", Empty),
    ("tool_choice", Text("none")),
    ("tools", Empty),
    ("use_beam_search", Bool(false)),
    ("user", Any),
];

/// Returns an error that names the first parameter that is unknown or has an effect. A parameter that is `null` has no effect.
pub(super) fn refuse_unsupported(parameters: &Map<String, Value>) -> Result<(), ApiError> {
    parameters.iter().try_for_each(|(name, value)| refuse(name, value))
}

fn refuse(name: &str, value: &Value) -> Result<(), ApiError> {
    let known = UNSUPPORTED_PARAMETERS.iter().find(|(known, _)| *known == name);
    let is_text_format = name == "response_format" && value["type"] == "text";
    match known {
        _ if value.is_null() || is_text_format => Ok(()),
        Some((_, neutral)) if neutral.matches(value) => Ok(()),
        Some((_, neutral)) => Err(ApiError::parameter(name, neutral.expected(), value)),
        None => {
            Err(ApiError::parameter(name, "no such parameter, because this server lacks it", value))
        }
    }
}

impl NeutralValue {
    fn matches(self, value: &Value) -> bool {
        match self {
            Any => true,
            Number(number) => value.as_f64() == Some(number),
            Bool(flag) => value.as_bool() == Some(flag),
            Text(text) => value.as_str() == Some(text),
            Empty => match value {
                Value::Array(items) => items.is_empty(),
                Value::Object(fields) => fields.is_empty(),
                Value::String(text) => text.is_empty(),
                _ => false,
            },
        }
    }

    fn expected(self) -> String {
        let only = match self {
            Any => return "any value".to_owned(),
            Empty => return "nothing, because this server lacks it".to_owned(),
            Number(number) => number.to_string(),
            Bool(flag) => flag.to_string(),
            Text(text) => format!("\"{text}\""),
        };
        format!("{only}, the only value that this server supports")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(parameters: Value) -> Option<String> {
        let Value::Object(parameters) = parameters else { panic!("an object") };
        refuse_unsupported(&parameters).err().map(|error| error.body().error.message)
    }

    #[test]
    fn neutral_values_pass() {
        let nothing = json!({
            "presence_penalty": 0, "repetition_penalty": 1.0, "tools": [], "logit_bias": {}, "unknown": null, "user": "me",
            "response_format": {"type": "text"}, "tool_choice": "none",
        });
        assert_eq!(refused(nothing), None);
    }

    #[test]
    fn parameters_without_support_are_named() {
        let message = refused(json!({"min_p": 0.1})).unwrap();
        assert_eq!(
            message,
            "parameter `min_p`: expected 0, the only value that this server supports, found 0.1"
        );
        assert!(refused(json!({"tools": [1]})).unwrap().contains("`tools`"));
        assert!(refused(json!({"typo": 1})).unwrap().contains("`typo`"));
        assert!(refused(json!({"response_format": {"type": "json_object"}})).is_some());
    }
}
