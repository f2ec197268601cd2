//! The origin of an error, which decides who can fix its cause and whether a retry can help.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::kind::FaultKind;
use crate::BoxError;

/// The origin of an error: the user's input, the environment or the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The user's input: a setting, the data, the model, or a stage that cannot do what the settings ask for. The same input fails again.
    User,
    /// The surroundings of the process: files and disks, memory, the network, servers, other processes. A retry can help.
    Environment,
    /// This program, or a stage that violates its contract. Errors of libraries whose cause is unknown, such as errors of libtorch, count
    /// as errors of the program.
    Program,
}

impl Origin {
    /// All origins, in the order of declaration.
    pub const ALL: [Self; 3] = [Self::User, Self::Environment, Self::Program];

    /// Returns the name of the origin: `user`, `environment` or `program`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Environment => "environment",
            Self::Program => "program",
        }
    }

    /// Returns `true` for [`Environment`](Self::Environment): another attempt with the same input can succeed.
    #[must_use]
    pub fn retry_can_help(self) -> bool {
        self == Self::Environment
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error for a text that is not the name of an origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `user`, `environment` or `program`, found `{0}`")]
pub struct UnknownOrigin(String);

impl FromStr for Origin {
    type Err = UnknownOrigin;

    fn from_str(text: &str) -> Result<Self, UnknownOrigin> {
        let named = Self::ALL.into_iter().find(|origin| origin.as_str() == text);
        named.ok_or_else(|| UnknownOrigin(text.to_owned()))
    }
}

/// An error with a known origin.
///
/// # Example
/// ```
/// use rollpacker_dataflow::fault::{Fault, HasOrigin, Origin};
///
/// #[derive(Debug, thiserror::Error)]
/// enum JudgeError {
///     #[error("the judge is busy")]
///     Busy,
///     #[error("option `judge`: expected a URL, found `{0}`")]
///     Url(String),
/// }
///
/// impl HasOrigin for JudgeError {
///     fn origin(&self) -> Origin {
///         match self {
///             Self::Busy => Origin::Environment,
///             Self::Url(_) => Origin::User,
///         }
///     }
/// }
///
/// let fault = Fault::of("judge", &JudgeError::Busy);
/// assert!(fault.origin.retry_can_help());
/// assert_eq!(Fault::of("judge", &JudgeError::Url("x".into())).origin, Origin::User);
/// ```
pub trait HasOrigin: fmt::Display {
    /// Returns the origin of the error.
    fn origin(&self) -> Origin;

    /// Returns the kind of the [`Fault`](super::Fault) that the error becomes. Default: [`FaultKind::Failure`].
    fn kind(&self) -> FaultKind {
        FaultKind::Failure
    }
}

/// An error with its origin and kind. Convert an error to this type before it becomes a [`BoxError`], which otherwise loses both.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct WithOrigin {
    origin: Origin,
    kind: FaultKind,
    error: BoxError,
}

impl<E: HasOrigin + std::error::Error + Send + Sync + 'static> From<E> for WithOrigin {
    fn from(error: E) -> Self {
        Self { origin: error.origin(), kind: error.kind(), error: error.into() }
    }
}

/// Returns the origin of a [`WithOrigin`]. Any other error has the origin [`Origin::User`], because only functions of users return errors
/// of any type.
impl HasOrigin for BoxError {
    fn origin(&self) -> Origin {
        self.downcast_ref::<WithOrigin>().map_or(Origin::User, |error| error.origin)
    }

    fn kind(&self) -> FaultKind {
        self.downcast_ref::<WithOrigin>().map_or(FaultKind::Failure, |error| error.kind)
    }
}

impl HasOrigin for Infallible {
    fn origin(&self) -> Origin {
        match *self {}
    }
}
