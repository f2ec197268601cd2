//! A web page over run folders.
//!
//! The server only reads files of the run folders, so it cannot disturb a run. It shows runs in progress, killed runs and finished runs in
//! the same way. `metrics.jsonl` is read from where the previous reading ended; the rollouts of a step are read when a page asks for that
//! step. A request names a run by its name and a step by its number, never a path.

mod assets;
mod columns;
mod error;
mod events;
mod group;
mod host;
mod lengths;
mod prompts;
mod round;
mod routes;
mod run;
mod runs;
mod stages;
mod tokens;
mod vocabulary;

use std::sync::Arc;

pub(crate) use self::routes::router;
pub(crate) use self::runs::Runs;

/// The state that all requests share.
type Shared = Arc<Runs>;
