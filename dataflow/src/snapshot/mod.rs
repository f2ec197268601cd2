//! Snapshots: what a run that was killed at any instant goes on from.
//!
//! A snapshot is of the end of a step: the state of every operator with all of that step in it and nothing of the next. The frontier says
//! when that is, so there are no barriers, and no operator waits for another. An operator hands its [`Part`] to a thread that writes,
//! goes on with the next step, and holds a capability for the step until the part is on the disk; when the frontier of all parts has
//! passed the step, all of them are there, and the manifest is committed.
//!
//! ```text
//!              step 4                step 5 …
//! schedule  ───closes──▶ hands over ─────────────────────────▶ (goes on)
//! update    ───────closes──▶ hands over ─────────────────────▶ (goes on)
//! writer             [schedule-0][update-0]      [manifest]
//!                     write, sync, rename         write, sync, rename
//! PARTS                         ▪ row    ▪ row
//! capability ═══════════════════════════╡ of step 4 dropped
//! commit                                 ▲ frontier passes 4: parts complete?
//! ```
//!
//! Which steps: every so many ([`Cadence`]), when someone asks ([`Request`]), and when all inputs have ended. What can be lost is what came
//! after the last manifest, and a run that is resumed does it again. A crash anywhere leaves the manifest there or not; parts without one
//! are removed when the folder is opened next. Opening claims a [`Generation`], and who has an older one can commit no more.
//!
//! If a snapshot cannot be written, the run ends, or goes on with a warning and tries again ([`OnError`]); earlier ones stay as they are. A
//! snapshot of which any file is missing, cut short or changed is passed over for the one before it, and [`Found`] says why.
//!
//! Architecture invariant: nothing here knows what a part holds.

mod cadence;
mod commit;
mod descriptor;
mod error;
mod files;
mod garbage;
mod generation;
mod hash;
mod layout;
mod manifest;
mod part;
mod parts;
mod plan;
mod protocol;
mod restored;
mod store;
mod write;

#[cfg(test)]
mod tests;

pub use cadence::{Cadence, Request};
pub use commit::Commits;
pub use error::{Damage, SnapshotError};
pub use generation::Generation;
pub use manifest::{Identity, Manifest, PartRecord};
pub use part::{Draft, Part};
pub use parts::Parts;
pub use plan::{OnError, SnapshotPlan};
pub use protocol::Snapshots;
pub use restored::{Found, Restored};
pub use store::{Committed, SnapshotStore, StoreOptions};
