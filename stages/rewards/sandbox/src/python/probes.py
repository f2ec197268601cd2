"""Derives tests with wrong expectations from tests with right ones.

A process that runs tests together with the solution could report that they passed without running them, or the solution could look up the
expected values. Both would also happen with another expectation. Therefore a pass counts only if a changed expectation fails; the process
cannot know which of the texts is the original one. Objects that equal everything are detected earlier, by `rollpacker_decoys`.
"""

import ast
import copy
import random

# The number of changes of one expectation that must all be detected.
REPEATS = 4
# The maximum number of groups of changes, at least one of which must be detected.
MAX_PROBES = 6
# Functions that may occur in an expected value, such as `approx(3)` or `{1, 2}.union(...)`.
NEUTRAL = frozenset((
    "approx", "set", "frozenset", "list", "tuple", "dict", "sorted", "array", "Decimal", "Fraction", "Counter", "OrderedDict", "deque",
    "float", "int", "str", "range", "date", "datetime", "timedelta", "UUID", "Path", "bytes", "bytearray"))
RAISES = ("raises", "warns", "assertRaises", "assertRaisesRegex", "assertWarns", "assertLogs", "deprecated_call")
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
ASSERTED_ORDERS = ("assertLess", "assertLessEqual", "assertGreater", "assertGreaterEqual")


class Site:
    """The constants that make up the expectation of one assertion. `far` if nearby values may satisfy the assertion as well."""

    def __init__(self, constants, far=False):
        self.constants, self.far = constants, far

    def groups(self, places):
        """Returns groups of changes, each by position in the tree. A change of the site is detected if a case fails with every change of
        one group.
        """
        if self.far:
            return [[{places[id(found)]: extreme(found.value, sign) for found in self.constants} for _ in range(2)] for sign in (-1, 1)]
        return [[{places[id(found)]: altered(found.value) for found in self.constants} for _ in range(REPEATS)]]


def probes(tree, node):
    """Returns the probes of the case that the statement `node` of a text defines. Each probe is a list of groups of changes, at least one
    of which the case must detect.

    A case with an expected constant must detect that the constant was changed. Every number in a subtraction must matter. A case without
    either must detect changed inputs, or an assertion that was negated. A case without assertions has no probes.
    """
    places = {id(found): place for place, found in enumerate(ast.walk(tree))}
    values = assigned(tree, node)
    demanded = [demand for check in checks(node) for demand in conjuncts(check)]
    expected = [site for demand in demanded for site in expected_sites(demand, values)]
    expected += [Site(row) for row in parameter_columns(node) if row]
    differences = [site for demand in demanded for site in difference_sites(demand, values)]
    found = [site.groups(places) for site in differences]
    if expected:
        return found + [[group for site in expected[:MAX_PROBES] for group in site.groups(places)]]
    if found:
        return found
    inverted = [[{places[id(part)]: None}] for part in ast.walk(node) if isinstance(part, ast.Assert) or is_raises(part)]
    constants = constants_of(getattr(node, "body", [node])) if demanded or inverted else []
    inputs = [group for constant in constants for group in Site([constant]).groups(places)]
    return [inverted[:MAX_PROBES] + inputs[:MAX_PROBES]] if inverted or inputs else []


def assigned(tree, node):
    """Returns the values of names that a case uses once and that are assigned once, in the case or at the top level of the text."""
    uses = [found.id for found in ast.walk(node) if isinstance(found, ast.Name) and isinstance(found.ctx, ast.Load)]
    values, often = {}, set()
    for found in list(getattr(tree, "body", ())) + list(ast.walk(node)):
        if isinstance(found, ast.Assign) and len(found.targets) == 1 and isinstance(found.targets[0], ast.Name):
            name = found.targets[0].id
            if values.setdefault(name, found.value) is not found.value:
                often.add(name)
    return {name: value for name, value in values.items() if uses.count(name) == 1 and name not in often}


def is_raises(node):
    """Returns true if a statement is a block that must raise an exception."""
    return isinstance(node, ast.With) and any(
        isinstance(item.context_expr, ast.Call) and getattr(item.context_expr.func, "attr", "") in RAISES for item in node.items)


def parameter_columns(node):
    """Returns the constants in the last column of every `parametrize` with several names. By convention, these are the expected values."""
    for decorator in getattr(node, "decorator_list", ()):
        if not (isinstance(decorator, ast.Call) and getattr(decorator.func, "attr", "") == "parametrize" and len(decorator.args) > 1):
            continue
        names, rows = decorator.args[:2]
        several = "," in str(getattr(names, "value", "")) or len(getattr(names, "elts", ())) > 1
        rows = [row for row in getattr(rows, "elts", ()) if isinstance(row, (ast.Tuple, ast.List)) and row.elts] if several else []
        yield constants_of([row.elts[-1] for row in rows if is_neutral(row.elts[-1])])


def checks(node):
    """Returns the expressions that the assertions within a statement require."""
    for found in ast.walk(node):
        if isinstance(found, ast.Assert):
            yield found.test
        elif isinstance(found, ast.Expr) and isinstance(found.value, ast.Call):
            name = getattr(found.value.func, "attr", "")
            if name == "assertTrue" and found.value.args:
                yield found.value.args[0]
            elif name.startswith("assert"):
                yield found.value


def conjuncts(test):
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from conjuncts(value)
    else:
        yield test


def expected_sites(demand, values):
    """Returns the site of the expected value of an assertion, if it is a constant expression."""
    if isinstance(demand, ast.Compare):
        if any(isinstance(operator, (ast.NotEq, ast.IsNot, ast.NotIn)) for operator in demand.ops):
            return []
        sides = [demand.left] + demand.comparators
        within = isinstance(demand.ops[-1], ast.In) and is_neutral(resolved(sides[-1], values))
        return site_of(sides, values, within or any(isinstance(operator, ORDERS) for operator in demand.ops))
    name = getattr(demand.func, "attr", "") if isinstance(demand, ast.Call) else ""
    if name in ASSERTED_ORDERS:
        return site_of(demand.args[:2], values, True)
    if "Not" in name or "Equal" not in name and "equal" not in name and "called" not in name and "close" not in name and name != "assertIn":
        return []
    if "called" in name:
        constants = constants_of(demand.args)
        return [Site(constants)] if constants else []
    return site_of(demand.args[:2], values, False)


def site_of(sides, values, far):
    """Returns the constants of the last side that is a constant expression."""
    for side in reversed([resolved(side, values) for side in sides]):
        if is_neutral(side) and constants_of([side]):
            return [Site(constants_of([side]), far)]
    return []


def difference_sites(demand, values):
    """Returns the numbers in the subtractions within an order comparison, if the other operand is not constant."""
    if not (isinstance(demand, ast.Compare) and any(isinstance(operator, ORDERS) for operator in demand.ops)):
        return []
    parts = [(found.left, found.right) for found in ast.walk(demand) if isinstance(found, ast.BinOp) and isinstance(found.op, ast.Sub)]
    resolved_parts = [resolved(part, values) for pair in parts for part in pair if not all(map(is_neutral, pair))]
    return [Site(constants_of([part]), far=True) for part in resolved_parts if is_neutral(part) and constants_of([part])]


def resolved(node, values):
    """Returns the constant expression that was assigned to a name, if there is one."""
    value = values.get(node.id) if isinstance(node, ast.Name) else None
    return value if value is not None and is_neutral(value) and constants_of([value]) else node


def is_neutral(node):
    """Returns true if an expression consists of constants and calls of well-known functions only."""
    for found in ast.walk(node):
        if isinstance(found, ast.Call):
            if (getattr(found.func, "attr", None) or getattr(found.func, "id", None)) not in NEUTRAL:
                return False
        elif isinstance(found, (ast.Lambda, ast.Await, ast.NamedExpr)):
            return False
    return True


def constants_of(nodes):
    """Returns the constants of expressions, except for indices and keyword arguments, which select a part or a tolerance."""
    apart = {id(part) for node in nodes for found in ast.walk(node) for part in apart_from(found)}
    return [found for node in nodes for found in ast.walk(node)
            if isinstance(found, ast.Constant) and is_alterable(found.value) and id(found) not in apart]


def apart_from(node):
    parts = [node.slice] if isinstance(node, ast.Subscript) else [node] if isinstance(node, ast.keyword) else []
    return [found for part in parts for found in ast.walk(part)]


def is_alterable(value):
    return value is None or isinstance(value, (bool, int, float, str, bytes))


def altered(value):
    """Returns another value of the same kind that looks equally plausible."""
    if value is None:
        return random.randint(1, 9)
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return altered_number(value)
    if isinstance(value, str):
        return altered_text(value)
    return bytes(altered_text(value.decode("latin-1")), "latin-1")


def altered_number(value):
    """Returns a number with the same number of digits, where one of the first digits differs."""
    text = repr(value)
    digits = [at for at, letter in enumerate(text.partition("e")[0]) if letter.isdigit()]
    first = next((at for at in digits if text[at] != "0"), None)
    if first is None:
        return type(value)(random.randint(1, 9))
    at = random.choice([at for at in digits if at >= first][:2])
    others = [digit for digit in "0123456789" if digit != text[at] and (digit != "0" or at != first)]
    return type(value)(text[:at] + random.choice(others) + text[at + 1:])


def altered_text(text):
    """Returns a text of the same length in which one character is replaced by another of the same kind."""
    if not text:
        return random.choice("aeiou")
    at = random.randrange(len(text))
    kinds = ("0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    letters = next((kind for kind in kinds if text[at] in kind), kinds[1])
    return text[:at] + random.choice([letter for letter in letters if letter != text[at]]) + text[at + 1:]


def extreme(value, sign):
    """Returns a value of the same kind beyond all values that a solution is likely to return."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return type(value)(sign * random.randint(10 ** 9, 10 ** 12))
    return altered(value)


def changed(tree, change):
    """Returns a text with the constants at the positions of a change replaced.

    `None` negates an assertion, and empties a block that must raise an exception.
    """
    tree = copy.deepcopy(tree)
    for place, node in enumerate(list(ast.walk(tree))):
        if place not in change:
            continue
        if isinstance(node, ast.Assert):
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        elif isinstance(node, ast.With):
            node.body = [ast.copy_location(ast.Pass(), node)]
        else:
            node.value = change[place]
    return tree
