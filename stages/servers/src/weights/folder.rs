//! Folders of weights, which are written atomically, have a checksum, and are removed when no server needs them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_stages::rollout::Policy;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::PublishedWeights;

const WEIGHTS: &str = "model.safetensors";
/// The file with the checksum of a folder's weights. Servers ignore it, because it is not one of the files of a model.
const CHECKSUM: &str = "rollpacker_weights.json";
/// The suffixes of weight files, which are not copied from the model folder.
const WEIGHT_FILES: [&str; 6] =
    [".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".gguf"];

/// The reason why a folder of weights cannot be written or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    /// A file or folder cannot be read, written or removed.
    #[error("{path}: {reason}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The trainer's weights cannot be written.
    #[error("cannot write the weights of {version}: {reason}")]
    Write {
        /// The version of the policy.
        version: PolicyVersion,
        /// The cause.
        reason: String,
    },
    /// A file has changed since it was written.
    #[error(
        "{path}: expected {expected} bytes with SHA-256 {sha256}, found {found} bytes with {found_sha256}"
    )]
    Damaged {
        /// The path of the weights file.
        path: PathBuf,
        /// The expected size in bytes.
        expected: u64,
        /// The expected SHA-256 checksum in hexadecimal.
        sha256: String,
        /// The size that was found, in bytes.
        found: u64,
        /// The SHA-256 checksum that was found, in hexadecimal.
        found_sha256: String,
    },
}

impl WeightError {
    fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::File { path, reason: error.to_string() }
    }
}

/// The folder that contains one folder for each load of a policy version. One engine uses it at a time.
#[derive(Clone, Debug)]
pub struct WeightRoot {
    root: PathBuf,
    model: PathBuf,
}

impl WeightRoot {
    /// Opens `root`, or creates it. Folders of versions that an earlier process left are removed: they may be incomplete, and may have the
    /// weights of another run. Other folders and files are kept. The files of `model` other than weights are copied to the folder of every
    /// version.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created or read, or an old folder of a version cannot be removed.
    pub fn open(root: &Path, model: &Path) -> Result<Self, WeightError> {
        fs::create_dir_all(root).map_err(WeightError::file(root))?;
        for entry in fs::read_dir(root).map_err(WeightError::file(root))? {
            let path = entry.map_err(WeightError::file(root))?.path();
            if is_version(&path) {
                // The threads of an engine that was dropped in this process may remove its folders at the same time.
                match fs::remove_dir_all(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed.map_err(WeightError::file(&path))?,
                }
            }
        }
        // Servers may run in other working directories, so they need the absolute path.
        let root = fs::canonicalize(root).map_err(WeightError::file(root))?;
        Ok(Self { root, model: model.to_owned() })
    }

    /// Writes the folder of a policy version, such as `v17-3` for version 17 and the load `number` 3. Each load of a version must have
    /// another `number`. The folder gets its name only when it is complete and its weights are on disk.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or written, or the trainer cannot write its weights. An incomplete folder, such as
    /// `.v17-3`, may then stay until the next [`open`](Self::open).
    pub fn write(
        &self,
        policy: &Policy,
        number: u64,
        weights: &dyn PublishedWeights,
    ) -> Result<WeightFolder, WeightError> {
        // A version that is loaded twice gets two folders, because each is removed when its last user drops it.
        let name = format!("{}-{number}", policy.version);
        let (path, partial) = (self.root.join(&name), self.root.join(format!(".{name}")));
        fs::create_dir(&partial).map_err(WeightError::file(&partial))?;
        self.copy_model_files(&partial)?;
        let version = policy.version;
        weights.write(&partial).map_err(|reason| WeightError::Write { version, reason })?;
        let checksum = Checksum::of(&partial.join(WEIGHTS))?;
        checksum.write(&partial.join(CHECKSUM))?;
        sync(&partial.join(WEIGHTS))?;
        sync(&partial)?;
        fs::rename(&partial, &path).map_err(WeightError::file(&path))?;
        sync(&self.root)?;
        Ok(WeightFolder { path, checksum })
    }

    /// Copies the files of the model other than weights, such as configuration and tokenizer.
    fn copy_model_files(&self, folder: &Path) -> Result<(), WeightError> {
        for entry in fs::read_dir(&self.model).map_err(WeightError::file(&self.model))? {
            let path = entry.map_err(WeightError::file(&self.model))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !path.is_file() || WEIGHT_FILES.iter().any(|end| name.ends_with(end)) {
                continue;
            }
            fs::copy(&path, folder.join(&*name)).map_err(WeightError::file(&path))?;
        }
        Ok(())
    }
}

/// The complete folder of a version. Dropping it removes the folder.
#[derive(Debug)]
pub struct WeightFolder {
    path: PathBuf,
    checksum: Checksum,
}

impl WeightFolder {
    /// Returns the absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the weights again, and compares their size and checksum with those of the weights that were written.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or has changed since it was written.
    pub fn verify(&self) -> Result<(), WeightError> {
        let path = self.path.join(WEIGHTS);
        let found = Checksum::of(&path)?;
        if found == self.checksum {
            return Ok(());
        }
        Err(WeightError::Damaged {
            path,
            expected: self.checksum.bytes,
            sha256: self.checksum.sha256.clone(),
            found: found.bytes,
            found_sha256: found.sha256,
        })
    }
}

impl Drop for WeightFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(folder = %self.path.display(), %error, "cannot remove old weights");
        }
    }
}

/// Size and checksum of a file of weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Checksum {
    bytes: u64,
    sha256: String,
}

impl Checksum {
    fn of(path: &Path) -> Result<Self, WeightError> {
        let mut file = File::open(path).map_err(WeightError::file(path))?;
        let mut hasher = Hasher(Sha256::new());
        let bytes = io::copy(&mut file, &mut hasher).map_err(WeightError::file(path))?;
        let sha256 = hasher.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { bytes, sha256 })
    }

    fn write(&self, path: &Path) -> Result<(), WeightError> {
        let json = serde_json::to_string(self).map_err(io::Error::other);
        json.and_then(|json| fs::write(path, json)).map_err(WeightError::file(path))
    }
}

/// Hashes the bytes that are written to it. `sha2` implements `io::Write` only with a feature that is not enabled.
struct Hasher(Sha256);

impl io::Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Flushes a file, or the entries of a folder, to disk.
fn sync(path: &Path) -> Result<(), WeightError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(WeightError::file(path))
}

/// Returns `true` for folders with a name that [`WeightRoot::write`] gives: `v17-3`, or `.v17-3` if the folder is incomplete.
fn is_version(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let numbers =
        name.trim_start_matches('.').strip_prefix('v').and_then(|name| name.split_once('-'));
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    path.is_dir() && numbers.is_some_and(|(version, load)| is_number(version) && is_number(load))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes(&'static [u8]);

    impl PublishedWeights for Bytes {
        fn write(&self, folder: &Path) -> Result<(), String> {
            fs::write(folder.join(WEIGHTS), self.0).map_err(|error| error.to_string())
        }

        fn score(&self, _: &[i32]) -> Result<Vec<f32>, String> {
            Err("unused".to_owned())
        }
    }

    fn policy(version: u64) -> Policy {
        Policy { version: PolicyVersion(version), location: String::new(), digest: 0 }
    }

    #[test]
    fn a_folder_has_the_new_weights_and_the_old_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let (root, model) = (folder.path().join("weights"), folder.path().join("model"));
        fs::create_dir(&model).unwrap();
        fs::write(model.join("config.json"), "{}").unwrap();
        fs::write(model.join("model.safetensors"), "old").unwrap();
        fs::write(model.join("model-00001-of-00002.safetensors"), "old").unwrap();
        fs::create_dir_all(root.join("v3-1")).unwrap();
        fs::create_dir_all(root.join(".v4-2")).unwrap();
        fs::create_dir_all(root.join("keep")).unwrap();
        let opened = WeightRoot::open(&root, &model).unwrap();
        assert!(!root.join("v3-1").exists() && !root.join(".v4-2").exists());
        assert!(root.join("keep").exists(), "only folders of versions are removed");
        let written = opened.write(&policy(7), 1, &Bytes(b"new")).unwrap();
        assert_eq!(written.path(), root.canonicalize().unwrap().join("v7-1"));
        let mut names: Vec<_> = fs::read_dir(written.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["config.json", "model.safetensors", "rollpacker_weights.json"]);
        assert_eq!(fs::read(written.path().join(WEIGHTS)).unwrap(), b"new");
        written.verify().unwrap();
        fs::write(written.path().join(WEIGHTS), "ne").unwrap();
        let error = written.verify().unwrap_err().to_string();
        assert!(error.contains("expected 3 bytes") && error.contains("found 2 bytes"), "{error}");
        drop(written);
        assert!(!root.join("v7-1").exists());
    }

    #[test]
    fn a_failed_write_leaves_no_folder_of_the_version() {
        struct Broken;
        impl PublishedWeights for Broken {
            fn write(&self, _: &Path) -> Result<(), String> {
                Err("the disk is full".to_owned())
            }
            fn score(&self, _: &[i32]) -> Result<Vec<f32>, String> {
                Ok(Vec::new())
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let root = WeightRoot::open(&folder.path().join("w"), folder.path()).unwrap();
        let error = root.write(&policy(7), 1, &Broken).unwrap_err().to_string();
        assert_eq!(error, "cannot write the weights of v7: the disk is full");
        assert!(!folder.path().join("w/v7-1").exists());
    }
}
