//! The built-in rewards, and the registry that makes rewards by the names that recipes use.
//!
//! The traits and value types are in [`rollpacker_stages::reward`]. A reward can be a rule, a server ([`HttpReward`]), a program
//! ([`ProcessReward`]), tests that code must pass ([`Code`]) or a language model ([`judge`]). [`Guard`] adds limits, retries and a cache to
//! any of them.
//!
//! Architecture invariant: no libtorch and no timely streams in this crate.

mod answer;
mod code;
mod endpoint;
mod field;
mod guard;
mod http;
pub mod judge;
mod process;
mod registry;
mod rule;
#[cfg(test)]
mod test_server;
mod tls;
mod weighted_group_sum;
mod weighted_sum;

use rollpacker_stages::reward::{
    BatchReward, Batched, Call, Context, ErrorKind, Execution, GroupReward, Limits, Reward,
    RewardError, Sample, Score, SharedGroupReward, SharedReward,
};

pub use code::{Code, CodeConfig, CodeScore};
pub use endpoint::Endpoint;
pub use field::{Field, Fields};
pub use guard::{Backoff, Cached, Guard, Retry, Timeout};
pub use http::{HttpForm, HttpOptions, HttpReward};
pub use process::{ProcessOptions, ProcessReward};
pub use registry::{Made, Registry};
pub use rollpacker_math as math;
pub use rule::{
    AnswerIn, Exact, F1, Format, FormatStyle, Length, Logic, LogicScoring, Math, MultipleChoice,
    Pattern, PatternOptions, Repetition, RepetitionOptions, SoftOverlong, SoftOverlongOptions,
    Unit, verl,
};
pub use tls::tls;
pub use weighted_group_sum::WeightedGroupSum;
pub use weighted_sum::WeightedSum;
