"""Why the verdict of the strict checker on a text of tests may be wrong: what copies and proxies cannot show.

All but one reason are read off the tests, which no response can change. `veto` says which solutions are not judged beside the tests even
so: those that reflect on the interpreter, and those whose objects could pose as plain values where the tests name no class.
"""

import ast
import builtins
import collections
import sys
import typing

from rollpacker_fixtures import BUILT_IN

CLASS = "the tests name a class of the solution"
HELPER = "the tests define a class of their own"
STATE = "the tests share the state of the process with the solution"
LIBRARY = "the tests import a library that is not python's own"
COPY = "the tests do with an object what no copy of it can show"
CALLS = "the tests call the solution too often for a checker in another process"

# Calls after which a case that takes too long may do so for being asked from another process.
MANY_CALLS = 1000
# What test functions ask for by name and that concerns the process that they run in.
FIXTURES = frozenset(BUILT_IN)
# Modules through which a test reaches the state of its process.
STATEFUL = frozenset((
    "asyncio", "builtins", "concurrent", "contextvars", "gc", "importlib", "inspect", "io", "logging", "multiprocessing", "os", "pathlib",
    "queue", "shutil", "signal", "sqlite3", "subprocess", "sys", "tempfile", "threading", "traceback", "types", "warnings", "weakref"))
STATEFUL_NAMES = frozenset(("open", "globals", "vars", "id", "patch", "mock", "redirect_stdout", "redirect_stderr", "warns", "deprecated_call"))
# Attributes by which a test sets the state of a module that is otherwise harmless.
STATEFUL_ATTRIBUTES = frozenset(("seed", "setstate", "warns", "deprecated_call", "MonkeyPatch"))

# Names by which a solution looks at the interpreter, its callers or its tests rather than at its arguments.
REFLECTION = frozenset((
    "ctypes", "gc", "inspect", "linecache", "traceback", "marshal", "exec", "eval", "compile", "_getframe", "_current_frames", "settrace",
    "setprofile", "f_back", "f_code", "f_globals", "f_locals", "tb_frame", "tb_next", "gi_frame", "cr_frame", "__code__", "__closure__",
    "__globals__", "__traceback__", "co_consts", "get_objects", "get_referrers", "test_solution"))
# Methods by which an object poses as a value that it is not.
POSING = frozenset("__%s__" % name for name in (
    "eq ne lt le gt ge hash bool float int index complex contains add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow "
    "rpow matmul rmatmul neg pos abs invert round trunc floor ceil and rand or ror xor rxor getattribute class array array_ufunc "
    "array_function array_priority instancecheck subclasscheck").split())


def reasons(tree):
    """Returns the reasons that a text of tests gives."""
    found = set()
    for node in ast.walk(tree):
        found.update(reasons_of(node))
    found.update({CLASS} if names_class(tree) else ())
    return found


def reasons_of(node):
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        for name in imported_modules(node):
            if name in STATEFUL:
                yield STATE
            elif name not in ("solution", "pytest", "unittest", "numpy.testing") and name not in sys.stdlib_module_names:
                yield LIBRARY
        if isinstance(node, ast.ImportFrom) and node.module == "unittest.mock":
            yield STATE
    elif isinstance(node, (ast.AsyncFunctionDef, ast.Await, ast.Global)):
        yield STATE
    elif isinstance(node, ast.ClassDef) and not is_test_class(node):
        yield HELPER
    elif isinstance(node, ast.Name) and node.id in STATEFUL_NAMES | STATEFUL or isinstance(node, ast.arg) and node.arg in FIXTURES:
        yield STATE
    elif isinstance(node, ast.Attribute) and node.attr in STATEFUL_ATTRIBUTES:
        yield STATE


def imported_modules(node):
    names = [name.name for name in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return [name.partition(".")[0] for name in names]


def is_test_class(node):
    return node.name.startswith("Test") or any(getattr(base, "attr", getattr(base, "id", "")).endswith("TestCase") for base in node.bases)


def names_class(tree):
    """Whether a text uses a name of the solution that is spelled as a class is."""
    own, asked = set(dir(builtins)).union(typing.__all__, collections.__all__), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "solution":
            asked.update(name.name for name in node.names)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            own.update((name.asname or name.name).partition(".")[0] for name in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "solution":
            asked.add(node.attr)
        else:
            own.update(bound_name(node))
    asked.update(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id not in own)
    return any(name.lstrip("_")[:1].isupper() for name in asked)


def bound_name(node):
    """Returns the name that a part of a text binds, if it binds one."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return [node.name]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    return [node.arg] if isinstance(node, ast.arg) else []


def veto(source, found):
    """Returns why a solution is not judged beside its tests, or None."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "it cannot be parsed"
    for node in ast.walk(tree):
        name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "module", None)
        names = [name] + [item.name for item in getattr(node, "names", ()) if isinstance(item, ast.alias)]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        for name in names:
            if isinstance(name, str) and any(part in REFLECTION or part.startswith("rollpacker") for part in name.split(".")):
                return "it uses `%s`" % name
        if CLASS not in found and isinstance(node, ast.ClassDef):
            posing = sorted(POSING.intersection(defined_names(node)))
            if posing:
                return "its class `%s` defines `%s`" % (node.name, posing[0])
    return None


def defined_names(node):
    """Returns the names that the body of a class binds."""
    for item in ast.walk(node):
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield item.name
        elif isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
            yield item.id
