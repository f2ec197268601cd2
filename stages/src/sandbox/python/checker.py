"""The checker side of a job: runs the tests, and gives a verdict on each case.

The solution is never in this process: its functions and classes are proxies (see `rollpacker_wire`) of what lives in a run, which the
solution side starts on request. What the solution prints is data. A run that dies, hangs or breaks the protocol fails the case at hand,
whatever the test made of it, and the next case gets another run.
"""

import ast
import array
import builtins
import io
import json
import linecache
import math
import os
import select
import signal
import socket
import struct
import sys
import time
import types

import rollpacker_pytest_shim as pytest_shim
import rollpacker_wire as wire

OUTPUT_BYTES = 1 << 20
MESSAGE_CHARACTERS = 2000
# After so many cases that took too long, those left are not run.
PATIENCE = 3
# What competition datasets expect to be there without an import, in the solution.
PRELUDE = """
from typing import *
from collections import *
from functools import *
from itertools import *
from heapq import *
from bisect import *
from math import inf, gcd, sqrt, ceil, floor, comb, log2
import bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator, random, re, string, sys, typing
"""
# What tests may use without an import: modules and types of python itself, never the solution's.
TRUSTED = ("bisect", "collections", "copy", "datetime", "functools", "heapq", "itertools", "json", "math", "operator", "os", "random",
           "re", "string", "sys", "time", "typing")


# Loaded once, in the process from which both sides are forked; tests of coroutines and mocks are not rare either.
exec(PRELUDE + "import asyncio, unittest.mock", {})


class Deadline(wire.Stop):
    """The time of a case is over."""


class BrokenTests(BaseException):
    """The tests themselves cannot be run: not the solution's fault."""


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


def where(error):
    """The line of the tests at which an error came up."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        file, number = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        if file.startswith("test_solution"):
            found = "%s:%d: %s" % (file, number, linecache.getline(file, number).strip())
        trace = trace.tb_next
    return found


def describe_end(end):
    """What the end of a run says of the solution."""
    number, code = end.get("signal"), end.get("code")
    if number == signal.SIGSYS:
        return "forbidden", "the solution made a system call that is forbidden"
    if number == signal.SIGXCPU:
        return "timeout", "the solution used up its processor time"
    if number == signal.SIGKILL and not end.get("killed"):
        return "memory", "the solution was killed, most likely for its memory"
    if number is not None:
        return "runtime_error", "the solution was killed by signal %d" % number
    return "runtime_error", "the solution exited with code %s before its tests were over" % code


class Bench:
    """Runs cases one by one, each within its time, and keeps what came of them."""

    def __init__(self, session, job, progress):
        self.session, self.progress = session, progress
        self.language, self.seconds = job.get("language", "python"), job["seconds"]
        self.stop = job["check"].get("stop_at_failure", False)
        self.cases = []
        self.hopeless = None
        self.timeouts = 0

    def allowed(self):
        return float(self.seconds[min(len(self.cases), len(self.seconds) - 1)])

    def case(self, body):
        """Runs one case; `body` raises what is wrong. Where every further case would end the same, none is run."""
        if self.stop and any(case["outcome"] != "passed" for case in self.cases):
            return
        if self.hopeless:
            self.add(self.hopeless[0], 0.0, self.hopeless[1])
            return
        allowed = self.allowed()
        self.progress.begin(allowed)
        begin = time.monotonic()
        try:
            outcome, message = self.attempt(body, allowed)
        except pytest_shim.Skipped:
            return
        self.add(outcome, time.monotonic() - begin, message)

    def add(self, outcome, seconds, message):
        case = {"outcome": outcome, "seconds": seconds, "message": clean(message)}
        self.cases.append(case)
        self.progress.case(case)

    def whole(self, body):
        """Runs what belongs to no case; gives what every case then is, if it fails."""
        allowed = self.allowed()
        self.progress.begin(allowed)
        begin = time.monotonic()
        outcome, message = self.attempt(body, allowed)
        return None if outcome == "passed" else (outcome, time.monotonic() - begin, message)

    def attempt(self, body, allowed):
        """Runs `body`, and says what came of it. What stopped it counts even if the test took it for an error and went on."""
        wire.Stop.raised = found = None
        try:
            signal.signal(signal.SIGALRM, overdue)
            signal.setitimer(signal.ITIMER_REAL, allowed, 0.05)
            try:
                body(allowed)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except BaseException as error:
            found = error
        found = wire.Stop.raised or found
        if isinstance(found, (BrokenTests, pytest_shim.Skipped)):
            raise found
        if found is None:
            return "passed", ""
        outcome, message = self.explain(found, allowed)
        self.timeouts += outcome == "timeout"
        if self.session.importing or outcome == "compile_error" or self.timeouts == PATIENCE:
            self.hopeless = outcome, message
        return outcome, message

    def explain(self, error, allowed):
        if isinstance(error, wire.Unsupported):
            raise BrokenTests(str(error))
        if is_missing_module(error):
            raise BrokenTests("%s: %s" % (where(error), error))
        if not isinstance(error, wire.Stop):
            return judge(error)
        self.session.stop()
        if isinstance(error, Deadline):
            return "timeout", "not done within %g s" % allowed
        if isinstance(error, Unloadable):
            return error.outcome, error.message
        if isinstance(error, wire.Broken):
            return "runtime_error", "the solution broke the protocol: %s" % error
        return describe_end(self.session.end)


def overdue(_signal, _frame):
    raise Deadline()


def is_missing_module(error):
    """Whether the tests import what is not there."""
    if not isinstance(error, ModuleNotFoundError) or error.__dict__.get("_rp_crossed"):
        return False
    return str(error.name).partition(".")[0] != "solution"


def clean(message):
    return str(message)[:MESSAGE_CHARACTERS].encode("utf-8", "replace").decode()


def judge(error):
    """What an error that a test let through says."""
    message = "\n".join(part for part in (where(error), brief(error)) if part)
    if isinstance(error, MemoryError):
        return "memory", message
    return ("runtime_error" if error.__dict__.get("_rp_crossed") else "failed"), message


class SolutionModule(types.ModuleType):
    """What a test imports as `solution`."""

    def __init__(self, session):
        super().__init__("solution")
        self.__dict__["_rp_session"] = session

    def __getattr__(self, name):
        if name == "__all__":
            return public(self._rp_session)
        if name.startswith("__"):
            raise AttributeError(name)
        return self._rp_session.root(name)

    def __setattr__(self, name, value):
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            self._rp_session.peer.ask("assign", name, value)

    def __delattr__(self, name):
        self._rp_session.peer.ask("remove", name)


def public(session):
    """The names of the solution that a test may get without naming them: none that mean something of python's, or that it imports."""
    names = session.peer.ask("names")
    taken = session.imported.union(TRUSTED, dir(builtins))
    return [name for name in names if type(name) is str and not name.startswith("_") and name not in taken]


def parse(code, file):
    try:
        tree = ast.parse(code, file)
    except (SyntaxError, ValueError) as error:
        raise BrokenTests("%s: %s" % (file, error))
    linecache.cache[file] = (len(code), None, code.splitlines(True), file)
    return tree


def loaded_names(tree):
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def imported_names(tree):
    """What a text imports, the solution aside."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) or isinstance(node, ast.ImportFrom) and node.module != "solution":
            found.update((name.asname or name.name).partition(".")[0] for name in node.names)
    return found


class Tests:
    """One text of tests: test functions, test classes, or bare assertions."""

    def __init__(self, bench, code, number):
        self.bench, self.session = bench, bench.session
        self.file = "test_solution.py" if number == 0 else "test_solution_%d.py" % number
        self.tree = parse(code, self.file)
        self.session.imported = imported_names(self.tree)
        self.module = types.ModuleType("test_solution")
        self.module.__file__ = self.file
        sys.modules["test_solution"] = self.module

    def run(self):
        if self.has_tests():
            self.run_functions()
        elif any(isinstance(node, ast.Assert) for node in self.tree.body):
            self.run_statements()
        else:
            self.bench.case(lambda allowed: (self.ready(allowed), self.execute(self.tree.body)))

    def has_tests(self):
        return any(self.tests_of(node) for node in self.tree.body)

    def tests_of(self, node):
        """How many tests a statement defines, parameters aside."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return int(node.name.startswith("test"))
        if isinstance(node, ast.ClassDef):
            return sum(self.tests_of(inner) for inner in node.body)
        return 0

    def ready(self, allowed):
        """Sees to it that there is a run, and binds what the tests use without an import."""
        if self.session.alive():
            return
        self.session.import_solution(allowed)
        sys.modules["solution"] = SolutionModule(self.session)
        used, known = loaded_names(self.tree), self.module.__dict__
        for name in used.intersection(TRUSTED):
            known.setdefault(name, __import__(name))
        for name in used.intersection(public(self.session)):
            if name not in known and name not in TRUSTED:
                known[name] = self.session.root(name)

    def execute(self, body):
        exec(compile(ast.Module(body, []), self.file, "exec", dont_inherit=True), self.module.__dict__)

    def run_statements(self):
        """Every assertion of the top level is a case; what stands between prepares the next ones."""
        pending = []
        for node in self.tree.body:
            pending.append(node)
            if isinstance(node, ast.Assert):
                body, pending = pending, []
                self.bench.case(lambda allowed: (self.ready(allowed), self.execute(body)))
        if pending and self.bench.cases[-1]["outcome"] == "passed":
            self.close(pending)

    def close(self, pending):
        """What follows the last assertion is part of its case."""
        last = self.bench.cases.pop()
        self.bench.case(lambda allowed: (self.ready(allowed), self.execute(pending)))
        self.bench.cases[-1]["seconds"] += last["seconds"]

    def run_functions(self):
        suite = []

        def collect(allowed):
            self.ready(allowed)
            self.execute(self.tree.body)
            suite.extend(pytest_shim.collect(self.module))

        collected = self.bench.whole(collect)
        if collected is not None:
            for _ in range(max(1, sum(map(self.tests_of, self.tree.body)))):
                self.bench.add(*collected)
            return
        for test in suite:
            self.bench.case(lambda allowed: (self.ready(allowed), test()))


def check_tests(check, bench):
    for number, code in enumerate(check["tests"]):
        sys.modules.pop("solution", None)
        bench.session.stop()
        Tests(bench, code, number).run()


def check_entry(check, bench):
    """HumanEval: `check(candidate)`. The prompt's own helpers are the dataset's, not what the solution made of them."""
    test = parse(check["test"], "test_solution.py")
    space = {"__name__": "test_solution"}
    try:
        exec(compile(check.get("prompt") or "", "prompt.py", "exec", dont_inherit=True), space)
    except Exception:
        space = {"__name__": "test_solution"}

    def body(allowed):
        bench.session.import_solution(allowed)
        candidate = bench.session.root(check["entry_point"])
        space[check["entry_point"]] = candidate
        if not check.get("prompt"):
            for name in loaded_names(test).intersection(public(bench.session)):
                space[name] = bench.session.root(name)
        exec(compile(test, "test_solution.py", "exec", dont_inherit=True), space)
        if "check" not in space:
            raise BrokenTests("the test defines no `check`")
        space["check"](candidate)

    bench.case(body)


def check_calls(check, bench):
    """A function, or a method of the class `Solution`, called with arguments and compared with what is expected."""
    for case in check["cases"]:
        def body(allowed, case=case):
            if not bench.session.alive():
                bench.session.import_solution(allowed)
            answer = function_of(bench.session, check["function"])(*case["arguments"])
            if not any(equal(answer, expected) for expected in case["expected"]):
                raise AssertionError("%s(%s) gives %s, not %s" % (
                    check["function"], ", ".join(map(short, case["arguments"])), short(answer), short(case["expected"][0])))

        bench.case(body)


def function_of(session, name):
    names = session.peer.ask("names")
    if name not in names and "Solution" in names:
        return getattr(session.root("Solution")(), name)
    return session.root(name)


def equal(answer, expected):
    """Equality of plain values: tuples are lists, floats agree to nine digits."""
    if isinstance(answer, (list, tuple)) and isinstance(expected, list):
        return len(answer) == len(expected) and all(map(equal, answer, expected))
    if type(answer) is dict and type(expected) is dict:
        return len(answer) == len(expected) and all(
            str(key) in expected and equal(value, expected[str(key)]) for key, value in answer.items())
    if type(answer) is float and type(expected) in (int, float) or type(expected) is float and type(answer) is int:
        return answer == expected or math.isclose(answer, expected, rel_tol=1e-9)
    return type(answer) in (int, float, bool, str, type(None)) and answer == expected


def short(value):
    try:
        text = repr(value)
    except Exception:
        text = "<%s>" % type(value).__name__
    return text if len(text) <= 200 else text[:200] + "..."


def check_stdio(check, bench):
    """What a program prints for a given input; blanks at the ends of lines are ignored."""
    kind = prepare(bench, len(check["cases"]))
    for case in check["cases"] if kind else ():
        bench.case(lambda allowed: run_program(bench.session, kind, case, allowed))


def check_runs(_check, bench):
    """A program that ends with code 0."""
    kind = prepare(bench, 1)
    if kind:
        bench.case(lambda allowed: run_program(bench.session, kind, {"stdin": "", "expected_stdout": None}, allowed))


def prepare(bench, cases):
    """The kind of runs of a program, compiled if its language is; None if that fails, and with it every case."""
    if bench.language == "python":
        return "main"

    def body(allowed):
        end, _, errors = finish_program(bench.session, "compile", "", allowed, None)
        if end["code"] != 0:
            raise Unloadable("unreadable", SyntaxError(errors))

    failed = bench.whole(body)
    for _ in range(cases if failed else 0):
        bench.add(*failed)
    return None if failed else "exec"


def run_program(session, kind, case, allowed):
    expected = case["expected_stdout"]
    limit = max(session.output_bytes, 2 * len((expected or "").encode()) + 65536)
    end, output, errors = finish_program(session, kind, case["stdin"], allowed, limit if expected is not None else None)
    if end["code"] != 0:
        raise Died(end, errors)
    if expected is not None and lines(output) != lines(expected):
        raise AssertionError("for the input %s it prints %s, not %s" % (short(case["stdin"]), short(output), short(expected)))


def lines(text):
    return [line.rstrip() for line in text.rstrip().split("\n")]


class Died(Unloadable):
    """A program did not end with code 0."""

    def __init__(self, end, errors):
        wire.Stop.__init__(self)
        name = end["raised"]
        self.outcome, self.message = describe_end(end)
        if end["signal"] is None:
            self.message = errors.strip()[-MESSAGE_CHARACTERS:] or self.message
            self.outcome = {"CompileError": "compile_error", "MemoryError": "memory"}.get(name, "runtime_error")


def finish_program(session, kind, stdin, allowed, limit):
    """Runs a program to its end: how it ended, what it printed on stdout and on stderr.

    One that prints more than `limit` is wrong; without a limit, what is too much is dropped.
    """
    session.begin(kind, allowed, stdin)
    run = session.run
    run.limit, run.forwards = limit or session.output_bytes, False
    run.poll.register(session.requests, select.POLLIN)
    while True:
        ready = dict(run.poll.poll())
        run.drain()
        if limit and len(run.printed[run.out]) >= limit:
            session.stop()
            raise AssertionError("it prints more than %d bytes" % limit)
        if session.requests.fileno() in ready:
            break
        if run.link.fileno() in ready:
            listen(run)
    session.collect()
    end = dict(session.end, raised=bytes(run.pending[:100]).decode("utf-8", "replace"))
    sys.stdout.write(run.text(run.out)[:4096])
    sys.stderr.write(run.text(run.errors)[:4096])
    return end, run.text(run.out), run.text(run.errors)


def listen(run):
    """Takes what a program says of its end."""
    try:
        run.receive_some()
    except wire.Ended:
        wire.Stop.raised = None
        run.poll.unregister(run.link)


def check_text(check, bench):
    """Tests of the text of a response: it stands where they say `{response}`, as a literal."""
    for number, code in enumerate(check["tests"]):
        tree = parse(code.replace("{response}", repr(check["response"])), "test_solution_%d.py" % number)

        def body(_allowed):
            space = {"__name__": "test_solution"}
            exec(PRELUDE, space)
            exec(compile(tree, "test_solution_%d.py" % number, "exec", dont_inherit=True), space)

        bench.case(body)


FORMS = {"tests": check_tests, "entry": check_entry, "calls": check_calls, "stdio": check_stdio, "text": check_text, "runs": check_runs}


def check(job, requests, progress):
    """The verdict on a solution, or why its tests cannot be run."""
    sys.stdout, sys.stderr, sys.stdin = Capture(), Capture(), io.StringIO()
    out, errors = sys.stdout, sys.stderr
    sys.modules["pytest"] = pytest_shim.module()
    sys.dont_write_bytecode = True
    form = job["check"]
    prelude = (PRELUDE if form.get("prelude") else "") + form.get("import_prefix", "")
    bench = Bench(Session(requests, prelude, job.get("output_bytes", OUTPUT_BYTES)), job, progress)
    try:
        FORMS[form["kind"]](form, bench)
        if not bench.cases:
            raise BrokenTests("there is no test in it")
    except BrokenTests as error:
        return {"tests": clean(error)}
    bench.session.stop()
    return {"verdict": {"cases": bench.cases, "stdout": clean_output(out), "stderr": clean_output(errors)}}


def clean_output(stream):
    return stream.getvalue().encode("utf-8", "replace").decode()
