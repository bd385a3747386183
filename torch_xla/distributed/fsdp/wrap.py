"""Which modules of a model are wrapped by themselves.

A policy is asked about a module twice: with `recurse=True` whether to look at its children, then
with `recurse=False` whether to wrap the module itself. `unwrapped_params` is how many elements its
parameters have that no wrapped child holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def always_wrap_policy(*args: Any, **kwargs: Any) -> bool:
    """Wraps every module."""
    return True


def lambda_auto_wrap_policy(
    module: nn.Module, recurse: bool, unwrapped_params: int, lambda_fn: Callable[[nn.Module], bool]
) -> bool:
    """Wraps the modules for which `lambda_fn(module)` is true."""
    return recurse or lambda_fn(module)


def transformer_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    transformer_layer_cls: set[type[nn.Module]],
) -> bool:
    """Wraps the modules of these classes: the layers of a transformer."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    min_num_params: int = int(1e8),
    force_leaf_modules: set[type[nn.Module]] | None = None,
    exclude_wrap_modules: set[type[nn.Module]] | None = None,
) -> bool:
    """Wraps modules with at least `min_num_params` elements in parameters that are not yet wrapped.

    Args:
        module, recurse, unwrapped_params: See this module's text.
        min_num_params: The least number of elements.
        force_leaf_modules: Classes whose children are not looked at; `nn.MultiheadAttention` unless
            given.
        exclude_wrap_modules: Classes that are not wrapped; `nn.ModuleList` and `nn.ModuleDict`
            unless given.
    """
    leaves = {nn.MultiheadAttention} if force_leaf_modules is None else force_leaf_modules
    excluded = (
        {nn.ModuleList, nn.ModuleDict} if exclude_wrap_modules is None else exclude_wrap_modules
    )
    is_large = unwrapped_params >= min_num_params
    if recurse:
        return is_large and not isinstance(module, tuple(leaves))
    return is_large and not isinstance(module, tuple(excluded))


def _wrap(module: nn.Module, wrapper_cls: Callable[..., nn.Module], **kwargs: Any) -> nn.Module:
    return wrapper_cls(module, **kwargs)


def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: Callable[..., bool],
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: set[nn.Module],
    ignored_params: set[nn.Parameter],
    only_wrap_children: bool = False,
    **kwargs: Any,
) -> tuple[nn.Module, int]:
    """Wraps the modules that a policy chooses, the innermost first.

    Args:
        module: The model; its children are replaced in place.
        auto_wrap_policy: The policy.
        wrapper_cls: Called with a module and `kwargs`.
        ignored_modules: Left as they are, with all that is in them.
        ignored_params: Not counted.
        only_wrap_children: Whether `module` itself is left unwrapped.

    Returns:
        The module or its wrapper, and how many elements of its parameters have been wrapped.
    """
    count = sum(p.numel() for p in module.parameters() if p not in ignored_params)
    if not auto_wrap_policy(module=module, recurse=True, unwrapped_params=count):
        return module, 0
    wrapped = 0
    for name, child in module.named_children():
        if child in ignored_modules:
            continue
        new_child, of_child = recursive_wrap(
            child, auto_wrap_policy, wrapper_cls, ignored_modules, ignored_params, **kwargs
        )
        setattr(module, name, new_child)
        wrapped += of_child
    rest = count - wrapped
    if only_wrap_children or not auto_wrap_policy(
        module=module, recurse=False, unwrapped_params=rest
    ):
        return module, wrapped
    return _wrap(module, wrapper_cls, **kwargs), count
