//! The syntax tree of an answer.

use num_traits::{One, Zero};

use super::number::{self, Rational};

/// An exact number. `decimal` is `true` if the number was written with a decimal point or an exponent, or was computed from such a number.
/// Two numbers are rounded before they are compared only if one of them is decimal.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Number {
    pub(super) value: Rational,
    pub(super) decimal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Constant {
    Pi,
    E,
    I,
    Infinity,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Abs,
    Floor,
    Ceil,
    Factorial,
    Binomial,
    Gcd,
    Lcm,
    Max,
    Min,
    Mod,
    Ln,
    /// A logarithm without a base, which a comparison tries as natural and as decimal.
    Log,
    Sin,
    Cos,
    Tan,
    Cot,
    Sec,
    Csc,
    Asin,
    Acos,
    Atan,
    Acot,
    Sinh,
    Cosh,
    Tanh,
    Det,
    Transpose,
    /// Any other function. Two of them are equal if their names and their arguments are equal.
    Named(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    Unequal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    /// Approximately equal, as in `\approx`; evaluated like `Equal`.
    Approximate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetOperation {
    Union,
    Intersection,
    Difference,
}

/// A word that joins conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conjunction {
    And,
    Or,
}

impl Conjunction {
    /// Returns the operation that corresponds to this word for the sets of solutions.
    pub(super) fn set_operation(self) -> SetOperation {
        match self {
            Self::And => SetOperation::Intersection,
            Self::Or => SetOperation::Union,
        }
    }
}

/// A chain of comparisons, `first op expr op expr ...`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Relation {
    pub(super) first: Expr,
    pub(super) rest: Vec<(Comparison, Expr)>,
}

impl Relation {
    /// Returns `true` if this is an equation or a chain of equations.
    pub(super) fn is_equation(&self) -> bool {
        self.rest.iter().all(|(comparison, _)| *comparison == Comparison::Equal)
    }

    /// Returns the last expression of the chain.
    pub(super) fn last_side(&self) -> &Expr {
        self.rest.last().map_or(&self.first, |(_, side)| side)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) low: Expr,
    pub(super) high: Expr,
    pub(super) low_closed: bool,
    pub(super) high_closed: bool,
}

/// An answer or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    Number(Number),
    /// A variable by its name, or text.
    Symbol(String),
    Constant(Constant),
    /// A factor with two values: 1, then -1 if `true` (`\pm`); -1, then 1 if `false` (`\mp`).
    Sign(bool),
    Sum(Vec<Expr>),
    Product(Vec<Expr>),
    Power(Box<Expr>, Box<Expr>),
    Apply(Function, Vec<Expr>),
    /// Numbers side by side, as in `1 2` and `5 ft 3 in`. They are no product.
    Adjacent(Vec<Expr>),
    /// A ratio of at least three values: the quotients of the others by the first, so that `3 : 4 : 5` equals `6 : 8 : 10`.
    Ratio(Vec<Expr>),
    /// Digits as written, and their base, which was a subscript.
    Based(String, u32),
    /// A matrix, by rows.
    Matrix(Vec<Vec<Expr>>),
    /// Elements in parentheses, ordered.
    Tuple(Vec<Expr>),
    /// Elements separated by commas without brackets: several answers, in any order.
    List(Vec<Expr>),
    /// Elements in braces.
    Set(Vec<Expr>),
    /// The set of all values for which a relation, or each relation of a list, holds.
    Solutions(Box<Expr>),
    /// The set of the values that the first expression has where the second, a condition, holds, as in `{2k + 1 | k > 3}`.
    Image(Box<Expr>, Box<Expr>),
    Interval(Box<Interval>),
    /// A union, intersection or difference of sets, from left to right.
    Join(SetOperation, Vec<Expr>),
    /// A set of numbers by its letter, such as N, Z, Q, R or C.
    Domain(char),
    Relation(Box<Relation>),
    /// At least two inequalities about the same variable, joined by `and` or `or`.
    Conditions(Conjunction, Vec<Expr>),
}

impl Expr {
    pub(super) fn integer(value: i64) -> Self {
        Self::rational(number::integer(value))
    }

    pub(super) fn rational(value: Rational) -> Self {
        Self::Number(Number { value, decimal: false })
    }

    /// Returns the sum of `terms`. Nested sums are flattened, numbers are added up, and a single remaining term is returned alone.
    pub(super) fn sum(terms: Vec<Expr>) -> Self {
        let mut flat = Vec::with_capacity(terms.len());
        for term in terms {
            match term {
                Self::Sum(inner) => flat.extend(inner),
                other => flat.push(other),
            }
        }
        fold(flat, Rational::zero(), number::add, Self::Sum)
    }

    /// Returns the product of `factors`. Nested products are flattened, numbers are multiplied, and a single remaining factor is returned
    /// alone.
    pub(super) fn product(factors: Vec<Expr>) -> Self {
        let mut flat = Vec::with_capacity(factors.len());
        for factor in factors {
            match factor {
                Self::Product(inner) => flat.extend(inner),
                other => flat.push(other),
            }
        }
        fold(flat, Rational::one(), number::multiply, Self::Product)
    }

    pub(super) fn negate(self) -> Self {
        Self::product(vec![Self::integer(-1), self])
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self::sum(vec![self, other.negate()])
    }

    pub(super) fn over(self, other: Self) -> Self {
        Self::product(vec![self, other.power(Self::integer(-1))])
    }

    /// Returns a power. The power of two numbers is a number if it can be computed exactly.
    pub(super) fn power(self, exponent: Self) -> Self {
        if let (Self::Number(base), Self::Number(exponent)) = (&self, &exponent)
            && let Some(value) = number::power(&base.value, &exponent.value)
        {
            return Self::Number(Number { value, decimal: base.decimal || exponent.decimal });
        }
        Self::Power(Box::new(self), Box::new(exponent))
    }

    pub(super) fn root(self, degree: Self) -> Self {
        self.power(Self::integer(1).over(degree))
    }

    pub(super) fn apply(function: Function, arguments: Vec<Expr>) -> Self {
        Self::Apply(function, arguments)
    }

    /// Returns the name and the arguments of an expression that is compared only by these: the value of a [named](Function::Named)
    /// function, numbers side by side, or a ratio of several values. Returns `None` for any other expression.
    pub(super) fn unknown_function(&self) -> Option<(&str, &[Expr])> {
        match self {
            Self::Apply(Function::Named(name), arguments) => Some((name, arguments)),
            Self::Adjacent(numbers) => Some(("side by side", numbers)),
            Self::Ratio(quotients) => Some(("ratio", quotients)),
            _ => None,
        }
    }

    pub(super) fn number(&self) -> Option<&Number> {
        match self {
            Self::Number(number) => Some(number),
            _ => None,
        }
    }

    /// Returns the children in order of appearance.
    pub(super) fn children(&self) -> Vec<&Expr> {
        match self {
            Self::Number(_)
            | Self::Symbol(_)
            | Self::Constant(_)
            | Self::Sign(_)
            | Self::Based(..)
            | Self::Domain(_) => Vec::new(),
            Self::Sum(parts)
            | Self::Product(parts)
            | Self::Apply(_, parts)
            | Self::Adjacent(parts)
            | Self::Ratio(parts)
            | Self::Tuple(parts)
            | Self::List(parts)
            | Self::Set(parts)
            | Self::Join(_, parts)
            | Self::Conditions(_, parts) => parts.iter().collect(),
            Self::Power(first, second) | Self::Image(first, second) => vec![first, second],
            Self::Matrix(rows) => rows.iter().flatten().collect(),
            Self::Solutions(condition) => vec![condition],
            Self::Interval(interval) => vec![&interval.low, &interval.high],
            Self::Relation(relation) => {
                let rest = relation.rest.iter().map(|(_, side)| side);
                std::iter::once(&relation.first).chain(rest).collect()
            }
        }
    }

    /// Returns the tree with `change` applied to each child. Sums, products and powers are simplified again.
    pub(super) fn map(&self, change: &mut impl FnMut(&Expr) -> Expr) -> Self {
        let mut all = |parts: &[Expr]| parts.iter().map(&mut *change).collect::<Vec<_>>();
        match self {
            Self::Sum(parts) => Self::sum(all(parts)),
            Self::Product(parts) => Self::product(all(parts)),
            Self::Apply(function, parts) => Self::Apply(function.clone(), all(parts)),
            Self::Adjacent(parts) => Self::Adjacent(all(parts)),
            Self::Ratio(parts) => Self::Ratio(all(parts)),
            Self::Tuple(parts) => Self::Tuple(all(parts)),
            Self::List(parts) => Self::List(all(parts)),
            Self::Set(parts) => Self::Set(all(parts)),
            Self::Join(operation, parts) => Self::Join(*operation, all(parts)),
            Self::Conditions(word, parts) => Self::Conditions(*word, all(parts)),
            Self::Matrix(rows) => Self::Matrix(rows.iter().map(|row| all(row)).collect()),
            Self::Power(base, exponent) => change(base).power(change(exponent)),
            Self::Solutions(condition) => Self::Solutions(Box::new(change(condition))),
            Self::Image(value, condition) => {
                Self::Image(Box::new(change(value)), Box::new(change(condition)))
            }
            Self::Interval(interval) => Self::Interval(Box::new(Interval {
                low: change(&interval.low),
                high: change(&interval.high),
                ..**interval
            })),
            Self::Relation(relation) => Self::Relation(Box::new(Relation {
                first: change(&relation.first),
                rest: relation.rest.iter().map(|(op, side)| (*op, change(side))).collect(),
            })),
            leaf => leaf.clone(),
        }
    }

    /// Returns `true` if `wanted` holds for this node or a descendant.
    pub(super) fn any(&self, wanted: &impl Fn(&Expr) -> bool) -> bool {
        wanted(self) || self.children().into_iter().any(|part| part.any(wanted))
    }

    /// Returns the number of nodes of the tree.
    pub(super) fn size(&self) -> usize {
        1 + self.children().into_iter().map(Self::size).sum::<usize>()
    }

    /// Returns the names of the variables without repetition, in order of appearance.
    pub(super) fn symbols(&self) -> Vec<&str> {
        fn visit<'a>(expr: &'a Expr, found: &mut Vec<&'a str>) {
            if let Expr::Symbol(name) = expr
                && !found.contains(&name.as_str())
            {
                found.push(name);
            }
            expr.children().into_iter().for_each(|part| visit(part, found));
        }
        let mut found = Vec::new();
        visit(self, &mut found);
        found
    }
}

/// Combines the numbers among the parts into one number, which comes first and is left out if it is neutral. A number that would exceed the
/// limit on size stays a separate part. A single remaining part is returned alone.
fn fold(
    parts: Vec<Expr>,
    neutral: Rational,
    join: fn(&Rational, &Rational) -> Option<Rational>,
    make: fn(Vec<Expr>) -> Expr,
) -> Expr {
    let mut number = Number { value: neutral.clone(), decimal: false };
    let mut rest = Vec::with_capacity(parts.len());
    for part in parts {
        let joined = part.number().and_then(|factor| {
            let value = join(&number.value, &factor.value)?;
            Some(Number { value, decimal: number.decimal || factor.decimal })
        });
        match joined {
            Some(joined) => number = joined,
            None => rest.push(part),
        }
    }
    if rest.is_empty() {
        return Expr::Number(number);
    }
    if number.value != neutral {
        rest.insert(0, Expr::Number(number));
    }
    match rest.pop() {
        Some(only) if rest.is_empty() => only,
        Some(last) => {
            rest.push(last);
            make(rest)
        }
        None => Expr::rational(neutral),
    }
}
