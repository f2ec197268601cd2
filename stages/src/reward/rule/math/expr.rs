//! What an answer says, as a tree.

use num_traits::{One, Zero};

use super::number::{self, Rational};

/// An exact number, and whether it was written with a decimal point: only then is it compared after rounding.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Number {
    pub(super) value: Rational,
    pub(super) decimal: bool,
}

/// Numbers that have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Constant {
    Pi,
    E,
    I,
    Infinity,
}

/// What is applied to arguments.
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
    /// A logarithm whose base is not written: natural or decimal, as the other side needs.
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
    /// Anything else: equal where name and arguments are.
    Named(String),
}

/// How two sides compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    Unequal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    /// Equal after rounding.
    Approximate,
}

/// How sets are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetOperation {
    Union,
    Intersection,
    Difference,
}

/// `first op expr op expr ...`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Relation {
    pub(super) first: Expr,
    pub(super) rest: Vec<(Comparison, Expr)>,
}

impl Relation {
    /// Whether this is an equation or a chain of equations.
    pub(super) fn is_equation(&self) -> bool {
        self.rest.iter().all(|(comparison, _)| *comparison == Comparison::Equal)
    }

    /// The last side.
    pub(super) fn last_side(&self) -> &Expr {
        self.rest.last().map_or(&self.first, |(_, side)| side)
    }
}

/// A real interval.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) low: Expr,
    pub(super) high: Expr,
    pub(super) low_closed: bool,
    pub(super) high_closed: bool,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    Number(Number),
    /// A variable, or words.
    Symbol(String),
    Constant(Constant),
    /// A factor that is first 1, then -1 (`\pm`), or the other way round (`\mp`).
    Sign(bool),
    Sum(Vec<Expr>),
    Product(Vec<Expr>),
    Power(Box<Expr>, Box<Expr>),
    Apply(Function, Vec<Expr>),
    /// Digits with the base as a subscript.
    Based(String, u32),
    /// Rows.
    Matrix(Vec<Vec<Expr>>),
    /// In parentheses: ordered.
    Tuple(Vec<Expr>),
    /// Bare, with commas: the answers, in any order.
    List(Vec<Expr>),
    /// In braces.
    Set(Vec<Expr>),
    /// All values for which a relation holds.
    Solutions(Box<Expr>),
    Interval(Box<Interval>),
    Join(SetOperation, Vec<Expr>),
    /// A set of numbers by its letter: N, Z, Q, R, C.
    Domain(char),
    Relation(Box<Relation>),
}

impl Expr {
    pub(super) fn integer(value: i64) -> Self {
        Self::rational(number::integer(value))
    }

    pub(super) fn rational(value: Rational) -> Self {
        Self::Number(Number { value, decimal: false })
    }

    /// A sum, its numbers added up.
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

    /// A product, its numbers multiplied.
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

    /// A power; of numbers a number where that is exact.
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

    /// The number that this is, if it is one.
    pub(super) fn number(&self) -> Option<&Number> {
        match self {
            Self::Number(number) => Some(number),
            _ => None,
        }
    }

    /// The parts of this, in order of appearance.
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
            | Self::Tuple(parts)
            | Self::List(parts)
            | Self::Set(parts)
            | Self::Join(_, parts) => parts.iter().collect(),
            Self::Power(base, exponent) => vec![base, exponent],
            Self::Matrix(rows) => rows.iter().flatten().collect(),
            Self::Solutions(condition) => vec![condition],
            Self::Interval(interval) => vec![&interval.low, &interval.high],
            Self::Relation(relation) => {
                let rest = relation.rest.iter().map(|(_, side)| side);
                std::iter::once(&relation.first).chain(rest).collect()
            }
        }
    }

    /// The same tree with its parts changed.
    pub(super) fn map(&self, change: &mut impl FnMut(&Expr) -> Expr) -> Self {
        let mut all = |parts: &[Expr]| parts.iter().map(&mut *change).collect::<Vec<_>>();
        match self {
            Self::Sum(parts) => Self::sum(all(parts)),
            Self::Product(parts) => Self::product(all(parts)),
            Self::Apply(function, parts) => Self::Apply(function.clone(), all(parts)),
            Self::Tuple(parts) => Self::Tuple(all(parts)),
            Self::List(parts) => Self::List(all(parts)),
            Self::Set(parts) => Self::Set(all(parts)),
            Self::Join(operation, parts) => Self::Join(*operation, all(parts)),
            Self::Matrix(rows) => Self::Matrix(rows.iter().map(|row| all(row)).collect()),
            Self::Power(base, exponent) => change(base).power(change(exponent)),
            Self::Solutions(condition) => Self::Solutions(Box::new(change(condition))),
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

    /// Whether this or one of its parts is what is looked for.
    pub(super) fn any(&self, wanted: &impl Fn(&Expr) -> bool) -> bool {
        wanted(self) || self.children().into_iter().any(|part| part.any(wanted))
    }

    /// How many nodes the tree has.
    pub(super) fn size(&self) -> usize {
        1 + self.children().into_iter().map(Self::size).sum::<usize>()
    }

    /// The names of the variables, each once, in order of appearance.
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

/// Joins the numbers among the parts into one, which comes first and is left out where it changes nothing.
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
