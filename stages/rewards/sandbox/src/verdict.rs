//! The verdict on a job.

use serde::{Deserialize, Serialize};

use super::error::SandboxError;

/// The outcome of a test case. Failures of the sandbox itself are a [`SandboxError`] instead.
///
/// A case that is not run because it would fail in the same way as an earlier case has the outcome of that case. This happens if the
/// solution does not compile or cannot be loaded, if the tests run out of memory, and after three timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The result is as expected.
    Passed,
    /// The result differs from the expected one, or the job ended before the case was run.
    Failed,
    /// The solution raised an exception, was killed by a signal, or exited too early or with a code other than 0.
    RuntimeError,
    /// The solution did not compile.
    CompileError,
    /// The run exceeded its time limit.
    Timeout,
    /// The run exceeded its memory limit.
    Memory,
    /// The run made a forbidden system call.
    Forbidden,
}

/// The result of a test case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// [`Outcome::Passed`], or the kind of the failure.
    pub outcome: Outcome,
    /// The charged time in seconds: the elapsed time without the time for which the processes of the case waited for a processor, but at
    /// least their processor time. If the checker died or did not end the case in time, this is instead the time after which the zygote
    /// would have ended the case: its time limit, or the rest of it, plus one second. 0 for a case that was not run.
    pub seconds: f64,
    /// The reason of a failure; empty for a case that passed.
    pub message: String,
}

/// The result of a job: its cases and its output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// The results of the test cases, in order. If the job ended early, the remaining cases count as failed, as far as their number is
    /// known.
    pub cases: Vec<Case>,
    /// `true` if `cases` covers all tests: no case was left out because an earlier case failed, and the job did not end early. Tests that
    /// skip themselves, and tests that pass without the solution, are no cases.
    pub complete: bool,
    /// The beginning of the standard output of solution and tests, at most 1048576 characters; of a program, at most 4096 characters per
    /// run. Empty if the job ended early.
    pub stdout: String,
    /// The beginning of the standard error of solution and tests, with the same limits.
    pub stderr: String,
}

impl Verdict {
    /// Returns the first outcome other than [`Outcome::Passed`], or `Passed` if there is none. Returns [`Outcome::Failed`] if no case was
    /// run.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        if self.cases.is_empty() {
            return Outcome::Failed;
        }
        let mut outcomes = self.cases.iter().map(|case| case.outcome);
        outcomes.find(|outcome| *outcome != Outcome::Passed).unwrap_or(Outcome::Passed)
    }

    /// Returns the number of cases that passed.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.cases.iter().filter(|case| case.outcome == Outcome::Passed).count()
    }
}

/// A line of the checker's report.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The result of a case that has ended.
    Case(Case),
    /// The total number of cases, once it is known.
    Expected(usize),
    /// The verdict on the job; the last line.
    Verdict(Verdict),
    /// The job could not be run, for a reason other than the solution; the last line.
    Fault(String),
    /// The tests cannot be run; the last line.
    Tests(String),
}

/// The beginning of a line with a verdict. It always has this form, because only the checker writes reports.
const VERDICT: &[u8] = b"{\"verdict\": {\"cases\": ";

/// Parses the report of a checker that finished. If the report was truncated within the last line, the cases in that line are used,
/// provided that their list is complete. Otherwise the verdict consists of the cases that were reported before, one failed case, and the
/// remaining cases as failed.
///
/// # Errors
/// If the report contains a failure of the checker or of the tests.
pub(super) fn parse_complete(report: &[u8]) -> Result<Verdict, SandboxError> {
    let (mut lines, rest) = lines(report);
    match lines.pop() {
        Some(Line::Verdict(verdict)) => return Ok(verdict),
        Some(Line::Tests(reason)) => return Err(SandboxError::Tests { reason }),
        Some(Line::Fault(reason)) => return Err(SandboxError::Fault { reason }),
        other => lines.extend(other),
    }
    let cases = rest.strip_prefix(VERDICT).and_then(|cases| {
        serde_json::Deserializer::from_slice(cases).into_iter::<Vec<Case>>().next()?.ok()
    });
    if let Some(cases) = cases {
        // Cases are left out only after a failure.
        let complete = cases.iter().all(|case| case.outcome == Outcome::Passed);
        return Ok(Verdict { cases, complete, ..Verdict::default() });
    }
    let message = format!("no verdict in the {} bytes of the report", report.len());
    Ok(incomplete_verdict(lines, Case { outcome: Outcome::Failed, seconds: 0.0, message }))
}

/// Parses an incomplete report: the cases that ended, and `last` for the case that was running.
pub(super) fn parse_partial(report: &[u8], last: Case) -> Verdict {
    incomplete_verdict(lines(report).0, last)
}

/// Builds the verdict of a job that ended early. Cases that never ran count as failed.
fn incomplete_verdict(lines: Vec<Line>, last: Case) -> Verdict {
    let mut verdict = Verdict::default();
    let mut expected = 0;
    for line in lines {
        match line {
            Line::Case(case) => verdict.cases.push(case),
            Line::Expected(cases) => expected = cases,
            Line::Verdict(_) | Line::Fault(_) | Line::Tests(_) => {}
        }
    }
    verdict.cases.push(last);
    let all = verdict.cases.len().max(expected);
    let unrun = || Case { outcome: Outcome::Failed, seconds: 0.0, message: "not run".into() };
    verdict.cases.resize_with(all, unrun);
    verdict
}

/// Changes the outcome of the first case that did not pass to [`Outcome::Memory`], after the kernel killed a process because the slot ran
/// out of memory. The outcomes `Memory`, `Forbidden` and `CompileError` are kept.
pub(super) fn mark_out_of_memory(mut verdict: Verdict) -> Verdict {
    const WHY: &str =
        "the kernel killed a process of the solution because the slot ran out of memory";
    if let Some(case) = verdict.cases.iter_mut().find(|case| case.outcome != Outcome::Passed)
        && matches!(case.outcome, Outcome::Failed | Outcome::RuntimeError | Outcome::Timeout)
    {
        case.outcome = Outcome::Memory;
        case.message = format!("{WHY}\n{}", case.message).trim_end().into();
    }
    verdict
}

/// Parses the lines of a report up to the first invalid one. Also returns the rest, which is empty unless the report was truncated or is
/// invalid. A solution that corrupts the report of its checker only harms its own verdict, so an invalid line is not an error of the
/// sandbox.
fn lines(report: &[u8]) -> (Vec<Line>, &[u8]) {
    let mut lines = Vec::new();
    let mut rest = report;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let Ok(line) = serde_json::from_slice(&rest[..end]) else { break };
        lines.push(line);
        rest = &rest[end + 1..];
    }
    (lines, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_from_lack_of_memory_is_reported() {
        let check = |outcome, expected| {
            let case = |outcome| Case { outcome, seconds: 1.0, message: "m".into() };
            let cases = vec![case(Outcome::Passed), case(outcome), case(Outcome::Failed)];
            let found = mark_out_of_memory(Verdict { cases, ..Verdict::default() });
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

    const CASES: &str = r#"{"expected": 4}
{"case": {"outcome": "passed", "seconds": 0.1, "message": ""}}
{"case": {"outcome": "runtime_error", "seconds": 0.2, "message": "m"}}
"#;
    use Outcome::{Failed, Passed, RuntimeError, Timeout};

    /// Checks the outcomes of a complete report.
    #[track_caller]
    fn check(report: &str, expected: &[Outcome]) {
        let verdict = parse_complete(report.as_bytes()).expect("a verdict");
        let outcomes: Vec<_> = verdict.cases.iter().map(|case| case.outcome).collect();
        assert_eq!(outcomes, expected, "{report}");
    }

    #[test]
    fn a_report_that_is_cut_off_is_a_verdict() {
        let more = &[Passed, RuntimeError, Failed, Failed];
        check(&format!("{CASES}{{\"case\": {{\"outc"), more);
        check(CASES, more);
        check("", &[Failed]);
        check("{\"verdict\": {\"cases", &[Failed]);
        check(&CASES[CASES.find("{\"case\"").expect("a case")..], &[Passed, RuntimeError, Failed]);
        // The final verdict takes precedence over the outcomes reported as the cases ended.
        let verdict = r#"{"verdict": {"cases": [{"outcome": "passed", "seconds": 1, "message": "]"}], "stdout": "x"#;
        check(&format!("{CASES}{verdict}"), &[Passed]);
        check(&format!("{CASES}{}", &verdict[..60]), more);
    }

    #[test]
    fn a_report_that_cannot_be_read_is_a_verdict_from_there_on() {
        let verdict = r#"{"verdict": {"cases": [], "complete": true, "stdout": "", "stderr": ""}}"#;
        for line in [
            "{\"case\": {\"outcome\": \"passed\", \"seconds\": NaN, \"message\": \"\"}}",
            "x",
            "\u{fffd}",
            "",
        ] {
            let report = format!("{CASES}{line}\n{verdict}\n");
            check(&report, &[Passed, RuntimeError, Failed, Failed]);
        }
    }

    #[test]
    fn a_fault_report_is_a_fault() {
        let found = |report: &str| parse_complete(report.as_bytes()).expect_err("no verdict");
        assert_eq!(found("{\"fault\": \"f\"}\n"), SandboxError::Fault { reason: "f".into() });
        assert_eq!(found("{\"tests\": \"t\"}\n"), SandboxError::Tests { reason: "t".into() });
    }

    #[test]
    fn cases_that_never_ran_have_failed() {
        let last = Case { outcome: Timeout, seconds: 1.0, message: "late".into() };
        let verdict = parse_partial(format!("{CASES}{{\"case").as_bytes(), last);
        let outcomes: Vec<_> = verdict.cases.iter().map(|case| case.outcome).collect();
        assert_eq!(outcomes, [Passed, RuntimeError, Timeout, Failed]);
    }
}
