//! Exports of a run folder to the files of other tools.
//!
//! Only files of the run folder are read, so the run may still be in progress.

mod event;
pub(crate) mod perfetto;
mod rollouts;
pub(crate) mod step_range;
pub(crate) mod tensorboard;
mod tf_record;
