//! The folders of slots, within the folder for temporary files.
//!
//! A folder is locked with `flock` while the process that created it lives. The kernel releases the lock however that process ends, so a
//! folder that can be locked is abandoned, and the next sandbox removes it. Since other users may write to the folder for temporary files,
//! the folders of other users are left alone and symbolic links are not followed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// The prefix of the names of slot folders.
const PREFIX: &str = "rollpacker-slot-";

/// The number of attempts to create a folder. A sandbox that starts at the same time may mistake a new folder, which is not locked yet, for
/// an abandoned one and remove it.
const MAX_TRIES: u32 = 100;

/// The folder of a slot, which is removed on drop.
pub(super) struct SlotFolder {
    path: TempDir,
    _lock: File,
}

impl SlotFolder {
    /// Creates an empty folder that only this user can access.
    pub(super) fn create() -> io::Result<Self> {
        for _ in 0..MAX_TRIES {
            let path = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
            if let Some(lock) = lock(path.path()) {
                return Ok(Self { path, _lock: lock });
            }
        }
        Err(io::Error::other(format!(
            "another sandbox removed each new folder `{PREFIX}*` before it was locked"
        )))
    }

    pub(super) fn create_subfolder(&self, name: &str, mode: u32) -> io::Result<PathBuf> {
        let path = self.path.path().join(name);
        fs::DirBuilder::new().mode(mode).create(&path)?;
        Ok(path)
    }
}

/// Removes the contents of a folder, as far as possible.
pub(super) fn clear(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        // Entries that cannot be removed now are removed together with the slot, or by a later sweep.
        let _ = match entry.file_type() {
            Ok(kind) if kind.is_dir() => fs::remove_dir_all(&path),
            _ => fs::remove_file(&path),
        };
    }
}

/// Removes the folders of slots whose processes are dead.
pub(super) fn sweep() {
    sweep_in(&std::env::temp_dir());
}

fn sweep_in(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(PREFIX)
            && let Some(_lock) = lock(&path)
        {
            // The lock is held meanwhile, so that no other process removes the folder or adopts it. Remaining contents are removed by a
            // later sweep.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Locks a folder of this user. Returns `None` if `path` is not a folder, belongs to another user, is locked, or was replaced by another
/// folder. The last check is necessary because the folder may be removed between opening and locking it.
fn lock(path: &Path) -> Option<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let folder = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let opened = folder.metadata().ok()?;
    if opened.uid() != rustix::process::geteuid().as_raw() {
        return None;
    }
    folder.try_lock().ok()?;
    let named = fs::symlink_metadata(path).ok()?;
    ((named.dev(), named.ino()) == (opened.dev(), opened.ino())).then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_without_an_owner_are_removed_and_no_others() {
        let temporary = tempfile::tempdir().expect("a folder");
        let at = |name: &str| temporary.path().join(name);
        let outside = at("outside");
        for folder in [
            at("rollpacker-slot-dead/root/usr"),
            at("rollpacker-slot-alive"),
            at("other"),
            outside.clone(),
        ] {
            fs::create_dir_all(folder).expect("a folder");
        }
        fs::write(outside.join("kept"), "x").expect("a file");
        std::os::unix::fs::symlink(&outside, at("rollpacker-slot-link")).expect("a link");
        std::os::unix::fs::symlink(&outside, at("rollpacker-slot-dead/root/link")).expect("a link");
        fs::write(at("rollpacker-slot-file"), "x").expect("a file");
        let alive = lock(&at("rollpacker-slot-alive")).expect("it is ours");
        sweep_in(temporary.path());
        let left = |name: &str| fs::symlink_metadata(at(name)).is_ok();
        assert!(!left("rollpacker-slot-dead"));
        for name in [
            "rollpacker-slot-alive",
            "other",
            "outside/kept",
            "rollpacker-slot-link",
            "rollpacker-slot-file",
        ] {
            assert!(left(name), "{name}");
        }
        drop(alive);
        sweep_in(temporary.path());
        assert!(!left("rollpacker-slot-alive"));
    }

    #[test]
    fn a_folder_has_an_owner_until_it_is_dropped() {
        let folder = SlotFolder::create().expect("a folder");
        let path = folder.path.path().to_owned();
        folder.create_subfolder("work", 0o700).expect("a folder within");
        assert!(lock(&path).is_none());
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn clearing_a_folder_keeps_the_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("a/b")).expect("a folder");
        fs::write(folder.path().join("c"), "x").expect("a file");
        clear(folder.path());
        assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 0);
    }
}
