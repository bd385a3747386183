"""The operations of computations that users build, by XLA's names.

A method of `Op` without a body is its operation's row: its name, parameters and meaning.
"""
# mypy: disable-error-code="empty-body"

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import torch

from torch_xla import _XLAC
from torch_xla._src.builder.shapes import PT_XLA_TYPE_MAP, XLA_PT_TYPE_MAP, Shape, raw

P = ParamSpec("P")
_OPERANDS = ("Op", "Sequence[Op]", "Op | Sequence[Op]")


def _operation(name: str) -> Callable[[Callable[P, Op]], Callable[P, Op]]:
    """Makes a method XLA's operation of this name.

    The method's parameters say it all: `self` and those of type Op are the operands, in their
    order; the others are the operation's options, by their names.
    """

    def decorate(method: Callable[P, Op]) -> Callable[P, Op]:
        signature = inspect.signature(method)
        parameters = signature.parameters.items()
        is_operand = {k: k == "self" or v.annotation in _OPERANDS for k, v in parameters}

        @functools.wraps(method)
        def operation(*args: P.args, **kwargs: P.kwargs) -> Op:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            given.arguments.pop("cls", None)
            operands = [op for k, v in given.arguments.items() if is_operand[k] for op in _ops(v)]
            options = {k: v for k, v in given.arguments.items() if not is_operand[k]}
            return mkop(name, operands, **options)

        return operation

    return decorate


def _operator(name: str, reverse: bool = False) -> Callable[[Op, Any], Op]:
    """A method of this operation of two operands."""

    def method(self: Op, other: Any) -> Op:
        if isinstance(other, (bool, int, float, complex)):
            other = Op.scalar(self.builder(), other, self.shape().dtype)
        elif not isinstance(other, Op):
            return NotImplemented
        return mkop(name, (other, self) if reverse else (self, other))

    return _described(method, name, "of this and another" if not reverse else "of another and this")


def _unary(name: str) -> Callable[[Op], Op]:
    def method(self: Op) -> Op:
        return mkop(name, (self,))

    return _described(method, name, "of this")


def _described(method: Callable[P, Op], name: str, operands: str) -> Callable[P, Op]:
    method.__name__, method.__qualname__ = name, f"Op.{name}"
    method.__doc__ = f"XLA's `{name}` {operands}, element by element."
    return method


def _convolution(name: str, first: str) -> Callable[..., Op]:
    """A method that takes `kernel`, these parameters and which dimension is which."""
    required = ["self", "kernel", *first.split(), *_CONVOLVED.split()]
    defaults: dict[str, Any] = {"feature_group_count": 1, "batch_group_count": 1}
    defaults["precision_config"] = None
    if "padding" not in required:
        defaults = {"padding": "valid", **defaults}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(k, kind) for k in required]
    parameters[1] = parameters[1].replace(annotation="Op")
    parameters += [inspect.Parameter(k, kind, default=v) for k, v in defaults.items()]

    def method(*args: Any, **kwargs: Any) -> Op:
        """Says of each dimension of the three arrays what it is."""

    method.__name__ = name
    method.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return _operation(name)(method)


_CONVOLVED = (
    "input_batch_dimension input_feature_dimension kernel_input_feature_dimension "
    "kernel_output_feature_dimension output_batch_dimension output_feature_dimension "
    "input_spatial_dimensions kernel_spatial_dimensions output_spatial_dimensions"
)


class Op:
    """A value of a computation that is being built.

    Methods are XLA's operations; https://openxla.org/xla/operation_semantics says what they mean.
    The arithmetic and comparing operators of Python are those of XLA: operands have one element
    type, and shapes are equal but for scalars and, between equal ranks, dimensions of size 1.
    Numbers of Python stand for scalars of the other operand's element type.

    Args:
        op: The extension's.
    """

    def __init__(self, op: Any):
        self.op = op

    __array_priority__ = 1000  # NumPy's numbers leave their operators to these

    __add__ = _operator("Add")
    __radd__ = _operator("Add", reverse=True)
    __sub__ = _operator("Sub")
    __rsub__ = _operator("Sub", reverse=True)
    __mul__ = _operator("Mul")
    __rmul__ = _operator("Mul", reverse=True)
    __matmul__ = _operator("Dot")
    __truediv__ = _operator("Div")
    __rtruediv__ = _operator("Div", reverse=True)
    __mod__ = _operator("Rem")
    __pow__ = _operator("Pow")
    __rpow__ = _operator("Pow", reverse=True)
    __and__ = _operator("And")
    __or__ = _operator("Or")
    __xor__ = _operator("Xor")
    __lshift__ = _operator("ShiftLeft")

    def __rshift__(self, other: Any) -> Op:
        """Keeps the sign of signed integers."""
        is_signed = self.shape().dtype.startswith("s")
        name = "ShiftRightArithmetic" if is_signed else "ShiftRightLogical"
        return _operator(name)(self, other)

    __neg__ = _unary("Neg")
    __invert__ = _unary("Not")
    __abs__ = _unary("Abs")
    __eq__ = _operator("Eq")  # type: ignore[assignment]
    __ne__ = _operator("Ne")  # type: ignore[assignment]
    __lt__ = _operator("Lt")
    __le__ = _operator("Le")
    __gt__ = _operator("Gt")
    __ge__ = _operator("Ge")
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError(
            "xla_builder: expected no truth value of an Op, which has none while the computation "
            "is built. Choose with select, mkconditional or mkwhile."
        )

    def __repr__(self) -> str:
        return f"Op({self.shape()})"

    # --- the computation

    def shape(self) -> Shape:
        return Shape(_XLAC._xla_op_shape(self.op))

    def builder(self) -> Any:
        return _XLAC._xla_op_builder(self.op)

    def build(self, name: str) -> Any:
        """Ends the computation whose result this is.

        Raises:
            RuntimeError: Parameters up to the last one are missing.
        """
        return _XLAC._xla_op_build(name, self.op)

    # --- shapes

    def reshape(
        self,
        sizes: Sequence[int],
        dimensions: Sequence[int] | None = None,
        inferred_dimension: int | None = None,
    ) -> Op:
        """Other sizes for as many elements; `dimensions` is the order in which they are read.

        `inferred_dimension` is for dynamic sizes, and means nothing here.
        """
        return mkop("Reshape", (self,), sizes=sizes, dimensions=dimensions)

    @_operation("DynamicReshape")
    def dynamic_reshape(self, sizes: Sequence[int]) -> Op:
        """`reshape`: sizes are fixed."""

    @_operation("Broadcast")
    def broadcast(self, sizes: Sequence[int]) -> Op:
        """Repeats the array; `sizes` come before its own: [*sizes, *own]."""

    @_operation("BroadcastInDim")
    def broadcast_in_dim(self, sizes: Sequence[int], dimensions: Sequence[int]) -> Op:
        """An array of `sizes`, where `dimensions[i]` is the dimension that i becomes."""

    @_operation("Slice")
    def slice(
        self,
        start_indices: Sequence[int],
        limit_indices: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> Op:
        """Elements from a start up to a limit, with strides, in each dimension."""

    @_operation("SliceInDim")
    def slice_in_dim(self, start_index: int, limit_index: int, dimno: int, stride: int = 1) -> Op:
        """`slice` in one dimension; the others are whole."""

    @_operation("DynamicSlice")
    def dynamic_slice(self, start_indices: Op | Sequence[Op], slice_sizes: Sequence[int]) -> Op:
        """Starts are scalars, or one list; those that would leave the array are moved into it."""

    @_operation("DynamicUpdateSlice")
    def dynamic_update_slice(self, update: Op, start_indices: Op | Sequence[Op]) -> Op:
        """This array with `update` where `dynamic_slice` of its sizes would read."""

    @_operation("Gather")
    def gather(
        self,
        start_indices: Op,
        offset_dims: Sequence[int],
        collapsed_slice_dims: Sequence[int],
        start_index_map: Sequence[int],
        index_vector_dim: int,
        indices_are_sorted: bool | None = None,
        slice_sizes: Sequence[int] | None = None,
    ) -> Op:
        """By default, slices are whole but for their collapsed dimensions, which are 1."""

    @_operation("Scatter")
    def scatter(
        self,
        scatter_indices: Op,
        updates: Op,
        computation: Any,
        update_window_dims: Sequence[int],
        inserted_window_dims: Sequence[int],
        scatter_dims_to_operand_dims: Sequence[int],
        index_vector_dim: int,
        indices_are_sorted: bool | None = None,
        unique_indices: bool | None = None,
    ) -> Op:
        """`computation` takes the present element and the update."""

    @_operation("Pad")
    def pad(self, value: Op, config: Sequence[tuple[int, int, int]]) -> Op:
        """`config` has (low, high, interior) for each dimension."""

    @_operation("Transpose")
    def transpose(self, permutation: Sequence[int]) -> Op:
        """Dimension i of the result is dimension `permutation[i]` of this."""

    @_operation("Rev")
    def rev(self, dimensions: Sequence[int]) -> Op:
        """The elements in reverse order along these dimensions."""

    @_operation("GetDimensionSize")
    def get_dimension_size(self, dimension: int) -> Op:
        """A scalar of s32."""

    @_operation("SetDimensionSize")
    def set_dimension_size(self, size: Op, dimension: int) -> Op:
        """Raises NotImplementedError: sizes are fixed."""

    # --- convolutions and windows. Paddings are "valid", "same", or a pair for each dimension.

    @_operation("Conv")
    def conv(
        self,
        kernel: Op,
        window_strides: Sequence[int],
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        padding: str = "valid",
        precision_config: str | None = None,
    ) -> Op:
        """Takes [batch, feature, *spatial] and [output feature, input feature, *spatial]."""

    @_operation("ConvWithGeneralPadding")
    def conv_with_general_padding(
        self,
        kernel: Op,
        window_strides: Sequence[int],
        padding: Sequence[tuple[int, int]],
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        precision_config: str | None = None,
    ) -> Op:
        """The same, padded by a pair for each spatial dimension."""

    conv_with_general_dimensions = _convolution("ConvWithGeneralDimensions", "window_strides")
    conv_general = _convolution("ConvGeneral", "window_strides padding")
    conv_general_dilated = _convolution(
        "ConvGeneralDilated", "window_strides padding lhs_dilation rhs_dilation"
    )

    @_operation("SelectAndScatter")
    def select_and_scatter(
        self,
        source: Op,
        init_value: Op,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        select_computation: Any,
        scatter_computation: Any,
        padding: str | Sequence[tuple[int, int]] = "valid",
    ) -> Op:
        """Adds elements of `source` to those of their windows that `select_computation` picks."""

    select_and_scatter_with_general_padding = select_and_scatter

    def max_pool(
        self,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        batch_dimension: int,
        feature_dimension: int,
        spatial_dimensions: Sequence[int],
        padding: str = "valid",
    ) -> Op:
        """The maximum of each window.

        `kernel_size` and `stride` have a number for each dimension, or for each of
        `spatial_dimensions`.
        """

        def whole(numbers: Sequence[int]) -> Sequence[int]:
            if len(numbers) != len(spatial_dimensions):
                return numbers
            all_numbers = [1] * self.shape().rank
            for dim, number in zip(spatial_dimensions, numbers, strict=True):
                all_numbers[dim] = number
            return all_numbers

        return mkop(
            "MaxPool",
            (self,),
            kernel_size=whole(kernel_size),
            stride=whole(stride),
            padding=padding,
        )

    @_operation("Reduce")
    def reduce(self, init_value: Op, computation: Any, dimensions: Sequence[int]) -> Op:
        """`computation` combines two scalars; `init_value` changes none that it meets."""

    @_operation("ReduceAll")
    def reduce_all(self, init_value: Op, computation: Any) -> Op:
        """`reduce` over all dimensions."""

    @_operation("ReduceWindow")
    def reduce_window(
        self,
        init_value: Op,
        computation: Any,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: str | Sequence[tuple[int, int]] = "valid",
    ) -> Op:
        """`reduce` of each window."""

    # --- elements

    @_operation("Convert")
    def cast(self, to_type: str) -> Op:
        """The values as another element type, such as `Type.F32`."""

    @_operation("BitCast")
    def bitcast(self, to_type: str) -> Op:
        """The same bits; between types of other widths, the last dimension comes or goes."""

    @_operation("Select")
    def select(self, true_value: Op, false_value: Op) -> Op:
        """One or the other, where this is true or false."""

    def clamp(self, min_value: Op, max_value: Op) -> Op:
        return mkop("Clamp", (min_value, self, max_value))

    @_operation("TriangularSolve")
    def triangualr_solve(
        self,
        b: Op,
        left_side: bool | None = None,
        lower: bool | None = None,
        unit_diagonal: bool | None = None,
        transpose_a: bool | None = None,
    ) -> Op:
        """x of A x = b, or x A = b where `left_side` is False; this is the triangle A."""

    acos = _unary("Acos")
    asin = _unary("Asin")
    atan = _unary("Atan")
    ceil = _unary("Ceil")
    cos = _unary("Cos")
    cosh = _unary("Cosh")
    erf = _unary("Erf")
    erfc = _unary("Erfc")
    erfinf = _unary("ErfInv")  # the inverse of `erf`
    exp = _unary("Exp")
    expm1 = _unary("Expm1")
    floor = _unary("Floor")
    log = _unary("Log")
    log1p = _unary("Log1p")
    sqrt = _unary("Sqrt")
    real = _unary("Real")
    imag = _unary("Imag")
    clz = _unary("Clz")  # the number of leading bits that are 0
    conj = _unary("Conj")
    rsqrt = _unary("Rsqrt")
    sin = _unary("Sin")
    sinh = _unary("Sinh")
    tan = _unary("Tan")
    tanh = _unary("Tanh")
    atan2 = _operator("Atan2")
    max = _operator("Max")
    min = _operator("Min")

    def scalar_like(self, value: complex) -> Op:
        """This number, in the shape of this array."""
        return Op.scalar(self.builder(), value, self.shape().dtype).broadcast(self.shape().sizes)

    def zeros_like(self) -> Op:
        return self.scalar_like(0)

    def ones_like(self) -> Op:
        return self.scalar_like(1)

    # --- control flow

    @_operation("GetTupleElement")
    def get_tuple_element(self, index: int) -> Op:
        """One value of a tuple."""

    @_operation("Conditional")
    def conditional(
        self,
        true_operand: Op,
        false_operand: Op,
        true_computation: Any,
        false_computation: Any,
    ) -> Op:
        """The result of one branch's computation; only that one runs."""

    @classmethod
    def wrap_function(cls, fn: Callable[..., Any]) -> Callable[..., Op]:
        """A function of a tuple's elements as one of the tuple; several results become a tuple."""

        def wrapped(x: Op, **kwargs: Any) -> Op:
            elements = [x.get_tuple_element(i) for i in range(x.shape().tuple_size())]
            result = fn(*elements, **kwargs)
            is_one = isinstance(result, Op)
            return result if is_one else Op.tuple(tuple(result), builder=x.builder())

        return wrapped

    @classmethod
    def make_computation(
        cls, name: str, computation: Any, args_or_shapes: Sequence[Op | Shape], **kwargs: Any
    ) -> Any:
        """`computation`, or where it is a function, what it builds for these arguments."""
        if not callable(computation):
            return computation
        shapes = [a.shape() if isinstance(a, Op) else a for a in args_or_shapes]
        return create_computation(name, computation, shapes, **kwargs)

    def mkconditional(
        self, ops: Sequence[Op], true_fn: Callable, false_fn: Callable, **kwargs: Any
    ) -> Op:
        """The result of one of two functions of `ops`, by this predicate."""
        operand = Op.tuple(ops, builder=self.builder())
        branches = [
            Op.make_computation(name, Op.wrap_function(fn), (operand,), **kwargs)
            for name, fn in (("on_true", true_fn), ("on_false", false_fn))
        ]
        return self.conditional(operand, operand, *branches)

    @_operation("While")
    def while_loop(self, condition_computation: Any, body_computation: Any) -> Op:
        """Replaces this by what the body gives of it while the condition gives true."""

    @classmethod
    def mkwhile(
        cls, ops: Sequence[Op], condition_fn: Callable, body_fn: Callable, **kwargs: Any
    ) -> Op:
        """A loop over the tuple of `ops`, of which both functions take the elements."""
        state = Op.tuple(ops)
        condition, body = (
            Op.make_computation(name, Op.wrap_function(fn), (state,), **kwargs)
            for name, fn in (("condition", condition_fn), ("body", body_fn))
        )
        return state.while_loop(condition, body)

    @classmethod
    @_operation("Tuple")
    def tuple(cls, ops: Sequence[Op], builder: Any = None) -> Op:
        """A tuple of values."""

    @classmethod
    @_operation("Concat")
    def concat_in_dim(cls, ops: Sequence[Op], dimension: int, builder: Any = None) -> Op:
        """Arrays one after the other along a dimension."""

    @classmethod
    @_operation("Call")
    def call(cls, computation: Any, ops: Sequence[Op], builder: Any = None) -> Op:
        """The result of a computation of operands."""

    @classmethod
    def constant(cls, builder: Any, value: Any) -> Op:
        """A tensor, a NumPy array or a number, as a part of the program."""
        return mkleaf("Constant", builder, value=torch.as_tensor(value))

    @classmethod
    def scalar(cls, builder: Any, value: complex, dtype: str | None = None) -> Op:
        """A number; of f32 where no element type is given."""
        return cls.constant(builder, torch.tensor(value, dtype=cls.to_torch_type(dtype)))

    @classmethod
    def zero(cls, builder: Any, dtype: str | None = None) -> Op:
        return cls.scalar(builder, 0, dtype)

    @classmethod
    def one(cls, builder: Any, dtype: str | None = None) -> Op:
        return cls.scalar(builder, 1, dtype)

    @classmethod
    @_operation("Iota")
    def iota(cls, builder: Any, shape: Shape, iota_dimension: int) -> Op:
        """Each element's index in a dimension."""

    @classmethod
    @_operation("Sort")
    def sort(
        cls,
        ops: Sequence[Op],
        comparator: Any,
        dimension: int | None = None,
        is_stable: bool | None = None,
    ) -> Op:
        """Sorts arrays together; the last dimension by default.

        `comparator` takes two elements of each, (a0, b0, a1, b1, ...), and says whether those of
        the a's come first. Gives a tuple where there are several arrays.
        """

    @classmethod
    def map(
        cls,
        ops: Sequence[Op],
        computation: Any,
        dimensions: Sequence[int],
        static_operands: Sequence[Op] = (),
        builder: Any = None,
    ) -> Op:
        """A computation of scalars, for each element; `dimensions` are all that the arrays have.

        Raises:
            ValueError: There are static operands, which XLA lacks too.
        """
        if static_operands:
            raise ValueError("xla_builder: Op.map: expected no static_operands, which XLA lacks.")
        return mkop("Map", ops, builder=builder, computation=computation, dimensions=dimensions)

    @classmethod
    def to_torch_type(cls, dtype: str | None) -> torch.dtype:
        """float32 for None.

        Raises:
            KeyError: PyTorch has no such type.
        """
        return XLA_PT_TYPE_MAP[dtype] if dtype else torch.float32

    @classmethod
    def from_torch_type(cls, dtype: torch.dtype) -> str:
        """Raises KeyError where XLA has no such type."""
        return PT_XLA_TYPE_MAP[dtype]


def _ops(ops: Op | Sequence[Op]) -> tuple[Op, ...]:
    return (ops,) if isinstance(ops, Op) else tuple(ops)


# --- building ------------------------------------------------------------


def create_builder(name: str) -> Any:
    """A builder of one computation."""
    return _XLAC._xla_op_create_builder(name)


def mkop(name: str, ops: Sequence[Any], **kwargs: Any) -> Op:
    """An operation by XLA's name for it, such as "Add".

    Args:
        name: The name.
        ops: The operands.
        kwargs: What else the operation takes: numbers, lists of numbers, texts, shapes, tensors
            (constants) and computations. `builder` is needed where there are no operands.

    Raises:
        RuntimeError: There is no such operation, or it has no meaning for these operands.
    """
    builder = kwargs.pop("builder", None)
    operands = [op.op if isinstance(op, Op) else op for op in ops]
    if builder is None:
        if not operands:
            raise ValueError(f"xla_builder: {name}: expected a builder, as there are no operands.")
        builder = _XLAC._xla_op_builder(operands[0])
    options = {k: v.shape if isinstance(v, Shape) else v for k, v in kwargs.items()}
    return Op(_XLAC._xla_op_create(builder, name, operands, options))


def mkleaf(name: str, builder: Any, **kwargs: Any) -> Op:
    """An operation without operands; `mkop` says what it takes."""
    return mkop(name, (), builder=builder, **kwargs)


def mkparam(builder: Any, param_no: int, shape: Shape) -> Op:
    """A parameter of the computation.

    Raises:
        RuntimeError: There is one of this number.
        NotImplementedError: The shape has dynamic dimensions.
    """
    return Op(_XLAC._xla_op_param(builder, param_no, raw(shape)))


def create_computation(
    name: str, fn: Callable[..., Op], shapes: Sequence[Shape], **kwargs: Any
) -> Any:
    """Builds what `fn` makes of parameters of these shapes.

    Args:
        name: The computation's name.
        fn: Takes an Op for each shape, and `kwargs`, and returns an Op.
        shapes: Those of the parameters, tuples among them.
    """
    builder = create_builder(name)
    root = fn(*(mkparam(builder, i, shape) for i, shape in enumerate(shapes)), **kwargs)
    return root.build(name)
