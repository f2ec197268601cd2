//! Tokens of LaTeX and plain text.

mod numeral;
mod text_command;

use super::names::{FUNCTIONS, fraction, known_prefix, superscript, unicode};
use super::units;
pub(super) use numeral::value;

/// The maximum number of characters of an answer. Longer texts are not answers.
pub(super) const MAX_CHARACTERS: usize = 10_000;

/// The private character that stands for the word `and` between answers.
pub(super) const AND: char = '\u{e000}';
/// The private character that stands for the word `or` between answers.
pub(super) const OR: char = '\u{e001}';

/// Narrow and non-breaking spaces, which are often between thousands. Each is replaced by a blank wherever it occurs in the text.
const NARROW: [&str; 4] = ["{\\,}", "\u{2009}", "\u{202f}", "\u{a0}"];

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// An unsigned number as written, without separators of thousands. The digits that repeat without end are in parentheses.
    Number(String),
    /// A command without its backslash, the name of a function, or the command with the meaning of another character or operator. The name
    /// of an environment follows `begin:` or `end:`, and the letter of a set of numbers follows `mathbb:`.
    Command(String),
    /// Any other character, such as a letter, a bracket or an operator.
    Char(char),
    /// The contents of a text command.
    Text(String),
    /// A unit of measure. Its name is dropped, because units are ignored.
    Unit,
}

impl Token {
    /// Returns `true` for a unit, also as the contents of a text command.
    pub(super) fn is_unit(&self) -> bool {
        match self {
            Self::Unit => true,
            Self::Text(text) => units::are_units(text),
            _ => false,
        }
    }

    /// Returns `true` for an operator between two units, as in `m/s` and `\text{kg} \cdot \text{m}`.
    pub(super) fn joins_units(&self) -> bool {
        match self {
            Self::Char(operator) => "/*".contains(*operator),
            Self::Command(name) => name == "cdot",
            _ => false,
        }
    }
}

/// Returns the tokens of a text, or `None` if it is too long.
///
/// If `thousands` is `true`, `1,234` is one number, otherwise two.
pub(super) fn tokens(text: &str, thousands: bool) -> Option<Vec<Token>> {
    tokens_within(text, thousands, 0)
}

/// Returns the tokens of the contents of `depth` nested text commands.
fn tokens_within(text: &str, thousands: bool, depth: usize) -> Option<Vec<Token>> {
    let text = prepare(text);
    let characters: Vec<char> = text.chars().collect();
    if characters.len() > MAX_CHARACTERS {
        return None;
    }
    let plain = !text.contains('\\');
    let grouping = if thousands { grouping_commas(&characters) } else { Vec::new() };
    let mut lexer =
        Lexer { characters, at: 0, grouping, plain, thousands, depth, tokens: Vec::new() };
    while lexer.at < lexer.characters.len() {
        lexer.step();
    }
    Some(lexer.tokens)
}

/// Returns the positions of the commas that may separate groups of three digits, in ascending order.
///
/// A comma in `(1,234)`, `[1,234]` or `\{1,234\}` separates two elements. It may separate groups if the elements of the same brackets are
/// separated by semicolons or by commas with a blank, as in `(1,234, 5,678)`.
fn grouping_commas(characters: &[char]) -> Vec<usize> {
    // The commas of each open bracket, and whether its elements are separated in another way.
    let mut open: Vec<(Vec<usize>, bool)> = vec![(Vec::new(), true)];
    let mut found = Vec::new();
    for (at, character) in characters.iter().enumerate() {
        let escaped = at > 0 && characters[at - 1] == '\\';
        match character {
            // Delimiters of LaTeX formulas.
            '(' | '[' | ')' | ']' if escaped => {}
            '(' | '[' => open.push((Vec::new(), false)),
            '{' if escaped => open.push((Vec::new(), false)),
            // Braces without a backslash only group.
            '{' => open.push((Vec::new(), true)),
            ')' | ']' | '}' if open.len() > 1 => {
                found.extend(
                    open.pop().filter(|(_, grouped)| *grouped).into_iter().flat_map(|all| all.0),
                );
            }
            ';' => open.last_mut().into_iter().for_each(|(_, grouped)| *grouped = true),
            ',' if characters.get(at + 1).is_some_and(|next| next.is_whitespace()) => {
                open.last_mut().into_iter().for_each(|(_, grouped)| *grouped = true);
            }
            ',' => open.last_mut().into_iter().for_each(|(commas, _)| commas.push(at)),
            _ => {}
        }
    }
    found.extend(open.into_iter().filter(|(_, grouped)| *grouped).flat_map(|all| all.0));
    found.sort_unstable();
    found
}

/// Replaces doubled backslashes before commands by single backslashes, unless the text contains an environment with rows, such as a matrix.
/// Removes `\!` and the braces around commas and colons. Replaces narrow spaces by blanks, and fullwidth characters by ASCII characters.
fn prepare(text: &str) -> String {
    let text = text.replace("{,}", ",").replace("{:}", ":").replace("\\! ", "").replace("\\!", "");
    let text: String = text.chars().map(halfwidth).collect();
    let text = NARROW.iter().fold(text, |text, space| text.replace(space, " "));
    let rows = ["matrix", "array", "cases", "aligned"].iter().any(|name| text.contains(name));
    if rows || !text.contains("\\\\") {
        return text;
    }
    let characters: Vec<char> = text.chars().collect();
    let mut single = String::with_capacity(text.len());
    for (at, &character) in characters.iter().enumerate() {
        let doubled = character == '\\' && characters.get(at + 1) == Some(&'\\');
        let command = characters
            .get(at + 2)
            .is_some_and(|next| next.is_ascii_alphabetic() || "{}()[]%$".contains(*next));
        if !(doubled && command) {
            single.push(character);
        }
    }
    single
}

/// Converts a fullwidth character to ASCII. Returns any other character unchanged.
fn halfwidth(character: char) -> char {
    match character {
        '！'..='～' => char::from_u32(u32::from(character) - 0xFEE0).unwrap_or(character),
        other => other,
    }
}

/// Returns the letter of a choice within its brackets or before its period, as in `(A)` or `A.`. Returns any other text as it is.
fn choice(text: &str) -> &str {
    let bare = text.trim_start_matches(['(', '[']).trim_end_matches([')', ']', '.', ':']).trim();
    let is_letter = bare.len() == 1 && bare.chars().all(|c| c.is_ascii_alphabetic());
    if is_letter { bare } else { text }
}

/// Returns one or several choices, as in `(A), (C)`, without brackets and with commas between them. Any single character counts as a
/// choice. Returns `None` for any other text.
fn choices(text: &str) -> Option<String> {
    let letters: Vec<&str> = text.split(',').map(|part| choice(part.trim())).collect();
    let all = letters.iter().all(|letter| letter.chars().count() == 1);
    all.then(|| letters.join(","))
}

struct Lexer {
    characters: Vec<char>,
    at: usize,
    /// `true` if commas may separate groups of three digits.
    thousands: bool,
    /// The positions of the commas that may do so; see [`grouping_commas`].
    grouping: Vec<usize>,
    /// `true` if the text has no backslash. In such a text, `e` after a number begins an exponent.
    plain: bool,
    /// The number of text commands around the text.
    depth: usize,
    tokens: Vec<Token>,
}

impl Lexer {
    fn peek(&self, offset: usize) -> Option<char> {
        self.characters.get(self.at + offset).copied()
    }

    fn digit(&self, offset: usize) -> bool {
        self.peek(offset).is_some_and(|character| character.is_ascii_digit())
    }

    fn step(&mut self) {
        let Some(character) = self.peek(0) else { return };
        if character == '\\' {
            self.command();
        } else if character.is_ascii_digit() || (character == '.' && self.digit(1)) {
            self.number();
        } else if character.is_ascii_alphabetic() {
            self.word();
        } else {
            self.at += 1;
            self.character(character);
        }
    }

    fn character(&mut self, character: char) {
        if character.is_whitespace() || "$\"\u{200b}€£¥₹".contains(character) {
            return;
        }
        if character == '~' && self.peek(0) != Some('=') && self.allows_blank() {
            return;
        }
        if let Some((above, below)) = fraction(character) {
            self.tokens.push(Token::Command("frac".to_owned()));
            for part in [above, below] {
                let part = Token::Number(part.to_string());
                self.tokens.extend([Token::Char('{'), part, Token::Char('}')]);
            }
            return;
        }
        if let Some(power) = superscript(character) {
            self.tokens.push(Token::Char('^'));
            self.tokens.push(Token::Number(power.to_string()));
            return;
        }
        self.operator(character);
    }

    /// Reads an operator of one or two characters. `character` is the first one and is already consumed.
    fn operator(&mut self, character: char) {
        let next = self.peek(0);
        let pair = match (character, next) {
            ('<', Some('=')) => Some("le"),
            ('>', Some('=')) => Some("ge"),
            ('!', Some('=')) => Some("ne"),
            ('~', Some('=')) => Some("approx"),
            ('=', Some('=')) => Some("="),
            ('*', Some('*')) => Some("^"),
            _ => None,
        };
        if let Some(name) = pair {
            self.at += 1;
            self.tokens.push(match name {
                "=" => Token::Char('='),
                "^" => Token::Char('^'),
                name => Token::Command(name.to_owned()),
            });
            return;
        }
        self.tokens.push(match unicode(character) {
            Some(name) => Token::Command(name.to_owned()),
            None => Token::Char(match character {
                '−' | '–' | '—' => '-',
                '×' | '·' | '⋅' | '∗' | '∙' => '*',
                '÷' | '∕' | '⁄' => '/',
                '、' => ',',
                '’' | '′' => '\'',
                other => other,
            }),
        });
    }

    /// Returns `true` if the characters of `text` follow.
    fn starts_with(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(offset, character)| self.peek(offset) == Some(character))
    }

    fn letters(&mut self) -> String {
        let begin = self.at;
        while self.peek(0).is_some_and(|character| character.is_ascii_alphabetic()) {
            self.at += 1;
        }
        self.characters[begin..self.at].iter().collect()
    }

    /// Reads a run of ASCII letters: a known word such as `and`, `percent`, `sin` or a unit, or else a product of variables.
    fn word(&mut self) {
        let spaced = self.at > 0 && self.characters[self.at - 1].is_whitespace();
        let word = self.letters();
        let after_number = matches!(self.tokens.last(), Some(Token::Number(_)));
        let lower = word.to_ascii_lowercase();
        let token = match lower.as_str() {
            "and" => Token::Char(AND),
            "or" => Token::Char(OR),
            "percent" | "percentage" | "pct" => Token::Char('%'),
            "infinity" | "inf" | "infty" | "oo" => Token::Command("infty".to_owned()),
            _ if FUNCTIONS.contains(&word.as_str()) && !self.ends_with_unit(&lower) => {
                Token::Command(word)
            }
            "in" if after_number && self.is_at_end() => Token::Unit,
            _ if units::is_unit(&lower) && !self.tokens.is_empty() => Token::Unit,
            _ if spaced && after_number && units::is_letter_unit(&word) => Token::Unit,
            _ if self.continues_unit(&word) => Token::Unit,
            _ => return self.tokens.extend(word.chars().map(Token::Char)),
        };
        self.tokens.push(token);
    }

    fn command(&mut self) {
        self.at += 1;
        let Some(first) = self.peek(0) else { return };
        if !first.is_ascii_alphabetic() {
            self.at += 1;
            return self.escaped(first);
        }
        let word = self.letters();
        let name = known_prefix(&word);
        self.at -= word.len() - name.len();
        self.named(name.to_owned());
    }

    fn escaped(&mut self, character: char) {
        match character {
            '\\' => self.tokens.push(Token::Command("\\".to_owned())),
            '{' | '}' | '|' => self.tokens.push(Token::Command(character.to_string())),
            '%' => self.tokens.push(Token::Char('%')),
            '(' | ')' | '[' | ']' => {}
            _ => {}
        }
    }

    fn named(&mut self, name: String) {
        match name.as_str() {
            "text" | "textbf" | "textit" | "textrm" | "textnormal" | "mbox" | "mathrm"
            | "mathbf" | "mathit" | "mathsf" | "mathtt" | "hbox" | "operatorname" | "mathcal"
            | "mathfrak" | "mathbb" | "Bbb" | "boldsymbol" | "bm" | "rm" | "bf" | "emph"
            | "texttt" | "mathscr" => {
                self.text(&name);
            }
            "R" | "Z" | "N" | "Q" | "C" => {
                self.tokens.push(Token::Command(format!("mathbb:{name}")));
            }
            "begin" | "end" => {
                let environment = self.braced().unwrap_or_default();
                self.tokens.push(Token::Command(format!("{name}:{environment}")));
            }
            "left" | "right" | "big" | "Big" | "bigg" | "Bigg" | "bigl" | "bigr" | "Bigl"
            | "Bigr" | "biggl" | "biggr" | "mleft" | "mright" | "middle" => {
                if self.peek(0) == Some('.') {
                    self.at += 1;
                }
            }
            "quad" | "qquad" | "displaystyle" | "textstyle" | "limits" | "nolimits"
            | "thinspace" | "enspace" | "hfill" | "degree" | "cfrac" | "hspace" | "phantom"
            | "nonumber" | "newline" | "medspace" | "thickspace" | "negthinspace"
            | "scriptstyle" | "color" | "textcolor" => self.spacing(&name),
            _ => self.tokens.push(Token::Command(name)),
        }
    }

    fn spacing(&mut self, name: &str) {
        match name {
            "cfrac" => self.tokens.push(Token::Command("frac".to_owned())),
            "hspace" | "phantom" | "color" | "textcolor" => drop(self.braced()),
            "degree" => self.tokens.push(Token::Char('°')),
            _ => {}
        }
    }

    /// Reads the contents of the braces that follow. Returns `None` if there are no braces or they are not closed.
    fn braced(&mut self) -> Option<String> {
        let mut end = self.at;
        while self.characters.get(end).is_some_and(|character| character.is_whitespace()) {
            end += 1;
        }
        if self.characters.get(end) != Some(&'{') {
            return None;
        }
        let begin = end + 1;
        let mut depth = 0_usize;
        while let Some(character) = self.characters.get(end) {
            match character {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            end += 1;
            if depth == 0 {
                self.at = end;
                return Some(self.characters[begin..end - 1].iter().collect());
            }
        }
        None
    }

    /// Returns `true` if a tilde at the current position is a space of LaTeX: after a number, a text, a unit, one of `,;=)]}`, or a letter
    /// if the text contains LaTeX commands. Elsewhere the tilde may be a negation, as in `~p`.
    fn allows_blank(&self) -> bool {
        match self.tokens.last() {
            Some(Token::Number(_) | Token::Text(_) | Token::Unit) => true,
            Some(Token::Char(before)) => {
                ",;=)]}".contains(*before) || (before.is_alphabetic() && !self.plain)
            }
            _ => false,
        }
    }

    /// Returns `true` if a letter is a unit because of the tokens before it: `s` in `m/s`, `C` in `25°C`.
    fn continues_unit(&self, letter: &str) -> bool {
        let is_degree = |name: &str| ["circ", "circle"].contains(&name);
        match self.tokens.as_slice() {
            [.., unit, operator] if unit.is_unit() && operator.joins_units() => {
                units::is_letter_unit(letter)
            }
            [.., Token::Char('°')] => ["C", "F"].contains(&letter),
            [.., Token::Char('^'), Token::Command(name)]
            | [.., Token::Char('^'), Token::Char('{'), Token::Command(name), Token::Char('}')] => {
                is_degree(name) && ["C", "F"].contains(&letter)
            }
            _ => false,
        }
    }

    /// Returns `true` if a word that is also the name of a function is a unit here: `min` and `sec` after a value, with no argument after
    /// them.
    fn ends_with_unit(&self, word: &str) -> bool {
        let rest = &self.characters[self.at..];
        let next = rest.iter().find(|c| !c.is_whitespace() && !"$}".contains(**c));
        let joins = matches!(self.tokens.as_slice(), [.., unit, operator]
            if unit.is_unit() && operator.joins_units());
        let is_argument = |c: &char| !(",.;)=".contains(*c) || c.is_ascii_digit());
        ["min", "sec"].contains(&word)
            && (joins || (self.after_value() && !next.is_some_and(is_argument)))
    }

    /// Returns `true` if only blanks, periods and dollars follow.
    fn is_at_end(&self) -> bool {
        self.characters[self.at..].iter().all(|c| c.is_whitespace() || ".$".contains(*c))
    }

    /// Returns `true` after a number, a closing brace or a closing parenthesis.
    fn after_value(&self) -> bool {
        matches!(self.tokens.last(), Some(Token::Number(_) | Token::Char('}' | ')')))
    }

    /// Tokenizes the contents of a text command as if they were outside of it.
    fn inline(&mut self, content: &str) {
        if let Some(inner) = tokens_within(content, self.thousands, self.depth + 1) {
            self.tokens.extend(inner);
        }
    }
}
