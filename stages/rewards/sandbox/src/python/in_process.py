"""Runs tests and solution in one interpreter, as pytest would.

The solution can change anything in this process, including the report. The checker therefore trusts the report only if the same process
also detects wrong expectations (see `rollpacker_recheck`), and passes it the compiled tests without their source.
"""

import base64
import json
import linecache
import marshal
import socket
import sys
import types
import unittest

import rollpacker_decoys as decoys
import rollpacker_pytest_shim as pytest_shim
import rollpacker_suite as suite
from rollpacker_binding import bind, bind_entry, starred

MESSAGE_CHARACTERS = 500


def run(link, load, job):
    """Runs the tests of a job. Reports each result over the link as soon as it is known, and then the end."""
    link = socket.socket(fileno=link)
    tests = job["tests"]
    sys.modules["pytest"] = pytest_shim.module()
    sys.dont_write_bytecode = True
    try:
        module, program = load("solution", job["solution"], job["prelude"])
        exec(program, module.__dict__)
        space = space_of(module, tests)
        parts = [marshal.loads(base64.b64decode(part)) for part in tests["parts"]]
        for name, case in FORMS[tests["form"]](space, module, tests, parts):
            report(link, dict(attempt(case), case=name))
    except BaseException as error:
        return report(link, {"broken": where(error) + brief(error)})
    report(link, {"end": True})


def space_of(solution, tests):
    """Returns the module of the tests, with the names that they use without an import or import with a star."""
    module = types.ModuleType("test_solution")
    module.__file__ = tests["file"]
    sys.modules["test_solution"] = module
    used, imported, names = set(tests["used"]), set(tests["imported"]), list(solution.__dict__)
    solution.__all__ = starred(used, imported, names)
    module.__dict__.update(decoys.NAMES)
    bind(module.__dict__, used, imported, names, solution.__dict__.get)
    return module


def functions(space, _module, _tests, parts):
    exec(parts[0], space.__dict__)
    return suite.collect(space)


def statements(space, _module, _tests, parts):
    return [(str(number), lambda part=part: exec(part, space.__dict__)) for number, part in enumerate(parts)]


def entry(space, module, tests, parts):
    """HumanEval: runs the helpers of the prompt and then the tests, whose `check` is called with the function of the solution."""
    if len(parts) > 1:
        exec(parts[0], space.__dict__)
    candidate = bind_entry(space.__dict__, tests["entry_point"], module.__dict__.__getitem__)
    exec(parts[-1], space.__dict__)
    return [("check", lambda: space.__dict__["check"](candidate))]


FORMS = {"functions": functions, "statements": statements, "entry": entry}


def attempt(case):
    """Runs a case. Only an assertion counts as `failed`, other errors as `broken`: a wrong expectation must make a case fail."""
    try:
        case()
    except (pytest_shim.Skipped, unittest.SkipTest):
        return {"outcome": "skipped", "message": ""}
    except AssertionError as error:
        return {"outcome": "failed", "message": where(error) + brief(error)}
    except BaseException as error:
        return {"outcome": "broken", "message": where(error) + brief(error)}
    return {"outcome": "passed", "message": ""}


def where(error):
    """Returns the line of the tests, or of the solution, at which an error was raised."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith("test_solution"):
            found = "%s:%d: " % (file, trace.tb_lineno)
        elif file == "solution.py":
            found = "%s:%d: %s\n" % (file, trace.tb_lineno, linecache.getline(file, trace.tb_lineno).strip())
        trace = trace.tb_next
    return found


def brief(error):
    try:
        return ("%s: %s" % (type(error).__name__, error))[:MESSAGE_CHARACTERS]
    except BaseException:
        return type(error).__name__


def report(link, value):
    sys.stdout.flush()
    link.sendall(json.dumps(value).encode() + b"\n")
