//! Rewards that a server computes.

use std::collections::BTreeMap;
use std::time::Duration;

use rollpacker_stages::catalog::{About, CatalogError};
use rollpacker_stages::documented;
use rollpacker_stages::reward::{BatchReward, Batched, Call};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::endpoint::Endpoint;
use super::field::{Field, Fields, fields, object};
use super::{Context, Reward, RewardError, Sample, Score, answer};

/// A reward that a server computes. Samples are posted as JSON, and scores are returned as JSON.
///
/// Servers written for slime's `remote_rm` and OpenRLHF's `remote_rm_url` work without changes; [`HttpForm`] selects the format.
pub struct HttpReward(Kind);

enum Kind {
    Single(Remote),
    Batch(Batched<Remote>),
}

/// The format of requests: the number of samples per request, and the default names of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HttpForm {
    /// One sample per request. By default the fields are `{prompt, response, label}` as in slime.
    #[default]
    Single,
    /// Several samples per request. Each field is a list. By default the fields are `{query, prompts, labels}` as in OpenRLHF.
    Batch,
}

documented! {
    /// Options of an [`HttpReward`].
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct HttpOptions {
        /// The URL to which samples are posted.
        pub url: String,
        /// The environment variable with the key that is sent as a bearer token. Default: no key.
        #[serde(default)]
        pub api_key_env: Option<String>,
        /// The number of samples of a request: one (`single`) or several (`batch`). Default: `single`.
        #[serde(default)]
        pub form: HttpForm,
        /// The names and contents of the fields of a request. Default: `prompt`, `response` and `label` in the form `single`; `query`,
        /// `prompts` and `labels` in the form `batch`.
        #[serde(default)]
        pub fields: Option<Fields>,
        /// The field of the answer that holds the score. Other numbers of the answer become components and other texts labels. Default: the
        /// first of `rewards`, `reward`, `scores` and `score` that is present.
        #[serde(default)]
        pub score: Option<String>,
        /// The maximum number of samples of a request in the form `batch`. From 1 to 1048576. Default: 32.
        #[serde(default = "max_batch")]
        pub max_batch: usize,
        /// The maximum time that a request in the form `batch` waits for further samples. From 0 to 3600. Default: 0.05.
        #[serde(default = "max_wait_s")]
        pub max_wait_s: f64 [seconds],
    }
}

/// The maximum of `max_wait_s` in seconds.
const MAX_WAIT: f64 = 3600.0;

const MAX_BATCH: usize = 1 << 20;

fn max_batch() -> usize {
    32
}

fn max_wait_s() -> f64 {
    0.05
}

impl HttpReward {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About =
        About::new(&[], "the answer of a server to a POST of the sample", "slime, OpenRLHF");

    /// Creates a reward for a server.
    ///
    /// # Errors
    /// If an option is out of range, or [`Endpoint::new`] returns an error.
    pub fn new(options: HttpOptions) -> Result<Self, CatalogError> {
        if !(0.0..=MAX_WAIT).contains(&options.max_wait_s) {
            let expected = format!("from 0 to {MAX_WAIT} seconds");
            return Err(CatalogError::out_of_range("max_wait_s", &expected, options.max_wait_s));
        }
        let wait = Duration::from_secs_f64(options.max_wait_s);
        if options.max_batch == 0 {
            return Err(CatalogError::out_of_range("max_batch", "at least 1", 0));
        }
        if options.max_batch > MAX_BATCH {
            let expected = format!("at most {MAX_BATCH}");
            return Err(CatalogError::out_of_range("max_batch", &expected, options.max_batch));
        }
        let remote = Remote {
            endpoint: Endpoint::new(&options.url, options.api_key_env.as_deref())?,
            fields: options.fields.unwrap_or_else(|| options.form.fields()),
            score: options.score,
        };
        Ok(Self(match options.form {
            HttpForm::Single => Kind::Single(remote),
            HttpForm::Batch => Kind::Batch(Batched::new(remote, options.max_batch, wait)),
        }))
    }
}

impl HttpForm {
    fn fields(self) -> Fields {
        use Field::{GroundTruth, Prompt, Query, Response};
        match self {
            Self::Single => {
                fields([("prompt", Prompt), ("response", Response), ("label", GroundTruth)])
            }
            Self::Batch => fields([("query", Query), ("prompts", Prompt), ("labels", GroundTruth)]),
        }
    }
}

impl Reward for HttpReward {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        match &self.0 {
            Kind::Single(remote) => remote.single(sample).await,
            Kind::Batch(batched) => batched.score(sample, context).await,
        }
    }
}

/// A server, with the fields to send and the field of its answer that holds the score; `None` for the default fields of [`answer::score`].
struct Remote {
    endpoint: Endpoint,
    fields: Fields,
    score: Option<String>,
}

impl Remote {
    async fn single(&self, sample: &Sample) -> Result<Score, RewardError> {
        let answer = self.endpoint.post(&object(&self.fields, sample)?.into()).await?;
        let mut scores = answer::scores(&answer, 1, self.score.as_deref())?;
        scores.pop().expect("invariant: one score for one sample")
    }

    /// Scores samples, given their fields, in one request.
    async fn batch(
        &self,
        samples: Vec<Map<String, Value>>,
    ) -> Result<Vec<Result<Score, RewardError>>, RewardError> {
        let count = samples.len();
        let mut lists: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (name, value) in samples.into_iter().flatten() {
            lists.entry(name).or_default().push(value);
        }
        let lists = lists.into_iter().map(|(name, values)| (name, values.into())).collect();
        let answer = self.endpoint.post(&Value::Object(lists)).await?;
        answer::scores(&answer, count, self.score.as_deref())
    }
}

impl BatchReward for Remote {
    /// A sample whose fields cannot be read has an error of its own and is not sent.
    async fn score(&self, calls: &[Call]) -> Result<Vec<Result<Score, RewardError>>, RewardError> {
        let mut scores = Vec::with_capacity(calls.len());
        let mut readable = Vec::new();
        for call in calls {
            let fields = object(&self.fields, &call.sample);
            scores.push(fields.map(|fields| readable.push(fields)));
        }
        let found = if readable.is_empty() { Vec::new() } else { self.batch(readable).await? };
        let mut found = found.into_iter();
        let mut of_sent =
            |()| found.next().expect("invariant: one score for each sample that was sent");
        Ok(scores.into_iter().map(|sent| sent.and_then(&mut of_sent)).collect())
    }
}

#[cfg(test)]
mod tests;
