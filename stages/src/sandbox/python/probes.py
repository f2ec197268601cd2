"""Tests with wrong expectations, made from tests with right ones.

A solution whose tests run beside it could pass by an object that equals everything, by reading what is expected, or by reporting that it
passed. It would pass the same tests with another expectation too. So a pass counts only if changed expectations fail; which of the texts
is the right one, the solution cannot know.
"""

import ast
import copy
import random

# Expectations of one comparison that have to be noticed, where few comparisons share the time.
REPEATS = 5
# Changed texts of one case, at most.
MOST = 40
# Functions of libraries in an expected value, such as `approx(3)` or `{1, 2}.union(...)`.
NEUTRAL = frozenset((
    "approx", "set", "frozenset", "list", "tuple", "dict", "sorted", "array", "Decimal", "Fraction", "Counter", "OrderedDict", "deque",
    "float", "int", "str", "abs", "len", "round", "range", "sqrt", "date", "datetime", "timedelta", "UUID", "Path", "bytes", "keys"))
RAISES = ("raises", "warns", "assertRaises", "assertRaisesRegex", "assertWarns", "assertLogs", "deprecated_call")


class Probe:
    """Changes that a case has to notice: each of `changes` is a set of changes by position in the tree, made together."""

    def __init__(self, changes, every):
        self.changes, self.every = changes, every


def probes(tree, node):
    """Returns the probes of a case that the statement `node` of a text defines; none if it demands nothing but to run to its end."""
    places = {id(found): place for place, found in enumerate(ast.walk(tree))}
    sites = [site for check in checks(node) for site in sites_of(check)]
    if sites:
        repeats = max(1, min(REPEATS, MOST // len(sites)))
        return [site.probe(places, repeats) for site in sites[:MOST]]
    changes = [] if all_raise(node) else constant_changes(node, places)
    changes = changes or [{places[id(found)]: None} for found in ast.walk(node) if isinstance(found, ast.Assert) or is_raises(found)]
    return [Probe(changes[:MOST], every=False)] if changes else []


def constant_changes(node, places):
    """Returns changes of the constants of a case, where no comparison has an expectation of its own."""
    parameters = [{places[id(found)]: altered(found.value) for found in row} for row in parameter_columns(node)]
    return parameters + [{places[id(found)]: altered(found.value)} for found in constants_of([node])]


def is_raises(node):
    """Whether a statement is a block that has to raise."""
    return isinstance(node, ast.With) and any(
        isinstance(item.context_expr, ast.Call) and getattr(item.context_expr.func, "attr", "") in RAISES for item in node.items)


def all_raise(node):
    """Whether a case demands errors alone."""
    return any(map(is_raises, ast.walk(node))) and not any(True for _ in checks(node))


def parameter_columns(node):
    """Returns the constants of the last column of every `parametrize`: by custom what is expected."""
    for decorator in getattr(node, "decorator_list", ()):
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "attr", "") == "parametrize" and len(decorator.args) > 1:
            rows = getattr(decorator.args[1], "elts", [])
            yield constants_of([row.elts[-1] if isinstance(row, (ast.Tuple, ast.List)) and row.elts else row for row in rows])


def checks(node):
    """Returns the expressions that the assertions within a statement demand."""
    for found in ast.walk(node):
        if isinstance(found, ast.Assert):
            yield from conjuncts(found.test)
        elif isinstance(found, ast.Expr) and isinstance(found.value, ast.Call) and getattr(found.value.func, "attr", "").startswith("assert"):
            yield found.value


def conjuncts(test):
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from conjuncts(value)
    else:
        yield test


class Site:
    """Constants of one comparison that make up its expectation."""

    def __init__(self, constants, ordered=False):
        self.constants, self.ordered = constants, ordered

    def probe(self, places, repeats):
        if self.ordered:
            changes = [{places[id(found)]: extreme(found.value, sign) for found in self.constants} for sign in (-1, 1)]
            return Probe(changes, every=False)
        changes = [{places[id(found)]: altered(found.value) for found in self.constants} for _ in range(repeats)]
        return Probe(changes, every=True)


def sites_of(check):
    """Returns the sites of one demand."""
    if isinstance(check, ast.Compare):
        return comparison_sites(check)
    if isinstance(check, ast.Call) and getattr(check.func, "attr", "").startswith("assert"):
        neutral = [constant for argument in check.args if is_neutral(argument) for constant in constants_of([argument])]
        return [Site(neutral or constants_of(check.args))] if neutral or constants_of(check.args) else []
    return []


def comparison_sites(check):
    sides = [check.left] + check.comparators
    ordered = any(isinstance(operator, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for operator in check.ops)
    if any(isinstance(operator, (ast.NotEq, ast.IsNot, ast.NotIn)) for operator in check.ops):
        return []
    expected = next((found for found in (constants_of([side]) for side in reversed(sides) if is_neutral(side)) if found), None)
    expected = expected or next((found for found in (constants_of([side]) for side in reversed(sides)) if found), None)
    sites = [Site(expected, ordered)] if expected else []
    for side in sides:
        for found in ast.walk(side):
            if isinstance(found, ast.BinOp) and isinstance(found.op, ast.Sub):
                sites += [Site(constants_of([part]), ordered=True) for part in (found.left, found.right)
                          if is_neutral(part) and constants_of([part])]
    return sites


def is_neutral(node):
    """Whether an expression calls nothing but well-known functions of libraries."""
    calls = [found.func for found in ast.walk(node) if isinstance(found, ast.Call)]
    return all((getattr(function, "attr", None) or getattr(function, "id", None)) in NEUTRAL for function in calls)


def constants_of(nodes):
    return [found for node in nodes for found in ast.walk(node) if isinstance(found, ast.Constant) and is_alterable(found.value)]


def is_alterable(value):
    return value is None or isinstance(value, (bool, int, float, str, bytes))


def altered(value):
    """Returns another value of the same kind and about the same size."""
    if value is None:
        return random.randint(1, 9)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + random.choice((-1, 1)) * random.randint(1, max(9, abs(value) // 3))
    if isinstance(value, float):
        return value * random.choice((0.5, 1.5, 2.5)) + random.choice((-1.0, 1.0)) * random.randint(1, 9)
    if isinstance(value, str):
        return altered_text(value)
    return bytes(altered_text(value.decode("latin-1")), "latin-1")


def altered_text(text):
    if not text:
        return random.choice("aeiou")
    at = random.randrange(len(text))
    others = "0123456789" if text[at].isdigit() else "abcdefghijklmnopqrstuvwxyz"
    return text[:at] + random.choice([letter for letter in others if letter != text[at].lower()]) + text[at + 1:]


def extreme(value, sign):
    """Returns a value of the same kind that lies beyond all that a solution is likely to give."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return type(value)(sign * random.randint(10 ** 9, 10 ** 12))
    return altered(value)


def changed(tree, change):
    """Returns a text with the constants at the places of a change replaced.

    `None` turns an assertion into its opposite, and empties a block that has to raise.
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
