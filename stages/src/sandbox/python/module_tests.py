"""Tests that are a text of Python: test functions and classes, or bare assertions."""

import ast
import builtins
import linecache
import sys
import types

import rollpacker_suite as suite
from rollpacker_bench import BrokenTests

# What tests may use without an import: modules and types of python itself, never the solution's.
TRUSTED = ("bisect", "collections", "copy", "datetime", "functools", "heapq", "itertools", "json", "math", "operator", "os", "random",
           "re", "string", "sys", "time", "typing")


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
        tests = []

        def collect(allowed):
            self.ready(allowed)
            self.execute(self.tree.body)
            tests.extend(suite.collect(self.module))

        collected = self.bench.whole(collect)
        if collected is not None:
            for _ in range(max(1, sum(map(self.tests_of, self.tree.body)))):
                self.bench.add(*collected)
            return
        for test in tests:
            self.bench.case(lambda allowed: (self.ready(allowed), test()))
