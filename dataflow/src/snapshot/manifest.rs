//! The manifest of a snapshot: the list of its parts, with a checksum.

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use super::generation::Generation;
use super::hash::sha256;
use crate::step::Step;

/// The identity of the run that a snapshot belongs to, and of the program that wrote it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// The name of the run. A folder holds the snapshots of one run.
    pub run: String,
    /// A digest of the configuration. The caller that resumes decides how to treat a difference.
    pub config: String,
    /// The version of the program that wrote the snapshot.
    pub code: String,
    /// Further facts about the whole run, such as seeds and the dataset.
    pub facts: Map<String, Value>,
}

/// The content of a snapshot: the identity of its run, and the list of its files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of this layout: 1.
    pub layout: u32,
    /// The identity of the run.
    pub identity: Identity,
    /// The generation of the process that wrote the snapshot.
    pub generation: Generation,
    /// The last step that the snapshot includes. A resumed run begins with the next step.
    pub step: Step,
    /// The number of workers of the graph. Parts are read back by key, so the resumed run may have a different number of workers.
    pub workers: u32,
    /// The files, in the order of operator and worker.
    pub parts: Vec<PartRecord>,
}

/// A file of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartRecord {
    /// The operator that wrote the part.
    pub operator: String,
    /// The index of the worker that wrote the part, from 0, over all processes.
    pub worker: u32,
    /// The path of the file, relative to the folder of the run's snapshots. A path that could leave the folder is rejected. An unchanged
    /// part may belong to an earlier snapshot.
    pub path: String,
    /// The length in bytes.
    pub length: u64,
    /// The SHA-256 in hexadecimal.
    pub sha256: String,
    /// The version of the part's layout: 1.
    pub version: u32,
    /// Metadata that the operator stores in addition to the file, such as a cursor or an offset.
    pub facts: Map<String, Value>,
}

/// The layout version that is written, and the only one that can be read.
pub(crate) const LAYOUT: u32 = 1;

/// The content of a manifest file: the manifest with the checksum of its text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    sha256: String,
    manifest: Box<RawValue>,
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let failed = "invariant: text, numbers and JSON values are encodable";
        let manifest = to_raw_value(self).expect(failed);
        let sha256 = sha256(manifest.get().as_bytes());
        serde_json::to_vec(&Sealed { sha256, manifest }).expect(failed)
    }

    /// Decodes the output of [`encode`](Self::encode). On failure, returns what was expected and what was found.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, (String, String)> {
        let unreadable = |error: serde_json::Error| ("a manifest".to_owned(), error.to_string());
        let sealed: Sealed = serde_json::from_slice(bytes).map_err(unreadable)?;
        let found = sha256(sealed.manifest.get().as_bytes());
        if found != sealed.sha256 {
            return Err((format!("sha256 {}", sealed.sha256), format!("sha256 {found}")));
        }
        let manifest: Self = serde_json::from_str(sealed.manifest.get()).map_err(unreadable)?;
        if manifest.layout != LAYOUT {
            return Err((format!("layout {LAYOUT}"), format!("layout {}", manifest.layout)));
        }
        match manifest.parts.iter().find(|part| !is_inside(&part.path)) {
            Some(part) => Err((
                "paths of parts inside the snapshot folder".to_owned(),
                format!("`{}` of `{}`", part.path, part.operator),
            )),
            None => Ok(manifest),
        }
    }
}

/// Returns `true` if a path consists of names only, so that it cannot leave the folder to which it is joined.
fn is_inside(path: &str) -> bool {
    !path.is_empty()
        && Path::new(path).components().all(|component| matches!(component, Component::Normal(_)))
}
