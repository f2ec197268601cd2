//! Processes, descriptors and memory of this machine, as the tests measure them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lets only one test run at a time, because the tests count the descendants of this process.
pub(crate) fn exclusive() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|file| std::os::unix::fs::MetadataExt::uid(&file) == 0)
}

/// Returns the number of descendants of this process, including dead ones that have not been waited for.
pub(crate) fn descendants() -> usize {
    tree().len()
}

/// Waits until a condition holds that depends on another process. Panics after 20,000 attempts.
pub(crate) fn wait_until(holds: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if holds() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("it never holds");
}

/// Returns the children of this process: the outermost process of each slot.
pub(crate) fn slots() -> Vec<u32> {
    tree()
        .into_iter()
        .filter(|(_, parent)| *parent == std::process::id())
        .map(|(pid, _)| pid)
        .collect()
}

/// Kills the outermost process of each slot.
pub(crate) fn kill_slots() {
    slots().into_iter().for_each(kill);
}

pub(crate) fn kill_self() {
    kill(std::process::id());
}

fn kill(process: u32) {
    let status = std::process::Command::new("kill").args(["-9", &process.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()));
}

/// Returns the control groups of this process's sandboxes.
pub(crate) fn groups() -> Vec<PathBuf> {
    let name = format!("rollpacker-sandbox-{}-", std::process::id());
    let mut found = Vec::new();
    visit_folders(Path::new("/sys/fs/cgroup"), 6, &mut |folder| {
        if folder.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&name)) {
            found.push(folder.to_path_buf());
        }
    });
    found
}

fn visit_folders(folder: &Path, levels: u32, visit: &mut impl FnMut(&Path)) {
    visit(folder);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in
        entries.filter(|entry| levels > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()))
    {
        visit_folders(&entry.path(), levels - 1, visit);
    }
}

/// Resources in use: the processes of sandboxes, the descriptors of these and of this process, and the memory of all.
#[derive(Debug)]
pub(crate) struct Usage {
    pub(crate) processes: usize,
    pub(crate) descriptors: usize,
    pub(crate) resident_kib: u64,
}

pub(crate) fn usage() -> Usage {
    let mut pids: Vec<_> = tree().into_keys().collect();
    let processes = pids.len();
    pids.push(std::process::id());
    let descriptors = pids
        .iter()
        .map(|pid| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count))
        .sum();
    let resident_kib = pids.iter().map(|pid| resident(*pid)).sum();
    Usage { processes, descriptors, resident_kib }
}

fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Returns the descendants of this process, each with its parent.
fn tree() -> BTreeMap<u32, u32> {
    let parents = parents();
    let mut found = BTreeMap::new();
    let mut ends = vec![std::process::id()];
    while let Some(end) = ends.pop() {
        for (&pid, &parent) in parents.iter().filter(|(_, parent)| **parent == end) {
            found.insert(pid, parent);
            ends.push(pid);
        }
    }
    found
}

fn parents() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

/// Returns the id of the parent of a process: the fourth field of its `stat`. The second field, a name in parentheses, may contain
/// anything, so the text is split at its end.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}
