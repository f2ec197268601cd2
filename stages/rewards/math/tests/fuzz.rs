//! Random answers: no panic, bounded work, and an equality that is reflexive and, between values, symmetric.
//!
//! `PROPTEST_CASES=2000000 cargo test -p rollpacker-math --test fuzz` runs a long fuzz.

#![allow(missing_docs, reason = "tests")]

use proptest::prelude::*;
use rollpacker_math::{AnswerIn, Target, Verifier};

/// Pieces from which answers are composed, most of them LaTeX.
const PIECES: &[&str] = &[
    "\\frac",
    "\\sqrt",
    "\\sqrt[3]",
    "\\boxed{",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "\\{",
    "\\}",
    "|",
    "\\left(",
    "\\right)",
    "\\left|",
    "\\right|",
    "^",
    "_",
    "^{",
    "_{",
    "+",
    "-",
    "*",
    "/",
    "=",
    "<",
    ">",
    "\\le",
    "\\geq",
    "\\neq",
    "\\approx",
    "\\pm",
    "\\mp",
    "\\cdot",
    "\\times",
    "\\div",
    ",",
    ";",
    ":",
    ".",
    "!",
    "%",
    "\\%",
    "$",
    "$$",
    "\\(",
    "\\)",
    "\\[",
    "\\]",
    " ",
    "\n",
    "\\",
    "\\\\",
    "&",
    "\\begin{pmatrix}",
    "\\end{pmatrix}",
    "\\begin{cases}",
    "\\end{cases}",
    "\\begin{vmatrix}",
    "\\end{vmatrix}",
    "\\text{",
    "\\text{ cm}",
    "\\mathrm{e}",
    "\\mathbb{R}",
    "\\infty",
    "\\cup",
    "\\cap",
    "\\setminus",
    "\\in",
    "\\mid",
    "\\pi",
    "\\theta",
    "\\sin",
    "\\cos^2",
    "\\log",
    "\\log_2",
    "\\ln",
    "\\exp",
    "\\binom",
    "\\sum_{i=1}^{n}",
    "\\int_0^1",
    "\\lim_{x \\to 0}",
    "\\lfloor",
    "\\rfloor",
    "\\langle",
    "\\rangle",
    "^\\circ",
    "\\emptyset",
    "\\quad",
    "\\ldots",
    "\\pmod",
    "\\overline",
    "and",
    "or",
    "percent",
    "meters",
    "f(",
    "x",
    "y",
    "n",
    "e",
    "i",
    "a",
    "0",
    "1",
    "2",
    "3",
    "7",
    "10",
    "12",
    "100",
    "1,000",
    "0.5",
    "3.14",
    ".5",
    "1E9",
    "99999999999999999999",
    "####",
    "Answer:",
    "A:",
    "<answer>",
    "</answer>",
    "final answer is",
    "I hope",
    "√",
    "²",
    "π",
    "≤",
    "é",
    "１",
    "\u{202e}",
    "\u{0}",
    "−",
];

const ANSWERS: &[&str] = &[
    "\\frac{3}{4}",
    "x^2+2x+1",
    "(1, 2)",
    "[0, 1) \\cup (2, \\infty)",
    "x = \\frac{-1 \\pm \\sqrt{13}}{4}",
    "1,2,3",
    "\\{1, 2\\}",
    "\\begin{pmatrix} 1 & x \\\\ 0 & 2 \\end{pmatrix}",
    "2x + 3y = 6",
    "-2 \\le x < 7",
    "\\sin^2 x + \\cos x",
    "10^{\\frac{-5+\\sqrt{13}}{6}}",
    "28\\%",
    "12\\text{ cm}^2",
    "90^\\circ",
    "1011_2",
    "f(x) = x^3",
    "3\\frac{1}{2}",
    "\\binom{10}{3}",
    "\\log_2 (x+1)",
    "A:B = 7:32",
    "\\text{no solution}",
    "1 - \\frac{1}{e}",
    "|z| \\le 2",
    "5!",
];

fn pieces() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(PIECES), 0..24).prop_map(|pieces| pieces.concat())
}

/// Returns an answer with a part replaced or doubled, or with a piece inserted.
fn mutated() -> impl Strategy<Value = String> {
    let answer = prop::sample::select(ANSWERS);
    (
        answer,
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
        prop::sample::select(PIECES),
        0..3_u8,
    )
        .prop_map(|(answer, from, to, piece, how)| {
            let characters: Vec<char> = answer.chars().collect();
            let (from, to) = (from.index(characters.len()), to.index(characters.len()));
            let (from, to) = (from.min(to), from.max(to));
            let text = |part: &[char]| part.iter().collect::<String>();
            let (head, middle, rest) =
                (text(&characters[..from]), text(&characters[from..to]), text(&characters[to..]));
            match how {
                0 => head + piece + &rest,
                1 => head + &middle + &middle + &rest,
                _ => head + piece + &middle + &rest,
            }
        })
}

fn answers() -> impl Strategy<Value = String> {
    prop_oneof![3 => pieces(), 3 => mutated(), 1 => prop::sample::select(ANSWERS).prop_map(str::to_owned), 1 => ".{0,40}"]
}

fn options() -> impl Strategy<Value = Verifier> {
    (any::<(bool, bool, bool, bool)>(), 0..40_u32, -1..60).prop_map(
        |((last_number, strict, relation_for_set, markers), precision, boxed_priority)| Verifier {
            answer: AnswerIn::Auto,
            last_number,
            strict,
            relation_for_set,
            markers,
            precision,
            boxed_priority,
            targets: vec![Target::Latex, Target::Expr],
        },
    )
}

proptest! {
    #[test]
    fn no_input_panics(response in answers(), truth in answers(), math in options()) {
        let _ = math.is_correct(&response, &truth);
        let _ = math.is_correct(&format!("so \\boxed{{{response}}}"), &format!("${truth}$"));
        let _ = math.is_correct(&format!("Answer: {response}"), &truth);
    }

    #[test]
    fn an_answer_equals_itself(answer in answers()) {
        let boxed = format!("\\boxed{{{answer}}}");
        // The same answer is extracted from both texts. A text without an extractable answer is never correct.
        let found = Verifier::default().is_correct(&boxed, &boxed);
        let balanced = !answer.trim().is_empty() && !answer.contains(['{', '}', '\\', '$', '#', '<', ':']);
        prop_assert!(found || !balanced, "{boxed}");
    }

    #[test]
    fn values_are_equal_both_ways(left in answers(), right in answers()) {
        // Excluded: a relation or a list may be answered by a part of it, and a comma in an unmarked ground truth may be a decimal comma.
        let value = |text: &str| !text.contains(['=', '<', '>', ',', ';', '≤', '$', '#', ':']) && !text.contains("\\le")
            && !text.contains("\\ge") && !text.contains("\\ne") && !text.contains("boxed") && !text.contains("\\{")
            && !text.contains("and") && !text.contains("or") && !text.contains("\\in") && !text.contains("\\pm")
            && !text.contains("\\(") && !text.contains("\\[") && !text.contains("\\mp") && !text.contains("\\begin")
            && !text.contains("\\approx");
        if value(&left) && value(&right) {
            let formula = |text: &str| format!("$\\boxed{{{text}}}$");
            let math = Verifier::default();
            let (left, right) = (formula(&left), formula(&right));
            prop_assert_eq!(math.is_correct(&left, &right), math.is_correct(&right, &left));
        }
    }
}
