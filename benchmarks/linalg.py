"""Linear algebra in XLA's code, as platforms without LAPACK run it, beside PyTorch eager (LAPACK):
milliseconds on the CPU and their ratio.

    python -m benchmarks.linalg [--only svd] [--sizes 64 256 512] [--dtype float32] [--rounds 5]

The first run of a program compiles it: the last column is what that took, in seconds.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

os.environ["XLA_HOST_KERNELS"] = "none"  # before a program is made

import torch

import torch_xla
from benchmarks.timing import seconds, side_by_side


def symmetric(x: torch.Tensor) -> torch.Tensor:
    return x + x.mH


def factored(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.geqrf(x)


# What is timed, and what makes its arguments of a random matrix.
CASES: dict[str, tuple[Callable[..., object], Callable[[torch.Tensor], tuple[torch.Tensor, ...]]]]
CASES = {
    "lu_factor": (torch.linalg.lu_factor, lambda x: (x,)),
    "solve": (torch.linalg.solve, lambda x: (x, x.flip(0))),
    "inv": (torch.linalg.inv, lambda x: (x,)),
    "det": (torch.linalg.det, lambda x: (x,)),
    "qr": (torch.linalg.qr, lambda x: (x,)),
    "householder_product": (torch.linalg.householder_product, factored),
    "ormqr": (torch.ormqr, lambda x: (*factored(x), x)),
    "lstsq": (lambda a, b: torch.linalg.lstsq(a, b).solution, lambda x: (x, x.flip(0))),
    "eigh": (torch.linalg.eigh, lambda x: (symmetric(x),)),
    "eigvalsh": (torch.linalg.eigvalsh, lambda x: (symmetric(x),)),
    "svd": (lambda x: torch.linalg.svd(x, full_matrices=False), lambda x: (x,)),
    "svdvals": (torch.linalg.svdvals, lambda x: (x,)),
    "pinv": (torch.linalg.pinv, lambda x: (x,)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--sizes", nargs="*", type=int, default=[64, 256, 512])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    print(f"{'':28}{'xla ms':>10}{'eager ms':>10}{'ratio':>8}{'first s':>9}")
    for name in options.only:
        function, arguments_of = CASES[name]
        for n in options.sizes:
            on_cpu = arguments_of(torch.randn(n, n, dtype=getattr(torch, options.dtype)))
            on_xla = [t.to("xla") for t in on_cpu]

            def call(function=function, on_xla=on_xla) -> None:
                result = function(*on_xla)  # kept alive: what nobody holds is not computed
                torch_xla.sync(wait=True)
                del result

            first = seconds(call, 1)
            xla, eager = side_by_side(
                call, lambda f=function, a=on_cpu: f(*a), repeats=1, rounds=options.rounds
            )
            print(
                f"{name + ' ' + str(n):28}{xla * 1e3:10.2f}{eager * 1e3:10.2f}"
                f"{xla / eager:8.1f}{first:9.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
