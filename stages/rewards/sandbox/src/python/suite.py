"""Collects and runs the tests of a module as pytest would."""

import builtins
import contextlib
import inspect
import itertools
import unittest
import warnings

from rollpacker_pytest_shim import Failed, Fixture, Parameters, Skipped
from rollpacker_scopes import SCOPES, Scope, Setup, arguments_of
from rollpacker_unittest_cases import tests_of


def marks_of(*holders):
    found = []
    for holder in holders:
        found += list(getattr(holder, "_rp_marks", ()))
    return found


def names_of(argument):
    return [name.strip() for name in argument.split(",") if name.strip()] if isinstance(argument, str) else list(argument)


def parameter_sets(marks):
    """Returns every combination of the `parametrize` marks: the values by name, the values for fixtures, and additional marks."""
    axes = []
    for mark in marks:
        if mark.name == "parametrize":
            names = names_of(mark.args[0] if mark.args else mark.kwargs["argnames"])
            rows = mark.args[1] if len(mark.args) > 1 else mark.kwargs["argvalues"]
            indirect = mark.kwargs.get("indirect", mark.args[2] if len(mark.args) > 2 else False)
            indirect = names if indirect is True else list(indirect or ())
            axes.append([(indirect,) + row_of(names, row) for row in rows])
    for choice in itertools.product(*axes):
        values, chosen, more = {}, {}, []
        for indirect, row, row_marks in choice:
            for name, value in row.items():
                (chosen if name in indirect else values)[name] = value
            more += row_marks
        yield values, chosen, more


def row_of(names, row):
    marks = []
    if isinstance(row, Parameters):
        marks, row = list(row.marks), row.values if len(names) > 1 else row.values[0]
    row = row if len(names) > 1 else [row]
    if len(row) != len(names):
        raise Failed("parametrize: %d names and %d values" % (len(names), len(row)))
    return dict(zip(names, row)), marks


def holds(mark, space):
    """Returns true if the conditions of a mark such as `skipif` hold."""
    conditions = list(mark.args) + ([mark.kwargs["condition"]] if "condition" in mark.kwargs else [])
    return all(eval(item, dict(space)) if isinstance(item, str) else item for item in conditions)


@contextlib.contextmanager
def warning_filters(marks):
    """Applies the `filterwarnings` marks."""
    found = [text for mark in reversed(marks) if mark.name == "filterwarnings" for text in mark.args]
    if not found:
        yield
        return
    with warnings.catch_warnings():
        for text in found:
            action, message, category, *_ = (text + ":::").split(":")
            kind = eval(category, dict(vars(builtins))) if category else Warning
            warnings.filterwarnings(action, message, kind)
        yield


class FunctionTest:
    """A test function with one set of parameters."""

    def __init__(self, function, owner, values, chosen, marks):
        self.function, self.owner, self.values, self.chosen, self.marks = function, owner, values, chosen, marks
        function = getattr(function, "__func__", function)
        self.name = "%s.%s" % (owner.__name__, function.__name__) if owner else function.__name__

    def run(self, suite, following):
        expected = [mark for mark in self.marks if mark.name == "xfail" and holds(mark, vars(suite.module))]
        if any(mark.kwargs.get("run") is False for mark in expected):
            suite.leave(self.owner, following)
            raise Skipped("an expected failure that is not run")
        try:
            self.run_within_scopes(suite, following)
        except Exception as error:
            raises = expected[0].kwargs.get("raises") if expected else None
            if expected and (raises is None or isinstance(error, raises)):
                raise Skipped("an expected failure")
            raise
        if any(mark.kwargs.get("strict") for mark in expected):
            raise Failed("an unexpected success")

    def run_within_scopes(self, suite, following):
        owner = self.owner() if self.owner else None
        scopes = dict(suite.scopes, function=Scope())
        setup = Setup(suite.fixtures_of(self.owner), scopes, dict(self.values), self.chosen, owner, self.function)
        with contextlib.ExitStack() as stack:
            stack.enter_context(warning_filters(self.marks))
            stack.callback(suite.leave, self.owner, following)
            stack.callback(scopes["function"].close)
            suite.enter_class(self.owner)
            for name, item in setup.fixtures.items():
                if item.autouse:
                    setup.get(name)
            for mark in self.marks:
                for name in mark.args if mark.name == "usefixtures" else ():
                    setup.get(name)
            stack.callback(suite.hook, owner, self.function, "teardown")
            suite.hook(owner, self.function, "setup")
            self.call(owner, setup)

    def call(self, owner, setup):
        bound = self.function.__get__(owner, self.owner) if owner is not None else self.function
        found = bound(**{name: setup.request("request", setup.scopes["function"]) if name == "request" else setup.get(name)
                         for name in arguments_of(bound)})
        if inspect.iscoroutine(found):
            import asyncio

            asyncio.run(found)


class Suite:
    """The tests of a module."""

    def __init__(self, module):
        self.module = module
        self.fixtures = {item.name: item for item in vars(module).values() if isinstance(item, Fixture) and self.is_own(item.function)}
        self.scopes = {name: Scope() for name in SCOPES}
        self.entered = None
        self.tests = []
        for name, item in list(vars(module).items()):
            self.add(name, item)
        for name in ("setup_module", "setUpModule"):
            self.call_hook(vars(module).get(name), module)

    def is_own(self, function):
        """Returns true if the text of the tests defines a function. Imported functions must not act as hooks or fixtures."""
        function = inspect.unwrap(function) if callable(function) else function
        function = getattr(function, "__func__", function)
        return inspect.isfunction(function) and function.__code__.co_filename == self.module.__file__

    def add(self, name, item):
        if inspect.isclass(item) and item.__module__ == "test_solution":
            if issubclass(item, unittest.TestCase):
                self.tests += tests_of(item)
            elif name.startswith("Test") and item.__init__ is object.__init__:
                self.add_class(item)
        elif name.startswith("test") and self.is_own(item):
            self.add_function(item, None)

    def add_class(self, owner):
        seen = set()
        for base in reversed(owner.__mro__[:-1]):
            for name in vars(base):
                if name.startswith("test") and name not in seen and callable(getattr(owner, name)):
                    seen.add(name)
                    self.add_function(inspect.getattr_static(owner, name), owner)

    def add_function(self, function, owner):
        marks = marks_of(function, owner) + self.module_marks()
        fixtures = self.fixtures_of(owner)
        for values, indirect, more in parameter_sets(marks):
            wanted = [fixtures[name] for name in self.closure(function, fixtures, marks) if fixtures[name].params and name not in indirect]
            for picked in itertools.product(*(item.params for item in wanted)):
                plain = [item.values[0] if isinstance(item, Parameters) else item for item in picked]
                further = [mark for item in picked if isinstance(item, Parameters) for mark in item.marks]
                chosen = dict(indirect, **{item.name: value for item, value in zip(wanted, plain)})
                self.add_test(FunctionTest(function, owner, values, chosen, marks + more + further))

    def add_test(self, test):
        """Adds a test. A skipped test is kept, so that it is counted."""
        skipped = any(mark.name == "skip" or mark.name == "skipif" and holds(mark, vars(self.module)) for mark in test.marks)
        self.tests.append(SkippedTest(test) if skipped else test)

    def module_marks(self):
        found = vars(self.module).get("pytestmark", [])
        return list(found) if isinstance(found, (list, tuple)) else [found]

    def fixtures_of(self, owner):
        """Returns the fixtures that tests of a class, or functions if it is None, can request."""
        found = dict(self.fixtures)
        for base in reversed(owner.__mro__[:-1] if owner else ()):
            for item in vars(base).values():
                if isinstance(item, Fixture):
                    found[item.name] = item.over(found.get(item.name))
        return found

    def closure(self, function, fixtures, marks=(), seen=None):
        """Returns the fixtures that a test needs, directly or indirectly."""
        seen = [] if seen is None else seen
        used = [name for mark in marks if mark.name == "usefixtures" for name in mark.args]
        for name in arguments_of(function) + used + [name for name, item in fixtures.items() if item.autouse]:
            if name in fixtures and name not in seen:
                seen.append(name)
                self.closure(fixtures[name].function, fixtures, (), seen)
        return seen

    def enter_class(self, owner):
        if owner is not None and self.entered is not owner:
            self.entered = owner
            self.call_hook(getattr(owner, "setup_class", None), owner)

    def leave(self, owner, following):
        """Leaves the class after its last test, and the module after the last test of all."""
        try:
            if getattr(following, "owner", None) is not owner:
                self.leave_class(owner)
        finally:
            if following is None:
                self.close()

    def leave_class(self, owner):
        entered, self.entered = self.entered, None
        self.scopes["class"].close()
        if owner is not None and entered is owner:
            self.call_hook(getattr(owner, "teardown_class", None), owner)

    def close(self):
        """Tears down the state that all tests of the module share."""
        for name in ("module", "package", "session"):
            self.scopes[name].close()
        for name in ("teardown_module", "tearDownModule"):
            self.call_hook(vars(self.module).get(name), self.module)

    def hook(self, owner, function, what):
        """Calls the set-up or tear-down hooks of a test function or method."""
        names = [what + "_method", what] if owner is not None else [what + "_function"]
        for name in names:
            self.call_hook(getattr(owner, name, None) if owner is not None else vars(self.module).get(name), function)

    def call_hook(self, hook, argument):
        if hook is not None and self.is_own(getattr(hook, "__func__", hook)):
            hook(*[argument][: len(arguments_of(hook))])


class SkippedTest:
    """A test that is skipped because of its marks."""

    def __init__(self, test):
        self.name, self.owner = test.name, test.owner

    def run(self, suite, following):
        suite.leave(self.owner, following)
        raise Skipped("skipped")


def collect(module):
    """Returns the tests of a module in order, as pairs of a name and a function that runs the test."""
    suite = Suite(module)
    following = suite.tests[1:] + [None]
    return [(test.name, lambda test=test, then=then: test.run(suite, then)) for test, then in zip(suite.tests, following)]
