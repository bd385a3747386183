"""python -m torch_xla.aot script.py --topology v5e:2x2

Runs a script as it is, on this machine's CPU unless PJRT_DEVICE says otherwise, and compiles each
program that it runs for a topology too.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from torch_xla import _XLAC
from torch_xla._src.aot.compiler import TopologyCompiler
from torch_xla._src.aot.figures import AotError, Compiled, DoesNotFit, human
from torch_xla._src.aot.programs import Program


def main(arguments: Sequence[str]) -> int:
    """The exit status: that of the script; else 1 where a program does not fit or compile."""
    options, given = _parse(arguments)
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    try:
        compiler = TopologyCompiler(options.topology, options.plugin)
    except AotError as error:
        print(error, file=sys.stderr)
        return 2
    if options.spmd:
        os.environ["XLA_USE_SPMD"] = "1"
        if os.environ["PJRT_DEVICE"] == "CPU":
            os.environ["CPU_NUM_DEVICES"] = str(compiler.chip.count)
    with compiler:
        _XLAC._lower_also_for(compiler.target)
        status = _run(options.script, given)
        failed = _report(compiler, options.save)
    return status or int(failed)


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        "python -m torch_xla.aot",
        description="Runs a script on this machine and compiles each program that it runs for "
        "chips that are not there: does it fit, what does it cost? Options that are not listed "
        "here, and what follows --, are the script's.",
        allow_abbrev=False,
    )
    parser.add_argument("script", help="the script, which runs as it is, with its arguments")
    parser.add_argument("--topology", default="v5e:2x2", help="the chips (default: %(default)s)")
    parser.add_argument("--plugin", help="a name as in PJRT_DEVICE, or a library (default: TPU)")
    parser.add_argument(
        "--spmd",
        action="store_true",
        help="as XLA_USE_SPMD=1, on as many CPU devices as the topology has",
    )
    parser.add_argument("--save", metavar="FOLDER", help="writes the executables there")
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, rest = parser.parse_known_args(arguments[:end])
    if not os.path.isfile(options.script):
        parser.error(f"expected a script, there is no file {options.script!r}")
    return options, [*rest, *arguments[end + 1 :]]


def _run(script: str, arguments: list[str]) -> int:
    """Runs the script as `python script.py` does, and returns its exit status."""
    sys.argv[:] = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_filename != script:
            frame = frame.tb_next  # what has run the script
        traceback.print_exception(error.with_traceback(frame or error.__traceback__))
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _report(compiler: TopologyCompiler, folder: str | None) -> bool:
    """Prints what the programs need; returns whether one of them has no executable."""
    programs = _XLAC._take_also_lowered()
    chip = compiler.chip
    print(f"\n{len(programs)} programs for {chip.topology} ({chip.kind}), on each chip")
    if not programs:
        return False
    width = max(len(name) for name, _, _ in programs)
    print(
        f"{'program':{width + 4}} {'memory':>11} {'operations':>18} {'accessed':>11} "
        f"{'time':>15}  bound"
    )
    failed = False
    for i, (name, text, refusal) in enumerate(programs):
        label = f"{i:3} {name:{width}}"
        if refusal:
            print(f"{label} has no program for {compiler.target}: {refusal}")
            failed = True
            continue
        try:
            compiled = compiler.compile(Program(name, text))
        except DoesNotFit as error:
            print(f"{label} {human(error.needed):>11} does not fit. {error}")
            failed = True
            continue
        except AotError as error:
            print(f"{label} {error}")
            failed = True
            continue
        print(label, _row(compiled), flush=True)
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            compiled.save(Path(folder, f"{i}.{re.sub(r'[^.A-Za-z0-9_-]', '_', name)}.executable"))
    return failed


def _row(compiled: Compiled) -> str:
    return (
        f"{human(compiled.memory.total):>11} {compiled.operations_text():>18} "
        f"{human(compiled.bytes_accessed):>11} {compiled.time_text():>15}  {compiled.bound or ''}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
