"""The built-in fixtures of pytest."""

import contextlib
import io
import os
import sys


class Patches:
    """The fixture `monkeypatch`."""

    MISSING = object()

    def __init__(self):
        self.undone = []

    def resolve(self, target, name, value):
        """Returns the object, attribute and value that a call refers to. The target may be a dotted path."""
        if not isinstance(target, str):
            return target, name, value
        path, _, attribute = target.rpartition(".")
        module, *rest = path.split(".")
        found = __import__(module)
        for part in rest:
            found = getattr(found, part)
        return found, attribute, name

    def setattr(self, target, name, value=MISSING, raising=True):
        target, name, value = self.resolve(target, name, value)
        old = vars(target).get(name, self.MISSING) if isinstance(target, type) else getattr(target, name, self.MISSING)
        if raising and not hasattr(target, name):
            raise AttributeError("%r has no attribute %r" % (target, name))
        self.undone.append(lambda: delattr(target, name) if old is self.MISSING else setattr(target, name, old))
        setattr(target, name, value)

    def delattr(self, target, name=MISSING, raising=True):
        if name is self.MISSING:
            target, name, _ = self.resolve(target, None, None)
        if not hasattr(target, name) and not raising:
            return
        old = getattr(target, name)
        self.undone.append(lambda: setattr(target, name, old))
        delattr(target, name)

    def setitem(self, items, key, value):
        old = items.get(key, self.MISSING)
        self.undone.append(lambda: items.pop(key, None) if old is self.MISSING else items.__setitem__(key, old))
        items[key] = value

    def delitem(self, items, key, raising=True):
        if key not in items and not raising:
            return
        old = items.pop(key)
        self.undone.append(lambda: items.__setitem__(key, old))

    def setenv(self, name, value, prepend=None):
        if prepend and name in os.environ:
            value = "%s%s%s" % (value, prepend, os.environ[name])
        self.setitem(os.environ, name, str(value))

    def delenv(self, name, raising=True):
        self.delitem(os.environ, name, raising)

    def chdir(self, path):
        old = os.getcwd()
        self.undone.append(lambda: os.chdir(old))
        os.chdir(path)

    def syspath_prepend(self, path):
        old = sys.path[:]
        self.undone.append(lambda: sys.path.__setitem__(slice(None), old))
        sys.path.insert(0, str(path))

    def undo(self):
        while self.undone:
            self.undone.pop()()

    @classmethod
    @contextlib.contextmanager
    def context(cls):
        patches = cls()
        try:
            yield patches
        finally:
            patches.undo()


class PrintedText(tuple):
    """The output since the last call of `readouterr`."""

    def __new__(cls, out, err):
        return super().__new__(cls, (out, err))

    out = property(lambda self: self[0])
    err = property(lambda self: self[1])


class PrintedStreams:
    """The fixture `capsys`: captures `sys.stdout` and `sys.stderr`."""

    def __init__(self):
        self.before = sys.stdout, sys.stderr
        self.fresh()

    def fresh(self):
        self.now = io.StringIO(), io.StringIO()
        sys.stdout, sys.stderr = self.now

    def readouterr(self):
        found = PrintedText(*(stream.getvalue() for stream in self.now))
        for stream in self.now:
            stream.seek(0)
            stream.truncate()
        return found

    @contextlib.contextmanager
    def disabled(self):
        sys.stdout, sys.stderr = self.before
        try:
            yield
        finally:
            sys.stdout, sys.stderr = self.now

    def close(self):
        sys.stdout, sys.stderr = self.before
        for stream, old in zip(self.now, self.before):
            old.write(stream.getvalue())


class PrintedBytes(PrintedStreams):
    """The fixture `capsysbinary`: captures the same as bytes, with streams that have a buffer."""

    def fresh(self):
        self.now = tuple(io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        sys.stdout, sys.stderr = self.now

    def readouterr(self):
        found = PrintedText(*(stream.buffer.getvalue() for stream in self.now))
        for stream in self.now:
            stream.buffer.seek(0)
            stream.buffer.truncate()
        return found

    def close(self):
        sys.stdout, sys.stderr = self.before


class PrintedFiles(PrintedStreams):
    """The fixture `capfd`: captures the descriptors 1 and 2."""

    def fresh(self):
        import tempfile

        self.saved = [os.dup(number) for number in (1, 2)]
        self.files = [tempfile.TemporaryFile() for _ in self.saved]
        for number, file in enumerate(self.files, 1):
            os.dup2(file.fileno(), number)
        self.now = tuple(io.TextIOWrapper(io.FileIO(number, "wb", closefd=False), "utf-8", write_through=True) for number in (1, 2))
        sys.stdout, sys.stderr = self.now

    def readouterr(self):
        texts = []
        for stream, file in zip(self.now, self.files):
            stream.flush()
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
            file.seek(0)
            file.truncate()
        return PrintedText(*texts)

    def close(self):
        sys.stdout, sys.stderr = self.before
        for number, (old, file) in enumerate(zip(self.saved, self.files), 1):
            os.dup2(old, number)
            os.close(old)
            file.close()


class LogRecords:
    """The fixture `caplog`."""

    def __init__(self):
        import logging

        class Kept(logging.Handler):
            def emit(inner, record):
                self.records.append(record)
                self.lines.append(inner.format(record))

        self.logging, self.records, self.lines, self.levels = logging, [], [], []
        self.handler = Kept()
        self.handler.setFormatter(logging.Formatter("%(levelname)-8s %(name)s:%(filename)s:%(lineno)d %(message)s"))
        logging.getLogger().addHandler(self.handler)

    @property
    def text(self):
        return "".join(line + "\n" for line in self.lines)

    @property
    def messages(self):
        return [record.getMessage() for record in self.records]

    @property
    def record_tuples(self):
        return [(record.name, record.levelno, record.getMessage()) for record in self.records]

    def get_records(self, _when):
        return self.records

    def clear(self):
        self.records.clear()
        self.lines.clear()

    def set_level(self, level, logger=None):
        logger = self.logging.getLogger(logger)
        self.levels.append((logger, logger.level))
        logger.setLevel(level)

    @contextlib.contextmanager
    def at_level(self, level, logger=None):
        self.set_level(level, logger)
        try:
            yield
        finally:
            found, old = self.levels.pop()
            found.setLevel(old)

    def close(self):
        self.logging.getLogger().removeHandler(self.handler)
        while self.levels:
            logger, old = self.levels.pop()
            logger.setLevel(old)


class Directories:
    """The fixture `tmp_path_factory`."""

    def __init__(self):
        import pathlib
        import tempfile

        self.base = tempfile.TemporaryDirectory()
        self.path, self.made = pathlib.Path(self.base.name).resolve(), 0

    def mktemp(self, basename, numbered=True):
        self.made += 1
        path = self.path / ("%s%d" % (basename, self.made - 1) if numbered else basename)
        path.mkdir()
        return path

    def getbasetemp(self):
        return self.path

    def close(self):
        self.base.cleanup()


def local_path(path):
    """Returns a folder with the methods of `py.path.local` that tests of `tmpdir` use."""
    import pathlib

    class LocalPath(type(pathlib.Path())):
        strpath = property(str)
        basename = property(lambda self: self.name)

        def join(self, *parts):
            return self.joinpath(*map(str, parts))

        def mkdir(self, *parts):
            found = self.joinpath(*map(str, parts))
            pathlib.Path(found).mkdir()
            return found

        def write(self, text, mode="w"):
            with open(self, mode) as file:
                file.write(text)

        def read(self, mode="r"):
            with open(self, mode) as file:
                return file.read()

        def check(self):
            return self.exists()

    return LocalPath(path)


def monkeypatch():
    with Patches.context() as patches:
        yield patches


def recwarn():
    import rollpacker_pytest_shim as pytest_shim

    with pytest_shim.recorded() as found:
        yield found


def closing(make):
    """Returns a fixture function for the object that `make` returns, which is closed after the test."""

    def fixture():
        with contextlib.closing(make()) as made:
            yield made

    return fixture


def tmp_path(request, tmp_path_factory):
    return tmp_path_factory.mktemp(request.node.name)


def tmpdir(tmp_path):
    return local_path(tmp_path)


# The fixtures by name, each with its scope.
BUILT_IN = {
    "monkeypatch": (monkeypatch, "function"), "capsys": (closing(PrintedStreams), "function"), "capfd": (closing(PrintedFiles), "function"),
    "capsysbinary": (closing(PrintedBytes), "function"), "caplog": (closing(LogRecords), "function"), "recwarn": (recwarn, "function"),
    "tmp_path_factory": (closing(Directories), "session"),
    "tmp_path": (tmp_path, "function"), "tmpdir": (tmpdir, "function"),
}
