"""What crosses between the checker and a run of the solution: plain values, and proxies of everything else.

Neither end trusts the bytes of the other. A message is a pickle of plain values in which no global can be named: what is not plain is a
call of `Codec.restore`, whatever the pickle says. So nothing of the other end is ever executed here, no class of it becomes a class
here, and what is not a plain value of exactly a type below is a proxy.

A proxy stands for an object that stays where it is. What is done to it is asked of its owner, with one exception: at the checker, what
decides about equality and order with a plain value is the plain value. An object of the solution equals no expected value, whatever its
`__eq__` says. Arithmetic with a plain value does not give one, and what it gives is no number either: `abs(answer - 3) < 1e-6` does not
hold for an answer whose `__sub__` returns 0, or something whose `__abs__` does. The price is that a vector of the solution that was
multiplied by 2 has no length; its coordinates and what it prints are there.
"""

import builtins
import collections
import datetime
import decimal
import fractions
import io
import operator
import pickle
import struct
import sys
import threading
import types

MESSAGE_BYTES = 64 << 20


class Stop(BaseException):
    """What ends a case at once. No `except Exception` of a test takes it for an error of the solution, and it never crosses.

    The last one is remembered: a test that swallows it with a bare `except` does not make it undone.
    """

    raised = None

    def __init__(self, *arguments):
        super().__init__(*arguments)
        Stop.raised = self


class Broken(Stop):
    """The other end does not keep to the protocol."""


class Ended(Stop):
    """The other end is gone."""


class Unsupported(Stop):
    """The tests do what cannot be done across two processes."""


def restore():
    """What the pickles name. Never called: see `Codec.restore`."""


def compare(name):
    function = getattr(operator, name)

    def method(self, other):
        state = object.__getattribute__(self, "_rp")
        if state.peer.strict and not isinstance(other, Proxy):
            return function(state.plain[0], other) if state.plain else NotImplemented
        return ask(self, "__%s__" % name, other)

    return method


def arithmetic(name, reflected):
    function = divmod if name == "divmod" else getattr(operator, {"and": "and_", "or": "or_"}.get(name, name))
    asked = "__r%s__" % name if reflected else "__%s__" % name

    return meet(asked), (lambda value, other: function(other, value)) if reflected else function


def meet(asked):
    """The method of a proxy for an operator with two sides."""

    def method(self, other):
        found = ask(self, asked, other)
        if object.__getattribute__(self, "_rp").peer.strict and (not isinstance(other, Proxy) or is_tainted(self) or is_tainted(other)):
            taint(found, asked)
        return found

    return method


def relay(name):
    def method(self, *arguments):
        found = ask(self, name, *arguments)
        if is_tainted(self) and (name in NUMERIC or isinstance(found, Proxy)):
            taint(found, name)
        return found

    return method


def is_tainted(proxy):
    """Whether an object comes of arithmetic with a plain value, which may be the expected one."""
    return object.__getattribute__(proxy, "_rp").tainted


def taint(found, asked):
    if not isinstance(found, Proxy) or object.__getattribute__(found, "_rp").plain:
        raise TypeError("an object of the solution stands where a plain value is expected (%s)" % asked)
    object.__getattribute__(found, "_rp").tainted = True


def call(function, arguments, keywords):
    return function(*arguments, **keywords)


def leave(value, kind, error, _traceback):
    return type(value).__exit__(value, kind, error, None)


def advance(value, sent):
    return value.send(sent)


def awaited(coroutine):
    """Runs a coroutine of this side to its end."""
    import asyncio

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


# What makes a number of an object.
NUMERIC = ("__abs__", "__int__", "__float__", "__index__", "__complex__", "__round__", "__bool__", "__len__")
# What may be asked of an object, and how its owner does it. Only the part that its class has is part of its proxy.
OPTIONAL = {
    "__len__": len, "__getitem__": operator.getitem, "__setitem__": operator.setitem, "__delitem__": operator.delitem,
    "__contains__": operator.contains, "__iter__": iter, "__next__": next, "__reversed__": reversed,
    "__bool__": bool, "__int__": int, "__float__": float, "__index__": operator.index, "__complex__": complex,
    "__neg__": operator.neg, "__pos__": operator.pos, "__abs__": abs, "__invert__": operator.invert, "__round__": round,
    "__enter__": lambda value: type(value).__enter__(value), "__exit__": leave,
}
ALWAYS = {
    "__str__": str, "__repr__": repr, "__format__": format, "__dir__": dir, "__hash__": hash,
    "__getattr__": getattr, "__setattr__": setattr, "__delattr__": delattr,
}
# What a proxy of a class can be asked, of any value: bool(isinstance(...)).
ASKED = {"call": call, "isinstance": isinstance, "issubclass": issubclass, "class": type, "advance": advance, "await": awaited}

METHODS = {name: relay(name) for name in list(OPTIONAL) + list(ALWAYS)}
COMPARISONS = ("eq", "lt", "le", "gt", "ge")
for _name in COMPARISONS:
    METHODS["__%s__" % _name] = compare(_name)
    OPTIONAL["__%s__" % _name] = getattr(operator, _name)
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "and", "or", "xor", "divmod"):
    for _reflected in (False, True):
        _key = "__%s%s__" % ("r" if _reflected else "", _name)
        METHODS[_key], OPTIONAL[_key] = arithmetic(_name, _reflected)
    if _name != "divmod":
        METHODS["__i%s__" % _name] = meet("__i%s__" % _name)
        OPTIONAL["__i%s__" % _name] = getattr(operator, "i" + _name)
OPERATIONS = dict(OPTIONAL, **ALWAYS, **ASKED)


class State:
    """What a proxy is behind its face."""

    __slots__ = ("peer", "handle", "plain", "generation", "tainted")

    def __init__(self, peer, handle, plain):
        self.peer, self.handle, self.plain, self.generation = peer, handle, plain, peer.generation
        self.tainted = False


def ask(proxy, operation, *operands):
    return object.__getattribute__(proxy, "_rp").peer.ask(operation, proxy, *operands)


class Proxy:
    """An object of the other side. Its class is a subclass that has the special methods of the object's class, and its name."""

    __slots__ = ("_rp", "__weakref__")

    def __init__(self, state):
        object.__setattr__(self, "_rp", state)

    def __getattr__(self, name):
        if name in UNASKED:
            raise AttributeError(name)
        return ask(self, "__getattr__", name)

    def __setattr__(self, name, value):
        ask(self, "__setattr__", name, value)

    def __delattr__(self, name):
        ask(self, "__delattr__", name)

    @property
    def __class__(self):
        state = object.__getattribute__(self, "_rp")
        return type(state.plain[0]) if state.plain else type(self)

    @property
    def __doc__(self):
        return ask(self, "__getattr__", "__doc__")

    @property
    def __dict__(self):
        return ask(self, "__getattr__", "__dict__")

    def __eq__(self, other):
        return METHODS["__eq__"](self, other)

    def __hash__(self):
        state = object.__getattribute__(self, "_rp")
        return hash(state.plain[0]) if state.plain else ask(self, "__hash__")

    def __str__(self):
        return ask(self, "__str__")

    def __repr__(self):
        return ask(self, "__repr__")

    def __format__(self, spec):
        return ask(self, "__format__", spec)

    def __dir__(self):
        return ask(self, "__dir__")

    def __setstate__(self, state):
        raise Broken("the state of a proxy is nobody's to set")

    def __reduce_ex__(self, protocol):
        raise TypeError("an object of the other side cannot be copied or pickled")

    def __mro_entries__(self, bases):
        raise Unsupported("a test derives a class from a class of the solution")


# Attributes that python itself looks for in passing and that no object of the other side should answer for.
UNASKED = frozenset((
    "__class_getitem__", "__array__", "__array_interface__", "__array_struct__", "__copy__", "__deepcopy__", "__getstate__", "__get__",
    "__set__", "__set_name__", "__signature__", "__conform__", "__await__", "__aiter__", "__anext__", "__aenter__", "__aexit__",
    "__isabstractmethod__", "__wrapped__", "__path__", "__reduce__", "__getnewargs__", "__getnewargs_ex__", "__length_hint__",
    "__fspath__", "__buffer__",
))


def call_method(self, *arguments, **keywords):
    return object.__getattribute__(self, "_rp").peer.call(self, arguments, keywords)


def instance_check(self, value):
    return bool(ask(self, "isinstance", value)) if not isinstance(value, type) else False


def subclass_check(self, value):
    return bool(ask(self, "issubclass", value))


def face(sheet, cache={}):
    """The class of the proxies whose owner describes them by `sheet`: a name, and which special methods there are."""
    if sheet not in cache:
        name, methods = sheet
        body = {"__slots__": (), "__module__": "solution"}
        for method in methods:
            if method == "__call__":
                body[method] = call_method
            elif method == "class":
                body.update(__instancecheck__=instance_check, __subclasscheck__=subclass_check)
            else:
                body[method] = METHODS[method]
        body["__hash__"] = Proxy.__hash__
        cache[sheet] = type(str(name), (Proxy,), body)
    return cache[sheet]


def sheet_of(value, cache={}):
    kind = type(value)
    if kind not in cache:
        methods = [name for name in OPTIONAL if getattr(kind, name, None) is not None and getattr(object, name, None) is None]
        methods += [name for name in ("__lt__", "__le__", "__gt__", "__ge__") if getattr(kind, name) is not getattr(object, name)]
        if callable(value):
            methods.append("__call__")
        if isinstance(value, type):
            methods = ["__call__", "class"] + (["__iter__", "__len__", "__getitem__", "__contains__"] if hasattr(kind, "__iter__") else [])
        cache[kind] = (kind.__name__, tuple(methods))
    return cache[kind]


def factory(kind):
    return kind.__name__ if kind in FACTORIES.values() else None


BASES = {
    bool: bool, int: lambda value: int.__add__(value, 0), float: lambda value: float.__add__(value, 0.0),
    str: lambda value: str.__add__(value, ""), bytes: lambda value: bytes.__add__(value, b""),
    list: lambda value: list(list.__iter__(value)), tuple: lambda value: tuple(tuple.__iter__(value)),
    dict: dict.copy, set: lambda value: set(set.__iter__(value)), frozenset: lambda value: frozenset(frozenset.__iter__(value)),
}
FACTORIES = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple)}
TYPES = {kind.__name__: kind for kind in (
    int, float, str, bool, list, dict, set, tuple, frozenset, bytes, bytearray, complex, object, range, slice, type(None))}
ERRORS = {name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)}

# Exactly these types cross as values; the pickle knows the others: numbers, text, bytes, lists, tuples, dicts, sets.
PLAIN = {
    complex: lambda value: ("complex", value.real, value.imag),
    range: lambda value: ("range", value.start, value.stop, value.step),
    slice: lambda value: ("slice", value.start, value.stop, value.step),
    decimal.Decimal: lambda value: ("decimal", str(value)),
    fractions.Fraction: lambda value: ("fraction", value.numerator, value.denominator),
    datetime.date: lambda value: ("date", value.year, value.month, value.day),
    datetime.timedelta: lambda value: ("timedelta", value.days, value.seconds, value.microseconds),
    datetime.timezone: lambda value: ("timezone", value.utcoffset(None), value.tzname(None)),
    datetime.datetime: lambda value: (
        "datetime", value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, value.tzinfo, value.fold),
    datetime.time: lambda value: ("time", value.hour, value.minute, value.second, value.microsecond, value.tzinfo, value.fold),
    collections.OrderedDict: lambda value: ("ordered", list(value.items())),
    collections.Counter: lambda value: ("counter", dict(value)),
    collections.defaultdict: lambda value: ("default", factory(value.default_factory), dict(value)),
    collections.deque: lambda value: ("deque", list(value), value.maxlen),
    type(Ellipsis): lambda value: ("ellipsis",),
    type(NotImplemented): lambda value: ("unimplemented",),
}
VALUES = {
    "complex": complex, "range": range, "slice": slice, "decimal": decimal.Decimal, "fraction": fractions.Fraction,
    "date": datetime.date, "timedelta": datetime.timedelta, "timezone": datetime.timezone, "time": lambda *f: datetime.time(*f[:5], fold=f[5]),
    "datetime": lambda *f: datetime.datetime(*f[:8], fold=f[8]), "ordered": collections.OrderedDict, "counter": collections.Counter,
    "default": lambda name, items: collections.defaultdict(FACTORIES.get(name), items), "deque": collections.deque,
    "ellipsis": lambda: Ellipsis, "unimplemented": lambda: NotImplemented,
}


class ForeignError(type):
    """The class of exception classes that stand for those of the other side."""

    def __setstate__(cls, state):
        raise Broken("the state of a class is nobody's to set")


class Pickler(pickle.Pickler):
    def __init__(self, file, codec):
        super().__init__(file, 5)
        self.codec = codec

    def reducer_override(self, value):
        if value is restore:
            return NotImplemented
        return restore, self.codec.describe(value)


class Unpickler(pickle.Unpickler):
    def __init__(self, file, codec):
        super().__init__(file)
        self.codec = codec

    def find_class(self, module, name):
        return self.codec.restore


class CarefulUnpickler(pickle._Unpickler):
    """Knows no opcode that sets the state of an object; needed once the other side may name objects of ours."""

    dispatch = {code: load for code, load in pickle._Unpickler.dispatch.items() if code != pickle.BUILD[0]}
    find_class = Unpickler.find_class

    def __init__(self, file, codec):
        super().__init__(file)
        self.codec = codec


class Codec:
    """Values to bytes and back, for one peer."""

    def __init__(self, peer):
        self.peer = peer
        self.named = {}
        self.errors = {}

    def dumps(self, value):
        file = io.BytesIO()
        Pickler(file, self).dump(value)
        return file.getvalue()

    def loads(self, data):
        kind = CarefulUnpickler if self.peer.strict and self.peer.objects else Unpickler
        return kind(io.BytesIO(data), self).load()

    def describe(self, value):
        kind = type(value)
        if kind in PLAIN:
            return PLAIN[kind](value)
        if issubclass(kind, Proxy):
            return ("yours", self.peer.own(value))
        if issubclass(kind, type):
            return self.describe_class(value)
        if issubclass(kind, BaseException):
            return self.describe_error(value)
        if kind.__bases__ == (tuple,) and isinstance(getattr(kind, "_fields", None), tuple):
            self.named[kind.__name__, kind._fields] = kind
            return ("named", kind.__name__, kind._fields, tuple(value))
        if kind in (types.GeneratorType, types.CoroutineType):
            return (kind.__name__, self.peer.handle(value))
        return ("proxy", self.peer.handle(value), sheet_of(value), self.base(value))

    def base(self, value):
        """The plain value that an object of a class derived from a plain one is, in a tuple."""
        for kind, plain in BASES.items():
            if issubclass(type(value), kind):
                return (plain(value),)
        return ()

    def describe_class(self, kind):
        if TYPES.get(kind.__name__) is kind or ERRORS.get(kind.__name__) is kind:
            return ("type", kind.__name__)
        if isinstance(kind, ForeignError):
            return ("yours", kind._rp_handle)
        if issubclass(kind, BaseException):
            return ("errors", self.peer.handle(kind), kind.__module__, kind.__name__, kind.__bases__)
        return ("proxy", self.peer.handle(kind), sheet_of(kind), ())

    def describe_error(self, error):
        found = error.__dict__.get("_rp")
        if found is not None:
            return ("yours", self.peer.own(found))
        items = {name: item for name, item in error.__dict__.items() if name != "_rp"}
        return ("error", self.peer.handle(error), type(error), error.args, str(error), items)

    def restore(self, tag, *fields):
        if tag in VALUES:
            return VALUES[tag](*fields)
        return getattr(self, "restore_" + tag)(*fields)

    def restore_yours(self, handle):
        return self.peer.find(handle)

    def restore_type(self, name):
        return TYPES.get(name) or ERRORS[name]

    def restore_named(self, name, fields, values):
        if (name, fields) not in self.named:
            self.named[name, fields] = collections.namedtuple(name, fields)
        return self.named[name, fields]._make(values)

    def restore_proxy(self, handle, sheet, base):
        if base and type(base[0]) not in BASES:
            raise Broken("no plain value")
        return self.peer.proxy(handle, lambda state: face(sheet)(state), base)

    def restore_generator(self, handle):
        return self.peer.proxy(handle, generate)

    def restore_coroutine(self, handle):
        return self.peer.proxy(handle, wait)

    def restore_errors(self, handle, module, name, bases):
        known = getattr(sys.modules.get(module), name, None) if is_standard(module) else None
        if isinstance(known, type) and issubclass(known, Exception):
            return known
        key = (self.peer.generation if type(handle) is int else 0, handle)
        if key not in self.errors:
            body = {"__module__": "solution", "_rp_handle": handle, "__str__": error_text, "__getattr__": error_attribute}
            self.errors[key] = ForeignError(name, bases, body)
        return self.errors[key]

    def restore_error(self, handle, kind, arguments, text, items):
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise Broken("no exception")
        try:
            error = BaseException.__new__(kind, *arguments) if isinstance(kind, ForeignError) else kind(*arguments)
        except Exception:
            error = kind.__new__(kind, *arguments)
        error.args = arguments
        error.__dict__.update(items)
        error.__dict__.update(_rp=self.peer.proxy(handle, Proxy), _rp_text=str(text))
        return error


def is_standard(module):
    """Whether exceptions of a module are the same on both sides; those by which a test skips itself are nobody's to raise here."""
    top = str(module).partition(".")[0]
    names = getattr(sys, "stdlib_module_names", ("json", "decimal", "queue", "asyncio", "concurrent", "dataclasses", "enum", "struct", "re"))
    return top in names and top not in ("unittest", "__main__")


def error_text(error):
    return error.__dict__.get("_rp_text") or BaseException.__str__(error)


def error_attribute(error, name):
    proxy = error.__dict__.get("_rp")
    if proxy is None or name.startswith("__"):
        raise AttributeError(name)
    return getattr(proxy, name)


def generate(state):
    """A generator here for one of the other side."""
    proxy, sent = Proxy(state), None
    while True:
        try:
            value = ask(proxy, "advance", sent)
        except StopIteration as stop:
            return stop.value
        sent = yield value


async def wait(state):
    """A coroutine here for one of the other side."""
    return ask(Proxy(state), "await")


MUTABLE = (list, dict, set, bytearray, collections.deque)
HOLDERS = frozenset(MUTABLE + (tuple,))


def containers(values, found=None, seen=None):
    """The mutable plain containers within `values`, in an order that both sides agree on."""
    found, stack, seen = [], [values], set()
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) in MUTABLE:
            found.append(value)
        if type(value) is dict:
            stack.extend(item for item in value.values() if type(item) in HOLDERS)
        elif type(value) in (list, tuple, collections.deque):
            stack.extend(item for item in value if type(item) in HOLDERS)
    return found


def snapshot(container):
    return list(container.items()) if type(container) is dict else container.copy()


def same(before, now):
    if type(now) is dict:
        return len(before) == len(now) and all(a is c and b is d for (a, b), (c, d) in zip(before, now.items()))
    if type(now) in (set, bytearray):
        return before == now
    return len(before) == len(now) and all(map(operator.is_, before, now))


def overwrite(container, content):
    """Makes a container what the other side made of it."""
    if type(container) in (list, bytearray):
        container[:] = content
    else:
        container.clear()
        (container.extend if type(container) is collections.deque else container.update)(content)


CLOSED = (
    types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.GeneratorType, types.CoroutineType, types.FrameType,
    types.CodeType, types.TracebackType, types.ModuleType,
)
NAMES = ("__name__", "__qualname__", "__doc__", "__module__")
FORBIDDEN = ("format", "format_map", "configure_mock", "mock_add_spec")


def guard(peer, operation, value, operands):
    """Refuses what the solution may not do to an object of a test: look into it rather than use it."""
    if id(value) not in peer.handles:
        raise TypeError("%s of a value that is not shared" % operation)
    if operation == "class" and (isinstance(value, type) or type(value).__module__ != "test_solution"):
        raise TypeError("no class of this object")
    if operation == "call" and isinstance(value, type) and issubclass(value, type):
        raise TypeError("no classes are made for the solution")
    if operation in ("__getattr__", "__setattr__", "__delattr__"):
        (name, *rest) = operands
        hidden = type(name) is not str or name.startswith("_") or name in FORBIDDEN or isinstance(value, CLOSED)
        fixed = operation != "__getattr__" and isinstance(value, type)
        if (hidden or fixed) and not (operation == "__getattr__" and name in NAMES):
            raise AttributeError(name)


class Peer:
    """One end of a link: asks the other end, and answers what it asks meanwhile.

    The strict end is the checker: it guards its objects and lets nothing of the other end pass for a plain value.
    """

    def __init__(self, channel, strict):
        self.strict = strict
        self.codec = Codec(self)
        self.lock = threading.RLock()
        self.generation = 0
        self.roots = None
        self.services = {}
        self.attach(channel)

    def attach(self, channel):
        """Starts afresh with another run at the other end."""
        self.channel = channel
        self.generation += 1
        self.objects, self.handles, self.proxies, self.named = [], {}, {}, {}

    def handle(self, value):
        """The number of an object of ours; what was asked for by a name in the solution's module has that name, which outlives the run."""
        if id(value) not in self.handles:
            self.handles[id(value)] = len(self.objects)
            self.objects.append(value)
        return self.handles[id(value)]

    def find(self, handle):
        return self.name(handle) if type(handle) is str else self.objects[handle]

    def name(self, name):
        """What a name of the solution's module stands for: what it first stood for in this run, whatever a test puts there."""
        if name not in self.named:
            self.named[name] = self.roots[name]
            self.handles.setdefault(id(self.roots[name]), name)
        return self.named[name]

    def own(self, proxy):
        """The handle of what a proxy stands for."""
        state = object.__getattribute__(proxy, "_rp")
        if state.peer is not self or type(state.handle) is int and state.generation != self.generation:
            raise Ended("the run that held this object is over")
        return state.handle

    def proxy(self, handle, make, base=()):
        if type(handle) not in (int, str):
            raise Broken("no handle")
        if handle not in self.proxies:
            self.proxies[handle] = make(State(self, handle, base))
        return self.proxies[handle]

    def call(self, function, arguments, keywords):
        return self.ask("call", function, arguments, keywords)

    def ask(self, operation, *operands):
        with self.lock:
            passed = containers(operands[1:]) if operation == "call" else []
            self.send(("ask", operation, operands))
            while True:
                kind, *fields = self.receive()
                if kind == "ask":
                    self.answer(*fields)
                elif kind in ("answer", "raise"):
                    return self.settle(kind, passed, *fields)
                else:
                    raise Broken("a message of kind %r" % (kind,))

    def settle(self, kind, passed, value, changes, index):
        try:
            for number, content in changes:
                overwrite(passed[number], content)
            if kind == "answer":
                return value if index is None else passed[index]
        except (TypeError, ValueError, LookupError) as error:
            raise Broken("an answer that fits no question: %s" % error)
        if not isinstance(value, BaseException):
            raise Broken("what is raised is no exception")
        value.__dict__["_rp_crossed"] = True
        raise value

    def answer(self, operation, operands):
        """Does what the other side asks for."""
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
