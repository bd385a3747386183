#!/usr/bin/env bash
# Runs a command under the sanitizers of a build folder: every Python process of it loads the extension
# that was built there. Fails if the command does, or if any process reported something.
# Usage: scripts/sanitized.sh build/address-undefined|build/thread COMMAND...
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
folder=$(cd "$1" && pwd)
kind=$(basename "$folder")
shift
reports=$folder/reports
common=halt_on_error=1:allocator_may_return_null=1
in_files=$common:log_path=$reports/$kind

rm -rf "$reports"
mkdir -p "$reports"
case $kind in
  address-undefined)
    runtime=libasan.so
    # Python and torch keep memory until the process ends.
    export ASAN_OPTIONS=$in_files:detect_leaks=0:detect_stack_use_after_return=1
    # Its reports go to stderr, whatever file it is given: of the two runtimes one finds the other's functions.
    export UBSAN_OPTIONS=$common:print_stacktrace=1
    ;;
  thread)
    runtime=libtsan.so
    export TSAN_OPTIONS=$in_files:second_deadlock_stack=1:die_after_fork=0:suppressions=$here/tests/sanitizers/thread.supp
    # It does not see how OpenMP, on which PyTorch's kernels run, orders its threads.
    export OMP_NUM_THREADS=1
    ;;
  *)
    echo "sanitized.sh: expected a folder named address-undefined or thread, got $folder." >&2
    exit 2
    ;;
esac
# Python is not instrumented, so the runtime must be loaded before it, and beside it libstdc++, whose
# functions it replaces.
for library in $runtime libstdc++.so.6; do
  preload=${preload:-}${preload:+:}$(realpath "$("${CXX:-g++}" -print-file-name=$library)")
done
extension=("$folder"/_XLAC*.so)
export TORCH_XLA_TEST_EXTENSION=${extension[0]}
export PYTHONPATH=$here/tests/sanitizers/preload${PYTHONPATH:+:$PYTHONPATH}

set -- env LD_PRELOAD="$preload" "$@"
# The thread sanitizer of older compilers finds no place for its memory where addresses are spread widely.
if [ "$kind" = thread ] && setarch "$(uname -m)" -R true 2>/dev/null; then
  set -- setarch "$(uname -m)" -R "$@"
fi

status=0
"$@" || status=$?
for report in "$reports"/*; do
  # Tests ask for more memory than there is, which is answered with an exception.
  grep -qsv 'WARNING: AddressSanitizer failed to allocate' "$report" || continue
  echo "== $report" >&2
  head -n 120 "$report" >&2
  status=1
done
exit $status
