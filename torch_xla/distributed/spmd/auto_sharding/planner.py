"""Chooses a mesh and how a program is split along it, for `use_spmd(auto=True)`."""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torch_xla import _XLAC
from torch_xla.distributed.spmd.auto_sharding import costs
from torch_xla.distributed.spmd.auto_sharding.costs import Layout, Machine
from torch_xla.distributed.spmd.auto_sharding.problem import Problem, make, seen
from torch_xla.distributed.spmd.auto_sharding.program import Program, Type, read
from torch_xla.distributed.spmd.auto_sharding.solve import DoesNotFit, Solution, solve
from torch_xla.distributed.spmd.mesh import ShardingError

_AXES = ("x", "y")
# A program whose products have fewer elements is not worth a plan.
_LEAST_ELEMENTS = 1e3


@dataclass
class Row:
    """The choice for arguments that are alike.

    Attributes:
        type: Their type, such as "f32[1024, 512]".
        count: How many there are.
        spec: The partition spec: a name of an axis, a tuple of names or None for each dimension.
        bytes: On each device, of all of them.
    """

    type: str
    count: int
    spec: tuple[Any, ...]
    bytes: int


@dataclass
class Plan:
    """The choice for a program, and its reasons.

    Attributes:
        mesh: Sizes of the mesh's axes, by name.
        rows: What was chosen for its arguments, those that are alike together.
        specs: The partition spec of each argument, in their order.
        seconds: Of the step, by the model of `costs`: it compares ways to split, and predicts no
            times.
        bytes: What lives on a device when most does, by the model.
        alternatives: The seconds of each mesh that was tried, by its sizes.
        estimates: Seconds by the compiler, of the meshes whose programs `torch_xla.aot` compiled
            to choose among them: of all kernels and of all that is sent.
    """

    mesh: dict[str, int]
    rows: list[Row]
    specs: list[tuple[Any, ...]]
    seconds: float
    bytes: float
    alternatives: dict[tuple[int, ...], float] = field(default_factory=dict)
    estimates: dict[tuple[int, ...], float] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the mesh's axes."""
        return tuple(self.mesh.values())

    def __str__(self) -> str:
        mesh = ", ".join(f"{name}={size}" for name, size in self.mesh.items())
        lines = [f"mesh ({mesh}), of {_listed(self.alternatives)} a step by the model"]
        if self.estimates:
            lines.append(f"and of {_listed(self.estimates)} by the compiler")
        lines.append("")
        lines.append(f"{'count':>5}  {'type':24} {'spec':28} bytes on each device")
        for row in self.rows:
            spec = ", ".join("None" if entry is None else repr(entry) for entry in row.spec)
            lines.append(
                f"{row.count:5}  {row.type:24} ({spec}){'':{max(0, 26 - len(spec))}} {row.bytes:,}"
            )
        lines += ["", f"at most {self.bytes:,.0f} bytes live on a device by the model"]
        return "\n".join(lines)


def _listed(seconds: dict[tuple[int, ...], float]) -> str:
    """Times of meshes."""
    return ", ".join(
        f"{'x'.join(map(str, sizes))}: {time * 1e3:.3g} ms" for sizes, time in seconds.items()
    )


_plans: collections.deque[Plan] = collections.deque(maxlen=256)
_enabled = False


def enable(mesh: Any = None, memory: float | None = None) -> None:
    """Lets the split of all programs be chosen from now on.

    Args:
        mesh: A `Mesh` of all devices with one or two axes, along which values are split; None lets
            it be chosen too.
        memory: Bytes that a program may take on each device; without it nine tenths of what a
            device has, where the platform tells. The less there is, the more is split that would
            be faster whole.

    Raises:
        ImportError: There is no `scipy`.
        ShardingError: The mesh has more axes.
    """
    global _enabled
    if importlib.util.find_spec("scipy") is None:
        raise ImportError(
            "use_spmd: expected scipy, whose solver auto=True needs, found none. Run: "
            "pip install scipy"
        )
    asked = None
    if mesh is not None:
        sizes = mesh.mesh_shape
        if len(sizes) > 2:
            raise ShardingError(
                f"auto_sharding: expected a mesh of one or two axes, got {tuple(sizes)}."
            )
        asked = _Mesh(mesh._names(), sizes, [int(d) for d in mesh.device_ids])
    _XLAC._set_split_planner(functools.partial(_plan, asked, memory))
    _enabled = True


@dataclass
class _Elsewhere:
    """The machine that programs are planned for in place of the devices of this process.

    Attributes:
        machine: One of the devices.
        budget: The bytes that a program may take on it; None: as many as it likes.
        sizes: Of the only mesh to plan for; None: it is chosen.
    """

    machine: Machine
    budget: float | None
    sizes: tuple[int, ...] | None = None


_elsewhere: _Elsewhere | None = None
_TRIES = 4
_WITHIN = 1.25


def compile_for(compiler: Any, program: Callable[[str], Any]) -> Any:
    """Compiles a program for the chips of a topology, split as is chosen for them.

    The model of costs is rough. So the plans of all meshes that are within a quarter of the best
    one by it are compiled, and the one that takes least by the compiler's own estimates is given.

    Args:
        compiler: A `TopologyCompiler`.
        program: Makes the program for a platform.

    Raises:
        torch_xla.aot.DoesNotFit, torch_xla.aot.Refused: No plan of those that were tried fits, or
            the compiler takes none.
        DoesNotFit: There is no plan that would need as little memory as it had to.
    """
    chip = compiler.chip
    usual = costs.machine_of(compiler.target)
    machine = dataclasses.replace(
        usual,
        operations=chip.flops_per_second or usual.operations,
        memory=chip.bytes_per_second or usual.memory,
        link=chip.link_bytes_per_second or usual.link,
    )
    on = _Elsewhere(machine, None if chip.memory is None else 0.9 * chip.memory)
    before = list(_plans)
    made = _attempt(compiler, program, on)
    if list(_plans) == before or _estimate(made) is None:
        return _compiled(made)
    first = _plans[-1]
    tried = {first.sizes: (made, first)}
    for sizes, seconds in first.alternatives.items():
        if sizes not in tried and seconds <= _WITHIN * min(first.alternatives.values()):
            made = _attempt(compiler, program, dataclasses.replace(on, sizes=sizes))
            tried[sizes] = made, _plans[-1]
    # The compiler that estimates one mesh estimates all.
    estimates = {sizes: _estimate(made) or math.inf for sizes, (made, _) in tried.items()}
    made, plan = tried[min(estimates, key=estimates.__getitem__)]
    estimates = {sizes: time for sizes, time in estimates.items() if time != math.inf}
    _plans.clear()
    _plans.extend(before)
    if estimates:
        alternatives = first.alternatives
        _plans.append(dataclasses.replace(plan, alternatives=alternatives, estimates=estimates))
    return _compiled(made)


def _attempt(compiler: Any, program: Callable[[str], Any], on: _Elsewhere) -> Any:
    """`_fitting`, or the error by which there is none."""
    from torch_xla._src.aot.figures import AotError

    try:
        return _fitting(compiler, program, on)
    except (AotError, DoesNotFit) as error:
        return error


def _compiled(made: Any) -> Any:
    if isinstance(made, Exception):
        raise made
    return made


def _estimate(compiled: Any) -> float | None:
    """Seconds of a run where nothing is sent while something is computed; endless for an error."""
    if isinstance(compiled, Exception):
        return math.inf
    if compiled.kernel_seconds is None or compiled.sending_seconds is None:
        return None
    return compiled.kernel_seconds + compiled.sending_seconds


def _fitting(compiler: Any, program: Callable[[str], Any], on: _Elsewhere) -> Any:
    """The program as planned, for less memory where the compiler finds that it does not fit: the
    model counts memory roughly."""
    global _elsewhere
    from torch_xla._src.aot.figures import DoesNotFit as ChipIsTooSmall

    for tries in range(_TRIES):
        last = plans()[-1:]
        _elsewhere = on
        try:
            made = program(compiler.target)
        finally:
            _elsewhere = None
        try:
            return compiler.compile(made)
        except ChipIsTooSmall:
            # Without a plan, the next program would be the same one.
            if on.budget is None or tries == _TRIES - 1 or plans()[-1:] == last:
                raise
            on = dataclasses.replace(on, budget=0.6 * min(on.budget, _plans[-1].bytes))
    raise AssertionError


def is_enabled() -> bool:
    """True if the split of programs is chosen."""
    return _enabled


def plans() -> list[Plan]:
    """The choices for the last 256 programs of this process that were worth splitting."""
    return list(_plans)


def meshes_of(devices: int) -> list[tuple[int, ...]]:
    """The meshes to try: one axis, and two of all sizes.

    `XLA_AUTO_SPMD_MESH=2,4` in the environment names the only one.

    Raises:
        ValueError: The sizes of that do not multiply to the number of devices.
    """
    asked = _XLAC._xla_flag("XLA_AUTO_SPMD_MESH")
    if asked:
        sizes = tuple(int(n) for n in asked.split(",")) if asked.replace(",", "").isdigit() else ()
        if not 1 <= len(sizes) <= 2 or int(np.prod(sizes)) != devices:
            raise ValueError(
                f"XLA_AUTO_SPMD_MESH: expected one or two sizes that multiply to {devices}, such "
                f"as {devices},1, got {asked!r}."
            )
        return [sizes]
    pairs = [(n, devices // n) for n in range(2, devices) if devices % n == 0]
    return [(devices,), *pairs]


class _Mesh:
    """A mesh, and how layouts on it are said to the runtime."""

    def __init__(self, names: Sequence[str], sizes: Sequence[int], devices: Sequence[int]) -> None:
        self.names, self.sizes, self.devices = list(names), tuple(sizes), list(devices)

    def sharding(self, layout: Layout, rank: int) -> _XLAC.OpSharding:
        spec: list[list[int]] = [[] for _ in range(rank)]
        for axis, dim in enumerate(layout):
            if dim >= 0:
                spec[dim].append(axis)
        return _XLAC.OpSharding.along(self.names, list(self.sizes), self.devices, spec)

    def spec(self, layout: Layout, rank: int) -> tuple[Any, ...]:
        along = [
            [n for n, d in zip(self.names, layout, strict=True) if d == dim] for dim in range(rank)
        ]
        return tuple(
            None if not names else names[0] if len(names) == 1 else tuple(names) for names in along
        )


def _given(leaves: Sequence[Any]) -> tuple[_Mesh | None, list[Layout | None]]:
    """The mesh that values are split along already, and their layouts.

    None for values that are whole, and for those that are split as no layout says: the model takes
    these for what can be chosen, too, though they stay as they are.
    """
    mesh: _Mesh | None = None
    fixed: list[Layout | None] = []
    for leaf in leaves:
        axes = None if leaf is None else leaf.axes
        if axes is None:
            fixed.append(None)
            continue
        names, sizes, devices, dims = axes
        if mesh is None:
            mesh = _Mesh(names, sizes, devices)
        if (tuple(sizes), list(devices)) != (mesh.sizes, mesh.devices):
            fixed.append(None)
            continue
        layout = [-1] * len(sizes)
        for dim, along in enumerate(dims):
            for axis in along:
                layout[axis] = dim
        fixed.append(tuple(layout))
    return mesh, fixed


def choose(
    program: Program,
    meshes: Sequence[_Mesh],
    fixed: Sequence[Layout | None],
    replaces: Sequence[int],
    machine: Machine,
    budget: float | None,
) -> tuple[_Mesh, Problem, Solution, dict[tuple[int, ...], float]]:
    """The best of the meshes, the problem on it, its solution, and the seconds of each mesh.

    Raises:
        DoesNotFit: No way to split the program keeps within `budget` bytes on a device.
    """
    found: list[tuple[_Mesh, Problem, Solution]] = []
    failures: list[DoesNotFit] = []
    for mesh in meshes:
        problem = make(program, mesh.sizes, machine, fixed, replaces)
        try:
            found.append((mesh, problem, solve(problem, machine, budget)))
        except DoesNotFit as e:
            failures.append(e)
    if not found:
        raise failures[0]
    # The model is not that exact: more axes have to gain something.
    best = min(found, key=lambda f: f[2].seconds * 1.02 ** len(f[0].sizes))
    return (*best, {mesh.sizes: solution.seconds for mesh, _, solution in found})


def _plan(
    asked: _Mesh | None,
    memory: float | None,
    platform: str,
    devices: int,
    data: dict[str, Any],
    leaves: Sequence[Any],
    replaces: Sequence[int],
) -> tuple[list[Any], list[Any]]:
    """The answer to the runtime: an OpSharding for each argument, and for results of calls.

    Args:
        asked: The mesh to use, None to choose one.
        memory: Bytes that the program may take on each device, None for what there is.
        platform: What the devices are, "CPU", "TPU" or the like.
        devices: How many there are; several.
        data: The program (`describe` in csrc/executor/program/lower.h), as `read` takes it.
        leaves: The OpSharding of each argument that is data, None for those that are whole.
        replaces: For each result, the argument that it takes the place of, or -1.
    """
    program = read(data)
    if not _is_worth(program):
        return [None] * len(leaves), []
    on = _elsewhere or _Elsewhere(costs.machine_of(platform), _memory(platform))
    given, fixed = _given(leaves)
    known = given or asked
    if known is not None:
        meshes = [known]
    else:
        sizes = meshes_of(devices) if on.sizes is None else [on.sizes]
        meshes = [_Mesh(_AXES[: len(s)], s, range(devices)) for s in sizes]
    budget = on.budget if memory is None else memory
    mesh, problem, solution, tried = choose(program, meshes, fixed, replaces, on.machine, budget)
    of_leaves = []
    for leaf, choice, value in zip(leaves, problem.arguments, program.arguments, strict=False):
        layout = solution.layout(problem, choice)
        is_new = leaf is None and layout != (-1,) * len(mesh.sizes)
        rank = len(program.types[value].dims)
        of_leaves.append(mesh.sharding(layout, rank) if is_new else None)
    _plans.append(_explained(program, mesh, problem, solution, tried))
    return of_leaves, _of_results(program, mesh, problem, solution)


def _is_worth(program: Program) -> bool:
    products = ("stablehlo.dot_general", "stablehlo.convolution")
    return any(
        op.name in products and program.types[op.results[0]].elements >= _LEAST_ELEMENTS
        for op in program.operations
    )


def _memory(platform: str) -> float | None:
    """Nine tenths of a device's memory, None where the platform does not tell."""
    if platform == "CPU":
        return None  # virtual devices share the memory of the host
    from torch_xla.core.xla_model import get_memory_info

    total = get_memory_info("xla:0").get("bytes_limit", 0)  # of the devices together
    return 0.9 * total / len(_XLAC._xla_real_devices()) or None


def _of_results(program: Program, mesh: _Mesh, problem: Problem, solution: Solution) -> list[Any]:
    """The shardings of what calls give in which an operation decides."""
    said = []
    before = 0
    for end, call, results in program.calls:
        inside = {op.results[0] for op in program.operations[before:end] if op.results}
        decided = {problem.decided[v] for v in inside if v in problem.decided}
        before = end
        for index, value in enumerate(results):
            choice, view = problem.values.get(value, (None, ()))
            if choice not in decided or choice is None:
                continue
            rank = len(program.types[value].dims)
            if rank != 0:
                layout = seen(solution.layout(problem, choice), view)
                said.append((call, index, mesh.sharding(layout, rank)))
    return said


def _explained(
    program: Program, mesh: _Mesh, problem: Problem, solution: Solution, tried: Any
) -> Plan:
    rows: dict[tuple[Type, Layout], Row] = {}
    specs = []
    for choice, value in zip(problem.arguments, program.arguments, strict=False):
        kind = program.types[value]
        layout = solution.layout(problem, choice)
        name = f"{kind.dtype}[{', '.join(map(str, kind.dims))}]"
        spec = mesh.spec(layout, len(kind.dims))
        specs.append(spec)
        row = rows.setdefault((kind, layout), Row(name, 0, spec, 0))
        row.count += 1
        row.bytes += kind.bytes // costs.parts(layout, mesh.sizes)
    ordered = sorted(rows.values(), key=lambda row: -row.bytes)
    sizes = dict(zip(mesh.names, mesh.sizes, strict=True))
    return Plan(sizes, ordered, specs, solution.seconds, solution.bytes, tried)
