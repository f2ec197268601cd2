//! Control groups, where this process may make them: what the processes of a slot may take together.
//!
//! Limits of a process count for each process anew, and a solution may have many. A group holds all processes of a slot, and is joined
//! once, when the slot starts: moving a process costs the kernel more than a job does. It bounds their memory, their number and their
//! processor time, the latter to the slot's share of the machine. To the kernel one group weighs as much as another, so a solution that
//! forks slows itself down and not the next slot. Version 2 is taken before version 1, controller by controller, as the machine has
//! them. Without permission for groups the other limits stand alone; a [`Probe`](super::Probe) says so.
//!
//! Groups bear the number of the process that made them. They are removed with their slot; those of a process that died before it could
//! are removed by the next sandbox.

mod hierarchy;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{Timespec, poll};

use super::config::SandboxConfig;
pub(super) use hierarchy::sweep;
use hierarchy::{Controller, PREFIX, Version, places};

/// What kernel and interpreter may take besides, in bytes: page tables, sockets, the pages of a fork.
const SLACK_BYTES: u64 = 32 << 20;
/// Processes of a side besides those of a run.
const SIDE_PROCESSES: u64 = 2;
/// How often the kernel gives a group its processor time anew, in microseconds; what it is in a new group.
const PERIOD_US: u64 = 100_000;
/// How often to try to remove a group whose processes are about to be gone, one millisecond apart.
const TRIES: u32 = 200;

/// The group of a slot: a folder in each hierarchy that has one of the controllers.
///
/// Dropping it removes it; its processes must be dead by then.
#[derive(Debug, Default)]
pub(super) struct Group {
    folders: Vec<Folder>,
    /// What could not be had, and why.
    refused: Vec<String>,
}

/// A group in one hierarchy.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    version: Version,
    controllers: Vec<Controller>,
}

/// What the processes of a slot may take together, beyond what they take when it is ready.
struct Limits {
    /// In bytes.
    memory: u64,
    processes: u64,
    /// Processor time in each [`PERIOD_US`], in microseconds.
    processor_us: u64,
}

impl Limits {
    fn of(config: &SandboxConfig) -> Self {
        let sides = config.memory_bytes.saturating_mul(2);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            memory: sides.saturating_add(config.tmpfs_bytes).saturating_add(SLACK_BYTES),
            processes: 2 * (u64::from(config.processes) + SIDE_PROCESSES),
            processor_us: processor_us(cores, config.slots),
        }
    }

    fn of_controller(&self, controller: Controller) -> u64 {
        match controller {
            Controller::Memory => self.memory,
            Controller::Pids => self.processes,
            Controller::Cpu => self.processor_us,
        }
    }
}

/// The share of a slot in the processors, but one processor at least, in microseconds of each period.
fn processor_us(cores: usize, slots: usize) -> u64 {
    let share = PERIOD_US.saturating_mul(cores as u64) / (slots as u64).max(1);
    share.max(PERIOD_US)
}

impl Group {
    /// Makes a group and moves a process, with all that descend from it, there; as far as that is permitted.
    pub(super) fn around(pid: u32) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let mut group = Self::default();
        for place in places() {
            let folder = Folder::make(&place.candidates, &name, place.version, &place.controllers);
            match folder.and_then(|folder| folder.join(pid).map(|()| folder)) {
                Ok(folder) => group.folders.push(folder),
                Err(reason) => group.refused.push(reason),
            }
        }
        group
    }

    /// Sets the limits of a slot that is ready and runs nothing yet: what it takes now, and the share of two sides.
    pub(super) fn limit(&mut self, config: &SandboxConfig) {
        let limits = Limits::of(config);
        for folder in &mut self.folders {
            if let Err(reason) = folder.limit(&limits) {
                folder.controllers.clear();
                self.refused.push(reason);
            }
        }
    }

    /// How many processes the kernel has ended for the memory of the group.
    pub(super) fn starved(&self) -> u64 {
        self.folders.iter().map(Folder::starved).sum()
    }

    /// Kills every process in it, where the kernel can do so at a stroke.
    pub(super) fn kill(&self) {
        for folder in self.folders.iter().filter(|folder| folder.version == Version::V2) {
            // What fails here is an older kernel; the namespace of the processes is killed besides.
            let _ = fs::write(folder.path.join("cgroup.kill"), "1");
        }
    }

    /// What is in force, as a probe prints it.
    pub(super) fn describe(&self) -> String {
        let mut said: Vec<_> = self.folders.iter().map(Folder::describe).collect();
        // Where one is refused, so are the others, for the same reason.
        said.extend(self.refused.first().map(|reason| format!("not permitted: {reason}")));
        said.retain(|said| !said.is_empty());
        if said.is_empty() { "none on this machine".into() } else { said.join("; ") }
    }
}

impl Folder {
    /// Makes a group in the first folder that gives it the controllers.
    fn make(
        candidates: &[PathBuf],
        name: &str,
        version: Version,
        wanted: &[Controller],
    ) -> Result<Self, String> {
        let mut refused = String::new();
        for parent in candidates {
            match Self::make_in(parent, name, version, wanted) {
                Ok(folder) => return Ok(folder),
                Err(reason) if refused.is_empty() => refused = reason,
                Err(_) => {}
            }
        }
        Err(refused)
    }

    fn make_in(
        parent: &Path,
        name: &str,
        version: Version,
        wanted: &[Controller],
    ) -> Result<Self, String> {
        if version == Version::V2 {
            for controller in wanted {
                // Where it is on already, or may not be switched on, the group shows.
                let _ = fs::write(
                    parent.join("cgroup.subtree_control"),
                    format!("+{}", controller.name()),
                );
            }
        }
        let path = parent.join(name);
        fs::create_dir(&path).map_err(|error| said(&path, &error))?;
        let controllers = wanted
            .iter()
            .copied()
            .filter(|controller| path.join(controller.limit(version)).exists());
        let folder = Self { controllers: controllers.collect(), path, version };
        if folder.controllers.is_empty() && !wanted.is_empty() {
            return Err(format!("{}: its groups have no controllers", parent.display()));
        }
        Ok(folder)
    }

    /// Moves a process, then its children: what it starts meanwhile starts in here.
    fn join(&self, pid: u32) -> Result<(), String> {
        let file = self.path.join("cgroup.procs");
        match fs::write(&file, pid.to_string()) {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                return Err(said(&file, &error));
            }
            _ => {}
        }
        let children = PathBuf::from(format!("/proc/{pid}/task/{pid}/children"));
        match fs::read_to_string(&children) {
            Ok(found) => found
                .split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .try_for_each(|pid| self.join(pid)),
            Err(_) if !Path::new("/proc").join(pid.to_string()).exists() => Ok(()),
            Err(error) => Err(said(&children, &error)),
        }
    }

    fn limit(&self, limits: &Limits) -> Result<(), String> {
        for controller in &self.controllers {
            let taken = controller.current(self.version).map_or(Ok(0), |file| self.read(file))?;
            let limit = taken.saturating_add(limits.of_controller(*controller));
            let file = self.path.join(controller.limit(self.version));
            // A group of either version begins with this period.
            fs::write(&file, limit.to_string()).map_err(|error| said(&file, &error))?;
            if let Some((name, value)) = controller.beside(self.version, limit) {
                // Without swap on the machine, or on an older kernel, there is no such file.
                let _ = fs::write(self.path.join(name), value.to_string());
            }
        }
        Ok(())
    }

    fn read(&self, name: &str) -> Result<u64, String> {
        let file = self.path.join(name);
        let text = fs::read_to_string(&file).map_err(|error| said(&file, &error))?;
        text.trim()
            .parse()
            .map_err(|_| format!("{}: expected a number, found {:?}", file.display(), text.trim()))
    }

    fn starved(&self) -> u64 {
        let file = if self.version == Version::V2 { "memory.events" } else { "memory.oom_control" };
        // A group without the controller has no such file.
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    fn describe(&self) -> String {
        let mut names: Vec<_> =
            self.controllers.iter().map(|controller| controller.name()).collect();
        if self.version == Version::V2 && self.path.join("cgroup.kill").exists() {
            names.push("kill");
        }
        if names.is_empty() {
            String::new()
        } else {
            format!("{}: {}", self.version, names.join(", "))
        }
    }
}

impl Drop for Folder {
    /// Removes the group once the kernel is done with its processes. What cannot be removed now, the next sandbox removes.
    fn drop(&mut self) {
        let moment = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        for _ in 0..TRIES {
            match fs::remove_dir(&self.path) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    let _ = poll(&mut [], Some(&moment));
                }
                _ => return,
            }
        }
    }
}

fn said(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_its_share_of_the_processors() {
        let share = |cores, slots| processor_us(cores, slots);
        assert_eq!(share(2, 2), PERIOD_US);
        assert_eq!(share(8, 2), 4 * PERIOD_US);
        assert_eq!(share(2, 8), PERIOD_US, "one processor at least");
        assert_eq!(share(3, 2), PERIOD_US * 3 / 2);
    }
}
