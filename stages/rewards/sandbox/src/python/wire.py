"""The messages between the checker and a run of the solution: plain values, and proxies of everything else.

Neither end trusts the other. `rollpacker_codec` encodes values as bytes, `rollpacker_proxy` defines the operations that a proxy answers
itself, and `guard` limits the operations on the objects of an owner.
"""

import collections
import operator
import re
import struct
import threading
import types

from rollpacker_codec import Codec
from rollpacker_proxy import OPERATIONS, Broken, Ended, Proxy, State, Stop, Undecided, ask  # all of it for those that import this

MESSAGE_BYTES = 64 << 20
# The number of calls in one case from which on a checker in another process is too slow.
MANY_CALLS = 5_000
# The maximum number of mutable values that are remembered, and the maximum length of each.
CROSSED = 500


DICTS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
MUTABLE = DICTS + (list, set, bytearray, collections.deque)
HOLDERS = frozenset(MUTABLE + (tuple,))


def containers(values):
    """Returns the mutable plain containers within `values`. Both sides find them in the same order."""
    found, stack, seen = [], [values], set()
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) in MUTABLE:
            found.append(value)
        if type(value) in DICTS:
            stack.extend(item for item in value.values() if type(item) in HOLDERS)
        elif type(value) in (list, tuple, collections.deque):
            stack.extend(item for item in value if type(item) in HOLDERS)
    return found


def snapshot(container):
    return list(container.items()) if type(container) in DICTS else container.copy()


def same(before, now):
    if type(now) in DICTS:
        return len(before) == len(now) and all(a is c and b is d for (a, b), (c, d) in zip(before, now.items()))
    if type(now) in (set, bytearray):
        return before == now
    return len(before) == len(now) and all(map(operator.is_, before, now))


def overwrite(container, content):
    """Replaces the content of a container by that on the other side."""
    if type(container) in (list, bytearray):
        container[:] = content
        return
    container.clear()
    if type(container) is collections.deque:
        container.extend(content)
    else:
        # The update method of a counter would add to its content.
        (dict if type(container) in DICTS else set).update(container, content)


def holds_proxy(value):
    """Returns true if a value is a proxy or a collection of some."""
    items = value.values() if type(value) is dict else value if type(value) in (list, tuple, set, frozenset) else (value,)
    return any(isinstance(item, Proxy) for item in items)


CLOSED = (
    types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.GeneratorType, types.CoroutineType, types.FrameType,
    types.CodeType, types.TracebackType, types.ModuleType,
)
# Objects that tests may share through a proxy: their own code, and objects of Python's library that do not run arbitrary code. An object of
# a C library could corrupt the checker's memory if the solution uses it in unusual ways.
SHARED = (types.FunctionType, types.MethodType, types.GeneratorType, types.CoroutineType, types.MethodDescriptorType)
LIBRARIES = ("test_solution", "prompt", "builtins", "abc", "collections.abc", "dataclasses", "enum", "typing", "unittest.mock")
UNSHARED = frozenset(("eval", "exec", "compile", "open", "getattr", "setattr", "delattr", "vars", "globals", "locals", "input", "breakpoint"))


def may_share(value):
    """Returns true if the solution may use an object of the tests through a proxy."""
    kind = value if isinstance(value, type) else type(value)
    if isinstance(value, types.BuiltinFunctionType):
        return value.__module__ in ("builtins", "math", "_operator") and value.__name__ not in UNSHARED
    if isinstance(value, SHARED):
        return True
    if kind.__module__ in ("builtins", "itertools"):
        return hasattr(kind, "__next__")
    return all(base.__module__ in LIBRARIES for base in kind.__mro__)


NAMES = ("__name__", "__qualname__", "__doc__", "__module__")
FORBIDDEN = ("format", "format_map", "configure_mock", "mock_add_spec")
# The attributes of a mock that record its calls, which the test inspects.
CALLED = re.compile("assert|call|method_calls|mock_calls|reset_mock")


def guard(peer, operation, value, operands):
    """Rejects operations by which the solution would inspect an object of a test instead of using it."""
    if id(value) not in peer.handles:
        raise TypeError("%s of a value that is not shared" % operation)
    if operation == "class" and (isinstance(value, type) or type(value).__module__ != "test_solution"):
        raise TypeError("no class of this object")
    if operation == "call" and isinstance(value, type) and issubclass(value, type):
        raise TypeError("no classes are made for the solution")
    if operation in ("__getattr__", "__setattr__", "__delattr__"):
        (name, *rest) = operands
        hidden = type(name) is not str or name.startswith("_") or name in FORBIDDEN or isinstance(value, CLOSED)
        fixed = operation != "__getattr__" and (isinstance(value, type) or CALLED.match(str(name)))
        if (hidden or fixed) and not (operation == "__getattr__" and name in NAMES):
            raise AttributeError(name)


class Peer:
    """One end of a link. It sends requests to the other end, and answers requests from there while it waits.

    The strict end is the checker. It guards its objects and lets no object of the other end pass for a plain value.
    """

    def __init__(self, channel, strict):
        self.strict = strict
        # `asked`: the number of requests. `calls`: the number of calls among them. `decided_by_claim`: the claim of the other end alone
        # decided a comparison. `muted`: no further requests are allowed.
        self.asked, self.calls, self.decided_by_claim, self.muted = 0, 0, False, False
        self.calls_before = 0
        # The mutable values that were exchanged, with their content at that time, up to a bound. `lent`: the other end may still change one,
        # through an object that it returned from a call with it.
        self.crossed, self.lent = [], False
        self.codec = Codec(self)
        self.lock = threading.RLock()
        self.generation = 0
        self.roots = None
        self.services = {}
        self.attach(channel)

    def attach(self, channel):
        """Resets the state for another run at the other end."""
        self.channel = channel
        self.generation += 1
        self.objects, self.handles, self.proxies, self.named = [], {}, {}, {}

    def handle(self, value):
        """Returns the handle of an object of this side: a number, or the name under which it was requested from the solution's module.
        Names remain valid in later runs.
        """
        if id(value) not in self.handles:
            if self.strict and not isinstance(value, BaseException) and not may_share(value):
                raise Undecided("a test hands over an object of type %s" % type(value).__name__)
            self.handles[id(value)] = len(self.objects)
            self.objects.append(value)
        return self.handles[id(value)]

    def find(self, handle):
        return self.name(handle) if type(handle) is str else self.objects[handle]

    def name(self, name):
        """Returns the object of a name of the solution's module: the first one in this run, even if a test replaces it."""
        if name not in self.named:
            self.named[name] = self.roots[name]
            self.handles.setdefault(id(self.roots[name]), name)
        return self.named[name]

    def own(self, proxy):
        """Returns the handle of a proxy's object."""
        state = object.__getattribute__(proxy, "_rp")
        if state.peer is not self or type(state.handle) is int and state.generation != self.generation:
            raise Ended("the run that held this object is over")
        return state.handle

    def proxy(self, handle, make):
        if type(handle) not in (int, str):
            raise Broken("no handle")
        if handle not in self.proxies:
            self.proxies[handle] = make(State(self, handle))
        return self.proxies[handle]

    def call(self, function, arguments, keywords):
        return self.ask("call", function, arguments, keywords)

    def ask(self, operation, *operands):
        if self.muted:
            raise RuntimeError("the case is over")
        self.asked += operation not in ("names", "root")
        self.calls += operation == "call"
        if self.strict and self.calls - self.calls_before > MANY_CALLS:
            raise Undecided("a test calls the solution more than %d times" % MANY_CALLS)
        generation = self.generation
        with self.lock:
            if generation != self.generation:
                # A thread of the tests outlived the run that it addresses.
                raise Ended("the run that was asked is over")
            passed = containers(operands[1:]) if operation == "call" else []
            self.send(("ask", operation, operands))
            while True:
                kind, *fields = self.receive()
                if kind == "ask":
                    self.answer(*fields)
                elif kind in ("answer", "raise"):
                    return self.finish_request(operation, kind, passed, *fields)
                else:
                    raise Broken("a message of kind %r" % (kind,))

    def remember(self, values):
        """Remembers the content of exchanged mutable values, because the other side does not see later changes."""
        for container in containers(values)[: CROSSED - len(self.crossed)]:
            if len(container) <= CROSSED:
                self.crossed.append((container, snapshot(container)))

    def is_stale(self):
        """Returns true if an exchanged value was changed on this side afterwards, or may have been changed on the other side."""
        return self.lent or any(not same(before, now) for now, before in self.crossed)

    def finish_request(self, operation, kind, passed, value, changes, index):
        try:
            for number, content in changes:
                overwrite(passed[number], content)
            if kind == "answer":
                value = value if index is None else passed[index]
                if self.strict:
                    self.remember([value, passed])
                    # A generator, a closure or a context manager may change an argument of its call later.
                    self.lent = self.lent or bool(passed) and holds_proxy(value)
                return value
        except (TypeError, ValueError, LookupError) as error:
            raise Broken("an answer that fits no question: %s" % error)
        if not isinstance(value, BaseException):
            raise Broken("what is raised is no exception")
        value.__dict__["_rp_crossed"] = True
        if isinstance(value, (StopIteration, StopAsyncIteration)) and operation not in ("__next__", "advance", "await"):
            # Within `all(map(f, values))` in a test, it would end the iteration early, and the result would be true.
            raise RuntimeError("the solution raised %s" % type(value).__name__) from value
        raise value

    def answer(self, operation, operands):
        """Handles a request of the other side."""
        passed = containers(operands[1:]) if operation == "call" else []
        before = [snapshot(container) for container in passed]
        try:
            value, kind = self.perform(operation, operands), "answer"
        except Stop:
            raise
        except BaseException as error:
            value, kind = error, "raise"
        changes = [(number, snapshot(now)) for number, now in enumerate(passed) if not same(before[number], now)]
        index = next((number for number, container in enumerate(passed) if container is value), None)
        try:
            self.send((kind, None if index is not None else value, changes, index))
        except (Stop, OSError):
            raise
        except MemoryError:
            self.send(("raise", MemoryError(), [], None))
        except Exception as error:
            self.send(("raise", RuntimeError("what was returned cannot be looked at: %s" % error), [], None))

    def perform(self, operation, operands):
        if operation in self.services:
            return self.services[operation](*operands)
        if self.strict:
            guard(self, operation, operands[0], operands[1:])
        if operation in ("isinstance", "issubclass"):
            return OPERATIONS[operation](operands[1], operands[0])
        return OPERATIONS[operation](*operands)

    def send(self, message):
        data = self.codec.dumps(message)
        if len(data) > MESSAGE_BYTES:
            raise ValueError("a value of %d bytes is too large to be looked at" % len(data))
        self.channel.send(struct.pack("<I", len(data)) + data)

    def receive(self):
        (size,) = struct.unpack("<I", self.channel.receive(4))
        if size > MESSAGE_BYTES:
            raise Broken("a message of %d bytes" % size)
        data = self.channel.receive(size)
        try:
            message = self.codec.loads(data)
        except (Ended, MemoryError):
            raise
        except Exception as error:
            raise Broken("a message that cannot be read: %s" % error)
        if type(message) is not tuple or not message or type(message[0]) is not str:
            raise Broken("a message without a kind")
        return message
