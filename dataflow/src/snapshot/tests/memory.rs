//! An in-memory file system that can die at any operation, lose power, be full, or be read-only.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::snapshot::files::Files;

/// The state of the disk after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crash {
    /// The process was killed: all its operations took effect.
    Killed,
    /// The power failed: only synced names and contents remain.
    Cut,
    /// The power failed: all names remain, and half of each content that was not synced.
    Torn,
    /// The power failed: each name that was created or removed and not synced remains or not, by the seed. Contents are as in
    /// [`Torn`](Self::Torn).
    Mixed(u64),
}

pub(super) const CRASHES: [Crash; 6] =
    [Crash::Killed, Crash::Cut, Crash::Torn, Crash::Mixed(1), Crash::Mixed(2), Crash::Mixed(3)];

#[derive(Clone, Default)]
pub(super) struct Memory(Arc<Mutex<MemoryState>>);

#[derive(Default)]
struct MemoryState {
    /// The names that are visible to processes, without the root `/`, which always exists.
    names: BTreeMap<PathBuf, Node>,
    /// The names that are on disk.
    durable: BTreeMap<PathBuf, Node>,
    files: Vec<File>,
    operations: usize,
    crashes_at: Option<usize>,
    capacity: Option<usize>,
    read_only: bool,
    /// `true` if another process writes into every folder that is being removed.
    written_into: bool,
    /// The number of times that each operation yields to other threads.
    pace: usize,
    /// The actions of other processes before the next exclusive creation of a file.
    interlude: Option<Interlude>,
}

type Interlude = Box<dyn FnOnce(&Memory) + Send>;

#[derive(Clone, Copy, PartialEq)]
enum Node {
    Folder,
    File(usize),
}

#[derive(Clone, Default)]
struct File {
    content: Vec<u8>,
    synced: Option<Vec<u8>>,
}

impl Memory {
    /// Makes the process die at its `operation`-th operation from now, counted from 0: that operation and all later ones fail.
    pub(super) fn crash_at(&self, operation: usize) {
        let mut state = self.lock();
        (state.operations, state.crashes_at) = (0, Some(operation));
    }

    /// Returns the number of operations since [`crash_at`](Self::crash_at).
    pub(super) fn operations(&self) -> usize {
        self.lock().operations
    }

    /// Puts the disk into the state in which the next process finds it.
    pub(super) fn restart(&self, crash: Crash) {
        let mut state = self.lock();
        (state.crashes_at, state.operations) = (None, 0);
        match crash {
            Crash::Killed | Crash::Torn => {}
            Crash::Cut => state.names = state.durable.clone(),
            Crash::Mixed(seed) => state.names = state.mixed(seed),
        }
        if crash != Crash::Killed {
            for file in &mut state.files {
                let torn = file.content.len() / 2;
                let left = if crash == Crash::Cut { &[] } else { &file.content[..torn] };
                file.content = file.synced.clone().unwrap_or_else(|| left.to_vec());
            }
        }
        for file in &mut state.files {
            file.synced = Some(file.content.clone());
        }
        state.durable = state.names.clone();
    }

    /// Returns an independent disk in the same state.
    pub(super) fn copy(&self) -> Self {
        let state = self.lock();
        Self(Arc::new(Mutex::new(MemoryState {
            names: state.names.clone(),
            durable: state.durable.clone(),
            files: state.files.clone(),
            ..MemoryState::default()
        })))
    }

    pub(super) fn limit(&self, bytes: Option<usize>) {
        self.lock().capacity = bytes;
    }

    pub(super) fn set_read_only(&self, read_only: bool) {
        self.lock().read_only = read_only;
    }

    pub(super) fn slow_down(&self, pace: usize) {
        self.lock().pace = pace;
    }

    /// Runs `interlude` before the next exclusive creation of a file.
    pub(super) fn interrupt(&self, interlude: impl FnOnce(&Self) + Send + 'static) {
        self.lock().interlude = Some(Box::new(interlude));
    }

    pub(super) fn set_written_into(&self, written_into: bool) {
        self.lock().written_into = written_into;
    }

    /// Returns the total size of all files in bytes.
    pub(super) fn size(&self) -> usize {
        let state = self.lock();
        state.size()
    }

    /// Returns the paths of all files.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let state = self.lock();
        let files = state.names.iter().filter(|(_, node)| **node != Node::Folder);
        files.map(|(path, _)| path.clone()).collect()
    }

    pub(super) fn content(&self, path: &Path) -> Vec<u8> {
        let state = self.lock();
        state.file(path).map(|file| state.files[file].content.clone()).expect("a file")
    }

    pub(super) fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.lock();
        let file = state.file(path).expect("a file");
        change(&mut state.files[file].content);
    }

    fn lock(&self) -> MutexGuard<'_, MemoryState> {
        self.0.lock().expect("unpoisoned")
    }
}

impl MemoryState {
    /// Counts an operation that changes the disk. Fails if the process dies at it or is dead, or if the disk is read-only.
    fn tick(&mut self) -> io::Result<()> {
        if self.read_only {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        (0..self.pace).for_each(|_| std::thread::yield_now());
        self.operations += 1;
        self.alive()
    }

    fn alive(&self) -> io::Result<()> {
        let has_crashed = self.crashes_at.is_some_and(|at| self.operations > at);
        if has_crashed { Err(io::Error::other("the process is dead")) } else { Ok(()) }
    }

    /// Applies some of the name changes that are not on disk.
    fn mixed(&self, seed: u64) -> BTreeMap<PathBuf, Node> {
        let mut random = seed;
        let mut mixed: BTreeMap<PathBuf, Node> = BTreeMap::new();
        let all: BTreeSet<_> = self.names.keys().chain(self.durable.keys()).collect();
        for path in all {
            let (now, then) = (self.names.get(path), self.durable.get(path));
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
            let node = if random >> 63 == 0 { now } else { then };
            let above = path.parent().expect("not the root");
            let reachable = above == Path::new("/") || mixed.contains_key(above);
            if let Some(node) = node.filter(|_| reachable) {
                mixed.insert(path.clone(), *node);
            }
        }
        mixed
    }

    fn file(&self, path: &Path) -> io::Result<usize> {
        match self.names.get(path) {
            Some(Node::File(file)) => Ok(*file),
            _ => Err(ErrorKind::NotFound.into()),
        }
    }

    fn has_folder(&self, path: &Path) -> bool {
        path == Path::new("/") || self.names.get(path) == Some(&Node::Folder)
    }

    fn make(&mut self, path: &Path) -> io::Result<usize> {
        if !self.has_folder(path.parent().expect("not the root")) {
            return Err(ErrorKind::NotFound.into());
        }
        self.files.push(File::default());
        let file = self.files.len() - 1;
        self.names.insert(path.to_owned(), Node::File(file));
        Ok(file)
    }

    fn size(&self) -> usize {
        let files = self.names.values().filter_map(|node| match node {
            Node::File(file) => Some(self.files[*file].content.len()),
            Node::Folder => None,
        });
        files.sum()
    }
}

impl Files for Memory {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock();
        state.tick()?;
        for folder in path.ancestors().filter(|&path| path != Path::new("/")) {
            state.names.entry(folder.to_owned()).or_insert(Node::Folder);
        }
        Ok(())
    }

    fn create_new(&self, path: &Path) -> io::Result<()> {
        let interlude = self.lock().interlude.take();
        interlude.into_iter().for_each(|interlude| interlude(self));
        let mut state = self.lock();
        state.tick()?;
        if state.names.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        state.make(path).map(drop)
    }

    fn write(
        &self,
        path: &Path,
        fill: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut content = Vec::new();
        fill(&mut content)?;
        let mut state = self.lock();
        state.tick()?;
        let file = state.make(path)?;
        let free = state.capacity.map_or(usize::MAX, |all| all.saturating_sub(state.size()));
        // The file is first half written, then complete, then synced, so that a crash can occur in each state.
        let half = content[..content.len() / 2].to_vec();
        state.files[file].content = half;
        if content.len() > free {
            return Err(ErrorKind::StorageFull.into());
        }
        state.tick()?;
        state.files[file].content.clone_from(&content);
        state.tick()?;
        state.files[file].synced = Some(content);
        Ok(())
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock();
        state.tick()?;
        let file = state.file(path)?;
        state.files[file].synced = Some(state.files[file].content.clone());
        Ok(())
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock();
        state.tick()?;
        if !state.has_folder(path) {
            return Err(ErrorKind::NotFound.into());
        }
        let MemoryState { names, durable, .. } = &mut *state;
        let within = |name: &Path| name.parent() == Some(path);
        durable.retain(|name, node| {
            let of_folder = name.ancestors().find(|&above| within(above));
            of_folder.is_none_or(|above| {
                names.get(above).is_some_and(|now| above != name || now == node)
            })
        });
        durable.extend(
            names.iter().filter(|(name, _)| within(name)).map(|(name, node)| (name.clone(), *node)),
        );
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.lock();
        state.tick()?;
        let node = state.names.remove(from).ok_or(ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), node);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock();
        state.tick()?;
        state.names.remove(path);
        Ok(())
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock();
        state.tick()?;
        if state.written_into {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        // A crash may occur when part of the folder is removed.
        if let Some(first) = state.names.keys().find(|name| *name != path && name.starts_with(path))
        {
            let first = first.clone();
            state.names.remove(&first);
        }
        state.tick()?;
        state.names.retain(|name, _| !name.starts_with(path));
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let state = self.lock();
        state.alive()?;
        let within = state.names.keys().filter(|name| name.parent() == Some(path));
        let names = within.filter_map(|name| name.file_name()?.to_str().map(str::to_owned));
        Ok(names.collect())
    }

    fn length(&self, path: &Path) -> io::Result<u64> {
        let state = self.lock();
        state.alive()?;
        Ok(state.files[state.file(path)?].content.len() as u64)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Read>> {
        let state = self.lock();
        state.alive()?;
        Ok(Box::new(io::Cursor::new(state.files[state.file(path)?].content.clone())))
    }
}
