"""The part of pytest that the tests of datasets use: `raises`, `approx`, `mark.parametrize`, fixtures. `rollpacker_suite` runs them.

The real pytest would have to be installed, takes longer to import than most tests to run, and reads files.
"""

import contextlib
import functools
import importlib
import inspect
import math
import re
import types
import warnings

import rollpacker_fixtures as fixtures
import rollpacker_wire as wire


class Skipped(BaseException):
    """Raised by a test that skips itself."""


class Failed(AssertionError):
    """Raised by a test that fails explicitly."""


class Raised:
    """The exception that `raises` caught."""

    value = type = tb = None
    typename = property(lambda self: self.type.__name__)

    def errisinstance(self, kind):
        return isinstance(self.value, kind)

    def exconly(self, tryshort=False):
        return "%s: %s" % (self.typename, self.value)

    def __repr__(self):
        return "<ExceptionInfo %r tblen=1>" % (self.value,)

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
    """Equals numbers within a tolerance, element by element."""

    __hash__ = None
    __array_priority__ = 100

    def __init__(self, expected, rel=None, abs=None, nan_ok=False):
        parts = expected.values() if isinstance(expected, dict) else expected if isinstance(expected, (list, tuple)) else ()
        if any(isinstance(part, (list, tuple, dict)) for part in parts):
            raise TypeError("approx() does not support nested data structures: %r" % (expected,))
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok

    def __eq__(self, found):
        return self.near(found, self.expected)

    def __repr__(self):
        return "approx(%r)" % (self.expected,)

    def near(self, found, expected):
        found, expected = (item.tolist() if type(item).__module__ == "numpy" else item for item in (found, expected))
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
    """A mark: a decorator that adds itself to the test."""

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
    """`pytest.mark`, which accepts any name."""

    def __getattr__(self, name):
        return Mark(name)


class Fixture:
    """A function whose value tests request by its name."""

    def __init__(self, function, scope, params, autouse, name):
        self.function, self.scope, self.autouse = function, scope, autouse
        self.params = list(params) if params else None
        self.name = name or function.__name__
        self.outer = None

    def over(self, outer):
        """Returns this fixture as an override of another one with the same name, whose value it may request."""
        found = Fixture(self.function, self.scope, self.params, self.autouse, self.name)
        found.outer = outer
        return found

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
        return importlib.import_module(name)
    except ImportError:
        raise Skipped("no module %s" % name)


class Warned(list):
    """The warnings that a block raised."""

    @property
    def list(self):
        return self

    def pop(self, kind=Warning):
        for number, item in enumerate(self):
            if issubclass(item.category, kind):
                return super().pop(number)
        raise AssertionError("no warning of %s" % (kind,))

    def clear(self):
        del self[:]


@contextlib.contextmanager
def recorded():
    """Records every warning of a block."""
    found = Warned()
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, category, filename, lineno, file=None, line=None: found.append(
            warnings.WarningMessage(message, category, filename, lineno, file, line))
        yield found


@contextlib.contextmanager
def warned(expected, match):
    with recorded() as found:
        yield found
    if not any(issubclass(item.category, expected) and (match is None or re.search(match, str(item.message))) for item in found):
        raise Failed("did not warn of %s" % (expected,))


def warns(expected_warning=Warning, *arguments, match=None, **keywords):
    context = warned(expected_warning, match)
    if not arguments:
        return context
    with context:
        return arguments[0](*arguments[1:], **keywords)


def module():
    """Returns the module that tests import as `pytest`."""
    found = types.ModuleType("pytest")
    found.__dict__.update(
        raises=raises, approx=Approx, mark=Marks(), param=Parameters, fixture=fixture, fail=fail, skip=skip, importorskip=importorskip,
        warns=warns, deprecated_call=functools.partial(warns, DeprecationWarning), main=lambda *_, **__: 0, exit=fail, xfail=skip,
        MonkeyPatch=fixtures.Patches, FixtureRequest=object, ExceptionInfo=Raised)
    found.skip.Exception, found.fail.Exception = Skipped, Failed
    found.yield_fixture = fixture
    return found
