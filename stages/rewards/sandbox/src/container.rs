//! The container of a slot, which defines the part of this machine that is visible to its processes.

use std::fs;
use std::path::{Path, PathBuf};

use hakoniwa::{Container, MountOptions, Namespace, Runctl};

use super::config::SandboxConfig;
use super::interpreter::Interpreter;

/// The system's programs and libraries. Symbolic links are recreated as links.
const SYSTEM: &[&str] =
    &["/bin", "/lib", "/lib32", "/lib64", "/sbin", "/usr", "/etc/alternatives", "/etc/ld.so.cache"];
const DEVICES: &[&str] = &["/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"];
/// The folder on which each checker, run or host mounts a private file system.
const MOUNT_POINT: &str = "/tmp";
/// The user database, so that programs which look up their user find a name.
const PASSWD: &str = "root:x:0:0::/:/bin/false\nnobody:x:65534:65534::/tmp:/bin/false\n";
/// The group database, so that programs which look up their group find a name.
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";

/// Returns the container of a slot. `privileged` is `true` if this process runs as root: the container then has no user namespace, and the
/// zygote changes to the user nobody. For any other user, the container has a user namespace. `root` is the folder in which the root file
/// system is set up.
pub(super) fn container(
    config: &SandboxConfig,
    interpreter: &Interpreter,
    root: &Path,
    privileged: bool,
) -> Container {
    let mut container = if privileged { Container::empty() } else { Container::new() };
    for namespace in
        [Namespace::Mount, Namespace::Pid, Namespace::Network, Namespace::Ipc, Namespace::Uts]
    {
        container.unshare(namespace);
    }
    container.rootdir(root).procfsmount("/proc").hostname("sandbox").runctl(Runctl::MountFallback);
    let mut view = View { container, bound: Vec::new() };
    for path in SYSTEM {
        view.bind(Path::new(path));
    }
    let mut folders: Vec<_> =
        interpreter.folders().chain(config.binds.iter().map(PathBuf::as_path)).collect();
    folders.sort_unstable();
    for folder in folders {
        view.bind(folder);
    }
    let mut container = view.container;
    for device in DEVICES {
        container.bindmount_rw(device, device);
    }
    container
        .dir(MOUNT_POINT, 0o555)
        .symlink(MOUNT_POINT, "/dev/shm")
        .file("/etc/passwd", PASSWD)
        .file("/etc/group", GROUP);
    container
}

/// A container, and the paths of this machine that are visible in it so far.
struct View {
    container: Container,
    bound: Vec<PathBuf>,
}

impl View {
    /// Makes a file or folder visible read-only at the same path. A symbolic link is recreated as a link. Paths that do not exist, are
    /// already visible or are not valid UTF-8 are skipped.
    fn bind(&mut self, path: &Path) {
        let Some(name) = path.to_str() else { return };
        if self.bound.iter().any(|bound| path.starts_with(bound)) {
            return;
        }
        match fs::read_link(path) {
            Ok(target) => {
                self.container.symlink(&target.to_string_lossy(), name);
            }
            Err(_) if path.exists() => {
                let options = MountOptions::BIND
                    | MountOptions::REC
                    | MountOptions::RDONLY
                    | MountOptions::NOSUID
                    | MountOptions::NODEV;
                self.container.mount(name, name, "", options, None);
                self.bound.push(path.into());
                self.create_parents(path);
            }
            Err(_) => {}
        }
    }

    /// Makes the parent folders of `path` accessible, regardless of their permissions on this machine. They are new folders of the
    /// container without other contents.
    fn create_parents(&mut self, path: &Path) {
        for folder in
            path.ancestors().skip(1).filter_map(Path::to_str).filter(|folder| *folder != "/")
        {
            self.container.dir(folder, 0o755);
        }
    }
}
