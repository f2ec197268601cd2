"""Reasons why the verdict of the strict checker may be wrong: properties that copies and proxies cannot reproduce.

All reasons but COPY are derived from the tests, which no response can change. `veto` excludes solutions from running together with the tests
despite a reason: those that use reflection, and those whose objects could impersonate plain values in tests that name no class.
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

# Fixtures that affect the process in which the test functions run.
FIXTURES = frozenset(BUILT_IN)
# Modules by which a test accesses the state of its process.
STATEFUL = frozenset((
    "asyncio", "builtins", "concurrent", "contextvars", "gc", "importlib", "inspect", "io", "logging", "multiprocessing", "os", "pathlib",
    "queue", "shutil", "signal", "sqlite3", "subprocess", "sys", "tempfile", "threading", "traceback", "types", "warnings", "weakref"))
STATEFUL_NAMES = frozenset((
    "open", "globals", "vars", "id", "patch", "mock", "redirect_stdout", "redirect_stderr", "warns", "deprecated_call", "StopIteration",
    "StopAsyncIteration"))
# Builtin classes whose objects arrive as iterators.
ITERATORS = frozenset(("map", "filter", "zip", "enumerate", "reversed"))
# Attributes by which a test sets the state of an otherwise harmless module.
STATEFUL_ATTRIBUTES = frozenset((
    "seed", "setstate", "warns", "deprecated_call", "MonkeyPatch", "assertWarns", "assertWarnsRegex", "assertLogs", "assertNoLogs",
    "filterwarnings", "simplefilter", "__wrapped__", "__code__", "__closure__", "__defaults__", "__annotations__"))

# Names by which a solution inspects the interpreter, its callers or its tests instead of its arguments.
REFLECTION = frozenset((
    "ctypes", "gc", "inspect", "linecache", "traceback", "marshal", "exec", "eval", "compile", "_getframe", "_current_frames", "settrace",
    "setprofile", "f_back", "f_code", "f_globals", "f_locals", "tb_frame", "tb_next", "gi_frame", "cr_frame", "__code__", "__closure__",
    "__globals__", "__traceback__", "co_consts", "get_objects", "get_referrers", "test_solution", "builtins", "__builtins__", "modules", "pytest", "_pytest",
    "ANY", "MagicMock", "SkipTest", "skipTest", "skipIf", "skipUnless"))
# Methods by which an object can impersonate a value.
POSING = frozenset("__%s__" % name for name in (
    "eq ne lt le gt ge hash bool float int index complex contains add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow "
    "rpow matmul rmatmul neg pos abs invert round trunc floor ceil and rand or ror xor rxor getattribute class array array_ufunc "
    "array_function array_priority instancecheck subclasscheck").split())

# Existing objects that equal everything, and ways to create a class without a `class` statement.
MADE_CLASS = "type(name, bases, body)"
STAND_INS = frozenset(("Mock", "setattr", MADE_CLASS))


def reasons(tree):
    """Returns the reasons that apply to a text of tests."""
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
    elif isinstance(node, ast.Attribute) and node.attr in ("__cause__", "__context__"):
        yield COPY
    elif isinstance(node, ast.Compare) and any(map(is_identity, node.ops, [node.left] + node.comparators, node.comparators)):
        yield COPY
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance" and len(node.args) == 2:
        if any(isinstance(found, ast.Name) and found.id in ITERATORS for found in ast.walk(node.args[1])):
            yield COPY


def is_identity(operator, *sides):
    """Returns true if a comparison tests the identity of two objects."""
    singletons = (isinstance(side, ast.Constant) and side.value in (None, True, False, Ellipsis) for side in sides)
    return isinstance(operator, (ast.Is, ast.IsNot)) and not any(singletons)


def imported_modules(node):
    names = [name.name for name in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return [name.partition(".")[0] for name in names]


def is_test_class(node):
    return node.name.startswith("Test") or any(getattr(base, "attr", getattr(base, "id", "")).endswith("TestCase") for base in node.bases)


def names_class(tree):
    """Returns true if a text uses a name of the solution that is spelled like a class."""
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
    """Returns the name that a node binds, as a list of at most one."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return [node.name]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    return [node.arg] if isinstance(node, ast.arg) else []


def veto(source, found):
    """Returns the reason why a solution must not run together with its tests, or None."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "it cannot be parsed"
    skips = any("unittest" in imported_modules(node) for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
    modules = {(name.asname or name.name) for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    for node in ast.walk(tree):
        name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "module", None)
        names = [name] + [item.name for item in getattr(node, "names", ()) if isinstance(item, ast.alias)]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and getattr(node.value, "id", None) in modules:
            return "it changes the module `%s`" % node.value.id
        for name in names:
            if isinstance(name, str) and any(part in REFLECTION or part.startswith("rollpacker") for part in name.split(".")):
                return "it uses `%s`" % name
            if skips and name == "skip":
                return "it could skip tests"
        if CLASS not in found:
            posing = sorted(POSING.union(STAND_INS).intersection(bound_names(node)))
            if posing:
                return "its objects could pose as values by `%s`" % posing[0]
    return None


def bound_names(node):
    """Returns the names by which a node may define the behavior of objects."""
    if isinstance(node, ast.ClassDef):
        return [name for item in node.body for name in defined_names(item)]
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return [node.attr]
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "type" and len(node.args) == 3:
        return [MADE_CLASS]
    if isinstance(node, (ast.Name, ast.alias)):
        return [getattr(node, "id", None) or node.name.rpartition(".")[2]]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def defined_names(item):
    """Returns the names that a statement of a class body defines."""
    if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return [item.name]
    return [node.id for node in ast.walk(item) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
