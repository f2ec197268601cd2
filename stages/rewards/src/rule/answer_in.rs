//! The position of the answer in a response, and the accepted answers.

use std::borrow::Cow;

use serde_json::Value;

use rollpacker_stages::reward::{RewardError, Sample};

/// The position of the answer in a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerIn {
    /// The last `<answer>...</answer>` if there is one, otherwise the text after the last `</think>`, otherwise the whole response.
    #[default]
    Auto,
    /// The last `<answer>...</answer>`.
    Tag,
    /// The text after the last `</think>`.
    AfterThink,
    /// The whole response.
    Response,
}

impl AnswerIn {
    /// Returns the answer of a response without surrounding blanks, or `None` if the tags are missing.
    #[must_use]
    pub fn find(self, response: &str) -> Option<&str> {
        let found = match self {
            Self::Auto => tagged(response).or_else(|| after_think(response)).or(Some(response)),
            Self::Tag => tagged(response),
            Self::AfterThink => after_think(response),
            Self::Response => Some(response),
        };
        found.map(str::trim)
    }
}

/// Returns the contents of the last `<answer>...</answer>`. As with the regular expression `<answer>(.*?)</answer>`, they begin at the
/// first opening tag after the previous pair.
pub(super) fn tagged(text: &str) -> Option<&str> {
    let (mut rest, mut last) = (text, None);
    while let Some((_, after_tag)) = rest.split_once("<answer>") {
        let Some((inside, after)) = after_tag.split_once("</answer>") else { break };
        (rest, last) = (after, Some(inside));
    }
    last
}

fn after_think(text: &str) -> Option<&str> {
    text.rsplit_once("</think>").map(|(_, after)| after)
}

/// Returns the accepted answers. If the ground truth is a JSON list of one or more texts, these are its texts. If it is a JSON object whose
/// field `target` is a text or a list of texts, these are the texts in `target`. Otherwise the ground truth itself is the only accepted
/// answer.
///
/// # Errors
/// If the row has no ground truth.
pub(super) fn targets(sample: &Sample) -> Result<Vec<Cow<'_, str>>, RewardError> {
    let truth = sample.truth()?;
    let listed = truth.starts_with(['[', '{']).then(|| serde_json::from_str(truth).ok()).flatten();
    Ok(listed.and_then(texts).unwrap_or_else(|| vec![Cow::Borrowed(truth)]))
}

fn texts(value: Value) -> Option<Vec<Cow<'static, str>>> {
    match value {
        Value::Array(all) if !all.is_empty() => all
            .into_iter()
            .map(|one| if let Value::String(text) = one { Some(text.into()) } else { None })
            .collect(),
        Value::Object(mut fields) => match fields.remove("target")? {
            Value::String(one) => Some(vec![one.into()]),
            target => texts(target),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_at_its_configured_place() {
        let find = |place: AnswerIn, text: &'static str| place.find(text);
        let tagged = "<think>x</think> so <answer> 1 </answer> or <answer>2</answer> yes";
        assert_eq!(find(AnswerIn::Auto, tagged), Some("2"));
        assert_eq!(find(AnswerIn::AfterThink, "<think>x</think> y </think> z "), Some("z"));
        assert_eq!(find(AnswerIn::Auto, "<think>x</think> y"), Some("y"));
        assert_eq!(find(AnswerIn::Auto, " y "), Some("y"));
        assert_eq!(find(AnswerIn::Tag, "<answer>never closed"), None);
        assert_eq!(find(AnswerIn::Tag, "<answer>a<answer>b</answer>"), Some("a<answer>b"));
        assert_eq!(find(AnswerIn::AfterThink, "y"), None);
    }

    #[test]
    fn a_ground_truth_may_list_several() {
        let of = |truth| {
            let sample = Sample::of("any", "", Some(truth));
            targets(&sample).expect("a truth").into_iter().map(Cow::into_owned).collect::<Vec<_>>()
        };
        assert_eq!(of(r#"["a", "b"]"#), ["a", "b"]);
        assert_eq!(of(r#"{"target": ["a"]}"#), ["a"]);
        assert_eq!(of(r#"{"target": "a"}"#), ["a"]);
        assert_eq!(of("[1, 2]"), ["[1, 2]"]);
        assert_eq!(of("a [b]"), ["a [b]"]);
    }
}
