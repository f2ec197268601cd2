//! The text of a response, which ends at a stop text.

use std::sync::Arc;

use rollpacker_model::{ModelError, TextStream, Tokenizer};

use super::options::TextOptions;

/// The text of a response while it is sampled.
///
/// The end of the text is held back while it may be the start of a stop text.
#[derive(Clone, Debug)]
pub(super) struct ChoiceText {
    stream: TextStream,
    stop: Arc<[String]>,
    include_stop: bool,
    held: String,
}

/// The new text of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NewText {
    pub(super) text: String,
    /// The stop text that ended the response; `None` if the text contains none.
    pub(super) stop: Option<String>,
}

impl ChoiceText {
    pub(super) fn new(options: &TextOptions) -> Self {
        Self {
            stream: TextStream::new(options.skip_special),
            stop: Arc::clone(&options.stop),
            include_stop: options.include_stop,
            held: String::new(),
        }
    }

    /// Adds a token and returns the new text. No token may be added after a stop text was found.
    pub(super) fn push(&mut self, tokenizer: &Tokenizer, id: i32) -> Result<NewText, ModelError> {
        self.held += &self.stream.push(tokenizer, id)?;
        Ok(self.release())
    }

    /// Ends the response and returns the rest of its text. Must not be called after a stop text was found.
    pub(super) fn finish(&mut self, tokenizer: &Tokenizer) -> Result<NewText, ModelError> {
        self.held += &self.stream.finish(tokenizer)?;
        let mut new = self.release();
        if new.stop.is_none() {
            new.text += &std::mem::take(&mut self.held);
        }
        Ok(new)
    }

    fn release(&mut self) -> NewText {
        let found = self.stop.iter().filter_map(|stop| Some((self.held.find(stop)?, stop.clone())));
        if let Some((at, stop)) = found.min_by_key(|(at, _)| *at) {
            let end = if self.include_stop { at + stop.len() } else { at };
            let text = self.held[..end].to_owned();
            return NewText { text, stop: Some(stop) };
        }
        let keep = self.stop.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        NewText { text: std::mem::replace(&mut self.held, rest), stop: None }
    }
}

/// Returns the length, in bytes, of the longest suffix of `text` that is a proper prefix of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let starts = stop.char_indices().map(|(at, _)| at).skip(1);
    starts.filter(|at| text.ends_with(&stop[..*at])).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(stop: &[&str], include_stop: bool, text: &str) -> Vec<NewText> {
        let tokenizer = Tokenizer::characters("abcdé").unwrap();
        let stop = stop.iter().map(|stop| (*stop).to_owned()).collect();
        let mut choice = ChoiceText::new(&TextOptions { stop, include_stop, skip_special: true });
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
}
