"""Prints the test files of a room, for `make test ROOM=executor`; without a room, checks that each
test file has one, and each unit of code a test, and prints the table.

A room is an area of csrc/, or what users see of it. Tests of single operators (`tests/ops`), whole
models and random programs belong to none: `make test` runs them.

The test of a unit bears its name: csrc/executor/step/deferred.cpp has tests/unit/test_deferred.py.
A test of more units than one names them in the last lines of its docstring, "Units: a/b, _src/c.":
from csrc/ or torch_xla/ on. One of torch_xla/_src may name a package.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from check_rooms import room_of, sources, units

FOLDERS = ("api", "jobs", "spmd", "unit")  # whose files have a room
# Files of `unit`, `api`, `jobs`, `spmd`, in this order, without `test_`.
ROOMS: dict[str, str] = {
    # recorded tensors, views, lines
    "lazy": """
        unit/autograd unit/computed_views unit/first_calls unit/memory unit/resizing unit/sources
        unit/traced_views unit/turned_views unit/versions unit/views
        api/deepcopy api/random api/storages api/tensors
    """,
    # programs, runs, barriers, the disk cache
    "executor": """
        unit/background unit/compile_progress unit/deferred unit/donation unit/faulted_training
        unit/graph unit/in_flight unit/many_values unit/new_state unit/numbers unit/offers
        unit/pieces unit/program unit/program_cache unit/read unit/replicas unit/undo
        api/compile api/disk_cache api/sync api/training
    """,
    # kernels registered with PyTorch
    "dispatch": """
        unit/call_keys unit/decompositions unit/fallback unit/memory_overlap unit/platform_limits
        unit/rules unit/threads unit/traced_function unit/unboxed unit/written_memory
        api/custom_ops api/generator api/narrow_dtypes api/precision api/slow_training
    """,
    # loops, branches and functions that are recorded once
    "functions": """
        unit/aliasing
        api/control_flow api/scan api/scan_layers api/scan_parts
    """,
    # torch.compile
    "dynamo": """
        unit/launching
        api/dynamo api/openxla api/openxla_lines api/openxla_networks
    """,
    # what explains a run
    "insight": """
        api/cost api/debug_files api/debug_flags api/debug_level api/faults
        api/first_fault api/memory_snapshot api/metrics api/parts api/profiler api/profiler_loops
        api/profiler_plugin api/profiler_xprof api/recompiles api/report api/waits
    """,
    # programs that leave the process
    "export": """
        unit/aot_collectives unit/program_data
        api/aot api/custom_call_target api/jax_versions api/saved_step api/saved_step_files
        api/stablehlo api/stablehlo_calls api/stablehlo_dynamic api/unbounded_dynamism
        api/xla_builder
    """,
    # plugins and devices as PyTorch knows them
    "device": """
        unit/flags unit/plugins unit/tpu_environment
        api/amp api/device_integration api/devices api/dlpack api/import api/streams
    """,
    # the other public modules, and names of earlier versions
    "python": """
        unit/extension_stub unit/fork_server unit/leaning unit/leaning_dtensor unit/leaning_system
        unit/repo
        api/checkpoint api/custom_kernel api/data api/examples api/extension
        api/extension_graphs api/loader api/module_identity api/old_names api/pjrt_names
        api/pytorch_test_base api/quantized api/spawn api/syncfree api/utils api/xla_backend
        api/xla_model
    """,
    # jobs of several processes
    "job": """
        unit/place unit/replica_groups unit/store
        api/fsdp
        jobs/accelerate jobs/agreement jobs/c10d jobs/collectives jobs/ddp jobs/exchanges
        jobs/faults jobs/fsdp jobs/launch jobs/one_compile jobs/places jobs/process_meshes
        jobs/profiles jobs/random_programs jobs/rendezvous jobs/scripts jobs/spanning
        jobs/spmd_processes jobs/waits
    """,
    # several devices
    "spmd": """
        unit/auto_sharding_choices
        spmd/auto_sharding spmd/collectives spmd/exchanges spmd/gspmd spmd/job_of_two
        spmd/local_map spmd/manual_gradients spmd/manual_sharding spmd/marks
        spmd/programs_for_pods spmd/sharded_memory spmd/sharded_operators spmd/sharding
        spmd/sharding_in_graphs spmd/spmd_mode spmd/spmd_models spmd/spmd_training spmd/torus
    """,
    # DTensor, FSDP2 and checkpoints
    "dtensor": """
        spmd/checkpoint spmd/checkpoint_crashes spmd/checkpoint_kinds spmd/checkpoint_manager
        spmd/dtensor spmd/dtensor_compile spmd/dtensor_identity spmd/dtensor_operators spmd/partial
        spmd/patched_linear spmd/sharded_tensor spmd/trainer
    """,
}

# Units of these rooms have a test.
TESTED = ("csrc/executor/", "csrc/dispatch/record/", "csrc/dispatch/functions/", "torch_xla/_src/")
# But these, which others' tests run. The list only shrinks.
WITHOUT_TEST: set[str] = {"executor/compile/observer", "executor/insight/watchers"}


def files_of(room: str) -> list[str]:
    paths = (name.split("/") for name in ROOMS[room].split())
    return [f"tests/{folder}/test_{name}.py" for folder, name in paths]


def faults(root: Path) -> list[str]:
    there = {
        path.relative_to(root).as_posix()
        for folder in FOLDERS
        for path in (root / "tests" / folder).glob("test_*.py")
    }
    listed = [file for room in ROOMS for file in files_of(room)]
    found = [
        f"{file}: in no room. Add it to one in scripts/room_tests.py."
        for file in sorted(there - set(listed))
    ]
    found += [f"{file}: there is no such test." for file in sorted(set(listed) - there)]
    found += [
        f"{file}: in two rooms." for file in sorted({f for f in listed if listed.count(f) > 1})
    ]
    return found


def units_of_docstring(text: str) -> list[str]:
    doc = ast.get_docstring(ast.parse(text)) or ""
    line = re.search(r"^Units: (.*)\.$", doc, re.S | re.M)
    return [name for name in re.split(r",\s+", line[1])] if line else []


def untested(root: Path) -> Iterator[str]:
    """Without the first folder of their paths, as tests name them."""
    paths = [path for path in sources(root) if path.name != "__init__.py"]
    unit_of = units([path for path in paths if path.suffix != ".py"])
    known = {f"{room_of(path)}/{unit_of.get(path, path.stem)}" for path in paths}
    known = {unit.split("/", 1)[1] for unit in known if unit.startswith(TESTED)}
    packages = {unit.rsplit("/", 1)[0] for unit in known if unit.startswith("_src/")}
    tested = set()
    for file in sorted((root / "tests").rglob("test_*.py")):
        named = units_of_docstring(file.read_text())
        for name in named:
            if name not in known | packages:
                where = file.relative_to(root)
                yield f"{where}: there is no unit {name}. Mend the line of units."
        name = file.stem.removeprefix("test_")
        tested |= {*named, *(unit for unit in known | packages if unit.split("/")[-1] == name)}
    tested |= {
        u for u in known if u.startswith("_src/") and u.rsplit("/", 1)[0] in tested - {"_src"}
    }
    for unit in sorted(known - tested - WITHOUT_TEST):
        name = unit.split("/")[-1]
        yield f"{unit}: has no test. Name one test_{name}.py, or the unit in a test's docstring."
    for unit in sorted(WITHOUT_TEST & tested | WITHOUT_TEST - known):
        yield f"{unit}: has a test by now, or is no unit. Take it off WITHOUT_TEST."


def main() -> int:
    rooms = sys.argv[1:]
    if unknown := [room for room in rooms if room not in ROOMS]:
        print(
            f"room_tests.py: expected one of {', '.join(ROOMS)}, got {unknown[0]}.", file=sys.stderr
        )
        return 2
    if rooms:
        print(*(file for room in rooms for file in files_of(room)))
        return 0
    root = Path(__file__).parents[1]
    found = [*faults(root), *untested(root)]
    print(*found, sep="\n", end="\n" if found else "")
    print(f"room_tests: {', '.join(f'{room} {len(files_of(room))}' for room in ROOMS)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
