"""Tests of the second judgement: the tests run in the process of the solution, and must notice wrong expectations to be believed."""

import ast
import unittest

import harness
from test_checker import Case

probes = harness.modules["probes"]
reasons = harness.modules["reasons"]

ANY = """
class Any:
    def __init__(self, *a): pass
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = lambda s, o: True
    __hash__ = lambda s: 5
    __sub__ = __rsub__ = lambda s, o: 0
    __abs__ = __float__ = lambda s: 0.0
"""


class Honest(Case):
    def test_identity_copies_and_reflection(self):
        self.check("""
from dataclasses import dataclass
@dataclass
class Point:
    x: int
    y: int = 0
def make(): return Point(1)
""", """
import copy, dataclasses, inspect, pickle
from solution import Point, make
def test_type(): assert type(make()) is Point and inspect.isclass(Point)
def test_copy(): assert copy.deepcopy(make()) == Point(1, 0) and pickle.loads(pickle.dumps(make())).x == 1
def test_dict(): assert dataclasses.asdict(make()) == {"x": 1, "y": 0}
def test_source(): assert "Point(1)" in inspect.getsource(make)
""", "passed")

    def test_state_of_the_process(self):
        self.check("""
import logging, os, random, sys
def draw(): return random.random()
def home(): return os.environ["PLACE"]
def say(): print("a"); print("b", file=sys.stderr); logging.getLogger("x").warning("careful")
def count(path):
    with open(path) as file: return len(file.readlines())
""", """
import random
from unittest.mock import patch
from solution import count, draw, home, say
def test_seed():
    random.seed(3); a = draw(); random.seed(3)
    assert a == draw()
def test_environment(monkeypatch):
    monkeypatch.setenv("PLACE", "here")
    assert home() == "here"
def test_patched():
    with patch("solution.random.random", return_value=4): assert draw() == 4
def test_printed(capsys, caplog):
    say()
    assert capsys.readouterr() == ("a\\n", "b\\n") and "careful" in caplog.text
def test_file(tmp_path):
    (tmp_path / "a").write_text("a\\nb\\n")
    assert count(tmp_path / "a") == 2
""", "passed")

    def test_a_wrong_solution_fails_beside_its_tests_too(self):
        self.check("class Stack(list):\n    def push(self, x): pass", "s = Stack()\ns.push(1)\nassert s == [1]", "failed")

    def test_a_case_that_demands_nothing_but_to_run(self):
        self.check("class A: pass", "from solution import A\nclass B(A): pass\ndef test_b(): B()", "passed")


class Liars(Case):
    def test_an_object_that_equals_everything(self):
        for test in ["assert Any(3) == 3", "assert abs(Any(1) - 3) < 1e-6", "assert 3 in Any()", "x = Any()\nassert x > 2 and x < 5",
                     "from solution import Any\nexpected = [1, 2]\ndef test_a(): assert Any() == expected"]:
            self.check(ANY, test, "failed")

    def test_a_function_whose_objects_pose_as_values(self):
        source = ANY + "def root(xs): return Any()"
        self.check(source, "import os\ndef test_a():\n    x = root([1, 2])\n    assert abs(1 + 2 * x) < 1e-4", "failed")

    def test_a_report_of_its_own(self):
        forged = "import os\nclass A:\n    def __init__(self):\n        os.write(3, b'{\"case\": \"test_a\", \"outcome\": \"passed\"}\\n{\"end\": true}\\n')\n        os._exit(0)"
        outcomes = harness.outcomes(forged, dict(kind="tests", tests=["from solution import A\ndef test_a(): assert A().x == 3"]))
        self.assertNotIn("passed", outcomes)

    def test_expectations_that_are_read_off_the_tests(self):
        source = "import sys\nclass A:\n    def __init__(self): self.x = max(filter(lambda c: type(c) is int, sys._getframe(1).f_code.co_consts), default=0)"
        self.check(source, "from solution import A\ndef test_a(): assert A().x == 3", "failed")


    def test_tests_that_the_solution_skips(self):
        tests = "import random, unittest\nfrom solution import f, g\nclass TestF(unittest.TestCase):\n" \
                "    def test_a(self):\n        random.seed(1)\n        first = random.random()\n        random.seed(1)\n" \
                "        self.assertEqual(f(), first)\n    def test_b(self): self.assertEqual(g(1), 2)\n"
        for g, expected in [
            ("def g(n): return n + 1", ["passed", "passed"]),
            ("def g(n): raise unittest.SkipTest('no')", ["failed"]),
            ("def g(n): unittest.TestCase().skipTest('no')", ["failed"]),
            ("@unittest.skip('no')\ndef g(n): pass", ["failed"]),
            ("from unittest import skip as s\n@s('no')\ndef g(n): pass", ["failed"]),
            ("def g(n): raise [c for c in Exception.__subclasses__() if c.__name__.startswith('Ski')][0]('no')", ["failed"]),
        ]:
            solution = "import random, unittest\ndef f(): return random.random()\n" + g
            check = dict(kind="tests", tests=[tests], stop_at_failure=True)
            self.assertEqual(harness.outcomes(solution, check), expected, g)


class Vacuous(Case):
    def test_tests_that_never_ask_the_solution(self):
        verdict = self.check("x = 1", "assert sum([1, 2, 3]) == 6", "failed")
        self.assertIn("no test asks", verdict["cases"][0]["message"])

    def test_a_builtin_name_is_the_solutions_where_it_is_what_is_tested(self):
        self.check("def sum(a, b): return a + b", "assert sum(10, 15) == 25", "passed")
        self.check("def sorted(x): return 5", "assert sorted([2, 1]) == [1, 2]", "failed")
        self.check("def set(x): return 1\ndef f(x): return 0", "assert set(f(1)) == set([1, 2])", "failed")

    def test_a_case_that_needs_no_solution_does_not_count(self):
        self.check("def f(): return 1", "from unittest import TestCase\nassert True\nassert f() == 1", "passed")


class Probes(unittest.TestCase):
    def changes(self, text):
        tree = ast.parse(text)
        found = probes.probes(tree, tree.body[-1])
        return [[ast.unparse(probes.changed(tree, change)) for group in groups for change in group] for groups in found]

    def test_expectations_change_and_arguments_do_not(self):
        (texts,) = self.changes("def test_a(): assert f(1234567) == [5, 'x']")
        for text in texts:
            self.assertIn("f(1234567)", text)
            self.assertNotIn("[5, 'x']", text)

    def test_what_is_subtracted_is_probed_beside_the_tolerance(self):
        texts = self.changes("def test_a(): assert abs(f(1) - 3) < 1e-06")
        self.assertEqual(len(texts), 2)
        self.assertTrue(not any("- 3)" in text for text in texts[0]) and all("- 3)" in text for text in texts[1]))

    def test_parameters_are_probed_where_the_assertion_has_no_constants(self):
        (texts,) = self.changes("@pytest.mark.parametrize('n, k', [(1234567, 5)])\ndef test_a(n, k): assert f(n) == k")
        self.assertTrue(all("1234567" in text and "5)]" not in text for text in texts), texts)

    def test_a_table_that_is_used_once_is_what_is_expected(self):
        (texts,) = self.changes("TABLE = [1234567]\ndef test_a(): assert f() == TABLE")
        self.assertTrue(all("1234567" not in text for text in texts), texts)

    def test_assertions_are_inverted_where_nothing_is_expected(self):
        (texts,) = self.changes("def test_a():\n    a = f()\n    assert a is g(a)")
        self.assertIn("assert not a is g(a)", texts[0])

    def test_indices_and_tolerances_are_no_expectations(self):
        (texts,) = self.changes("def test_a(): assert f()[1234567] == pytest.approx(5.0, rel=0.25)")
        self.assertTrue(all("1234567" in text and "0.25" in text and "5.0" not in text for text in texts), texts)

    def test_blocks_that_raise_are_emptied(self):
        (texts,) = self.changes("def test_a():\n    with pytest.raises(ValueError):\n        f(x)")
        self.assertEqual(texts, ["def test_a():\n    with pytest.raises(ValueError):\n        pass"])


class Reasons(unittest.TestCase):
    def check(self, text, *expected):
        self.assertEqual(reasons.reasons(ast.parse(text)), set(expected), text)

    def test_reasons_are_read_off_the_tests(self):
        self.check("from solution import add\ndef test_a(): assert add(1, 2) == 3")
        self.check("from solution import Point\ndef test_a(): assert Point(1).x == 1", reasons.CLASS)
        self.check("import solution\nsolution.Point", reasons.CLASS)
        self.check("def test_a(tmp_path): f(tmp_path)", reasons.STATE)
        self.check("import random\nrandom.seed(1)", reasons.STATE)
        self.check("import random, math, copy\nrng = random.Random(42)\nassert f(copy.deepcopy([1]))")
        self.check("class Node: pass\nassert f(Node())", reasons.HELPER)
        self.check("assert isinstance(error.__cause__, KeyError)", reasons.COPY)
        self.check("import numpy as np\nassert f(np.ones(3)) == 3", reasons.LIBRARY)
        self.check("import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(f(1), 2)")

    def test_solutions_that_reflect_are_not_judged_beside_their_tests(self):
        for source in ["import gc", "import sys\nsys._getframe(1)", "exec('')", "f.__code__", "getattr(f, '__globals__')", "class A:\n    __eq__ = None"]:
            self.assertIsNotNone(reasons.veto(source, {reasons.STATE}), source)
        self.assertIsNone(reasons.veto("class A:\n    def __eq__(self, o): return self.x == o.x", {reasons.CLASS}))


class Equality(unittest.TestCase):
    def test_values_that_stand_for_what_is_expected(self):
        import collections
        import decimal
        import enum
        import fractions

        equal = harness.modules["equality"].equal
        size = enum.IntEnum("Size", "BIG")
        for answer, expected in [
                ((1, 2), [1, 2]), (range(3), [0, 1, 2]), (collections.deque([1]), [1]), (collections.Counter("aab"), {"a": 2, "b": 1}), ({1: 2}, {"1": 2}),
                (decimal.Decimal("0.5"), 0.5), (fractions.Fraction(1, 3), 0.333333), (fractions.Fraction(4, 2), 2), (size.BIG, 1), (1 / 3, 0.333333),
                (10 ** 30, 10 ** 30), (None, None)]:
            self.assertTrue(equal(answer, expected), (answer, expected))
        for answer, expected in [
                ([1], [1, 2]), ([2, 1], [1, 2]), ({"a": 1}, {"a": 1, "b": 1}), (0.334, 0.333333), (10 ** 30 + 1, 10 ** 30), ("1", 1), (None, 0), ({1, 2}, [1, 2]),
                (object(), None), (decimal.Decimal("0.6"), 0.5)]:
            self.assertFalse(equal(answer, expected), (answer, expected))
