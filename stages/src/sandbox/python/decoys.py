"""Comparisons of tests beside a solution, which an object of the solution may decide.

Every comparison and subtraction of a text of tests becomes a call of `compare`, `sides` or `subtract` here. Where an object that is no
plain value takes part, the same object is also compared with values that are not expected. One that equals most of those too, or whose
difference from each is the same, poses as a value that it is not, and the test fails.
"""

import ast
import copy
import operator
import random

from rollpacker_pytest_shim import Approx

OPERATORS = {
    "Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge,
    "In": lambda a, b: a in b, "NotIn": lambda a, b: a not in b, "Is": operator.is_, "IsNot": operator.is_not}
ORDERS = ("Lt", "LtE", "Gt", "GtE")
PLAIN = (type(None), bool, int, float, complex, str, bytes)
CONTAINERS = (list, tuple, dict)
COMPARE, SIDES, SUBTRACT = "_rp_compare", "_rp_sides", "_rp_subtract"
# Values in place of an expected one.
DECOYS = 8
FAR = 10.0 ** 12


class Posing(AssertionError):
    """An object of the solution stands for a value that it is not."""

    def __init__(self, posing):
        super().__init__("an object of type %s poses as values that it is not" % type(posing).__name__)


class Instrument(ast.NodeTransformer):
    """Turns comparisons and subtractions into calls."""

    def visit_Compare(self, node):
        self.generic_visit(node)
        names = ast.Tuple([ast.Constant(type(found).__name__) for found in node.ops], ast.Load())
        return self.call(node, COMPARE, [names, node.left] + node.comparators)

    def visit_BinOp(self, node):
        self.generic_visit(node)
        return self.call(node, SUBTRACT, [node.left, node.right]) if isinstance(node.op, ast.Sub) else node

    def visit_Call(self, node):
        """`assertEqual(a, b)` becomes `assertEqual(*sides("Eq", a, b))`."""
        self.generic_visit(node)
        name = getattr(node.func, "attr", "")
        plain = len(node.args) > 1 and not any(isinstance(argument, ast.Starred) for argument in node.args[:2])
        if plain and name.startswith("assert") and ("Equal" in name and "Not" not in name or name == "assertIn"):
            asked = ast.Constant("In" if name == "assertIn" else "Eq")
            node.args[:2] = [ast.Starred(self.call(node, SIDES, [asked] + node.args[:2]), ast.Load())]
        return node

    @staticmethod
    def call(node, name, arguments):
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), arguments, []), node)


def instrumented(tree):
    """Returns a text whose comparisons are calls, and without the columns that would tell which constant was changed."""
    tree = ast.fix_missing_locations(Instrument().visit(copy.deepcopy(tree)))
    for node in ast.walk(tree):
        if hasattr(node, "col_offset"):
            node.col_offset = node.end_col_offset = 0
    return tree


def compare(names, *values):
    """Returns the value of a comparison, perhaps a chain of several."""
    found = True
    for name, left, right in zip(names, values, values[1:]):
        found = OPERATORS[name](left, right)
        if name not in ("Is", "IsNot"):
            check(name, left, right, found)
        if len(names) > 1 and not found:
            break
    return found


def sides(name, left, right):
    """Returns both sides of an assertion of equality, or of containment, if no object of theirs poses."""
    check(name, left, right, holds(name, left, right))
    return left, right


def check(name, left, right, found):
    """Raises if an object decides a comparison whatever it is compared with."""
    if isinstance(left, Approx) or isinstance(right, Approx) or not is_true(found if name not in ("NotEq", "NotIn") else not_(found)):
        return
    if name in ORDERS:
        return check_order(name, left, right)
    contains = name in ("In", "NotIn")
    for one, other in [(left, right)] if contains else leaves(left, right):
        check_decoys("In" if contains else "Eq", one, other)


def not_(found):
    return not is_true(found)


def is_true(found):
    """Whether a result is true; an array of several is neither."""
    try:
        return bool(found)
    except Exception:
        return False


def leaves(left, right):
    """Returns the pairs of parts of two values that are not both plain."""
    if type(left) is type(right) and type(left) in (list, tuple) and len(left) == len(right):
        for one, other in zip(left, right):
            yield from leaves(one, other)
    elif type(left) is dict and type(right) is dict:
        for key in left:
            if key in right:
                yield from leaves(left[key], right[key])
    elif type(left) not in PLAIN or type(right) not in PLAIN:
        yield left, right


def check_decoys(name, left, right):
    """A scalar may equal some decoys, as numbers of a class of remainders do; a container none; and nothing contains all of them."""
    most = 0
    if name == "In":
        pairs, most = [(value, right) for value in alterations(left)], DECOYS - 1
    elif type(right) in PLAIN + CONTAINERS:
        pairs, most = [(left, value) for value in alterations(right)], DECOYS // 2 * (type(right) in PLAIN)
    elif type(left) in PLAIN + CONTAINERS:
        pairs, most = [(value, right) for value in alterations(left)], DECOYS // 2 * (type(left) in PLAIN)
    else:
        pairs = [(left, object()), (object(), right)]
    random.shuffle(pairs)
    if sum(holds(name, one, other) for one, other in pairs) > most:
        raise Posing(right if type(left) in PLAIN + CONTAINERS else left)


def check_order(name, left, right):
    """What lies above a number does not lie below a smaller one, and not every number lies below it."""
    for one, other in ((left, right), (right, left)):
        if type(one) not in (int, float) or type(other) in PLAIN:
            continue
        above = name.startswith("G") == (one is right)
        near = one - max(1, abs(one)) if above else one + max(1, abs(one))
        opposite = name.translate(str.maketrans("GL", "LG"))
        asked = [(name, -FAR), (name, FAR), (opposite, near)]
        found = [holds(which, *((value, other) if one is left else (other, value))) for which, value in asked]
        if found[0] and found[1] or found[2]:
            raise Posing(other)


def holds(name, left, right):
    """Whether a comparison holds; one that raises does not."""
    try:
        return bool(OPERATORS[name](left, right))
    except Exception:
        return False


def alterations(value):
    """Returns values that differ from one, near and far."""
    return [altered(value) for _ in range(DECOYS)]


def altered(value):
    """Returns a value of the same kind that differs in one part, or of which all numbers are moved."""
    kind = type(value)
    if kind in (list, tuple) and value:
        if all(type(item) in (int, float) for item in value) and random.random() < 0.5:
            step = random.choice((-1, 1)) * random.randint(1, 99)
            return kind(item + step for item in value)
        items, at = list(value), random.randrange(len(value))
        items[at] = altered(items[at])
        return kind(items)
    if kind is dict and value:
        changed = random.choice(list(value))
        return {key: altered(item) if key is changed else item for key, item in value.items()}
    if kind is bool:
        return not value
    if kind in (int, float):
        return value + random.choice((-1, 1)) * kind(random.choice((random.randint(1, 9), random.randint(10, 10_000), FAR + random.randint(1, 99))))
    if kind is str:
        return value[::-1] + random.choice("aeiou")
    return object()


def subtract(left, right):
    """Returns a difference, which has to depend on what an object of the solution is compared with."""
    found = left - right
    for one, other in ((left, right), (right, left)):
        if type(found) in (int, float) and type(one) in (int, float) and type(other) not in PLAIN:
            others = [one + step - other if one is left else other - (one + step) for step in (1, -2, 3 + abs(one))]
            if all(type(difference) in (int, float) and difference == found for difference in others):
                raise Posing(other)
    return found


NAMES = {COMPARE: compare, SIDES: sides, SUBTRACT: subtract}
