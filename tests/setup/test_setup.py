"""Tests of the set-up scripts with a fake `pip`, which creates the wheels itself or misbehaves."""

import functools
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / ".cargo"

# Creates the requested wheel. The environment variable `PIP` selects its behavior.
PIP = """
import os, sys, zipfile
arguments = dict(zip(sys.argv, sys.argv[1:]))
if "--version" in sys.argv:
    sys.exit(0)
behaviour = os.environ.get("PIP", "works")
if behaviour == "must not run":
    sys.exit("ERROR: it ran")
if behaviour == "no network":
    print("WARNING: Retrying after NewConnectionError", file=sys.stderr)
    sys.exit("ERROR: No matching distribution found")
wanted = open(arguments["--requirement"]).read()
files = {
    "torch": ["include/torch/csrc/api/include/torch/torch.h", "include/ATen/ATen.h", "include/c10/core/Device.h"]
    + ["lib/libtorch_cpu.so", "lib/libc10.so", "lib/libgomp.so.1", "lib/libtorch_cuda.so", "nn.py"],
    "nvidia-cuda-runtime": ["lib/libcudart.so.13"],
    "nvidia-cuda-cupti": ["lib/libcupti.so.13"],
}
name = wanted.split("==")[0]
prefix = "torch" if name == "torch" else "nvidia/cu13"
if behaviour == "lacks cupti" and name == "nvidia-cuda-cupti":
    files[name] = ["lib/other.so"]
with zipfile.ZipFile(os.path.join(arguments["--dest"], name + ".whl"), "w") as wheel:
    for file in files[name]:
        wheel.writestr(f"{prefix}/{file}", file)
if behaviour == "hangs" and name == "nvidia-cuda-cupti":
    print("hanging", flush=True)
    sys.stdin.read()
"""

LAID_OUT = [
    "build-version",
    "include/ATen/ATen.h",
    "include/c10/core/Device.h",
    "include/torch/csrc/api/include/torch/torch.h",
    "lib/libc10.so",
    "lib/libcudart.so.13",
    "lib/libcupti.so.13",
    "lib/libgomp.so",
    "lib/libgomp.so.1",
    "lib/libtorch.so",
    "lib/libtorch_cpu.so",
]


class Project:
    """A folder with the scripts and the fake `pip`."""

    def __init__(self, case):
        self.root = Path(tempfile.mkdtemp())
        case.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        shutil.copytree(SCRIPTS, self.root / ".cargo", ignore=shutil.ignore_patterns("__pycache__"))
        (self.root / "modules" / "pip").mkdir(parents=True)
        (self.root / "modules" / "pip" / "__main__.py").write_text(PIP)
        (self.root / "modules" / "pip" / "__init__.py").write_text("")
        self.environment = {**os.environ, "PYTHONPATH": str(self.root / "modules")}
        for name in ("LIBTORCH", "LIBTORCH_USE_PYTORCH"):
            self.environment.pop(name, None)

    def start(self, **environment):
        command = [sys.executable, str(self.root / ".cargo" / "libtorch.py")]
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        # A shell starts background jobs with SIGINT ignored, and their child processes inherit that.
        heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        return subprocess.Popen(command, env={**self.environment, **environment}, preexec_fn=heed, **pipes)

    def run(self, **environment):
        """Returns the exit code and the last line of output."""
        process = self.start(**environment)
        _, said = process.communicate("", timeout=60)
        return process.returncode, said.strip().splitlines()[-1]

    def interrupt(self, signal_number):
        """Sends a signal to a run in the middle of a download."""
        process = self.start(PIP="hangs")
        for line in process.stderr:
            if line.strip() == "hanging":
                break
        process.send_signal(signal_number)
        process.wait(timeout=60)
        process.stdin.close()
        process.stderr.close()

    def files(self):
        folder = self.root / ".libtorch"
        return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir())

    def leftovers(self):
        return sorted(path.name for path in self.root.glob(".libtorch*"))


@unittest.skipUnless((platform.system(), platform.machine()) == ("Linux", "x86_64"), "the wheels are for x86_64 Linux")
class LibtorchTest(unittest.TestCase):
    def setUp(self):
        self.project = Project(self)

    def check_complete(self):
        self.assertEqual(self.project.run()[0], 0)
        self.assertEqual(self.project.files(), LAID_OUT)
        self.assertEqual(self.project.leftovers(), [".libtorch"])
        self.assertEqual((self.project.root / ".libtorch/lib/libtorch.so").read_text(), "INPUT(libtorch_cpu.so)\n")
        self.assertEqual(self.project.run(PIP="must not run"), (0, "libtorch: 2.11.0 is in .libtorch/"))

    def test_lays_out_once(self):
        self.check_complete()

    def test_starts_over_after_a_kill(self):
        self.project.interrupt(signal.SIGKILL)
        self.assertFalse((self.project.root / ".libtorch").exists())
        self.check_complete()

    def test_leaves_nothing_when_ended(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            self.project.interrupt(number)
            self.assertEqual(self.project.leftovers(), [])
        self.check_complete()

    def test_replaces_an_incomplete_layout(self):
        self.project.run()
        (self.project.root / ".libtorch/lib/libc10.so").unlink()
        self.check_complete()
        (self.project.root / ".libtorch/build-version").write_text("2.10.0")
        self.check_complete()

    def test_uses_what_the_user_brings(self):
        own = self.project.root / "own"
        (own / "lib").mkdir(parents=True)
        self.assertEqual(self.project.run(PIP="must not run", LIBTORCH=str(own))[0], 0)
        self.assertEqual(self.project.run(PIP="must not run", LIBTORCH_USE_PYTORCH="1")[0], 0)
        self.assertEqual(self.project.leftovers(), [])

    def test_refuses_in_one_line(self):
        code, said = self.project.run(LIBTORCH="/nonexistent")
        self.assertEqual((code, "has no folder lib" in said), (2, True), said)
        code, said = self.project.run(PIP="no network")
        self.assertEqual((code, "cannot fetch torch==2.11.0: no connection" in said), (2, True), said)
        code, said = self.project.run(PIP="lacks cupti")
        self.assertEqual((code, said), (2, "libtorch: the wheels lack lib/libcupti.so.13"))
        self.assertEqual(self.project.leftovers(), [])


class PrerequisitesTest(unittest.TestCase):
    def run_with(self, path, **environment):
        command = ["/bin/sh", str(SCRIPTS / "prerequisites.sh")]
        done = subprocess.run(command, env={"PATH": str(path), **environment}, capture_output=True, text=True)
        return done.returncode, [line for line in done.stderr.splitlines() if line.startswith("missing: ")]

    def test_names_everything_that_is_missing(self):
        with tempfile.TemporaryDirectory() as empty:
            missing = ["cargo", "a C compiler (cc)", "a C++ compiler (c++)", "make", "python3"]
            self.assertEqual(self.run_with(empty), (2, [f"missing: {name}" for name in missing]))

    def test_pip_is_needed_only_to_fetch(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("cargo", "cc", "c++", "make"):
                self.program(folder, name, "exit 0")
            self.program(folder, "python3", 'test "$1" != -m')
            self.assertEqual(self.run_with(folder), (2, ["missing: pip for python3"]))
            self.assertEqual(self.run_with(folder, LIBTORCH="/own"), (0, []))

    def program(self, folder, name, body):
        path = Path(folder, name)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)


if __name__ == "__main__":
    unittest.main()
