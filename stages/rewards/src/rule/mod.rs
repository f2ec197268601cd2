//! Rule-based rewards: functions of a sample or a group that need no model, server or program.

mod answer_in;
mod exact;
mod f1;
mod format;
mod length;
mod logic;
mod math;
mod multiple_choice;
mod normal_form;
mod pattern;
mod repetition;
pub mod verl;

pub use answer_in::AnswerIn;
pub use exact::Exact;
pub use f1::F1;
pub use format::{Format, FormatStyle};
pub use length::{Length, SoftOverlong, SoftOverlongOptions};
pub use logic::{Logic, LogicScoring};
pub use math::Math;
pub use multiple_choice::MultipleChoice;
pub use pattern::{Pattern, PatternOptions};
pub use repetition::{Repetition, RepetitionOptions, Unit};

fn regex(pattern: &str) -> regex::Regex {
    regex::Regex::new(pattern).expect("invariant: the pattern is a constant that a test compiles")
}
