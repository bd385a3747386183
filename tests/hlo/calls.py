"""Calls of rules that no entry of PyTorch's databases reaches, by the rule's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import torch_xla.core.xla_builder as xb
import torch_xla.core.xla_model as xm
from torch_xla import _XLAC
from torch_xla.core import xla_op_registry
from torch_xla.core.xla_builder import Op, Type

aten = torch.ops.aten


class Operands:
    """Tensors on xla that hold data, so that a program has them as inputs."""

    def __init__(self) -> None:
        torch.manual_seed(0)

    @staticmethod
    def _of(t: torch.Tensor) -> torch.Tensor:
        return t.to("xla")

    @property
    def f(self) -> torch.Tensor:
        return self._of(torch.rand(3, 4))

    @property
    def square(self) -> torch.Tensor:
        return self._of(torch.rand(4, 4))

    @property
    def batch(self) -> torch.Tensor:
        return self._of(torch.rand(2, 4, 4))

    @property
    def narrow(self) -> torch.Tensor:
        return self._of(torch.rand(4, 4).bfloat16())

    @property
    def i(self) -> torch.Tensor:
        return self._of(torch.arange(12).view(3, 4))

    @property
    def i8(self) -> torch.Tensor:
        return self._of(torch.ones(32, 32, dtype=torch.int8))

    @property
    def index(self) -> torch.Tensor:
        return self._of(torch.tensor([0, 2, 1]))

    @property
    def mask(self) -> torch.Tensor:
        return self._of(torch.rand(3, 4) > 0.5)

    @property
    def one(self) -> torch.Tensor:
        return self._of(torch.tensor(2.0))

    @property
    def z(self) -> torch.Tensor:
        return self._of(torch.rand(3, 4, dtype=torch.complex64))

    @property
    def image(self) -> torch.Tensor:
        return self._of(torch.rand(2, 4, 5, 6))

    @property
    def volume(self) -> torch.Tensor:
        return self._of(torch.rand(1, 2, 4, 5, 6))

    @property
    def generator(self) -> torch.Generator:
        return torch.Generator("xla").manual_seed(1)

    @property
    def heads(self) -> torch.Tensor:
        return self._of(torch.rand(2, 2, 8, 16))


def adam(o: Operands) -> list[Any]:
    lists = [[o.f, o.i + 0.5] for _ in range(4)]
    return [*lists, [], [o.one, o.one]]


ADAM = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
ADAM |= {"amsgrad": False, "maximize": False}
SGD = {"weight_decay": 0.1, "momentum": 0.9, "dampening": 0.0}
SGD |= {"nesterov": True, "maximize": False, "is_first_step": False}
ADAGRAD = {"lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}


def in_place(call: Callable[..., Any], lists: list[Any], *more: Any, **options: Any) -> Any:
    call(*lists, *more, **options)
    return lists[:-1]


def bags(o: Operands, function: Callable[..., Any], mode: int) -> Any:
    offsets = torch.tensor([0, 2]).to("xla")
    return function(o.square, o.index, offsets, False, mode, False, None, False)


def layer_norm_of_statistics(o: Operands) -> Any:
    return aten._batch_norm_no_update(
        o.image, o.square[0], o.square[1], o.square[2], o.square[3], 0.1, 1e-5
    )


def scaler(o: Operands) -> list[torch.Tensor]:
    scale, growth = o.one, torch.zeros((), dtype=torch.int32).to("xla")
    torch._amp_update_scale_(scale, growth, o.one, 2.0, 0.5, 3)
    return [scale, growth]


def unscaled(o: Operands) -> list[torch.Tensor]:
    grads, found = [o.f, o.square], torch.zeros(()).to("xla")
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, o.one)
    return [*grads, found]


def packed_lstm(o: Operands) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layer = torch.nn.LSTM(4, 3, 2, bidirectional=True).to("xla")
    x = o.batch.requires_grad_()
    y, state = layer(x)
    y.sum().backward()
    return [y, *state, x.grad, *(p.grad for p in layer.parameters())]


def lstm_inference(o: Operands) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layers = torch.nn.LSTM(4, 3, 2, batch_first=True).to("xla")
    x = o._of(torch.rand(8, 2, 4))
    with torch.no_grad():
        y, state = layers(x)
    return [y, *state]


def packed_gru(o: Operands) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layer = torch.nn.GRU(4, 3).to("xla")
    x = o.batch.requires_grad_()
    y, _ = layer(x)
    y.sum().backward()
    return [y, x.grad, *(p.grad for p in layer.parameters())]


def flash(o: Operands) -> list[torch.Tensor]:
    x = o.heads.requires_grad_()
    y = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    y.sum().backward()
    return [y, x.grad]


def weight_norm(o: Operands) -> list[torch.Tensor]:
    v, g = o.f.requires_grad_(), o.square[:3, :1].detach().requires_grad_()
    w = torch._weight_norm(v, g, 0)
    w.sum().backward()
    return [w, v.grad, g.grad]


def written_window(o: Operands) -> torch.Tensor:
    x = o.square
    x.as_strided((3, 2), (4, 2), 1).copy_(o.i[:, :2])
    return x


def padded(o: Operands, mode: str) -> list[torch.Tensor]:
    x = o.volume.requires_grad_()
    y = torch.nn.functional.pad(x, (1, 2, 1, 0, 2, 1), mode)
    return [y, *torch.autograd.grad(y.square().sum(), x)]


def resized(o: Operands, mode: str) -> list[torch.Tensor]:
    x = o.image.requires_grad_()
    y = torch.nn.functional.interpolate(x, (3, 4), mode=mode, antialias=True)
    return [y, *torch.autograd.grad(y.square().sum(), x)]


def user_computation(o: Operands) -> list[torch.Tensor]:
    def combined(x: Op, y: Op) -> Op:
        scalar = xb.mkshape(Type.F32, ())
        largest = xb.create_computation("largest", lambda a, b: a.max(b), [scalar, scalar])
        rows = (x @ y).exp().reduce(Op.zero(x.builder()), largest, (1,))
        loop = rows.mkwhile(
            (rows,), lambda r: r.reduce_all(Op.zero(r.builder()), largest) < 9, double
        )
        image = y.reshape((1, 1, *y.shape().sizes))
        pooled = image.reduce_window(
            Op.zero(x.builder()), largest, (1, 1, 2, 2), (1, 1, 1, 1), "same"
        )
        return Op.tuple((loop, pooled))

    def double(r: Op) -> tuple[Op]:
        return (r + r,)

    return xla_op_registry.register("xla::combined", combined)(o.f, o.square)


CALLS: dict[str, Callable[[Operands], Any]] = {
    "torch_xla::while_loop": lambda o: _XLAC._while_loop(
        lambda x: [x.sum() < 9], lambda x, w=o.square: [x @ w + torch.rand_like(x)], [o.f]
    ),
    "torch_xla::cond": lambda o: _XLAC._cond(
        o.one > 0, lambda x=o.f: [x.sin()], lambda x=o.f: [torch.rand_like(x)]
    ),
    "torch_xla::user_computation": user_computation,
    "torch_xla::scan": lambda o: _XLAC._scan(
        lambda c, x: [c + x, torch.rand_like(c) * x], [o.square[0]], [o.square]
    ),
    "__lshift__.Scalar": lambda o: o.i << 2,
    "__lshift__.Tensor": lambda o: o.i << o.i,
    "__rshift__.Scalar": lambda o: o.i >> 2,
    "__rshift__.Tensor": lambda o: o.i >> o.i,
    "_addmm_activation": lambda o: aten._addmm_activation(o.f, o.f, o.square, use_gelu=True),
    "_amp_foreach_non_finite_check_and_unscale": unscaled,
    "_amp_update_scale": scaler,
    "_batch_norm_no_update": layer_norm_of_statistics,
    "_conj_copy": lambda o: aten._conj_copy(o.z),
    "_embedding_bag_dense_backward": lambda o: torch.autograd.grad(
        torch.nn.functional.embedding_bag(
            o.index, w := o.square.requires_grad_(), torch.tensor([0, 2]).to("xla")
        ).sum(),
        w,
    ),
    "_embedding_bag_forward_only": lambda o: bags(o, aten._embedding_bag_forward_only, 2),
    "_foreach_norm.Scalar": lambda o: torch._foreach_norm([o.f, o.square], 3),
    "_foreach_pow.ScalarAndTensor": lambda o: torch._foreach_pow(2.0, [o.f, o.square]),
    "_fused_adagrad": lambda o: in_place(
        torch._fused_adagrad_, [[o.f], [o.f], [o.f], [o.one]], lr=0.1, **ADAGRAD
    ),
    "_fused_adagrad.tensor_lr": lambda o: in_place(
        torch._fused_adagrad_, [[o.f], [o.f], [o.f], [o.one]], lr=o.one, **ADAGRAD
    ),
    "_foreach_add.ScalarList": lambda o: torch._foreach_add([o.f, o.i], [1.5, 2]),
    "_foreach_add.Tensor": lambda o: torch._foreach_add([o.f, o.square], o.one, alpha=2),
    "_foreach_addcdiv.ScalarList": lambda o: torch._foreach_addcdiv(
        [o.f, o.f], [o.f, o.f], [o.f, o.f], [1.5, 2.0]
    ),
    "_foreach_clamp_max.Scalar": lambda o: torch._foreach_clamp_max([o.f, o.i], 1),
    "_foreach_clamp_min.Scalar": lambda o: torch._foreach_clamp_min([o.f, o.i], 1),
    "_foreach_div.Scalar": lambda o: torch._foreach_div([o.f, o.i], 2.0),
    "_foreach_div.ScalarList": lambda o: torch._foreach_div([o.f, o.i], [2.0, 3]),
    "_foreach_div.Tensor": lambda o: torch._foreach_div([o.f, o.square], o.one),
    "_foreach_lerp.Scalar": lambda o: torch._foreach_lerp([o.f, o.square], [o.f, o.square], 0.3),
    "_foreach_maximum.Scalar": lambda o: torch._foreach_maximum([o.f, o.i], 2),
    "_foreach_minimum.Scalar": lambda o: torch._foreach_minimum([o.f, o.i], 2),
    "_foreach_mul.Scalar": lambda o: torch._foreach_mul([o.f, o.i], 2),
    "_foreach_mul.ScalarList": lambda o: torch._foreach_mul([o.f, o.i], [1.5, 2]),
    "_foreach_mul.Tensor": lambda o: torch._foreach_mul([o.f, o.square], o.one),
    "_foreach_pow.Scalar": lambda o: torch._foreach_pow([o.f, o.i], 2),
    "_foreach_sub.Scalar": lambda o: torch._foreach_sub([o.f, o.i], 2),
    "_fused_adam": lambda o: in_place(torch._fused_adam_, adam(o), lr=0.1, **ADAM),
    "_fused_adam.tensor_lr": lambda o: in_place(torch._fused_adam_, adam(o), lr=o.one, **ADAM),
    "_fused_adamw": lambda o: in_place(torch._fused_adamw_, adam(o), lr=0.1, **ADAM),
    "_fused_adamw.tensor_lr": lambda o: in_place(torch._fused_adamw_, adam(o), lr=o.one, **ADAM),
    "_fused_sgd": lambda o: in_place(torch._fused_sgd_, [[o.f], [o.f], [o.f]], lr=0.1, **SGD),
    "_fused_sgd.tensor_lr": lambda o: in_place(
        torch._fused_sgd_, [[o.f], [o.f], [o.f]], lr=o.one, **SGD
    ),
    "_fused_dropout": lambda o: aten._fused_dropout(o.f, 0.4),
    "_grouped_mm": lambda o: aten._grouped_mm(
        torch.ones(16, 16, dtype=torch.bfloat16).to("xla"),
        torch.ones(2, 16, 16, dtype=torch.bfloat16).to("xla"),
        torch.tensor([8, 16], dtype=torch.int32).to("xla"),
    ),
    "_int_mm": lambda o: torch._int_mm(o.i8, o.i8),
    "_masked_softmax": lambda o: torch._masked_softmax(o.f, o.mask, 1, 2),
    "_masked_softmax_backward": lambda o: aten._masked_softmax_backward(o.f, o.f, o.mask, 1),
    "poisson": lambda o: torch.poisson(o.f),
    "_masked_scale": lambda o: aten._masked_scale(o.f, o.mask.to(torch.uint8), 2.0),
    "_neg_view": lambda o: torch._neg_view(o.f) * 2,
    "_neg_view_copy": lambda o: aten._neg_view_copy(o.f),
    "_reshape_alias": lambda o: aten._reshape_alias(o.f, (4, 3), (3, 1)) * 2,
    "_reshape_copy": lambda o: aten._reshape_copy(o.f, (4, 3)),
    "_scaled_dot_product_flash_attention_for_cpu": flash,
    "_unsafe_index.Tensor": lambda o: aten._unsafe_index(o.f, [o.index]),
    "_unsafe_index_put": lambda o: aten._unsafe_index_put(o.f, [o.index], o.f, True),
    "_weight_norm_interface": weight_norm,
    "_upsample_bicubic2d_aa": lambda o: resized(o, "bicubic"),
    "_upsample_lanczos2d_aa": lambda o: resized(o, "lanczos"),
    "addmm.dtype": lambda o: aten.addmm.dtype(o.narrow, o.narrow, o.narrow, torch.float32),
    "affine_grid_generator": lambda o: aten.affine_grid_generator(
        o.batch[:, :2, :3].contiguous(), (2, 1, 3, 4), False
    ),
    "alias": lambda o: aten.alias(o.f) * 2,
    "baddbmm.dtype": lambda o: aten.baddbmm.dtype(
        o.batch, o.batch.bfloat16(), o.batch.bfloat16(), torch.float32, beta=0.5
    ),
    "bernoulli.Tensor": lambda o: o.f.bernoulli_(o.f),
    "bitwise_and.Scalar": lambda o: aten.bitwise_and.Scalar(o.i, 3),
    "bitwise_and.Scalar_Tensor": lambda o: torch.bitwise_and(3, o.i),
    "bitwise_left_shift.Scalar_Tensor": lambda o: torch.bitwise_left_shift(3, o.i),
    "bitwise_left_shift.Tensor_Scalar": lambda o: aten.bitwise_left_shift.Tensor_Scalar(o.i, 3),
    "bitwise_or.Scalar": lambda o: aten.bitwise_or.Scalar(o.i, 3),
    "bitwise_or.Scalar_Tensor": lambda o: torch.bitwise_or(3, o.i),
    "bitwise_right_shift.Scalar_Tensor": lambda o: torch.bitwise_right_shift(3, o.i),
    "bitwise_right_shift.Tensor_Scalar": lambda o: aten.bitwise_right_shift.Tensor_Scalar(o.i, 3),
    "bitwise_xor.Scalar": lambda o: aten.bitwise_xor.Scalar(o.i, 3),
    "bitwise_xor.Scalar_Tensor": lambda o: torch.bitwise_xor(3, o.i),
    "bmm.dtype": lambda o: aten.bmm.dtype(o.batch.bfloat16(), o.batch.bfloat16(), torch.float32),
    "bucketize.Scalar": lambda o: aten.bucketize.Scalar(0.5, o.square[0]),
    "clamp_max": lambda o: torch.clamp_max(o.f, 0.5),
    "conj_physical": lambda o: torch.conj_physical(o.z),
    "conv_tbc": lambda o: torch.conv_tbc(o.batch, o.batch, o.square[0], 1),
    "copy": lambda o: aten.copy(o.f, o.i),
    "detach": lambda o: o.f.detach() * 2,
    "detach_copy": lambda o: aten.detach_copy(o.f),
    "div.Scalar_mode": lambda o: aten.div.Scalar_mode(o.f, 0.3, rounding_mode="floor"),
    "embedding_renorm": lambda o: aten.embedding_renorm(o.square, o.index, 0.5, 2.0),
    "fill.Tensor": lambda o: aten.fill.Tensor(o.f, o.one),
    "floor_divide.Scalar": lambda o: aten.floor_divide.Scalar(o.i, 3),
    "fmod.Scalar": lambda o: torch.fmod(o.f, 0.3),
    "isin.Scalar_Tensor": lambda o: torch.isin(3, o.i),
    "isin.Tensor_Scalar": lambda o: torch.isin(o.i, 3),
    "lift_fresh_copy": lambda o: aten.lift_fresh_copy(o.f),
    "linspace.Scalar_Tensor": lambda o: torch.linspace(0.0, o.one, 5, device="xla"),
    "logspace.Scalar_Tensor": lambda o: torch.logspace(0.0, o.one, 5, device="xla"),
    "logspace.Tensor_Scalar": lambda o: torch.logspace(o.one, 3.0, 5, device="xla"),
    "masked_fill.Tensor": lambda o: o.f.masked_fill(o.mask, o.one),
    "mm.dtype": lambda o: aten.mm.dtype(o.narrow, o.narrow, torch.float32),
    "native_batch_norm": lambda o: aten.native_batch_norm(
        o.image, None, None, o.square[0], o.square[1], True, 0.1, 1e-5
    ),
    "native_channel_shuffle": lambda o: torch.native_channel_shuffle(o.image, 2),
    "norm.Scalar": lambda o: aten.norm.Scalar(o.f, 3),
    "norm.ScalarOpt_dim_dtype": lambda o: aten.norm.ScalarOpt_dim_dtype(
        o.f, 3, [1], False, dtype=torch.float64
    ),
    "norm.ScalarOpt_dtype": lambda o: aten.norm.ScalarOpt_dtype(o.f, 3, dtype=torch.float64),
    "normal.float_Tensor": lambda o: torch.normal(0.5, o.f),
    "optimization_barrier": lambda o: xm.optimization_barrier_([x := o.f * 2]) or x,
    "rand.generator": lambda o: torch.rand(3, generator=o.generator, device="xla"),
    "rand_like": lambda o: torch.rand_like(o.f),
    "rand_like.generator": lambda o: torch.rand_like(o.f, generator=o.generator),
    "randn_like.generator": lambda o: torch.randn_like(o.f, generator=o.generator),
    "randint_like.generator": lambda o: torch.randint_like(o.f, 5, generator=o.generator),
    "randint_like.low_generator_dtype": lambda o: torch.randint_like(
        o.f, 2, 5, generator=o.generator
    ),
    "randint.generator": lambda o: torch.randint(5, (3,), generator=o.generator, device="xla"),
    "randint.low_generator": lambda o: torch.randint(
        2, 5, (3,), generator=o.generator, device="xla"
    ),
    "randn.generator": lambda o: torch.randn(3, generator=o.generator, device="xla"),
    "random": lambda o: o.f.random_(),
    "random.from": lambda o: o.i.random_(2, 7),
    "random.to": lambda o: o.i.random_(7),
    "randperm": lambda o: torch.randperm(9, device="xla"),
    "randperm.generator": lambda o: torch.randperm(9, generator=o.generator, device="xla"),
    "range.step": lambda o: torch.range(1, 7, 2, device="xla"),
    "reflection_pad3d": lambda o: padded(o, "reflect"),
    "remainder.Scalar_Tensor": lambda o: torch.remainder(7, o.f),
    "replication_pad3d": lambda o: padded(o, "replicate"),
    "lstm": lstm_inference,
    "rnn_layer": packed_lstm,
    "rnn_layer_backward": packed_gru,
    "mark_tensor": lambda o: torch.ops.torch_xla.mark_tensor(o.f, "my.op", 0, "7", False, "{}"),
    "set_location": lambda o: torch.ops.torch_xla.set_location(o.f, "here"),
    "stablehlo_custom_call": lambda o: torch.ops.torch_xla.stablehlo_custom_call(
        [o.f], "target", [1, 0], [3], "float32 int64", False, "config", 1, '{a = "b"}'
    ),
    "scatter.reduce": lambda o: torch.scatter(o.f, 0, o.index[:, None], o.f, reduce="add"),
    "scatter.value_reduce": lambda o: torch.scatter(
        o.f, 0, o.index[:, None], 2.0, reduce="multiply"
    ),
    "special_xlog1py.other_scalar": lambda o: torch.special.xlog1py(o.f, 2.0),
    "special_xlog1py.self_scalar": lambda o: torch.special.xlog1py(2.0, o.f),
    "special_zeta.other_scalar": lambda o: torch.special.zeta(o.f + 2, 2.0),
    "special_zeta.self_scalar": lambda o: torch.special.zeta(2.0, o.f),
    "unsafe_split_with_sizes": lambda o: torch.unsafe_split_with_sizes(o.f, [1, 3], 1),
    "view.dtype": lambda o: o.f.view(torch.int16) + 1,
    "view_as_complex_copy": lambda o: aten.view_as_complex_copy(o.f.view(3, 2, 2)),
    "view_as_real_copy": lambda o: aten.view_as_real_copy(o.z),
    "as_strided_update": written_window,
    "xlogy.Scalar_Other": lambda o: torch.xlogy(o.f, 2.0),
    "xlogy.Scalar_Self": lambda o: torch.xlogy(2.0, o.f),
}
