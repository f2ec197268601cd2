"""The names that the tests of a job can use without importing them."""

import builtins
import importlib
import re

# The imports that competition datasets expect before the solution.
PRELUDE = """
from typing import *
from collections import *
from functools import *
from itertools import *
from heapq import *
from bisect import *
from math import inf, gcd, sqrt, ceil, floor, comb, log2
import bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator, random, re, string, sys, typing
"""
# Loaded once, in the process from which checkers and runs are forked.
PRELUDE_NAMES = {}
exec(PRELUDE, PRELUDE_NAMES)

# Modules that tests may use without an import. They are always those of the standard library.
TRUSTED = ("bisect", "collections", "copy", "datetime", "functools", "heapq", "itertools", "json", "math", "operator", "os", "random",
           "re", "string", "sys", "time", "typing")


# The customary names of libraries.
ALIASES = {"np": "numpy", "numpy": "numpy", "pd": "pandas", "pandas": "pandas", "plt": "matplotlib.pyplot"}


def trusted(used):
    """Returns the values of the used names that are in the prelude, or that name a trusted module or a library. A library that is not
    installed is left out.
    """
    found = {name: value for name, value in PRELUDE_NAMES.items() if name in used and not name.startswith("_")}
    found.update((name, importlib.import_module(name)) for name in TRUSTED if name in used)
    for name in sorted(set(ALIASES).intersection(used)):
        try:
            found[name] = importlib.import_module(ALIASES[name])
        except ImportError:
            pass
    return found


def is_foreign(name):
    """Returns true if a name is a builtin or a customary name of a library."""
    return hasattr(builtins, name) or name in ALIASES


def is_reserved(name):
    """Returns true if a name has a meaning in a text without imports: a builtin, a library, or a name of the prelude."""
    return is_foreign(name) or name in PRELUDE_NAMES


def taken(used, imported, names, reserved):
    """Returns the names of a solution that a text uses without importing them one by one, in order.

    A reserved name refers to the solution only if the text uses no other name of it; then it is the name that the text tests. Otherwise a
    solution that redefines `len` or `Counter` could judge itself. The name `solution` among the imported names means that the text imports
    something from it.
    """
    found = [name for name in names if type(name) is str and name in used and not name.startswith("__")
             and name not in imported and name not in TRUSTED]
    free = [name for name in found if not reserved(name)]
    return free if free or "solution" in imported else found


def bind(space, used, imported, names, get):
    """Binds the names that a text uses without an import: those of the solution, unless the text imports what it uses from there, and then
    well-known names.
    """
    for name in taken(used, imported, names, is_reserved) if "solution" not in imported else ():
        if name not in space:
            space[name] = get(name)
    for name, value in trusted(used).items():
        space.setdefault(name, value)


def bind_entry(space, entry_point, get):
    """Binds the name of the solution with which an entry point begins, and returns the object of the entry point."""
    name = re.match(r"\w*", entry_point).group()
    space[name] = get(name)
    return eval(entry_point, {name: space[name]})


def starred(used, imported, names):
    """Returns the names that `from solution import *` binds."""
    return [name for name in taken(used, imported, names, is_foreign) if not name.startswith("_")]
