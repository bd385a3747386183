"""Devices, barriers, random state, saving and the reductions of a training step.

Usually imported as `import torch_xla.core.xla_model as xm`.
"""

from __future__ import annotations

import contextlib
import copy
import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import torch

from torch_xla import _XLAC
from torch_xla._src.collectives import buckets as _buckets
from torch_xla._src.collectives.buckets import (  # noqa: F401
    CoalescingBuckets,
    all_gather_bucketized,
    all_reduce_bucketized_gradients,
    reduce_scatter_bucketized,
)
from torch_xla._src.collectives.channels import recv, send  # noqa: F401
from torch_xla._src.collectives.exchanges import (  # noqa: F401
    REDUCE_AND,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_MUL,
    REDUCE_OR,
    REDUCE_SUM,
    _all_gather_using_all_reduce,
    all_gather,
    all_reduce,
    all_to_all,
    collective_broadcast,
    collective_permute,
    reduce_scatter,
)
from torch_xla._src.device import devices as _devices
from torch_xla._src.device import memory as _memory
from torch_xla._src.device import rng as _rng
from torch_xla._src.device.memory import MemoryInfo
from torch_xla._src.device.names import device_name as _device_name
from torch_xla._src.functions import nested as _nested
from torch_xla._src.functions import step as _step
from torch_xla._src.job import place as _place
from torch_xla._src.old_names.devices import (  # noqa: F401
    _DEVICE_CONTEXTS,
    DeviceContext,
    _get_all_reduce_token,
    _get_device_context,
)
from torch_xla._src.old_names.replica_groups import create_optimized_replica_groups  # noqa: F401

# Devices


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """An XLA device of this process.

    Args:
        n: Its ordinal; without it the calling thread's default device, the first unless another was
            set.
        devkind: Deprecated: the device type that is expected, such as CPU, TPU, CUDA or a plugin's
            name.

    Raises:
        IndexError: There is no such device.
        RuntimeError: It is not of the type `devkind`.
    """
    device = _devices.device(n)
    if devkind is not None and devkind.upper() != _XLAC._xla_device_type().upper():
        raise RuntimeError(
            f"xla_device: expected a device of type '{devkind}', got {_XLAC._xla_device_type()}. "
            f"Set PJRT_DEVICE={devkind} before the first use of a device, or leave devkind out."
        )
    return device


def get_xla_supported_devices(
    devkind: str | None = None, max_devices: int | None = None
) -> list[str]:
    """The names of this process's XLA devices, `["xla:0", ...]`; in SPMD mode `["xla:0"]` alone.

    Args:
        devkind: Only if the device type is this one; the list is empty otherwise.
        max_devices: No more than this many.
    """
    if devkind is not None and devkind.upper() != _XLAC._xla_device_type().upper():
        return []
    return _XLAC._xla_get_devices()[:max_devices]


def xla_device_hw(device: str | torch.device) -> str:
    """The hardware type of a device: `CPU`, `TPU`, `CUDA` or the name of its plugin."""
    return xla_real_devices([device])[0].rpartition(":")[0]


def xla_real_devices(devices: Sequence[str | torch.device] | None = None) -> list[str]:
    """The hardware behind devices, as `["CPU:0", ...]`.

    Args:
        devices: The devices asked about, all of this process without it. The one of SPMD mode
            stands for several.
    """
    if devices is None:
        return _devices.real_devices()
    names = _XLAC._xla_get_devices()
    result = []
    for device in devices:
        name = _device_name(device) or _XLAC._xla_get_default_device()
        if name not in names:
            raise RuntimeError(
                f"xla_real_devices: expected one of {', '.join(names)}, got '{device}'."
            )
        result += _XLAC._xla_real_devices([name])
    return result


def xla_device_count() -> int:
    """The number of XLA devices of this process."""
    return _XLAC._xla_num_devices()


def xla_device_kind(device: str | torch.device | None = None) -> str:
    """The hardware's own name of a device, of the default one without it: "cpu", "TPU v4"."""
    return _XLAC._xla_device_kind(_device_name(device) or _XLAC._xla_get_default_device())


def _xla_real_device(device: str | torch.device) -> str:
    """The hardware behind a device, "CPU:0"; the first of several in SPMD mode."""
    return xla_real_devices([device])[0]


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """True if the tensor is on an XLA device."""
    return tensor.device.type == "xla"


def get_memory_info(device: str | torch.device | None = None) -> MemoryInfo:
    """The memory of a device.

    Returns:
        A dict with `bytes_used`, `bytes_limit`, `peak_bytes_used`, `kb_free` and `kb_total`, and
        `source`: "plugin", or "process" where the plugin keeps no statistics (the CPU's). Then the
        figures are those of this process and its machine.
    """
    return _memory.memory_info(device)


# Replicas


def get_ordinal(defval: int = 0) -> int:
    """This replica's ordinal among all. `defval` is without effect."""
    return _place.replica()[0]


def get_local_ordinal(defval: int = 0) -> int:
    """This replica's ordinal among those of this host. `defval` is without effect."""
    return _place.local_rank()


def xrt_world_size(defval: int = 1) -> int:
    """The number of replicas. `defval` is without effect."""
    return _place.replica()[1]


def is_master_ordinal(local: bool = True) -> bool:
    """True if this process is the first one: of its host if `local`, of the whole job otherwise."""
    return (_place.local_rank() if local else _place.rank()) == 0


def master_print(
    *args: Any, fd: IO[str] | None = None, local: bool = False, flush: bool = False
) -> None:
    """Prints on the first replica only.

    Args:
        args: What `print` prints.
        fd: The file to print to, standard output without it.
        local: Whether the first replica of each host prints.
        flush: As in `print`.
    """
    if is_master_ordinal(local=local):
        print(*args, file=sys.stdout if fd is None else fd, flush=flush)


def do_on_ordinals(
    target: Callable[..., Any], data: Any = (), ordinals: Sequence[int] = (0,)
) -> None:
    """Calls `target(*data)` on the replicas of these ordinals; tensors in `data` are on the CPU."""
    running = get_ordinal() in ordinals
    cpu_data = _maybe_convert_to_cpu(data, convert=running)
    if running:
        target(*cpu_data)


def xla_replication_devices(
    local_devices: Sequence[str | torch.device] | None = None,
) -> list[str]:
    """The devices among which replicas of the given ones, or of all here, work: these same.

    Args:
        local_devices: Devices of this process, of one kind.
    """
    return xla_real_devices(local_devices)


def set_replication(
    device: str | torch.device, devices: Sequence[str | torch.device] | None
) -> None:
    """Makes a device the default one of the calling thread, as the replica that it is.

    Args:
        device: The device.
        devices: The devices of all replicas of this process, or None. In SPMD mode all devices are
            one replica.

    Raises:
        NotImplementedError: There are several, not in SPMD mode; not supported yet.
    """
    if devices is not None and len(devices) > 1 and not _XLAC._xla_is_spmd():
        raise NotImplementedError(
            f"set_replication: expected one device, got {len(devices)}. Several are not supported "
            "yet."
        )
    _XLAC._xla_set_default_device(_device_name(device) or _XLAC._xla_get_default_device())


# Steps


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """Launches what was recorded for the default device; the same as `torch_xla.sync`."""
    _step.sync(wait)


def wait_device_ops(devices: Sequence[str | torch.device] = ()) -> None:
    """Waits for the runs and the asynchronous step closures of devices; launches nothing.

    Args:
        devices: The devices to wait for; all of this process if empty.

    Raises:
        RuntimeError: A run failed.
        Exception: What an asynchronous step closure raised.
    """
    names = [_device_name(d) or _XLAC._xla_get_default_device() for d in devices]
    _XLAC._xla_wait_device_ops(names)
    _step.wait_for_closures(names)


def add_step_closure(
    closure: Callable[..., Any], args: tuple[Any, ...] = (), run_async: bool = False
) -> None:
    """Queues `closure(*args)` for after the next barrier, when the tensors in `args` are computed.

    Reading them then costs a transfer and no run of its own, however many closures read however
    many tensors. Closures of a device run in the order they were added.

    Args:
        closure: The function to call.
        args: Its arguments.
        run_async: Whether it runs on another thread while Python goes on with the next step. Such
            closures also run in order, one at a time. A tensor that the next step changes in place
            may show its new value in them. What one raises, the next barrier or `wait_device_ops`
            raises.
    """
    _step.add_closure(closure, args, run_async)


def _run_step_closures() -> None:
    """Runs the closures that wait for the barrier of the default device."""
    _step.run_closures(_XLAC._xla_get_default_device())


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: list[list[int]] | None = None,
    pin_layout: bool = True,
) -> Any:
    """Averages the gradients over all replicas and makes the optimizer's step.

    Args:
        optimizer: The optimizer.
        barrier: Whether to issue the barrier, too; `MpDeviceLoader` and the like do it at their
            next batch.
        optimizer_args: Named arguments of `optimizer.step`, such as a `closure`.
        groups: The groups of replicas that average among themselves; one group of all without it.
        pin_layout: As in `all_reduce`.

    Returns:
        What `optimizer.step` returns.
    """
    reduce_gradients(optimizer, groups=groups, pin_layout=pin_layout)
    result = optimizer.step(**(optimizer_args or {}))
    if barrier:
        mark_step()
    return result


def reduce_gradients(
    optimizer: torch.optim.Optimizer,
    groups: list[list[int]] | None = None,
    pin_layout: bool = True,
) -> None:
    """Averages the gradients of the optimizer's parameters over all replicas.

    All go in one exchange, or, with ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB, so many MiB at a time.

    Args:
        optimizer: The optimizer.
        groups: The groups of replicas that average among themselves; one group of all without it.
        pin_layout: As in `all_reduce`.
    """
    _buckets.average_gradients(_fetch_gradients(optimizer), groups, pin_layout)


def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients of the optimizer's parameters that have one."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return [p.grad for p in parameters if p.grad is not None]


class RateTracker:
    """Counts things and says how many there are a second.

    Args:
        smooth_factor: How much of the last rate is kept in the next, from 0 to 1.
    """

    def __init__(self, smooth_factor: float = 0.4):
        self._smooth_factor = smooth_factor
        self._start = self._last_time = time.time()
        self._count = self._last_count = 0
        self._rate: float | None = None

    def add(self, count: int) -> None:
        """Counts `count` more."""
        self._count += count

    def rate(self) -> float:
        """Samples a second since the last call, smoothed."""
        now = time.time()
        current = (self._count - self._last_count) / max(now - self._last_time, 1e-9)
        if self._rate is not None:
            kept = self._smooth_factor
            current = kept * self._rate + (1 - kept) * current
        self._last_time, self._last_count, self._rate = now, self._count, current
        return current

    def global_rate(self) -> float:
        """Samples a second since the start."""
        return self._count / max(time.time() - self._start, 1e-9)


# Random numbers


def set_rng_state(seed: int, device: str | torch.device | None = None) -> None:
    """Sets the random state of a device, by default the current one, to an integer of 64 bits."""
    _rng.set_state(seed, device)


def get_rng_state(device: str | torch.device | None = None) -> int:
    """The random state of a device, of the default one without `device`. It computes nothing."""
    return _rng.get_state(device)


@contextlib.contextmanager
def fork_rng(device: str | torch.device | None = None, enabled: bool = True) -> Iterator[None]:
    """Context manager: the random state of a device is at its end what it was at its start.

    Args:
        device: The device; the default one without it.
        enabled: Whether it does anything.
    """
    if not enabled:
        yield
        return
    name = _device_name(device) or _XLAC._xla_get_default_device()
    generator = _XLAC._xla_default_generator(name)
    state = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(state)


# Data to and from devices


def check_view_sharing(obj: Any) -> None:
    """Checks that no two tensors inside nested data share memory.

    Raises:
        RuntimeError: Two of them do. What is written to one would change the other.
    """
    owners: dict[tuple[torch.device, int], torch.Tensor] = {}

    def check(tensor: torch.Tensor) -> None:
        if not tensor.numel():
            return
        key = (tensor.device, tensor.untyped_storage()._cdata)
        other = owners.setdefault(key, tensor)
        if other is not tensor:
            raise RuntimeError(
                "check_view_sharing: expected tensors that share no memory, got two that do, of "
                f"shapes {tuple(other.shape)} and {tuple(tensor.shape)} ({tensor.dtype}, "
                f"{tensor.device}). Clone one of them."
            )

    _nested.for_each(obj, lambda value: isinstance(value, torch.Tensor), check)


class ToXlaTensorArena:
    """Converts the selected values inside nested data, all in one call.

    Args:
        convert_fn: Receives the list of the selected values, returns as many.
        select_fn: Whether a value is one to convert.
    """

    def __init__(
        self, convert_fn: Callable[[list[Any]], list[Any]], select_fn: Callable[[Any], bool]
    ):
        self._convert = convert_fn
        self._select = select_fn

    def transform(self, inputs: Any) -> Any:
        """A copy of `inputs` with the selected values converted. Types and ties stay."""
        return _nested.replace(inputs, self._select, self._convert)


def send_cpu_data_to_device(
    datas: Any, device: str | torch.device, input_sharding: Any = None
) -> Any:
    """A copy of nested data with the CPU tensors in it moved to a device.

    Args:
        datas: Any nested data; what is not a CPU tensor stays as it is.
        device: The XLA device.
        input_sharding: A `torch_xla.distributed.spmd.ShardingSpec`, by which tensors of its rank
            are split among the devices; or a dict of such by key, None for those that are not
            split, where `datas` is a dict with these keys.

    Returns:
        Data of the same structure; for a tensor by itself a list that holds the moved one.

    Raises:
        TypeError: `input_sharding` is neither a spec nor a dict of such.
        ValueError: `input_sharding` is a dict and `datas` is none, or a spec does not fit.
        KeyError: `input_sharding` lacks a key of `datas`.
        RuntimeError: A spec has `minibatch`, and the devices do not divide the batch.
    """
    if isinstance(datas, torch.Tensor):
        datas = [datas]
    return _move_to_device(datas, device, input_sharding)


def _move_to_device(datas: Any, device: str | torch.device, input_sharding: Any = None) -> Any:
    """`send_cpu_data_to_device`, and a tensor for a tensor."""
    device = torch.device(device)
    if isinstance(input_sharding, Mapping):
        if not isinstance(datas, Mapping):
            raise ValueError(
                "input_sharding: expected a batch that is a dict, as input_sharding is one, got "
                f"{type(datas).__name__}."
            )
        missing = [key for key in datas if key not in input_sharding]
        if missing:
            raise KeyError(
                f"input_sharding: expected the keys of the batch, {list(datas)}, got none for "
                f"{missing}. Give None for what is not split."
            )
        like: Any = type(datas)
        return like(
            (key, _move_to_device(data, device, input_sharding[key])) for key, data in datas.items()
        )
    if input_sharding is not None and not hasattr(input_sharding, "can_apply"):
        raise TypeError(
            "input_sharding: expected a ShardingSpec or a dict of such, got "
            f"{type(input_sharding).__name__}."
        )

    def convert(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        if input_sharding is None:
            moved = [_like(t, t.detach().to(device)) for t in tensors]
        else:
            moved = [_like(t, input_sharding.move(t.detach(), device)) for t in tensors]
        if device.type == "xla" and _XLAC._xla_is_spmd():
            _XLAC._send_to_all_devices(moved)
        return moved

    def is_cpu_tensor(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "cpu"

    return _nested.replace(datas, is_cpu_tensor, convert)


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    """A copy of nested data with the XLA tensors in it on the CPU, after one run and one transfer.

    Without `convert` it only makes the run, and returns `data`: replicas that do not need the
    values must still launch the same graph as those that do.
    """

    def to_cpu(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        if not convert:
            _XLAC._xla_sync_multi(tensors, [], wait=False)
            return tensors
        detached = [t.detach() for t in tensors]
        return [
            _like(t, c) for t, c in zip(tensors, _XLAC._xla_get_cpu_tensors(detached), strict=True)
        ]

    def is_on_xla(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "xla"

    return _nested.replace(data, is_on_xla, to_cpu)


def _like(original: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """`moved` with what `original` has besides its values."""
    if isinstance(original, torch.nn.Parameter):
        return torch.nn.Parameter(moved, original.requires_grad)
    return moved.requires_grad_(original.requires_grad)


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Puts a barrier behind tensors: what uses them from now on is computed after all of them.

    The compiler moves no work across it, so that memory is not taken earlier than that. Values,
    gradients and version counters stay.

    Args:
        tensors: xla tensors of one device; each is replaced by its value behind the barrier.
    """
    if not tensors:
        return
    values = [t.detach() for t in tensors]
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tuple(values)):
        behind = torch.ops.torch_xla.optimization_barrier(values)
        for value, result in zip(values, behind, strict=True):
            value.copy_(result)


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Computes these tensors, and what they need, now; returns when the device has finished."""
    _XLAC._xla_sync_multi(list(tensors), [], wait=True)


def save(
    data: Any,
    file_or_path: str | Any,
    master_only: bool = True,
    global_master: bool = False,
    sync: bool = True,
) -> None:
    """Saves nested data with its tensors moved to the CPU, so that `torch.load` gives CPU data.

    All tensors are computed in one run. Views are saved as tensors of their own.

    Args:
        data: Any nested data.
        file_or_path: A path, or a file object opened for writing bytes.
        master_only: Whether only the first replica writes. Otherwise each one needs a destination
            of its own.
        global_master: With `master_only`, whether the first replica of the whole job writes, or
            (the default) that of each host.
        sync: Whether all replicas wait for each other after saving; all of them must call `save`
            then.
    """
    writes = not master_only or is_master_ordinal(local=not global_master)
    cpu_data = _maybe_convert_to_cpu(data, convert=writes)
    if writes:
        torch.save(cpu_data, file_or_path)
    if sync:
        rendezvous("torch_xla.core.xla_model.save")


# Collective operations are in _src/collectives.


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Gives the parameters and buffers of all replicas the values of the first replica's."""
    collective_broadcast([*model.parameters(), *model.buffers()])
    mark_step()


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> tuple[bytes, ...]:
    """Waits until all replicas are here. It issues a barrier before and after.

    Args:
        tag: A name for the place, the same on all.
        payload: This replica's message to the others.
        replicas: The ordinals of the replicas that take part; all of them if empty.

    Returns:
        The payloads of all replicas, in ordinal order.

    Raises:
        TypeError: The payload is not of bytes.
        ValueError: `replicas` are not ordinals of the job, or lack this replica's.
        RuntimeError: Another replica is at another tag.
    """
    if not isinstance(payload, bytes):
        raise TypeError(
            f"rendezvous '{tag}': expected a payload of bytes, got {type(payload).__name__}. "
            "Encode it."
        )
    mark_step()
    if _place.world_size() == 1 and list(replicas) in ([], [0]):
        return (payload,)
    from torch_xla._src.job import rendezvous as _rendezvous

    payloads = _rendezvous.meet(tag, payload, replicas)
    mark_step()
    return payloads


def xla_rendezvous(
    payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None
) -> list[bytes]:
    """`rendezvous` whose tag is a mere note; the payloads come as a list.

    Args:
        payload: This replica's message to the others.
        ordinals: The replicas that take part: all of them, which is what None means.
        tag: A name for messages.
    """
    return list(rendezvous(tag or "xla_rendezvous", payload, ordinals or ()))


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """Collects the data of all replicas and reduces it on the host.

    Args:
        tag: A name for messages, the same on all replicas.
        data: This replica's data: any nested data; tensors arrive on the CPU.
        reduce_fn: Receives the list of the replicas' data, in ordinal order.

    Returns:
        What `reduce_fn` returns.
    """
    cpu_data = _maybe_convert_to_cpu(data)
    if _place.world_size() == 1:
        cpu_data = copy.deepcopy(cpu_data)
        rendezvous(tag)
        return reduce_fn([cpu_data])
    written = io.BytesIO()
    torch.save(cpu_data, written)
    payloads = rendezvous(tag, written.getvalue())
    # They are of this job's processes, which run the same program.
    return reduce_fn([torch.load(io.BytesIO(p), weights_only=False) for p in payloads])


# Programs


def get_stablehlo(tensors: Sequence[torch.Tensor] | None = None) -> str:
    """The StableHLO text of the recorded graph, for any compiler.

    Its arguments are the data on the device; Python numbers and random seeds are constants.

    Args:
        tensors: The graph's outputs; without it everything that is recorded.

    Raises:
        NotImplementedError: An operator runs only as a kernel of PyTorch's.
    """
    return _XLAC._get_portable_stablehlo(list(tensors or ()))


def get_stablehlo_bytecode(tensors: Sequence[torch.Tensor] | None = None) -> bytes:
    """The text of `get_stablehlo` as a portable artifact of StableHLO: MLIR bytecode.

    Raises:
        ImportError: jaxlib is not installed.
    """
    from torch_xla._src.export import mlir

    return mlir.artifact(get_stablehlo(tensors))
