"""The standard streams of a run."""

import builtins
import io
import os
import sys

# Paths of descriptors, which do not exist in a container, since it has no /proc.
DESCRIPTORS = {
    path: number for number, name in enumerate(("stdin", "stdout", "stderr"))
    for path in ("/dev/%s" % name, "/dev/fd/%d" % number, "/proc/self/fd/%d" % number)}
open_file, open_descriptor = io.open, os.open


def put_stdin(text):
    """Makes a text the standard input."""
    fd = os.memfd_create("stdin")
    data = memoryview(text.encode("utf-8", "surrogateescape"))
    while data:
        data = data[os.write(fd, data):]
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)


def open_all():
    """Opens the standard streams as the interpreter does."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        raw = io.FileIO(number, "rb" if number == 0 else "wb", closefd=False)
        raw.name = "<%s>" % name
        buffer = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
        stream = io.TextIOWrapper(buffer, "utf-8", "surrogateescape" if number == 0 else "backslashreplace", line_buffering=number == 2)
        stream.mode = "r" if number == 0 else "w"
        setattr(sys, name, stream)
        setattr(sys, "__%s__" % name, stream)
    builtins.input = read_line
    builtins.open = io.open = open_path
    os.open = open_number


def open_path(file, *arguments, **keywords):
    """Replaces `open`, so that `/dev/stdin` and similar paths refer to their descriptors."""
    number = DESCRIPTORS.get(file) if type(file) is str else None
    return open_file(file if number is None else os.dup(number), *arguments, **keywords)


def open_number(path, *arguments, **keywords):
    """Replaces `os.open`, so that `/dev/stdin` and similar paths refer to their descriptors."""
    number = DESCRIPTORS.get(path) if type(path) is str else None
    return open_descriptor(path, *arguments, **keywords) if number is None else os.dup(number)


def read_line(prompt=""):
    """Replaces `input`, without readline."""
    sys.stdout.write(str(prompt))
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError("EOF when reading a line")
    return line[:-1] if line.endswith("\n") else line


def flush():
    """Flushes the current and the original streams of a program, unless it closed them."""
    for stream in {id(stream): stream for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)}.values():
        try:
            stream.flush()
        except Exception:
            # The program may have replaced a stream, and parts of the replacement may be gone already.
            pass
