"""PyTorch's own tests, which its wheels lack: the ones in Debian's source package of PyTorch.

    python tests/pytorch/source.py FOLDER    fetches them to FOLDER/test

`apt-get` fetches them, with lists and settings of its own: nothing of the machine's is changed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SUITE = "trixie"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# These would steer pytest for PyTorch's own runs.
UNWANTED = ("conftest.py", "pytest_shard_custom.py")


class Unreachable(Exception):
    """There is no mirror of Debian to fetch from; the text says why."""


def mirror() -> str:
    """Where this machine takes Debian's packages from."""
    lists = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    for path in lists:
        if not path.is_file():
            continue
        for line in path.read_text(errors="replace").splitlines():
            found = re.match(r"(?:URIs:|deb(?:\s+\[[^]]*\])?)\s+(\S+)", line)
            if found and re.search(r"/debian/?$", found[1]):
                return found[1]
    raise Unreachable("no mirror of Debian in /etc/apt")


def apt(folder: Path, *words: str) -> None:
    options = {
        "Dir::Etc::sourcelist": folder / "none",
        "Dir::Etc::sourceparts": folder / "parts",
        "Dir::State::Lists": folder / "lists",
        "APT::Sandbox::User": "root",
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items()), *words]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"apt-get {words[0]}: {error}") from error
    if done.returncode != 0:
        raise Unreachable(f"apt-get {words[0]}: {done.stderr.strip()[-500:]}")


def fetch(folder: Path) -> Path:
    """PyTorch's tests, fetched unless they are there already.

    Args:
        folder: Takes the folder `test`, some 50 MB.

    Returns:
        The folder of the tests.

    Raises:
        Unreachable: Without a mirror of Debian, or when it does not answer.
    """
    folder = folder.resolve()  # apt-get takes other paths for its own
    tests = folder / "test"
    if tests.is_dir():
        return tests
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        work = Path(made)
        (work / "parts").mkdir()
        (work / "lists" / "partial").mkdir(parents=True)
        (work / "none").touch()
        (work / "parts" / "source.sources").write_text(
            f"Types: deb-src\nURIs: {mirror()}\nSuites: {SUITE}\nComponents: main\n"
            f"Signed-By: {KEYRING}\n"
        )
        apt(work, "update")
        apt(work, "source", "--download-only", "pytorch")
        [archive] = work.glob("pytorch_*.orig.tar.*")
        with tarfile.open(archive) as tar:
            members = [m for m in tar if re.match(r"[^/]+/test/", m.name) and m.isfile()]
            tar.extractall(work / "source", members, filter="data")
        [unpacked] = (work / "source").glob("*/test")
        for name in UNWANTED:
            (unpacked / name).unlink(missing_ok=True)
        try:
            unpacked.rename(tests)
        except OSError:
            if not tests.is_dir():  # else another process was quicker
                raise
    return tests


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1])))
