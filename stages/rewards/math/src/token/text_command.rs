//! Commands whose argument is text or in another font, such as `\text{cm}`, `\mathbf{x}` and `\mathbb Z`.

use super::super::names::FUNCTIONS;
use super::super::units;
use super::{AND, Lexer, OR, Token, choices};

/// The maximum number of nested text commands whose contents are read as formulas.
const MAX_TEXT_DEPTH: usize = 4;

impl Lexer {
    /// Reads the argument of a text command, such as `\text{...}` and `\mathbb Z`.
    pub(super) fn text(&mut self, command: &str) {
        let spaced = self.follows_space(self.at - command.len() - 1);
        let bare = || command.starts_with("math") || ["Bbb", "boldsymbol", "bm"].contains(&command);
        let content = match self.braced() {
            Some(content) => content,
            None if bare() => match self.letter() {
                Some(letter) => letter.to_string(),
                None => return,
            },
            None => return,
        };
        let trimmed = content.trim().trim_matches(['$', '\\']).trim();
        let formula = content.trim().trim_matches('$').trim().trim_end_matches('\\');
        let lower = trimmed.to_lowercase();
        let token = match lower.as_str() {
            "" => return,
            "and" | ",and" | ", and" => Token::Char(AND),
            "or" | ", or" | ",or" => Token::Char(OR),
            "," => Token::Char(','),
            "percent" | "percentage" | "pct" | "%" => Token::Char('%'),
            _ if self.ends_with_unit(&lower) => Token::Unit,
            _ if FUNCTIONS.contains(&trimmed) || command == "operatorname" => {
                Token::Command(trimmed.to_owned())
            }
            "a" | "ω" | "¢"
                if self.ends_with_symbol_unit(
                    command,
                    trimmed,
                    spaced || content.starts_with([' ', '~', '\\']),
                ) =>
            {
                Token::Unit
            }
            _ if ["mathbb", "Bbb"].contains(&command) => {
                Token::Command(format!("mathbb:{trimmed}"))
            }
            _ if is_number(trimmed)
                || (command.starts_with("math") && trimmed.chars().all(|c| !c.is_alphabetic())) =>
            {
                return self.inline(trimmed);
            }
            // After a value, such text is a unit or a remark, as in `5\text{ (m^3)}`.
            _ if is_formula(command, formula)
                && self.depth < MAX_TEXT_DEPTH
                && (is_bold(command) || !self.after_operand()) =>
            {
                self.tokens.push(Token::Char('{'));
                self.inline(formula);
                return self.tokens.push(Token::Char('}'));
            }
            _ if units::is_letter_unit(trimmed) && self.after_value() => Token::Unit,
            _ if self.continues_unit(trimmed) => Token::Unit,
            _ => match choices(trimmed) {
                Some(letters) => return self.inline(&letters),
                None => Token::Text(trimmed.to_owned()),
            },
        };
        self.tokens.push(token);
    }

    /// Reads the letter that follows, after blanks.
    fn letter(&mut self) -> Option<char> {
        let rest = &self.characters[self.at..];
        let blanks = rest.iter().take_while(|c| c.is_whitespace()).count();
        let letter = rest.get(blanks).copied().filter(|c| c.is_alphabetic())?;
        self.at += blanks + 1;
        Some(letter)
    }

    /// Returns `true` after a value, a variable, a text or a unit.
    fn after_operand(&self) -> bool {
        self.after_value()
            || match self.tokens.last() {
                Some(Token::Text(_) | Token::Unit) => true,
                Some(Token::Char(before)) => before.is_alphabetic() || "]!°%'".contains(*before),
                Some(Token::Command(name)) => ["pi", "infty", "}"].contains(&name.as_str()),
                _ => false,
            }
    }

    /// Returns `true` if a space that LaTeX prints, such as `~`, `\ ` and `\,`, directly precedes a position.
    fn follows_space(&self, at: usize) -> bool {
        let before = &self.characters[..at];
        let blanks = before.iter().rev().take_while(|c| c.is_whitespace()).count();
        match &before[..at - blanks] {
            [.., '~'] => true,
            [.., '\\', space] => ",;:".contains(*space),
            [.., '\\'] => blanks > 0,
            _ => false,
        }
    }

    /// Returns `true` if the symbol in a text command is a unit: ampere, ohm or cent after a number. An `A` is one only after a space and at
    /// the end, because it may also be a variable or a digit.
    fn ends_with_symbol_unit(&self, command: &str, symbol: &str, spaced: bool) -> bool {
        ["text", "textrm", "mathrm", "mbox"].contains(&command)
            && matches!(self.tokens.last(), Some(Token::Number(_)))
            && (["Ω", "¢"].contains(&symbol) || (symbol == "A" && spaced && self.is_at_end()))
    }
}

/// Returns `true` for a text of digits, signs, points, commas and spaces with at least one digit, such as `-1,234.5`.
fn is_number(text: &str) -> bool {
    text.chars().any(|c| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || "+-., ".contains(c))
}

/// Returns `true` if the contents of a text command are a formula, such as `1/2`, `2x+1` and `\frac12`, rather than words or units. A
/// formula has no words and, except in a command for bold mathematics, begins with a digit, a sign or a bracket.
fn is_formula(command: &str, content: &str) -> bool {
    let is_text = command.starts_with("text") || command == "mbox";
    let begins = content.starts_with(|c: char| c.is_ascii_digit() || "([{\\-.".contains(c));
    let has_value = content.contains(|c: char| c.is_ascii_digit() || c == '\\');
    let mut words = content.split(|c: char| !(c.is_alphabetic() || c == '\\'));
    let has_words = words.any(|word| word.chars().count() > 1 && !word.starts_with('\\'));
    (is_bold(command) || (is_text && begins))
        && has_value
        && !has_words
        && !units::are_units(content)
}

/// Returns `true` for the commands for bold mathematics.
fn is_bold(command: &str) -> bool {
    ["mathbf", "boldsymbol", "bm"].contains(&command)
}
