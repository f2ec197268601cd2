//! What a sandbox answers.

use serde::{Deserialize, Serialize};

use super::error::SandboxError;

/// How a test case ended. What goes wrong on our side is a [`SandboxError`], never one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As expected.
    Passed,
    /// With another result than expected.
    Failed,
    /// By an exception, a signal or an exit code.
    RuntimeError,
    /// The solution did not compile.
    CompileError,
    /// Not within its time.
    Timeout,
    /// For want of memory.
    Memory,
    /// By a system call that is not allowed.
    Forbidden,
}

/// One test case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took, in wall seconds.
    pub seconds: f64,
    /// What did not hold; empty for a case that passed.
    pub message: String,
}

/// What became of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// The test cases that were run, in order.
    pub cases: Vec<Case>,
    /// The start of what the solution printed.
    pub stdout: String,
    /// The start of what it printed on the error stream.
    pub stderr: String,
}

impl Verdict {
    /// The first outcome that is not [`Outcome::Passed`]; [`Outcome::Failed`] where no case was run.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        if self.cases.is_empty() {
            return Outcome::Failed;
        }
        let mut outcomes = self.cases.iter().map(|case| case.outcome);
        outcomes.find(|outcome| *outcome != Outcome::Passed).unwrap_or(Outcome::Passed)
    }

    /// How many cases passed.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.cases.iter().filter(|case| case.outcome == Outcome::Passed).count()
    }
}

/// A line of the checker's report.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// How many cases there are in all, once that is known.
    Expected(usize),
    Case(Case),
    Verdict(Verdict),
    Fault(String),
    Tests(String),
}

/// Reads a report of which the checker wrote the last line.
pub(super) fn complete(report: &[u8]) -> Result<Verdict, SandboxError> {
    match lines(report)?.pop() {
        Some(Line::Verdict(verdict)) => Ok(verdict),
        Some(Line::Tests(reason)) => Err(SandboxError::Tests { reason }),
        Some(Line::Fault(reason)) => Err(SandboxError::Fault { reason }),
        Some(Line::Case(_) | Line::Expected(_)) | None => Err(fault("the checker left no verdict")),
    }
}

/// Reads a report that broke off: the cases that were done, and the one under way as `outcome`. Cases that never ran have failed.
pub(super) fn partial(
    report: &[u8],
    outcome: Outcome,
    seconds: f64,
    message: &str,
) -> Result<Verdict, SandboxError> {
    let mut verdict = Verdict::default();
    let last = Case { outcome, seconds, message: message.into() };
    let mut expected = 0;
    for line in lines(report)? {
        match line {
            Line::Case(case) => verdict.cases.push(case),
            Line::Expected(cases) => expected = cases,
            Line::Verdict(_) | Line::Fault(_) | Line::Tests(_) => {}
        }
    }
    verdict.cases.push(last);
    let all = verdict.cases.len().max(expected);
    verdict.cases.resize_with(all, || Case {
        outcome: Outcome::Failed,
        seconds: 0.0,
        message: "not run".into(),
    });
    Ok(verdict)
}

/// A verdict on a solution of which the kernel ended a process for the memory of all: whatever it was that did not pass then, this is why.
pub(super) fn starved(verdict: Result<Verdict, SandboxError>) -> Result<Verdict, SandboxError> {
    const WHY: &str =
        "the kernel ended a process of the solution for the memory that all took together";
    let mut verdict = verdict?;
    if let Some(case) = verdict.cases.iter_mut().find(|case| case.outcome != Outcome::Passed)
        && matches!(case.outcome, Outcome::Failed | Outcome::RuntimeError | Outcome::Timeout)
    {
        let said = std::mem::take(&mut case.message);
        *case = Case {
            outcome: Outcome::Memory,
            message: format!("{WHY}\n{said}").trim_end().into(),
            ..*case
        };
    }
    Ok(verdict)
}

/// The lines of a report; what follows the last line break was not finished.
fn lines(report: &[u8]) -> Result<Vec<Line>, SandboxError> {
    let end = report.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
    let lines = report[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(serde_json::from_slice)
        .collect::<Result<_, _>>()
        .map_err(|error| fault(&format!("the checker's report is unreadable: {error}")))
}

fn fault(reason: &str) -> SandboxError {
    SandboxError::Fault { reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_pass_for_want_of_memory_says_so() {
        let check = |outcome, expected| {
            let case = |outcome| Case { outcome, seconds: 1.0, message: "m".into() };
            let cases = vec![case(Outcome::Passed), case(outcome), case(Outcome::Failed)];
            let found = starved(Ok(Verdict { cases, ..Verdict::default() })).expect("a verdict");
            let outcomes: Vec<_> = found.cases.iter().map(|case| case.outcome).collect();
            assert_eq!(outcomes, [Outcome::Passed, expected, Outcome::Failed]);
            assert!(found.cases[1].message.ends_with('m'));
        };
        for outcome in [Outcome::Failed, Outcome::RuntimeError, Outcome::Timeout, Outcome::Memory] {
            check(outcome, Outcome::Memory);
        }
        check(Outcome::Forbidden, Outcome::Forbidden);
        check(Outcome::CompileError, Outcome::CompileError);
    }

    #[test]
    fn cases_that_never_ran_have_failed() {
        let report = br#"{"expected":4}
{"case":{"outcome":"passed","seconds":1.0,"message":""}}
{"case":{"outc"#;
        let verdict = partial(report, Outcome::Timeout, 2.0, "late").expect("a verdict");
        let outcomes: Vec<_> = verdict.cases.iter().map(|case| case.outcome).collect();
        assert_eq!(outcomes, [Outcome::Passed, Outcome::Timeout, Outcome::Failed, Outcome::Failed]);
    }
}
