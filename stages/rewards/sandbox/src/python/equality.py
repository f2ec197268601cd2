"""Equality of the result of a function and the expected JSON value of a dataset, and of the output of a program and the expected text."""

import collections
import decimal
import fractions
import math
import re

# Datasets round the expected values, and competitions accept this tolerance.
TOLERANCE = 1e-6
# Every finite float has an integer part of at most 309 digits. The limit keeps the time linear in the length of an output.
NUMBER_CHARACTERS = 400
NUMBER = re.compile(r"[+-]?(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))([eE][+-]?[0-9]+)?")
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


def equal_output(output, expected):
    """Returns true if the output of a program is the expected text.

    Blank lines at the end, blanks at the end of a line and the number of blanks between two words are ignored. The blanks at the beginning
    of a line are not. Words are equal as `equal_words` says.
    """
    output, expected = output.rstrip().split("\n"), expected.rstrip().split("\n")
    return len(output) == len(expected) and all(map(equal_lines, output, expected))


def equal_lines(line, expected):
    line, expected = line.rstrip(), expected.rstrip()
    if line == expected:
        return True
    words, expected_words = line.split(), expected.split()
    return indent(line) == indent(expected) and len(words) == len(expected_words) and all(map(equal_words, words, expected_words))


def indent(line):
    return line[: len(line) - len(line.lstrip())]


def equal_words(word, expected):
    """Returns true if two words are equal as text, or are close numbers of which at least one has a decimal point or an exponent.

    The tolerance is 1e-6, relative and absolute. If an integer is expected, the relative tolerance is 1e-12. If the expected number is
    written with more than six decimals, the absolute tolerance is half a unit of its last place, so that 0 does not equal a small number.
    """
    if word == expected:
        return True
    if len(word) > NUMBER_CHARACTERS or len(expected) > NUMBER_CHARACTERS:
        return False
    found, wanted = NUMBER.fullmatch(word), NUMBER.fullmatch(expected)
    if found is None or wanted is None or not any(found.groups() + wanted.groups()):
        return False
    value, wanted_value = float(word), float(expected)
    relative = TOLERANCE if any(wanted.groups()) else 1e-12
    absolute = absolute_tolerance(wanted) if wanted_value else TOLERANCE
    return math.isfinite(value) and math.isfinite(wanted_value) and math.isclose(value, wanted_value, rel_tol=relative, abs_tol=absolute)


def absolute_tolerance(number):
    """Returns the absolute tolerance for a match of a number other than 0: half a unit of its last place, between 1e-9 and 1e-6."""
    fraction, bare_fraction, exponent = number.groups()
    places = len((fraction or bare_fraction or ".")[1:]) - int((exponent or "e0")[1:])
    return min(TOLERANCE, max(float(f"0.5e{-places}"), TOLERANCE * 1e-3))
