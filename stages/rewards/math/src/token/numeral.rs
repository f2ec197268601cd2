//! Unsigned numbers as written: digits in groups, decimal fractions, repeating digits and exponents.

use super::super::number::{self, Rational};
use super::{Lexer, Token};

/// Spaces that separate groups of three digits in LaTeX.
const SPACES: [&str; 5] = ["\\,", "\\;", "\\:", "\\ ", "~"];

/// Returns the value of a number token. Returns `None` if the value exceeds the limits of exact numbers.
pub(in super::super) fn value(digits: &str) -> Option<Rational> {
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

/// Returns the digits that repeat at the end of a decimal fraction, such as `18` in `2.1818`: the shortest sequence that occurs twice in a
/// row.
fn repetition(digits: &str) -> Option<&str> {
    let (_, fraction) = digits.split_once('.')?;
    let ends = (1..=fraction.len() / 2).map(|length| fraction.split_at(fraction.len() - length));
    ends.into_iter().find(|(before, period)| before.ends_with(period)).map(|(_, period)| period)
}

impl Lexer {
    fn digits(&mut self, into: &mut String) {
        while let Some(character) = self.peek(0).filter(char::is_ascii_digit) {
            into.push(character);
            self.at += 1;
        }
    }

    pub(super) fn number(&mut self) {
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
        separators.extend(self.grouping.binary_search(&self.at).is_ok().then_some(","));
        separators.extend(twice.then_some("."));
        separators.into_iter().find(|separator| self.starts_with(separator))
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
}
