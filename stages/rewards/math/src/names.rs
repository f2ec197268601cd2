//! Names of functions, commands that may run into letters, and characters that stand for commands.

/// The names of functions that plain text writes without a backslash.
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

/// Returns the command at the start of a run of letters. It is a known prefix if there is one, otherwise the whole run.
pub(super) fn known_prefix(word: &str) -> &str {
    if ["cdots", "pmod", "pmb"].contains(&word) {
        return word;
    }
    PREFIXES.iter().find(|prefix| word.starts_with(**prefix)).unwrap_or(&word)
}

pub(super) fn superscript(character: char) -> Option<u32> {
    const DIGITS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let at = DIGITS.iter().position(|digit| *digit == character)?;
    u32::try_from(at).ok()
}

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
