//! The container of a slot: what of this machine its processes see.

use std::fs;
use std::path::{Path, PathBuf};

use hakoniwa::{Container, MountOptions, Namespace, Runctl};

use super::config::SandboxConfig;
use super::interpreter::Interpreter;

/// The system's programs and libraries. What is a link here is one there.
const SYSTEM: &[&str] =
    &["/bin", "/lib", "/lib32", "/lib64", "/sbin", "/usr", "/etc/alternatives", "/etc/ld.so.cache"];
const DEVICES: &[&str] = &["/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"];
/// Where each job mounts its own.
const MOUNT_POINT: &str = "/tmp";
/// Who a run is, so that a program which asks finds a name.
const PASSWD: &str = "root:x:0:0::/:/bin/false\nnobody:x:65534:65534::/tmp:/bin/false\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";

/// The container of a slot. Root keeps its user namespace, and becomes nobody in the zygote; any other user gets one.
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
        view.show(Path::new(path));
    }
    let mut folders: Vec<_> =
        interpreter.folders().chain(config.binds.iter().map(PathBuf::as_path)).collect();
    folders.sort_unstable();
    for folder in folders {
        view.show(folder);
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

/// A container, and what of this machine it shows so far.
struct View {
    container: Container,
    bound: Vec<PathBuf>,
}

impl View {
    /// Shows a file or folder where it is, read-only; what is not there, or is shown already, is left out.
    fn show(&mut self, path: &Path) {
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
                self.open_the_way(path);
            }
            Err(_) => {}
        }
    }

    /// Lets anyone through to `path`, whatever the folders on the way allow on this machine: these are others, and hold nothing else.
    fn open_the_way(&mut self, path: &Path) {
        for folder in
            path.ancestors().skip(1).filter_map(Path::to_str).filter(|folder| *folder != "/")
        {
            self.container.dir(folder, 0o755);
        }
    }
}
