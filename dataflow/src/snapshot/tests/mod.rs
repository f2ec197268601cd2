//! Tests of snapshots under faults: a file system that dies at any operation, damaged files, and a graph that is killed and resumed.

mod crash;
mod memory;
mod protocol;
mod store;
mod test_graph;

use std::path::PathBuf;
use std::sync::Arc;

use super::{Identity, Part, PartRecord, SnapshotError, SnapshotStore, StoreOptions};
use crate::step::Step;
use memory::Memory;

/// The operators and workers of the snapshots in these tests.
const PARTS: [(&str, u32); 4] = [("schedule", 0), ("schedule", 1), ("update", 0), ("update", 1)];

fn root() -> PathBuf {
    "/run".into()
}

fn options(keep: usize) -> StoreOptions {
    StoreOptions { identity: Identity { run: "a run".to_owned(), ..Identity::default() }, keep }
}

fn open(files: &Memory, keep: usize) -> Result<SnapshotStore, SnapshotError> {
    SnapshotStore::open_on(Arc::new(files.clone()), root(), options(keep))
}

fn content(step: Step, operator: &str, worker: u32) -> Vec<u8> {
    format!("{operator}-{worker} at the end of step {step}").into_bytes()
}

fn write(store: &SnapshotStore, step: Step) -> Result<Vec<PartRecord>, SnapshotError> {
    PARTS
        .into_iter()
        .filter_map(|(operator, worker)| {
            let part = Part::bytes("bin", content(step, operator, worker));
            store.write(step, operator, worker, part).transpose()
        })
        .collect()
}

fn take(store: &SnapshotStore, step: Step) -> Result<(), SnapshotError> {
    let committed = store.commit(step, write(store, step)?, 2)?;
    committed.cleanup_error.map_or(Ok(()), Err)
}

/// Returns the step of the latest snapshot, after checking that each of its parts belongs to that step.
fn restored(store: &SnapshotStore) -> Option<Step> {
    let restored = store.latest().expect("the folder can be read").restored?;
    for operator in ["schedule", "update"] {
        let parts = restored.parts(operator).expect("verified");
        let expected = (0..2).map(|worker| (worker, content(restored.step(), operator, worker)));
        assert_eq!(parts, expected.collect::<Vec<_>>());
    }
    Some(restored.step())
}
