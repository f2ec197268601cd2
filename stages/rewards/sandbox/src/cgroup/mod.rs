//! Control groups: limits on the total resources of the processes of a slot, where this process may create groups.
//!
//! Process limits apply to each process separately, and a solution may start many. A group contains all processes of a slot. Processes join
//! the group once, when the slot starts, because moving a process costs the kernel more than a whole job. The group limits memory, number
//! of processes and processor time; processor time is limited to the slot's share of the machine. The kernel gives all groups the same
//! weight, so a solution that forks slows down itself and not the other slots. Each controller is taken from version 2 if the machine has
//! it there, otherwise from version 1. Without permission to create groups, only the other limits apply, and the [`Probe`](super::Probe)
//! reports it.
//!
//! The names of groups contain the id of the process that created them. Groups are removed with their slot. If a process dies before it
//! removes its groups, the next sandbox removes them.

mod hierarchy;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{Timespec, poll};

use super::config::SandboxConfig;
pub(super) use hierarchy::sweep;
use hierarchy::{Controller, PREFIX, Version, hierarchies};

/// The reserve in bytes for kernel and interpreter: page tables, sockets, pages that a fork copies.
const SLACK_BYTES: u64 = 32 << 20;
/// The number of processes that the limit of a slot allows in addition to `processes` of the configuration, for each of the checker and the
/// run.
const EXTRA_PROCESSES: u64 = 2;
/// The period in microseconds over which processor time is limited. It is the kernel's default for new groups.
const PERIOD_US: u64 = 100_000;
/// The number of attempts to remove a group whose processes are about to end, one millisecond apart.
const MAX_TRIES: u32 = 200;

/// The group of a slot: a folder in each hierarchy of [`hierarchies`] where a group could be created.
///
/// Dropping this value removes the group. All of its processes must have ended by then.
#[derive(Debug, Default)]
pub(super) struct Group {
    folders: Vec<GroupFolder>,
    /// The errors of the hierarchies in which the group could not be created or joined, or a limit could not be set.
    refused: Vec<String>,
}

/// A group in one hierarchy.
#[derive(Debug)]
struct GroupFolder {
    path: PathBuf,
    version: Version,
    controllers: Vec<Controller>,
}

/// The limits of a slot. Those of memory and processes are for one checker and one run, in addition to the usage of an idle slot.
struct GroupLimits {
    /// Memory in bytes, including the tmpfs and [`SLACK_BYTES`].
    memory: u64,
    /// Number of processes and threads.
    processes: u64,
    /// Processor time per [`PERIOD_US`], in microseconds: the slot's share of the cores, but at least one core.
    processor_us: u64,
}

impl GroupLimits {
    fn of(config: &SandboxConfig) -> Self {
        let memory = config.memory_bytes.saturating_mul(2);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            memory: memory.saturating_add(config.tmpfs_bytes).saturating_add(SLACK_BYTES),
            processes: 2 * (u64::from(config.processes) + EXTRA_PROCESSES),
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

/// Returns the slot's share of the processors, but at least one processor, in microseconds per period.
fn processor_us(cores: usize, slots: usize) -> u64 {
    let share = PERIOD_US.saturating_mul(cores as u64) / (slots as u64).max(1);
    share.max(PERIOD_US)
}

impl Group {
    /// Creates a group and moves a process and its descendants into it, as far as permitted.
    pub(super) fn containing(pid: u32) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let mut group = Self::default();
        for hierarchy in hierarchies() {
            let folder = GroupFolder::create(
                &hierarchy.candidates,
                &name,
                hierarchy.version,
                &hierarchy.controllers,
            );
            match folder.and_then(|folder| folder.join(pid).map(|()| folder)) {
                Ok(folder) => group.folders.push(folder),
                Err(reason) => group.refused.push(reason),
            }
        }
        group
    }

    /// Limits the resources of the slot. Call this while the slot is idle: the limits of memory and processes are [`GroupLimits`] plus the
    /// current usage. A hierarchy in which a limit cannot be set counts as refused.
    pub(super) fn limit(&mut self, config: &SandboxConfig) {
        let limits = GroupLimits::of(config);
        for folder in &mut self.folders {
            if let Err(reason) = folder.limit(&limits) {
                folder.controllers.clear();
                self.refused.push(reason);
            }
        }
    }

    /// Returns the number of processes that the kernel killed because the group ran out of memory; 0 if no group limits memory.
    pub(super) fn oom_kills(&self) -> u64 {
        self.folders.iter().map(GroupFolder::oom_kills).sum()
    }

    /// Kills all processes of the group, if the kernel supports it as one operation.
    pub(super) fn kill(&self) {
        for folder in self.folders.iter().filter(|folder| folder.version == Version::V2) {
            // Fails on older kernels. The pid namespace of the processes is killed in any case.
            let _ = fs::write(folder.path.join("cgroup.kill"), "1");
        }
    }

    /// Returns a description of the limits in force, for a probe.
    pub(super) fn describe(&self) -> String {
        let mut lines: Vec<_> = self.folders.iter().map(GroupFolder::describe).collect();
        // All failures have the same reason, so the first is enough.
        lines.extend(self.refused.first().map(|reason| format!("not permitted: {reason}")));
        lines.retain(|lines| !lines.is_empty());
        if lines.is_empty() { "none on this machine".into() } else { lines.join("; ") }
    }
}

impl GroupFolder {
    /// Creates a group in the first candidate where this succeeds and the group has at least one of the `wanted` controllers, if there are
    /// any. If all candidates fail, returns the error of the first one.
    fn create(
        candidates: &[PathBuf],
        name: &str,
        version: Version,
        wanted: &[Controller],
    ) -> Result<Self, String> {
        let mut refused = String::new();
        for parent in candidates {
            match Self::create_in(parent, name, version, wanted) {
                Ok(folder) => return Ok(folder),
                Err(reason) if refused.is_empty() => refused = reason,
                Err(_) => {}
            }
        }
        Err(refused)
    }

    fn create_in(
        parent: &Path,
        name: &str,
        version: Version,
        wanted: &[Controller],
    ) -> Result<Self, String> {
        if version == Version::V2 {
            for controller in wanted {
                // Errors are ignored: whether the controller is enabled is checked in the new group.
                let _ = fs::write(
                    parent.join("cgroup.subtree_control"),
                    format!("+{}", controller.name()),
                );
            }
        }
        let path = parent.join(name);
        fs::create_dir(&path).map_err(|error| at_path(&path, &error))?;
        let controllers = wanted
            .iter()
            .copied()
            .filter(|controller| path.join(controller.limit_file(version)).exists());
        let folder = Self { controllers: controllers.collect(), path, version };
        if folder.controllers.is_empty() && !wanted.is_empty() {
            return Err(format!("{}: its groups have no controllers", parent.display()));
        }
        Ok(folder)
    }

    /// Moves a process and then its descendants into the group. The order matters: what the process starts meanwhile is already created in
    /// the group.
    fn join(&self, pid: u32) -> Result<(), String> {
        let file = self.path.join("cgroup.procs");
        match fs::write(&file, pid.to_string()) {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                return Err(at_path(&file, &error));
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
            Err(error) => Err(at_path(&children, &error)),
        }
    }

    fn limit(&self, limits: &GroupLimits) -> Result<(), String> {
        for controller in &self.controllers {
            let taken =
                controller.usage_file(self.version).map_or(Ok(0), |file| self.read(file))?;
            let limit = taken.saturating_add(limits.of_controller(*controller));
            let file = self.path.join(controller.limit_file(self.version));
            // The value is per period, and the period of a new group is the default in both versions.
            fs::write(&file, limit.to_string()).map_err(|error| at_path(&file, &error))?;
            if let Some((name, value)) = controller.secondary_limit(self.version, limit) {
                // The file is missing on machines without swap and on older kernels.
                let _ = fs::write(self.path.join(name), value.to_string());
            }
        }
        Ok(())
    }

    fn read(&self, name: &str) -> Result<u64, String> {
        let file = self.path.join(name);
        let text = fs::read_to_string(&file).map_err(|error| at_path(&file, &error))?;
        text.trim()
            .parse()
            .map_err(|_| format!("{}: expected a number, found {:?}", file.display(), text.trim()))
    }

    fn oom_kills(&self) -> u64 {
        let file = if self.version == Version::V2 { "memory.events" } else { "memory.oom_control" };
        // The file is missing if the group does not have the controller.
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

impl Drop for GroupFolder {
    /// Removes the group once the kernel has cleaned up its processes. If this fails, the next sandbox removes it.
    fn drop(&mut self) {
        let moment = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        for _ in 0..MAX_TRIES {
            match fs::remove_dir(&self.path) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    let _ = poll(&mut [], Some(&moment));
                }
                _ => return,
            }
        }
    }
}

fn at_path(path: &Path, error: &io::Error) -> String {
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
