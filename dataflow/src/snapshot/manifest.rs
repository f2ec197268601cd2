//! The manifest of a snapshot: what it consists of, sealed by a checksum.

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use super::generation::Generation;
use super::hash::sha256;
use crate::step::Step;

/// Which run a snapshot is of, and what was running.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// The run; a folder holds the snapshots of one.
    pub run: String,
    /// A digest of the configuration. Whoever resumes decides what it means that it differs.
    pub config: String,
    /// The version of the program.
    pub code: String,
    /// What else is to be known of the whole run: seeds, the dataset.
    pub facts: Map<String, Value>,
}

/// What a snapshot consists of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of this layout: 1.
    pub layout: u32,
    /// The run.
    pub identity: Identity,
    /// The process that wrote it.
    pub generation: Generation,
    /// The last step that is in it; a run that is resumed begins with the next.
    pub step: Step,
    /// How many workers the graph had. Parts are read again by key, so that another number may resume.
    pub workers: u32,
    /// The files, in the order of operator and worker.
    pub parts: Vec<PartRecord>,
}

/// A file of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartRecord {
    /// The operator that wrote it.
    pub operator: String,
    /// On which worker.
    pub worker: u32,
    /// Where, relative to the folder of the run's snapshots. A part that did not change may be from an earlier snapshot.
    pub path: String,
    /// Its length in bytes.
    pub length: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
    /// The version of its layout, in the count of the operator.
    pub version: u32,
    /// What the operator says beside it: a cursor, an offset.
    pub facts: Map<String, Value>,
}

/// The layout that is written, and the only one that is read.
pub(crate) const LAYOUT: u32 = 1;

/// The manifest as it lies in its file, with the checksum of its text.
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

    /// Reads what [`encode`](Self::encode) wrote; otherwise says what was expected and found.
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
        Ok(manifest)
    }
}
