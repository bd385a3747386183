// Normalizations of rows: layer norm, RMS norm, group norm, weight norm.
#include <array>
#include <limits>

#include <ATen/OpMathType.h>
#include <ATen/core/List.h>

#include "lazy/operator.h"
#include "ops/host_rules.h"
#include "ops/meta.h"
#include "ops/norm.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

// The call's tensor as a matrix: [rows, columns], normalized along its columns.
struct Rows {
  int64_t rows, columns;
  Dims dims() const { return {rows, columns}; }
};

Rows rows_of(const Value& x, size_t normalized_dims) {
  Rows r{1, 1};
  const size_t outer = x.rank() - normalized_dims;
  for (size_t i = 0; i < outer; ++i) r.rows *= x.dim(i);
  for (size_t i = outer; i < static_cast<size_t>(x.rank()); ++i) r.columns *= x.dim(i);
  return r;
}

Value as_matrix(const Value& x, const Rows& r, DType dtype) {
  return hlo::convert(hlo::reshape(x, r.dims()), dtype);
}
// One value per row, or per column, over the matrix.
Value by_row(const Value& x, const Rows& r) {
  return hlo::broadcast_in_dim(hlo::reshape(x, {r.rows}), r.dims(), std::array<int64_t, 1>{0});
}
Value by_column(const Value& x, const Rows& r) {
  return hlo::broadcast_in_dim(hlo::reshape(x, {r.columns}), r.dims(), std::array<int64_t, 1>{1});
}
Value row_mean(const Lowering& l, const Value& matrix) {
  return sum_trailing(l, matrix, 1) / static_cast<double>(matrix.dim(1));
}
Value column_sum(const Value& matrix) { return reduce_sum(matrix, std::array<int64_t, 1>{0}); }

Value optional_column(const Lowering& l, size_t arg, const Rows& r, DType dtype) {
  return l.has(arg) ? by_column(hlo::convert(l.in(arg), dtype), r) : Value();
}

// Each value takes the shape of its result; all elements of both are the same.
Values reshaped(const Lowering& l, Values values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] && is_wanted(l, i)) values[i] = hlo::reshape(values[i], l.out(i).dims);
  }
  return results(l, values);
}

// For tensors without elements: sums are zeros, and nothing divides by their count.
Values zeros(const Lowering& l) {
  Values all(l.num_outputs());
  for (size_t i = 0; i < all.size(); ++i) {
    if (is_wanted(l, i)) all[i] = hlo::zero(l.b, l.out(i));
  }
  return all;
}

// (input, normalized_shape, weight, bias, eps) -> (output, mean, rstd)
Values layer_norm(Lowering& l) {
  const Value input = l.in(0);
  if (input.type().elements() == 0) return zeros(l);
  const DType compute = compute_dtype(input.dtype());
  const Rows r = rows_of(input, l.ints(1).size());
  const Value x = as_matrix(input, r, compute);
  const Value mean =
      mean_of(x, std::array<int64_t, 1>{0}, [&](const Value& v) { return sum_trailing(l, v, 1); });
  const Value centered = x - by_row(mean, r);
  const Value rstd = hlo::rsqrt(row_mean(l, hlo::square(centered)) + l.floating(4));
  Value y = centered * by_row(rstd, r);
  if (const Value weight = optional_column(l, 2, r, compute)) y = y * weight;
  if (const Value bias = optional_column(l, 3, r, compute)) y = y + bias;
  return reshaped(l, {y, mean, rstd});
}

// (grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask)
Values layer_norm_backward(Lowering& l) {
  const Value input = l.in(1);
  if (input.type().elements() == 0) return zeros(l);
  const DType compute = compute_dtype(input.dtype());
  const Rows r = rows_of(input, l.ints(2).size());
  const Value grad = as_matrix(l.in(0), r, compute), x = as_matrix(input, r, compute);
  const Value mean = by_row(hlo::convert(l.in(3), compute), r);
  const Value rstd = by_row(hlo::convert(l.in(4), compute), r);
  const Value normal = (x - mean) * rstd;
  const Value weight = optional_column(l, 5, r, compute);
  const Value inner = weight ? grad * weight : grad;
  const Value grad_input = rstd * (inner - by_row(row_mean(l, inner), r) -
                                   normal * by_row(row_mean(l, inner * normal), r));
  return reshaped(l, {grad_input, column_sum(grad * normal), column_sum(grad)});
}

// By PyTorch's kernel, which reads its rows once. XLA's code is five loops, and each computes anew
// what the rows are made of: in a stack of residual layers, all that has been added so far.
Values layer_norm_on_host(Lowering& l) {
  constexpr int64_t kLeast = 32768;
  const Value input = l.in(0);
  const bool faster = is_whole_float(input.dtype()) && input.type().elements() >= kLeast;
  if (is_empty(l, {0}) || !choose_host(faster)) return xla_code(l);
  const Rows r = rows_of(input, l.ints(1).size());
  HostCall call(l.b, l.signature().op->name, Fails::Never);
  call.part(hlo::reshape(input, r.dims()), 0).fixed(c10::List<int64_t>({r.columns}));
  for (const size_t arg : {2, 3}) {
    l.has(arg) ? call.tensor(hlo::reshape(l.in(arg), {r.columns})) : call.none();
  }
  call.fixed(l.floating(4));
  const hlo::Type per_row = {l.out(1).dtype, {r.rows, 1}};
  const std::optional<hlo::Type> types[] = {hlo::Type{l.out(0).dtype, r.dims()}, per_row, per_row};
  constexpr int64_t cuts[] = {0, 0, 0};
  return reshaped(l, call.results(types, cuts));
}

// (input, normalized_shape, weight, eps) -> (output, rstd)
Values rms_norm(Lowering& l) {
  const Value input = l.in(0);
  if (input.type().elements() == 0) return zeros(l);
  const DType compute = compute_dtype(input.dtype());
  const Rows r = rows_of(input, l.ints(1).size());
  const double eps = l.has(3)                ? l.floating(3)
                     : compute == DType::F64 ? std::numeric_limits<double>::epsilon()
                                             : std::numeric_limits<float>::epsilon();
  const Value x = as_matrix(input, r, compute);
  const Value rstd = hlo::rsqrt(row_mean(l, hlo::square(x)) + eps);
  Value y = x * by_row(rstd, r);
  if (const Value weight = optional_column(l, 2, r, compute)) y = y * weight;
  return reshaped(l, {y, rstd});
}

// (grad_out, input, normalized_shape, rstd, weight, output_mask)
Values rms_norm_backward(Lowering& l) {
  const Value input = l.in(1);
  if (input.type().elements() == 0) return zeros(l);
  const DType compute = compute_dtype(input.dtype());
  const Rows r = rows_of(input, l.ints(2).size());
  const Value grad = as_matrix(l.in(0), r, compute);
  const Value rstd = by_row(hlo::convert(l.in(3), compute), r);
  const Value normal = as_matrix(input, r, compute) * rstd;
  const Value weight = optional_column(l, 4, r, compute);
  const Value inner = weight ? grad * weight : grad;
  const Value grad_input = rstd * (inner - normal * by_row(row_mean(l, inner * normal), r));
  return reshaped(l, {grad_input, column_sum(grad * normal)});
}

// Group norm views its input as [N, groups, channels of a group, positions].
struct Groups {
  int64_t batch, groups, channels, positions;
  Dims dims() const { return {batch, groups, channels, positions}; }
  double elements() const { return static_cast<double>(channels * positions); }
};

Groups groups_of(const Lowering& l, size_t n_arg) {
  const int64_t groups = l.integer(n_arg + 3);
  return {l.integer(n_arg), groups, l.integer(n_arg + 1) / groups, l.integer(n_arg + 2)};
}
Value by_group(const Value& x, const Groups& g, const Dims& dims) {
  return hlo::broadcast_in_dim(hlo::reshape(x, {g.batch, g.groups}), dims,
                               std::array<int64_t, 2>{0, 1});
}
Value by_channel(const Value& x, const Groups& g, const Dims& dims) {
  return hlo::broadcast_in_dim(hlo::reshape(x, {g.groups, g.channels}), dims,
                               std::array<int64_t, 2>{1, 2});
}
Value by_group_channel(const Value& x, const Groups& g) {
  return hlo::broadcast_in_dim(x, g.dims(), std::array<int64_t, 3>{0, 1, 2});
}

// (input, weight, bias, N, C, HxW, group, eps) -> (output, mean, rstd)
Values group_norm(Lowering& l) {
  const Value input = l.in(0);
  if (input.type().elements() == 0) return zeros(l);
  const DType compute = compute_dtype(input.dtype());
  const Groups g = groups_of(l, 3);
  const Value x = hlo::convert(hlo::reshape(input, g.dims()), compute);
  const Value mean = mean_of(x, std::array<int64_t, 2>{0, 1},
                             [&](const Value& v) { return sum_trailing(l, v, 2); });
  const Value centered = x - by_group(mean, g, g.dims());
  const Value var = sum_trailing(l, hlo::square(centered), 2) / g.elements();
  const Value rstd = hlo::rsqrt(var + l.floating(7));
  // One scale and one shift for each sample and channel.
  const Dims per_channel = {g.batch, g.groups, g.channels};
  Value scale = by_group(rstd, g, per_channel);
  if (l.has(1)) scale = scale * by_channel(hlo::convert(l.in(1), compute), g, per_channel);
  Value y = centered * by_group_channel(scale, g);
  if (l.has(2)) y = y + by_channel(hlo::convert(l.in(2), compute), g, g.dims());
  return reshaped(l, {y, mean, rstd});
}

// (grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask)
Values group_norm_backward(Lowering& l) {
  const Value input = l.in(1);
  if (input.type().elements() == 0) return zeros(l);
  const DType compute = compute_dtype(input.dtype());
  const Groups g = groups_of(l, 5);
  const Dims per_channel = {g.batch, g.groups, g.channels};
  const Value grad = hlo::convert(hlo::reshape(l.in(0), g.dims()), compute);
  const Value x = hlo::convert(hlo::reshape(input, g.dims()), compute);
  const Value centered = x - by_group(hlo::convert(l.in(2), compute), g, g.dims());
  const Value rstd = hlo::reshape(hlo::convert(l.in(3), compute), {g.batch, g.groups});
  // Sums over positions, from which all three gradients follow.
  const Value projection = sum_trailing(l, grad * centered, 1);
  const Value grad_sum = sum_trailing(l, grad, 1);

  Value scale = by_group(rstd, g, per_channel);
  Value weighted_projection = projection, weighted_sum = grad_sum;
  if (l.has(4)) {
    const Value weight = by_channel(hlo::convert(l.in(4), compute), g, per_channel);
    scale = scale * weight;
    weighted_projection = projection * weight;
    weighted_sum = grad_sum * weight;
  }
  const std::array<int64_t, 1> channels = {2}, batch = {0};
  const Value slope =
      reduce_sum(weighted_projection, channels) / g.elements() * (hlo::square(rstd) * rstd);
  const Value mean_grad = reduce_sum(weighted_sum, channels) / g.elements() * rstd;
  const Value grad_input = grad * by_group_channel(scale, g) -
                           centered * by_group(slope, g, g.dims()) -
                           by_group(mean_grad, g, g.dims());
  const Value grad_weight = reduce_sum(projection * by_group(rstd, g, per_channel), batch);
  return reshaped(l, {grad_input, grad_weight, reduce_sum(grad_sum, batch)});
}

// Weight norm keeps one dimension, the first or the last; here as rows of a matrix or its columns.
struct Slices {
  Rows r;
  bool first;
};

Slices slices_of(const Value& v, int64_t dim) {
  const bool first = wrap_dim(dim, v.rank()) == 0;
  return {rows_of(v, first ? v.rank() - 1 : 1), first};
}
Value slice_sum(const Lowering& l, const Value& matrix, const Slices& s) {
  return s.first ? sum_trailing(l, matrix, 1) : column_sum(matrix);
}
Value over_slices(const Value& x, const Slices& s) {
  return s.first ? by_row(x, s.r) : by_column(x, s.r);
}
Value flat(const Value& x, DType dtype) {
  return hlo::convert(hlo::reshape(x, {x.type().elements()}), dtype);
}

// (v, g, dim) -> (w, norms)
Values weight_norm(Lowering& l) {
  const DType compute = compute_dtype(l.in(0).dtype());
  if (l.in(0).type().elements() == 0) return zeros(l);
  const Slices s = slices_of(l.in(0), l.integer(2));
  const Value v = as_matrix(l.in(0), s.r, compute), g = flat(l.in(1), compute);
  const Value norms = hlo::sqrt(slice_sum(l, hlo::square(v), s));
  return reshaped(l, {v * over_slices(g / norms, s), norms});
}

// (grad_w, saved_v, saved_g, saved_norms, dim) -> (grad_v, grad_g)
Values weight_norm_backward(Lowering& l) {
  const DType compute = compute_dtype(l.in(1).dtype());
  if (l.in(1).type().elements() == 0) return zeros(l);
  const Slices s = slices_of(l.in(1), l.integer(4));
  const Value grad = as_matrix(l.in(0), s.r, compute), v = as_matrix(l.in(1), s.r, compute);
  const Value g = flat(l.in(2), compute), norms = flat(l.in(3), compute);
  const Value projection = slice_sum(l, grad * v, s) / norms;
  const Value grad_v = over_slices(g / norms, s) * (grad - v * over_slices(projection / norms, s));
  return reshaped(l, {grad_v, projection});
}

// native_layer_norm(input, normalized_shape, weight, bias, eps) -> (out, mean, rstd)
void layer_norm_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  const std::vector<int64_t> rows = call[1].toIntVector();
  const auto fits = [&](size_t i) { return !call.has(i) || call.tensor(i).sizes() == rows; };
  const size_t rank = static_cast<size_t>(x.dim());
  const bool usual = x.is_floating_point() && !rows.empty() && rows.size() <= rank &&
                     x.sizes().slice(rank - rows.size()) == rows && fits(2) && fits(3);
  if (!usual) return call.pytorch();
  std::vector<int64_t> batch = x.sizes().vec();
  std::fill(batch.end() - static_cast<std::ptrdiff_t>(rows.size()), batch.end(), 1);
  const at::ScalarType dtype = at::toOpMathType(x.scalar_type());
  call.results({meta_of_sizes(x, x.sizes().vec()), meta_of_sizes(dtype, batch),
                meta_of_sizes(dtype, batch)});
}

// native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, mask)
void layer_norm_backward_meta(MetaCall& call) {
  const at::Tensor grad = call.tensor(0), x = call.tensor(1);
  const c10::List<bool> wanted = call[7].toBoolList();
  const bool usual = x.is_floating_point() && x.numel() != 0 && grad.sizes() == x.sizes() &&
                     call.tensor(3).dim() == x.dim();
  if (!usual) return call.pytorch();
  const std::vector<int64_t> rows = call[2].toIntVector();
  const auto gradient_of = [&](size_t i, size_t argument) {
    if (!wanted[i] || !call.has(argument)) return at::Tensor();
    return meta_of_sizes(call.tensor(argument), rows);
  };
  const at::Tensor of_x = wanted[0] ? meta_of_sizes(x, x.sizes().vec()) : at::Tensor();
  call.results({of_x, gradient_of(1, 5), gradient_of(2, 6)});
}

// native_group_norm(input, weight, bias, N, C, HxW, group, eps) -> (out, mean, rstd)
void group_norm_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  const int64_t batch = call[3].toInt(), channels = call[4].toInt(), groups = call[6].toInt();
  const auto fits = [&](size_t i) { return !call.has(i) || call.tensor(i).sizes() == channels; };
  const bool usual = x.is_floating_point() && groups > 0 && channels % groups == 0 &&
                     x.numel() == batch * channels * call[5].toInt() && fits(1) && fits(2);
  if (!usual) return call.pytorch();
  call.results({meta_of_sizes(x, x.sizes().vec()), meta_of_sizes(x, {batch, groups}),
                meta_of_sizes(x, {batch, groups})});
}

// native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, mask)
void group_norm_backward_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(1);
  const c10::List<bool> wanted = call[9].toBoolList();
  bool usual = x.is_floating_point() && x.is_contiguous() && call.tensor(0).sizes() == x.sizes();
  for (size_t i = 0; i < 5; ++i) {
    usual = usual && (!call.has(i) || call.tensor(i).scalar_type() == x.scalar_type());
  }
  if (!usual) return call.pytorch();
  const auto gradient = [&](size_t i, const std::vector<int64_t>& sizes) {
    return wanted[i] ? meta_of_sizes(x, sizes) : at::Tensor();
  };
  const int64_t channels = call[6].toInt();
  call.results({gradient(0, x.sizes().vec()), gradient(1, {channels}), gradient(2, {channels})});
}

// _fused_rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, mask)
void rms_norm_backward_meta(MetaCall& call) {
  const at::Tensor grad = call.tensor(0), x = call.tensor(1);
  const c10::List<bool> wanted = call[5].toBoolList();
  const bool usual = x.is_floating_point() && x.numel() != 0 && grad.sizes() == x.sizes();
  if (!usual) return call.pytorch();
  const auto gradient = [&](bool given, const std::vector<int64_t>& sizes) {
    return given ? meta_of_sizes(x, sizes) : at::Tensor();
  };
  call.results({gradient(wanted[0], x.sizes().vec()),
                gradient(wanted[1] && call.has(4), call[2].toIntVector())});
}

}  // namespace

const Rules norm_rows_rules([](Registry& r) {
  r.add("aten::native_layer_norm", layer_norm).on_cpu = layer_norm_on_host;
  r.add("aten::native_layer_norm_backward", layer_norm_backward);
  r.add("aten::_fused_rms_norm", rms_norm);
  r.add("aten::_fused_rms_norm_backward", rms_norm_backward);
  r.add("aten::native_group_norm", group_norm);
  r.add("aten::native_group_norm_backward", group_norm_backward);
  r.add("aten::_weight_norm_interface", weight_norm);
  r.add("aten::_weight_norm_interface_backward", weight_norm_backward);

  r.all("aten::native_layer_norm").meta = layer_norm_meta;
  r.all("aten::native_layer_norm_backward").meta = layer_norm_backward_meta;
  r.all("aten::_fused_rms_norm_backward").meta = rms_norm_backward_meta;
  r.all("aten::native_group_norm_backward").meta = group_norm_backward_meta;
  r.all("aten::native_group_norm") = {.meta = group_norm_meta, .layout = layout_of_input};
});

}  // namespace torch_xla::ops
