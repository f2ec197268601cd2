"""The tests of a module, run as pytest and unittest would run them."""

import contextlib
import functools
import inspect
import itertools
import types
import unittest

from rollpacker_pytest_shim import BUILT_IN, Failed, Fixture, Parameters, Skipped


class Setup:
    """The fixtures of one test, made when asked for and taken down in reverse."""

    def __init__(self, fixtures, chosen, owner, kept):
        self.fixtures, self.chosen, self.owner, self.kept = fixtures, chosen, owner, kept
        self.values, self.finals = {}, contextlib.ExitStack()

    def get(self, name):
        if name in self.values:
            return self.values[name]
        found = self.fixtures.get(name)
        if found is not None and found.scope != "function" and not found.params and name in self.kept:
            return self.kept[name]
        if found is None and name not in BUILT_IN:
            raise Failed("there is no fixture %r" % name)
        value = self.make(name, found)
        self.values[name] = value
        if found is not None and found.scope != "function" and not found.params:
            self.kept[name] = value
        return value

    def make(self, name, found):
        function = found.function if found else BUILT_IN[name]
        made = self.invoke(function, name)
        if inspect.isgenerator(made):
            value = next(made)
            self.finals.callback(next, made, None)
            return value
        return made

    def invoke(self, function, name):
        names = arguments_of(function)
        owned = names[:1] == ["self"]
        values = [self.owner if owned and index == 0 else self.request(name) if argument == "request" else self.get(argument)
                  for index, argument in enumerate(names)]
        return function(*values)

    def request(self, name):
        return types.SimpleNamespace(
            param=self.chosen.get(name), addfinalizer=self.finals.callback, getfixturevalue=self.get, node=types.SimpleNamespace(name=name),
            instance=self.owner)


def arguments_of(function):
    """What a test or a fixture asks for: its parameters without a default."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [item.name for item in found if item.default is item.empty and item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]


def marks_of(*holders):
    found = []
    for holder in holders:
        found += list(getattr(holder, "_rp_marks", ()))
    return found


def names_of(argument):
    return [name.strip() for name in argument.split(",") if name.strip()] if isinstance(argument, str) else list(argument)


def parameter_sets(marks):
    """Every combination of what the marks `parametrize` say: values by name, and further marks."""
    axes = []
    for mark in marks:
        if mark.name == "parametrize":
            names = names_of(mark.args[0] if mark.args else mark.kwargs["argnames"])
            rows = mark.args[1] if len(mark.args) > 1 else mark.kwargs["argvalues"]
            axes.append([row_of(names, row) for row in rows])
    for choice in itertools.product(*axes):
        values, more = {}, []
        for row, row_marks in choice:
            values.update(row)
            more += row_marks
        yield values, more


def row_of(names, row):
    marks = []
    if isinstance(row, Parameters):
        marks, row = list(row.marks), row.values if len(names) > 1 else row.values[0]
    return dict(zip(names, row if len(names) > 1 else [row])), marks


def is_skipped(marks):
    return any(mark.name == "skip" or mark.name == "skipif" and mark.args and mark.args[0] for mark in marks)


class Suite:
    """The tests of a module."""

    def __init__(self, module):
        self.module = module
        self.fixtures = {item.name: item for item in vars(module).values() if isinstance(item, Fixture)}
        self.kept = {}
        self.tests = []
        for name, item in list(vars(module).items()):
            self.add(name, item)
        setup = vars(module).get("setup_module")
        if inspect.isfunction(setup):
            setup(*[module][: len(arguments_of(setup))])

    def add(self, name, item):
        if inspect.isclass(item) and item.__module__ == "test_solution":
            if issubclass(item, unittest.TestCase):
                self.add_case(item)
            elif name.startswith("Test"):
                self.add_class(item)
        elif inspect.isfunction(item) and name.startswith("test"):
            self.add_function(item, None)

    def add_class(self, owner):
        for name in dir(owner):
            function = inspect.getattr_static(owner, name)
            if isinstance(function, Fixture):
                self.fixtures[function.name] = function
        first = True
        for name in vars(owner):
            if name.startswith("test") and callable(getattr(owner, name)):
                self.add_function(getattr(owner, name), owner, first)
                first = False

    def add_case(self, owner):
        for name in unittest.TestLoader().getTestCaseNames(owner):
            self.tests.append(functools.partial(run_case, owner, name))

    def add_function(self, function, owner, first=False):
        marks = marks_of(function, owner, self.module)
        marks += self.module_marks()
        if is_skipped(marks):
            return
        wanted = [self.fixtures[name] for name in self.closure(function) if self.fixtures[name].params]
        for values, more in parameter_sets(marks):
            if is_skipped(more):
                continue
            for chosen in itertools.product(*(item.params for item in wanted)):
                plain = [item.values[0] if isinstance(item, Parameters) else item for item in chosen]
                picked = {item.name: value for item, value in zip(wanted, plain)}
                self.tests.append(functools.partial(self.run, function, owner, values, picked, marks + more, first))
                first = False

    def module_marks(self):
        found = vars(self.module).get("pytestmark", [])
        return list(found) if isinstance(found, (list, tuple)) else [found]

    def closure(self, function, seen=None):
        """The fixtures of the module that a test needs, directly or not."""
        seen = [] if seen is None else seen
        for name in arguments_of(function) + [name for name, item in self.fixtures.items() if item.autouse]:
            if name in self.fixtures and name not in seen:
                seen.append(name)
                self.closure(self.fixtures[name].function, seen)
        return seen

    def run(self, function, owner, values, chosen, marks, first):
        self_ = owner() if owner else None
        setup = Setup(self.fixtures, chosen, self_, self.kept)
        setup.values.update(values)
        expected_failure = any(mark.name == "xfail" for mark in marks)
        with setup.finals:
            try:
                self.around(self_, function, "setup", first)
                for name, item in self.fixtures.items():
                    if item.autouse:
                        setup.get(name)
                self.call(function, self_, setup)
            except Exception:
                if not expected_failure:
                    raise
            finally:
                self.around(self_, function, "teardown", False)

    def call(self, function, owner, setup):
        bound = function.__get__(owner) if owner is not None and inspect.isfunction(function) else function
        found = bound(**{name: setup.get(name) for name in arguments_of(bound)})
        if inspect.iscoroutine(found):
            import asyncio

            asyncio.run(found)

    def around(self, owner, function, what, first):
        names = [what + "_method", what] if owner else [what + "_function"]
        names = (["setup_class"] if first and owner else []) + names
        for name in names:
            hook = getattr(owner, name, None) if owner else vars(self.module).get(name)
            if callable(hook):
                hook(*[function][: len(arguments_of(hook))])


def run_case(owner, name):
    """Runs a test of unittest; what it raises is raised here."""
    case = owner(name)
    owner_setup = getattr(owner, "_rp_ready", False)
    if not owner_setup:
        owner.setUpClass()
        owner._rp_ready = True
    case.run(Result())


class Result(unittest.TestResult):
    """Lets errors through at once."""

    def addError(self, test, error):
        raise error[1]

    def addFailure(self, test, error):
        raise error[1]

    def addSkip(self, test, reason):
        raise Skipped(reason)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            raise error[1]


def collect(module):
    """The tests of a module as functions without arguments, in order."""
    return Suite(module).tests
