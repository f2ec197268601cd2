"""Tests of the script with which the Python wheel starts the program."""

import os
import runpy
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHEEL = ROOT / "python" / "wheel"
SCRIPT = WHEEL / "wheel.data" / "scripts" / "rollpacker"


class Wheel(unittest.TestCase):
    """A folder with the script, a program that prints what it was started with, and packages."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.packages = self.folder / "packages"
        shutil.copy2(SCRIPT, self.folder / "rollpacker")
        program = self.folder / "rollpacker-native"
        program.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH" "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def install(self, version, library="libtorch_cpu.so"):
        """Installs a torch that fails when it is imported."""
        (self.packages / "torch" / "lib").mkdir(parents=True)
        (self.packages / "torch" / "__init__.py").write_text("raise SystemExit('imported')\n")
        (self.packages / "torch" / "lib" / library).touch()
        metadata = self.packages / f"torch-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")

    def start(self, **environment):
        """Runs the script with two arguments, without packages of this machine."""
        command = [sys.executable, "-S", self.folder / "rollpacker", "train", "a b"]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.packages), **environment}
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    def test_the_program_finds_the_libraries_of_torch(self):
        self.install("2.11.0+cpu")
        libraries = self.packages / "torch" / "lib"
        self.assertEqual(self.start().stdout, f"{libraries} train a b\n")
        self.assertEqual(self.start(LD_LIBRARY_PATH="/x").stdout, f"{libraries}:/x train a b\n")

    def test_an_absent_torch_is_named(self):
        ended = self.start()
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertIn("expected the package torch 2.11, found none; run `", ended.stderr)

    def test_another_version_is_named(self):
        self.install("2.1.0")
        self.assertIn("expected the package torch 2.11, found 2.1.0; run `", self.start().stderr)

    def test_a_torch_without_libraries_is_named(self):
        self.install("2.11.1", library="other.so")
        self.assertIn("torch 2.11.1 has no library libtorch_cpu.so", self.start().stderr)

    def test_the_version_is_the_one_that_the_build_links(self):
        linked = runpy.run_path(str(ROOT / ".cargo" / "libtorch.py"))["VERSION"]
        expected = runpy.run_path(str(SCRIPT))["TORCH"]
        self.assertEqual(linked.rsplit(".", 1)[0], expected)
        self.assertIn(f'"torch=={expected}.*"', (WHEEL / "pyproject.toml").read_text())


if __name__ == "__main__":
    unittest.main()
