//! Matrix arithmetic.

use super::expr::{Expr, Function};
use super::number;

/// The maximum number of nodes of a computed matrix.
const MAX_SIZE: usize = 5000;

type Rows = Vec<Vec<Expr>>;

/// Returns the matrix that an expression evaluates to. Sums, products, transposes and powers with an exponent from 1 to 16 are computed.
/// Returns `None` for any other expression that is not a matrix, and for matrices of sizes that do not fit together. Also returns `None` if
/// a matrix has, or a product may have, more than [`MAX_SIZE`] nodes.
pub(super) fn matrix(expr: &Expr) -> Option<Rows> {
    let rows = match expr {
        Expr::Matrix(rows) => rows.clone(),
        Expr::Sum(terms) => fold(terms, add)?,
        Expr::Product(factors) => product(factors)?,
        Expr::Power(base, exponent) => power(matrix(base)?, exponent)?,
        Expr::Apply(Function::Transpose, arguments) => transpose(&matrix(arguments.first()?)?),
        _ => return None,
    };
    (rows.iter().flatten().map(Expr::size).sum::<usize>() <= MAX_SIZE).then_some(rows)
}

/// Returns the determinant of a square matrix of 1 to 5 rows, by expansion along its first row. `None` for any other matrix.
pub(super) fn determinant(rows: &[Vec<Expr>]) -> Option<Expr> {
    let side = rows.len();
    if side > 5 || rows.iter().any(|row| row.len() != side) {
        return None;
    }
    let (first, below) = rows.split_first()?;
    if below.is_empty() {
        return first.first().cloned();
    }
    let mut terms = Vec::with_capacity(side);
    for (column, entry) in first.iter().enumerate() {
        let minor: Rows = below.iter().map(|row| without(row, column)).collect();
        let term = Expr::product(vec![entry.clone(), determinant(&minor)?]);
        terms.push(if column % 2 == 0 { term } else { term.negate() });
    }
    Some(Expr::sum(terms))
}

fn without(row: &[Expr], column: usize) -> Vec<Expr> {
    row.iter().enumerate().filter(|(at, _)| *at != column).map(|(_, entry)| entry.clone()).collect()
}

fn fold(parts: &[Expr], join: fn(&Rows, &Rows) -> Option<Rows>) -> Option<Rows> {
    let (first, rest) = parts.split_first()?;
    rest.iter().try_fold(matrix(first)?, |sum, part| join(&sum, &matrix(part)?))
}

fn add(left: &Rows, right: &Rows) -> Option<Rows> {
    let same = left.len() == right.len() && left.first()?.len() == right.first()?.len();
    let row = |(left, right): (&Vec<Expr>, &Vec<Expr>)| {
        left.iter().zip(right).map(|(a, b)| Expr::sum(vec![a.clone(), b.clone()])).collect()
    };
    same.then(|| left.iter().zip(right).map(row).collect())
}

/// Multiplies matrices and scalars. Returns `None` if there is no matrix among the factors, or if the sizes of two matrices do not fit
/// together or their product may exceed [`MAX_SIZE`].
fn product(factors: &[Expr]) -> Option<Rows> {
    let mut scalars = Vec::new();
    let mut result: Option<Rows> = None;
    for factor in factors {
        match (matrix(factor), result.take()) {
            (Some(next), None) => result = Some(next),
            (Some(next), Some(before)) => result = Some(multiply(&before, &next)?),
            (None, before) => {
                scalars.push(factor.clone());
                result = before;
            }
        }
    }
    let scale = |entry: Expr| {
        if scalars.is_empty() {
            return entry;
        }
        Expr::product(scalars.iter().cloned().chain([entry]).collect())
    };
    Some(result?.into_iter().map(|row| row.into_iter().map(scale).collect()).collect())
}

fn multiply(left: &Rows, right: &Rows) -> Option<Rows> {
    let width = right.first()?.len();
    let size: usize = left.iter().chain(right).flatten().map(Expr::size).sum();
    if left.first()?.len() != right.len() || size * left.len().max(width) > MAX_SIZE {
        return None;
    }
    let entry = |row: &Vec<Expr>, column: usize| {
        let terms = row.iter().zip(right);
        Expr::sum(terms.map(|(a, b)| Expr::product(vec![a.clone(), b[column].clone()])).collect())
    };
    Some(left.iter().map(|row| (0..width).map(|column| entry(row, column)).collect()).collect())
}

fn power(base: Rows, exponent: &Expr) -> Option<Rows> {
    let exponent = number::whole(&exponent.number()?.value, 16).filter(|exponent| *exponent > 0)?;
    let mut result = base.clone();
    for _ in 1..exponent {
        result = multiply(&result, &base)?;
    }
    Some(result)
}

fn transpose(rows: &Rows) -> Rows {
    let width = rows.first().map_or(0, Vec::len);
    (0..width).map(|column| rows.iter().map(|row| row[column].clone()).collect()).collect()
}
