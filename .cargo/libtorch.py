"""Lays out a CPU libtorch 2.11.0 in `.libtorch/`, taken from three Python wheels.

The Linux wheel of PyTorch is a CUDA build, but its CPU part stands alone: `libtorch_cpu.so` needs no more than `libc10.so` and
`libgomp.so.1` from the same wheel, and `libcudart.so.13` and `libcupti.so.13` from two small ones. Everything is made in a folder
beside the target and renamed when it is complete, so an interrupted run leaves nothing that a later one could take for a libtorch.

Does nothing if the layout is complete, or if LIBTORCH or LIBTORCH_USE_PYTORCH is set: then the build uses that libtorch.
"""

import contextlib
import fcntl
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

VERSION = "2.11.0"
ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / ".libtorch"
PARTIAL = ".libtorch.partial-"

# The wheels to fetch, their digests, and the libraries to take out of them.
WHEELS = [
    (
        "torch==2.11.0",
        "7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a",
        ["torch/lib/libtorch_cpu.so", "torch/lib/libc10.so", "torch/lib/libgomp.so.1"],
    ),
    (
        "nvidia-cuda-runtime==13.0.96",
        "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
        ["nvidia/cu13/lib/libcudart.so.13"],
    ),
    (
        "nvidia-cuda-cupti==13.0.85",
        "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
        ["nvidia/cu13/lib/libcupti.so.13"],
    ),
]

# The folder of the headers in a wheel.
HEADERS_OF = "torch/include/"

# The beginnings of the names of licence files, in the metadata of a wheel.
LICENCES = ("LICENSE", "License", "NOTICE")

# The files of a complete layout.
LIBRARIES = ["libtorch_cpu.so", "libc10.so", "libgomp.so.1", "libgomp.so", "libcudart.so.13", "libcupti.so.13", "libtorch.so"]
HEADERS = ["ATen/ATen.h", "c10/core/Device.h", "torch/csrc/api/include/torch/torch.h"]

# The C++ part of a torch wheel is the same for every Python, so one is requested by name: whichever Python runs this, it gets the file
# whose digest is above. The wheels need glibc 2.28.
GLIBC = (2, 28)
WHEEL_OF = ["--implementation", "cp", "--python-version", "3.11", "--abi", "cp311", "--platform", "manylinux2014_x86_64"]
WHEEL_OF += [word for minor in range(17, GLIBC[1] + 1) for word in ("--platform", f"manylinux_2_{minor}_x86_64")]

# Peak on disk: the wheels, pip's copy of one while it fetches, and the layout.
NEEDED_BYTES = 1_700_000_000


class Refusal(Exception):
    """The reason why there is no libtorch, in one line."""


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that the partial folder goes
    if chosen_by_user():
        return
    with locked():
        if missing(TARGET) is None:
            say(f"{VERSION} is in {TARGET.name}/")
            return
        check_machine()
        clear_leftovers()
        lay_out()


def chosen_by_user():
    """Returns true if the user provides a libtorch."""
    if "LIBTORCH_USE_PYTORCH" in os.environ:
        say("LIBTORCH_USE_PYTORCH is set: using the PyTorch of python3, fetching nothing")
        return True
    if "LIBTORCH" not in os.environ:
        return False
    folder = os.environ["LIBTORCH"]
    if not Path(folder, "lib").is_dir():
        raise Refusal(f"LIBTORCH is set to `{folder}`, which has no folder lib; unset it to have {VERSION} fetched")
    say(f"LIBTORCH is set: using {folder}, fetching nothing")
    return True


def missing(folder):
    """Returns the first file that a layout lacks, or None if it is complete."""
    with contextlib.suppress(OSError):
        if (folder / "build-version").read_text().strip() == VERSION:
            files = [folder / "lib" / name for name in LIBRARIES] + [folder / "include" / name for name in HEADERS]
            return next((file for file in files if not file.is_file() or file.stat().st_size == 0), None)
    return folder / "build-version"


def check_machine():
    """Rejects machines for which there are no wheels."""
    system, machine, (libc, version) = platform.system(), platform.machine(), platform.libc_ver()
    own = f"set LIBTORCH to a libtorch {VERSION} of your own"
    if (system, machine) != ("Linux", "x86_64"):
        raise Refusal(f"can be fetched for x86_64 Linux only, and this is {machine} {system}; {own}")
    if libc != "glibc" or tuple(map(int, version.split(".")[:2])) < GLIBC:
        raise Refusal(f"needs glibc {GLIBC[0]}.{GLIBC[1]} or later, and this is {libc or 'another libc'} {version}; {own}")
    free = shutil.disk_usage(ROOT).free
    if free < NEEDED_BYTES:
        raise Refusal(f"needs {NEEDED_BYTES / 1e9:.1f} GB of disk while it is laid out, and {ROOT} has {free / 1e9:.1f} GB; {own}")


def clear_leftovers():
    """Removes what interrupted runs left, and a layout that is not complete."""
    for leftover in [*ROOT.glob(PARTIAL + "*"), TARGET]:
        if leftover.is_symlink():
            raise Refusal(f"{leftover} is a link to something that is no libtorch {VERSION}; remove it")
        if leftover.exists():
            say(f"removing {leftover.name}, which is not complete")
            shutil.rmtree(leftover)


def lay_out():
    """Fetches, extracts and renames."""
    partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=ROOT))
    try:
        wheels, layout = partial / "wheels", partial / "layout"
        wheels.mkdir()
        (layout / "lib").mkdir(parents=True)
        say(f"fetching {', '.join(requirement for requirement, _, _ in WHEELS)} (about 545 MB, once)")
        for requirement, digest, libraries in WHEELS:
            wheel = fetch(requirement, digest, wheels)
            extract(wheel, libraries, layout)
            wheel.unlink()
        (layout / "lib" / "libgomp.so").symlink_to("libgomp.so.1")
        (layout / "lib" / "libtorch.so").write_text("INPUT(libtorch_cpu.so)\n")
        (layout / "build-version").write_text(VERSION)
        absent = missing(layout)
        if absent:
            raise Refusal(f"the wheels lack {absent.relative_to(layout)}")
        layout.rename(TARGET)
        say(f"laid out in {TARGET.relative_to(ROOT)}/ ({size(TARGET) / 1e6:.0f} MB)")
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def fetch(requirement, digest, folder):
    """Downloads one wheel and checks its digest; returns its path."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{requirement} --hash=sha256:{digest}\n")
    verbosity = [] if sys.stderr.isatty() else ["--quiet"]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes", *WHEEL_OF]
    command += ["--no-input", "--disable-pip-version-check", *verbosity, "--dest", str(folder), "--requirement", str(wanted)]
    # Beside the target too: pip's own temporary files then go where there is room, and with the rest.
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, env=environment)
    fetched = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(fetched) != 1:
        raise Refusal(f"cannot fetch {requirement}: {reason(done.stderr)}; set LIBTORCH to use a libtorch {VERSION} of your own")
    return fetched[0]


def reason(complaints):
    """One line of pip's output."""
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    if any("connection" in line.lower() for line in lines):
        return "no connection to the package index; is there a network?"
    if any("do not match the hashes" in line.lower() for line in lines):
        return "what the package index gave does not have the digest that it should have"
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["pip said nothing"]
    return errors[-1].removeprefix("ERROR:").strip()


def extract(wheel, wanted, layout):
    """Takes out the wanted libraries, all headers, and the licences, which whoever passes the libraries on must pass on, too."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = PurePosixPath(member.filename)
            if member.filename in wanted:
                target = layout / "lib" / path.name
            elif member.filename.startswith(HEADERS_OF) and not member.is_dir():
                target = layout / "include" / path.relative_to(HEADERS_OF)
            elif ".dist-info/" in member.filename and path.name.startswith(LICENCES):
                target = layout / "licenses" / wheel.name.split("-")[0] / path.name
            else:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)


def size(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


@contextlib.contextmanager
def locked():
    """One run at a time; a second one waits, and then finds the work done. The lock goes with the process, however it ends."""
    descriptor = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def say(line):
    print(f"libtorch: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except Refusal as refusal:
        say(refusal)
        sys.exit(2)
    except (OSError, zipfile.BadZipFile) as error:
        say(f"cannot be laid out: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        say("interrupted; the next run starts over")
        sys.exit(130)
