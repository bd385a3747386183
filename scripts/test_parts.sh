#!/usr/bin/env bash
# Runs parts of `make test-all` one after the other, the next one also where one fails, and keeps the
# log and the result of each: FOLDER/PART.log and FOLDER/PART.result.
# Usage: scripts/test_parts.sh FOLDER PART...
set -uo pipefail

folder=$1
shift
mkdir -p "$folder"
failed=0
for part in "$@"; do
  rm -f "$folder/$part.result"
  commit=$(git describe --always --dirty)
  SECONDS=0
  outcome=passed
  "${MAKE:-make}" --no-print-directory "part-$part" </dev/null 2>&1 | tee "$folder/$part.log" || outcome=FAILED
  [ $outcome = passed ] || failed=1
  printf '%-18s %s  %s  %s  %d min  %s\n' "$part" "$outcome" "$commit" "$(date '+%F %R')" \
    $((SECONDS / 60)) "$folder/$part.log" >"$folder/$part.result"
done
echo
for part in "$@"; do cat "$folder/$part.result"; done
exit $failed
