"""The solution side of a job: starts a run of the solution whenever the checker asks, and says how it ended.

The process that serves knows the solution as text only. A run is a child that gives up what it could do and then loads the solution. A
request is `{"run": kind, "prelude": text, "stdin": text, "seconds": bound on processor time}`; its answer `{"started": true}` comes with
three descriptors, the link and the ends of stdout and stderr, and is followed by `{"ended": {...}}`. `{"kill": true}` ends a run. Kinds:

- `module`: the solution is imported as the module `solution` and then answers what the checker asks over the link.
- `main`: the solution is run as a script.
- `compile`, `exec`: the command lines of a language that is not python, in one directory.
"""

import array
import builtins
import fcntl
import io
import json
import linecache
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import types

import rollpacker_wire as wire

LINK = 3


def receive(requests):
    """The next request; None at the end of the job."""
    header = receive_exactly(requests, 4)
    if header is None:
        return None
    body = receive_exactly(requests, struct.unpack("<I", header)[0])
    return None if body is None else json.loads(body)


def receive_exactly(requests, size):
    parts = []
    while size:
        part = requests.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def reply(requests, value, fds=()):
    data = json.dumps(value).encode()
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    data = struct.pack("<I", len(data)) + data
    sent = requests.sendmsg([data], control)
    requests.sendall(data[sent:])


def serve(job, requests, side):
    """Serves the requests of a job until the checker is gone."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    directory = None if side.isolated else tempfile.mkdtemp()
    os.chdir(directory or "/tmp")
    try:
        while True:
            request = receive(requests)
            if request is None:
                return
            if "run" in request:
                start(job, request, requests, side, reader)
    except BrokenPipeError:
        return
    finally:
        if directory:
            os.chdir("/")
            shutil.rmtree(directory, ignore_errors=True)


def start(job, request, requests, side, deaths):
    """One run, from its start to its end."""
    side.sweep()
    ours, theirs = socket.socketpair()
    out_reader, out_writer = os.pipe()
    error_reader, error_writer = os.pipe()
    stdin = os.memfd_create("stdin")
    wire_in(stdin, request.get("stdin", ""))
    pid = side.fork()
    if pid == 0:
        run(job, request, side, (stdin, out_writer, error_writer, theirs.fileno()))
    theirs.close()
    for fd in (stdin, out_writer, error_writer):
        os.close(fd)
    reply(requests, {"started": True}, [ours.fileno(), out_reader, error_reader])
    ours.close()
    os.close(out_reader)
    os.close(error_reader)
    ended = await_end(pid, requests, deaths)
    side.sweep()
    reply(requests, {"ended": ended})


def wire_in(fd, text):
    data = memoryview(text.encode("utf-8", "surrogateescape"))
    while data:
        data = data[os.write(fd, data):]
    os.lseek(fd, 0, os.SEEK_SET)


def await_end(pid, requests, deaths):
    """Waits until a run ends by itself or by the checker's will."""
    killed = False
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    poll.register(deaths, select.POLLIN)
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            break
        ready = [fd for fd, _ in poll.poll()]
        if deaths in ready:
            os.read(deaths, 4096)
        elif receive(requests) is None:
            os._exit(0)
        else:
            killed = True
            os.kill(pid, signal.SIGKILL)
    return {
        "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        "killed": killed,
        "memory_bytes": usage.ru_maxrss * 1024,
    }


def run(job, request, side, fds):
    """What the child does. Never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        settle(fds)
        kind = request["run"]
        side.confine([0, 1, 2, LINK], request["seconds"], kind in ("compile", "exec"))
        if kind in ("compile", "exec"):
            execute(job, kind)
        open_streams()
        code = (run_module if kind == "module" else run_main)(job["solution"], request.get("prelude", ""))
    except SystemExit as leave:
        code = exit_code(leave)
    except BaseException as error:
        os.write(2, ("%s: %s\n" % (type(error).__name__, error)).encode("utf-8", "replace")[:2000])
    finally:
        os._exit(code)


def settle(fds):
    """Puts stdin, stdout, stderr and the link where a run has them."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, LINK + 1) for fd in fds]
    for number, fd in enumerate(high):
        os.dup2(fd, number, inheritable=number < LINK)


def open_streams():
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        raw = io.FileIO(number, "rb" if number == 0 else "wb", closefd=False)
        buffer = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
        stream = io.TextIOWrapper(buffer, "utf-8", "surrogateescape" if number == 0 else "backslashreplace", line_buffering=number == 2)
        setattr(sys, name, stream)
        setattr(sys, "__%s__" % name, stream)
    builtins.input = read_line


def read_line(prompt=""):
    """`input` without readline."""
    sys.stdout.write(str(prompt))
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError("EOF when reading a line")
    return line[:-1] if line.endswith("\n") else line


def exit_code(leave):
    if leave.code is None:
        return 0
    if isinstance(leave.code, int):
        return leave.code & 0xFF
    sys.stderr.write("%s\n" % (leave.code,))
    return 1


def load(name, source, prelude):
    """A fresh module `name`, and what runs the solution in it."""
    module = types.ModuleType(name)
    module.__file__ = "solution.py"
    module.__builtins__ = builtins
    sys.modules[name] = module
    linecache.cache["solution.py"] = (len(source), None, source.splitlines(True), "solution.py")
    if prelude:
        exec(compile(prelude, "<prelude>", "exec"), module.__dict__)
    return module, compile(source, "solution.py", "exec", dont_inherit=True)


def run_main(source, prelude):
    """Runs the solution as a script; the link tells what it raised, as far as one believes it."""
    import atexit
    import threading
    import traceback

    link = socket.socket(fileno=LINK)
    code, name = 0, "CompileError"
    try:
        module, program = load("__main__", source, prelude)
        sys.argv, name = ["solution.py"], None
        exec(program, module.__dict__)
    except SystemExit as leave:
        code = exit_code(leave)
    except BaseException as error:
        code = 1
        link.sendall((name or type(error).__name__).encode()[:100])
        traceback.print_exception(type(error), error, error.__traceback__.tb_next)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return code


class Channel:
    """The link as a run has it."""

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


def run_module(source, prelude):
    """Imports the solution and answers the checker until it hangs up."""
    peer = wire.Peer(Channel(), strict=False)
    builtins.input = lambda prompt="": peer.ask("input", str(prompt))
    try:
        module, program = load("solution", source, prelude)
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


def names(module):
    return [name for name in module.__dict__ if type(name) is str and not name.startswith("__")]


def root(peer, module, name):
    """A name of the solution's module; its handle is the name."""
    if name not in module.__dict__:
        raise AttributeError("the solution has no `%s`" % name)
    peer.name(name)
    return module.__dict__[name]


def execute(job, kind):
    """Becomes the compiler or the program of another language."""
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
        # The link is closed to what is executed: what comes over it is not the solution's word.
        socket.socket(fileno=LINK).sendall(("%s: %s" % (argv[0], error.strerror)).encode("utf-8", "replace"))
        os._exit(1)
