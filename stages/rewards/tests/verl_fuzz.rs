//! The graders of verl do not panic on random answers.

#![allow(missing_docs, reason = "tests")]

use proptest::prelude::*;
use rollpacker_rewards::verl::{Gsm8k, MathDapo, MathReward, SearchR1};

/// Pieces from which the random answers are composed.
const PIECES: &[&str] = &[
    "\\frac",
    "\\sqrt",
    "\\boxed{",
    "\\boxed ",
    "\\fbox{",
    "\\text{",
    "{",
    "}",
    "(",
    ")",
    "^",
    "_",
    "%",
    "\\%",
    "$",
    "\\$",
    "####",
    "#### ",
    "-",
    ",",
    ".",
    " ",
    "=",
    "12",
    "0.5",
    "1,000",
    "x",
    "Answer:",
    "<answer>",
    "</answer>",
    "\\left",
    "\\right",
    "\\dfrac",
    "square",
    "units",
    "é",
    "\u{221a}",
];

fn answers() -> impl Strategy<Value = String> {
    let pieces = prop::collection::vec(prop::sample::select(PIECES), 0..24);
    prop_oneof![3 => pieces.prop_map(|pieces| pieces.concat()), 1 => ".{0,40}"]
}

proptest! {
    #[test]
    fn named_modes_never_panic(response in answers(), truth in answers()) {
        let _ = Gsm8k { flexible: false }.grade(&response, &truth);
        let _ = Gsm8k { flexible: true }.grade(&response, &truth);
        let _ = MathReward {}.grade(&format!("\\boxed{{{response}}}"), &truth);
        let _ = MathDapo { strict_box: false }.grade(&format!("Answer: {response}"), &truth);
        let _ = MathDapo { strict_box: true }.grade(&response, &truth);
        let _ = SearchR1 { substring: true }.grade(&format!("<answer>{response}</answer>"), &[truth]);
    }
}
