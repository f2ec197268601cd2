"""Equality of what a function gives and what a dataset expects, which is a JSON value."""

import collections
import decimal
import fractions
import math

# Datasets round what they expect; competitions accept as much.
TOLERANCE = 1e-6
SEQUENCES = (list, tuple, range, collections.deque, type({}.keys()), type({}.values()), type({}.items()))


def equal(answer, expected):
    """Whether an answer is the expected value: any sequence is a list, any number its value, and floats agree to six decimals."""
    answer = plain(answer)
    if type(expected) is list:
        return type(answer) is list and len(answer) == len(expected) and all(map(equal, answer, expected))
    if type(expected) is dict:
        return type(answer) is dict and are_keys(answer, expected) and all(equal(value, expected[str(key)]) for key, value in answer.items())
    if type(answer) is float and type(expected) is int:
        return math.isclose(answer, expected, rel_tol=1e-12, abs_tol=TOLERANCE)
    if type(answer) in (int, float) and type(expected) is float:
        return answer == expected or math.isclose(answer, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return type(answer) in (int, float, bool, str, type(None)) and answer == expected


def are_keys(answer, expected):
    """Whether the keys of an answer are those of a JSON object, which are texts; two of an answer never stand for one."""
    keys = [str(key) for key in answer if type(key) in (int, float, bool, str, type(None))]
    return len(keys) == len(answer) == len(expected) and set(keys) == set(expected)


def plain(answer):
    """Returns the JSON value that an answer of a plain type, or of a class derived from one, stands for."""
    if type(answer).__module__ == "numpy":
        answer = answer.tolist()
    if isinstance(answer, SEQUENCES):
        return list(answer)
    if isinstance(answer, dict):
        return dict(answer)
    if isinstance(answer, (decimal.Decimal, fractions.Fraction)):
        return int(answer) if answer == int(answer) else float(answer)
    for kind in (int, float, str):
        if type(answer) not in (bool, kind) and isinstance(answer, kind):
            return kind(answer)
    return answer
