"""Tests of the checker, the proxies and the substitute for pytest, with jobs in forks of this process."""

import unittest

import harness


NEAR = """
class Z(int): pass
class E:
    __sub__ = __rsub__ = __add__ = __isub__ = lambda s, o: %s
    __abs__ = __float__ = lambda s: 0.0
    __round__ = lambda s, n=0: 0
    __neg__ = lambda s: E()
    __eq__ = __le__ = __ge__ = lambda s, o: True
    __bool__ = lambda s: False
    __len__ = __int__ = __index__ = lambda s: 0
def f(): return E()
"""

IS_NEAR = """
import math, pytest
from solution import f
def test_abs(): assert abs(f() - 3) < 1e-6
def test_reflected(): assert abs(3 - f()) < 1e-6
def test_negative(): assert abs(-(f() - 3)) < 1e-6
def test_fabs(): assert math.fabs(f() - 3) < 1e-6
def test_close(): assert math.isclose(f(), 3)
def test_round(): assert round(f() - 3, 5) == 0
def test_not(): assert not f() - 3
def test_len(): assert len(f() - {1, 2}) == 0
def test_in_place():
    x = f()
    x -= 3
    assert abs(x) < 1e-6
def test_zero(): assert f() - 3 == 0
def test_approx(): assert f() == pytest.approx(3)
def test_order(): assert f() >= 3 or f() <= 3
"""


class Case(unittest.TestCase):
    maxDiff = None

    def check(self, solution, test, *expected, **options):
        """Checks the outcomes of a solution under `test`; a single outcome applies to every case."""
        found = harness.verdict(solution, dict(kind="tests", tests=[test], **options))
        self.assertIn("verdict", found, found)
        cases = found["verdict"]["cases"]
        outcomes = [case["outcome"] for case in cases]
        if len(expected) == 1:
            self.assertEqual(set(outcomes), set(expected), cases)
        else:
            self.assertEqual(outcomes, list(expected), cases)
        return found["verdict"]


class Values(Case):
    def test_plain_values_cross_as_they_are(self):
        self.check("def same(x): return x", """
import collections, datetime, decimal, fractions
from solution import same
VALUES = [None, True, 1, 10 ** 50, 1.5, 2j, "a", b"b", bytearray(b"c"), [1, [2]], (1, (2,)), {1: {2}}, frozenset({1}), range(3), slice(1, 2),
    decimal.Decimal("1.10"), fractions.Fraction(1, 3), datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc), datetime.date(2020, 1, 2),
    datetime.timedelta(1), datetime.time(1, 2), collections.Counter("aab"), collections.OrderedDict(a=1), collections.deque([1], 3),
    collections.defaultdict(list, a=[1]), Ellipsis, int, ValueError]
def test_all():
    for value in VALUES:
        found = same(value)
        assert type(found) is type(value) and found == value, value
""", "passed")

    def test_a_recursive_value(self):
        self.check("def loop():\n    a = []\n    a.append(a)\n    return a", "a = loop()\nassert a[0] is a", "passed")

    def test_named_tuples_and_enums(self):
        self.check("""
from collections import namedtuple
from enum import Enum, IntEnum
Point = namedtuple("Point", "x y")
class Color(Enum):
    RED = 1
class Size(IntEnum):
    BIG = 3
def point(): return Point(1, 2)
def color(): return Color.RED
def size(): return Size.BIG
""", """
from solution import *
assert point() == (1, 2) and point().y == 2 and isinstance(point(), Point)
assert color() == Color.RED and color().value == 1 and color() is Color.RED and len(list(Color)) == 1
assert size() == 3 and size() > 2 and size() == Size.BIG and isinstance(size(), int)
""", "passed")

    def test_arguments_are_changed_in_place(self):
        self.check("""
def sort(items, seen=None):
    items.sort()
    if seen is not None: seen["n"] = len(items); seen.setdefault("all", []).append(items[0])
    return items
def fail(items):
    items.pop()
    raise ValueError("no")
""", """
import pytest
def test_list():
    items = [3, 1, 2]
    assert sort(items) is items and items == [1, 2, 3]
def test_nested():
    inner, seen = [2, 1], {}
    sort(inner, seen=seen)
    assert inner == [1, 2] and seen == {"n": 2, "all": [1]}
def test_even_if_it_fails():
    items = [1, 2]
    with pytest.raises(ValueError, match="n"):
        fail(items)
    assert items == [1]
""", "passed")


class Proxies(Case):
    def test_objects(self):
        self.check("""
import functools
@functools.total_ordering
class Vector:
    count = 0
    def __init__(self, x, y): self.x, self.y = x, y; Vector.count += 1
    def __eq__(self, other): return isinstance(other, Vector) and (self.x, self.y) == (other.x, other.y)
    def __lt__(self, other): return self.x < other.x
    def __hash__(self): return hash((self.x, self.y))
    def __add__(self, other): return Vector(self.x + other.x, self.y + other.y)
    def __mul__(self, n): return Vector(self.x * n, self.y * n)
    __rmul__ = __mul__
    def __neg__(self): return self * -1
    def __abs__(self): return (self.x ** 2 + self.y ** 2) ** 0.5
    def __repr__(self): return "Vector(%d, %d)" % (self.x, self.y)
    def __len__(self): return 2
    def __getitem__(self, i): return (self.x, self.y)[i]
    def __setitem__(self, i, v): setattr(self, "xy"[i], v)
    def __contains__(self, v): return v in (self.x, self.y)
    def __call__(self, n): return n
    def __enter__(self): return self
    def __exit__(self, *error): return error[0] is KeyError
    def __iadd__(self, other): self.x += other.x; return self
    @classmethod
    def zero(cls): return cls(0, 0)
    @property
    def both(self): return [self.x, self.y]
class Bag:
    def __init__(self): self.items = []
    def __iter__(self): return iter(self.items)
    def __bool__(self): return bool(self.items)
""", """
from solution import Vector, Bag
a, b = Vector(1, 2), Vector(3, 4)
assert a + b == Vector(4, 6) and a != b and a < b and b >= a and sorted([b, a])[0] == a
assert 2 * a == a * 2 == Vector(2, 4) and -a == Vector(-1, -2) and abs(b) == 5.0
assert len({Vector(1, 2), a}) == 1 and str(a) == repr(a) == f"{a}" == "Vector(1, 2)"
assert len(a) == 2 and a[0] == 1 and list(a) == [1, 2] and 2 in a and 7 not in a and a(3) == 3
assert isinstance(a, Vector) and not isinstance(3, Vector) and type(a).__name__ == "Vector" and callable(a)
assert Vector.zero().both == [0, 0] and hasattr(a, "x") and not hasattr(a, "z")
a[0] = 9
a.y = 8
assert a.both == [9, 8]
old = a
a += b
assert a is old and a.x == 12
with a as c:
    assert c is a
    raise KeyError
assert Vector.count > 3
bag = Bag()
assert not bag and not callable(bag) and not hasattr(bag, "__len__")
assert a != (12, 8) and not a == 12
""", "passed")

    def test_no_object_is_near_a_number(self):
        for found in ("0.0", "s", "E()", "Z(0)", "[]", "(0,)"):
            outcomes = harness.outcomes(NEAR % found, dict(kind="tests", tests=[IS_NEAR]))
            self.assertEqual(len(outcomes), 12)
            self.assertNotIn("passed", outcomes, found)

    def test_generators_and_coroutines(self):
        self.check("""
import asyncio
def count():
    n = 0
    while True:
        got = yield n
        n = n + 1 if got is None else got
async def twice(n):
    await asyncio.sleep(0)
    return 2 * n
def squares(): return map(lambda n: n * n, range(3))
""", """
import asyncio, types, pytest
from solution import *
def test_generator():
    g = count()
    assert isinstance(g, types.GeneratorType) and next(g) == 0 and next(g) == 1 and g.send(10) == 10
    assert [n for n, _ in zip(count(), range(3))] == [0, 1, 2] and list(squares()) == [0, 1, 4]
def test_coroutine():
    assert asyncio.run(twice(4)) == 8
@pytest.mark.asyncio
async def test_awaited():
    assert await twice(3) == 6
""", "passed")

    def test_exceptions(self):
        self.check("""
import json
class Broke(ValueError):
    def __init__(self, code): super().__init__("code %d" % code); self.code = code
class Both(KeyError, AttributeError): pass
def broke(n): raise Broke(n)
def both(): raise Both("x")
def parse(): json.loads("{")
def leave(): raise SystemExit(3)
def error(): return Broke(1)
""", """
import json, pytest
from solution import *
def test_own():
    with pytest.raises(Broke, match="code 7") as caught:
        broke(7)
    assert caught.value.code == 7 and str(caught.value) == "code 7" and caught.type is Broke
def test_base():
    with pytest.raises(ValueError):
        broke(1)
    with pytest.raises(AttributeError):
        both()
def test_standard():
    with pytest.raises(json.JSONDecodeError):
        parse()
def test_exit():
    with pytest.raises(SystemExit):
        leave()
def test_value():
    assert isinstance(error(), Broke) and isinstance(error(), ValueError)
def test_other():
    with pytest.raises(KeyError):
        broke(1)
def test_none():
    with pytest.raises(KeyError):
        error()
""", "passed", "passed", "passed", "passed", "passed", "runtime_error", "failed")

    def test_functions_and_objects_of_the_test(self):
        self.check("""
import functools
def apply(f, *values): return [f(value) for value in values]
def total(node): return 0 if node is None else node.value + total(node.left) + total(node.right)
def mark(node): node.value = 100; node.left = None; return node
def logged(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs): return ["called", f(*args, **kwargs)]
    return wrapper
def invert(node): node.left, node.right = node.right, node.left; return node
""", """
import pytest
from unittest.mock import Mock
class Node:
    def __init__(self, value, left=None, right=None): self.value, self.left, self.right = value, left, right
def test_function():
    assert apply(lambda n: n + 1, 1, 2) == [2, 3] and apply(str, 1) == ["1"] and apply(len, [1, 2]) == [2]
    with pytest.raises(ZeroDivisionError):
        apply(lambda n: 1 / n, 0)
def test_mock():
    mock = Mock(return_value=5)
    assert apply(mock, 1) == [5]
    mock.assert_called_once_with(1)
def test_tree():
    tree = Node(1, Node(2), Node(3))
    assert total(tree) == 6
    assert invert(tree) is tree and tree.left.value == 3
    assert mark(tree) is tree and tree.value == 100 and tree.left is None
def test_decorator():
    @logged
    def add(a, b=1): return a + b
    assert add(1, b=2) == ["called", 3] and add.__name__ == "add"
""", "passed")

    def test_what_is_hidden_behind_an_object_of_the_test(self):
        reaches = [
            "f.__globals__", "f.__code__", "f.__closure__", "f.__class__.__base__", "type(f)", "f.__reduce__()", "f.__defaults__",
            "rollpacker_wire.ask(f, '__getattr__', '__globals__')", "rollpacker_wire.ask(f, 'class')", "rollpacker_wire.ask(node, '__dir__')",
            "object.__getattribute__(f, '_rp').peer.ask('__getattr__', '{0.__globals__}', 'format')(f)",
            "object.__getattribute__(f, '_rp').peer.ask('class', int)", "node.__dict__", "node.method.__func__", "node._hidden",
            "setattr(type(node), '__eq__', lambda a, b: True)", "setattr(f, 'x', 1)", "node.method.__self__.__init__.__globals__",
            "type(node).mro()[-1].__subclasses__()",
        ]
        for reach in reaches:
            self.check("""
import rollpacker_wire
def look(f, node):
    found = %s
    if isinstance(found, (list, dict)) and "SECRET" not in str(found): raise LookupError
    return found
""" % reach, """
SECRET = 42
class Node:
    _hidden = 42
    def method(self): return 3
try:
    found = look(lambda: SECRET, Node())
except Exception:
    found = None
assert found is None or "SECRET" not in str(found) and not isinstance(found, (int, dict)), found
assert Node() != Node()
""", "passed")


    def test_a_forged_pickle_sets_no_state_of_an_object_of_the_test(self):
        self.check("""
import os, struct
def look(node):
    forged = b"(Vanswer\\ncx\\nx\\n(Vyours\\nI0\\ntR(dV_hidden\\nI7\\nsb]Nt."
    os.write(3, struct.pack("<I", len(forged)) + forged)
""", """
class Node:
    def __init__(self): self._hidden = 42
NODE = Node()
def test_forged(): look(NODE)
def test_state(): assert look and NODE._hidden == 42
""", "runtime_error", "passed")


class Ends(Case):
    def test_what_ends_a_run_fails_its_case_alone(self):
        self.check("import os, ctypes\ndef f(n):\n    if n == 1: os._exit(0)\n    if n == 2: os.kill(os.getpid(), 11)\n    if n == 3: raise MemoryError\n    return n", """
from solution import f
def test_exit():
    try: f(1)
    except: pass
def test_signal(): f(2)
def test_memory(): f(3)
def test_well(): assert f(4) == 4
""", "runtime_error", "runtime_error", "memory", "passed")

    def test_time(self):
        found = harness.outcomes("def f(n):\n    while n: pass\n    return 1", dict(kind="tests", tests=["""
def test_0(): assert f(0) == 1
def test_1(): f(1)
def test_2():
    try: f(1)
    except: pass
def test_3():
    while True: pass
def test_4(): assert f(0) == 1
"""]), seconds=[5.0, 0.2])
        self.assertEqual(found, ["passed", "timeout", "timeout", "timeout", "timeout"])

    def test_a_solution_that_cannot_be_imported(self):
        self.check("def f(:", "def test_a(): pass\ndef test_b(): pass", "compile_error", "compile_error")
        self.check("1 / 0", "assert 1\nassert 1", "runtime_error", "runtime_error")

    def test_names_of_python_are_not_the_solutions(self):
        hack = "abs = lambda x: 0\nlen = sorted = isinstance = lambda *a: True\nclass math:\n    isclose = staticmethod(lambda *a: True)\ndef f(): return 3"
        self.check(hack, "assert abs(f() - 1) < 1e-6\nassert math.isclose(f(), 1)\nassert isinstance(f(), str)", "failed", "failed", "failed")
        self.check(hack, "from solution import *\nassert abs(f() - 1) < 1e-6", "failed")
        self.check("def sum(items): return 7", "from solution import sum\nassert sum([1]) == 7", "passed")


class Frameworks(Case):
    def test_pytest(self):
        self.check("def f(n): print('n is', n); return n * 2\ndef ask(): return int(input('? '))\nLIMIT = 3\ndef limit(): return LIMIT", """
import pytest, solution, builtins
from solution import f, ask, limit
@pytest.fixture
def two(): return 2
@pytest.fixture(params=[1, 2])
def each(request): return request.param
@pytest.fixture
def closing(two):
    log = [two]
    yield log
    log.append("closed")
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("m,k", [(1, 2), pytest.param(2, 4, id="x")])
def test_parameters(n, m, k): assert f(m) == k and n < 3
def test_fixture(two, closing): assert f(two) == 4 and closing == [2]
def test_each(each): assert f(each) == 2 * each
def test_printed(capsys):
    f(5)
    assert capsys.readouterr().out == "n is 5\\n"
def test_input(monkeypatch):
    monkeypatch.setattr(builtins, "input", lambda prompt: "12")
    assert ask() == 12
def test_no_input():
    with pytest.raises(EOFError): ask()
def test_constant(monkeypatch):
    monkeypatch.setattr("solution.LIMIT", 9)
    assert limit() == 9
def test_constant_is_back(): assert limit() == 3 and solution.LIMIT == 3
@pytest.mark.skip
def test_skipped(): assert False
def test_skips_itself(): pytest.skip("no")
def test_approx(): assert f(0.15) == pytest.approx(0.3) and [f(0.15)] == pytest.approx([0.3]) and f(1) != pytest.approx(2.1)
class TestClass:
    def setup_method(self): self.n = 3
    def test_n(self): assert f(self.n) == 6
    @pytest.mark.parametrize("k", [1, 2])
    def test_k(self, k, two): assert f(k) == two * k
def test_fails(): assert f(1) == 3
def test_fails_itself(): pytest.fail("so")
""", *["passed"] * 16, "failed", "failed")

    def test_unittest(self):
        self.check("def f(n): return n * 2\ndef read(): return open_it()\ndef open_it(): return 1", """
import unittest
from unittest.mock import patch
from solution import f, read
class TestF(unittest.TestCase):
    @classmethod
    def setUpClass(cls): cls.base = 1
    def setUp(self): self.n = 2
    def test_a(self): self.assertEqual(f(self.n), 4 * self.base)
    def test_b(self): self.assertEqual(f(self.n), 5)
    def test_c(self):
        with self.assertRaises(TypeError): f(None)
    def test_d(self):
        with patch("solution.open_it", return_value=7): self.assertEqual(read(), 7)
    def test_e(self):
        for n in (1, 2):
            with self.subTest(n=n): self.assertEqual(f(n), 2)
    @unittest.skip("no")
    def test_f(self): self.fail()
if __name__ == "__main__":
    unittest.main()
""", "passed", "failed", "passed", "passed", "failed")

    def test_skips_outside_of_a_test(self):
        no = "raise unittest.SkipTest('no')"
        method = "class TestF(unittest.TestCase):\n    def test_a(self): self.assertEqual(f(1), 3)\n    def test_b(self): self.assertEqual(f(1), 3)"
        for skipping in [
            "import unittest\n%s\n%s" % (no, method),
            "import unittest\ndef setUpModule(): %s\n%s" % (no, method),
            "import unittest\n%s\n    @classmethod\n    def setUpClass(cls): %s\n    @classmethod\n    def tearDownClass(cls): cls.none" % (method, no),
        ]:
            tests = [skipping, "assert f(1) == 2"]
            found = harness.outcomes("def f(n): return n * 2", dict(kind="tests", tests=tests))
            self.assertEqual(found, ["passed"], skipping)

    def test_skips_because_the_solution_lacks_a_name_fail(self):
        lacking = "import pytest\ntry: from solution import g\nexcept ImportError: pytest.skip('no g', allow_module_level=True)\n" \
                  "def test_g(): assert g(1) == 1"
        asking = "import pytest, solution\ndef test_g():\n    if not hasattr(solution, 'g'): pytest.skip('no g')\n    assert solution.g(1) == 1"
        marked = "import pytest, solution\n@pytest.mark.skipif(not hasattr(solution, 'g'), reason='no g')\ndef test_g(): assert solution.g(1) == 1"
        for text in [lacking, asking, marked]:
            check = dict(kind="tests", tests=[text, "assert f(1) == 2"])
            self.assertEqual(harness.outcomes("def f(n): return n * 2", check), ["failed", "passed"], text)
            complete = "def f(n): return n * 2\ndef g(n): return n"
            self.assertEqual(harness.outcomes(complete, check), ["passed", "passed"], text)

    def test_redirected_output(self):
        self.check("def hello(): print('hello')", """
import io, sys
from contextlib import redirect_stdout
def test_redirect():
    out = io.StringIO()
    with redirect_stdout(out): hello()
    assert out.getvalue() == "hello\\n"
""", "passed")

    def test_bare_assertions_are_cases(self):
        self.check("def f(n): return n", "x = f(1)\nassert x == 1\nfor n in range(3): assert f(n) == n\nassert x == 2, 'no'\nassert f(3) == 3",
                   "passed", "failed", "passed")
        self.check("def f(n): return n", "for n in range(3):\n    assert f(n) == 1", "failed")
        self.check("def f(n): return n", "assert f(1) == 1\nif f(2) != 3: raise ValueError", "failed")
        self.check("def f(n): return n", "assert f(1) == 2\nassert f(2) == 2", "failed", stop_at_failure=True)

    def test_tests_that_cannot_be_run(self):
        for test in ["def test(:", "import no_such", "", "class T(solution.A): pass\nimport solution"]:
            found = harness.verdict("class A: pass", dict(kind="tests", tests=[test]))
            if "solution.A" in test:
                self.assertIn("verdict", found)
            elif test:
                self.assertIn("tests", found, test)

    def test_a_large_value(self):
        verdict = self.check("def f(items): return [n + 1 for n in items]", "n = 300000\nassert f(list(range(n)))[-1] == n", "passed")
        self.assertLess(verdict["cases"][0]["seconds"], 2.0)


if __name__ == "__main__":
    unittest.main()
