"""Prints the test files of a room, for `make test ROOM=executor`; without a room, checks that each
test file has one, and prints the table.

A room is an area of csrc/, or what users see of it. Tests of single operators (`tests/ops`), whole
models and random programs belong to none: `make test` runs them.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDERS = ("api", "spmd", "unit")  # whose files have a room
# Files of `unit`, then of `api`, then of `spmd`, without `test_`.
ROOMS: dict[str, str] = {
    # recorded tensors, views, lines
    "lazy": """
        unit/autograd unit/computed_views unit/deepcopy unit/first_calls unit/memory unit/resizing
        unit/sources unit/traced_views unit/turned_views unit/versions unit/views
        api/random api/storages api/tensors
    """,
    # programs, runs, barriers, the disk cache
    "executor": """
        unit/deferred unit/donation unit/failures unit/faulted_training unit/from_numbers
        unit/held_calls unit/many_values unit/new_state unit/numbers unit/offered_memory
        unit/pieces unit/programs unit/recipes unit/training
        api/background_compile api/compile api/disk_cache api/sync api/progress
    """,
    # kernels registered with PyTorch
    "dispatch": """
        unit/borrowed unit/call_keys unit/decompositions unit/fallback unit/memory_overlap
        unit/narrow_dtypes unit/platform_limits unit/precision unit/rules unit/threads unit/traced
        unit/written_memory
        api/custom_ops api/generator api/slow_training
    """,
    # loops, branches and functions that are recorded once
    "functions": """
        api/control_flow api/gru_of_2_9 api/identity api/scan api/scan_layers api/scan_names
    """,
    # torch.compile
    "dynamo": """
        api/dynamo_names api/openxla api/openxla_lines api/openxla_networks api/openxla_steps
    """,
    # what explains a run
    "insight": """
        unit/debug_flags unit/metrics
        api/cost api/debug_files api/debug_level api/debug_names api/faults api/first_fault
        api/memory_snapshot api/parts api/profiler api/profiler_loops api/profiler_plugin
        api/profiler_xprof api/recompiles api/report api/waits
    """,
    # programs that leave the process
    "export": """
        unit/aot_collectives
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
        api/checkpoint api/custom_kernel api/data api/examples api/extension_graphs api/loader
        api/module_identity api/names api/old_names api/pytorch_test_base api/quantized api/spawn
        api/utils_names api/xla_backend
    """,
    # several devices
    "spmd": """
        unit/auto_sharding_choices
        spmd/auto_sharding spmd/collectives spmd/gspmd spmd/local_map spmd/manual_gradients
        spmd/manual_sharding spmd/marks spmd/programs_for_pods spmd/sharded_memory
        spmd/sharded_operators spmd/sharding spmd/sharding_in_graphs spmd/spmd_models
        spmd/spmd_training spmd/torus spmd/virtual_device
    """,
    # DTensor, FSDP2 and checkpoints
    "dtensor": """
        spmd/checkpoint spmd/checkpoint_crashes spmd/checkpoint_kinds spmd/checkpoint_manager
        spmd/dtensor spmd/dtensor_compile spmd/dtensor_identity spmd/dtensor_operators spmd/partial
        spmd/patched_linear spmd/sharded_tensor spmd/trainer
    """,
}


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
    found = faults(Path(__file__).parents[1])
    print(*found, sep="\n", end="\n" if found else "")
    print(f"room_tests: {', '.join(f'{room} {len(files_of(room))}' for room in ROOMS)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
