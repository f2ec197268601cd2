"""Which names the tests of a job get without importing them."""

import builtins
import importlib

# Modules that tests may use without an import; always python's own.
TRUSTED = ("bisect", "collections", "copy", "datetime", "functools", "heapq", "itertools", "json", "math", "operator", "os", "random",
           "re", "string", "sys", "time", "typing")


def trusted(used):
    """Returns the modules among the names that a text uses."""
    return {name: importlib.import_module(name) for name in TRUSTED if name in used}


def chosen(used, imported, names):
    """Returns the names that a text takes from a solution which defines `names`, in order.

    A name that is also a builtin is the solution's only where the text uses nothing else of it: then it is what the text tests. Otherwise
    a solution that redefines `len` or `sorted` would judge itself.
    """
    found = [name for name in names if type(name) is str and name in used and not name.startswith("__")
             and name not in imported and name not in TRUSTED]
    return [name for name in found if not hasattr(builtins, name)] or found


def starred(used, imported, names):
    """Returns the names that `from solution import *` binds: those among `chosen` that such an import would."""
    return [name for name in chosen(used, imported, names) if not name.startswith("_")]
