"""Tests of the comparison of the output of a program with the expected text."""

import time
import unittest

import harness

equal_output = harness.modules["equality"].equal_output


class Output(unittest.TestCase):
    def test_equal(self):
        for output, expected in [
            ("", "\n"), ("a \r\nb\n\n", "a\nb"), ("1 2  3", "1 2 3"), ("1\t2", "1 2"), ("0.3333333333333333\n", "0.333333333"), ("2.5", "2.500000"),
            ("2", "2.0"), ("2.0", "2"), ("1e-3", "0.001"), ("-.5", "-0.5"), ("3.", "3"), ("x 0.1", "x 0.10"), ("0.0", "-0.0"), ("nan", "nan"), ("inf", "inf"),
            ("1000000.1", "1000000.2"), (" x", " x"), ("1" * 500 + ".5", "1" * 500 + ".5"),
            ("0.00000012", "1.2e-7"), ("1e-7", "0.0"), ("0.0000001", "0"), ("0.1200000001", "0.12"), ("0.16666666666666666", "0.166667"), ("0.00000123", "0.000001"), ("1e300", "1.0e300"), ("10e307", "0.01e310"), ("7", "70e-1"), ("0.00000012001", "0.00000012"), ("-0.5000004", "-0.5"),
        ]:
            self.assertTrue(equal_output(output, expected), (output, expected))

    def test_unequal(self):
        for output, expected in [
            ("1", "2"), ("0.34", "0.333333333"), ("2.50001", "2.5"), ("10000000", "10000001"), ("10000000.0", "10000001"), ("1e9", "1000000001"),
            ("nan", "NaN"), ("nan", "1.0"), ("inf", "1e999"), ("1e999", "2e999"), ("1\n2", "1 2"), ("1 2", "1 2 3"), ("1\n\n2", "1\n2"), ("a", "A"),
            (" x", "x"), ("1_0.0", "10.0"), ("0x10", "16.0"), ("1,5", "1.5"), ("\u0661.5", "1.5"), ("", "0.0"), ("12", "1 2"), ("01", "1"),
            ("1" * 500 + ".5", "1" * 500 + ".6"), ("0.0", "0.00000012"), ("0", "1e-7"), ("0.0", "1e-8"), ("-0.00000012", "0.00000012"), ("0.1201", "0.12"),
            ("0.0", "0.000001"), ("0.0", "-0.0000012"), ("1e-5", "0.0"), ("0.0", "1" + "0" * 390 + "e-397"),
        ]:
            self.assertFalse(equal_output(output, expected), (output, expected))

    def test_the_time_is_linear(self):
        start = time.monotonic()
        self.assertTrue(equal_output("0.50 " * 300_000, "0.5 " * 300_000))
        self.assertFalse(equal_output("1" * 2_000_000 + ".5", "1" * 2_000_000 + ".6"))
        self.assertFalse(equal_output("a  b\n" * 300_000, "a b\n" * 300_000 + "c"))
        self.assertLess(time.monotonic() - start, 10)

    def test_a_program(self):
        case = {"stdin": "1 3\n", "expected_stdout": "0.333333333"}
        check = {"kind": "stdio", "cases": [case, dict(case, expected_stdout="0.34")], "prelude": True, "stop_at_failure": False}
        found = harness.verdict("a, b = map(int, input().split())\nprint(a / b)", check)
        self.assertEqual([case["outcome"] for case in found["verdict"]["cases"]], ["passed", "failed"], found)


if __name__ == "__main__":
    unittest.main()
