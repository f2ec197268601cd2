"""The runs of the solution, as the checker starts and communicates with them."""

import array
import builtins
import io
import json
import os
import select
import socket
import struct
import sys

import rollpacker_clock as clock
import rollpacker_isolation as isolation
import rollpacker_wire as wire
from rollpacker_binding import PRELUDE
from rollpacker_solution import ENDED

OUTPUT_BYTES = 1 << 20
MESSAGE_CHARACTERS = 2000
# The size of one read. A larger buffer would be mapped and unmapped each time.
READ_BYTES = 1 << 16
# The maximum size of a line in the report of tests that run together with the solution.
REPORT_LINE_BYTES = 1 << 16


class Capture(io.StringIO):
    """A text buffer of bounded size."""

    def write(self, text):
        return super().write(text[: max(0, OUTPUT_BYTES - self.tell())]) and len(text)


class Run:
    """The checker's view of a run of the solution: a link and its output."""

    def __init__(self, link, out, errors, limit):
        self.link, self.out, self.errors = link, out, errors
        self.printed = {out: bytearray(), errors: bytearray()}
        self.open = {out, errors}
        self.limit, self.forwards_output = limit, True
        self.pending = bytearray()
        self.poll = select.poll()
        for fd in (link.fileno(), out, errors):
            self.poll.register(fd, select.POLLIN)
        for fd in (out, errors):
            os.set_blocking(fd, False)

    def send(self, data):
        try:
            self.link.sendall(data)
        except OSError:
            raise wire.Ended("the solution ended")

    def receive(self, size):
        while len(self.pending) < size:
            if self.link.fileno() in dict(self.poll.poll()):
                self.receive_some()
            else:
                self.drain()
        data = bytes(self.pending[:size])
        del self.pending[:size]
        self.drain()
        self.forward()
        return data

    def receive_line(self, limit):
        """Waits for a line of at most `limit` bytes, and reads the output of the solution meanwhile."""
        while b"\n" not in self.pending:
            if len(self.pending) > limit:
                raise wire.Broken("a line of more than %d bytes" % limit)
            ready = dict(self.poll.poll())
            self.drain()
            if self.link.fileno() in ready:
                self.receive_some()
        line, _, rest = bytes(self.pending).partition(b"\n")
        self.pending = bytearray(rest)
        return line

    def receive_some(self):
        try:
            part = self.link.recv(READ_BYTES)
        except ConnectionError:
            part = b""
        if not part:
            raise wire.Ended("the solution ended")
        self.pending += part

    def drain(self):
        """Reads the output of the solution without waiting. Output beyond the limit is dropped."""
        for fd in list(self.open):
            try:
                while self.keep(fd, os.read(fd, READ_BYTES)):
                    pass
            except BlockingIOError:
                pass

    def keep(self, fd, part):
        if not part:
            self.close_fd(fd)
        printed = self.printed[fd]
        printed += part[: max(0, self.limit - len(printed))]
        return part

    def close_fd(self, fd):
        self.poll.unregister(fd)
        self.open.remove(fd)
        os.close(fd)

    def forward(self):
        """Prints the output of the solution as if the test had printed it."""
        for fd, stream in ((self.out, sys.stdout), (self.errors, sys.stderr)):
            if self.printed[fd] and self.forwards_output:
                stream.write(self.text(fd))
                self.printed[fd].clear()

    def text(self, fd):
        return self.printed[fd].decode("utf-8", "replace")

    def finish(self):
        """Reads the remaining output and closes all descriptors."""
        self.drain()
        self.link.close()
        for fd in list(self.open):
            self.close_fd(fd)


class Session:
    """The runs of one job, one after another."""

    def __init__(self, requests, job):
        form = job["check"]
        self.requests, self.output_bytes = requests, job.get("output_bytes", OUTPUT_BYTES)
        self.solution, self.spec = job["solution"], job.get("spec")
        self.prelude = (PRELUDE if form.get("prelude") else "") + form.get("import_prefix", "")
        self.is_requested = True
        self.run = None
        self.end = None
        # The names that the current text of tests uses, and those that it imports.
        self.names_used = frozenset(), frozenset()
        # The names that the text asked for and the solution lacks.
        self.missing = set()
        # The modules that the text imports.
        self.modules = frozenset()
        self.importing = False
        self.clock = clock.Clock(clock.Times(isolation.times))
        self.peer = wire.Peer(None, strict=True)
        self.peer.services = {"input": lambda prompt: builtins.input(prompt)}

    def begin(self, kind, seconds, stdin="", solution=None, tests=None):
        """Starts a run of this kind, with the solution of the job unless another one is given."""
        self.stop()
        self.end = None
        # The zygote has already started the first run.
        if not self.is_requested:
            self.requests.send(b"S")
        self.is_requested = False
        fds = self.receive_descriptors()
        self.bound = isolation.processor_seconds(seconds)
        self.run = Run(socket.socket(fileno=fds[0]), fds[1], fds[2], self.output_bytes)
        self.clock.watch(clock.Times(fds[3] if len(fds) > 3 else None))
        self.peer.attach(self.run)
        solution = self.solution if solution is None else solution
        self.send_instructions({"run": kind, "solution": solution, "prelude": self.prelude, "stdin": stdin, "seconds": seconds,
                                "spec": self.spec, "tests": tests})

    def send_instructions(self, value):
        data = json.dumps(value).encode()
        self.run.send(struct.pack("<I", len(data)) + data)

    def receive_descriptors(self):
        fds = array.array("i")
        _, control, _, _ = self.requests.recvmsg(16, socket.CMSG_SPACE(4 * fds.itemsize))
        for _, _, content in control:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        if len(fds) < 3:
            raise RuntimeError("no run was started")
        return list(fds)

    def is_alive(self):
        """Returns true if there is a run that has not closed its link."""
        if self.run is None:
            return False
        hung_up = select.POLLHUP | select.POLLERR
        return not any(fd == self.run.link.fileno() and what & hung_up for fd, what in self.run.poll.poll(0))

    def stop(self):
        """Ends the run, if there is one."""
        if self.run is not None:
            self.requests.send(b"K")
            self.receive_end()

    def receive_end(self):
        """Receives how the run ended."""
        run, self.run = self.run, None
        status, killed, computed, waited = ENDED.unpack(self.requests.recv(ENDED.size))
        self.clock.end(computed, waited)
        self.end = {
            "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "killed": killed,
            "exhausted": computed >= self.bound,
        }
        run.finish()
        run.forward()

    def import_solution(self, seconds):
        """Starts a run that imports the solution as a module."""
        self.importing = True
        self.begin("module", seconds)
        while self.importing:
            kind, *fields = self.peer.receive()
            if kind == "ask":
                self.peer.answer(*fields)
            elif kind == "loaded":
                self.importing = False
            elif kind in ("unreadable", "unloadable") and isinstance(fields[0], BaseException):
                raise Unloadable(kind, fields[0])
            else:
                raise wire.Broken("a message of kind %r" % (kind,))

    def run_tests(self, tests, solution, seconds, on_line):
        """Runs tests together with a solution. `on_line` is called with each line of the report, up to the last one or the end of the run.
        """
        self.begin("tests", seconds, solution=solution, tests=tests)
        self.run.forwards_output = False
        while True:
            line = self.run.receive_line(REPORT_LINE_BYTES)
            entry = read_report(line)
            on_line(entry)
            if "end" in entry or "broken" in entry:
                return

    def root(self, name):
        return self.peer.ask("root", name)


def read_report(line):
    """Parses a line of the report of tests that ran together with a solution. The solution may have written it."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise wire.Broken("a report that cannot be read: %s" % error)
    if type(entry) is not dict:
        raise wire.Broken("a report that is no object")
    return entry


class Unloadable(wire.Stop):
    """The solution cannot be imported."""

    def __init__(self, kind, error):
        super().__init__(kind)
        self.outcome = "compile_error" if kind == "unreadable" else "memory" if isinstance(error, MemoryError) else "runtime_error"
        self.message = "the solution cannot be imported: " + brief(error)


def brief(error):
    try:
        text = "%s: %s" % (type(error).__name__, error)
    except BaseException:
        text = type(error).__name__
    return text[:MESSAGE_CHARACTERS]
