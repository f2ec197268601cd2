//! Tables of hand-written answers, each with its ground truth.

mod different;
mod hostile;
mod same;

use super::Verifier;

/// Returns `true` if a response is right under the default options.
fn is_correct(response: &str, truth: &str) -> bool {
    Verifier::default().is_correct(response, truth)
}

/// Asserts the same result for every pair, and reports all that differ.
fn check(pairs: &[(&str, &str)], expected: bool) {
    let wrong: Vec<_> =
        pairs.iter().filter(|(truth, response)| is_correct(response, truth) != expected).collect();
    assert!(wrong.is_empty(), "expected {expected} of {wrong:#?}");
}
