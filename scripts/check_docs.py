"""Checks the pages: links lead somewhere, the files exist that pages about the code name, each area
of csrc/ has a page of at most 800 words, and sentences are short and plain. Prints one line per
violation and exits with 1 when there is any.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

MOST_WORDS_OF_A_PAGE = 800  # in docs/architecture
MOST_WORDS_OF_A_SENTENCE = 40
# Sentences that are longer, by page. These counts only fall. operators.md is generated.
LONG_SENTENCES: dict[str, int] = {"docs/operators.md": 1}
FOLDERS = ("csrc", "torch_xla", "tests", "scripts", "benchmarks", "examples", "cmake")
NOT_OURS = {"pjrt_c_api.h", "torch/extension.h", "debug/cost.py"}

# Sentences that a stranger has to solve, by page: they open so and ask nothing. Counts only fall.
RIDDLE = re.compile(r"(What|Whether|Of|How)\b(?!.*\?$)")
RIDDLES: dict[str, int] = {"CONTRIBUTING.md": 1}  # it quotes the form of an error

LINK = re.compile(r"\[[^]]*\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
CODE_BLOCK = re.compile(r"^```.*?^```", re.S | re.M)
FILE = re.compile(r"`([\w./-]*\w\.(?:h|cpp|py))`")


def pages(root: Path) -> list[Path]:
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]


def anchors(text: str) -> set[str]:
    """The names that headings have in links, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", CODE_BLOCK.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in headings}


def check_links(root: Path) -> Iterator[str]:
    for page in pages(root):
        text = CODE_BLOCK.sub("", page.read_text())
        for target, anchor in LINK.findall(text):
            if "://" in target:
                continue
            path = page.parent / target if target else page
            where = page.relative_to(root)
            if not path.exists():
                yield f"{where}: {target} does not exist. Mend the link."
            elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text()):
                yield f"{where}: {path.name} has no heading '{anchor}'. Mend the link."


def check_files(root: Path) -> Iterator[str]:
    there = {p.relative_to(root).as_posix() for f in FOLDERS for p in (root / f).rglob("*.*")}
    named = ("CONTRIBUTING.md", "docs/architecture.md", "docs/changes.md")
    for page in [root / n for n in named] + sorted((root / "docs" / "architecture").glob("*.md")):
        for name in FILE.findall(CODE_BLOCK.sub("", page.read_text())):
            if name not in NOT_OURS and not any(f"/{path}".endswith(f"/{name}") for path in there):
                yield f"{page.relative_to(root)}: there is no file {name}. Mend the name."


def check_rooms(root: Path) -> Iterator[str]:
    folder = root / "docs" / "architecture"
    areas = {p.name for p in (root / "csrc").iterdir() if p.is_dir()} | {"torch_xla"}
    for area in sorted(areas - {p.stem for p in folder.glob("*.md")}):
        yield f"docs/architecture/{area}.md: there is no such page. Say what {area} does."
    for page in sorted(folder.glob("*.md")):
        if (count := len(page.read_text().split())) > MOST_WORDS_OF_A_PAGE:
            yield (
                f"docs/architecture/{page.name}: {count} words, at most {MOST_WORDS_OF_A_PAGE} "
                f"may be. Make two pages of it."
            )


def sentences(text: str) -> Iterator[str]:
    """Those of paragraphs and items of lists; tables and code are none."""
    lines = [
        "" if line.startswith(("|", "#", "    ")) else re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n", line)
        for line in CODE_BLOCK.sub("", text).splitlines()
    ]
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        words = LINK.sub("link", " ".join(paragraph.split()))
        yield from re.split(r"(?<=[.?!])\s+", words)


def check_sentences(root: Path) -> Iterator[str]:
    for page in pages(root):
        name = page.relative_to(root).as_posix()
        told = list(sentences(page.read_text()))
        long = [s for s in told if len(s.split()) > MOST_WORDS_OF_A_SENTENCE]
        if len(long) > (most := LONG_SENTENCES.get(name, 0)):
            yield (
                f"{name}: {len(long)} sentences of over {MOST_WORDS_OF_A_SENTENCE} words, at most "
                f"{most} may be. Make two of this one: {long[0]}"
            )
        elif len(long) < most:
            yield f"{name}: {len(long)} long sentences by now. Write that in LONG_SENTENCES."
        riddles = [s for s in told if RIDDLE.match(s)]
        if len(riddles) > (most := RIDDLES.get(name, 0)):
            yield (
                f"{name}: {len(riddles)} sentences open with What, Whether, Of or How, at most "
                f"{most} may. Say subject, verb, object: {riddles[-1]}"
            )
        elif len(riddles) < most:
            yield f"{name}: {len(riddles)} sentences open so by now. Write that in RIDDLES."


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    checks = (check_links, check_files, check_rooms, check_sentences)
    violations = [line for check in checks for line in check(root)]
    print(*violations, sep="\n", end="\n" if violations else "")
    print(f"check_docs: {len(pages(root))} pages")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
