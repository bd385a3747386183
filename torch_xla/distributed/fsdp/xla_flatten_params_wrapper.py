"""A module whose parameters are pieces of one, or of a few, so that one exchange sends them all."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn


class Place(NamedTuple):
    """Where a module has a parameter."""

    module_name: str
    module: nn.Module
    name: str

    @property
    def full_name(self) -> str:
        return f"{self.module_name}.{self.name}" if self.module_name else self.name


class FlatParameter(nn.Parameter):
    """A parameter that holds the elements of several, in a line.

    Args:
        params: The parameters; of one dtype.
        requires_grad: Whether it wants a gradient.
    """

    _param_shapes: list[torch.Size]
    _param_numels: list[int]
    _param_infos: list[Place]  # of each parameter
    _shared_param_infos: list[tuple[Place, int]]  # further places, and the parameter that is there

    def __new__(cls, params: Sequence[torch.Tensor], requires_grad: bool = True) -> FlatParameter:
        if not params:
            raise ValueError("FlatParameter: expected parameters, got none.")
        if any(isinstance(p, FlatParameter) for p in params):
            raise ValueError("FlatParameter: expected parameters that are not flat ones.")
        data = torch.cat([p.detach().reshape(-1) for p in params])
        return super().__new__(cls, data, requires_grad)

    def __init__(self, params: Sequence[torch.Tensor], requires_grad: bool = True):
        self._param_shapes = [p.shape for p in params]
        self._param_numels = [p.numel() for p in params]
        self._param_infos = []
        self._shared_param_infos = []

    def get_param_views(self, external_data: torch.Tensor | None = None) -> Iterator[torch.Tensor]:
        """Views of the parameters within it, or within `external_data`, which is as long."""
        data = self if external_data is None else external_data
        return views(data, self._param_shapes, self._param_numels)

    def metadata(self) -> tuple[list[str], list[torch.Size], list[int]]:
        """The names, the shapes and the numbers of elements of the parameters."""
        return (
            [place.full_name for place in self._param_infos],
            self._param_shapes,
            self._param_numels,
        )

    def to(self, *args: Any, **kwargs: Any) -> FlatParameter:
        """A copy on another device or in another dtype."""
        result = FlatParameter([self.data.to(*args, **kwargs)], self.requires_grad)
        result.__setstate__(self._state())
        return result

    def _state(self) -> dict[str, Any]:
        names = ("_param_shapes", "_param_numels", "_param_infos", "_shared_param_infos")
        return {name: list(getattr(self, name)) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return FlatParameter, ([self.data], self.requires_grad), self._state()


FlatTypes = FlatParameter


def views(
    data: torch.Tensor, shapes: Sequence[torch.Size], numels: Sequence[int]
) -> Iterator[torch.Tensor]:
    """Views of tensors of these shapes, one after the other in a line."""
    if data.numel() != sum(numels):
        raise ValueError(
            f"FlatParameter: expected data of {sum(numels)} elements, got {data.numel()}."
        )
    pieces = data.split(list(numels))
    return (piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True))


class XlaFlattenParamsWrapper(nn.Module):
    """A module with parameters flattened: in their places are views of flat parameters.

    Args:
        module: The module.
        param_list: The parameters that become one, or lists of them, each of which becomes one; all
            parameters of the module without it.
        flat_param_names: A name for each list.
        auto_unflatten_state_dict: Whether a state dict has the parameters, by their own names, in
            place of the flat ones.
    """

    def __init__(
        self,
        module: nn.Module,
        param_list: Sequence[Any] | None = None,
        flat_param_names: Sequence[str] | None = None,
        auto_unflatten_state_dict: bool = True,
    ):
        super().__init__()
        self._fpw_module = module
        self._auto_unflatten_state_dict = auto_unflatten_state_dict
        chosen = list(module.parameters()) if param_list is None else list(param_list)
        groups = [chosen] if chosen and isinstance(chosen[0], torch.Tensor) else chosen
        groups = [list(group) for group in groups if group]
        ids = [id(p) for group in groups for p in group]
        self.num_params_managed = len(ids)
        if len(set(ids)) != len(ids):
            raise ValueError(
                "XlaFlattenParamsWrapper: expected each parameter at most once in param_list."
            )
        names = list(flat_param_names or map(str, range(len(groups))))
        if len(names) != len(groups) or len(set(names)) != len(names):
            raise ValueError(
                f"XlaFlattenParamsWrapper: expected {len(groups)} flat_param_names, each its own, "
                f"got {names}."
            )
        self.flat_param_names = [f"flat_param_{name}" for name in names]
        self._flat = [_flat(module, group) for group in groups]
        self.is_flattened = False
        self._flatten()
        self.register_state_dict_post_hook(_hide_wrapper)
        self.register_load_state_dict_pre_hook(_show_wrapper)

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return self._fpw_module

    @property
    def flat_params(self) -> list[Any]:
        """The flat parameters; none while they are not flattened."""
        return [getattr(self, name) for name in self.flat_param_names] if self.is_flattened else []

    @property
    def flat_param(self) -> Any:
        """The flat parameter, if there is one."""
        flat = self.flat_params
        if len(flat) != 1:
            raise ValueError(f"flat_param: expected one flat parameter, got {len(flat)}.")
        return flat[0]

    def metadata(self, flat_param_idx: int) -> tuple[list[str], list[torch.Size], list[int]]:
        """`FlatParameter.metadata` of one of them, with names within this wrapper."""
        places, _, shapes, numels = self._flat[flat_param_idx]
        return [f"_fpw_module.{place.full_name}" for place in places], shapes, numels

    def parts(self, flat_param_idx: int) -> list[tuple[list[str], torch.Size]]:
        """The parameters within one of them: all names, within this wrapper, and the shape."""
        flat = self._flat[flat_param_idx]
        names = [[f"_fpw_module.{place.full_name}"] for place in flat.places]
        for place, index in flat.shared:
            names[index].append(f"_fpw_module.{place.full_name}")
        return list(zip(names, flat.shapes, strict=True))

    def get_param_views(
        self, external_data_list: Sequence[torch.Tensor | None] | None = None
    ) -> Iterator[torch.Tensor]:
        """Views of the parameters within the flat ones, or within data in place of these."""
        own = self.flat_params
        given = list(external_data_list) if external_data_list is not None else [None] * len(own)
        if len(given) != len(self._flat):
            raise ValueError(
                f"get_param_views: expected data for {len(self._flat)} flat parameters, got "
                f"{len(given)}."
            )
        return itertools.chain.from_iterable(
            views(own[i] if data is None else data, flat.shapes, flat.numels)
            for i, (data, flat) in enumerate(zip(given, self._flat, strict=True))
        )

    def set_views(self) -> None:
        """Puts views of the flat parameters, as they are now, in the places of the parameters."""
        for name, flat in zip(self.flat_param_names, self._flat, strict=True):
            pieces = list(views(getattr(self, name), flat.shapes, flat.numels))
            for place, piece in zip(flat.places, pieces, strict=True):
                setattr(place.module, place.name, piece)
            for place, index in flat.shared:
                setattr(place.module, place.name, pieces[index])

    def _flatten(self) -> None:
        for name, flat in zip(self.flat_param_names, self._flat, strict=True):
            parameters = [getattr(place.module, place.name) for place in flat.places]
            parameter = FlatParameter(parameters, parameters[0].requires_grad)
            parameter._param_infos = [
                Place(f"_fpw_module.{p.module_name}".rstrip("."), p.module, p.name)
                for p in flat.places
            ]
            parameter._shared_param_infos = list(flat.shared)
            for place in (*flat.places, *(place for place, _ in flat.shared)):
                delattr(place.module, place.name)
            self.register_parameter(name, parameter)
        self.is_flattened = True
        self.set_views()

    def _unflatten(self, data: Sequence[torch.Tensor | None] | None) -> None:
        pieces = iter([piece.detach() for piece in self.get_param_views(data)])
        for name, flat in zip(self.flat_param_names, self._flat, strict=True):
            requires_grad = getattr(self, name).requires_grad
            made = [nn.Parameter(next(pieces), requires_grad) for _ in flat.places]
            for place, index in (
                *((place, i) for i, place in enumerate(flat.places)),
                *flat.shared,
            ):
                delattr(place.module, place.name)
                place.module.register_parameter(place.name, made[index])
            delattr(self, name)
        self.is_flattened = False

    @contextlib.contextmanager
    def unflatten_params(self, flat_params: list[torch.Tensor] | None = None) -> Iterator[None]:
        """Context manager: the module has its own parameters.

        Args:
            flat_params: Data for them, in place of the flat parameters; forgotten at the end.
        """
        if not self.is_flattened:
            if flat_params is not None:
                raise ValueError("unflatten_params: expected a flattened module, to give it data.")
            yield
            return
        own = self.flat_params
        self._unflatten(flat_params)
        try:
            yield
        finally:
            changed = [] if flat_params is not None else self._parameters_now()
            self._flatten()
            for name, flat, values in itertools.zip_longest(self.flat_param_names, own, changed):
                if values is not None:  # loaded, or written to
                    with torch.no_grad():
                        flat.copy_(torch.cat([v.reshape(-1) for v in values]))
                self._parameters[name] = flat
            self.set_views()

    def _parameters_now(self) -> list[list[torch.Tensor]]:
        return [
            [getattr(place.module, place.name).detach() for place in flat.places]
            for flat in self._flat
        ]

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """That of the module; with flat parameters unless `auto_unflatten_state_dict`."""
        if self._auto_unflatten_state_dict:
            with self.unflatten_params():
                return super().state_dict(*args, **kwargs)
        return super().state_dict(*args, **kwargs)

    def flat_state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """That of the module, with flat parameters."""
        return super().state_dict(*args, **kwargs)

    def load_state_dict(  # type: ignore[override]
        self, state_dict: dict[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Loads a state dict with flat parameters or without."""
        if "flat_param" in state_dict:
            state_dict = {**state_dict, "flat_param_0": state_dict["flat_param"]}
            del state_dict["flat_param"]
        if self.is_flattened and not any(name in state_dict for name in self.flat_param_names):
            with self.unflatten_params():
                return super().load_state_dict(state_dict, strict, assign)
        return super().load_state_dict(state_dict, strict, assign)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's, with parameters as they are now."""
        if self.is_flattened:
            self.set_views()
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """The module has all that is not here."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_fpw_module":
                raise
            return getattr(self.module, name)

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]  # type: ignore[index]


class _Flat(NamedTuple):
    places: list[Place]
    shared: list[tuple[Place, int]]
    shapes: list[torch.Size]
    numels: list[int]


def _flat(module: nn.Module, group: list[torch.Tensor]) -> _Flat:
    """Finds the order in which parameters become one: that of the module."""
    wanted = {id(p) for p in group}
    index_of: dict[int, int] = {}
    places: list[Place] = []
    shared: list[tuple[Place, int]] = []
    parameters: list[torch.Tensor] = []
    for module_name, m in module.named_modules():
        for name, p in m.named_parameters(recurse=False, remove_duplicate=False):
            place = Place(module_name, m, name)
            if id(p) in index_of:
                shared.append((place, index_of[id(p)]))
            elif id(p) in wanted:
                index_of[id(p)] = len(places)
                places.append(place)
                parameters.append(p)
    if len(parameters) != len(group):
        raise ValueError(
            f"XlaFlattenParamsWrapper: expected parameters of the module, got {len(group)} of "
            f"which {len(parameters)} are."
        )
    kinds = sorted({(str(p.dtype), p.requires_grad) for p in parameters})
    if len(kinds) != 1:
        raise ValueError(
            "XlaFlattenParamsWrapper: expected parameters of one dtype that all want gradients or "
            f"all do not, got {kinds}. Give them in a list for each."
        )
    return _Flat(places, shared, [p.shape for p in parameters], [p.numel() for p in parameters])


def replace_by_prefix_(state_dict: dict[str, Any], old_prefix: str, new_prefix: str) -> None:
    """Gives the keys of a dict that begin with a prefix another one, in place."""
    if old_prefix == new_prefix:
        raise ValueError(
            f"replace_by_prefix_: expected two prefixes that differ, got {old_prefix!r} twice."
        )
    for key in [key for key in state_dict if key.startswith(old_prefix)]:
        state_dict[new_prefix + key[len(old_prefix) :]] = state_dict.pop(key)


def _hide_wrapper(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    replace_by_prefix_(state_dict, f"{prefix}_fpw_module.", prefix)


def _show_wrapper(module: Any, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    flat = {prefix + name: state_dict.get(prefix + name) for name in module.flat_param_names}
    for key in [key for key in state_dict if key.startswith(prefix) and key not in flat]:
        state_dict[f"{prefix}_fpw_module.{key[len(prefix) :]}"] = state_dict.pop(key)
