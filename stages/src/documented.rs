//! The documentation of struct fields at run time, for lists of the keys that a recipe may have.

/// A struct whose fields are keys of a recipe. [`documented!`](crate::documented!) implements it.
pub trait Documented {
    /// The fields in the order of their declaration.
    const FIELDS: &'static [Field];
}

/// A field and its documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name as Rust writes it; see [`key`](Self::key).
    pub name: &'static str,
    /// The unit of the values; empty if they have none.
    pub unit: &'static str,
    /// The lines of the documentation, and an empty line for every other attribute.
    pub lines: &'static [&'static str],
}

impl Field {
    /// Returns a field without a unit.
    #[must_use]
    pub const fn new(name: &'static str, lines: &'static [&'static str]) -> Self {
        Self { name, unit: "", lines }
    }

    /// Sets the unit of the values.
    #[must_use]
    pub const fn in_unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    /// Returns the name as a recipe writes it, without the prefix `r#` of a raw identifier.
    #[must_use]
    pub fn key(&self) -> &'static str {
        self.name.strip_prefix("r#").unwrap_or(self.name)
    }

    /// Returns the documentation as one line.
    #[must_use]
    pub fn text(&self) -> String {
        self.lines.iter().flat_map(|line| line.split_whitespace()).collect::<Vec<_>>().join(" ")
    }
}

/// Returns the names of `N` fields.
///
/// # Panics
/// Panics if the number of fields differs from `N`.
#[must_use]
pub const fn names<const N: usize>(fields: &[Field]) -> [&'static str; N] {
    assert!(fields.len() == N, "there must be a name for each field");
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = fields[at].name;
        at += 1;
    }
    names
}

/// Declares a struct and implements [`Documented`](crate::documented::Documented) for it. A unit may follow the type of a field, in
/// brackets.
///
/// ```
/// use rollpacker_stages::documented;
/// use rollpacker_stages::documented::Documented;
///
/// documented! {
///     /// The settings of a timer.
///     #[derive(Debug)]
///     pub struct Timer {
///         /// The time until
///         /// it rings.
///         pub wait: u64 [seconds],
///         /// `true` to repeat.
///         pub repeat: bool,
///     }
/// }
///
/// let [wait, repeat] = Timer::FIELDS else { panic!("two fields") };
/// assert_eq!((wait.key(), wait.unit), ("wait", "seconds"));
/// assert_eq!(wait.text(), "The time until it rings.");
/// assert_eq!(repeat.unit, "");
/// ```
#[macro_export]
macro_rules! documented {
    (@line doc = $text:literal) => { $text };
    (@line $($other:tt)*) => { "" };
    (@unit) => { "" };
    (@unit $($unit:tt)+) => { stringify!($($unit)+) };
    ($(#[$meta:meta])* $shown:vis struct $name:ident {
        $($(#[$($attribute:tt)*])* $visible:vis $field:ident: $type:ty $([$($unit:tt)+])?,)*
    }) => {
        $(#[$meta])*
        $shown struct $name { $($(#[$($attribute)*])* $visible $field: $type,)* }

        impl $crate::documented::Documented for $name {
            const FIELDS: &'static [$crate::documented::Field] = &[$($crate::documented::Field {
                name: stringify!($field),
                unit: $crate::documented!(@unit $($($unit)+)?),
                lines: &[$($crate::documented!(@line $($attribute)*),)*],
            },)*];
        }
    };
}
