//! The amount of memory that this process can still allocate.

use std::fmt;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// The memory that this process can still allocate, and the limit that determines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    /// The number of bytes that the process can still allocate.
    pub bytes: u64,
    /// The limit that is reached first.
    pub limit: Limit,
}

/// A limit on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The kernel's estimate of the memory that can be allocated without swapping, plus free swap.
    Machine,
    /// The memory limit of a control group, which containers use, minus the use of the group without cached files, plus the free swap of
    /// the machine.
    ControlGroup,
    /// The limit on the address space of a process, `RLIMIT_AS`, minus the address space that this process uses.
    AddressSpace,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Machine => "free memory of the machine",
            Self::ControlGroup => "limit of the control group",
            Self::AddressSpace => "limit of the address space, `ulimit -v`",
        })
    }
}

/// Returns the memory that is available within the limits of the machine, the control groups and this process: the smallest of the amounts
/// that these limits leave. Returns `None` if the system reports no limit.
#[must_use]
pub fn available() -> Option<Available> {
    let swap = read("/proc/meminfo").and_then(|text| field(&text, "SwapFree:")).unwrap_or(0);
    let machine = read("/proc/meminfo").and_then(|text| field(&text, "MemAvailable:"));
    let groups = read("/proc/self/cgroup").map(|text| folders(&text)).unwrap_or_default();
    let groups = groups.iter().filter_map(|folder| cgroup_headroom(Path::new(folder))).min();
    let limits = [
        (machine.map(|bytes| bytes.saturating_add(swap)), Limit::Machine),
        (groups.map(|bytes| bytes.saturating_add(swap)), Limit::ControlGroup),
        (address_space_headroom(), Limit::AddressSpace),
    ];
    let limits =
        limits.into_iter().filter_map(|(bytes, limit)| Some(Available { bytes: bytes?, limit }));
    limits.min_by_key(|available| available.bytes)
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Returns the value in bytes of a line such as `MemAvailable:  1024 kB` in a file of /proc.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Returns the folders of the memory control groups that `/proc/self/cgroup` lists, of either version, and of their parents.
fn folders(groups: &str) -> Vec<String> {
    let with_parents = |(root, path): (&str, &str)| {
        let parents = Path::new(path).ancestors().map(|path| path.display().to_string());
        parents.map(|path| format!("{root}{path}")).collect::<Vec<_>>()
    };
    groups.lines().filter_map(folder).flat_map(with_parents).collect()
}

/// Returns the root and the path of the control group in a line of `/proc/self/cgroup`, if that group can limit memory.
fn folder(line: &str) -> Option<(&'static str, &str)> {
    let mut parts = line.splitn(3, ':').skip(1);
    match (parts.next()?, parts.next()?) {
        ("", path) => Some(("/sys/fs/cgroup", path)),
        (controllers, path) if controllers.split(',').any(|name| name == "memory") => {
            Some(("/sys/fs/cgroup/memory", path))
        }
        _ => None,
    }
}

/// Returns the memory left in a control group, or `None` if it has no limit or its usage cannot be read. Cached file pages count as free,
/// because the kernel reclaims them.
fn cgroup_headroom(folder: &Path) -> Option<u64> {
    let number = |name: &str| read(folder.join(name))?.trim().parse::<u64>().ok();
    let first = |names: [&str; 2]| names.into_iter().find_map(number);
    let limit = first(["memory.max", "memory.limit_in_bytes"])?;
    let used = first(["memory.current", "memory.usage_in_bytes"])?;
    let cached = read(folder.join("memory.stat")).map_or(0, |text| cached(&text));
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

/// Returns the bytes of cached file pages in a `memory.stat`, preferring hierarchical totals.
fn cached(stat: &str) -> u64 {
    let value = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse::<u64>().ok())
    };
    let sum = |names: [&str; 2]| names.into_iter().map(value).sum::<Option<u64>>();
    sum(["total_active_file", "total_inactive_file"])
        .or_else(|| sum(["active_file", "inactive_file"]))
        .unwrap_or(0)
}

fn address_space_headroom() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    let used = read("/proc/self/status").and_then(|text| field(&text, "VmSize:")).unwrap_or(0);
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_are_in_bytes() {
        let text = "MemTotal:       16384 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(field(text, "MemAvailable:"), Some(2 << 20));
        assert_eq!(field(text, "SwapFree:"), None);
    }

    #[test]
    fn groups_of_both_versions_are_found_with_their_parents() {
        assert_eq!(
            folders("0::/user/run\n"),
            ["/sys/fs/cgroup/user/run", "/sys/fs/cgroup/user", "/sys/fs/cgroup/"]
        );
        assert_eq!(
            folders("5:cpu,cpuacct:/a\n4:hugetlb,memory:/job\n"),
            ["/sys/fs/cgroup/memory/job", "/sys/fs/cgroup/memory/"]
        );
    }

    #[test]
    fn a_group_has_its_limit_minus_unreclaimable_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("written");
        };
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        assert_eq!(cgroup_headroom(folder.path()), None, "it has no limit");
        write("memory.max", "1000\n");
        write("memory.stat", "anon 500\nactive_file 150\ninactive_file 50\n");
        assert_eq!(cgroup_headroom(folder.path()), Some(500));
    }

    #[test]
    fn the_memory_of_this_machine_is_detected() {
        let found = available().expect("a machine that reports its memory");
        assert!(found.bytes > 0, "{found:?}");
    }
}
