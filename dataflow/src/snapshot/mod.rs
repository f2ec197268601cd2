//! Snapshots: the state from which a run that was killed at any instant resumes.
//!
//! A snapshot holds the state of every operator at the end of a step: everything of that step is included, and nothing of the next step.
//! The frontier determines when a step ends, so there are no barriers, and no operator waits for another. An operator hands its [`Part`] to
//! a writer thread and continues with the next step, but holds a capability for the old step until the part is on disk. When the frontier
//! of all parts has passed the step, all parts exist, and the manifest is committed.
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
//! Snapshots are taken after every n-th step ([`Cadence`]), on request ([`SnapshotRequest`]), and when all inputs have ended. A killed run
//! loses the steps after its last manifest and computes them again. A crash leaves a manifest either complete or absent. Parts without a
//! manifest are removed when the next generation is claimed. [`SnapshotStore::open`] claims a [`Generation`], and processes with an older
//! generation can no longer commit.
//!
//! With [`Cadence::with_held_states`], every operator also holds the state of its last step in memory. If the next step fails for a
//! temporary reason, [`Parts::save_held`] still takes a snapshot of the step before. An operator holds a capability of that step until it
//! begins the next step.
//!
//! If a snapshot cannot be written, the run either ends, or continues with a warning and retries ([`OnError`]). Earlier snapshots are not
//! affected. If a file of a snapshot is missing, truncated or changed, the snapshot before it is used, and [`SearchResult`] reports the
//! reason.
//!
//! Architecture invariant: this module does not interpret the content of parts.

mod cadence;
mod claim;
mod cleanup;
mod commit;
mod descriptor;
mod error;
mod files;
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

pub use cadence::{Cadence, SnapshotRequest};
pub use commit::Commits;
pub use error::{Damage, SnapshotError};
pub use generation::Generation;
pub use manifest::{Identity, Manifest, PartRecord};
pub use part::{Draft, Part};
pub use parts::Parts;
pub use plan::{OnError, SnapshotPlan};
pub use protocol::Snapshots;
pub use restored::{RestoredSnapshot, SearchResult};
pub use store::{Committed, SnapshotStore, StoreOptions};
