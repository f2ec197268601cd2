//! Verification of several kinds of answers: verdicts per second on one core.
//!
//! ```text
//! cargo bench -p rollpacker-math --bench math
//! ```

#![allow(missing_docs, reason = "a program")]

use divan::Bencher;
use divan::counter::ItemsCount;
use rollpacker_math::Verifier;

fn main() {
    divan::main();
}

/// Kinds of answers: the name, the ground truth and the boxed answer.
const KINDS: [(&str, &str, &str); 6] = [
    ("integer", "1234", "1,234"),
    ("fraction", "\\frac{3}{4}", "0.75"),
    ("polynomial", "(x+1)^3", "x^3 + 3x^2 + 3x + 1"),
    ("trigonometry", "\\tan^2(y) + 1", "\\sec^2(y)"),
    ("interval", "(-\\infty, -3] \\cup [2, \\infty)", "(-\\infty,-3]\\cup[2,\\infty)"),
    ("inequality", "x^2 \\geq 4", "(-\\infty, -2] \\cup [2, \\infty)"),
];

/// Returns a response with this many characters of reasoning that ends in a box.
fn response(answer: &str, characters: usize) -> String {
    let reasoning = "We know that $x = 3$ and so $2x + 1 = 7$, which gives 49 after squaring. ";
    let repeated: String = reasoning.chars().cycle().take(characters).collect();
    format!("{repeated}\nThus the answer is $\\boxed{{{answer}}}$.")
}

#[divan::bench(args = KINDS.map(|(kind, _, _)| kind))]
fn verdicts(bencher: Bencher<'_, '_>, kind: &str) {
    let (_, truth, answer) = KINDS.into_iter().find(|(name, _, _)| *name == kind).expect("a kind");
    let response = response(answer, 2000);
    assert!(Verifier::default().is_correct(&response, truth));
    bencher
        .counter(ItemsCount::new(1_usize))
        .bench(|| Verifier::default().is_correct(&response, truth));
}

#[divan::bench(args = [1_000, 10_000, 100_000])]
fn by_length_of_the_response(bencher: Bencher<'_, '_>, characters: usize) {
    let response = response("42", characters);
    bencher
        .counter(ItemsCount::new(1_usize))
        .bench(|| Verifier::default().is_correct(&response, "42"));
}
