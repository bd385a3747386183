"""Peak resident memory of training, xla against eager, each in a process of its own.

    python -m benchmarks.memory [resnet18] [--steps 20]

The plugin's fixed part is what a process holds after one small xla computation, beyond one that has
imported torch alone. Target, for ResNet-18: at most 1.3 times eager's peak plus that part.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

from benchmarks.networks import NETWORKS

MIB = 1024  # ru_maxrss is in KiB


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def child(kind: str, name: str, steps: int) -> None:
    import torch

    if kind != "torch":
        import torch_xla
    if kind == "plugin":
        (torch.ones(2, device="xla") + 1).cpu()
    if kind in ("xla", "cpu"):
        from benchmarks.steps import training_step

        step = training_step(NETWORKS[name], "xla" if kind == "xla" else "eager")
        for i in range(steps):
            step()
            if kind == "xla":
                torch_xla.sync(wait=True)
            if i == steps // 2:
                print(peak())
    print(peak())


def measure(kind: str, name: str, steps: int) -> list[int]:
    command = [sys.executable, "-m", "benchmarks.memory", name]
    text = subprocess.run(
        [*command, "--child", kind, "--steps", str(steps)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [int(line) for line in text.split()]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="resnet18", choices=list(NETWORKS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--child", choices=("torch", "plugin", "xla", "cpu"))
    options = parser.parse_args(arguments)
    name = options.model
    if options.child:
        child(options.child, name, options.steps)
        return
    fixed = measure("plugin", name, 0)[-1] - measure("torch", name, 0)[-1]
    eager = measure("cpu", name, options.steps)[-1]
    half, xla = measure("xla", name, options.steps)
    print(f"peak resident memory of training: {NETWORKS[name].title}")
    print(f"  eager {eager / MIB:.0f} MiB, xla {xla / MIB:.0f} MiB, plugin {fixed / MIB:.0f} MiB")
    print(f"  ratio {xla / eager:.2f}, less the plugin {(xla - fixed) / eager:.2f} (target 1.3)")
    print(f"  growth over the second half: {(xla - half) / MIB:.1f} MiB")


if __name__ == "__main__":
    main()
