"""The isolation of the code of a job: namespaces, limits and system call filters, for a process that gives up its privileges."""

import ctypes
import os
import random
import resource
import signal
import struct

import rollpacker_clock as clock

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x00200000, 0x01000000
SYS_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}.get(os.uname().machine)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_GET_TID_ADDRESS = 1, 4, 22, 36, 38, 40
SECCOMP_MODE_FILTER = 2
# The maximum value of a limit that `setrlimit` accepts.
MAX_LIMIT = (1 << 63) - 1

libc = ctypes.CDLL(None, use_errno=True)
# Resolve the symbols once here, not in each child.
for _name in ("capset", "mount", "prctl"):
    getattr(libc, _name)
# Calls through this library hold the interpreter's lock.
python = ctypes.PyDLL(None, use_errno=True)
# In the checker: the descriptor that shows how long it computed and waited for a processor. It is opened while /proc is still visible.
times = None


class SockFprog(ctypes.Structure):
    """`struct sock_fprog` of linux/filter.h."""

    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def call(name, *arguments):
    """Calls a function of libc and raises the error of errno if it fails."""
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (name, os.strerror(number)))


def prctl(option, value):
    call("prctl", option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def drop_capabilities():
    """Drops the capabilities that the creator of a user namespace has in it."""
    header = struct.pack("=Ii", 0x20080522, 0)
    call("capset", header, bytes(24))


def install(programs):
    """Installs seccomp programs in this process. They cannot be removed."""
    for program in programs:
        call("prctl", PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.byref(SockFprog(len(program) // 8, program)))


def clone(flags, handlers):
    """Forks, into new namespaces according to `flags`. The child of a new pid namespace is its first process.

    Libc has no call for this that returns twice, so this uses the system call itself. The thread id that libc caches is updated as its own
    fork does. The other work of libc and Python around a fork is only needed in processes with several threads; in this one, the
    interpreter's locks are as free in the child as in the parent. Python's fork handlers would take a child longer than the rest of its
    setup. They are run only if there are handlers besides those of the standard library, whose only effect on a single thread is a new
    seed: see `reseed`.
    """
    own_id = ctypes.c_void_p()
    settid = CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
    if libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(own_id), 0, 0, 0) != 0:
        settid = 0
    if handlers:
        python.PyOS_BeforeFork()
    # The last two arguments are the child's thread id and its thread-local storage, in an order that depends on the architecture. The
    # latter is not read.
    pid = python.syscall(SYS_CLONE, ctypes.c_ulong(flags | settid | signal.SIGCHLD), ctypes.c_ulong(0), ctypes.c_ulong(0), own_id, own_id)
    if pid == 0:
        if handlers:
            python.PyOS_AfterFork_Child()
        return 0
    number = ctypes.get_errno()
    if handlers:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, "clone: " + os.strerror(number))
    return pid


def reseed():
    """Reseeds the random numbers of this process."""
    random.seed()


def enter(boot, uid, gid):
    """Sets up new namespaces: the same user as outside, a private /tmp, and no /proc."""
    write_file("/proc/self/setgroups", b"deny")
    write_file("/proc/self/gid_map", b"%d %d 1" % (gid, gid))
    write_file("/proc/self/uid_map", b"%d %d 1" % (uid, uid))
    # A size of 0 would be no limit.
    size = b"mode=1777,nr_inodes=4096,size=%d" % min(max(1, boot["limits"]["tmpfs_bytes"]), MAX_LIMIT)
    call("mount", b"tmpfs", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV, size)
    call("mount", b"tmpfs", b"/proc", b"tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, b"mode=555,size=4k")
    os.chdir("/tmp")


def write_file(path, data):
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, data)
    os.close(fd)


def fork_isolated(boot, name, events, body):
    """Forks a process of a job, into its own namespaces if isolation is enabled. The child runs `body` and never returns."""
    global times
    uid, gid = os.getuid(), os.getgid()
    pid = clone(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS if boot["isolated"] else 0, boot["handlers"])
    if pid:
        return pid
    try:
        unwatch_children()
        if name == "checker":
            times = clock.open_times()
        if name == "solution":
            # If memory runs out, the kernel should kill this process and not another one.
            write_file("/proc/self/oom_score_adj", b"1000")
        if boot["isolated"]:
            enter(boot, uid, gid)
        else:
            os.setsid()
        prctl(PR_SET_DUMPABLE, 0)
        drop_capabilities()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        body()
    except BaseException as error:
        os.write(events, ("F %s process: %r" % (name, error))[:500].encode("utf-8", "replace"))
    finally:
        os._exit(0)


def watch_children():
    """Returns a descriptor that becomes readable whenever a child ends."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def unwatch_children():
    """Reverts `watch_children` in a child, which has children of its own."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def children():
    """Returns the children of this process. Requires that /proc is visible."""
    with open("/proc/thread-self/children") as file:
        return [int(pid) for pid in file.read().split()]


def reap():
    """Waits for all children."""
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def close_all_but(keep):
    """Closes all descriptors except those in `keep`."""
    low = 0
    for fd in sorted(set(keep)):
        # Python's closerange treats an empty range that starts at 0 as the full range.
        if low < fd:
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1024)


def redirect(*fds):
    """Redirects these descriptors to /dev/null."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd)
    os.close(null)


class Confinement:
    """The limits and the isolation of a process of a job, as set by the zygote.

    Runs that are kept `together` share the namespaces of the process that starts them; otherwise each run has its own.
    """

    def __init__(self, boot, events=None, together=False):
        self.boot, self.limits, self.isolated = boot, boot["limits"], boot["isolated"]
        self.events, self.together = events, together

    def fork(self, body):
        """Forks a run that runs `body`, which never returns."""
        if not self.together:
            return fork_isolated(self.boot, "solution", self.events, body)
        pid = clone(0, self.boot["handlers"])
        if pid == 0:
            unwatch_children()
            body()
        return pid

    def sweep(self):
        """Kills the processes that a run left. If the run was the first process of its pid namespace, the kernel has killed them
        already.
        """
        if not self.isolated:
            sweep_orphans()
        elif self.together:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                pass
            reap()

    def confine(self, keep, seconds, execute=False):
        """Confines this process permanently: closes all descriptors except `keep`, sets limits, drops capabilities, installs seccomp.

        `seconds` bounds the processor time. `execute` permits execve, for languages other than Python.
        """
        close_all_but(keep)
        os.setsid()
        reseed()
        self.limit(seconds)
        drop_capabilities()
        install(self.boot["filters"]["execute" if execute else "run"])

    def limit(self, seconds):
        limits = self.limits
        cpu = processor_seconds(seconds)
        for what, value in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_CPU, cpu),
            (resource.RLIMIT_FSIZE, limits["file_bytes"]),
            (resource.RLIMIT_NOFILE, limits["open_files"]),
            (resource.RLIMIT_NPROC, self.boot["processes"] + self.together),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_AS, self.boot["own_bytes"] + limits["memory_bytes"]),
        ):
            lower(what, value)


def processor_seconds(seconds):
    """Returns the limit of processor time for a process with this limit of charged time."""
    return int(seconds) + 2


def lower(what, value):
    """Lowers a limit, or keeps it if it is lower already."""
    hard = resource.getrlimit(what)[1]
    value = min(value, MAX_LIMIT)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))


def sweep_orphans():
    """Kills all descendants. Orphans become children of this process, because it is a subreaper."""
    while True:
        pids = children()
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for pid in pids:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass
