//! The reward `format`: the structure of a response.

use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};

documented! {
    /// 1 if a response has the required structure, otherwise 0.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Format {
        /// The required structure: `<think>...</think> <answer>...</answer>` and nothing else (`think_answer`), or `<think>...</think>`
        /// before any text (`think`). Default: `think_answer`.
        pub style: FormatStyle,
        /// `true` if the chat template of the model opens `<think>` itself, so that a response may omit this tag. A prompt that ends in
        /// `<think>` has the same effect. Default: `false`.
        pub think_in_prompt: bool,
    }
}

/// The structure that a response must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FormatStyle {
    /// `<think>...</think> <answer>...</answer>`, each tag once and only blanks outside.
    #[default]
    ThinkAnswer,
    /// `<think>...</think>...`: begins with its only `<think>` and has a `</think>`, like TRL's `think_format_reward`.
    Think,
}

impl Format {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About = About::new(
        &[],
        "the structure of a response, such as `<think>...</think> <answer>...</answer>`",
        "DeepSeek-R1",
    );
}

impl Reward for Format {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let opened = self.think_in_prompt || opened_by_prompt(sample);
        Ok(self.style.fits(&sample.response, opened).into())
    }
}

impl FormatStyle {
    /// Returns `true` if a response has the structure. If `opened` is `true`, the prompt or the chat template has opened `<think>`, and the
    /// response may omit this tag.
    pub(super) fn fits(self, response: &str, opened: bool) -> bool {
        let text = match self {
            Self::ThinkAnswer => response.trim(),
            Self::Think => response,
        };
        let Some(thought) = text.strip_prefix("<think>").or(opened.then_some(text)) else {
            return false;
        };
        if thought.contains("<think>") {
            return false;
        }
        let Some((_, after)) = thought.split_once("</think>") else { return false };
        self == Self::Think || answer_alone(thought, after.trim())
    }
}

fn answer_alone(thought: &str, after: &str) -> bool {
    let once = |tag| thought.matches(tag).count() == 1;
    ["</think>", "<answer>", "</answer>"].into_iter().all(once)
        && after.starts_with("<answer>")
        && after.ends_with("</answer>")
}

/// Returns `true` if the last message of the prompt ends in `<think>`.
pub(super) fn opened_by_prompt(sample: &Sample) -> bool {
    // Avoids parsing the JSON of most prompts.
    sample.messages.contains("<think>") && ends_in_think(&sample.messages)
}

fn ends_in_think(messages: &str) -> bool {
    let messages: Option<Vec<serde_json::Value>> = serde_json::from_str(messages).ok();
    let last = messages.as_deref().and_then(<[_]>::last);
    last.and_then(|last| last["content"].as_str())
        .is_some_and(|content| content.trim_end().ends_with("<think>"))
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    fn check(style: FormatStyle, response: &str, expected: [bool; 2]) {
        let found = [false, true].map(|opened| style.fits(response, opened));
        assert_eq!(found, expected, "{style:?} of {response:?}, not opened and opened");
    }

    #[test]
    fn tags_must_occur_once_and_in_order() {
        let style = FormatStyle::ThinkAnswer;
        check(style, "<think>a</think>\n<answer>b</answer>\n", [true, true]);
        check(style, "a</think><answer>b</answer>", [false, true]);
        check(style, "<think>a</think><answer>b</answer> c", [false, false]);
        check(style, "<think>a</think> c <answer>b</answer>", [false, false]);
        check(style, "<think>a</think><answer>b</answer><answer>c</answer>", [false, false]);
        check(style, "<think>a<answer>b</answer></think><answer>c</answer>", [false, false]);
        check(style, "<think>a</think></think><answer>c</answer>", [false, false]);
        check(style, "<answer>b</answer><think>a</think>", [false, false]);
        check(style, "", [false, false]);
    }

    #[test]
    fn the_think_format_of_trl_has_only_thinking() {
        let style = FormatStyle::Think;
        check(style, "<think>\na\n</think>\nb", [true, true]);
        check(style, "<think>a</think>b</think>", [true, true]);
        check(style, " <think>a</think>", [false, false]);
        check(style, "<think>a", [false, false]);
        check(style, "a</think>b", [false, true]);
    }

    #[test]
    fn a_prompt_may_have_opened_the_thinking() {
        let response = "a</think><answer>b</answer>";
        let score = |messages: &str| {
            let sample =
                Sample { messages: messages.to_owned(), ..Sample::of("any", response, None) };
            block_on(Format::default().score(&sample, &Context::detached())).expect("scored").value
        };
        assert_eq!(score(r#"[{"role":"user","content":"Why?\n<think>\n"}]"#), 1.0);
        assert_eq!(
            score(r#"[{"role":"user","content":"Why? <think>"},{"role":"user","content":"x"}]"#),
            0.0
        );
        assert_eq!(score("[]"), 0.0);
    }
}
