//! Assumptions that a choice may depend on, and the settings that make others.

use super::super::job::Job;
use super::super::raw::Source;

/// An assumption other than that of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumption {
    /// Its name in sentences.
    pub name: &'static str,
    /// The settings that make it.
    pub settings: Vec<String>,
}

/// The assumptions that are tried on a job: what the papers do not tell, and what other systems do not share with theirs.
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
