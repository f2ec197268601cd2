//! The checks of a solution.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// The tests of a job, as the checker reads them.
///
/// `stop_at_failure` skips all cases after the first one that does not pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Check {
    /// The solution runs to its end and exits with code 0.
    Runs,
    /// Python tests that import the module `solution` or use its names without an import: test functions and classes as pytest and unittest
    /// run them, or bare assertions. Each test function with its parameters is a case. In a text without test functions, each top-level
    /// assertion is a case or, without such assertions, the whole text. Skipped tests, and tests that pass without the solution, are not
    /// counted.
    Tests {
        /// The texts, each a separate module.
        tests: Vec<String>,
        /// `true` if the usual imports of competition datasets precede the solution.
        prelude: bool,
        /// Code before the solution and after the prelude, such as imports and classes; may be empty.
        #[serde(skip_serializing_if = "String::is_empty")]
        import_prefix: String,
        /// `true` to skip the cases after a failure.
        stop_at_failure: bool,
    },
    /// A function `check(candidate)`, as in HumanEval: one case.
    Entry {
        /// The code that defines `check`.
        test: String,
        /// The function to check: a name, or an expression that begins with the name of a class, such as `Solution().add`.
        entry_point: String,
        /// The code that the solution completes. The test may use the functions that the prompt defines. If it is `None`, empty or not a
        /// complete program, the test may use those of `import_prefix` instead.
        prompt: Option<String>,
        /// Code before the solution, such as imports; may be empty.
        import_prefix: String,
    },
    /// A function, or a method of the class `Solution`, called with arguments.
    Calls {
        /// The name of the function or method.
        function: String,
        /// The calls, each of which is a case.
        cases: Vec<Call>,
        /// `true` if the usual imports of competition datasets precede the solution.
        prelude: bool,
        /// `true` to skip the cases after a failure.
        stop_at_failure: bool,
    },
    /// A program that reads its standard input and writes its standard output. Blanks at the ends of lines and blank lines at the end are
    /// ignored. The case fails if the output reaches both `output_bytes` of the configuration and twice the size of the expected output
    /// plus 64 KiB.
    Stdio {
        /// The runs of the program, each of which is a case.
        cases: Vec<Stdio>,
        /// `true` if the usual imports of competition datasets precede the solution.
        prelude: bool,
        /// `true` to skip the cases after a failure.
        stop_at_failure: bool,
    },
    /// Python code that checks the text of a response. The text replaces `{response}`, also within string literals, always as a value and
    /// never as code.
    Text {
        /// The texts of the checks, one case each.
        tests: Vec<String>,
        /// The text that replaces `{response}`.
        response: String,
        /// `true` to skip the cases after a failure.
        stop_at_failure: bool,
    },
}

/// A call of a function, and its expected result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Call {
    /// The arguments, by position.
    pub arguments: Vec<Json>,
    /// The accepted results, at least one. The call must return a value that equals one of them; floats must agree to about six decimals.
    pub expected: Vec<Json>,
}

/// A run of a program, and its expected output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stdio {
    /// The text of the standard input.
    pub stdin: String,
    /// The expected standard output, which is compared as [`Check::Stdio`] describes.
    pub expected_stdout: String,
}

/// A JSON value as its text, so that integers of any length are preserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Json(String);

impl From<&RawValue> for Json {
    fn from(value: &RawValue) -> Self {
        Self(value.get().to_owned())
    }
}

impl Json {
    /// Parses a text that is one JSON value.
    ///
    /// # Errors
    /// If the text is not valid JSON.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str::<&RawValue>(text).map(Self::from)
    }

    /// Returns a text as a JSON string.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self(serde_json::Value::from(text).to_string())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl Check {
    /// Returns `true` if the language of a job with this check must be `python`.
    #[must_use]
    pub fn needs_python(&self) -> bool {
        !matches!(self, Self::Runs | Self::Stdio { .. })
    }

    /// Returns the number of test cases or, for [`Tests`](Self::Tests), the number of texts, because their cases are counted only when they
    /// run. A verdict has fewer cases if it is not [complete](crate::Verdict::complete), if tests skip themselves, or if some tests do not
    /// depend on the solution.
    #[must_use]
    pub fn min_cases(&self) -> usize {
        match self {
            Self::Runs | Self::Entry { .. } => 1,
            Self::Tests { tests, .. } | Self::Text { tests, .. } => tests.len(),
            Self::Calls { cases, .. } => cases.len(),
            Self::Stdio { cases, .. } => cases.len(),
        }
    }

    /// Sets `stop_at_failure`. Has no effect on checks with a single case.
    #[must_use]
    pub fn with_stop_at_failure(mut self) -> Self {
        if let Self::Tests { stop_at_failure, .. }
        | Self::Calls { stop_at_failure, .. }
        | Self::Stdio { stop_at_failure, .. }
        | Self::Text { stop_at_failure, .. } = &mut self
        {
            *stop_at_failure = true;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_passed_to_the_checker_verbatim() {
        let long = "[123456789012345678901234567890, 0.10]";
        let call = Call {
            arguments: vec![Json::parse(long).expect("JSON")],
            expected: vec![Json::text("a\"b")],
        };
        let check = Check::Calls {
            function: "f".into(),
            cases: vec![call],
            prelude: false,
            stop_at_failure: false,
        };
        let text = serde_json::to_string(&check.with_stop_at_failure()).expect("it is written");
        let expected = format!(
            r#"{{"kind":"calls","function":"f","cases":[{{"arguments":[{long}],"expected":["a\"b"]}}],"prelude":false,"stop_at_failure":true}}"#
        );
        assert_eq!(text, expected);
    }
}
