"""Names of the extension for graphs: their leaves, their programs, and when those may run.

`extension_names.find` asks here for what it lacks. Programs of this module have all numbers of
their graph as constants, and take its leaves alone.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._src.device import rng
from torch_xla._src.device.names import device_name, is_xla_tensor
from torch_xla._src.export import mlir
from torch_xla._src.export.bundle import type_of, type_text
from torch_xla._src.functions import step

NAMES: dict[str, Any] = {}


def _name(function: Callable) -> Callable:
    NAMES[function.__name__] = function
    return function


# Leaves

_SEED = -127389  # no tensor has this id


def leaves_of(
    tensors: Sequence[torch.Tensor], first: Sequence[torch.Tensor] = ()
) -> list[torch.Tensor]:
    """Tensors with the data that the graph of others reads, in the order of its parameters.

    They are tensors that Python has; new ones where the data belongs to none any more.

    Args:
        tensors: Those that may wait.
        first: Those that are taken where several have the same data.
    """
    pending = pending_of(tensors)
    if not pending:
        return []
    held = [*first, *tensors, *live_tensors(str(pending[0].device))]
    bases = [t._base for t in held if t._base is not None]
    held = computed_of([*held, *bases])
    owners: dict[int, torch.Tensor] = {}
    for tensor in held:
        owners.setdefault(_XLAC._xla_data_id(tensor), tensor)
    leaves = _XLAC._graph_leaves(pending)
    return [owners.get(_XLAC._xla_data_id(leaf), leaf).detach() for leaf in leaves]


def _last_first(tensors: Sequence[torch.Tensor], leaves: Sequence[Any]) -> list[Any]:
    """Leaves of the graph of tensors in the order of torch_xla 2.9: those used last come first."""
    return [leaves[i] for i in _XLAC._graph_leaves_last_first(pending_of(tensors))]


def pending_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Those that wait to be computed."""
    waits = _XLAC._check_tensor_need_materialization(list(tensors))
    return [t for t, waiting in zip(tensors, waits, strict=True) if waiting]


def computed_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Those that have data."""
    waits = _XLAC._check_tensor_need_materialization(list(tensors))
    return [t for t, waiting in zip(tensors, waits, strict=True) if not waiting]


def live_tensors(device: str) -> list[torch.Tensor]:
    """The tensors of a device that Python knows."""
    name = f"xla:{_XLAC._xla_get_device_ordinal(device)}"
    return [
        t
        for t in _XLAC._xla_objects_of((torch.Tensor,))
        if (type(t) is torch.Tensor or issubclass(type(t), torch.nn.Parameter))
        and str(t.device) == name
        and _is_plain(t)
    ]


def _is_plain(tensor: torch.Tensor) -> bool:
    """True if it is no wrapper of another one, as a function of torch.func sees."""
    try:
        _XLAC._xla_get_tensor_id(tensor)
    except (TypeError, RuntimeError):
        return False
    return True


@contextmanager
def constant_numbers() -> Iterator[None]:
    """In the block, programs have the numbers of their calls as constants."""
    before = _XLAC._get_xla_all_numbers_special_scalars()
    _XLAC._set_xla_all_numbers_special_scalars(True)
    try:
        yield
    finally:
        _XLAC._set_xla_all_numbers_special_scalars(before)


def lowered(tensors: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> tuple[str, int]:
    """The program that takes the leaves, and how many random seeds it takes in one tensor after
    them.

    Raises:
        NotImplementedError: It takes something else.
    """
    with constant_numbers():
        text = _XLAC._get_stablehlo(pending_of(tensors))
    arguments, _ = _XLAC._read_program(text)["functions"]["main"]
    types = [type_text(dims, dtype) for _, dims, dtype in arguments]
    expected = [type_of(leaf) for leaf in leaves]
    if types == expected:
        return text, 0
    (_, seeds, dtype) = arguments[-1]
    if types[:-1] != expected or len(seeds) != 1 or dtype != "i64":
        raise NotImplementedError(
            f"_xla_warm_up_cache: expected a program of its {len(expected)} leaves, "
            f"{', '.join(expected)}, got one of {', '.join(types)}. Let torch_xla.sync() run it."
        )
    return text, seeds[0]


@_name
def _get_tensors_xla_device_data_node(
    output_tensors: Sequence[torch.Tensor], uncloned_tensors: Sequence[torch.Tensor] = ()
) -> tuple[list[int], list[torch.Tensor]]:
    """The ids and tensors of the data that a pending graph reads: what it uses last comes first.

    A graph that draws random numbers has one more, of the id `_get_seed_info_id()`. Where several
    tensors have the same data, one of `uncloned_tensors` is taken.
    """
    pending = pending_of(output_tensors)
    leaves = leaves_of(output_tensors, uncloned_tensors)
    takes_seed = bool(pending) and lowered(pending, leaves)[1] > 0
    leaves = _last_first(pending, leaves)
    ids = [_XLAC._xla_get_tensor_id(leaf) for leaf in leaves]
    if takes_seed:
        ids.append(_SEED)
        leaves.append(_get_base_seed_as_tensor(str(pending[0].device)))
    return ids, leaves


@_name
def _get_graph_hash(tensors: Sequence[torch.Tensor]) -> bytes:
    """The hash of the graph of these tensors. Where auto-sharding splits it, or XLA_AUTO_SPMD_MESH
    names the mesh for that, this is a part of it."""
    return _XLAC._xla_graph_hash(list(tensors), _XLAC._xla_flag("XLA_AUTO_SPMD_MESH"))


@_name
def _get_seed_info_id() -> int:
    """The id of the random seed among the leaves of a graph."""
    return _SEED


@_name
def _get_base_seed_as_tensor(device: str) -> torch.Tensor:
    """The random state of a device as an integer on it. Only a run of its graph advances it."""
    state = rng.get_state(device)
    return torch.tensor(state - (1 << 64) if state >= 1 << 63 else state).to(
        device_name(device) or "xla"
    )


# Programs

_MOST_GRAPHS = 256
# By the hash of the graph, and by the one that its numbers decide, too.
_graphs: dict[str, dict[bytes, _Graph]] = {}


class _Graph:
    """A compiled graph."""

    def __init__(self, tensors: Sequence[torch.Tensor]):
        pending = pending_of(tensors)
        leaves = leaves_of(tensors)
        text, self._seeds = lowered(pending, leaves)
        self._device = str(pending[0].device)
        # As they are given: of each the program's argument.
        self._order = _last_first(pending, range(len(leaves)))
        self._types = [type_of(leaves[i]) for i in self._order]
        like = [torch.empty_like(leaf, device="meta") for leaf in leaves]
        if self._seeds:
            self._types.append("tensor<i64>")
            like.append(torch.empty(self._seeds, dtype=torch.int64, device="meta"))
        self._program = _XLAC._LoadedProgram(text.encode(), like, "cached graph", self._device)

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        inputs = [t.detach().to(self._device) for t in inputs]
        given = [type_of(t) for t in inputs]
        if given != self._types:
            raise RuntimeError(
                f"_run_cached_graph: expected inputs of types {', '.join(self._types)}, got "
                f"{', '.join(given) or 'none'}. Pass what _get_tensors_xla_device_data_node gives."
            )
        _check_allowed("_run_cached_graph")
        places = sorted(range(len(self._order)), key=self._order.__getitem__)
        inputs = [inputs[i] for i in places] + inputs[len(places) :]
        if self._seeds:
            # Each draw has a seed of its own, and so has the next run.
            draws = torch.arange(self._seeds, device=inputs[-1].device)
            inputs[-1] = inputs[-1] + draws * 0x51B54A32D192ED03
            state = rng.get_state(self._device) + 0x9E3779B97F4A7C15
            rng.set_state(state % (1 << 64), self._device)
        return self._program(inputs)


@_name
def _xla_warm_up_cache(tensors: Sequence[torch.Tensor], devices: Sequence[str] = ()) -> None:
    """Compiles the graph of tensors for `_run_cached_graph`. They go on waiting.

    A sync compiles for itself, since other tensors may wait beside these.
    """
    tensors = list(tensors)
    if _XLAC._xla_is_spmd() and _XLAC._xla_num_real_devices() > 1:
        raise NotImplementedError(
            "_xla_warm_up_cache: expected tensors of one device, got SPMD mode. Use "
            "torch_xla.compile."
        )
    key = _get_graph_hash(tensors).decode()
    with constant_numbers():
        with_numbers = _get_graph_hash(tensors)
    of_key = _graphs.get(key, {})
    # Two cannot be told apart, nor more.
    if pending_of(tensors) and with_numbers not in of_key and len(of_key) < 2:
        of_key[with_numbers] = _Graph(tensors)
    _graphs[key] = of_key
    while len(_graphs) > _MOST_GRAPHS:
        del _graphs[next(iter(_graphs))]


@_name
def _run_cached_graph(hash: bytes | str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Runs what `_xla_warm_up_cache` has compiled for the graph of this `_get_graph_hash`.

    Args:
        hash: The hash.
        inputs: Tensors like those of `_get_tensors_xla_device_data_node`, in that order, of any
            device.

    Returns:
        New values of the tensors that waited, in their order.

    Raises:
        RuntimeError: There is no such program, or there are several for other numbers.
    """
    text = hash.decode() if isinstance(hash, bytes) else hash
    of_key = _graphs.get(text)
    if of_key is None:
        raise RuntimeError(
            f"_run_cached_graph: expected the hash of a compiled graph, got {text!r}. "
            "Call _xla_warm_up_cache with its tensors first."
        )
    if len(of_key) > 1:
        raise RuntimeError(
            f"_run_cached_graph: expected the hash of one graph, got one of {len(of_key)} that "
            "differ in their numbers alone. Make the numbers a part of hashes: "
            "_set_xla_all_numbers_special_scalars(True)."
        )
    return [result for graph in of_key.values() for result in graph.run(inputs)]


@_name
def _run_stablehlo(bytecode: str | bytes, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Runs a StableHLO module, text or a portable artifact, on tensors of xla."""
    if not isinstance(bytecode, (str, bytes)):
        raise TypeError(
            f"_run_stablehlo: expected StableHLO as text or bytes, got a {type(bytecode).__name__}."
        )
    program = bytecode.encode() if isinstance(bytecode, str) else bytecode
    _check_allowed("_run_stablehlo")
    for tensor in inputs:
        if not is_xla_tensor(tensor):
            raise TypeError(
                f"_run_stablehlo: expected xla tensors, got one on {tensor.device}. Move it with "
                ".to('xla')."
            )
    device = str(inputs[0].device) if inputs else _XLAC._xla_get_default_device()
    shapes = tuple((tuple(t.shape), t.dtype) for t in inputs)
    loaded = _loaded(program, shapes, device)
    expected, given = loaded.argument_types(), [type_of(t) for t in inputs]
    if expected and expected != given:
        raise RuntimeError(
            f"_run_stablehlo: expected inputs of types {', '.join(expected)}, got "
            f"{', '.join(given) or 'none'}."
        )
    return loaded([t.detach() for t in inputs])


@functools.lru_cache(maxsize=64)
def _loaded(program: bytes, shapes: tuple, device: str) -> _XLAC._LoadedProgram:
    like = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in shapes]
    return _XLAC._LoadedProgram(program, like, "stablehlo", device)


def get_stablehlo(
    tensors: Sequence[torch.Tensor],
    device: str,
    devices: Sequence[str] = (),
    emit_bytecode: bool = False,
) -> bytes:
    """`_XLAC._get_stablehlo` by its arguments of earlier versions.

    Returns:
        The program of tensors, or of all that waits, for every compiler: its text, or a portable
        artifact.
    """
    text = _XLAC._get_portable_stablehlo(list(tensors))
    return mlir.artifact(text) if emit_bytecode else text.encode()


# Waiting


@_name
def _check_device_tensor_need_materialization(device: str) -> list[bool]:
    """For each tensor of a device that Python knows: whether it waits to be computed."""
    return _XLAC._check_tensor_need_materialization(live_tensors(device))


@_name
def _get_tensors_handle(tensors: Sequence[torch.Tensor]) -> list[int]:
    """A number for the memory that each tensor is in, which is computed first.

    A placeholder has none, and a number of its own.
    """
    there = [t for t in tensors if not _XLAC._is_placecholder(t)]
    _XLAC._xla_sync_multi(there, [], wait=False, sync_xla_data=False)
    return [_XLAC._xla_data_id(t) or _XLAC._xla_get_tensor_id(t) for t in tensors]


# When programs run


class _Thread(threading.local):
    is_refusing = False
    session: str | None = None


_thread = _Thread()


@_name
def _get_allow_execution() -> bool:
    """True if this thread may launch programs."""
    return not _thread.is_refusing


@_name
def _set_allow_execution(allow: bool) -> None:
    """Lets what launches a program on this thread raise RuntimeError, or not.

    As a function of `torch_xla.compile(full_graph=True)` does: both calls belong into the same one,
    or outside of all.
    """
    if allow == _get_allow_execution():
        return
    if allow:
        _XLAC._xla_leave_region()
    else:
        _XLAC._Region("what follows _set_allow_execution(False)", True, None).enter()
    _thread.is_refusing = not allow


def _check_allowed(name: str) -> None:
    if _thread.is_refusing:
        raise RuntimeError(
            f"{name}: expected that programs may run, got _set_allow_execution(False). Call it "
            "with True first."
        )


_name_of_region = _XLAC._get_current_graph_name


def _get_current_graph_name() -> str:
    """That of the `torch_xla.compile` around, else what `_set_current_graph_name` was given."""
    return _name_of_region() or (step.named_name if step.named is not None else "")


@_name
def _set_current_graph_name(name: str) -> None:
    """Names the programs of later `torch_xla.sync()`; "" ends that."""
    step.named_name, step.named = name, _XLAC._Region(name, False, None) if name else None
    _XLAC._get_current_graph_name = _get_current_graph_name


# Sessions: parts of a program that may have so many graphs

_most_graphs = 1
_sessions: dict[str, _XLAC._Region] = {}


@_name
def _dynamic_shape_detector_set_max_different_graphs(most: int) -> None:
    """The number of graphs a session may have that has not begun before."""
    global _most_graphs
    if most < 1:
        raise ValueError(f"_dynamic_shape_detector: expected at least one graph, got {most}.")
    _most_graphs = most


@_name
def _dynamic_shape_detector_get_max_different_graphs() -> int:
    """The number that was set; 1 by default."""
    return _most_graphs


@_name
def _dynamic_shape_detector_start_session(name: str) -> None:
    """Begins what `torch_xla.compile(max_different_graphs=)` calls a call. Launches what waits."""
    if _thread.session is not None:
        raise RuntimeError(
            f"_dynamic_shape_detector_start_session: expected no session, got {_thread.session!r} "
            "on this thread. End it first."
        )
    if name not in _sessions:
        _sessions[name] = _XLAC._Region(name, False, _most_graphs)
    step.clear_pending(_sessions[name])
    _thread.session = name


@_name
def _dynamic_shape_detector_end_session() -> None:
    """Ends it, and launches its graph.

    Raises:
        RuntimeError: Its graph is one too many, and goes on waiting; or there is no session.
    """
    name, _thread.session = _thread.session, None
    if name not in _sessions:
        raise RuntimeError(
            "_dynamic_shape_detector_end_session: expected a session on this thread, got none. "
            "Start one first."
        )
    step.barrier("", "torch_xla.compile", region=_sessions[name])


@_name
def _dynamic_shape_detector_remove_session(name: str) -> None:
    """Forgets the graphs of a session."""
    _sessions.pop(name, None)
    if _thread.session == name:
        _thread.session = None
