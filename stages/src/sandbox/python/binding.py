"""Which names the tests of a job get without importing them."""

import builtins
import importlib

# What competition datasets expect to be there without an import, in the solution.
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

# Modules that tests may use without an import; always python's own.
TRUSTED = ("bisect", "collections", "copy", "datetime", "functools", "heapq", "itertools", "json", "math", "operator", "os", "random",
           "re", "string", "sys", "time", "typing")


# Names by which libraries are known.
ALIASES = {"np": "numpy", "numpy": "numpy", "pd": "pandas", "pandas": "pandas", "plt": "matplotlib.pyplot"}


def trusted(used):
    """Returns what names of a text mean that neither the text nor the solution defines."""
    found = {name: value for name, value in PRELUDE_NAMES.items() if name in used and not name.startswith("_")}
    found.update((name, importlib.import_module(name)) for name in TRUSTED if name in used)
    for name in sorted(set(ALIASES).intersection(used)):
        try:
            found[name] = importlib.import_module(ALIASES[name])
        except ImportError:
            pass
    return found


def is_foreign(name):
    """Whether a name means something of python's, or a library."""
    return hasattr(builtins, name) or name in ALIASES


def is_reserved(name):
    """Whether a name means something else to a text that imports nothing: also what the prelude of competitions brings along."""
    return is_foreign(name) or name in PRELUDE_NAMES


def taken(used, imported, names, reserved):
    """Returns the names of a solution that a text means without importing them one by one, in order.

    A reserved name is the solution's only where the text takes nothing else from it: then it is what the text tests. Otherwise a solution
    that redefines `len` or `Counter` would judge itself. Among the names that a text imports, `solution` says that it takes something.
    """
    found = [name for name in names if type(name) is str and name in used and not name.startswith("__")
             and name not in imported and name not in TRUSTED]
    free = [name for name in found if not reserved(name)]
    return free if free or "solution" in imported else found


def bind(space, used, imported, names, get):
    """Binds what a text uses without an import: names of the solution, unless the text imports those it wants, then well-known ones."""
    for name in taken(used, imported, names, is_reserved) if "solution" not in imported else ():
        if name not in space:
            space[name] = get(name)
    for name, value in trusted(used).items():
        space.setdefault(name, value)


def starred(used, imported, names):
    """Returns the names that `from solution import *` binds."""
    return [name for name in taken(used, imported, names, is_foreign) if not name.startswith("_")]
