#!/usr/bin/env bash
# Checks what the build needs from the system and installs what is missing when it may (Debian, root).
# Usage: scripts/system_deps.sh PYTHON [--tests]
set -euo pipefail

python=$1
tests=${2:-}
updated=

missing() {  # what, why, Debian package
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "$1: not found ($2); installing $3"
    [ -n "$updated" ] || apt-get update -qq || true
    updated=1
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$3" </dev/null >&2
  else
    echo "$1: not found ($2). Install it (Debian, as root: apt-get install $3) and run make again." >&2
    exit 1
  fi
}

command -v "$python" >/dev/null || { echo "Python 3.11 or newer: not found. Pass PYTHON=/path/to/python to make." >&2; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "Python 3.11 or newer: expected for development, $python is $("$python" -V). Pass PYTHON=/path/to/python to make." >&2
  exit 1
}

# Debian splits Python: the venv module's installer and the C headers are packages of their own.
"$python" -c 'import ensurepip' 2>/dev/null ||
  missing "Python's ensurepip" "needed for the virtual environment" \
    "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
header=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
[ -e "$header" ] ||
  missing "$header" "needed to build the extension" \
    "$("$python" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')"
[ -e "$header" ] || { echo "$header: still missing after the installation." >&2; exit 1; }

compiler=${CXX:-g++}
command -v "$compiler" >/dev/null || missing "$compiler" "the C++ compiler" g++
echo '#include <version>
#if !defined(__cpp_lib_span) || !defined(__cpp_concepts)
#error C++20
#endif' | "$compiler" -std=c++20 -fsyntax-only -x c++ - 2>/dev/null || {
  echo "$compiler: expected C++20 with its library (g++ 11 or newer), got $("$compiler" --version | head -n 1). Set CXX." >&2
  exit 1
}

if [ "$tests" = --tests ]; then
  header() {  # name, what, why, Debian package
    has_header() { echo "#include <$1>" | "$compiler" -std=c++20 -fsyntax-only -x c++ - 2>/dev/null; }
    has_header "$1" || missing "$2" "$3" "$4"
    has_header "$1" || { echo "$1: still missing after the installation ($3)." >&2; exit 1; }
  }
  header gtest/gtest.h "GoogleTest" "needed for the C++ unit tests" libgtest-dev
  header nlohmann/json.hpp "nlohmann-json" "needed for examples/runner" nlohmann-json3-dev
fi
