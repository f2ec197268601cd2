"""Converts results and exceptions of the user's function to answers."""

import collections.abc
import json
import math
import traceback

# The file name of this text in tracebacks, from which its frames are left out.
RUNNER = "<rollpacker>"

# Maximum lengths in characters.
MAX_LABEL = 10000
MAX_TRACEBACK = 2000
MAX_QUOTE = 300


class RewardFileError(Exception):
    """An error that needs no traceback."""


def read_verl(result, answer):
    """Reads a number, or a dict with the number `score`."""
    if not isinstance(result, collections.abc.Mapping):
        answer["score"] = number("the result", result, "a number or a dict with `score`")
        return
    if "score" not in result:
        raise RewardFileError("the result: expected a dict with `score`, found one with {}".format(quote_names(map(str, result))))
    answer["score"] = number("`score`", result["score"], "a number")
    for name, value in result.items():
        if name != "score":
            add(answer, name, value)


def read_trl(result, answer):
    """Reads a list of one number or None."""
    try:
        values = None if isinstance(result, (str, bytes, collections.abc.Mapping)) else list(result)
    except TypeError:
        values = None
    if values is None:
        raise RewardFileError("the result: expected a list of one number or None, found {}".format(describe_value(result)))
    if len(values) != 1:
        raise RewardFileError("the result: expected a list of one number or None, found {} entries".format(len(values)))
    value = as_float(values[0])
    if values[0] is None or (value is not None and math.isnan(value)):
        # TRL leaves out both. A score of null means that the reward is not applicable.
        answer["score"] = None
    else:
        answer["score"] = number("the result", values[0], "a list of one number or None")


def add(answer, name, value):
    """Adds a further entry of a result: a number is a component, anything else but None a label."""
    if as_float(value) is not None:
        add_component(answer, name, value)
    elif value is not None:
        add_label(answer, name, value)


def add_component(answer, name, value):
    answer["components"][text(name)] = number("`{}`".format(text(name)), value, "a number")


def add_label(answer, name, value):
    if not isinstance(value, str):
        try:
            value = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            value = str(value)
    answer["labels"][text(name)] = text(value)[:MAX_LABEL]


def as_float(value):
    """Converts numbers, also those of libraries such as numpy. Returns None for anything else."""
    if not hasattr(type(value), "__float__"):
        return None
    try:
        return float(value)
    except Exception:
        # An array of several numbers, for example.
        return None


def number(what, value, expected):
    found = as_float(value)
    if found is None:
        raise RewardFileError("{}: expected {}, found {}".format(what, expected, describe_value(value)))
    if not math.isfinite(found):
        raise RewardFileError("{}: expected a finite number, found {}".format(what, found))
    return found


def text(value):
    """Returns a text that can be encoded: without lone surrogates."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def describe_value(value):
    try:
        quoted = text(repr(value))
    except Exception:
        quoted = "an object without a representation"
    quoted = quoted if len(quoted) <= MAX_QUOTE else quoted[:MAX_QUOTE] + "..."
    return "{} of the type `{}`".format(quoted, type(value).__name__)


def quote_names(names):
    return ", ".join("`{}`".format(text(name)) for name in names) or "none"


def describe_error(error):
    """Returns the error with the end of its traceback, without frames of this program."""
    if isinstance(error, RewardFileError):
        return str(error)
    frames = error.__traceback__
    while frames and is_own(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    last = traceback.format_exception_only(type(error), error)[-1].strip()
    lines = "".join(traceback.format_exception(type(error), error, frames))
    if len(lines) > MAX_TRACEBACK:
        lines = "...\n" + lines[-MAX_TRACEBACK:].split("\n", 1)[-1]
    return text("{}\n{}".format(last[:MAX_QUOTE], lines.rstrip()))


def is_own(file):
    return file == RUNNER or file.startswith("<frozen importlib")


def failure(error, prefix=""):
    """Returns the answer for an error. Further attempts can help only if a connection broke or timed out."""
    is_temporary = isinstance(error, (ConnectionError, TimeoutError)) or type(error).__name__ == "TimeoutError"
    try:
        reason = describe_error(error)
    except Exception:
        reason = type(error).__name__
    return {"error": prefix + reason, "kind": "retryable" if is_temporary else "fatal"}
