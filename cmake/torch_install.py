"""Finds the torch that torch_xla is built against, for CMake and for the wheel's metadata.

pip's build isolation hides the environment that is being installed into; the interpreter that runs
the build still belongs to it, so its site-packages are looked at as well. torch itself is never
imported: the build needs its headers and libraries only.
"""

from __future__ import annotations

import importlib.util
import os
import re
import site
import sys
import sysconfig
from pathlib import Path


def _candidates():
    spec = importlib.util.find_spec("torch")
    if spec is not None:
        for location in spec.submodule_search_locations or ():
            yield Path(location)
    folders = [sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    # uv and `python -m build` run the build in an environment of their own.
    environment = os.environ.get("VIRTUAL_ENV")
    if environment:
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        folders.append(f"{environment}/lib/{python}/site-packages")
    for folder in folders:
        yield Path(folder) / "torch"


def find_torch() -> tuple[Path, str] | None:
    """The folder of the installed torch and its version, or None."""
    for folder in _candidates():
        version = folder / "version.py"
        if (folder / "lib" / "libtorch_cpu.so").exists() and version.exists():
            found = re.search(r"^__version__\b.*?['\"](.+?)['\"]", version.read_text(), re.M)
            if found:
                return folder, found.group(1)
    return None


def get_requires_for_dynamic_metadata(settings) -> list[str]:
    if find_torch():
        return []
    return [f"torch=={settings['torch-default']}"]


def dynamic_metadata(settings, project) -> dict[str, list[str]]:
    """The dependencies: a wheel needs the torch release whose C++ interface it was compiled for."""
    found = find_torch()
    if found:
        release = ".".join(found[1].split("+")[0].split(".")[:2])
        torch = f"torch=={release}.*"
    else:
        torch = f"torch{settings['torch-supported']}"
    return {"dependencies": [torch, *settings["dependencies"]]}


def dynamic_wheel(settings) -> dict[str, bool]:
    return {"dependencies": True}


if __name__ == "__main__":
    torch_install = find_torch()
    if torch_install is None:
        sys.exit(f"torch: expected an installed torch, found none for {sys.executable}.")
    print(torch_install[0])
