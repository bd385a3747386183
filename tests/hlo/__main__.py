"""The programs of operators and models beside those that are pinned (golden.txt).

python -m tests.hlo             how they differ
python -m tests.hlo --pin       takes those of now for right
python -m tests.hlo --texts DIR writes all of them, to compare two commits
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tests.hlo import golden


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hlo", description=__doc__)
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--texts", type=Path, metavar="DIR")
    options = parser.parse_args()
    texts = golden.lower(golden.cases()).texts
    changed = golden.changes(texts)
    print(*changed, sep="\n", end="\n" if changed else "")
    print(f"{len(texts)} cases, {len(changed)} differ from what is pinned")
    if options.texts:
        options.texts.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (options.texts / re.sub(r"\W+", "_", name)).write_text(text)
    if options.pin:
        golden.pin(texts)
        return 0
    return int(bool(changed))


if __name__ == "__main__":
    raise SystemExit(main())
