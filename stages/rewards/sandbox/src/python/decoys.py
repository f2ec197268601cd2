"""Checks the comparisons of tests that run in the same process as the solution, because an object of the solution may decide them.

Every comparison and subtraction in the tests is replaced by a call of `compare`, `sides` or `subtract`. If an object that is not a plain
value takes part in a comparison that holds, the same object is also compared with unexpected values (decoys). An object that equals most of
these too, or whose difference from each is the same, impersonates a value, and the test fails.
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
# The number of decoys for an expected value.
DECOYS = 8
FAR = 10.0 ** 12


class Posing(AssertionError):
    """An object of the solution impersonates a value."""

    def __init__(self, posing):
        super().__init__("an object of type %s poses as values that it is not" % type(posing).__name__)


class Instrument(ast.NodeTransformer):
    """Replaces comparisons and subtractions by calls."""

    def visit_Compare(self, node):
        self.generic_visit(node)
        names = ast.Tuple([ast.Constant(type(found).__name__) for found in node.ops], ast.Load())
        return self.call(node, COMPARE, [names, node.left] + node.comparators)

    def visit_BinOp(self, node):
        self.generic_visit(node)
        return self.call(node, SUBTRACT, [node.left, node.right]) if isinstance(node.op, ast.Sub) else node

    def visit_Call(self, node):
        """Replaces `assertEqual(a, b)` by `assertEqual(*sides("Eq", a, b))`."""
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
    """Returns the tests with comparisons replaced by calls. Columns are removed, since they would reveal which constant was changed."""
    tree = ast.fix_missing_locations(Instrument().visit(copy.deepcopy(tree)))
    for node in ast.walk(tree):
        if hasattr(node, "col_offset"):
            node.col_offset = node.end_col_offset = 0
    return tree


def compare(names, *values):
    """Returns the value of a comparison or of a chain of comparisons."""
    found = True
    for name, left, right in zip(names, values, values[1:]):
        found = OPERATORS[name](left, right)
        if name not in ("Is", "IsNot"):
            check(name, left, right, found)
        if len(names) > 1 and not found:
            break
    return found


def sides(name, left, right):
    """Returns both sides of an assertion of equality or containment, after checking that no object in them impersonates a value."""
    check(name, left, right, holds(name, left, right))
    return left, right


def check(name, left, right, found):
    """Raises an error if an object makes a comparison hold regardless of the other side."""
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
    """Returns true if a result is true. An array with several elements is not."""
    try:
        return bool(found)
    except Exception:
        return False


def leaves(left, right):
    """Returns the pairs of corresponding parts of two values that are not both plain."""
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
    """Compares with decoys. A scalar may equal half of them, as instances of a modular integer class do; a container may equal none; and a
    collection must not contain all of them.
    """
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
    """Checks an order against a number. An object that is greater than a number must not be less than a smaller one, and must not be
    greater than every number; and vice versa.
    """
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
    """Returns true if a comparison holds. If it raises an error, it does not hold."""
    try:
        return bool(OPERATORS[name](left, right))
    except Exception:
        return False


def alterations(value):
    """Returns values near and far that differ from a value."""
    return [altered(value) for _ in range(DECOYS)]


def altered(value):
    """Returns a value of the same kind that differs in one part, or in which all numbers are shifted."""
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
    """Returns a difference, after checking that it depends on the operand of an object of the solution."""
    found = left - right
    for one, other in ((left, right), (right, left)):
        if type(found) in (int, float) and type(one) in (int, float) and type(other) not in PLAIN:
            others = [one + step - other if one is left else other - (one + step) for step in (1, -2, 3 + abs(one))]
            if all(type(difference) in (int, float) and difference == found for difference in others):
                raise Posing(other)
    return found


NAMES = {COMPARE: compare, SIDES: sides, SUBTRACT: subtract}
