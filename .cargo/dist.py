"""Lays out a binary of rollpacker with libtorch in a folder that can be moved to another machine.

Usage: dist.py BINARY FOLDER

| in the folder | content |
|---|---|
| `bin/rollpacker` | the binary without symbols; it finds libtorch in `../lib` |
| `lib/` | the libraries of libtorch that the binary loads |
| `licenses/` | the licences of rollpacker and of these libraries |
| `configs/`, `docs/`, `README.md`, `CHANGELOG.md` | as in the repository |

The other machine needs x86_64 Linux with a glibc and a libstdc++ that are not older than those of this machine.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Refusal(Exception):
    """The reason why nothing was laid out, in one line."""


def libtorch():
    """Returns the folder of libtorch that the build used."""
    if "LIBTORCH_USE_PYTORCH" in os.environ:
        raise Refusal("LIBTORCH_USE_PYTORCH is set; unset it to pack the libtorch of `make libtorch`, or set LIBTORCH")
    return Path(os.environ.get("LIBTORCH", ROOT / ".libtorch")).resolve()


def loaded(binary, folder):
    """Returns the libraries in `folder` that the binary loads."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    listing = subprocess.run(["ldd", binary], env=environment, check=True, capture_output=True, text=True).stdout
    absent = re.findall(r"(\S+) => not found", listing)
    if absent:
        raise Refusal(f"{binary} does not find {', '.join(absent)} in {folder}")
    paths = {Path(path) for path in re.findall(r"=> (\S+)", listing)}
    return sorted(path for path in paths if path.parent == folder)


def lay_out(binary, folder):
    """Fills the folder."""
    torch = libtorch()
    libraries = loaded(binary, torch / "lib")
    if not libraries:
        raise Refusal(f"{binary} loads no library from {torch / 'lib'}; build it with the same LIBTORCH")
    for name in ["bin", "lib", "licenses"]:
        (folder / name).mkdir(parents=True)
    subprocess.run(["strip", "--strip-all", "-o", folder / "bin" / "rollpacker", binary], check=True)
    for library in libraries:
        shutil.copy2(library, folder / "lib" / library.name)
    shutil.copy2(ROOT / "LICENSE", folder / "licenses" / "rollpacker")
    if (torch / "licenses").is_dir():
        shutil.copytree(torch / "licenses", folder / "licenses", dirs_exist_ok=True)
    for name in ["configs", "docs"]:
        shutil.copytree(ROOT / name, folder / name)
    for name in ["README.md", "CHANGELOG.md"]:
        shutil.copy2(ROOT / name, folder / name)


def main():
    if len(sys.argv) != 3:
        raise Refusal("expected two arguments, BINARY and FOLDER")
    binary, folder = map(Path, sys.argv[1:])
    if not binary.is_file():
        raise Refusal(f"{binary} is not there; run `make release` first")
    if folder.exists():
        raise Refusal(f"{folder} exists; remove it, or name another folder")
    lay_out(binary.resolve(), folder)


if __name__ == "__main__":
    try:
        main()
    except Refusal as refusal:
        sys.exit(f"dist: {refusal}")
