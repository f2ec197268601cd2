"""The warm interpreter of a slot. For each job it forks a checker and runs of the solution, watches them, and kills the remaining
processes.

The zygote reads the number of a job but never its content. The checker reads the content from the control socket and instructs each run,
and the kernel copies the checker's report from its file to the socket. So nothing of a job remains in the memory from which the next job is
forked, and nothing of the tests gets into the memory of a run.

Descriptors: 0 is the control socket, 1 is the socket on which jobs are cancelled, 2 receives errors until the zygote is ready.
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
# The time that the processes of a job have to set themselves up and to read their frames, and the time to report after the time limit of a
# case.
SETUP_SECONDS, GRACE_SECONDS = 10.0, 1.0
REPORT_BYTES = 8 << 20
# The maximum time of one wait for events.
POLL_SECONDS = 3600.0


def read_exactly(fd, size):
    """Reads exactly `size` bytes of `fd`. Any further bytes are for another process."""
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


def read_job():
    """Reads a job, in which integers may have more digits than Python converts by default."""
    if not hasattr(sys, "set_int_max_str_digits"):
        return read_frame(CONTROL)
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    job = read_frame(CONTROL)
    sys.set_int_max_str_digits(limit)
    return job


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]


def write_frame(fd, value):
    data = json.dumps(value).encode()
    write_all(fd, struct.pack("<I", len(data)) + data)


class Progress:
    """The progress reports of the checker. The zygote only learns of time limits."""

    def __init__(self, events, report):
        self.events = events
        self.report = report

    def begin(self, seconds):
        """Reports that a case begins or continues, and may take `seconds` from now. After that and `GRACE_SECONDS`, the zygote ends the
        job, and the case counts as timed out.
        """
        os.write(self.events, b"T %f" % seconds)

    def case(self, case):
        """Reports the result of a case, which counts even if a later case never ends."""
        self.line({"case": case})

    def expect(self, cases):
        """Reports the total number of cases, so that cases that never run count as failed."""
        self.line({"expected": cases})

    def line(self, value):
        write_all(self.report, json.dumps(value).encode() + b"\n")


def run_checker(boot, requests, events, report):
    """Reads the job, runs its tests, and writes a verdict to the report."""
    progress = Progress(events, report)
    job = read_job()
    os.write(events, b"R")
    isolation.redirect(CONTROL, CANCEL)
    link = socket.socket(fileno=requests)
    confinement = isolation.Confinement(boot)
    isolation.reseed()
    confinement.limit(sum(job["seconds"]) * 4 + 3600)
    isolation.install(boot["filters"]["run"])
    try:
        answer = checker.check(job, link, progress)
    except BaseException as error:
        answer = {"fault": "checker: %r" % (error,)}
    progress.line(answer)
    os.write(events, b"D")


class JobMonitor:
    """The zygote's view of a running job: its processes, a deadline, and how it ends."""

    def __init__(self, number, events, child_exits):
        self.number, self.events, self.child_exits = number, events, child_exits
        self.checker = self.host = self.runs = None
        self.read = self.timed = False
        self.deadline = time.monotonic() + SETUP_SECONDS
        self.end = None
        self.message = ""

    def run(self):
        poll = select.poll()
        for fd in (self.events, self.child_exits, CANCEL):
            poll.register(fd, select.POLLIN)
        poll.register(CONTROL, 0)
        if self.runs:
            poll.register(self.runs.requests, select.POLLIN)
        while not self.is_over():
            left = self.deadline - time.monotonic()
            if left <= 0:
                return self.handle_deadline()
            # Longer waits are split, because the number of milliseconds is a C integer.
            for fd, _ in poll.poll(min(left, POLL_SECONDS) * 1000 + 1):
                if not self.handle_input(fd):
                    poll.unregister(fd)

    def is_over(self):
        """Returns true if the job has ended and its frame was read from the control socket, so that the socket is at the next job. After a
        fault the frame may be left over, but then the zygote ends too.
        """
        return self.end == "fault" or self.end is not None and self.read

    def handle_input(self, fd):
        """Handles input on a descriptor. Returns false if no more will come."""
        if fd == CONTROL:
            os._exit(0)
        elif fd == CANCEL:
            (number,) = struct.unpack("<I", read_exactly(CANCEL, 4))
            # A request to cancel a job that has ended meanwhile is ignored.
            if number == self.number:
                self.finish("cancelled")
        elif fd == self.events.fileno():
            self.receive_events()
        elif fd == self.child_exits:
            os.read(self.child_exits, 4096)
            self.handle_child_exits()
        else:
            return self.runs.handle_request()
        return True

    def receive_events(self):
        """Handles all pending events of the processes of the job."""
        try:
            while True:
                event = self.events.recv(1024, socket.MSG_DONTWAIT)
                self.event(event[:1], event[2:])
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

    def handle_child_exits(self):
        if self.runs:
            self.runs.report_end()
        if os.waitpid(self.checker, os.WNOHANG)[0]:
            self.checker = None
            self.receive_events()
            # If the checker died before it read its frame, the frame remains on the control socket, and the zygote cannot continue.
            self.finish("died") if self.read else self.fault("the checker process died before it read the tests")

    def begin(self, seconds):
        self.timed = True
        self.deadline = time.monotonic() + seconds + GRACE_SECONDS
        write_frame(CONTROL, {"job": self.number, "within": seconds + GRACE_SECONDS})

    def handle_deadline(self):
        if self.timed:
            self.finish("deadline")
        else:
            self.fault("the processes of the job took more than %g s to start" % SETUP_SECONDS)

    def finish(self, end):
        self.end = self.end or end

    def fault(self, message):
        self.end, self.message = "fault", message

    def kill(self, isolated):
        """Kills all processes of the job. The checker, the host and the run are the first processes of their pid namespaces, so the kernel
        kills all other processes in these.
        """
        if not isolated:
            return isolation.sweep_orphans()
        for pid in (self.checker, self.host, self.runs and self.runs.pid):
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        isolation.reap()


def run_job(boot, number, together, child_exits):
    """Runs one job and sends the answer."""
    events, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    report = os.memfd_create("report")
    monitor = JobMonitor(number, events, child_exits)

    def check():
        times = [] if isolation.times is None else [isolation.times]
        isolation.close_all_but([CONTROL, CANCEL, 2, theirs.fileno(), writer.fileno(), report] + times)
        run_checker(boot, theirs.detach(), writer.detach(), report)

    monitor.checker = isolation.fork_isolated(boot, "checker", writer.fileno(), check)
    theirs.close()
    if together or not boot["isolated"]:
        monitor.host = fork_host(boot, requests, writer.fileno())
    else:
        monitor.runs = solution.Runs(requests, isolation.Confinement(boot, writer.fileno()))
        monitor.runs.start()
    monitor.run()
    monitor.kill(boot["isolated"])
    if monitor.runs:
        monitor.runs.times.close()
    answer(monitor, report)
    for end in (events, writer, requests):
        end.close()
    os.close(report)
    if monitor.end == "fault":
        os._exit(1)


def fork_host(boot, requests, events):
    """Forks a process that starts the runs of a job within its own namespaces and folder, so that a run finds the files of earlier ones."""

    def host():
        isolation.close_all_but([CONTROL, CANCEL, 2, requests.fileno(), events])
        isolation.redirect(CONTROL, CANCEL)
        solution.serve(requests, isolation.Confinement(boot, events, together=True))

    return isolation.fork_isolated(boot, "solution", events, host)


def answer(monitor, report):
    """Sends how the job ended, and the report without reading it."""
    size = 0 if monitor.end == "cancelled" else min(os.fstat(report).st_size, REPORT_BYTES)
    write_frame(CONTROL, {"job": monitor.number, "end": monitor.end, "message": monitor.message, "report": size})
    at = 0
    while at < size:
        at += os.sendfile(CONTROL, report, at, size - at)


def drop_root(boot):
    """Changes to the user nobody, if the container has no user namespace."""
    nobody = boot["nobody"]
    if nobody is not None:
        os.setgroups([])
        os.setresgid(nobody, nobody, nobody)
        os.setresuid(nobody, nobody, nobody)
        # Changing the user resets both. The processes of a job write their id maps through /proc/self, which belongs to the user only while
        # the process is dumpable.
        isolation.prctl(isolation.PR_SET_DUMPABLE, 1)
        isolation.prctl(isolation.PR_SET_PDEATHSIG, signal.SIGKILL)


def own_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def tasks_of_user():
    """Returns the number of tasks that count toward the limit on processes, for runs without a user namespace of their own."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat("/proc/" + pid).st_uid == os.getuid():
                total += len(os.listdir("/proc/%s/task" % pid))
        except OSError:
            pass
    return total


def facts(boot):
    """Returns the isolation in force, as a trial process finds it, or the error that ended the trial. The trial process is forked with the
    isolation of a run, installs the limits and the system call filter, reports its namespaces and exits.
    """
    reader, writer = os.pipe()
    # The trial process reads its namespaces through this descriptor, because /proc is no longer visible to it.
    own = os.open("/proc", os.O_RDONLY)

    def trial():
        try:
            inner = namespaces(own)
            isolation.Confinement(boot).limit(10)
            isolation.install(boot["filters"]["run"])
            found = {"outer": outer, "inner": inner, "uid": os.getuid()}
        except BaseException as error:
            found = {"error": str(error)}
        write_all(writer, json.dumps(found).encode())

    outer = namespaces(own)
    isolation.fork_isolated(boot, "trial", writer, trial)
    os.close(writer)
    os.close(own)
    with open(reader, "rb") as file:
        output = file.read()
    # A failure before the trial itself is reported as an event, as by any process of a job.
    found = json.loads(output) if output[:1] == b"{" else {"error": output.decode("utf-8", "replace") or "the trial process died"}
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
    # The first process of a pid namespace ignores signals without a handler. Python has one for SIGINT, which this removes.
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
    # A garbage collection writes to all objects that it inspects, and a fork would have to copy their pages.
    gc.collect()
    gc.freeze()
    # Return the memory in which the modules were compiled, so that forks do not copy it.
    isolation.libc.malloc_trim(0)
    gc.set_threshold(20000, 20, 50)
    child_exits = isolation.watch_children()
    try:
        while True:
            head = read_frame(CONTROL)
            run_job(boot, head["job"], head["together"], child_exits)
    except EOFError:
        os._exit(0)
