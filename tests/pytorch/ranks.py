"""Runs PyTorch's tests of torch.distributed on xla, and on the CPU as their judge:
`python -m tests.pytorch.ranks --device xla`.

The wheel of PyTorch has them: torch/testing/_internal/distributed/distributed_test.py. They are
written for tensors of the CPU and of CUDA; here what names no device makes tensors of xla, and what
names CUDA means xla. Ranks stay alive from test to test, and are started again after a failure.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import types
import unittest
from collections.abc import Iterator

MODULE = "torch.testing._internal.distributed.distributed_test"
PREFIX = "outcome "


def _any_device(*_args: object, **_kwargs: object):  # type: ignore[no-untyped-def]
    """A decorator that asks for GPUs, and here for nothing."""
    return lambda function: function


def load(device: str) -> types.ModuleType:
    """PyTorch's module, in whose text CUDA is the device that is tested."""
    import torch
    from torch.testing._internal import common_distributed

    if device == "xla":
        for name in ("skip_if_lt_x_gpu", "nccl_skip_if_lt_x_gpu"):
            setattr(common_distributed, name, _any_device)
        common_distributed.skip_if_no_gpu = lambda function: function
        for kind in (torch.Tensor, torch.nn.Module):
            kind.cuda = lambda self, *_args, **_kwargs: self.to("xla")  # type: ignore[method-assign]
        common_distributed.DistTestCases.backend_feature["xla"] = {"gloo"}
        torch.cuda.set_device = lambda _device: None
        torch.cuda.device_count = lambda: int(os.environ["WORLD_SIZE"])
        torch.cuda.current_device = lambda: "xla"
        torch.cuda.synchronize = lambda *_args, **_kwargs: None
        torch.cuda.manual_seed = torch.manual_seed
    spec = importlib.util.find_spec(MODULE)
    assert spec is not None and spec.origin is not None
    with open(spec.origin) as file:
        text = file.read()
    if device == "xla":
        text = re.sub(r"""f?(["'])cuda(:\{[^}]*\}|:\d)?\1""", '"xla"', text)
        text = re.sub(r"device=(self\.rank|rank|device_id)\b", 'device="xla"', text)
        text = re.sub(r"\.to\((self\.rank|rank|device_id)\)", '.to("xla")', text)
        text = re.sub(r"output_device=[^,]*,", "output_device=None,", text)
        text = re.sub(r"device_ids=(\[[^\]]*\]|\w+)", "device_ids=None", text)
    module = types.ModuleType(MODULE)
    module.__file__ = spec.origin
    sys.modules[MODULE] = module
    exec(compile(text, spec.origin, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    return module


def tests_of(module: types.ModuleType) -> type:
    """The class that PyTorch's test/distributed/test_distributed_spawn.py makes."""
    return type(
        "TestDistBackendWithSpawn",
        (module.TestDistBackend, module.DistributedTest._DistTestBase),
        {},
    )


def serve(device: str) -> None:
    """One rank: names of tests come by the standard input, what became of them goes out."""
    import torch
    import torch.distributed as dist

    if device == "xla":
        import torch_xla  # noqa: F401
    module = load(device)
    cases = tests_of(module)
    dist.init_process_group("xla" if device == "xla" else "gloo", init_method="env://")
    if device == "xla":
        torch.set_default_device("xla")
    from torch.testing._internal.common_distributed import TEST_SKIPS

    skips = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
    names = unittest.TestLoader().getTestCaseNames(cases)
    print(PREFIX + json.dumps(names), flush=True)
    for line in sys.stdin:
        name = line.strip()
        outcome, why = "passed", ""
        try:
            case = cases(name)
            case.rank = dist.get_rank()
            case.file_name = os.environ["TEMP_DIR"] + "/init"
            torch.manual_seed(0)
            getattr(case, name)()
        except unittest.SkipTest as skip:
            outcome, why = "skipped", str(skip)
        except SystemExit as ended:
            outcome, why = "skipped", skips.get(ended.code, str(ended.code))
        except BaseException as error:
            outcome, why = "failed", "".join(traceback.format_exception(error))
        print(PREFIX + json.dumps([name, outcome, why]), flush=True)


class Ranks:
    """Processes that run tests together."""

    def __init__(self, device: str, count: int, log: str):
        self._folder = tempfile.TemporaryDirectory()
        for name in ("barrier", "test_dir", "init_dir"):
            os.mkdir(os.path.join(self._folder.name, name))
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
        self._log = open(log, "a")  # noqa: SIM115
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.pytorch.ranks", "--serve", "--device", device],
                env={
                    **os.environ,
                    "BACKEND": "gloo",
                    "WORLD_SIZE": str(count),
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "TEMP_DIR": self._folder.name,
                    "PJRT_DEVICE": "CPU",
                    "OMP_NUM_THREADS": "1",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                start_new_session=True,
            )
            for rank in range(count)
        ]
        self.names: list[str] = self._answers(120)[0]
        if not self.names[0]:
            self.end()
            raise RuntimeError(f"the ranks do not start ({self.names[2]}): see {log}")

    def _answers(self, seconds: float) -> list:
        """One of each rank; what ended or is late says so."""
        until = time.monotonic() + seconds
        answers = []
        for process in self._processes:
            answers.append(self._answer(process, until))
        return answers

    def _answer(self, process: subprocess.Popen, until: float) -> list:
        assert process.stdout is not None
        while True:
            if not select.select([process.stdout], [], [], max(0, until - time.monotonic()))[0]:
                return ["", "failed", "no answer in time"]
            line = process.stdout.readline()
            if not line:
                return ["", "failed", f"ended with {process.wait()}"]
            if line.startswith(PREFIX):
                return json.loads(line[len(PREFIX) :])
            self._log.write(line)

    def run(self, name: str, seconds: float) -> tuple[str, str]:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(name + "\n")
            process.stdin.flush()
        answers = self._answers(seconds)
        for outcome in ("failed", "skipped"):
            told = [(i, a[2]) for i, a in enumerate(answers) if a[1] == outcome]
            if told:
                return outcome, "\n".join(f"rank {i}: {why}" for i, why in told)
        return "passed", ""

    def end(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._log.close()
        self._folder.cleanup()


def outcomes(
    device: str, count: int, pattern: str, seconds: float, log: str
) -> Iterator[tuple[str, str, str]]:
    """Name, outcome and reason of each test whose name matches."""
    ranks = Ranks(device, count, log)
    try:
        for name in [n for n in ranks.names if re.search(pattern, n)]:
            outcome, why = ranks.run(name, seconds)
            yield name, outcome, why
            if outcome == "failed":
                ranks.end()
                ranks = Ranks(device, count, log)
    finally:
        ranks.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("xla", "cpu"), default="xla")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60, help="for each test")
    parser.add_argument("--log", default=os.devnull, help="what the ranks print")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("pattern", nargs="?", default="")
    options = parser.parse_args()
    if options.serve:
        serve(options.device)
        return
    counts: collections.Counter[str] = collections.Counter()
    for name, outcome, why in outcomes(
        options.device, options.ranks, options.pattern, options.seconds, options.log
    ):
        counts[outcome] += 1
        print(outcome, name, why if outcome == "failed" else why.splitlines()[:1], flush=True)
    print(*(f"{n} {outcome}" for outcome, n in sorted(counts.items())), sep=", ")


if __name__ == "__main__":
    main()
