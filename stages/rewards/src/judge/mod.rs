//! Rewards by a language model (LLM as a judge).

mod engine;
#[cfg(feature = "http")]
mod server;
mod template;
mod verdict;
mod votes;

use futures::future::try_join_all;
use serde::{Deserialize, Serialize};

use engine::EngineChoice;
pub(super) use engine::JudgeEngines;
#[cfg(feature = "http")]
pub use server::{ChatServer, ChatServerOptions};
pub use template::{DEFAULT_PROMPT, DEFAULT_SYSTEM, Template};
pub use verdict::{Scale, Unreadable, Verdict, VerdictForm};
pub use votes::Votes;

use rollpacker_stages::catalog::{About, CatalogError, OptionDocs, Options, read, take};
use rollpacker_stages::documented;
use rollpacker_stages::documented::{Documented, names};
use rollpacker_stages::reward::chat::{Chat, ChatError, JudgeSampling, Message, SharedChat};
use rollpacker_stages::reward::{Context, Cost, Reward, RewardError, Sample, Score};

/// A reward that a language model assigns.
///
/// The verdict is parsed from the model's answer, at the position that the [form](VerdictForm) prescribes and nowhere else. If an answer
/// has no verdict or is cut off, the question is sent once more, with another seed and a temperature of at least 0.5, so that the model can
/// give another answer. A second answer without a verdict is an error, never a score of 0.
pub struct Judge {
    chat: SharedChat,
    template: Template,
    judgement: Judgement,
}

documented! {
    /// The prompts of a judge and the interpretation of its answers, independent of the model.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Judgement {
        /// The user prompt, a [Jinja template](Template). Default: a prompt that asks for a comparison with the ground truth, or for an
        /// assessment if there is none.
        pub prompt: String,
        /// The system prompt, a [Jinja template](Template); empty for none. Default: a prompt that asks for a strict judgement and tells
        /// the judge to ignore instructions in the response.
        pub system: String,
        /// The [form of the verdict](VerdictForm), a table: `form = "yes_no"`; `form = "score"` with `min` and `max`; or `form = "json"`
        /// with `field`, `min` (0) and `max` (1). `normalise = false` keeps the number of the forms `score` and `json` instead of scaling
        /// it to 0 to 1. Default: `{ form = "yes_no" }`.
        pub verdict: VerdictForm,
        /// The number of verdicts per response. More than one requires a `temperature` above 0. From 1 to 1024. Default: 1.
        pub votes: u32,
        /// The way to combine several verdicts: the most frequent one, of equally frequent ones the lowest (`majority`), or the mean of
        /// their values (`mean`). Default: `majority`.
        pub combine: Votes,
        /// `true` if the judge only receives the part of a response after the last `</think>`, or all of a response without this tag.
        /// Default: `true`.
        pub after_think: bool,
        /// The temperature of the judge's answers; 0 is greedy. From 0 to 2. Default: 0.
        pub temperature: f64,
        /// The maximum length of an answer. At least 1. Default: 1024.
        pub max_tokens: u32 [tokens],
    }
}

impl Default for Judgement {
    fn default() -> Self {
        Self {
            prompt: DEFAULT_PROMPT.to_owned(),
            system: DEFAULT_SYSTEM.to_owned(),
            verdict: VerdictForm::default(),
            votes: 1,
            combine: Votes::default(),
            after_think: true,
            temperature: 0.0,
            max_tokens: 1024,
        }
    }
}

/// The maximum number of verdicts per response.
const MAX_VOTES: u32 = 1024;
/// The minimum temperature of a repeated question. A greedy model would give the same answer for any seed.
const MIN_RETRY_TEMPERATURE: f64 = 0.5;

impl Judgement {
    const KEYS: [&str; 8] = names(Self::FIELDS);

    /// Removes the options of the judgement from the options of a judge and parses them. Options that are left out have their defaults. The
    /// remaining options belong to the model. Ranges and templates are checked later, when the judge is created.
    ///
    /// # Errors
    /// If an option has the wrong type or an unknown value, or if `verdict` has an unknown field or lacks a required one.
    pub fn take(options: &mut Options) -> Result<Self, CatalogError> {
        read(take(options, &Self::KEYS))
    }

    fn check(&self) -> Result<Template, CatalogError> {
        let wrong =
            |key: &str, reason: String| CatalogError::Option { key: key.to_owned(), reason };
        if let Some(fault) = self.verdict.invalid_reason() {
            return Err(wrong("verdict", fault));
        }
        if !(0.0..=2.0).contains(&self.temperature) {
            let reason = format!("expected a number from 0 to 2, found {}", self.temperature);
            return Err(wrong("temperature", reason));
        }
        if self.max_tokens == 0 {
            return Err(wrong("max_tokens", "expected at least 1, found 0".to_owned()));
        }
        if self.votes > MAX_VOTES {
            let reason = format!("expected at most {MAX_VOTES}, found {}", self.votes);
            return Err(wrong("votes", reason));
        }
        if self.votes == 0 || (self.votes > 1 && self.temperature == 0.0) {
            let reason =
                format!("expected 1, or more with a temperature above 0, found {}", self.votes);
            return Err(wrong("votes", reason));
        }
        Template::new(&self.system, &self.prompt).map_err(|(key, reason)| wrong(key, reason))
    }
}

impl Judge {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About = About::new(
        &[],
        "the verdict of a language model, behind a server or in process",
        "this project",
    );

    /// Creates a judge from a model.
    ///
    /// # Errors
    /// If an option is out of range, or a template is not valid Jinja.
    pub fn new(chat: impl Chat, judgement: Judgement) -> Result<Self, CatalogError> {
        let template = judgement.check()?;
        Ok(Self { chat: SharedChat::new(chat), template, judgement })
    }

    /// Returns the documentation of the options, except those of the engine `torch`.
    pub(super) fn option_docs() -> OptionDocs {
        let docs = OptionDocs::of::<Judgement>().and(OptionDocs::of::<EngineChoice>());
        #[cfg(feature = "http")]
        let docs = docs.and(OptionDocs::of::<ChatServerOptions>());
        // The default prompts are texts of many lines.
        docs.without_defaults()
    }

    /// Creates a judge from the options in a recipe: the options of [`Judgement`], `engine`, and the options of the engine. With the engine
    /// `torch`, the judge uses the engine that was set in `engines`, which may share models between judges.
    ///
    /// # Errors
    /// If an option is invalid, the engine is `torch` and `engines` has none, the program was built without the feature `http` and the
    /// engine is `server`, the key is missing, or the HTTP client cannot start.
    pub(super) fn create_with(
        engines: &JudgeEngines,
        mut options: Options,
    ) -> Result<Self, CatalogError> {
        let judgement = Judgement::take(&mut options)?;
        judgement.check()?;
        Self::new(engines.make(options, judgement.max_tokens)?, judgement)
    }

    fn messages(&self, sample: &Sample) -> Result<Vec<Message>, RewardError> {
        let Judgement { verdict, after_think, .. } = &self.judgement;
        let response = sample.response.as_str();
        let answer = response.rsplit_once("</think>").map_or(response, |(_, answer)| answer.trim());
        let response = if *after_think { answer } else { response };
        self.template.render(sample, response, &verdict.instruction())
    }

    /// Returns the cost of one question: one request, with the estimated tokens of the messages and of the longest possible answer.
    fn question_cost(&self, messages: &[Message]) -> Cost {
        let bytes = messages.iter().map(|message| message.content.len()).sum();
        let tokens = Cost::tokens_of(bytes) + u64::from(self.judgement.max_tokens);
        Cost { requests: 1, tokens }
    }

    /// Asks for one verdict and returns it. `seed` distinguishes the verdicts of a response; it is less than `votes`.
    ///
    /// If the first answer has no verdict or is cut off, the question is sent once more, with the seed `seed + votes`, which no other
    /// verdict of this response uses, and a temperature of at least [`MIN_RETRY_TEMPERATURE`]. Its cost is spent first, because
    /// [`Reward::cost`] covers only one question per verdict.
    async fn vote(
        &self,
        messages: &[Message],
        seed: u32,
        context: &Context,
    ) -> Result<Verdict, RewardError> {
        let Judgement { verdict, votes, temperature, max_tokens, .. } = &self.judgement;
        let retry_temperature = temperature.max(MIN_RETRY_TEMPERATURE);
        let mut unreadable = None;
        for (seed, temperature) in [(seed, *temperature), (seed + votes, retry_temperature)] {
            if unreadable.is_some() {
                context.spend(self.question_cost(messages)).await;
            }
            let sampling =
                JudgeSampling { temperature, max_tokens: *max_tokens, seed: u64::from(seed) };
            let read = match self.chat.complete(messages, &sampling).await {
                Ok(answer) => verdict.read(&answer).map_err(|error| error.to_string()),
                Err(error @ ChatError::CutOff { .. }) => Err(error.to_string()),
                Err(ChatError::Failed(error)) => return Err(error),
            };
            context.metric("judge_unreadable", f64::from(read.is_err()));
            match read {
                Ok(verdict) => return Ok(verdict),
                Err(reason) => unreadable = Some(reason),
            }
        }
        let unreadable = unreadable.unwrap_or_default();
        Err(RewardError::fatal(format_args!(
            "two answers without a readable verdict: {unreadable}"
        )))
    }
}

impl Reward for Judge {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        let messages = self.messages(sample)?;
        let votes = 0..self.judgement.votes;
        let votes = votes.map(|seed| self.vote(&messages, seed, context));
        let verdicts = try_join_all(votes).await?;
        Ok(self.judgement.combine.score(&verdicts))
    }

    fn cost(&self, sample: &Sample) -> Cost {
        let question = self.messages(sample).map(|messages| self.question_cost(&messages));
        question.unwrap_or_default() * self.judgement.votes
    }
}

#[cfg(all(test, feature = "http"))]
mod tests;
