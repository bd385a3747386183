// Tensors made from nothing: filled, counted, spaced, triangular.
#include "ops/factory.h"

#include <algorithm>
#include <cmath>

#include <c10/core/DefaultDtype.h>

#include "ops/common.h"
#include "ops/meta.h"
#include "ops/registry.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Value;
using hlo::Values;

// --- filled --------------------------------------------------------------------------------

// The number at this position, everywhere.
template <int arg>
Values filled(Lowering& l) {
  const hlo::Type type = l.out();
  return {hlo::broadcast_to(l.number(arg, type.dtype), type.dims)};
}
Values zeros(Lowering& l) { return {hlo::zero(l.b, l.out())}; }
Values ones(Lowering& l) { return {hlo::one(l.b, l.out())}; }
Values fill_tensor(Lowering& l) { return {operand(l, 1, l.out().dtype)}; }

// --- counted and spaced ----------------------------------------------------------------------

// 0, 1, 2, ... along the only dimension.
Value counter(Lowering& l, DType dtype) { return hlo::iota(l.b, {dtype, l.out().dims}, 0); }

// start + i * step. PyTorch counts in int64, or in double for every float.
Values counted(Lowering& l, std::optional<size_t> start, std::optional<size_t> step) {
  const DType dtype = hlo::is_float(l.out().dtype) ? DType::F64 : DType::S64;
  Value x = counter(l, dtype);
  if (step) x = x * number_like(l, *step, x);
  if (start) x = x + number_like(l, *start, x);
  return result(l, x);
}
Values arange_end(Lowering& l) { return counted(l, std::nullopt, std::nullopt); }
Values arange_start(Lowering& l) { return counted(l, 0, std::nullopt); }
Values arange_step(Lowering& l) { return counted(l, 0, 2); }

// From both ends towards the middle, so that the ends are exact. Integers are spaced in double,
// between whole numbers.
Value spaced(Lowering& l) {
  const DType result_dtype = l.out().dtype;
  const bool whole = hlo::is_integer(result_dtype);
  const DType dtype = whole ? DType::F64 : compute_dtype(result_dtype);
  const int64_t steps = l.integer(2);
  const Value i = counter(l, dtype);
  const auto end_point = [&](size_t arg) {
    const Value x = whole ? cast(l.in(arg), result_dtype) : l.in(arg);
    return hlo::broadcast_to(cast(x, dtype), i.dims());
  };
  const Value start = end_point(0), end = end_point(1);
  if (steps <= 1) return start;
  // XLA would multiply by the reciprocal of a constant, and whole numbers would be missed by a bit.
  const Value spaces =
      hlo::unary("optimization_barrier", hlo::like(i, static_cast<double>(steps - 1)));
  const Value step = (end - start) / spaces;
  const Value near_start =
      hlo::less(hlo::iota(l.b, {DType::S64, i.dims()}, 0), static_cast<double>(steps / 2));
  return hlo::select(near_start, start + step * i,
                     end - step * (static_cast<double>(steps - 1) - i));
}
Values linspace(Lowering& l) { return result(l, spaced(l)); }
Values logspace(Lowering& l) {
  const Value exponent = spaced(l);
  return result(l, hlo::pow(hlo::like(exponent, l.floating(3)), exponent));
}

// --- triangles -------------------------------------------------------------------------------

// column - row of every element of the last two dimensions.
Value diagonal_number(Lowering& l, const hlo::Dims& dims) {
  const int64_t rank = static_cast<int64_t>(dims.size());
  const hlo::Type type = {DType::S32, {dims[rank - 2], dims[rank - 1]}};
  return hlo::sub(hlo::iota(l.b, type, 1), hlo::iota(l.b, type, 0));
}

Values eye(Lowering& l) { return result(l, hlo::equal(diagonal_number(l, l.out().dims), 0)); }

template <hlo::Direction kept>
Values triangle(Lowering& l) {
  const Value x = l.in(0);
  const Value number = diagonal_number(l, x.dims());
  // Any diagonal past the last one means the same; held within what the counters reach.
  const int64_t bound = std::max(x.dim(x.rank() - 2), x.dim(x.rank() - 1)) + 1;
  const int64_t diagonal = std::clamp(l.integer(1), -bound, bound);
  const Value inside = hlo::compare(kept, number, hlo::splat_int(l.b, diagonal, number.type()));
  return {hlo::select(hlo::broadcast_to(inside, x.dims()), x, hlo::zero(l.b, x.type()))};
}

// Row of the k-th element of a triangle whose row r holds `first + r` elements: the largest r with
// r * first + r * (r - 1) / 2 <= k. The root of doubles is corrected by one where it rounded.
Value triangle_row(const Value& k, int64_t first) {
  const auto before = [first](const Value& r) {
    const Value half = hlo::binary("shift_right_arithmetic", r * (r - 1), hlo::like(r, 1));
    return r * static_cast<double>(first) + half;
  };
  const double b = static_cast<double>(first) - 0.5;
  const Value root = hlo::sqrt(hlo::convert(k, DType::F64) * 2 + b * b) - b;
  Value row = hlo::convert(hlo::floor(root), DType::S64);
  row = hlo::select(hlo::greater(before(row), k), row - 1, row);
  return hlo::select(hlo::less_equal(before(row + 1), k), row + 1, row);
}

// Rows and columns of the elements on and below diagonal `offset`, row by row.
struct Corner {
  Value row, column;
};
Corner lower_triangle(const Value& k, int64_t rows, int64_t columns, int64_t offset) {
  // Rows before `skipped` are empty; then `growing` rows of first, first + 1, ... elements; then
  // whole rows.
  const int64_t skipped = std::clamp<int64_t>(-offset, 0, rows);
  const int64_t first = std::clamp<int64_t>(offset + skipped + 1, 0, columns);
  const int64_t growing = first == 0 ? 0 : std::min(rows - skipped, columns - first + 1);
  const int64_t in_growing = growing * first + growing * (growing - 1) / 2;
  const Value bounded = hlo::min(k, hlo::splat_int(k.builder(), in_growing - 1, k.type()));
  const Value r = triangle_row(bounded, first);
  const Value before = r * static_cast<double>(first) +
                       hlo::binary("shift_right_arithmetic", r * (r - 1), hlo::like(r, 1));
  const Value rest = k - hlo::splat_int(k.builder(), in_growing, k.type());
  const Value whole = hlo::greater_equal(rest, 0);
  const Value width = hlo::splat_int(k.builder(), std::max<int64_t>(columns, 1), k.type());
  const auto offset_by = [](const Value& x, int64_t by) {
    return x + hlo::splat_int(x.builder(), by, x.type());
  };
  return {hlo::select(whole, offset_by(rest / width, skipped + growing), offset_by(r, skipped)),
          hlo::select(whole, hlo::rem(rest, width), k - before)};
}

// (row, col, offset) -> [2, n]
template <bool upper>
Values triangle_indices(Lowering& l) {
  const int64_t rows = l.integer(0);
  const int64_t columns = l.integer(1);
  const int64_t offset = l.integer(2);
  const int64_t n = l.out().dims[1];
  if (n == 0) return {hlo::zero(l.b, l.out())};
  Value k = hlo::iota(l.b, {DType::S64, {n}}, 0);
  Corner corner;
  if (upper) {
    // Turned around, the upper triangle is the lower one of the same rows and columns.
    const auto reversed = [](const Value& x, int64_t last) {
      return hlo::splat_int(x.builder(), last, x.type()) - x;
    };
    k = reversed(k, n - 1);
    corner = lower_triangle(k, rows, columns, columns - rows - offset);
    corner = {reversed(corner.row, rows - 1), reversed(corner.column, columns - 1)};
  } else {
    corner = lower_triangle(k, rows, columns, offset);
  }
  const Values parts = {hlo::reshape(corner.row, {1, n}), hlo::reshape(corner.column, {1, n})};
  return result(l, hlo::concatenate(parts, 0));
}

// (start, end, steps, [base,] dtype, ..)
template <size_t Dtype>
void steps_meta(MetaCall& call) {
  const int64_t count = call[2].toInt();
  bool usual = count >= 0;
  for (const size_t end : {0, 1}) {
    usual = usual && (call[end].isTensor() ? call.tensor(end).dim() == 0
                                           : !call[end].toScalar().isComplex());
  }
  if (!usual) return call.pytorch();
  const at::ScalarType dtype =
      call[Dtype].isNone() ? at::get_default_dtype_as_scalartype() : call[Dtype].toScalarType();
  call.results({meta_of_sizes(dtype, {count})});
}

}  // namespace

bool makes_zeros(const lazy::Operator& op) { return op.rule != nullptr && op.rule->lower == zeros; }

// Composite operators recorded whole on purpose: all of them but tril and triu; a composite here is
// an empty tensor and a write to it.
const Rules factory_rules([](Registry& r) {
  const auto add = [&r](std::initializer_list<const char*> names, RuleFunction rule) {
    for (const char* name : names) r.add(name, rule);
  };
  const auto constant = [&r](std::initializer_list<const char*> names, RuleFunction rule) {
    for (const char* name : names) r.add(name, rule).constant = true;
  };
  // A fill in place is needed where the tensor that it fills is: a call that fails there raises.
  add({"aten::zero", "aten::_efficientzerotensor"}, zeros);
  constant({"aten::zeros", "aten::zeros_like", "aten::new_zeros"}, zeros);
  constant({"aten::ones", "aten::ones_like", "aten::new_ones"}, ones);
  constant({"aten::scalar_tensor"}, filled<0>);
  add({"aten::fill.Scalar"}, filled<1>);
  constant({"aten::full", "aten::full_like"}, filled<1>);
  constant({"aten::new_full"}, filled<2>);
  r.add("aten::fill.Tensor", fill_tensor);

  r.add("aten::arange", arange_end).shape_numbers = {0};
  r.add("aten::arange.start", arange_start).shape_numbers = {0, 1};
  for (const char* name : {"aten::arange.start_step", "aten::range.step"}) {
    r.add(name, arange_step).shape_numbers = {0, 1, 2};
  }
  r.add("aten::range", arange_start).shape_numbers = {0, 1};
  add({"aten::linspace", "aten::linspace.Tensor_Tensor", "aten::linspace.Tensor_Scalar",
       "aten::linspace.Scalar_Tensor"},
      linspace);
  add({"aten::logspace", "aten::logspace.Tensor_Tensor", "aten::logspace.Tensor_Scalar",
       "aten::logspace.Scalar_Tensor"},
      logspace);

  add({"aten::eye", "aten::eye.m"}, eye);
  r.add("aten::tril", triangle<hlo::Direction::LE>);
  r.add("aten::triu", triangle<hlo::Direction::GE>);
  r.add("aten::tril_indices", triangle_indices<false>);
  r.add("aten::triu_indices", triangle_indices<true>);

  for (const char* name : {"aten::full", "aten::full_like", "aten::new_full"}) {
    r.all(name) = {.narrow_floats = NarrowFloats::Exact, .rounds_one = true};
  }
  r.all("aten::fill") = {
      .narrow_floats = NarrowFloats::Exact, .rounds_one = true, .writes_repeated = true};
  r.all("aten::scalar_tensor").narrow_floats = NarrowFloats::Rounded;
  for (const char* name : {"aten::zero", "aten::fill_diagonal", "aten::tril", "aten::triu"}) {
    r.all(name).writes_repeated = true;
  }
  r.all("aten::arange") = {.fills_any_shape = true, .warns_of_size = true};
  r.all("aten::range").fills_any_shape = true;
  r.all("aten::linspace") = {.meta = steps_meta<3>, .python_meta = true, .fills_any_shape = true};
  r.all("aten::logspace") = {.meta = steps_meta<4>, .python_meta = true, .fills_any_shape = true};
});

}  // namespace torch_xla::ops
