use super::super::Verifier;
use super::is_correct;

/// Compares a text with itself and with others, and ignores the results. The test fails if a comparison panics, and does not end if one
/// takes forever.
fn survives(text: &str) {
    let _ = is_correct(text, text);
    let _ = is_correct(text, "1");
    let _ = is_correct("\\boxed{1}", text);
    let boxed = format!("\\boxed{{{text}}}");
    let _ = is_correct(&boxed, &boxed);
}

#[test]
fn huge_powers() {
    for text in [
        "10^{10^{10}}",
        "9^{9^{9^{9}}}",
        "(10^{1000})^{1000}",
        "1000000!",
        "((5!)!)!",
        "2^{-10^{10}}",
        "(x+y+z+w+1)^{64}",
    ] {
        survives(text);
    }
    assert!(is_correct("$10^{10^{10}}$", "$10^{10^{10}}$"));
    assert!(!is_correct("$10^{10^{10}}$", "$10^{10^{11}}$"));
}

#[test]
fn deep_and_long() {
    let n = 30_000;
    for text in [
        "(",
        ")",
        "{",
        "\\frac{",
        "\\sqrt",
        "-",
        "^",
        "x^",
        "|",
        "\\boxed{",
        "$",
        "$$",
        "\\[",
        "1,",
        "1 ",
        "a",
        "\\left(",
        "_",
        "é",
        "\\begin{pmatrix}1&",
        "\\mathbf{1",
        "\\{",
        "!",
        "%",
        "=",
        "<",
        "and ",
        "A:",
        "#### ",
        "####",
        "#### 1 ",
        "#### 1\n",
        "answer ",
        "final answer is ",
    ] {
        survives(&text.repeat(n / text.len()));
        survives(&text.repeat(20));
    }
    survives(&("#### 1\n".repeat(4600) + &" ".repeat(n)));
    survives(&"7".repeat(1 << 20));
    survives(&"x+".repeat(1 << 19));
}

/// Most of the texts have fewer tokens than the maximum, but would become trees of too many levels.
#[test]
fn chains_of_suffixes_and_operators_do_not_overflow_the_stack() {
    let survive = || {
        let suffixes =
            ["!", "^2", "^x", "^\\top", "^\\circ", "°", "'", "%", "^{-1}", "_1", "\\%", "^*"];
        let operators = [
            "\\cup",
            "\\cap",
            "\\setminus",
            "\\bmod",
            " mod ",
            "\\choose",
            "-",
            "+",
            "/",
            ":",
            "*",
            "\\pm",
            "=",
            "<",
            "\\le",
            "\\in",
            "\\to",
            ",",
            ";",
            "|",
            "\\over",
            "\\pmod",
        ];
        for start in ["5", "x", "\\infty"] {
            for count in [190, 1450] {
                let chains = suffixes.map(|suffix| format!("{start}{}", suffix.repeat(count)));
                chains.iter().for_each(|text| survives(text));
            }
        }
        for count in [190, 1450] {
            for operator in operators {
                survives(&format!("5{}", format!("{operator} 5").repeat(count)));
                survives(&format!("x{}", format!("{operator} x").repeat(count)));
            }
            let nested = format!("{}5{}", "(".repeat(20), format!("{})", "!".repeat(9)).repeat(20));
            survives(&nested);
        }
    };
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(survive);
    thread.expect("started").join().expect("no panic");
    assert!(is_correct("$3!!$", "720") && is_correct(r"\boxed{5!}", "120"));
}

#[test]
fn unclosed_brackets_cause_no_panic() {
    for text in
        ["|(", "|\\pi{\\", "|[1,", "|\\{", "|\\lfloor", "2|\\frac{1}{", "|f(", "|\\begin{pmatrix}1"]
    {
        survives(text);
        survives(&format!("{text}1|"));
    }
}

#[test]
fn a_comparison_that_is_too_expensive_is_incorrect() {
    let sum: Vec<String> = (1..200).map(|degree| format!("\\sin(x^{{{degree}}})")).collect();
    let truth = format!("${} < 1$", sum.join("+"));
    assert!(!is_correct("$(-1, 1)$", &truth));
    assert!(is_correct(&truth, &truth));
}

#[test]
fn odd_characters() {
    for text in [
        "\u{0}",
        "\u{feff}1",
        "１２",
        "٣",
        "½",
        "\u{202e}5",
        "𝟙",
        "\\",
        "\\\\",
        "\\é",
        "a\u{301}",
        "{\u{7f}}",
        "ß",
        "İ",
        "\\text{",
        "\\boxed",
        "\\boxed{",
        "$\\",
        "1e999999999999",
        "1E-99999",
        "0x",
        "-",
        "--",
        "+-+",
    ] {
        survives(text);
    }
}

#[test]
fn absurd_options() {
    let math = Verifier { precision: u32::MAX, ..Verifier::default() };
    assert!(math.is_correct("0.5", "1/2"));
}
