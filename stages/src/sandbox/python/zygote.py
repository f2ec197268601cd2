"""The warm interpreter of one slot: it forks two sides for each job, watches over them, and kills what is left.

The zygote reads the number of a job, never its content: the solution side reads the solution off the control socket, the checker side
the tests, and what the checker reports goes from file to socket within the kernel. So nothing of a job stays in the memory from which
the next job is forked.

Descriptors: 0 is the control socket, 1 the socket on which jobs are called off, 2 takes what goes wrong before the zygote is ready.
"""

import ctypes
import gc
import json
import os
import resource
import select
import signal
import site
import socket
import struct
import sys
import time
import types

CONTROL, CANCEL = 0, 1
# How long the sides may take to set themselves up and to read their frames, and to answer after the time of a case is over.
SETUP_SECONDS, GRACE_SECONDS = 10.0, 1.0
REPORT_BYTES = 8 << 20

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x00200000, 0x01000000
SYS_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}.get(os.uname().machine)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_GET_TID_ADDRESS = 1, 4, 22, 36, 38, 40
SECCOMP_MODE_FILTER = 2

libc = ctypes.CDLL(None, use_errno=True)


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


def read_exactly(fd, size):
    """`size` bytes of `fd`, not one more: what follows is for another process to read."""
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_frame(fd):
    (size,) = struct.unpack("<I", read_exactly(fd, 4))
    return json.loads(read_exactly(fd, size))


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]


def write_frame(fd, value):
    data = json.dumps(value).encode()
    write_all(fd, struct.pack("<I", len(data)) + data)


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


class Side:
    """What a side of a job gets from the zygote."""

    def __init__(self, boot):
        self.boot = boot
        self.limits = boot["limits"]
        self.isolated = boot["isolated"]

    def sweep(self):
        """Kills every other process of this side and waits for them; of the solution side alone."""
        if os.getpid() == 1:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                pass
        elif not self.isolated:
            sweep_orphans()
        reap()

    def confine(self, keep, seconds, execute=False):
        """Locks this process in, for good: descriptors but `keep` closed, limits, no capabilities, seccomp.

        `seconds` bounds the processor time. `execute` leaves execve to a language that is not python.
        """
        close_all_but(keep)
        os.setsid()
        self.limit(seconds)
        drop_capabilities()
        install(self.boot["filters"]["execute" if execute else "run"])

    def limit(self, seconds):
        limits = self.limits
        cpu = int(seconds) + 2
        for what, value in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_CPU, cpu),
            (resource.RLIMIT_FSIZE, limits["file_bytes"]),
            (resource.RLIMIT_NOFILE, limits["open_files"]),
            (resource.RLIMIT_NPROC, self.boot["processes"]),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_AS, self.boot["own_bytes"] + limits["memory_bytes"]),
        ):
            lower(what, value)


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


class Progress:
    """How the checker says what it is at. The zygote hears of times only."""

    def __init__(self, events, report):
        self.events = events
        self.report = report

    def begin(self, seconds):
        """A case begins that may take `seconds` in all: past that the zygote ends the job and the case counts as timed out."""
        os.write(self.events, b"T %f\n" % seconds)

    def case(self, case):
        """A case has ended; what counts if a later one never does."""
        self.line({"case": case})

    def line(self, value):
        write_all(self.report, json.dumps(value).encode() + b"\n")


def clone(flags):
    """Forks into new namespaces, as fork and unshare would in two processes; the child is the first process of its pid namespace.

    Libc has no call for it that returns twice, so this is the system call between what python does before and after a fork. The thread
    id that libc keeps is set as its own fork sets it. Libc's handlers do not run, so there may be no other thread.
    """
    python = ctypes.PyDLL(None, use_errno=True)
    own_id = ctypes.c_void_p()
    settid = CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
    if libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(own_id), 0, 0, 0) != 0:
        settid = 0
    python.PyOS_BeforeFork()
    # The last two are the child's thread id and its thread-local storage, in an order that depends on the architecture; the latter is not read.
    pid = python.syscall(SYS_CLONE, ctypes.c_ulong(flags | settid | signal.SIGCHLD), ctypes.c_ulong(0), ctypes.c_ulong(0), own_id, own_id)
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    number = ctypes.get_errno()
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, "clone: " + os.strerror(number))
    return pid


def fork(boot):
    """Forks into namespaces of its own, with a private /tmp and without /proc; a plain fork where there is no isolation."""
    if not boot["isolated"]:
        pid = os.fork()
        if pid == 0:
            os.setsid()
        return pid
    uid, gid = os.getuid(), os.getgid()
    pid = clone(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS)
    if pid == 0:
        write_file("/proc/self/setgroups", b"deny")
        write_file("/proc/self/gid_map", b"%d %d 1" % (gid, gid))
        write_file("/proc/self/uid_map", b"%d %d 1" % (uid, uid))
        size = b"mode=1777,nr_inodes=4096,size=%d" % boot["limits"]["tmpfs_bytes"]
        call("mount", b"tmpfs", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV, size)
        call("mount", b"tmpfs", b"/proc", b"tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, b"mode=555,size=4k")
        os.chdir("/tmp")
    return pid


def write_file(path, data):
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, data)
    os.close(fd)


def fork_side(boot, name, events, body):
    """Forks a side, which does `body` and never returns."""
    own = os.getpid()
    try:
        pid = fork(boot)
        if pid:
            return pid
        prctl(PR_SET_DUMPABLE, 0)
        drop_capabilities()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        body()
    except BaseException as error:
        if os.getpid() == own:
            raise
        os.write(events, ("F %s side: %r" % (name, error))[:500].replace("\n", " ").encode() + b"\n")
    os._exit(0)


def redirect(*fds):
    """Puts /dev/null in the place of these descriptors."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd)
    os.close(null)


def solution_side(boot, requests, turn, events):
    """Reads the solution, lets the checker read on, and serves its requests."""
    job = read_frame(CONTROL)
    redirect(CONTROL, CANCEL)
    os.write(turn, b"1")
    os.close(turn)
    os.close(events)
    link = socket.socket(fileno=requests)
    boot["modules"]["solution"].serve(job, link, Side(boot))


def checker_side(boot, requests, turn, events, report):
    """Reads the tests once the solution is read, runs them, and leaves a verdict in the report."""
    progress = Progress(events, report)
    read_exactly(turn, 1)
    os.close(turn)
    job = read_frame(CONTROL)
    os.write(events, b"R\n")
    redirect(CONTROL, CANCEL)
    link = socket.socket(fileno=requests)
    side = Side(boot)
    side.limit(sum(job["seconds"]) * 4 + 3600)
    install(boot["filters"]["run"])
    try:
        answer = boot["modules"]["checker"].check(job, link, progress)
    except BaseException as error:
        answer = {"fault": "checker: %r" % (error,)}
    progress.line(answer)
    os.write(events, b"D\n")


class Watch:
    """One job under way, as the zygote sees it: two processes, a deadline, and how it ends."""

    def __init__(self, number, events, pids):
        self.number = number
        self.events = events
        self.pids = pids
        self.read = False
        self.timed = False
        self.deadline = time.monotonic() + SETUP_SECONDS
        self.pending = b""
        self.end = None
        self.message = ""

    def run(self):
        poll = select.poll()
        poll.register(self.events, select.POLLIN)
        poll.register(CANCEL, select.POLLIN)
        poll.register(CONTROL, 0)
        while not self.over():
            left = self.deadline - time.monotonic()
            if left <= 0:
                return self.overdue()
            for fd, what in poll.poll(left * 1000 + 1):
                self.on(fd)

    def over(self):
        """Whether it has ended with the control socket at the next job; a fault makes an end of the zygote too."""
        return self.end == "fault" or self.end is not None and self.read

    def on(self, fd):
        if fd == CONTROL:
            os._exit(0)
        elif fd == CANCEL:
            (number,) = struct.unpack("<I", read_exactly(CANCEL, 4))
            # A call for a job that ended meanwhile is late, and nothing.
            if number == self.number:
                self.finish("cancelled")
        else:
            self.hear(os.read(self.events, 65536))

    def hear(self, data):
        if not data:
            # The checker has died; if before it read its frame, then nobody reads that off the control socket.
            return self.finish("died") if self.read else self.fault("the checker side died before it read the tests")
        lines = (self.pending + data).split(b"\n")
        self.pending = lines.pop()
        for line in lines:
            self.event(line[:1], line[2:])

    def event(self, kind, value):
        if kind == b"R":
            self.read = True
        elif kind == b"T":
            self.begin(float(value))
        elif kind == b"D":
            self.finish("done")
        elif kind == b"F":
            self.fault(value.decode("utf-8", "replace"))

    def begin(self, seconds):
        self.timed = True
        self.deadline = time.monotonic() + seconds + GRACE_SECONDS
        write_frame(CONTROL, {"job": self.number, "within": seconds + GRACE_SECONDS})

    def overdue(self):
        if self.timed:
            self.finish("deadline")
        else:
            self.fault("the sides took more than %g s to start" % SETUP_SECONDS)

    def finish(self, end):
        self.end = self.end or end

    def fault(self, message):
        self.end, self.message = "fault", message

    def kill(self, isolated):
        """Kills both sides. As first processes of their namespaces they take everything in there with them."""
        if not isolated:
            return sweep_orphans()
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
        reap()


def run_job(boot, number):
    """Runs one job and answers."""
    solution_end, checker_end = socket.socketpair()
    turn_reader, turn_writer = os.pipe()
    events_reader, events_writer = os.pipe()
    report = os.memfd_create("report")

    def solution():
        close_all_but([CONTROL, CANCEL, 2, solution_end.fileno(), turn_writer, events_writer])
        solution_side(boot, solution_end.detach(), turn_writer, events_writer)

    def checker():
        close_all_but([CONTROL, CANCEL, 2, checker_end.fileno(), turn_reader, events_writer, report])
        checker_side(boot, checker_end.detach(), turn_reader, events_writer, report)

    pids = [fork_side(boot, "solution", events_writer, solution), fork_side(boot, "checker", events_writer, checker)]
    for end in (solution_end, checker_end):
        end.close()
    for fd in (turn_reader, turn_writer, events_writer):
        os.close(fd)
    watch = Watch(number, events_reader, pids)
    watch.run()
    watch.kill(boot["isolated"])
    os.close(events_reader)
    answer(watch, report)
    os.close(report)
    if watch.end == "fault":
        os._exit(1)


def answer(watch, report):
    """Sends how the job ended, and the report without looking into it."""
    size = 0 if watch.end == "cancelled" else min(os.fstat(report).st_size, REPORT_BYTES)
    write_frame(CONTROL, {"job": watch.number, "end": watch.end, "message": watch.message, "report": size})
    at = 0
    while at < size:
        at += os.sendfile(CONTROL, report, at, size - at)


def drop_root(boot):
    """Becomes nobody, where the container has no user namespace of its own."""
    if boot["uid"] is not None:
        os.setgroups([])
        os.setresgid(boot["gid"], boot["gid"], boot["gid"])
        os.setresuid(boot["uid"], boot["uid"], boot["uid"])
        # Changing the user clears both; the sides write their id maps through /proc/self, which is ours only while dumpable.
        prctl(PR_SET_DUMPABLE, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def load(name, source):
    """A module of ours from its source; those that it needs come before it."""
    module = types.ModuleType("rollpacker_" + name)
    sys.modules[module.__name__] = module
    exec(compile(source, "<%s>" % module.__name__, "exec"), module.__dict__)
    return module


def own_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def tasks_of_user():
    """Tasks that count against a limit on processes where no user namespace counts apart."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat("/proc/" + pid).st_uid == os.getuid():
                total += len(os.listdir("/proc/%s/task" % pid))
        except OSError:
            pass
    return total


def facts(boot):
    """What isolation is in force, as a trial side finds it."""
    reader, writer = os.pipe()
    # The namespaces of whoever looks: /proc is not in view any more when the trial side does.
    own = os.open("/proc", os.O_RDONLY)

    def trial():
        try:
            inner = namespaces(own)
            Side(boot).limit(10)
            install(boot["filters"]["run"])
            found = {"outer": outer, "inner": inner, "uid": os.getuid()}
        except BaseException as error:
            found = {"error": str(error)}
        write_all(writer, json.dumps(found).encode())

    outer = namespaces(own)
    fork_side(boot, "trial", writer, trial)
    os.close(writer)
    os.close(own)
    with open(reader, "rb") as file:
        found = json.loads(file.read() or b'{"error": "the trial side died"}')
    reap()
    return found


def namespaces(proc):
    names = ("user", "mnt", "pid", "net", "ipc", "uts")
    return {name: os.readlink("self/ns/" + name, dir_fd=proc) for name in names}


def main(boot):
    drop_root(boot)
    drop_capabilities()
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # The first process of a namespace is deaf to signals that it does not handle; python handles this one.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    lower(resource.RLIMIT_NOFILE, 1024)
    lower(resource.RLIMIT_CORE, 0)
    boot["filters"] = {name: [bytes.fromhex(text) for text in texts] for name, texts in boot["filters"].items()}
    sys.path.extend(boot["packages"])
    for builtin in (site.setquit, site.setcopyright, site.sethelper):
        builtin()
    boot["modules"] = {name: load(name, source) for name, source in boot["modules"]}
    for name in boot["preload"]:
        __import__(name)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise SystemExit("the modules that are preloaded leave %d threads running, which no fork carries over" % (threads - 1))
    boot["own_bytes"] = own_bytes()
    boot["processes"] = boot["limits"]["processes"] + (1 if boot["isolated"] else tasks_of_user())
    found = facts(boot)
    write_frame(CONTROL, {"ready": found})
    redirect(2)
    # What a collection only looks at, a fork has to copy.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20000, 20, 50)
    try:
        while True:
            run_job(boot, read_frame(CONTROL)["job"])
    except EOFError:
        os._exit(0)
