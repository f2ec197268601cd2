#!/bin/sh
# Names every program that set-up needs and does not find, with what to install; exits with 2 if there is one.
missing=0

lacks() {
    printf 'missing: %s\n  install %s\n' "$1" "$2" >&2
    missing=1
}

cargo --version >/dev/null 2>&1 || lacks 'cargo' 'Rust through rustup, which then fetches the toolchain of rust-toolchain.toml'
command -v "${CC:-cc}" >/dev/null 2>&1 || lacks "a C compiler (${CC:-cc})" 'gcc or clang (Debian, Ubuntu: apt-get install gcc)'
command -v "${CXX:-c++}" >/dev/null 2>&1 || lacks "a C++ compiler (${CXX:-c++})" \
    'g++ or clang++ (Debian, Ubuntu: apt-get install g++), or name yours in CXX'
command -v make >/dev/null 2>&1 || lacks 'make' 'GNU make (Debian, Ubuntu: apt-get install make)'
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1; then
    lacks 'python3' 'Python 3.9 or later (Debian, Ubuntu: apt-get install python3)'
# pip only fetches libtorch: whoever brings one does not need it.
elif [ -z "${LIBTORCH+set}${LIBTORCH_USE_PYTORCH+set}" ] && ! python3 -m pip --version >/dev/null 2>&1; then
    lacks 'pip for python3' 'it (Debian, Ubuntu: apt-get install python3-pip), or set LIBTORCH to a libtorch 2.11.0'
fi
[ "$missing" -eq 0 ] || exit 2
