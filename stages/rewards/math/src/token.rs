//! Tokens of LaTeX and plain text.

use super::names::{FUNCTIONS, fraction, known_prefix, superscript, unicode};
use super::number::{self, Rational};
use super::units;

/// The maximum number of characters of an answer. Longer texts are not answers.
pub(super) const MAX_CHARACTERS: usize = 10_000;

/// Spaces that separate groups of three digits in LaTeX.
const SPACES: [&str; 5] = ["\\,", "\\;", "\\:", "\\ ", "~"];

/// Other spaces that separate thousands.
const NARROW: [&str; 4] = ["{\\,}", "\u{2009}", "\u{202f}", "\u{a0}"];

/// A token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// An unsigned number as written, without separators of thousands. The digits that repeat without end are in parentheses.
    Number(String),
    /// A command or the name of a function, without its backslash.
    Command(String),
    /// Another character.
    Char(char),
    /// The contents of a text command.
    Text(String),
    /// A unit of measure.
    Unit,
}

/// Returns the tokens of a text, or `None` if it is too long.
///
/// If `thousands` is `true`, `1,234` is one number, otherwise two.
pub(super) fn tokens(text: &str, thousands: bool) -> Option<Vec<Token>> {
    let text = prepare(text);
    let characters: Vec<char> = text.chars().collect();
    if characters.len() > MAX_CHARACTERS {
        return None;
    }
    let plain = !text.contains('\\');
    let mut lexer = Lexer { characters, at: 0, thousands, plain, tokens: Vec::new() };
    while lexer.at < lexer.characters.len() {
        lexer.step();
    }
    Some(lexer.tokens)
}

/// Returns the value of a number token. Returns `None` if the value exceeds the limits of exact numbers.
pub(super) fn value(digits: &str) -> Option<Rational> {
    if let Some((first, period)) = digits.split_once('(') {
        return number::repeating(first, period.trim_end_matches(')'));
    }
    match digits.split_once('E') {
        None => number::decimal(digits),
        Some((mantissa, exponent)) => {
            let exponent = number::integer(exponent.parse().ok()?);
            let scale = number::power(&number::integer(10), &exponent)?;
            number::multiply(&number::decimal(mantissa)?, &scale)
        }
    }
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

/// Returns the digits that repeat at the end of a decimal fraction, such as `18` in `2.1818`: the shortest sequence that occurs twice in a
/// row.
fn repetition(digits: &str) -> Option<&str> {
    let (_, fraction) = digits.split_once('.')?;
    let ends = (1..=fraction.len() / 2).map(|length| fraction.split_at(fraction.len() - length));
    ends.into_iter().find(|(before, period)| before.ends_with(period)).map(|(_, period)| period)
}

/// Returns the letter of a choice within its brackets or before its period, as in `(A)` or `A.`. Returns any other text as it is.
fn choice(text: &str) -> &str {
    let bare = text.trim_start_matches(['(', '[']).trim_end_matches([')', ']', '.', ':']).trim();
    let is_letter = bare.len() == 1 && bare.chars().all(|c| c.is_ascii_alphabetic());
    if is_letter { bare } else { text }
}

/// Returns the letters of one or several choices, as in `(A), (C)`, with commas between them. Returns `None` for any other text.
fn choices(text: &str) -> Option<String> {
    let letters: Vec<&str> = text.split(',').map(|part| choice(part.trim())).collect();
    let all = letters.iter().all(|letter| letter.chars().count() == 1);
    all.then(|| letters.join(","))
}

/// Returns `true` for digits with separators and a sign, such as `-1,234.5`.
fn is_number(text: &str) -> bool {
    text.chars().any(|c| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || "+-., ".contains(c))
}

struct Lexer {
    characters: Vec<char>,
    at: usize,
    /// `true` if commas may separate groups of three digits.
    thousands: bool,
    /// `true` if the text has no backslash. In such a text, `e` after a number begins an exponent.
    plain: bool,
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
        if character.is_whitespace() || "$\"\u{200b}".contains(character) {
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

    /// Reads an operator of one or two characters.
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

    fn digits(&mut self, into: &mut String) {
        while let Some(character) = self.peek(0).filter(char::is_ascii_digit) {
            into.push(character);
            self.at += 1;
        }
    }

    fn number(&mut self) {
        let mut digits = String::new();
        self.digits(&mut digits);
        let decimal_comma = self.groups(&mut digits) == Some(".") && self.peek(0) == Some(',');
        let point = self.peek(0) == Some('.') || decimal_comma;
        if point && (self.digit(1) || self.period(1).is_some()) {
            digits.push('.');
            self.at += 1;
            self.fraction(&mut digits);
        }
        match self.period(0).filter(|_| digits.contains('.')) {
            Some((period, length)) => {
                self.at += length;
                digits.extend(["(", &period, ")"]);
            }
            None if digits.contains('.') && self.ellipsis() => {
                if let Some(period) = repetition(&digits).map(str::to_owned) {
                    digits.extend(["(", &period, ")"]);
                }
            }
            None => self.exponent(&mut digits),
        }
        self.tokens.push(Token::Number(digits));
    }

    /// Reads the digits after a decimal point, in groups of three if a space of LaTeX follows the third, as in `0.678\,9`.
    fn fraction(&mut self, digits: &mut String) {
        let begin = digits.len();
        self.digits(digits);
        let Some(space) = SPACES.into_iter().find(|space| self.starts_with(space)) else { return };
        while (digits.len() - begin).is_multiple_of(3)
            && digits.len() > begin
            && self.starts_with(space)
            && self.digit(space.len())
            && !(0..4).all(|digit| self.digit(space.len() + digit))
        {
            self.at += space.len();
            self.digits(digits);
        }
    }

    /// Skips the ellipsis after a decimal fraction that is not written to its end. Returns `true` if there was one.
    fn ellipsis(&mut self) -> bool {
        let marks = ["...", "…", "\\ldots", "\\dots", "\\cdots"];
        let Some(mark) = marks.into_iter().find(|mark| self.starts_with(mark)) else {
            return false;
        };
        self.at += mark.chars().count();
        true
    }

    /// Reads groups of exactly three digits, all after the same separator. Returns the separator that follows the first digits, even if no
    /// group follows it, and `None` if there is no separator or the first digits cannot begin groups. A comma followed by a blank separates
    /// answers instead. Points separate groups if there are several, because a number has one decimal point.
    fn groups(&mut self, digits: &mut String) -> Option<&'static str> {
        if digits.len() > 3 || digits.is_empty() || digits.starts_with('0') {
            return None;
        }
        let separator = self.separator()?;
        while self.starts_with(separator) && self.three_digits(separator.len()) {
            self.at += separator.len();
            self.digits(digits);
        }
        Some(separator)
    }

    /// Returns the separator of thousands that follows, if any.
    fn separator(&self) -> Option<&'static str> {
        let twice = self.starts_with(".")
            && self.three_digits(1)
            && self.peek(4) == Some('.')
            && self.three_digits(5);
        let mut separators = vec![" "];
        separators.extend(SPACES);
        separators.extend(self.thousands.then_some(","));
        separators.extend(twice.then_some("."));
        separators.into_iter().find(|separator| self.starts_with(separator))
    }

    /// Returns `true` if the characters of an ASCII text follow.
    fn starts_with(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(offset, character)| self.peek(offset) == Some(character))
    }

    /// Returns the digits that repeat without end, as in `0.1\overline{6}`, `0.1\bar6` and `0.\dot{1}4285\dot{7}`, and the number of
    /// characters that they take. `offset` is relative to the current position.
    fn period(&self, offset: usize) -> Option<(String, usize)> {
        let marked = |mark| self.marked_digits(offset, mark);
        if let Some(found) = marked("\\overline").or_else(|| marked("\\bar")) {
            return Some(found);
        }
        let (first, length) = marked("\\dot")?;
        let begin = offset + length;
        let within: String =
            (begin..).map_while(|at| self.peek(at).filter(char::is_ascii_digit)).collect();
        let last = self.marked_digits(begin + within.len(), "\\dot");
        Some(match last {
            Some((last, end)) => (first + &within + &last, length + within.len() + end),
            None => (first, length),
        })
    }

    /// Returns the digits under a mark, such as `\bar{12}` or `\bar1`, and the number of characters that they take with the mark.
    fn marked_digits(&self, offset: usize, mark: &str) -> Option<(String, usize)> {
        let rest = self.characters.get(self.at + offset..)?;
        let rest = rest.strip_prefix(&*mark.chars().collect::<Vec<_>>())?;
        let Some(braced) = rest.strip_prefix(&['{']) else {
            let digit = rest.first().filter(|character| character.is_ascii_digit())?;
            return Some((digit.to_string(), mark.len() + 1));
        };
        let digits: String = braced.iter().take_while(|c| c.is_ascii_digit()).collect();
        let closed = braced.get(digits.len()) == Some(&'}') && !digits.is_empty();
        let length = mark.len() + digits.len() + 2;
        closed.then_some((digits, length))
    }

    fn three_digits(&self, offset: usize) -> bool {
        (0..3).all(|digit| self.digit(offset + digit)) && !self.digit(offset + 3)
    }

    fn exponent(&mut self, digits: &mut String) {
        let marked = match self.peek(0) {
            Some('E') => true,
            Some('e') => self.plain,
            _ => false,
        };
        let signed = usize::from(matches!(self.peek(1), Some('+' | '-')));
        if !marked || !self.digit(1 + signed) || digits.contains('E') {
            return;
        }
        digits.push('E');
        self.at += 1;
        if signed == 1 {
            digits.extend(self.peek(0).filter(|sign| *sign == '-'));
            self.at += 1;
        }
        self.digits(digits);
    }

    fn letters(&mut self) -> String {
        let begin = self.at;
        while self.peek(0).is_some_and(|character| character.is_ascii_alphabetic()) {
            self.at += 1;
        }
        self.characters[begin..self.at].iter().collect()
    }

    /// Reads a run of letters: a known word, or a product of variables.
    fn word(&mut self) {
        let spaced = self.at > 0 && self.characters[self.at - 1].is_whitespace();
        let word = self.letters();
        let after_number = matches!(self.tokens.last(), Some(Token::Number(_)));
        let lower = word.to_ascii_lowercase();
        let token = match lower.as_str() {
            "and" | "or" => Token::Char(','),
            "percent" | "percentage" | "pct" => Token::Char('%'),
            "infinity" | "inf" | "infty" | "oo" => Token::Command("infty".to_owned()),
            _ if FUNCTIONS.contains(&word.as_str()) => Token::Command(word),
            _ if units::is_unit(&lower) && !self.tokens.is_empty() => Token::Unit,
            _ if spaced && after_number && units::is_letter_unit(&word) => Token::Unit,
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
            | "mathfrak" | "mathbb" | "boldsymbol" | "bm" | "rm" | "bf" | "emph" | "texttt"
            | "mathscr" => {
                self.text(&name);
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
            | "scriptstyle" => self.spacing(&name),
            _ => self.tokens.push(Token::Command(name)),
        }
    }

    fn spacing(&mut self, name: &str) {
        match name {
            "cfrac" => self.tokens.push(Token::Command("frac".to_owned())),
            "hspace" | "phantom" => drop(self.braced()),
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

    fn text(&mut self, command: &str) {
        let Some(content) = self.braced() else { return };
        let trimmed = content.trim().trim_matches(['$', '\\']).trim();
        let lower = trimmed.to_lowercase();
        let token = match lower.as_str() {
            "" => return,
            "and" | "or" | ",and" | ", and" | ", or" | ",or" | "," => Token::Char(','),
            "percent" | "percentage" | "pct" | "%" => Token::Char('%'),
            _ if FUNCTIONS.contains(&trimmed) || command == "operatorname" => {
                Token::Command(trimmed.to_owned())
            }
            _ if command == "mathbb" => Token::Command(format!("mathbb:{trimmed}")),
            _ if is_number(trimmed)
                || (command.starts_with("math") && trimmed.chars().all(|c| !c.is_alphabetic())) =>
            {
                return self.inline(trimmed);
            }
            _ if units::is_letter_unit(trimmed) && self.after_value() => Token::Unit,
            _ => match choices(trimmed) {
                Some(letters) => return self.inline(&letters),
                None => Token::Text(trimmed.to_owned()),
            },
        };
        self.tokens.push(token);
    }

    /// Returns `true` after a number or a closing bracket.
    fn after_value(&self) -> bool {
        matches!(self.tokens.last(), Some(Token::Number(_) | Token::Char('}' | ')')))
    }

    /// Tokenizes the contents of a text command as if they were outside of it.
    fn inline(&mut self, content: &str) {
        if let Some(inner) = tokens(content, self.thousands) {
            self.tokens.extend(inner);
        }
    }
}
