"""What keeps the code of a job in: namespaces, limits and system calls, for a process that gives up what it could do."""

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

libc = ctypes.CDLL(None, use_errno=True)
# Looked up here, not in each child.
for _name in ("capset", "mount", "prctl"):
    getattr(libc, _name)
# The same, with the interpreter's lock held.
python = ctypes.PyDLL(None, use_errno=True)
# In the checker, what tells how long it waited for a processor; opened while /proc is in view.
waits = None


class SockFprog(ctypes.Structure):
    """`struct sock_fprog` of linux/filter.h."""

    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def call(name, *arguments):
    """Calls libc and raises what errno says."""
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (name, os.strerror(number)))


def prctl(option, value):
    call("prctl", option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def drop_capabilities():
    """Gives up what the creator of a user namespace may do in it."""
    header = struct.pack("=Ii", 0x20080522, 0)
    call("capset", header, bytes(24))


def install(programs):
    """Puts seccomp programs on this process, for good."""
    for program in programs:
        call("prctl", PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.byref(SockFprog(len(program) // 8, program)))


def clone(flags, handlers):
    """Forks, into new namespaces if `flags` say so, as fork and unshare would in two processes; the child of a new pid namespace is its first.

    Libc has no call for it that returns twice, so this is the system call itself. The thread id that libc keeps is set as its own fork
    sets it. What libc and python do around a fork is for processes with threads, of which this one has none: the interpreter's locks are
    as free in the child as they are here. Python's handlers cost a child more than all else that it does to settle in; they are run if
    there are others than those of the standard library, whose only effect on one thread is another seed: see `reseed`.
    """
    own_id = ctypes.c_void_p()
    settid = CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
    if libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(own_id), 0, 0, 0) != 0:
        settid = 0
    if handlers:
        python.PyOS_BeforeFork()
    # The last two are the child's thread id and its thread-local storage, in an order that depends on the architecture; the latter is not read.
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
    """Gives this process random numbers of its own."""
    random.seed()


def enter(boot, uid, gid):
    """Settles in new namespaces: the same user as outside, a private /tmp, and no /proc."""
    write_file("/proc/self/setgroups", b"deny")
    write_file("/proc/self/gid_map", b"%d %d 1" % (gid, gid))
    write_file("/proc/self/uid_map", b"%d %d 1" % (uid, uid))
    size = b"mode=1777,nr_inodes=4096,size=%d" % boot["limits"]["tmpfs_bytes"]
    call("mount", b"tmpfs", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV, size)
    call("mount", b"tmpfs", b"/proc", b"tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, b"mode=555,size=4k")
    os.chdir("/tmp")


def write_file(path, data):
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, data)
    os.close(fd)


def fork_side(boot, name, events, body):
    """Forks a side into namespaces of its own, if there is isolation; it does `body` and never returns."""
    global waits
    uid, gid = os.getuid(), os.getgid()
    pid = clone(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS if boot["isolated"] else 0, boot["handlers"])
    if pid:
        return pid
    try:
        forget_deaths()
        if name == "checker":
            waits = clock.open_waits()
        if name == "solution":
            # Where memory runs out, nobody else is to die for it.
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
        os.write(events, ("F %s side: %r" % (name, error))[:500].encode("utf-8", "replace"))
    finally:
        os._exit(0)


def hear_deaths():
    """A descriptor that can be read whenever a child has ended."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def forget_deaths():
    """Undoes that in a child, whose own children are its own affair."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def children():
    """The children of this process; only where /proc is in view."""
    with open("/proc/thread-self/children") as file:
        return [int(pid) for pid in file.read().split()]


def reap():
    """Waits for every child."""
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def close_all_but(keep):
    """Closes every descriptor that is not in `keep`."""
    low = 0
    for fd in sorted(set(keep)):
        # To python's closerange an empty range that starts at 0 is all there is.
        if low < fd:
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1024)


def redirect(*fds):
    """Puts /dev/null in the place of these descriptors."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd)
    os.close(null)


class Side:
    """What a side of a job gets from the zygote.

    Runs that are kept `together` share the namespaces of the process that starts them; else each has its own.
    """

    def __init__(self, boot, events=None, together=False):
        self.boot, self.limits, self.isolated = boot, boot["limits"], boot["isolated"]
        self.events, self.together = events, together

    def fork(self, body):
        """Forks a run that does `body`, which never returns."""
        if not self.together:
            return fork_side(self.boot, "solution", self.events, body)
        pid = clone(0, self.boot["handlers"])
        if pid == 0:
            forget_deaths()
            body()
        return pid

    def sweep(self):
        """Kills what a run has left: nothing if it was the first process of its namespace, with which the kernel ends all others."""
        if not self.isolated:
            sweep_orphans()
        elif self.together:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                pass
            reap()

    def confine(self, keep, seconds, execute=False):
        """Locks this process in, for good: descriptors but `keep` closed, limits, no capabilities, seccomp.

        `seconds` bounds the processor time. `execute` leaves execve to a language that is not python.
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
    """The processor time of a process that has so much time by the clock."""
    return int(seconds) + 2


def lower(what, value):
    """Sets a limit, or leaves it where it is already lower."""
    hard = resource.getrlimit(what)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))


def sweep_orphans():
    """Kills every descendant: what loses its parent becomes a child of this process, the subreaper."""
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
