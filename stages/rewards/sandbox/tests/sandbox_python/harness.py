"""Runs the two processes of a job, checker and solution, as forks of this process without isolation."""

import gc
import json
import os
import pathlib
import re
import signal
import socket
import sys
import types

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "src" / "python"
# All modules except the zygote, in the order in which a slot loads them.
MODULES = re.findall(r'\("(\w+)", include_str', (SOURCES.parent / "setup.rs").read_text())[:-1]


def load(name):
    module = types.ModuleType("rollpacker_" + name)
    sys.modules[module.__name__] = module
    exec(compile((SOURCES / (name + ".py")).read_text(), str(SOURCES / (name + ".py")), "exec"), module.__dict__)
    return module


modules = {name: load(name) for name in MODULES}


class Confinement:
    """The interface of the zygote for the process of the solution; this one confines nothing but descriptors."""

    isolated = False

    def fork(self, body):
        pid = os.fork()
        if pid == 0:
            modules["isolation"].unwatch_children()
            body()
        return pid

    def sweep(self):
        try:
            while True:
                os.waitpid(-1, 0)
        except ChildProcessError:
            pass

    def confine(self, keep, seconds, execute=False):
        modules["isolation"].close_all_but(keep)
        os.setsid()


class Progress:
    def begin(self, seconds):
        pass

    def expect(self, cases):
        pass

    def case(self, case):
        pass


def verdict(solution, check, seconds=(5.0,), language="python", spec=None):
    """Returns the checker's verdict on a solution."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    solution_process = fork(lambda: modules["solution"].serve(ours, Confinement()), theirs)
    job = {"language": language, "spec": spec, "solution": solution, "check": check, "seconds": list(seconds)}
    ours.close()
    reader, writer = os.pipe()

    def report():
        answer = modules["checker"].check(job, theirs, Progress())
        with os.fdopen(writer, "w") as file:
            json.dump(answer, file)

    checker = fork(report)
    os.close(writer)
    theirs.close()
    with os.fdopen(reader) as file:
        text = file.read()
    for pid in (checker, solution_process):
        os.waitpid(pid, 0)
    return json.loads(text)


def fork(body, *close):
    pid = os.fork()
    if pid:
        return pid
    try:
        for end in close:
            end.close()
        body()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)


def outcomes(*arguments, **keywords):
    found = verdict(*arguments, **keywords)
    return [case["outcome"] for case in found["verdict"]["cases"]] if "verdict" in found else found
