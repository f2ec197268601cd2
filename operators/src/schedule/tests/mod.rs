//! Schedules against timelines, laws, and a slow oracle.

mod engine;
mod history_sorted;
mod laws;
mod oracle;
mod sync;
mod tail_batching;
mod timeline;
