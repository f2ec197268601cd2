//! The built-in rewards, and the registry that makes rewards by the names that recipes use.
//!
//! The traits and value types are in [`rollpacker_stages::reward`]. A reward can be a rule, a server (`HttpReward`), a program
//! ([`ProcessReward`]), a function of a Python file ([`PythonReward`]), tests that code must pass (`Code`) or a language model ([`judge`]).
//! [`Guard`] adds limits, retries and a cache to any of them.
//!
//! The features `http` and `code` are on by default. `http` has the rewards that servers compute and brings an HTTP client with TLS; `code`
//! has the reward `code` and its sandbox. Without a feature, its rewards keep their names, but making one is an error that names the
//! feature.
//!
//! Architecture invariant: no libtorch and no timely streams in this crate.

mod answer;
#[cfg(feature = "code")]
mod code;
#[cfg(feature = "http")]
mod endpoint;
mod field;
mod guard;
#[cfg(feature = "http")]
mod http;
pub mod judge;
#[cfg(not(all(feature = "code", feature = "http")))]
mod missing_feature;
mod process;
mod python;
mod registry;
mod rule;
#[cfg(all(test, feature = "http"))]
mod test_server;
mod weighted_group_sum;
mod weighted_sum;

use rollpacker_stages::reward::{
    Context, ErrorKind, GroupReward, Reward, RewardError, Sample, Score, SharedGroupReward,
    SharedReward,
};

#[cfg(feature = "code")]
pub use code::{Code, CodeConfig, CodeScore};
#[cfg(feature = "http")]
pub use endpoint::Endpoint;
pub use field::{Field, Fields};
pub use guard::{Backoff, Cached, Guard, Retry, Timeout};
#[cfg(feature = "http")]
pub use http::{HttpForm, HttpOptions, HttpReward};
pub use process::{ProcessOptions, ProcessReward};
pub use python::{PythonOptions, PythonReward, PythonSignature};
pub use registry::{AnyReward, Registry};
pub use rollpacker_math as math;
pub use rule::{
    AnswerIn, Exact, F1, Format, FormatStyle, Length, Logic, LogicScoring, Math, MultipleChoice,
    Pattern, PatternOptions, Repetition, RepetitionOptions, SoftOverlong, SoftOverlongOptions,
    Unit, verl,
};
pub use weighted_group_sum::WeightedGroupSum;
pub use weighted_sum::WeightedSum;
