"""As much of pytest as the tests of datasets use: `raises`, `approx`, `mark.parametrize`, fixtures, and the running of tests.

Not the real one: that would have to be installed, takes longer to import than most tests to run, and reads files.
"""

import builtins
import contextlib
import functools
import inspect
import io
import itertools
import math
import os
import re
import sys
import types
import unittest
import warnings

import rollpacker_wire as wire


class Skipped(BaseException):
    """A test that says of itself that it does not count."""


class Failed(AssertionError):
    """A test that says of itself that it failed."""


class Raised:
    """What `raises` caught."""

    value = type = tb = None

    def match(self, pattern):
        assert re.search(pattern, str(self.value)), "%r does not match %r" % (str(self.value), pattern)
        return True

    def __str__(self):
        return str(self.value)


class Raises:
    """The context manager of `raises`."""

    def __init__(self, expected, match):
        self.expected, self.match, self.found = expected, match, Raised()

    def __enter__(self):
        return self.found

    def __exit__(self, kind, error, trace):
        if kind is None:
            raise Failed("did not raise %s" % (self.expected,))
        if issubclass(kind, wire.Stop) or not issubclass(kind, self.expected):
            return False
        self.found.type, self.found.value, self.found.tb = kind, error, trace
        if self.match is not None:
            self.found.match(self.match)
        return True


def raises(expected_exception=Exception, *arguments, match=None, **keywords):
    context = Raises(expected_exception, match)
    if not arguments:
        return context
    with context:
        arguments[0](*arguments[1:], **keywords)
    return context.found


class Approx:
    """Equal to numbers near by, element by element."""

    __hash__ = None
    __array_priority__ = 100

    def __init__(self, expected, rel=None, abs=None, nan_ok=False):
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok

    def __eq__(self, found):
        return self.near(found, self.expected)

    def __repr__(self):
        return "approx(%r)" % (self.expected,)

    def near(self, found, expected):
        if isinstance(expected, dict):
            return isinstance(found, dict) and found.keys() == expected.keys() and all(
                self.near(found[key], value) for key, value in expected.items())
        if isinstance(expected, (list, tuple, range)):
            return isinstance(found, (list, tuple, range)) and len(found) == len(expected) and all(map(self.near, found, expected))
        if isinstance(expected, bool) or expected is None or isinstance(expected, str) or isinstance(found, wire.Proxy):
            return found == expected
        return self.close(found, expected)

    def close(self, found, expected):
        try:
            if found == expected:
                return True
            if math.isnan(abs(expected)) or math.isnan(abs(found)):
                return self.nan_ok and math.isnan(abs(expected)) and math.isnan(abs(found))
            if math.isinf(abs(expected)) or math.isinf(abs(found)):
                return False
            return float(abs(found - expected)) <= self.tolerance(expected)
        except TypeError:
            return False

    def tolerance(self, expected):
        absolute = 1e-12 if self.abs is None else float(self.abs)
        if self.rel is None and self.abs is not None:
            return absolute
        return max(absolute, (1e-6 if self.rel is None else float(self.rel)) * float(abs(expected)))


class Parameters:
    """One set of values of `parametrize`."""

    def __init__(self, *values, marks=(), id=None):
        self.values, self.id = values, id
        self.marks = marks if isinstance(marks, (list, tuple)) else (marks,)


class Mark:
    """A mark: a decorator that notes itself on the test."""

    def __init__(self, name, arguments=(), keywords=None):
        self.name, self.args, self.kwargs = name, arguments, keywords or {}

    def __call__(self, *arguments, **keywords):
        if len(arguments) == 1 and not keywords and (inspect.isfunction(arguments[0]) or inspect.isclass(arguments[0])):
            target = arguments[0]
            target._rp_marks = [self] + list(target.__dict__.get("_rp_marks", ()))
            return target
        return Mark(self.name, arguments, keywords)

    @property
    def mark(self):
        return self


class Marks:
    """`pytest.mark`: any name will do."""

    def __getattr__(self, name):
        return Mark(name)


class Fixture:
    """A function whose value tests ask for by its name."""

    def __init__(self, function, scope, params, autouse, name):
        self.function, self.scope, self.autouse = function, scope, autouse
        self.params = list(params) if params else None
        self.name = name or function.__name__

    def __call__(self, *arguments, **keywords):
        return self.function(*arguments, **keywords)


def fixture(function=None, *, scope="function", params=None, autouse=False, name=None, ids=None):
    if function is None:
        return lambda function: Fixture(function, scope, params, autouse, name)
    return Fixture(function, scope, params, autouse, name)


def fail(reason="", pytrace=True, msg=None):
    raise Failed(msg or reason)


def skip(reason="", allow_module_level=False, msg=None):
    raise Skipped(msg or reason)


def importorskip(name, *_, **__):
    try:
        return __import__(name)
    except ImportError:
        raise Skipped("no module %s" % name)


@contextlib.contextmanager
def warns(expected=Warning, match=None):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found
    if not any(issubclass(item.category, expected) and (match is None or re.search(match, str(item.message))) for item in found):
        raise Failed("did not warn of %s" % (expected,))


class Patches:
    """The fixture `monkeypatch`."""

    MISSING = object()

    def __init__(self):
        self.undone = []

    def resolve(self, target, name, value):
        if not isinstance(target, str):
            return target, name, value
        path, _, attribute = target.rpartition(".")
        module, *rest = path.split(".")
        found = __import__(module)
        for part in rest:
            found = getattr(found, part)
        return found, attribute, name

    def setattr(self, target, name, value=MISSING, raising=True):
        target, name, value = self.resolve(target, name, value)
        old = getattr(target, name, self.MISSING)
        if raising and old is self.MISSING:
            raise AttributeError(name)
        self.undone.append(lambda: delattr(target, name) if old is self.MISSING else setattr(target, name, old))
        setattr(target, name, value)

    def delattr(self, target, name=None, raising=True):
        target, name, _ = self.resolve(target, name, None)
        old = getattr(target, name)
        self.undone.append(lambda: setattr(target, name, old))
        delattr(target, name)

    def setitem(self, items, key, value):
        old = items.get(key, self.MISSING)
        self.undone.append(lambda: items.pop(key, None) if old is self.MISSING else items.__setitem__(key, old))
        items[key] = value

    def delitem(self, items, key, raising=True):
        old = items.pop(key)
        self.undone.append(lambda: items.__setitem__(key, old))

    def setenv(self, name, value, prepend=None):
        self.setitem(os.environ, name, str(value))

    def delenv(self, name, raising=True):
        if raising or name in os.environ:
            self.delitem(os.environ, name)

    def chdir(self, path):
        old = os.getcwd()
        self.undone.append(lambda: os.chdir(old))
        os.chdir(path)

    def undo(self):
        while self.undone:
            self.undone.pop()()


class Printed:
    """The fixtures `capsys` and `capfd`."""

    def __init__(self):
        self.before = sys.stdout, sys.stderr
        self.fresh()

    def fresh(self):
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()

    def readouterr(self):
        found = types.SimpleNamespace(out=sys.stdout.getvalue(), err=sys.stderr.getvalue())
        self.fresh()
        return PrintedText(found.out, found.err)

    @contextlib.contextmanager
    def disabled(self):
        yield

    def close(self):
        for stream, old in zip((sys.stdout, sys.stderr), self.before):
            old.write(stream.getvalue() if isinstance(stream, io.StringIO) else "")
        sys.stdout, sys.stderr = self.before


class PrintedText(tuple):
    """What was printed since one last looked."""

    def __new__(cls, out, err):
        return super().__new__(cls, (out, err))

    out = property(lambda self: self[0])
    err = property(lambda self: self[1])


def monkeypatch_fixture():
    patches = Patches()
    yield patches
    patches.undo()


def printed_fixture():
    printed = Printed()
    yield printed
    printed.close()


def path_fixture():
    import pathlib
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        yield pathlib.Path(directory)


BUILT_IN = {
    "monkeypatch": monkeypatch_fixture, "capsys": printed_fixture, "capfd": printed_fixture, "tmp_path": path_fixture, "tmpdir": path_fixture,
}


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


def module():
    """The module that tests import as `pytest`."""
    found = types.ModuleType("pytest")
    found.__dict__.update(
        raises=raises, approx=Approx, mark=Marks(), param=Parameters, fixture=fixture, fail=fail, skip=skip, importorskip=importorskip,
        warns=warns, deprecated_call=functools.partial(warns, DeprecationWarning), main=lambda *_, **__: 0, exit=fail, xfail=skip,
        MonkeyPatch=Patches, FixtureRequest=object, ExceptionInfo=Raised)
    found.skip.Exception, found.fail.Exception = Skipped, Failed
    found.yield_fixture = fixture
    return found
