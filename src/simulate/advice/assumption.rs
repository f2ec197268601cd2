//! Alternative assumptions under which a choice is checked, and the settings that make them.

use super::super::job::Job;
use super::super::raw::Source;

/// An assumption that differs from the job's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumption {
    /// The name of the assumption in the sentences of the advice.
    pub name: &'static str,
    /// The settings that make the assumption, `key=value` each.
    pub settings: Vec<String>,
}

/// Returns the alternative assumptions for a job: facts that the papers do not state, and costs that other systems may not have.
#[must_use]
pub fn all(job: &Job) -> Vec<Assumption> {
    let one = |name, setting: &str| Assumption { name, settings: vec![setting.to_owned()] };
    let mut all = vec![one("no cost of the controller", "cluster.controllers=131072")];
    if job.raw.tasks.code > 0.0 {
        all.push(one("runs of code that hang ended after a second", "tasks.timeout_s=1"));
    }
    if job.raw.lengths.source == Source::Paper {
        all.push(one("independent lengths within a prompt", "lengths.correlation=0"));
        all.push(one("strongly correlated lengths within a prompt", "lengths.correlation=0.8"));
    }
    all
}
