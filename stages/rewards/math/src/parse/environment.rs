//! Environments between `\begin` and `\end`: matrices, cases and aligned equations.

use super::super::expr::Expr;
use super::super::token::{AND, OR, Token};
use super::{Parser, group};

/// The maximum number of rows of an environment, and of columns of a matrix.
const MAX_SIDE: usize = 32;

impl Parser {
    pub(super) fn environment(&mut self, name: &str) -> Option<Expr> {
        self.bracketed(0, |parser| parser.environment_of(name))
    }

    fn environment_of(&mut self, name: &str) -> Option<Expr> {
        if name == "array" && self.accept('{') {
            while !self.accept('}') {
                self.take()?;
            }
        }
        // The alignment of a starred matrix, as in `\begin{pmatrix*}[r]`.
        if let Some([Token::Char('['), Token::Char('l' | 'c' | 'r'), Token::Char(']')]) =
            self.tokens.get(self.at..self.at + 3)
            && name.ends_with('*')
        {
            self.at += 3;
        }
        match name.trim_end_matches('*') {
            "cases" | "aligned" | "align" | "gathered" | "split" => {
                self.rows(name).map(|rows| Expr::List(rows.into_iter().flatten().collect()))
            }
            "vmatrix" => self.rows(name).and_then(rectangular).map(group::determinant),
            "matrix" | "pmatrix" | "bmatrix" | "array" | "smallmatrix" | "Bmatrix" => {
                self.rows(name).and_then(rectangular).map(Expr::Matrix)
            }
            _ => None,
        }
    }

    /// Skips the star and the length that may follow `\\`, as in `\\*` and `\\[4pt]`.
    fn row_spacing(&mut self) {
        self.accept('*');
        let rest = self.tokens.get(self.at..).unwrap_or_default();
        let Some((Token::Char('['), length)) = rest.split_first() else { return };
        let sign = usize::from(length.first() == Some(&Token::Char('-')));
        let end = match length.get(sign..).unwrap_or_default() {
            [Token::Number(_), Token::Unit, Token::Char(']'), ..] => 3,
            [Token::Number(_), Token::Char(a), Token::Char(b), Token::Char(']'), ..]
                if ["pt", "em", "ex", "in", "bp", "pc", "mu"]
                    .contains(&[*a, *b].iter().collect::<String>().as_str()) =>
            {
                4
            }
            _ => return,
        };
        self.at += 1 + sign + end;
    }

    fn rows(&mut self, name: &str) -> Option<Vec<Vec<Expr>>> {
        let end = format!("end:{name}");
        let mut rows = vec![Vec::new()];
        loop {
            if self.accept_command(&end) {
                rows.retain(|row: &Vec<Expr>| !row.is_empty());
                return (rows.len() <= MAX_SIDE).then_some(rows);
            }
            if self.accept_command("\\") || self.accept_command("cr") {
                self.row_spacing();
                rows.push(Vec::new());
            } else if self.accept_command("hline") {
                rows.push(Vec::new());
            } else if self.accept('&')
                || self.accept(',')
                || self.accept(';')
                || self.accept('.')
                || self.accept(AND)
                || self.accept(OR)
            {
                // The next cell follows.
            } else if matches!(self.peek(), Some(Token::Text(_)))
                && rows.last().is_some_and(|r| !r.is_empty())
            {
                self.at += 1;
            } else {
                let cell = self.relation()?;
                rows.last_mut()?.push(cell);
            }
        }
    }
}

fn rectangular(rows: Vec<Vec<Expr>>) -> Option<Vec<Vec<Expr>>> {
    let width = rows.first()?.len();
    (width <= MAX_SIDE && rows.iter().all(|row| row.len() == width)).then_some(rows)
}
