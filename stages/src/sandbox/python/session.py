"""The runs of the solution, as the checker side starts and hears them."""

import array
import builtins
import io
import json
import os
import select
import socket
import struct
import sys

import rollpacker_wire as wire

OUTPUT_BYTES = 1 << 20
MESSAGE_CHARACTERS = 2000


class Capture(io.StringIO):
    """Text that is kept up to a bound."""

    def write(self, text):
        return super().write(text[: max(0, OUTPUT_BYTES - self.tell())]) and len(text)


class Run:
    """A run of the solution as the checker sees it: a link, and what it prints."""

    def __init__(self, link, out, errors, limit):
        self.link, self.out, self.errors = link, out, errors
        self.printed = {out: bytearray(), errors: bytearray()}
        self.open = {out, errors}
        self.limit, self.forwards = limit, True
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

    def receive_some(self):
        try:
            part = self.link.recv(1 << 18)
        except ConnectionError:
            part = b""
        if not part:
            raise wire.Ended("the solution ended")
        self.pending += part

    def drain(self):
        """Takes what the solution printed, without waiting; keeps up to the limit."""
        for fd in list(self.open):
            try:
                while self.keep(fd, os.read(fd, 1 << 18)):
                    pass
            except BlockingIOError:
                pass

    def keep(self, fd, part):
        if not part:
            self.shut(fd)
        printed = self.printed[fd]
        printed += part[: max(0, self.limit - len(printed))]
        return part

    def shut(self, fd):
        self.poll.unregister(fd)
        self.open.remove(fd)
        os.close(fd)

    def forward(self):
        """Prints what the solution printed as if the test had."""
        for fd, stream in ((self.out, sys.stdout), (self.errors, sys.stderr)):
            if self.printed[fd] and self.forwards:
                stream.write(self.text(fd))
                self.printed[fd].clear()

    def text(self, fd):
        return self.printed[fd].decode("utf-8", "replace")

    def finish(self):
        """Reads what is left, and lets go of everything."""
        self.drain()
        self.link.close()
        for fd in list(self.open):
            self.shut(fd)


class Session:
    """The runs of one job, one after another."""

    def __init__(self, requests, prelude, output_bytes):
        self.requests, self.prelude, self.output_bytes = requests, prelude, output_bytes
        self.run = None
        self.end = None
        self.imported = set()
        self.importing = False
        self.peer = wire.Peer(None, strict=True)
        self.peer.services = {"input": lambda prompt: builtins.input(prompt)}

    def begin(self, kind, seconds, stdin=""):
        """Starts a run."""
        self.stop()
        self.end = None
        self.post({"run": kind, "prelude": self.prelude, "stdin": stdin, "seconds": seconds})
        fds = self.hear_started()
        self.run = Run(socket.socket(fileno=fds[0]), fds[1], fds[2], self.output_bytes)
        self.peer.attach(self.run)

    def post(self, value):
        data = json.dumps(value).encode()
        self.requests.sendall(struct.pack("<I", len(data)) + data)

    def hear_started(self):
        fds = array.array("i")
        data, control, _, _ = self.requests.recvmsg(4, socket.CMSG_SPACE(3 * fds.itemsize))
        for _, _, content in control:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        self.hear(data)
        return list(fds)

    def hear(self, header=b""):
        header += self.read(4 - len(header))
        return json.loads(self.read(struct.unpack("<I", header)[0]))

    def read(self, size):
        parts = []
        while size:
            part = self.requests.recv(size)
            if not part:
                raise RuntimeError("the solution side is gone")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def alive(self):
        """Whether there is a run that has not hung up."""
        if self.run is None:
            return False
        hung_up = select.POLLHUP | select.POLLERR
        return not any(fd == self.run.link.fileno() and what & hung_up for fd, what in self.run.poll.poll(0))

    def stop(self):
        """Ends the run, if there is one."""
        if self.run is not None:
            self.post({"kill": True})
            self.collect()

    def collect(self):
        """Learns how the run ended."""
        run, self.run = self.run, None
        self.end = self.hear()["ended"]
        run.finish()
        run.forward()

    def import_solution(self, seconds):
        """Starts a run that has the solution as a module."""
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

    def root(self, name):
        return self.peer.ask("root", name)


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
