"""Equality of the result of a function and the expected JSON value of a dataset."""

import collections
import decimal
import fractions
import math

# Datasets round the expected values, and competitions accept this tolerance.
TOLERANCE = 1e-6
SEQUENCES = (list, tuple, range, collections.deque, type({}.keys()), type({}.values()), type({}.items()))


def equal(answer, expected):
    """Returns true if an answer is the expected value. Any sequence counts as a list, numbers are compared by value, and floats need to
    agree to six decimals.
    """
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
    """Returns true if the keys of an answer correspond one to one to those of a JSON object, which are texts."""
    keys = [str(key) for key in answer if type(key) in (int, float, bool, str, type(None))]
    return len(keys) == len(answer) == len(expected) and set(keys) == set(expected)


def plain(answer):
    """Returns the JSON value of an answer whose type is plain or derived from a plain type."""
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
