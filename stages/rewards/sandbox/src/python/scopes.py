"""Fixtures that are set up for a test, each within its scope."""

import contextlib
import inspect
import types

from rollpacker_fixtures import BUILT_IN
from rollpacker_pytest_shim import Failed, Fixture

SCOPES = ("function", "class", "module", "package", "session")
BUILT_IN_FIXTURES = {name: Fixture(function, scope, None, False, name) for name, (function, scope) in BUILT_IN.items()}


class Scope:
    """The values of the fixtures of one scope. They are torn down in reverse order."""

    def __init__(self):
        self.values, self.finals = {}, contextlib.ExitStack()

    def close(self):
        self.values.clear()
        self.finals.close()


class Setup:
    """The fixtures of one test: the `values` of parameters by name, and the `chosen` parameter of each fixture that has several."""

    def __init__(self, fixtures, scopes, values, chosen, owner, function):
        self.fixtures, self.scopes = fixtures, scopes
        self.values, self.chosen, self.owner, self.function = values, chosen, owner, function

    def get(self, name):
        if name in self.values:
            return self.values[name]
        found = self.fixtures.get(name) or BUILT_IN_FIXTURES.get(name)
        if found is None:
            raise Failed("there is no fixture %r" % name)
        return self.value(found)

    def value(self, found):
        name = found.name
        scope = self.scopes[found.scope]
        key = name, id(found.function), repr(self.chosen.get(name))
        if key not in scope.values:
            scope.values[key] = self.make(found, scope)
        return scope.values[key]

    def make(self, found, scope):
        function = found.function
        names = arguments_of(function)
        owned = names[:1] in (["self"], ["cls"])
        values = [self.owner] if owned else []
        values += [self.argument(found, name, scope) for name in names[len(values):]]
        made = function(*values)
        if inspect.isasyncgen(made) or inspect.iscoroutine(made):
            return finish_async(made, scope)
        if not inspect.isgenerator(made):
            return made
        value = next(made)
        scope.finals.callback(next, made, None)
        return value

    def argument(self, found, name, scope):
        """Returns the value that a fixture requests. For its own name, this is the fixture that it overrides."""
        if name == "request":
            return self.request(found.name, scope)
        return self.value(found.outer or BUILT_IN_FIXTURES[name]) if name == found.name else self.get(name)

    def request(self, name, scope):
        """Returns the object that pytest passes to a fixture as `request`."""
        found = types.SimpleNamespace(
            addfinalizer=scope.finals.callback, getfixturevalue=self.get, fixturename=name, instance=self.owner,
            cls=type(self.owner) if self.owner is not None else None, function=self.function,
            node=types.SimpleNamespace(name=self.function.__name__, get_closest_marker=lambda name: None))
        if name in self.chosen:
            found.param = self.chosen[name]
        return found


def finish_async(made, scope):
    """Runs a fixture that is a coroutine or an asynchronous generator."""
    import asyncio

    if inspect.iscoroutine(made):
        return asyncio.run(made)
    loop = asyncio.new_event_loop()
    value = loop.run_until_complete(made.__anext__())
    scope.finals.callback(lambda: (loop.run_until_complete(made.aclose()), loop.close()))
    return value


def arguments_of(function):
    """Returns the names that a test or a fixture requests: its parameters without a default."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [item.name for item in found
            if item.default is item.empty and item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]
