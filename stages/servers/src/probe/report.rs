//! The report of a probe.

use std::fmt;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::finding::Finding;

/// The property of a server that a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The server answers and is not paused.
    Health,
    /// The server has the expected model.
    Model,
    /// The server has room for prompts and responses of maximum length.
    Context,
    /// The server has the calls for pauses, labels of weights and token ids.
    Calls,
    /// The server accepts token ids, and returns token ids and log-probabilities.
    TokenIds,
    /// One call returns several responses to a prompt.
    SeveralResponses,
    /// Log-probabilities are those of the program's forward pass.
    Logprobs,
    /// At temperature 0 the most likely tokens are chosen.
    Greedy,
    /// First tokens at temperature 1 have the distribution of the program's forward pass.
    Sampling,
    /// Responses end at stop tokens and at the maximum length.
    StopAndLength,
    /// The server honours `min_tokens` and `ignore_eos`.
    MinTokens,
    /// A streamed response has the same tokens as a response that is not streamed.
    Streaming,
    /// An aborted response keeps its tokens.
    Abort,
    /// The server can be paused with the mode `abort` and resumed.
    PauseAbort,
    /// The server can be paused with the mode `wait` and resumed.
    PauseWait,
    /// The server can be paused with the mode `keep` and resumed.
    PauseKeep,
    /// Tokens have the label of the weights.
    WeightLabel,
    /// Loaded weights are in use, as the canary verifies.
    WeightUpdate,
    /// No KV cache of old weights is used after an update.
    PrefixCache,
    /// The server has its first weights and their label again.
    WeightsRestored,
    /// Wrong requests are refused with a message.
    Errors,
}

impl Check {
    /// All checks, in the order of the report.
    pub const ALL: [Self; 21] = [
        Self::Health,
        Self::Model,
        Self::Context,
        Self::Calls,
        Self::TokenIds,
        Self::SeveralResponses,
        Self::Logprobs,
        Self::Greedy,
        Self::Sampling,
        Self::StopAndLength,
        Self::MinTokens,
        Self::Streaming,
        Self::Abort,
        Self::PauseAbort,
        Self::PauseWait,
        Self::PauseKeep,
        Self::WeightLabel,
        Self::WeightUpdate,
        Self::PrefixCache,
        Self::WeightsRestored,
        Self::Errors,
    ];

    /// Returns the name of the check in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Model => "model",
            Self::Context => "context",
            Self::Calls => "calls",
            Self::TokenIds => "token_ids",
            Self::SeveralResponses => "several_responses",
            Self::Logprobs => "logprobs",
            Self::Greedy => "greedy",
            Self::Sampling => "sampling",
            Self::StopAndLength => "stop_and_length",
            Self::MinTokens => "min_tokens",
            Self::Streaming => "streaming",
            Self::Abort => "abort",
            Self::PauseAbort => "pause_abort",
            Self::PauseWait => "pause_wait",
            Self::PauseKeep => "pause_keep",
            Self::WeightLabel => "weight_label",
            Self::WeightUpdate => "weight_update",
            Self::PrefixCache => "prefix_cache",
            Self::WeightsRestored => "weights_restored",
            Self::Errors => "errors",
        }
    }

    /// Returns `true` if training needs the property, whatever the recipe is.
    #[must_use]
    pub fn is_needed(self) -> bool {
        !matches!(
            self,
            Self::SeveralResponses
                | Self::Greedy
                | Self::MinTokens
                | Self::PauseWait
                | Self::PauseKeep
                | Self::Errors
        )
    }

    /// Returns advice for a check that does not pass.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::Health => {
                "wait until the server is ready, resume it with POST /resume, or name its key with --api-key-env"
            }
            Self::Model => {
                "start the server with the model of the recipe, or set `rollout.engine_options.model`"
            }
            Self::Context => {
                "start the server with --max-model-len of at least data.max_prompt_length + data.max_response_length"
            }
            Self::Calls => {
                "start vLLM 0.32 or later with VLLM_SERVER_DEV_MODE=1 and --enable-scale-out"
            }
            Self::TokenIds => {
                "start vLLM with --enable-scale-out; without token ids and log-probabilities no training is possible"
            }
            Self::SeveralResponses => {
                "nothing: this program makes a call for each response; other clients may need `n`"
            }
            Self::Logprobs => {
                "serve the folder that --model names, without quantization, in bfloat16 or a higher precision"
            }
            Self::Greedy => {
                "check the numerics of the server; only a recipe with rollout.temperature = 0 needs it"
            }
            Self::Sampling => {
                "remove sampling defaults of the server, such as min_p or penalties (vLLM: --generation-config vllm)"
            }
            Self::StopAndLength => {
                "update the server; the lengths and the ends of responses would be wrong"
            }
            Self::MinTokens => "do not set rollout.min_response_length",
            Self::Streaming => "update the server; responses are read as streams",
            Self::Abort => {
                "update the server; without it, responses that are aborted lose their tokens"
            }
            Self::PauseAbort => {
                "start vLLM with VLLM_SERVER_DEV_MODE=1; every delivery of weights begins with this pause"
            }
            Self::PauseWait => "do not set rollout.engine_options.pause = \"wait\"",
            Self::PauseKeep => "do not set rollout.engine_options.pause = \"keep\"",
            Self::WeightLabel => {
                "update the server; without labels the policy version of a token is unknown"
            }
            Self::WeightUpdate => {
                "start vLLM with VLLM_SERVER_DEV_MODE=1 and --enforce-eager, without quantization, on CPU with a model without tied embeddings, and let it see --weights-folder under the same path"
            }
            Self::PrefixCache => {
                "update the server, or start it with --no-enable-prefix-caching; `cache_salt` has no effect"
            }
            Self::WeightsRestored => {
                "restart the server, or load the folder of --model with /collective_rpc reload_weights"
            }
            Self::Errors => {
                "expect unclear errors of this server; the run would treat a wrong request as a fault"
            }
        }
    }
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckResult {
    /// The server does what training expects.
    Passed,
    /// The server lacks the call, or the field of the answer, that the check needs.
    Missing,
    /// The call fails, or its result is wrong.
    Failed,
    /// The check could not decide, or was not run.
    NotChecked,
}

impl fmt::Display for CheckResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Passed => "passed",
            Self::Missing => "missing",
            Self::Failed => "failed",
            Self::NotChecked => "not checked",
        })
    }
}

/// A measured value of a check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The name, which is unique in the check.
    pub name: &'static str,
    /// The measured value, in a unit that depends on the check. It can be infinite or NaN.
    pub value: f64,
}

/// The report of one check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckReport {
    /// The property that was checked.
    pub check: Check,
    /// The result of the check.
    pub result: CheckResult,
    /// `true` if training needs the property.
    pub needed: bool,
    /// The measured values, in the order in which `details` has them.
    #[serde(serialize_with = "by_name")]
    pub figures: Vec<Figure>,
    /// The observation in one line, with the measured values.
    pub details: String,
    /// The advice on what to do next; `None` if the check passed.
    pub advice: Option<&'static str>,
}

/// Writes figures as a map. JSON cannot represent infinities and NaN; they become `null`.
fn by_name<S: Serializer>(figures: &[Figure], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(figures.len()))?;
    for figure in figures {
        map.serialize_entry(figure.name, &figure.value)?;
    }
    map.end()
}

/// The report of a server. The `Display` form is a table and a summary.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProbeReport {
    /// The URL of the server without secrets.
    pub server: String,
    /// `true` if every check of a property that training needs has passed.
    pub passed: bool,
    /// `true` if the caller stopped the probe before it had ended.
    pub interrupted: bool,
    /// The summary in one line: whether the server can be used for training, and the checks that have not passed. After an interruption, it
    /// states only that the probe was stopped.
    pub summary: String,
    /// The checks in the order of [`Check::ALL`], each once.
    pub checks: Vec<CheckReport>,
}

impl ProbeReport {
    /// Creates a report. Checks without a finding were not run.
    pub(super) fn new(server: String, interrupted: bool, findings: &[(Check, Finding)]) -> Self {
        let report = |check: Check| {
            let found = findings.iter().find(|(of, _)| *of == check);
            let finding = found.map(|(_, finding)| finding.clone());
            finding.unwrap_or_else(Finding::not_run).report(check)
        };
        let checks: Vec<_> = Check::ALL.into_iter().map(report).collect();
        let passed = checks.iter().all(|one| !one.needed || one.result == CheckResult::Passed);
        let summary = summary(&server, interrupted, &checks);
        Self { server, passed, interrupted, summary, checks }
    }

    /// Returns the report of a check; `None` if `checks` does not contain the check.
    #[must_use]
    pub fn of(&self, check: Check) -> Option<&CheckReport> {
        self.checks.iter().find(|report| report.check == check)
    }
}

fn summary(server: &str, interrupted: bool, checks: &[CheckReport]) -> String {
    let names = |needed: bool| {
        let open = checks.iter().filter(|one| one.needed == needed);
        let open = open.filter(|one| one.result != CheckResult::Passed);
        open.map(|one| format!("{} ({})", one.check.name(), one.result)).collect::<Vec<_>>()
    };
    let (needed, optional) = (names(true), names(false));
    let without = match optional.len() {
        0 => String::new(),
        _ => format!("; optional: {}", optional.join(", ")),
    };
    if interrupted {
        format!("{server}: the probe was stopped before its end")
    } else if needed.is_empty() {
        format!("{server} has all that training needs{without}")
    } else {
        format!("{server} cannot be used for training: {}{without}", needed.join(", "))
    }
}

impl fmt::Display for ProbeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<18} {:<12} {:<8} details", "check", "result", "needed")?;
        for CheckReport { check, result, needed, details, advice, .. } in &self.checks {
            let needed = if *needed { "yes" } else { "no" };
            writeln!(f, "{:<18} {result:<12} {needed:<8} {details}", check.name())?;
            if let Some(advice) = advice {
                writeln!(f, "{:>20} {advice}", "->")?;
            }
        }
        writeln!(f, "\n{}", self.summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(change: &[(Check, Finding)]) -> ProbeReport {
        let mut findings: Vec<_> =
            Check::ALL.into_iter().map(|check| (check, Finding::passed("as expected"))).collect();
        for (check, finding) in change {
            findings.retain(|(of, _)| of != check);
            findings.push((*check, finding.clone()));
        }
        ProbeReport::new("http://s".to_owned(), false, &findings)
    }

    #[test]
    fn a_server_without_an_optional_property_passes() {
        let report = report(&[(Check::PauseKeep, Finding::failed("tokens during the pause"))]);
        assert!(report.passed);
        let expected = "http://s has all that training needs; optional: pause_keep (failed)";
        assert_eq!(report.summary, expected);
    }

    #[test]
    fn a_missing_requirement_is_named_with_its_figures_and_the_next_step() {
        let stale = Finding::failed("old\nweights").figure("max", 0.5);
        let report = report(&[(Check::WeightUpdate, stale)]);
        assert!(!report.passed);
        assert_eq!(report.summary, "http://s cannot be used for training: weight_update (failed)");
        let text = report.to_string();
        let line = "weight_update      failed       yes      old weights (max 0.5)\n                  -> start vLLM";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("\nhealth             passed       yes      as expected\nmodel "));
        let json = serde_json::to_value(&report).unwrap();
        let at = Check::ALL.iter().position(|check| *check == Check::WeightUpdate).unwrap();
        let row = &json["checks"][at];
        assert_eq!((&row["check"], &row["result"]), (&"weight_update".into(), &"failed".into()));
        assert_eq!(row["figures"]["max"], 0.5);
    }

    #[test]
    fn a_check_that_was_not_run_is_not_passed() {
        let report = ProbeReport::new("http://s".to_owned(), true, &[]);
        assert!(!report.passed && report.checks.len() == Check::ALL.len());
        assert!(report.checks.iter().all(|one| one.result == CheckResult::NotChecked));
        assert_eq!(report.summary, "http://s: the probe was stopped before its end");
    }

    #[test]
    fn names_are_those_of_json() {
        for check in Check::ALL {
            assert_eq!(serde_json::to_value(check).unwrap(), check.name());
        }
    }
}
