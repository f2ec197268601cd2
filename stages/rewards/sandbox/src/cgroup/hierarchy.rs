//! The hierarchies of control groups on this machine, and the position of this process in them.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// The prefix of the names of sandbox groups. The process id follows.
pub(super) const PREFIX: &str = "rollpacker-sandbox-";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// Several hierarchies, each with one or more controllers.
    V1,
    /// One hierarchy for all controllers.
    V2,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::V1 { "v1" } else { "v2" })
    }
}

/// A resource that a group can limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    Memory,
    Pids,
    Cpu,
}

impl Controller {
    const ALL: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }

    pub(super) fn limit_file(self, version: Version) -> &'static str {
        match (self, version) {
            (Self::Memory, Version::V1) => "memory.limit_in_bytes",
            (Self::Memory, Version::V2) => "memory.max",
            (Self::Pids, _) => "pids.max",
            (Self::Cpu, Version::V1) => "cpu.cfs_quota_us",
            (Self::Cpu, Version::V2) => "cpu.max",
        }
    }

    /// Returns the name of the file that holds the current usage. `None` for processor time, whose limit applies to each period anew.
    pub(super) fn usage_file(self, version: Version) -> Option<&'static str> {
        match (self, version) {
            (Self::Memory, Version::V1) => Some("memory.usage_in_bytes"),
            (Self::Memory, Version::V2) => Some("memory.current"),
            (Self::Pids, _) => Some("pids.current"),
            (Self::Cpu, _) => None,
        }
    }

    /// Returns the name and the value of a second limit file, which not every kernel has. For memory, it limits memory and swap together
    /// (version 1) or disables swap (version 2). For processor time, it lets the group save unused time, up to the limit of one period.
    /// `None` for processes.
    pub(super) fn secondary_limit(
        self,
        version: Version,
        limit: u64,
    ) -> Option<(&'static str, u64)> {
        match (self, version) {
            (Self::Memory, Version::V1) => Some(("memory.memsw.limit_in_bytes", limit)),
            (Self::Memory, Version::V2) => Some(("memory.swap.max", 0)),
            (Self::Pids, _) => None,
            (Self::Cpu, Version::V1) => Some(("cpu.cfs_burst_us", limit)),
            (Self::Cpu, Version::V2) => Some(("cpu.max.burst", limit)),
        }
    }
}

/// A control group hierarchy, with the folders in which the sandbox tries to create its groups.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    /// The controllers that are used in this hierarchy. Empty if a version 2 hierarchy offers none of them.
    pub(super) controllers: Vec<Controller>,
    /// The folder of this process and, for version 2, its parent: a group that contains processes cannot enable controllers for its
    /// children.
    pub(super) candidates: Vec<PathBuf>,
}

/// Returns the usable hierarchies of this machine, version 2 first.
pub(super) fn hierarchies() -> Vec<Hierarchy> {
    // Without /proc there are no hierarchies.
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    parse_hierarchies(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"), |folder| {
        fs::read_to_string(folder.join("cgroup.controllers")).unwrap_or_default()
    })
}

/// Removes the empty groups of dead processes.
pub(in super::super) fn sweep() {
    for folder in hierarchies().iter().flat_map(|hierarchy| &hierarchy.candidates) {
        let names = fs::read_dir(folder).into_iter().flatten().flatten();
        for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
            if owner_pid(&name).is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                // The kernel refuses if the group contains a process; then the id in the name belongs to another pid namespace.
                let _ = fs::remove_dir(folder.join(name));
            }
        }
    }
}

/// Returns the id of the process that created the group with this name; `None` if the name is not that of a sandbox group.
fn owner_pid(name: &str) -> Option<&str> {
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    pid.parse::<u32>().ok().map(|_| pid)
}

fn parse_hierarchies(
    mounts: &str,
    own: &str,
    available: impl Fn(&Path) -> String,
) -> Vec<Hierarchy> {
    let mounts: Vec<_> = mounts.lines().filter_map(Mount::read).collect();
    let mut left = Controller::ALL.to_vec();
    let mut hierarchies = Vec::new();
    for mount in mounts.iter().filter(|mount| mount.kind == "cgroup2").take(1) {
        let folder = mount.folder(own_path(own, ""));
        let offered = available(&folder);
        let controllers = take(&mut left, |name| offered.split_whitespace().any(|one| one == name));
        hierarchies.push(Hierarchy {
            version: Version::V2,
            controllers,
            candidates: mount.with_parent(folder),
        });
    }
    for mount in mounts.iter().filter(|mount| mount.kind == "cgroup") {
        let controllers = take(&mut left, |name| mount.options.split(',').any(|one| one == name));
        let Some(first) = controllers.first() else { continue };
        let candidates = vec![mount.folder(own_path(own, first.name()))];
        hierarchies.push(Hierarchy { version: Version::V1, controllers, candidates });
    }
    hierarchies
}

/// Removes the controllers whose names satisfy `offered` from `left`, the controllers that no hierarchy provides yet, and returns them.
fn take(left: &mut Vec<Controller>, offered: impl Fn(&str) -> bool) -> Vec<Controller> {
    left.extract_if(.., |controller| offered(controller.name())).collect()
}

/// Returns the path of this process in the hierarchy of `controller`, from the contents of `/proc/self/cgroup`; `/` if there is none.
/// `controller` is empty for version 2, whose line names no controller.
fn own_path<'a>(own: &'a str, controller: &str) -> &'a str {
    let mut lines = own
        .lines()
        .filter_map(|line| line.splitn(3, ':').skip(1).collect::<Vec<_>>().try_into().ok());
    let found =
        lines.find(|[names, _]: &[&str; 2]| names.split(',').any(|name| name == controller));
    found.map_or("/", |[_, path]| path)
}

/// A mount of a control group hierarchy, as a line of `/proc/self/mountinfo` describes it.
struct Mount<'a> {
    /// The part of the file system that is mounted.
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// Parses a line of `mountinfo`. Returns `None` if the file system is not `cgroup` or `cgroup2`.
    fn read(line: &'a str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let mut system = system.split(' ');
        let (kind, _, options) = (system.next()?, system.next()?, system.next()?);
        matches!(kind, "cgroup" | "cgroup2").then_some(Self { root, point, kind, options })
    }

    /// Returns the folder of a group. A group outside of the mounted part is mapped to the mount point.
    fn folder(&self, group: &str) -> PathBuf {
        let inner = Path::new(group).strip_prefix(self.root).unwrap_or(Path::new(""));
        Path::new(self.point).join(inner)
    }

    fn with_parent(&self, folder: PathBuf) -> Vec<PathBuf> {
        let parent =
            folder.parent().filter(|parent| parent.starts_with(self.point)).map(Path::to_path_buf);
        [Some(folder), parent].into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        mounts: &str,
        own: &str,
        offered: &str,
        expected: &[(Version, &[Controller], &[&str])],
    ) {
        let found = parse_hierarchies(mounts, own, |_| offered.into());
        let expected: Vec<_> = expected
            .iter()
            .map(|(version, controllers, candidates)| Hierarchy {
                version: *version,
                controllers: controllers.to_vec(),
                candidates: candidates.iter().map(PathBuf::from).collect(),
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn version_2_alone() {
        check(
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n22 1 0:1 / /proc rw - proc proc rw",
            "0::/user.slice/run.scope\n",
            "cpu memory pids",
            &[(
                Version::V2,
                &Controller::ALL,
                &["/sys/fs/cgroup/user.slice/run.scope", "/sys/fs/cgroup/user.slice"],
            )],
        );
    }

    #[test]
    fn controllers_missing_from_version_2_are_those_of_version_1() {
        let mounts = "31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
            32 30 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
            33 30 0:29 /job /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            34 30 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct";
        check(
            mounts,
            "4:memory:/job/inner\n3:pids:/\n0::/\n",
            "hugetlb",
            &[
                (Version::V2, &[], &["/sys/fs/cgroup/unified"]),
                (Version::V1, &[Controller::Pids], &["/sys/fs/cgroup/pids"]),
                (Version::V1, &[Controller::Memory], &["/sys/fs/cgroup/memory/inner"]),
                (Version::V1, &[Controller::Cpu], &["/sys/fs/cgroup/cpu"]),
            ],
        );
        check(
            mounts,
            "",
            "memory pids cpu",
            &[(Version::V2, &Controller::ALL, &["/sys/fs/cgroup/unified"])],
        );
    }

    #[test]
    fn a_group_outside_the_mount_is_at_its_root() {
        check(
            "30 23 0:26 /a/b /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
            "0::/c\n",
            "",
            &[(Version::V2, &[], &["/sys/fs/cgroup"])],
        );
    }

    #[test]
    fn the_owner_is_parsed_from_the_name() {
        assert_eq!(owner_pid("rollpacker-sandbox-12-3"), Some("12"));
        for other in ["rollpacker-sandbox-x-3", "rollpacker-sandbox-12", "system.slice"] {
            assert_eq!(owner_pid(other), None);
        }
    }
}
