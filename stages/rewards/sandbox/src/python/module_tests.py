"""Tests that are Python source: test functions and classes, or bare assertions."""

import ast
import linecache
import sys
import types

import rollpacker_suite as suite
from rollpacker_case_runner import BrokenTests
from rollpacker_binding import bind, starred
from rollpacker_pytest_shim import Skipped
from rollpacker_recheck import Recheck, TestText

# Attributes by which a module describes itself.
DESCRIPTIONS = ("__version__", "__author__", "__license__")


class SolutionModule(types.ModuleType):
    """The module that tests import as `solution`."""

    def __init__(self, session):
        super().__init__("solution")
        self.__dict__["_rp_session"] = session

    def __getattr__(self, name):
        if name == "__all__":
            return starred(*self._rp_session.names_used, defined(self._rp_session))
        if name.startswith("__") and name not in DESCRIPTIONS:
            raise AttributeError(name)
        try:
            return self._rp_session.root(name)
        except AttributeError:
            self._rp_session.missing.add(name)
            raise

    def __setattr__(self, name, value):
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            self._rp_session.peer.ask("assign", name, value)
            self._rp_session.missing.discard(name)

    def __delattr__(self, name):
        self._rp_session.peer.ask("remove", name)

    def __dir__(self):
        return sorted(defined(self._rp_session))


def defined(session):
    """Returns the names that the solution defines."""
    return [name for name in session.peer.ask("names") if type(name) is str]


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
    """Returns the names that a text imports from modules other than the solution, and `solution` if it imports any name from there."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "solution":
            found.update(("solution",) if any(name.name != "*" for name in node.names) else ())
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = ("solution" if name.name == "solution" else name.asname or name.name for name in node.names)
            found.update(name.partition(".")[0] for name in names)
    return found


def imported_modules(tree):
    """Returns the top-level modules that a text imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


class Tests:
    """One text of tests: test functions, test classes, or bare assertions."""

    def __init__(self, runner, code, number):
        self.runner, self.session = runner, runner.session
        self.file = "test_solution.py" if number == 0 else "test_solution_%d.py" % number
        self.tree = parse(code, self.file)
        self.used, self.imported = loaded_names(self.tree), imported_names(self.tree)
        self.session.names_used, self.session.modules = (self.used, self.imported), imported_modules(self.tree)
        self.session.missing = set()
        self.module = types.ModuleType("test_solution")
        self.module.__file__ = self.file
        sys.modules["test_solution"] = self.module

    def run(self):
        has_functions = self.has_tests()
        groups = [] if has_functions else self.groups()
        min_cases = sum(map(self.tests_of, self.tree.body)) if has_functions else len(groups)
        text = TestText(self.tree, self.file, "functions" if has_functions else "statements", self.used, self.imported, min_cases, groups)
        recheck = Recheck(self.runner, text)
        if has_functions:
            text.names = self.run_functions()
        else:
            self.run_statements(groups)
        recheck.apply()

    def has_tests(self):
        return any(self.tests_of(node) for node in self.tree.body)

    def tests_of(self, node):
        """Returns the number of tests that a statement defines, without counting parameters."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return int(node.name.startswith("test"))
        if isinstance(node, ast.ClassDef):
            return sum(self.tests_of(inner) for inner in node.body)
        return 0

    def ready(self, allowed):
        """Ensures that there is a run, and binds the names that the tests use without an import."""
        if self.session.is_alive():
            return
        self.session.import_solution(allowed)
        sys.modules["solution"] = SolutionModule(self.session)
        bind(self.module.__dict__, self.used, self.imported, defined(self.session), self.session.root)

    def execute(self, body):
        exec(compile(ast.Module(body, []), self.file, "exec", dont_inherit=True), self.module.__dict__)

    def groups(self):
        """Returns the statements of each case as ranges. Every top-level assertion ends a case; statements after the last one belong to
        it.
        """
        body = self.tree.body
        ends = [number + 1 for number, node in enumerate(body) if isinstance(node, ast.Assert)] or [len(body)]
        ends[-1] = len(body)
        return list(zip([0] + ends[:-1], ends))

    def run_statements(self, groups):
        for begin, end in groups:
            body = self.tree.body[begin:end]
            self.runner.case(lambda allowed: (self.ready(allowed), self.execute(body)))

    def run_functions(self):
        """Runs test functions. Returns their names, or None if they could not be collected."""
        tests = []

        def collect(allowed):
            self.ready(allowed)
            self.execute(self.tree.body)
            tests.extend(suite.collect(self.module))

        try:
            collected = self.runner.run_uncounted(collect)
        except Skipped:
            self.runner.skip()
            return None
        if collected is not None:
            for _ in range(max(1, sum(map(self.tests_of, self.tree.body)))):
                self.runner.add(*collected)
            return None
        self.runner.without_tests += not tests
        self.runner.progress.expect(len(self.runner.cases) + len(tests))
        for _name, test in tests:
            self.runner.case(lambda allowed: (self.ready(allowed), test()))
        return [name for name, _test in tests]
