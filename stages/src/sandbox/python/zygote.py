"""The warm interpreter of one slot: it forks a checker and runs of the solution for each job, watches over them, and kills what is left.

The zygote reads the number of a job, never its content: the checker reads that off the control socket and gives each run what it is to
do, and what the checker reports goes from file to socket within the kernel. So nothing of a job stays in the memory from which the next
job is forked, nor anything of the tests in that of a run.

Descriptors: 0 is the control socket, 1 the socket on which jobs are called off, 2 takes what goes wrong before the zygote is ready.
"""

import gc
import importlib
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

import rollpacker_checker as checker
import rollpacker_isolation as isolation
import rollpacker_solution as solution

CONTROL, CANCEL = 0, 1
# How long the sides may take to set themselves up and to read their frames, and to answer after the time of a case is over.
SETUP_SECONDS, GRACE_SECONDS = 10.0, 1.0
REPORT_BYTES = 8 << 20


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


class Progress:
    """How the checker says what it is at. The zygote hears of times only."""

    def __init__(self, events, report):
        self.events = events
        self.report = report

    def begin(self, seconds):
        """A case begins that may take `seconds` in all: past that the zygote ends the job and the case counts as timed out."""
        os.write(self.events, b"T %f" % seconds)

    def case(self, case):
        """A case has ended; what counts if a later one never does."""
        self.line({"case": case})

    def expect(self, cases):
        """Says how many cases there are in all, so that those that never run count as failed."""
        self.line({"expected": cases})

    def line(self, value):
        write_all(self.report, json.dumps(value).encode() + b"\n")


def checker_side(boot, requests, events, report):
    """Reads the job, runs its tests, and leaves a verdict in the report."""
    progress = Progress(events, report)
    job = read_frame(CONTROL)
    os.write(events, b"R")
    isolation.redirect(CONTROL, CANCEL)
    link = socket.socket(fileno=requests)
    side = isolation.Side(boot)
    isolation.reseed()
    side.limit(sum(job["seconds"]) * 4 + 3600)
    isolation.install(boot["filters"]["run"])
    try:
        answer = checker.check(job, link, progress)
    except BaseException as error:
        answer = {"fault": "checker: %r" % (error,)}
    progress.line(answer)
    os.write(events, b"D")


class Watch:
    """One job under way, as the zygote sees it: its processes, a deadline, and how it ends."""

    def __init__(self, number, events, deaths):
        self.number, self.events, self.deaths = number, events, deaths
        self.checker = self.host = self.runs = None
        self.read = self.timed = False
        self.deadline = time.monotonic() + SETUP_SECONDS
        self.end = None
        self.message = ""

    def run(self):
        poll = select.poll()
        for fd in (self.events, self.deaths, CANCEL):
            poll.register(fd, select.POLLIN)
        poll.register(CONTROL, 0)
        if self.runs:
            poll.register(self.runs.requests, select.POLLIN)
        while not self.over():
            left = self.deadline - time.monotonic()
            if left <= 0:
                return self.overdue()
            for fd, _ in poll.poll(left * 1000 + 1):
                if not self.on(fd):
                    poll.unregister(fd)

    def over(self):
        """Whether it has ended with the control socket at the next job; a fault makes an end of the zygote too."""
        return self.end == "fault" or self.end is not None and self.read

    def on(self, fd):
        """Takes what there is at a descriptor; false if nothing more comes."""
        if fd == CONTROL:
            os._exit(0)
        elif fd == CANCEL:
            (number,) = struct.unpack("<I", read_exactly(CANCEL, 4))
            # A call for a job that ended meanwhile is late, and nothing.
            if number == self.number:
                self.finish("cancelled")
        elif fd == self.events.fileno():
            self.hear()
        elif fd == self.deaths:
            os.read(self.deaths, 4096)
            self.bury()
        else:
            return self.runs.heed()
        return True

    def hear(self):
        """Takes what the sides have said so far."""
        try:
            while True:
                said = self.events.recv(1024, socket.MSG_DONTWAIT)
                self.event(said[:1], said[2:])
        except BlockingIOError:
            pass

    def event(self, kind, value):
        if kind == b"R":
            self.read = True
        elif kind == b"T":
            self.begin(float(value))
        elif kind == b"D":
            self.finish("done")
        elif kind == b"F":
            self.fault(value.decode("utf-8", "replace"))

    def bury(self):
        if self.runs:
            self.runs.bury()
        if os.waitpid(self.checker, os.WNOHANG)[0]:
            self.checker = None
            self.hear()
            # If it died before it read its frame, then nobody reads that off the control socket.
            self.finish("died") if self.read else self.fault("the checker side died before it read the tests")

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
        """Kills all sides. As first processes of their namespaces they take everything in there with them."""
        if not isolated:
            return isolation.sweep_orphans()
        for pid in (self.checker, self.host, self.runs and self.runs.pid):
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        isolation.reap()


def run_job(boot, number, together, deaths):
    """Runs one job and answers."""
    events, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    report = os.memfd_create("report")
    watch = Watch(number, events, deaths)

    def check():
        waits = [] if isolation.waits is None else [isolation.waits]
        isolation.close_all_but([CONTROL, CANCEL, 2, theirs.fileno(), writer.fileno(), report] + waits)
        checker_side(boot, theirs.detach(), writer.detach(), report)

    watch.checker = isolation.fork_side(boot, "checker", writer.fileno(), check)
    theirs.close()
    if together or not boot["isolated"]:
        watch.host = fork_host(boot, requests, writer.fileno())
    else:
        watch.runs = solution.Runs(requests, isolation.Side(boot, writer.fileno()))
        watch.runs.start()
    watch.run()
    watch.kill(boot["isolated"])
    answer(watch, report)
    for end in (events, writer, requests):
        end.close()
    os.close(report)
    if watch.end == "fault":
        os._exit(1)


def fork_host(boot, requests, events):
    """Forks a process that starts the runs of a job within its own namespaces and folder, where one run needs what another left."""

    def host():
        isolation.close_all_but([CONTROL, CANCEL, 2, requests.fileno(), events])
        isolation.redirect(CONTROL, CANCEL)
        solution.serve(requests, isolation.Side(boot, events, together=True))

    return isolation.fork_side(boot, "solution", events, host)


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
        isolation.prctl(isolation.PR_SET_DUMPABLE, 1)
        isolation.prctl(isolation.PR_SET_PDEATHSIG, signal.SIGKILL)


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
            isolation.Side(boot).limit(10)
            isolation.install(boot["filters"]["run"])
            found = {"outer": outer, "inner": inner, "uid": os.getuid()}
        except BaseException as error:
            found = {"error": str(error)}
        write_all(writer, json.dumps(found).encode())

    outer = namespaces(own)
    isolation.fork_side(boot, "trial", writer, trial)
    os.close(writer)
    os.close(own)
    with open(reader, "rb") as file:
        said = file.read()
    # What fails before the trial itself is an event, as of any side.
    found = json.loads(said) if said[:1] == b"{" else {"error": said.decode("utf-8", "replace") or "the trial side died"}
    isolation.reap()
    return found


def namespaces(proc):
    names = ("user", "mnt", "pid", "net", "ipc", "uts")
    return {name: os.readlink("self/ns/" + name, dir_fd=proc) for name in names}


def main(boot):
    drop_root(boot)
    isolation.drop_capabilities()
    isolation.prctl(isolation.PR_SET_NO_NEW_PRIVS, 1)
    isolation.prctl(isolation.PR_SET_CHILD_SUBREAPER, 1)
    # The first process of a namespace is deaf to signals that it does not handle; python handles this one.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    isolation.lower(resource.RLIMIT_NOFILE, 1024)
    isolation.lower(resource.RLIMIT_CORE, 0)
    boot["filters"] = {name: [bytes.fromhex(text) for text in texts] for name, texts in boot["filters"].items()}
    sys.path.extend(boot["packages"])
    for builtin in (site.setquit, site.setcopyright, site.sethelper):
        builtin()
    for name in boot["preload"]:
        importlib.import_module(name)
    boot["handlers"] = bool(boot["preload"])
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise SystemExit("the modules that are preloaded leave %d threads running, which no fork carries over" % (threads - 1))
    boot["own_bytes"] = own_bytes()
    boot["processes"] = boot["limits"]["processes"] + (0 if boot["isolated"] else tasks_of_user())
    found = facts(boot)
    write_frame(CONTROL, {"ready": found})
    isolation.redirect(2)
    # What a collection only looks at, a fork has to copy.
    gc.collect()
    gc.freeze()
    # Nor need it copy what the modules were compiled in.
    isolation.libc.malloc_trim(0)
    gc.set_threshold(20000, 20, 50)
    deaths = isolation.hear_deaths()
    try:
        while True:
            head = read_frame(CONTROL)
            run_job(boot, head["job"], head["together"], deaths)
    except EOFError:
        os._exit(0)
