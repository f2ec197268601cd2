//! The text of a response, which ends at a stop text.

use std::sync::Arc;

use rollpacker_model::{ModelError, TextStream, Tokenizer};

use super::options::TextOptions;

/// The text of a response while it is sampled.
///
/// The end of the text is held back while it may be the start of a stop text. As in vLLM, a stop text counts only if it ends after the text
/// of the first `min_tokens` tokens.
#[derive(Clone, Debug)]
pub(super) struct ChoiceText {
    stream: TextStream,
    stop: Arc<[String]>,
    include_stop: bool,
    /// Number of tokens that must still be added before stop texts count.
    exempt_tokens: u32,
    /// Length, in bytes, of the start of `held` in which a stop text must not end. A stop text that begins there and ends later counts.
    exempt: usize,
    held: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NewText {
    pub(super) text: String,
    /// The stop text that ended the response; `None` if no stop text has ended it.
    pub(super) stop: Option<String>,
}

impl ChoiceText {
    pub(super) fn new(options: &TextOptions, min_tokens: u32) -> Self {
        Self {
            stream: TextStream::new(options.skip_special),
            stop: Arc::clone(&options.stop),
            include_stop: options.include_stop,
            exempt_tokens: min_tokens,
            exempt: 0,
            held: String::new(),
        }
    }

    /// Adds a token and returns the new text. No token may be added after a stop text was found.
    pub(super) fn push(&mut self, tokenizer: &Tokenizer, id: i32) -> Result<NewText, ModelError> {
        self.held += &self.stream.push(tokenizer, id)?;
        if self.exempt_tokens > 0 {
            self.exempt_tokens -= 1;
            self.exempt = self.held.len();
        }
        Ok(self.release())
    }

    /// Ends the response and returns the rest of its text. Must not be called after a stop text was found.
    pub(super) fn finish(&mut self, tokenizer: &Tokenizer) -> Result<NewText, ModelError> {
        self.held += &self.stream.finish(tokenizer)?;
        if self.exempt_tokens > 0 {
            self.exempt = self.held.len();
        }
        let mut new = self.release();
        if new.stop.is_none() {
            new.text += &std::mem::take(&mut self.held);
        }
        Ok(new)
    }

    fn release(&mut self) -> NewText {
        let found = self.stop.iter().filter_map(|stop| Some((self.find(stop)?, stop.clone())));
        if let Some((at, stop)) = found.min_by_key(|(at, _)| *at) {
            let end = if self.include_stop { at + stop.len() } else { at };
            let text = self.held[..end].to_owned();
            return NewText { text, stop: Some(stop) };
        }
        let keep = self.stop.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let released = self.held.len() - keep;
        let rest = self.held.split_off(released);
        self.exempt = self.exempt.saturating_sub(released);
        NewText { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// Returns the position, in bytes, of the first occurrence of a stop text that ends after the exempt text.
    fn find(&self, stop: &str) -> Option<usize> {
        // `str::find` prepares the whole stop text, which would take long even if the held text is short.
        if stop.len() > self.held.len() {
            return None;
        }
        let start = (self.exempt + 1).saturating_sub(stop.len());
        let start = self.held.ceil_char_boundary(start);
        self.held[start..].find(stop).map(|at| start + at)
    }
}

/// Returns the length, in bytes, of the longest suffix of `text` that is a proper prefix of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let lengths = (1..stop.len().min(text.len() + 1)).rev();
    let mut lengths = lengths.filter(|length| stop.is_char_boundary(*length));
    lengths.find(|length| text.ends_with(&stop[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(stop: &[&str], include_stop: bool, text: &str) -> Vec<NewText> {
        texts_after(0, stop, include_stop, text)
    }

    fn texts_after(min_tokens: u32, stop: &[&str], include_stop: bool, text: &str) -> Vec<NewText> {
        let tokenizer = Tokenizer::characters("abcdé").unwrap();
        let stop = stop.iter().map(|stop| (*stop).to_owned()).collect();
        let options = TextOptions { stop, include_stop, skip_special: true };
        let mut choice = ChoiceText::new(&options, min_tokens);
        let mut all = Vec::new();
        for id in tokenizer.encode(text).unwrap() {
            all.push(choice.push(&tokenizer, id).unwrap());
            if all.last().unwrap().stop.is_some() {
                return all;
            }
        }
        all.push(choice.finish(&tokenizer).unwrap());
        all
    }

    fn parts(all: &[NewText]) -> Vec<&str> {
        all.iter().map(|new| new.text.as_str()).collect()
    }

    #[test]
    fn a_stop_text_over_several_tokens_is_never_sent() {
        let all = texts(&["bc"], false, "abdbca");
        assert_eq!(parts(&all), ["a", "", "bd", "", ""]);
        assert_eq!(all.last().unwrap().stop.as_deref(), Some("bc"));
    }

    #[test]
    fn text_that_only_began_like_a_stop_text_is_sent_at_the_end() {
        assert_eq!(parts(&texts(&["bcd"], false, "abc")), ["a", "", "", "bc"]);
    }

    #[test]
    fn the_first_of_several_stop_texts_counts_and_may_be_included() {
        let all = texts(&["d", "bé"], true, "abéd");
        assert_eq!(parts(&all), ["a", "", "bé"]);
        assert_eq!(all.last().unwrap().stop.as_deref(), Some("bé"));
    }

    #[test]
    fn a_stop_text_counts_if_it_ends_after_the_minimum_of_tokens() {
        let all = texts_after(2, &["ab"], false, "abdab");
        assert_eq!(
            parts(&all),
            ["", "ab", "d", "", ""],
            "as in vLLM, the first two tokens do not count"
        );
        assert_eq!(all.last().unwrap().stop.as_deref(), Some("ab"));
        let overlapping = texts_after(2, &["aa"], false, "aaa");
        assert_eq!(parts(&overlapping), ["", "a", ""], "the match begins in the exempt text");
        assert_eq!(overlapping.last().unwrap().stop.as_deref(), Some("aa"));
        let held = texts_after(2, &["éac", "a"], false, "éab");
        assert_eq!(parts(&held), ["", "", "éab", ""], "a held stop text of one exempt token");
        assert_eq!(held.last().unwrap().stop, None);
        assert_eq!(parts(&texts_after(9, &["b"], false, "ab")), ["a", "b", ""]);
    }
}
