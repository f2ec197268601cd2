//! Names of functions, commands that letters may follow without a blank, and characters with the meaning of a command.

/// The names of functions, constants and Greek letters that may be written without a backslash.
pub(super) const FUNCTIONS: &[&str] = &[
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "arccot", "sinh",
    "cosh", "tanh", "log", "ln", "lg", "exp", "sqrt", "pi", "gcd", "lcm", "max", "min", "mod",
    "floor", "ceil", "det", "theta", "alpha", "beta", "asin", "acos",
];

/// Commands that may be followed by letters without a blank, as in `\quadx`.
const PREFIXES: &[&str] = &[
    "qquad",
    "quad",
    "cdot",
    "times",
    "frac",
    "sqrt",
    "pi",
    "infty",
    "circ",
    "cup",
    "pm",
    "Rightarrow",
];

/// Returns the command at the start of a run of letters: the first entry of `PREFIXES` with which the run begins. Returns the whole run if
/// there is no such entry, or if the run is `cdots`, `circle`, `pmod` or `pmb`, which are commands that begin like another command.
pub(super) fn known_prefix(word: &str) -> &str {
    if ["cdots", "circle", "pmod", "pmb"].contains(&word) {
        return word;
    }
    PREFIXES.iter().find(|prefix| word.starts_with(**prefix)).unwrap_or(&word)
}

/// Returns the value of a superscript digit. Returns `None` for any other character.
pub(super) fn superscript(character: char) -> Option<u32> {
    const DIGITS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let at = DIGITS.iter().position(|digit| *digit == character)?;
    u32::try_from(at).ok()
}

/// Returns the numerator and the denominator of a fraction that is one character. Returns `None` for any other character.
pub(super) fn fraction(character: char) -> Option<(u32, u32)> {
    Some(match character {
        '½' => (1, 2),
        '⅓' => (1, 3),
        '⅔' => (2, 3),
        '¼' => (1, 4),
        '¾' => (3, 4),
        '⅕' => (1, 5),
        '⅖' => (2, 5),
        '⅗' => (3, 5),
        '⅘' => (4, 5),
        '⅙' => (1, 6),
        '⅚' => (5, 6),
        '⅐' => (1, 7),
        '⅛' => (1, 8),
        '⅜' => (3, 8),
        '⅝' => (5, 8),
        '⅞' => (7, 8),
        '⅑' => (1, 9),
        '⅒' => (1, 10),
        _ => return None,
    })
}

/// Returns the command that has the meaning of a character, without its backslash. The command of a letter for a set of numbers is
/// `mathbb:` and the letter. Returns `None` for any other character.
pub(super) fn unicode(character: char) -> Option<&'static str> {
    Some(match character {
        '≤' | '⩽' | '≦' => "le",
        '≥' | '⩾' | '≧' => "ge",
        '≠' => "ne",
        '≈' | '≃' | '≅' => "approx",
        '∞' => "infty",
        'π' => "pi",
        '√' => "sqrt",
        '∪' => "cup",
        '∩' => "cap",
        '∖' => "setminus",
        '∈' => "in",
        '±' => "pm",
        '∓' => "mp",
        '∅' => "emptyset",
        'ℝ' => "mathbb:R",
        'ℤ' => "mathbb:Z",
        'ℕ' => "mathbb:N",
        'ℚ' => "mathbb:Q",
        'ℂ' => "mathbb:C",
        'α' => "alpha",
        'β' => "beta",
        'γ' => "gamma",
        'θ' => "theta",
        'λ' => "lambda",
        'φ' | 'ϕ' => "phi",
        'ω' => "omega",
        'μ' => "mu",
        'σ' => "sigma",
        'Δ' => "Delta",
        '⌊' => "lfloor",
        '⌋' => "rfloor",
        '⌈' => "lceil",
        '⌉' => "rceil",
        '⟨' => "langle",
        '⟩' => "rangle",
        _ => return None,
    })
}
