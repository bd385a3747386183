"""Changes that `import torch_xla` makes to PyTorch, in one list. Each part has its own module."""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import sys
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._src import ending

# Once a module of PyTorch's is imported, a module here has a function for it.
_WHEN_IMPORTED = (
    ("torch._higher_order_ops.while_loop", "functions.control_flow", "register"),
    ("torch.utils.checkpoint", "patches.checkpointing", "install"),
    ("torch._prims.rng_prims", "dynamo.rng_prims", "install"),
    ("torch._subclasses.fake_tensor", "dynamo.fake_tensors", "install"),
    ("torch._dynamo.device_interface", "dynamo.device", "register"),
    ("torch._dynamo.trace_rules", "patches.dtensor_calls", "capture_from_local"),
    ("torch._dynamo.variables.builder", "dynamo.dtensors", "install"),
    ("torch._dynamo.backends.registry", "dynamo.backends", "register"),
    ("torch._dynamo.backends.torchxla", "dynamo.backends", "extract_once"),
    ("torch._inductor.compile_fx", "dynamo.backends", "refuse_inductor"),
    ("torch.distributed.tensor._api", "patches.dtensor_calls", "install"),
    (
        "torch.distributed.tensor.experimental._func_map",
        "patches.dtensor_calls",
        "install_local_map",
    ),
    ("torch.distributed._functional_collectives", "patches.dtensor_calls", "install_collectives"),
    (
        "torch.distributed.fsdp._fully_shard._fsdp_collectives",
        "processes.fsdp_kernels",
        "install",
    ),
    (
        "torch.distributed.fsdp._fully_shard._fully_shard",
        "patches.dtensor_calls",
        "install_fully_shard",
    ),
)


_is_installed = False


def install() -> None:
    """Called at the end of the package's import. Does nothing where that is a reload."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    from torch_xla._src.device import module as device_module
    from torch_xla._src.old_names import gru
    from torch_xla._src.patches import (
        clip_grad,
        dlpack,
        loaded_state,
        loading,
        module_identity,
        optim_defaults,
        pickling,
    )
    from torch_xla._src.patches.after_import import after_import
    from torch_xla._src.processes import device_mesh, pytorch_functions

    sys.modules.setdefault("_XLAC", _XLAC)  # programs also import it by this name
    _XLAC.__getattr__ = _old_extension_name
    _take_older_arguments()
    _XLAC._set_package_folder(os.path.dirname(os.path.dirname(__file__)))
    _XLAC._set_plugin_resolver(_choose_plugin)
    device_module.register()
    device_module.join_manual_seed()
    module_identity.install()
    pickling.install()
    optim_defaults.install()
    loaded_state.install()
    clip_grad.install()
    loading.install()
    dlpack.install()
    device_mesh.install()
    pytorch_functions.install()
    gru.install()
    for name, module, function in _WHEN_IMPORTED:
        after_import(name, functools.partial(_call, module, function))
    if torch.distributed.is_available():
        importlib.import_module("torch_xla.distributed.xla_backend")  # registers itself
    atexit.register(ending.finish)
    _XLAC._xla_set_nan_handler(_raise_nans)
    if _XLAC._xla_flag("XLA_DUMP_FATAL_STACK"):
        _print_fatal_stacks()
    if _XLAC._xla_flag("XLA_REPORT_FILE"):
        _record_run()


def _call(module: str, function: str) -> None:
    getattr(importlib.import_module(f"torch_xla._src.{module}"), function)()


def _watch_job() -> None:
    from torch_xla._src.job import watch

    watch.start()


def _store_of_plugin() -> tuple[str, int, str]:
    from torch_xla._src.job import store

    store.store("plugin")  # it may be this process that keeps it
    return store.as_reached("plugin")


def _record_run() -> None:
    from torch_xla._src.insight import recording

    recording.start_from_flag()


def _raise_nans(run: _XLAC._KeptRun) -> None:
    from torch_xla._src.insight import faults

    faults.raise_nans(run)


def _print_fatal_stacks() -> None:
    import faulthandler

    torch._C._set_print_stack_traces_on_fatal_signal(True)
    faulthandler.enable()  # last: it calls the handler before it
    _XLAC._xla_widen_signal_stack()


def _old_extension_name(name: str) -> Any:
    from torch_xla._src.old_names import extension as extension_names

    return extension_names.find(name)


def _take_older_arguments() -> None:
    lower = _XLAC._get_stablehlo

    def _get_stablehlo(tensors: Any, platform: str = "", *older: Any, **named: Any) -> Any:
        if not older and not named:
            return lower(tensors, platform)
        from torch_xla._src.old_names import extension_graphs

        return extension_graphs.get_stablehlo(tensors, platform, *older, **named)

    _XLAC._get_stablehlo = _get_stablehlo


def _choose_plugin() -> dict:
    """Called by the extension when the first device is needed."""
    from torch_xla._src.device import plugins, rng
    from torch_xla._src.job import place

    spec = plugins.find()
    options = dict(spec.client_options)
    store = None
    here = place.place()
    if here.world_size > 1:
        if _XLAC._xla_is_spmd():
            spec.expect_one_client("XLA_USE_SPMD")
            rng.share()
        spec.configure_multiprocess(here.local_rank, here.local_world_size)
        options = spec.options_of_process(here.local_rank)
        _watch_job()
        if spec.needs_store():
            store = _store_of_plugin()
    spec.prepare()
    return {
        "device_type": spec.device_type,
        "library_path": spec.library_path,
        "options": options,
        "compile_options": dict(spec.compile_options),
        "store": store,
        "rank": here.rank,
        "num_processes": here.world_size if spec.makes_one_client() else 0,
    }
