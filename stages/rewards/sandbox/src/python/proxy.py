"""Proxies: objects that represent objects of the other side.

Operations on a proxy are forwarded to the owner of its object. On the strict side, the checker, an object of the solution never represents
a plain value: it does not equal one, has no order or arithmetic with one, and does not convert to a number. Otherwise
`abs(answer - 3) < 1e-6` would hold for an answer whose `__sub__` returns 0. Tests that need more of the solution's own classes are run
again in the process of the solution: see `rollpacker_recheck`.
"""

import operator


class Stop(BaseException):
    """Ends a case immediately. It is no `Exception`, so that tests do not take it for an error of the solution, and it is never sent to the
    other side.

    The last one is recorded, so that it counts even if a test catches it with a bare `except`.
    """

    raised = None

    def __init__(self, *arguments):
        super().__init__(*arguments)
        Stop.raised = self


class Broken(Stop):
    """The other end violated the protocol."""


class Ended(Stop):
    """The other end has closed the link."""


class Undecided(Stop):
    """The tests do something that no copy can reproduce, so this attempt is no evidence about the solution."""


def is_strict(proxy):
    return object.__getattribute__(proxy, "_rp").peer.strict


def compare(name):
    asked = "__%s__" % name

    def method(self, other):
        if not is_strict(self):
            return ask(self, asked, other)
        if not isinstance(other, Proxy):
            return NotImplemented
        object.__getattribute__(self, "_rp").peer.decided_by_claim = True
        return ask(self, asked, other)

    return method


def arithmetic(name, reflected):
    function = divmod if name == "divmod" else getattr(operator, {"and": "and_", "or": "or_"}.get(name, name))
    asked = "__r%s__" % name if reflected else "__%s__" % name

    return meet(asked), (lambda value, other: function(other, value)) if reflected else function


def meet(asked):
    """Returns the method of a proxy for a binary operator."""

    def method(self, other):
        if is_strict(self) and not isinstance(other, Proxy):
            raise TypeError("an object of the solution stands where a plain value is expected (%s)" % asked)
        return ask(self, asked, other)

    return method


def relay(name):
    def method(self, *arguments):
        return ask(self, name, *arguments)

    return method


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


# Operations that the strict side never forwards: they convert an object to a number, or ask it about a plain value.
REFUSED = frozenset((
    "__abs__", "__int__", "__float__", "__index__", "__complex__", "__round__", "__neg__", "__pos__", "__invert__", "__contains__"))
# The operations on an object and their implementation by its owner. A proxy only has those that the object's class has.
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
# Operations on proxies of any class.
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
    """The state of a proxy."""

    __slots__ = ("peer", "handle", "generation")

    def __init__(self, peer, handle):
        self.peer, self.handle, self.generation = peer, handle, peer.generation


def ask(proxy, operation, *operands):
    return object.__getattribute__(proxy, "_rp").peer.ask(operation, proxy, *operands)


class Proxy:
    """An object of the other side. Its class is a subclass with the name and the special methods of the object's class."""

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
    def __doc__(self):
        return ask(self, "__getattr__", "__doc__")

    @property
    def __dict__(self):
        return ask(self, "__getattr__", "__dict__")

    def __eq__(self, other):
        return METHODS["__eq__"](self, other)

    def __hash__(self):
        return ask(self, "__hash__")

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
        if is_strict(self):
            raise Undecided("a test copies or pickles an object of the solution")
        raise TypeError("an object of the tests cannot be copied or pickled")

    def __mro_entries__(self, bases):
        raise Undecided("a test derives a class from a class of the solution")


# Attributes that Python looks up implicitly and that are never forwarded.
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


def face(sheet, strict, cache={}):
    """Returns the class of proxies for the description `sheet`: the name of a class and its special methods."""
    if (sheet, strict) not in cache:
        name, methods = sheet
        body = {"__slots__": (), "__module__": "solution"}
        for method in methods:
            if method == "__call__":
                body[method] = call_method
            elif method == "class":
                body.update(__instancecheck__=instance_check, __subclasscheck__=subclass_check)
            elif not (strict and method in REFUSED):
                body[method] = METHODS[method]
        body["__hash__"], body["__doc__"] = Proxy.__hash__, Proxy.__dict__["__doc__"]
        cache[sheet, strict] = type(str(name), (Proxy,), body)
    return cache[sheet, strict]


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
