"""Tests of decoys: objects that pose as values, with tests in the process of the solution."""

import ast
import unittest

import harness

decoys = harness.modules["decoys"]
approx = harness.modules["pytest_shim"].Approx


class Always:
    """Equals everything, contains everything, and lies on both sides of every number."""

    __eq__ = __contains__ = __lt__ = __le__ = __gt__ = __ge__ = lambda self, other: True
    __hash__ = None
    __sub__ = __rsub__ = lambda self, other: 0


class Sorted(list):
    def __eq__(self, other):
        return list(other) == sorted(other)


class Modulo:
    """A number modulo 7, which equals every seventh integer."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return (self.value - getattr(other, "value", other)) % 7 == 0


class Money:
    def __init__(self, amount):
        self.amount = amount

    def __eq__(self, other):
        return self.amount == getattr(other, "amount", other)

    def __lt__(self, other):
        return self.amount < getattr(other, "amount", other)

    def __sub__(self, other):
        return self.amount - other


def evaluate(text, **names):
    tree = decoys.instrumented(ast.parse(text, mode="eval"))
    return eval(compile(tree, "test", "eval"), dict(names, **decoys.NAMES))


class Comparisons(unittest.TestCase):
    def test_honest_comparisons_keep_their_values(self):
        for text, expected in [
                ("a == 3", True), ("3 == a", True), ("a == 4", False), ("a != 4", True), ("[a, 1] == [3, 1]", True), ("{'k': a} == {'k': 3}", True),
                ("a < 5", True), ("5 > a", True), ("a - 1", 2), ("a == Money(3)", True), ("m == 12", True), ("a is a", True),
                ("3 in [a]", True), ("1 < 2 <= 2", True), ("5 - 3", 2), ("2.0 == near", True), ("'b' in 'abc'", True)]:
            with self.subTest(text):
                found = evaluate(text, a=Money(3), m=Modulo(5), Money=Money, near=approx(2.0))
                self.assertEqual(found, expected)

    def test_objects_that_pose_are_found_out(self):
        for text in [
                "x == 3", "3 == x", "[x] == [3]", "{'k': x} == {'k': 'v'}", "(1, x) == (1, 2)", "3 in x", "x < 3", "x >= 3", "x - 3",
                "3 - x", "s == [1, 2, 3]"]:
            with self.subTest(text):
                self.assertRaises(decoys.Posing, evaluate, text, x=Always(), s=Sorted())

    def test_assertions_of_unittest_are_comparisons_too(self):
        case = unittest.TestCase()
        evaluate("case.assertEqual(a, 3)", case=case, a=Money(3))
        evaluate("case.assertAlmostEqual(0.1 + 0.2, 0.3, places=7)", case=case)
        for text in ["case.assertEqual(x, 3)", "case.assertIn(3, x)", "case.assertListEqual([x], [3])"]:
            self.assertRaises(AssertionError, evaluate, text, case=case, x=Always())

    def test_columns_do_not_tell_which_constant_was_changed(self):
        tree = decoys.instrumented(ast.parse("assert f(1) == 1234"))
        self.assertEqual({getattr(node, "col_offset", 0) for node in ast.walk(tree)}, {0})
