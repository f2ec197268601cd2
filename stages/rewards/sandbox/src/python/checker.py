"""The checker of a job: runs the tests and returns a verdict on each case.

The solution never runs in this process. Its functions and classes are proxies (see `rollpacker_wire`) of objects in a run, which the zygote
starts. The output of the solution is treated as data. A run that dies, hangs or breaks the protocol fails the current case, whatever the
test does about it, and the next case gets a new run.
"""

import ast
import io
import json
import select
import sys

import rollpacker_pytest_shim as pytest_shim
import rollpacker_wire as wire
from rollpacker_case_runner import CaseRunner, BrokenTests, clean, describe_end
from rollpacker_binding import PRELUDE, bind, bind_entry
from rollpacker_equality import equal, equal_output
from rollpacker_module_tests import Tests, defined, imported_modules, imported_names, loaded_names, parse
from rollpacker_recheck import NO_REQUESTS, Recheck, TestText
from rollpacker_session import MESSAGE_CHARACTERS, OUTPUT_BYTES, Capture, Session, Unloadable

PYTEST = pytest_shim.module()


def check_tests(check, runner):
    for number, code in enumerate(check["tests"]):
        sys.modules.pop("solution", None)
        runner.session.stop()
        Tests(runner, code, number).run()


def check_entry(check, runner):
    """HumanEval: `check(candidate)`. The helpers of the prompt, or else of the import prefix, are those of the dataset, not those that the
    solution may have redefined.
    """
    test, prompt = parse(check["test"], "test_solution.py"), parse_helpers(check.get("prompt"))
    helpers = prompt or parse_helpers(check.get("import_prefix"))
    used, imported = loaded_names(test), imported_names(test).union(("solution",))
    runner.session.modules = imported_modules(test)

    def body(allowed):
        space = {"__name__": "test_solution"}
        runner.session.import_solution(allowed)
        if prompt is None:
            bind(space, used, imported, defined(runner.session), runner.session.root)
        if helpers is not None:
            exec(compile(helpers, "prompt.py", "exec", dont_inherit=True), space)
        candidate = bind_entry(space, check["entry_point"], runner.session.root)
        exec(compile(test, "test_solution.py", "exec", dont_inherit=True), space)
        if "check" not in space:
            raise BrokenTests("the test defines no `check`")
        space["check"](candidate)

    text = TestText(test, "test_solution.py", "entry", used, imported, 1, helpers=helpers, entry_point=check["entry_point"])
    recheck = Recheck(runner, text)
    runner.case(body)
    recheck.apply()


def parse_helpers(code):
    """Returns the syntax tree of a prompt or an import prefix, or None if there is no code or it is not a complete program."""
    try:
        return ast.parse(code, "prompt.py") if code else None
    except (SyntaxError, ValueError):
        return None


def check_calls(check, runner):
    """Calls a function, or a method of the class `Solution`, and compares the results with the expected ones."""
    for case in check["cases"]:
        def body(allowed, case=case):
            if not runner.session.is_alive():
                runner.session.import_solution(allowed)
            answer = function_of(runner.session, check["function"])(*case["arguments"])
            if not any(equal(answer, expected) for expected in case["expected"]):
                raise AssertionError("%s(%s) gives %s, not %s" % (
                    check["function"], ", ".join(map(short, case["arguments"])), short(answer), short(case["expected"][0])))

        runner.case(body)


def function_of(session, name):
    names = session.peer.ask("names")
    if name not in names and "Solution" in names:
        return getattr(session.root("Solution")(), name)
    return session.root(name)


def short(value):
    try:
        text = repr(value)
    except Exception:
        text = "<%s>" % type(value).__name__
    return text if len(text) <= 200 else text[:200] + "..."


def check_stdio(check, runner):
    """Compares the output of a program for a given input with the expected one, as `equal_output` does."""
    kind = prepare(runner, len(check["cases"]))
    for case in check["cases"] if kind else ():
        runner.case(lambda allowed: run_program(runner.session, kind, case, allowed))


def check_runs(_check, runner):
    """Runs a program, which must exit with code 0."""
    kind = prepare(runner, 1)
    if kind:
        runner.case(lambda allowed: run_program(runner.session, kind, {"stdin": "", "expected_stdout": None}, allowed))


def prepare(runner, cases):
    """Returns the kind of runs for a program, after compiling it if its language requires that. If this fails, all cases fail and the
    result is None.
    """
    if runner.language == "python":
        return "main"

    def body(allowed):
        end, _, errors = finish_program(runner.session, "compile", "", allowed, None)
        if end["code"] != 0:
            raise Unloadable("unreadable", SyntaxError(errors))

    failed = runner.run_uncounted(body)
    for _ in range(cases if failed else 0):
        runner.add(*failed)
    return None if failed else "exec"


def run_program(session, kind, case, allowed):
    expected = case["expected_stdout"]
    limit = max(session.output_bytes, 2 * len((expected or "").encode()) + 65536)
    end, output, errors = finish_program(session, kind, case["stdin"], allowed, limit if expected is not None else None)
    if end["code"] != 0:
        raise ProgramFailed(end, errors)
    if expected is not None and not equal_output(output, expected):
        raise AssertionError("for the input %s it prints %s, not %s" % (short(case["stdin"]), short(output), short(expected)))


class Unavailable(BrokenTests):
    """The compiler or interpreter of the language is missing, which is a fault of the sandbox's configuration."""


class ProgramFailed(Unloadable):
    """A program did not exit with code 0."""

    def __init__(self, end, errors):
        wire.Stop.__init__(self)
        name = end["raised"]
        self.outcome, self.message = describe_end(end)
        if end["signal"] is None:
            self.message = errors.strip()[-MESSAGE_CHARACTERS:] or self.message
            self.outcome = {"CompileError": "compile_error", "MemoryError": "memory"}.get(name, "runtime_error")


def finish_program(session, kind, stdin, allowed, limit):
    """Runs a program to its end. Returns how it ended, its stdout and its stderr.

    A program that prints `limit` bytes or more fails; without a limit, excess output is dropped.
    """
    session.begin(kind, allowed, stdin)
    run = session.run
    run.limit, run.forwards_output = limit or session.output_bytes, False
    run.poll.register(session.requests, select.POLLIN)
    while True:
        ready = dict(run.poll.poll())
        run.drain()
        if limit and len(run.printed[run.out]) >= limit:
            session.stop()
            raise AssertionError("it prints more than %d bytes" % limit)
        if run.link.fileno() in ready:
            receive_exception_name(run)
        if session.requests.fileno() in ready:
            break
    session.receive_end()
    raised = bytes(run.pending[:100]).decode("utf-8", "replace")
    if raised and kind != "main":
        raise Unavailable("cannot start the program of the language: %s" % raised)
    end = dict(session.end, raised=raised)
    sys.stdout.write(run.text(run.out)[:4096])
    sys.stderr.write(run.text(run.errors)[:4096])
    return end, run.text(run.out), run.text(run.errors)


def receive_exception_name(run):
    """Receives the name of the exception that ended a program."""
    try:
        run.receive_some()
    except wire.Ended:
        wire.Stop.raised = None
        run.poll.unregister(run.link)


def check_text(check, runner):
    """Runs tests of the text of a response. The text replaces `{response}` in expressions, as a value, and within string literals."""
    for number, code in enumerate(check["tests"]):
        file = "test_solution_%d.py" % number
        tree = ast.fix_missing_locations(Placeholder(check["response"]).visit(parse(code, file)))

        def body(_allowed):
            space = {"__name__": "test_solution"}
            exec(PRELUDE, space)
            space["response"] = check["response"]
            exec(compile(tree, file, "exec", dont_inherit=True), space)

        runner.case(body)


class Placeholder(ast.NodeTransformer):
    """Replaces `{response}` by a text, always as a value and never as code."""

    def __init__(self, response):
        self.response = response

    def visit_Set(self, node):
        self.generic_visit(node)
        only = node.elts[0] if len(node.elts) == 1 else None
        return ast.copy_location(ast.Constant(self.response), node) if isinstance(only, ast.Name) and only.id == "response" else node

    def visit_Constant(self, node):
        if isinstance(node.value, str) and "{response}" in node.value:
            return ast.copy_location(ast.Constant(node.value.replace("{response}", self.response)), node)
        return node


FORMS = {"tests": check_tests, "entry": check_entry, "calls": check_calls, "stdio": check_stdio, "text": check_text, "runs": check_runs}


def check(job, requests, progress):
    """Returns the verdict on a solution, or the reason why its tests cannot be run."""
    sys.stdout, sys.stderr, sys.stdin = Capture(), Capture(), io.StringIO()
    out, errors = sys.stdout, sys.stderr
    sys.modules["pytest"] = PYTEST
    sys.dont_write_bytecode = True
    form = job["check"]
    runner = CaseRunner(Session(requests, job), job, progress)
    try:
        FORMS[form["kind"]](form, runner)
        require_cases(runner)
    except Unavailable as error:
        return {"fault": clean(error)}
    except BrokenTests as error:
        return {"tests": clean(error)}
    runner.session.stop()
    return {"verdict": {"cases": runner.cases, "complete": runner.complete, "stdout": clean_output(out), "stderr": clean_output(errors)}}


def require_cases(runner):
    """Requires that there are cases. Without cases a solution is wrong, unless the tests contain no test at all. A text without a test
    fails if other texts have cases.
    """
    if runner.cases:
        for _ in range(runner.without_tests):
            runner.add("failed", 0.0, "a text of the tests has no test")
        return
    if runner.dropped:
        runner.add("failed", 0.0, NO_REQUESTS)
    elif runner.skipped:
        runner.add("failed", 0.0, "every test was skipped")
    else:
        raise BrokenTests("there is no test in it")


def clean_output(stream):
    """Returns the beginning of the output, as much as fits into a report after escaping control characters."""
    text = clean(stream.getvalue(), None)
    while len(json.dumps(text)) > 2 * OUTPUT_BYTES:
        text = text[: len(text) // 2]
    return text
