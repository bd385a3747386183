"""A sample of each file of PyTorch's device-generic tests, counted as in docs/pytorch_tests.md.

    python -m tests.pytorch.sample FOLDER [--seconds 200] [--jobs 2] [--out FILE] [FILE...]

FOLDER is what `source.py` has fetched; test_nn imports the package hypothesis. A test counts where
its twin for the CPU passes in PROBE seconds. Each runs in a process of its own, forked from one
that has imported the file.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
import types
import unittest
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from unittest.mock import patch

import torch_xla

from .notes import lacking

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "torch_xla" / "test" / "pytorch_test_base.py"
PROBE = 2  # seconds of processor time for a test on the CPU
LIMIT = 30  # and on xla
DEVICES = (("device", "xla:0"), ("devices", ["xla:0"]))

FILES = """
    functorch/test_eager_transforms functorch/test_ops functorch/test_vmap nn/test_convolution
    nn/test_dropout nn/test_embedding nn/test_multihead_attention nn/test_parametrization
    nn/test_pooling test_autograd test_binary_ufuncs test_complex test_custom_ops test_dlpack
    test_expanded_weights test_fake_tensor test_foreach test_indexing test_legacy_vmap
    test_linalg test_masked test_maskedtensor test_nn test_optim test_proxy_tensor
    test_python_dispatch test_reductions test_scatter_gather_ops test_segment_reductions
    test_shape_ops test_sort_and_select test_spectral_ops test_tensor_creation_ops test_torch
    test_transformers test_type_promotion test_unary_ufuncs test_view_ops
""".split()


# --- in the process of a file --------------------------------------------------------------


def load(file: str):
    """The file as a module, and the names of its tests before they were made for devices."""
    from torch.testing._internal import common_device_type as generic

    functions: set[str] = set()
    instantiate = generic.instantiate_device_type_tests

    def for_xla_too(test_class, scope, except_for=None, only_for=None, **options):
        functions.update(name for name in dir(test_class) if name.startswith("test"))
        if only_for is not None and "cpu" in only_for and only_for != "cpu":
            only_for = ["cpu", "xla"]
        instantiate(test_class, scope, except_for, only_for, **options)

    generic.instantiate_device_type_tests = for_xla_too
    sys.argv = [file]
    path = Path(f"{file}.py").resolve()
    sys.path.insert(0, str(path.parent))
    add_former_names()
    if path.parent.name == "functorch":
        leave_out_old_operators(importlib.import_module("common_utils"))
    module = sys.modules[path.stem] = types.ModuleType(path.stem)
    module.__file__ = str(path)
    # Tests are made for a device in a subclass since, where this calls itself.
    source = path.read_text().replace("super(self.__class__, self)", "super()")
    code = compile(source, path, "exec")
    # Making tests asks for the devices, whose client no fork could use.
    device, devices = (patch.object(torch_xla, name, return_value=value) for name, value in DEVICES)
    with device, devices:
        exec(code, vars(module))
    return module, functions


def add_former_names() -> None:
    """Names that the tests of PyTorch 2.6 import and that PyTorch has moved or dropped since."""
    from torch.testing._internal import (
        common_cuda,
        common_device_type,
        common_methods_invocations,
        common_mkldnn,
        common_nn,
    )

    databases = common_methods_invocations
    databases.binary_ufuncs_and_refs = databases.binary_ufuncs
    databases.skip, databases.xfail = common_device_type.skip, common_device_type.xfail
    databases.skipOps = lambda test_case, test, entries: common_device_type.skipOps(entries)
    common_mkldnn.bf32_on_and_off = common_mkldnn.reduced_f32_on_and_off
    common_cuda.tf32_is_not_fp32 = common_mkldnn.tf32_is_not_fp32
    common_nn.new_module_tests = []
    functional = types.ModuleType("torch._custom_op.functional")
    functional.register_functional_op = None
    sys.modules[functional.__name__] = functional


def leave_out_old_operators(utils) -> None:
    """functorch's tests refuse to be imported if they name operators that PyTorch has dropped."""

    def for_each(change):
        def those_that_are(test_case, test, entries):
            for entry in entries:
                with contextlib.suppress(AssertionError):
                    change(test_case, test, [entry])
            return lambda function: function

        return those_that_are

    utils.skipOps = for_each(utils.skipOps)
    utils.opsToleranceOverride = for_each(utils.opsToleranceOverride)


def pairs(module, functions: set[str]) -> list[tuple[str, tuple, tuple]]:
    """Tests made for both devices, as (name, (class, method) of the CPU, of xla). One of each test
    function first, then a second of each, in an order drawn from their names."""
    by_length = sorted(functions, key=len, reverse=True)
    groups: dict[str, list] = {}
    for class_name, on_xla in vars(module).items():
        on_cpu = getattr(module, re.sub("XLA$", "CPU", class_name), None)
        if on_cpu is on_xla or not isinstance(on_cpu, type):
            continue
        for method in dir(on_xla):
            made = re.fullmatch(r"(test.*)_xla(_.*)?", method)
            twin = f"{made[1]}_cpu{made[2] or ''}" if made else ""
            if not hasattr(on_cpu, twin):
                continue
            name = f"{class_name[:-3]}.{made[1]}{made[2] or ''}"
            function = next((f for f in by_length if method.startswith(f)), method)
            pair = name, (on_cpu, twin), (on_xla, method)
            groups.setdefault(f"{class_name}.{function}", []).append(pair)

    def drawn(pair):
        return hashlib.sha256(pair[0].encode()).digest()

    rounds = zip_longest(*(sorted(group, key=drawn) for group in groups.values()))
    return [p for each in rounds for p in sorted((p for p in each if p is not None), key=drawn)]


def outcome(test: tuple, seconds: int) -> tuple[str, str]:
    """Runs a test in a process of its own: passed, skipped, failed or unfinished, and why."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        result = unittest.TestResult()
        unittest.TestSuite([test[0](test[1])]).run(result)
        bad = [text for _, text in result.failures + result.errors]
        bad += ["passes, which is not expected"] * len(result.unexpectedSuccesses)
        kind = "failed" if bad else "skipped" if result.skipped else "passed"
        why = bad[0].partition("\nTo execute this test")[0] if bad else ""
        os.write(write, json.dumps([kind, why[-2000:]]).encode())
        os._exit(0)
    os.close(write)
    # Processor time is limited by the system; this one is for tests that wait for ever.
    ready, _, _ = select.select([read], [], [], 10 * seconds)
    if not ready:
        os.kill(child, signal.SIGKILL)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if text:
        return tuple(json.loads(text))
    died = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    if died in (signal.SIGKILL, signal.SIGXCPU):
        return "unfinished", ""
    return "failed", f"the process ended with signal {died}, status {status}"


def run_file(file: str, seconds: float) -> dict:
    tests = pairs(*load(file))
    counts = {"passed": 0, "skipped": 0, "unfinished": 0, "failed": {}}
    end = time.monotonic() + seconds
    for name, on_cpu, on_xla in tests:
        if time.monotonic() > end:
            break
        if outcome(on_cpu, PROBE)[0] != "passed":
            continue
        kind, why = outcome(on_xla, LIMIT)
        if kind == "failed":
            counts["failed"][name] = why
        else:
            counts[kind] += 1
    return {"file": file, "of": len(tests), **counts}


# --- the table -----------------------------------------------------------------------------


def sample(folder: Path, file: str, seconds: float) -> dict:
    """`run_file` in a process of its own."""
    env = {
        **os.environ,
        "PJRT_DEVICE": "CPU",
        "XLA_PERSISTENT_CACHE_PATH": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder))),
        "PYTORCH_TEST_WITH_SLOW": "1",
        "TORCH_TEST_DEVICES": str(BASE),
    }
    env.pop("CI", None)  # PyTorch would write reports with a package of its own CI
    command = [sys.executable, "-m", __spec__.name, str(folder), "--seconds", str(seconds)]
    done = subprocess.run(
        [*command, "--one", file], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        return {"file": file, "error": done.stderr[-3000:]}
    return json.loads(done.stdout.splitlines()[-1])


def row(counts: dict) -> str:
    failed = counts["failed"]
    other = [name for name, why in failed.items() if not lacking(name, why)]
    judged = counts["passed"] + len(other)
    share = f"{100 * counts['passed'] / judged:.1f} %" if judged else "-"
    cells = [counts["file"], counts["of"], counts["passed"] + len(failed), counts["skipped"]]
    cells += [counts["unfinished"], len(failed), len(failed) - len(other), len(other), share]
    return " | ".join(["", *map(str, cells), ""]).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--seconds", type=float, default=200, help="for each file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="takes what failed, as JSON")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    if options.one:
        print(json.dumps(run_file(options.one, options.seconds)))
        return
    folder = options.folder.resolve()
    print("| file | of | run | skipped | unfinished | failed | lacking | other | passed |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    results = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for counts in pool.map(lambda f: sample(folder, f, options.seconds), options.files):
            results.append(counts)
            if "error" in counts:
                print(f"{counts['file']}: {counts['error']}", file=sys.stderr)
                continue
            print(row(counts), flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1))
    if any("error" in counts for counts in results):
        sys.exit("Some files gave no result.")


if __name__ == "__main__":
    main()
