//! Tests of schedules against timelines, laws and a slow oracle.

mod all_schedules;
mod contract;
mod curriculum;
mod driver;
mod dynamic;
mod frontier_group;
mod history_sorted;
mod interleaving;
mod laws;
mod lockstep;
mod log;
mod longest_first;
mod oracle;
mod partial;
mod sorted;
mod sync;
mod tail_batching;
mod timeline;
