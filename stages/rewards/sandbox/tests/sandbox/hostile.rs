//! Hostile solutions, which try to pass without adding, to read secrets or to harm the machine. Each returns the correct sum if and only if
//! its attempt succeeds.

use rollpacker_sandbox::Outcome;
use rollpacker_sandbox::Outcome::{Failed, Forbidden, Memory, Passed, RuntimeError, Timeout};

/// A hostile solution and its permitted outcomes.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) code: String,
    pub(crate) expected: &'static [Outcome],
}

pub(crate) const BUSY: &str = "def add(a, b):\n    while True:\n        pass\n";
pub(crate) const ORPHANS: &str = "\
import os, time
def add(a, b):
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(1000)
            os._exit(0)
    os.wait()
    return -1
";

/// A program that counts the occurrences in memory of a word that the program itself does not hold. Unmapped pages are skipped: a write of
/// them to a pipe fails.
pub(crate) const SEARCH: &str = "\
import ctypes, os
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
reader, writer = os.pipe()
found = 0
brk = libc.sbrk(0) // 4096 * 4096
near = id(object()) // 4096 * 4096
for start, size in ((brk - (32 << 20), 32 << 20), (near - (32 << 20), 64 << 20)):
    for page in range(start, start + size, 4096):
        if libc.write(writer, ctypes.c_void_p(page), 4096) == 4096:
            data = os.read(reader, 4096)
            at = data.find(b'QUEEN')
            while at >= 0:
                found += data[at + 5:at + 8] == b'BEE'
                at = data.find(b'QUEEN', at + 1)
            del data
print(found)
";

/// Returns the name of an environment variable of the test process that must be hidden from solutions.
pub(crate) fn secret() -> String {
    // Any variable of the parent must be hidden; cargo sets this one for every test.
    let name = "CARGO_MANIFEST_DIR";
    assert!(std::env::var_os(name).is_some() || std::env::var_os("SANDBOX_TEST_AS_USER").is_some());
    name.into()
}

/// Returns sample `number` of the long run, with its expected outcome.
pub(crate) fn mixed(number: usize) -> (&'static str, Outcome) {
    const MIX: [(&str, Outcome); 10] = [
        ("def add(a, b):\n    return a + b\n", Passed),
        ("def add(a, b):\n    return a - b\n", Failed),
        ("def add(a, b):\n    raise ValueError(a)\n", RuntimeError),
        ("import os\nos._exit(0)\n", RuntimeError),
        (
            "import ctypes\ndef add(a, b):\n    ctypes.CDLL(None).ptrace(0, 0, 0, 0)\n    return a + b\n",
            Forbidden,
        ),
        (ORPHANS, Failed),
        ("def add(a, b):\n    return len(bytearray(1 << 30)) and a + b\n", Memory),
        ("def add(a, b):\n    print('x' * 100000)\n    return a + b\n", Passed),
        (
            "open('/tmp/big', 'wb').write(bytes(1 << 20))\ndef add(a, b):\n    return a + b\n",
            Passed,
        ),
        (
            "import threading\nfor _ in range(5):\n    threading.Thread(target=threading.Event().wait, daemon=True).start()\ndef add(a, b):\n    return a + b\n",
            Passed,
        ),
    ];
    MIX[number % MIX.len()]
}

/// Returns a solution that runs `attempt` inside the function and then adds.
fn adds_after(attempt: &str) -> String {
    let body: String = attempt.lines().map(|line| format!("    {line}\n")).collect();
    format!(
        "import ctypes, gc, os, resource, signal, socket, subprocess, sys, threading, time\ndef add(a, b):\n{body}    return a + b\n"
    )
}

/// Returns an attack that invokes a system call; `arguments` begin with its number.
fn calls(name: &'static str, arguments: &str) -> Attack {
    let code =
        adds_after(&format!("if ctypes.CDLL(None).syscall({arguments}) == -1: raise OSError"));
    Attack { name, code, expected: &[Forbidden] }
}

pub(crate) fn attacks(secret: &str) -> Vec<Attack> {
    let mut attacks = exhaustion();
    attacks.extend(reading(secret));
    attacks.extend(writing());
    attacks.extend(processes());
    attacks.extend(system_calls());
    attacks.extend(score_hacks());
    attacks
}

fn tries(name: &'static str, attempt: &str, expected: &'static [Outcome]) -> Attack {
    Attack { name, code: adds_after(attempt), expected }
}

fn code(name: &'static str, code: &str, expected: &'static [Outcome]) -> Attack {
    Attack { name, code: code.into(), expected }
}

fn exhaustion() -> Vec<Attack> {
    vec![
        code("busy loop", BUSY, &[Timeout]),
        tries("sleep", "time.sleep(1000)", &[Timeout]),
        tries("fork bomb", "while True: os.fork()", &[Timeout, RuntimeError]),
        tries(
            "stubborn fork bomb",
            "while True:\n    try: os.fork()\n    except OSError: pass",
            &[Timeout],
        ),
        tries(
            "thread bomb",
            "while True: threading.Thread(target=time.sleep, args=(1000,)).start()",
            &[RuntimeError, Timeout, Memory],
        ),
        tries("memory bomb", "hoard = []\nwhile True: hoard.append(bytearray(1 << 20))", &[Memory]),
        tries("one large block", "len(bytearray(1 << 34))", &[Memory]),
        tries(
            "memory outside of limits",
            "fd = os.memfd_create('x')\nos.write(fd, bytes(1 << 20))",
            &[RuntimeError],
        ),
        tries("output flood", "while True: print('x' * 65536)", &[Timeout]),
        tries(
            "flood of both streams",
            "while True: os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)",
            &[Timeout],
        ),
        tries(
            "deaf to SIGTERM",
            "for n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
            &[Timeout],
        ),
        tries("stopped", "os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(1000)", &[Timeout]),
        tries(
            "file over its limit",
            "open('/tmp/x', 'wb').write(bytes(17 << 20))",
            &[RuntimeError],
        ),
        tries(
            "disk full",
            "for i in range(8): open('/tmp/%d' % i, 'wb').write(bytes(15 << 20))",
            &[RuntimeError],
        ),
        tries("descriptors", "files = [open('/dev/null') for _ in range(1000)]", &[RuntimeError]),
        tries(
            "limits raised",
            "resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)",
            &[RuntimeError],
        ),
        tries(
            "a result beyond measure",
            "return 'x' * (100 << 20)",
            &[Failed, RuntimeError, Memory, Timeout],
        ),
        code(
            "stack overflow",
            "import sys\nsys.setrecursionlimit(10 ** 8)\ndef add(a, b):\n    return add(a, b)\n",
            &[RuntimeError, Memory, Timeout],
        ),
    ]
}

fn reading(secret: &str) -> Vec<Attack> {
    let repository = env!("CARGO_MANIFEST_DIR");
    vec![
        tries("shadow", "open('/etc/shadow').read()", &[RuntimeError]),
        tries(
            "shadow by a link",
            "os.symlink('/etc/shadow', '/tmp/link')\nopen('/tmp/link').read()",
            &[RuntimeError],
        ),
        tries("shadow by /proc", "open('/proc/1/root/etc/shadow').read()", &[RuntimeError]),
        tries(
            "shadow by a descriptor",
            "[open('/proc/self/fd/%d/etc/shadow' % fd) for fd in range(64)]",
            &[RuntimeError],
        ),
        tries(
            "shadow by an open folder",
            "for fd in range(3, 64):\n    try: os.open('../' * 9 + 'etc/shadow', 0, dir_fd=fd); break\n    except OSError: pass\nelse: raise OSError",
            &[RuntimeError],
        ),
        tries(
            "this repository",
            &format!("open('{repository}/Cargo.toml').read()"),
            &[RuntimeError],
        ),
        tries("homes", "if not os.listdir('/home'): raise OSError", &[RuntimeError]),
        tries("the environment", &format!("os.environ['{secret}']"), &[RuntimeError]),
        tries(
            "the environment of the parent",
            "open('/proc/%d/environ' % os.getppid()).read()",
            &[RuntimeError],
        ),
        tries("the environment of the first", "open('/proc/1/environ').read()", &[RuntimeError]),
        tries("own memory by /proc", "open('/proc/self/mem', 'rb')", &[RuntimeError]),
        tries(
            "other processes",
            "if not [p for p in os.listdir('/proc') if p.isdigit()]: raise OSError",
            &[RuntimeError],
        ),
        tries("disks", "open('/dev/vda', 'rb').read(1)", &[RuntimeError]),
        tries("the network", "socket.create_connection(('1.1.1.1', 53), 1)", &[RuntimeError]),
        tries("the loopback", "socket.create_connection(('127.0.0.1', 22), 1)", &[RuntimeError]),
        tries(
            "datagrams",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53))",
            &[RuntimeError],
        ),
        tries("netlink", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", &[RuntimeError]),
        tries(
            "a socket of this machine",
            "socket.socket(socket.AF_UNIX).connect('/run/systemd/private')",
            &[RuntimeError],
        ),
    ]
}

fn writing() -> Vec<Attack> {
    vec![
        tries("write to the root", "open('/x', 'w')", &[RuntimeError]),
        tries("write to the system", "open('/usr/x', 'w')", &[RuntimeError]),
        tries("write to /etc", "open('/etc/passwd', 'a')", &[RuntimeError]),
        tries(
            "the interpreter deleted",
            "os.remove(os.path.realpath(sys.executable))",
            &[RuntimeError],
        ),
        tries("the library patched", "open(os.__file__, 'a').write('x')", &[RuntimeError]),
        tries(
            "bytecode planted",
            "os.makedirs(os.path.dirname(os.__file__) + '/__pycache__', exist_ok=True)\nopen(os.path.dirname(os.__file__) + '/__pycache__/x', 'w')",
            &[RuntimeError],
        ),
        tries(
            "a device made",
            "os.mknod('/tmp/disk', 0o60666, os.makedev(8, 0))\nopen('/tmp/disk', 'rb').read(1)",
            &[RuntimeError],
        ),
        tries("a user taken on", "os.setuid(0)", &[RuntimeError]),
    ]
}

fn processes() -> Vec<Attack> {
    vec![
        code("orphans in sessions of their own", ORPHANS, &[Failed]),
        tries(
            "the parent killed",
            "os.kill(os.getppid() or 2, signal.SIGKILL)\ntime.sleep(0.1)\nif os.getppid() != 0: raise OSError",
            &[RuntimeError],
        ),
        tries(
            "any number killed",
            "def kills(pid):\n    try: os.kill(pid, signal.SIGKILL)\n    except ProcessLookupError: return False\n    return True\nif not any(map(kills, range(2, 33000))): raise OSError",
            &[RuntimeError],
        ),
        tries(
            "the parent interrupted",
            "os.kill(os.getppid(), signal.SIGINT)\nraise OSError",
            &[RuntimeError],
        ),
        tries("everything killed", "os.kill(-1, signal.SIGKILL)\nraise OSError", &[RuntimeError]),
        tries(
            "the parent's limits",
            "resource.prlimit(os.getppid() or 1, resource.RLIMIT_CPU, (0, 0))",
            &[RuntimeError],
        ),
        tries(
            "the parent's memory",
            "ctypes.CDLL(None).prctl(15, b'x', 0, 0, 0)\nopen('/proc/%d/mem' % os.getppid(), 'rb')",
            &[RuntimeError],
        ),
        tries(
            "a shell",
            "subprocess.run(['/bin/sh', '-c', 'exit 0'], check=True)",
            &[RuntimeError],
        ),
        tries("a shell by system", "if os.system('true') != 0: raise OSError", &[RuntimeError]),
        tries(
            "another interpreter",
            "os.execv(sys.executable, ['python3', '-c', 'pass'])",
            &[RuntimeError],
        ),
        tries("a crash", "ctypes.string_at(0)", &[RuntimeError]),
        tries("an abort", "os.abort()", &[RuntimeError]),
    ]
}

fn system_calls() -> Vec<Attack> {
    let number = |call: i64, arguments: &str| format!("{call}{arguments}");
    vec![
        calls("ptrace", &number(libc::SYS_ptrace, ", 0, 0, 0, 0")),
        calls("memory of another", &number(libc::SYS_process_vm_readv, ", 1, 0, 0, 0, 0, 0")),
        calls("mount", &number(libc::SYS_mount, ", b'proc', b'/tmp', b'proc', 0, 0")),
        calls("unmount", &number(libc::SYS_umount2, ", b'/proc', 2")),
        calls("unshare", &number(libc::SYS_unshare, ", 0x10000000")),
        calls("clone into a namespace", &number(libc::SYS_clone, ", 0x10000011, 0, 0, 0, 0")),
        calls("setns", &number(libc::SYS_setns, ", 0, 0")),
        calls("chroot", &number(libc::SYS_chroot, ", b'/tmp'")),
        calls("pivot_root", &number(libc::SYS_pivot_root, ", b'/', b'/tmp'")),
        calls("bpf", &number(libc::SYS_bpf, ", 0, 0, 0")),
        calls("perf", &number(libc::SYS_perf_event_open, ", 0, 0, 0, 0, 0")),
        calls("keys", &number(libc::SYS_keyctl, ", 0, 0")),
        calls("userfaultfd", &number(libc::SYS_userfaultfd, ", 0")),
        calls("io_uring", &number(libc::SYS_io_uring_setup, ", 1, 0")),
        calls("descriptor of another", &number(libc::SYS_pidfd_getfd, ", 0, 0, 0")),
        calls("file handles", &number(libc::SYS_open_by_handle_at, ", 0, 0, 0")),
        calls("reboot", &number(libc::SYS_reboot, ", 0, 0, 0, 0")),
        tries(
            "clone3",
            "if ctypes.CDLL(None).syscall(435, 0, 0) == -1: raise OSError",
            &[RuntimeError],
        ),
        #[cfg(target_arch = "x86_64")]
        tries(
            "calls of the x32 kind",
            "if ctypes.CDLL(None).syscall(0x40000000 + 101, 0, 0, 0, 0) == -1: raise OSError",
            &[RuntimeError, Forbidden],
        ),
    ]
}

fn score_hacks() -> Vec<Attack> {
    const EXITED: &[Outcome] = &[RuntimeError, Failed];
    let verdict = r#"{"verdict": {"cases": [{"outcome": "passed", "seconds": 0.1, "message": ""}], "stdout": "", "stderr": ""}}"#;
    vec![
        code("exit", "import sys\nsys.exit(0)\n", EXITED),
        code("hard exit", "import os\nos._exit(0)\n", EXITED),
        code("exit in the test", "import os\ndef add(a, b):\n    os._exit(0)\n", EXITED),
        code(
            "a verdict printed",
            &format!("print('{verdict}', flush=True)\nimport os\nos._exit(0)\n"),
            EXITED,
        ),
        code(
            "a verdict to every descriptor",
            &format!(
                "import os\nfor fd in range(64):\n    try: os.write(fd, b'{verdict}\\n')\n    except OSError: pass\ndef add(a, b):\n    return 0\n"
            ),
            EXITED,
        ),
        code(
            "equal to all",
            "class Any:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n    __hash__ = None\ndef add(a, b):\n    return Any()\n",
            EXITED,
        ),
        code(
            "an int equal to all",
            "class Any(int):\n    def __eq__(self, other): return True\ndef add(a, b):\n    return Any(1)\n",
            EXITED,
        ),
        code(
            "builtins patched",
            "import builtins\nfor name in ('isinstance', 'len', 'sorted', 'all', 'any', 'getattr'):\n    setattr(builtins, name, lambda *a, **k: True)\ndef add(a, b):\n    return 0\n",
            EXITED,
        ),
        code(
            "import hooks",
            "import sys\nclass Hook:\n    def find_spec(self, name, path=None, target=None):\n        raise SystemExit(0)\nsys.meta_path.insert(0, Hook())\nfor name in list(sys.modules):\n    if 'checker' in name or 'pytest' in name:\n        sys.modules[name].__dict__.clear()\ndef add(a, b):\n    return 0\n",
            EXITED,
        ),
        code(
            "tests read from memory",
            "import gc, sys\ndef add(a, b):\n    for held in gc.get_objects():\n        if type(held) in (list, tuple, dict) and str(123456789)[::-1] in repr(held)[:100000]:\n            return a + b\n    return 0\n",
            EXITED,
        ),
        code(
            "tests read from frames",
            "import sys\ndef add(a, b):\n    frame = sys._getframe()\n    while frame:\n        if 'test_add' in frame.f_code.co_name:\n            return a + b\n        frame = frame.f_back\n    return 0\n",
            EXITED,
        ),
        code(
            "asserts traced away",
            "import sys\nsys.settrace(lambda *a: None)\nimport threading\nthreading.settrace(lambda *a: None)\ndef add(a, b):\n    return 0\n",
            EXITED,
        ),
        code(
            "at exit",
            "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b):\n    return 0\n",
            EXITED,
        ),
        code(
            "the link closed",
            "import os\nos.closerange(0, 64)\ndef add(a, b):\n    return a + b\n",
            EXITED,
        ),
    ]
}
