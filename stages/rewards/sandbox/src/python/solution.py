"""The runs of the solution: how they are started, what they do, and how they end.

The process that starts a run never reads the job. A run is a child that reads its instructions from its link, gives up its privileges and
then loads the solution. One run is started in advance for each job. The checker requests another one by the message `S`, and has a run
killed by `K`. It receives `started` together with descriptors (the checker's end of the link, the read ends of stdout and stderr, and the
times of the run) and later, when the run ends, an `ENDED` record. The first message to a run is
`{"run": kind, "solution": text, "prelude": text, "stdin": text, "seconds": limit of charged time, "spec": how the language is started,
"tests": compiled tests}`. The kinds:

- `module`: imports the solution as the module `solution` and then answers the requests of the checker over the link.
- `tests`: imports the solution and runs `tests` in the same process, which report over the link.
- `main`: runs the solution as a script.
- `compile`, `exec`: the command lines of a language other than Python, in one directory.
"""

import array
import builtins
import fcntl
import gc
import json
import linecache
import os
import select
import signal
import socket
import struct
import sys
import types

import rollpacker_in_process as in_process
import rollpacker_clock as clock
import rollpacker_isolation as isolation
import rollpacker_streams as streams
import rollpacker_wire as wire

LINK = 3
# The end of a run: its wait status, true if the checker had it killed, the processor time of its processes, and the time that its first
# thread waited for a processor, both in seconds.
ENDED = struct.Struct("<i?dd")


def receive_exactly(link, size):
    """Returns exactly `size` bytes, or None at the end of the stream."""
    parts = []
    while size:
        part = link.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Runs:
    """The runs of one job, one after another, for the checker at the other end of `requests`."""

    def __init__(self, requests, confinement):
        self.requests, self.confinement = requests, confinement
        self.pid, self.killed = None, False
        self.times = clock.Times(None)

    def start(self):
        """Starts a run. Replaces the previous one, if any."""
        self.kill()
        ours, theirs = socket.socketpair()
        out_reader, out_writer = os.pipe()
        error_reader, error_writer = os.pipe()
        self.pid, self.killed = self.confinement.fork(lambda: run(self.confinement, (out_writer, error_writer, theirs.fileno()))), False
        for fd in (theirs.detach(), out_writer, error_writer):
            os.close(fd)
        fds = [ours.detach(), out_reader, error_reader]
        # If this process cannot see /proc, nothing is known of a run before it ends, and nothing of its waits.
        self.times = clock.Times(clock.open_times(self.pid))
        shown = [] if self.times.fd is None else [self.times.fd]
        self.send(b"started", [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds + shown))])
        for fd in fds:
            os.close(fd)

    def handle_request(self):
        """Handles a request of the checker. Returns false when the checker has ended."""
        try:
            word = self.requests.recv(16)
        except ConnectionError:
            return False
        if word == b"S":
            self.start()
        elif word == b"K" and self.pid is not None:
            self.killed = True
            os.kill(self.pid, signal.SIGKILL)
        return word != b""

    def report_end(self):
        """Reports how the run ended, if it has."""
        if self.pid is None:
            return
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        # The kernel shows the times of a process until it is reaped.
        _, waited = self.times.seconds()
        _, status, usage = os.wait4(self.pid, 0)
        self.clean_up()
        self.send(ENDED.pack(status, self.killed, usage.ru_utime + usage.ru_stime, waited))

    def kill(self):
        """Ends the run without a report."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.clean_up()

    def clean_up(self):
        """Cleans up after the run, which was reaped."""
        self.pid = None
        self.times.close()
        self.confinement.sweep()

    def send(self, message, control=()):
        try:
            self.requests.sendmsg([message], control)
        except ConnectionError:
            # The main loop detects that the checker has ended.
            pass


def serve(requests, confinement):
    """Starts the runs of a job until the checker ends."""
    child_exits = isolation.watch_children()
    directory = None if confinement.isolated else make_directory()
    runs = Runs(requests, confinement)
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    poll.register(child_exits, select.POLLIN)
    try:
        runs.start()
        going = True
        while going:
            ready = [fd for fd, _ in poll.poll()]
            if child_exits in ready:
                os.read(child_exits, 4096)
                runs.report_end()
            if requests.fileno() in ready:
                going = runs.handle_request()
        runs.kill()
    finally:
        if directory:
            remove_directory(directory)


def make_directory():
    """Creates a folder for runs that have no private /tmp."""
    import tempfile

    directory = tempfile.mkdtemp()
    os.chdir(directory)
    return directory


def remove_directory(directory):
    import shutil

    os.chdir("/")
    shutil.rmtree(directory, ignore_errors=True)


def run(confinement, fds):
    """The program of the child. Never returns."""
    code = 1
    try:
        move_descriptors(fds)
        job = read_instructions()
        streams.put_stdin(job["stdin"])
        kind = job["run"]
        confinement.confine([0, 1, 2, LINK], job["seconds"], kind in ("compile", "exec"))
        if kind in ("compile", "exec"):
            execute(job, kind)
        streams.open_all()
        code = PROGRAMS[kind](job)
    except SystemExit as leave:
        code = exit_code(leave)
    except BaseException as error:
        os.write(2, ("%s: %s\n" % (type(error).__name__, error)).encode("utf-8", "replace")[:2000])
    finally:
        os._exit(code)


def read_instructions():
    """Returns the instructions of the checker. Ends the process if there are none."""
    link = socket.socket(fileno=LINK)
    header = receive_exactly(link, 4)
    body = header and receive_exactly(link, struct.unpack("<I", header)[0])
    link.detach()
    if body is None:
        os._exit(0)
    return json.loads(body)


def move_descriptors(fds):
    """Moves stdout, stderr and the link to their descriptors in a run."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, LINK + 1) for fd in fds]
    for number, fd in enumerate(high, 1):
        os.dup2(fd, number, inheritable=number < LINK)


def exit_code(leave):
    if leave.code is None:
        return 0
    if isinstance(leave.code, int):
        return leave.code & 0xFF
    sys.stderr.write("%s\n" % (leave.code,))
    return 1


def load(name, source, prelude):
    """Returns a new module `name` and the compiled solution to run in it."""
    module = types.ModuleType(name)
    module.__file__ = "solution.py"
    module.__builtins__ = builtins
    sys.modules[name] = module
    linecache.cache["solution.py"] = (len(source), None, source.splitlines(True), "solution.py")
    if prelude:
        exec(compile(prelude, "<prelude>", "exec"), module.__dict__)
    return module, compile(source, "solution.py", "exec", dont_inherit=True)


def run_main(job):
    """Runs the solution as a script. Reports the name of its exception over the link, which the solution could forge."""
    import traceback

    link = socket.socket(fileno=LINK)
    code, name, module = 0, "CompileError", None
    try:
        module, program = load("__main__", job["solution"], job["prelude"])
        sys.argv, name = ["solution.py"], None
        exec(program, module.__dict__)
    except SystemExit as leave:
        code = exit_code(leave)
    except BaseException as error:
        code = 1
        link.sendall((name or type(error).__name__).encode()[:100])
        traceback.print_exception(type(error), error, error.__traceback__.tb_next)
    finish(module)
    return code


def finish(module):
    """Ends a program as the interpreter would: joins threads, runs exit handlers, flushes streams, closes open files."""
    import atexit
    import threading

    for last in (threading._shutdown, atexit._run_exitfuncs, streams.flush):
        try:
            last()
        except Exception:
            # A failing handler does not stop the others.
            pass
    if module is not None:
        module.__dict__.clear()
        gc.collect()
        streams.flush()


class Channel:
    """The link, as a run uses it."""

    def __init__(self):
        self.link = socket.socket(fileno=LINK)

    def send(self, data):
        sys.stdout.flush()
        self.link.sendall(data)

    def receive(self, size):
        data = receive_exactly(self.link, size)
        if data is None:
            os._exit(0)
        return data


def run_module(job):
    """Imports the solution and answers the checker until it closes the link."""
    peer = wire.Peer(Channel(), strict=False)
    builtins.input = lambda prompt="": peer.ask("input", str(prompt))
    try:
        module, program = load("solution", job["solution"], job["prelude"])
        exec(program, module.__dict__)
    except SyntaxError as error:
        peer.send(("unreadable", error))
        return 0
    except BaseException as error:
        peer.send(("unloadable", error))
        return 0
    peer.roots = module.__dict__
    peer.services = {
        "names": lambda: names(module),
        "root": lambda name: root(peer, module, name),
        "assign": lambda name, value: setattr(module, name, value),
        "remove": lambda name: delattr(module, name),
    }
    peer.send(("loaded",))
    while True:
        kind, *fields = peer.receive()
        if kind == "ask":
            peer.answer(*fields)


def run_tests(job):
    in_process.run(LINK, load, job)
    return 0


PROGRAMS = {"main": run_main, "module": run_module, "tests": run_tests}


def names(module):
    return [name for name in module.__dict__ if type(name) is str and not name.startswith("__")]


def root(peer, module, name):
    """Returns an object of the solution's module by name. The name becomes its handle."""
    if name not in module.__dict__:
        raise AttributeError("the solution has no `%s`" % name)
    peer.name(name)
    return module.__dict__[name]


def execute(job, kind):
    """Replaces this process by the compiler or the program of another language."""
    spec = job["spec"]
    if kind == "compile":
        with open(spec["file"], "w") as file:
            file.write(job["solution"])
        if not spec.get("compile"):
            os._exit(0)
    argv = spec["compile" if kind == "compile" else "run"]
    try:
        os.execvpe(argv[0], argv, {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": os.getcwd(), "LANG": "C.UTF-8"})
    except OSError as error:
        # The executed program does not inherit the link, so a message on it does not come from the solution.
        socket.socket(fileno=LINK).sendall(("%s: %s" % (argv[0], error.strerror)).encode("utf-8", "replace"))
        os._exit(1)
