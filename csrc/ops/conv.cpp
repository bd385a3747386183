// Convolutions of 1 to 3 spatial dimensions, transposed or not, and their gradients.
// Three products make all of them: forward, gradient of the input, gradient of the weight. A
// transposed convolution is the gradient of the input of a plain one, and the reverse.
#include <algorithm>
#include <array>

#include "ops/common.h"
#include "ops/host_rules.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

struct Geometry {
  Dims stride, padding, dilation;
  int64_t groups = 1;

  size_t spatial() const { return stride.size(); }
};

// PyTorch accepts one entry for all spatial dimensions.
Dims spatial_ints(const Lowering& l, size_t arg, size_t spatial) {
  Dims values = l.ints(arg);
  if (values.size() == 1) values.resize(spatial, values[0]);
  return values;
}

Geometry read_geometry(const Lowering& l, size_t first, size_t groups_arg, size_t spatial) {
  return {spatial_ints(l, first, spatial), spatial_ints(l, first + 1, spatial),
          spatial_ints(l, first + 2, spatial), l.integer(groups_arg)};
}

// Batch and feature first for all three arrays, unless a caller moves them.
hlo::ConvDims plain_dims(size_t spatial) {
  Dims rest(spatial);
  for (size_t i = 0; i < spatial; ++i) rest[i] = static_cast<int64_t>(i) + 2;
  return {.input_batch = 0,
          .input_feature = 1,
          .input_spatial = rest,
          .kernel_input_feature = 1,
          .kernel_output_feature = 0,
          .kernel_spatial = rest,
          .output_batch = 0,
          .output_feature = 1,
          .output_spatial = rest};
}

// Extent of a window of `size` elements that lie `step` apart.
int64_t extent(int64_t size, int64_t step) { return size == 0 ? 0 : (size - 1) * step + 1; }

using Product = Value (*)(const Value&, const Value&, const Geometry&, const hlo::Type&);

// Returns whether groups are computed apart: in a partitioned program XLA has each device compute a
// convolution of groups, but for groups of one channel, on the whole batch. Each group is compiled.
bool computes_groups_apart(const Value& x, const Geometry& g) {
  constexpr int64_t kMost = 32;
  return x.builder().mesh() != nullptr && g.groups > 1 && g.groups <= kMost && x.dim(1) != g.groups;
}

// `product` of each group's channels of x and outputs of w.
Value each_group(Product product, const Value& x, const Value& w, const Geometry& g,
                 hlo::Type result) {
  const int64_t channels = x.dim(1) / g.groups, outputs = w.dim(0) / g.groups;
  Geometry one = g;
  one.groups = 1;
  result.dims[1] /= g.groups;
  Values parts;
  for (int64_t i = 0; i < g.groups; ++i) {
    parts.push_back(product(hlo::slice_dim(x, 1, i * channels, (i + 1) * channels),
                            hlo::slice_dim(w, 0, i * outputs, (i + 1) * outputs), one, result));
  }
  return hlo::concatenate(parts, 1);
}

// x [N, C, ...], w [O, C / groups, ...] -> result [N, O, ...].
Value forward(const Value& x, const Value& w, const Geometry& g, const hlo::Type& result) {
  if (computes_groups_apart(x, g)) return each_group(forward, x, w, g, result);
  hlo::ConvOptions options;
  options.strides = g.stride;
  options.pad_low = g.padding;
  options.rhs_dilation = g.dilation;
  options.feature_groups = g.groups;
  for (size_t i = 0; i < g.spatial(); ++i) {
    const int64_t axis = static_cast<int64_t>(i) + 2;
    const int64_t used =
        extent(result.dims[axis], g.stride[i]) + extent(w.dim(axis), g.dilation[i]) - 1;
    // As the gradient of a transposed convolution with output padding, fewer windows than fit.
    const int64_t unused = x.dim(axis) + 2 * g.padding[i] - used;
    options.pad_high.push_back(g.padding[i] - (unused >= g.stride[i] ? unused : 0));
  }
  return hlo::convolution(x, w, plain_dims(g.spatial()), options, result);
}

// [g * a, b, ...] -> [a, g * b, ...]: each group's outputs become its inputs.
Value swap_group_features(const Value& w, int64_t groups) {
  Dims split = {groups, w.dim(0) / groups};
  split.insert(split.end(), w.dims().begin() + 1, w.dims().end());
  std::vector<int64_t> order = {1, 0};
  for (int64_t i = 2; i < static_cast<int64_t>(split.size()); ++i) order.push_back(i);
  Dims merged = {w.dim(0) / groups, groups * w.dim(1)};
  merged.insert(merged.end(), w.dims().begin() + 2, w.dims().end());
  return hlo::reshape(hlo::transpose(hlo::reshape(w, split), order), merged);
}

// grad [N, O, ...], w [O, C / groups, ...] -> result [N, C, ...].
Value input_gradient(const Value& grad, const Value& w, const Geometry& g,
                     const hlo::Type& result) {
  if (computes_groups_apart(grad, g)) return each_group(input_gradient, grad, w, g, result);
  hlo::ConvDims dims = plain_dims(g.spatial());
  dims.kernel_input_feature = 0;
  dims.kernel_output_feature = 1;
  hlo::ConvOptions options;
  options.lhs_dilation = g.stride;
  options.rhs_dilation = g.dilation;
  options.feature_groups = g.groups;
  for (size_t i = 0; i < g.spatial(); ++i) {
    const int64_t axis = static_cast<int64_t>(i) + 2;
    const int64_t window = extent(w.dim(axis), g.dilation[i]);
    const int64_t low = window - 1 - g.padding[i];
    options.pad_low.push_back(low);
    options.pad_high.push_back(result.dims[axis] + window - 1 -
                               extent(grad.dim(axis), g.stride[i]) - low);
    options.reversal.push_back(true);
  }
  return hlo::convolution(grad, g.groups == 1 ? w : swap_group_features(w, g.groups), dims, options,
                          result);
}

// The same product as weight_gradient() below, of groups in a partitioned program: a convolution of
// groups would need the whole batch on each device (hlo/structured.cpp). Each tap of the kernel is
// a product of the gradient with the elements that the tap was multiplied with, of which devices
// add up what their parts of the batch come to.
Value weight_gradient_by_taps(const Value& x, const Value& grad, const Geometry& g,
                              const hlo::Type& result) {
  const int64_t rank = x.rank(), spatial = rank - 2;
  const int64_t taps = result.elements() / (result.dims[0] * result.dims[1]);
  Dims low(rank, 0), high(rank, 0);
  std::ranges::copy(g.padding, low.begin() + 2);
  std::ranges::copy(g.padding, high.begin() + 2);
  const Value padded =
      hlo::pad(x, hlo::scalar(x.builder(), 0, x.dtype()), low, high, Dims(rank, 0));
  const auto in_groups = [&](const Value& v) {
    Dims dims = v.dims();
    dims[1] /= g.groups;
    dims.insert(dims.begin() + 1, g.groups);
    return hlo::reshape(v, dims);
  };
  hlo::DotDims product = {{1}, {1}, {0}, {0}};  // batches are groups; sums over images and places
  for (int64_t i = 0; i < spatial; ++i) {
    product.lhs_contract.push_back(i + 3);
    product.rhs_contract.push_back(i + 3);
  }
  const Value gradient = in_groups(grad);
  Values parts;
  for (int64_t tap = 0; tap < taps; ++tap) {
    Dims start(rank, 0), limit = padded.dims(), stride(rank, 1);
    for (int64_t i = spatial, rest = tap; i-- > 0; rest /= result.dims[i + 2]) {
      start[i + 2] = rest % result.dims[i + 2] * g.dilation[i];
      stride[i + 2] = g.stride[i];
      limit[i + 2] = start[i + 2] + extent(grad.dim(i + 2), g.stride[i]);
    }
    const Value met = in_groups(hlo::slice(padded, start, limit, stride));
    parts.push_back(hlo::reshape(hlo::dot_general(gradient, met, product, result.dtype),
                                 {result.dims[0], result.dims[1], 1}));
  }
  return hlo::reshape(hlo::concatenate(parts, 2), result.dims);
}

// x [N, C, ...], grad [N, O, ...] -> result [O, C / groups, ...].
Value weight_gradient(const Value& x, const Value& grad, const Geometry& g,
                      const hlo::Type& result) {
  if (g.groups > 1 && x.builder().mesh() != nullptr && result.elements() != 0) {
    return weight_gradient_by_taps(x, grad, g, result);
  }
  hlo::ConvDims dims = plain_dims(g.spatial());
  dims.input_batch = 1;
  dims.input_feature = 0;
  dims.kernel_input_feature = 0;
  dims.kernel_output_feature = 1;
  dims.output_batch = 1;
  dims.output_feature = 0;
  hlo::ConvOptions options;
  options.strides = g.dilation;
  options.rhs_dilation = g.stride;
  options.batch_groups = g.groups;
  for (size_t i = 0; i < g.spatial(); ++i) {
    const int64_t axis = static_cast<int64_t>(i) + 2;
    options.pad_low.push_back(g.padding[i]);
    options.pad_high.push_back(extent(result.dims[axis], g.dilation[i]) - 1 +
                               extent(grad.dim(axis), g.stride[i]) - x.dim(axis) - g.padding[i]);
  }
  return hlo::convolution(x, grad, dims, options, result);
}

// Narrow floats are multiplied as they are; sums that follow stay in the accumulator's type.
hlo::Type wide(const hlo::Type& type) { return type.with(compute_dtype(type.dtype)); }

Value add_bias(const Value& y, const Value& bias) {
  const std::array<int64_t, 1> feature = {1};
  return y + hlo::broadcast_in_dim(cast(bias, y.dtype()), y.dims(), feature);
}

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
// output_padding is part of the result's shape.
Values convolution(Lowering& l) {
  const Value x = l.in(0), w = l.in(1);
  const Geometry g = read_geometry(l, 3, 8, static_cast<size_t>(x.rank()) - 2);
  const hlo::Type type = wide(l.out());
  if (type.elements() == 0) return result(l, hlo::zero(x.builder(), type));
  Value y = l.flag(6) ? input_gradient(x, w, g, type) : forward(x, w, g, type);
  if (l.has(2)) y = add_bias(y, l.in(2));
  return result(l, y);
}

// convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation,
// transposed, output_padding, groups, output_mask)
Values convolution_backward(Lowering& l) {
  const Value grad = l.in(0), x = l.in(1), w = l.in(2);
  const Geometry g = read_geometry(l, 4, 9, static_cast<size_t>(x.rank()) - 2);
  const bool transposed = l.flag(7);
  Values grads(3);
  if (grad.type().elements() == 0) {
    for (size_t i = 0; i < grads.size(); ++i) {
      if (is_wanted(l, i)) grads[i] = hlo::zero(x.builder(), l.out(i));
    }
    return results(l, grads);
  }
  if (is_wanted(l, 0)) {
    const hlo::Type type = wide(x.type());
    grads[0] = transposed ? forward(grad, w, g, type) : input_gradient(grad, w, g, type);
  }
  if (is_wanted(l, 1)) {
    const hlo::Type type = wide(w.type());
    grads[1] = transposed ? weight_gradient(grad, x, g, type) : weight_gradient(x, grad, g, type);
  }
  if (is_wanted(l, 2)) {
    std::vector<int64_t> dims = all_dims(grad.rank());
    dims.erase(dims.begin() + 1);
    grads[2] = reduce_sum(cast(grad, compute_dtype(grad.dtype())), dims);
  }
  return results(l, grads);
}

// conv_tbc(self [T, B, C], weight [K, C, O], bias, pad): a convolution over time.
hlo::ConvDims tbc_dims() {
  return {.input_batch = 1,
          .input_feature = 2,
          .input_spatial = {0},
          .kernel_input_feature = 1,
          .kernel_output_feature = 2,
          .kernel_spatial = {0},
          .output_batch = 1,
          .output_feature = 2,
          .output_spatial = {0}};
}

Values conv_tbc(Lowering& l) {
  const int64_t pad = l.integer(3);
  hlo::ConvOptions options;
  options.pad_low = options.pad_high = {pad};
  const Value y = hlo::convolution(l.in(0), l.in(1), tbc_dims(), options, wide(l.out()));
  return result(l, y + hlo::broadcast_to(cast(l.in(2), y.dtype()), y.dims()));
}

// --- PyTorch's kernels ---------------------------------------------------------------------

// By batch, unless the weight is the larger share: then each part takes some output channels.
bool cuts_batch(Lowering& l, size_t input, size_t transposed, size_t groups) {
  if (l.integer(groups) != 1 || l.flag(transposed)) return true;
  const Value x = l.in(input), weight = l.in(input + 1);
  return x.dim(0) >= kBatch && x.type().elements() >= weight.type().elements();
}

// Schema: input, weight, bias, stride, padding, dilation, transposed, output_padding, groups.
Values convolution_on_host(Lowering& l) {
  if (is_empty(l, {0, 1}) || !choose_host(multiplies(l.in(0).dtype()))) return xla_code(l);
  if (cuts_batch(l, 0, 6, 8)) return on_host(l, {{{0, 0}}, {0}}, Fails::Never);
  cpu::Partition by = {{{1, 0}}, {1}};
  if (l.has(2)) by.operands.push_back({2, 0});
  return on_host(l, by, Fails::Never);
}

// Schema: grad_output, input, weight, bias_sizes, and as above.
Values convolution_backward_on_host(Lowering& l) {
  if (is_empty(l, {0, 1, 2}) || !choose_host(multiplies(l.in(0).dtype()))) return xla_code(l);
  constexpr int64_t kSum = cpu::Partition::kSum;
  const cpu::Partition by = cuts_batch(l, 1, 7, 9)
                                ? cpu::Partition{{{0, 0}, {1, 0}}, {0, kSum, kSum}}
                                : cpu::Partition{{{0, 1}, {2, 0}}, {kSum, 0, 0}};
  return on_host(l, by, Fails::Never);
}

// (input, weight, bias, stride, padding, dilation, ...)
void check_convolution(const Arguments& a) {
  const auto all = [&](size_t argument, int64_t least) {
    const auto numbers = a[argument].toIntVector();
    return std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n >= least; });
  };
  TORCH_CHECK(all(4, 0), "negative padding is not supported");
  TORCH_CHECK(all(3, 1), "non-positive stride is not supported");
  TORCH_CHECK(all(5, 1), "dilation should be greater than zero");
  const at::Tensor weight = a.tensor(1);
  const int64_t groups = a[8].toInt();
  TORCH_CHECK(weight.size(0) >= groups, "Given groups=", groups,
              ", expected weight to be at least ", groups,
              " at dimension 0, but got weight of size ", weight.sizes(), " instead");
}

// (input, weight, ...): channels_last where either is. In three dimensions not in double. Signals
// are images of one row, of which the kernel makes the input row-major.
at::MemoryFormat convolution_layout(const Arguments& a) {
  const at::Tensor input = a.tensor(0), weight = a.tensor(1);
  if (input.dim() == 3) return weight.unsqueeze(2).suggest_memory_format();
  if (input.scalar_type() == at::kDouble && input.dim() == 5) return at::MemoryFormat::Contiguous;
  const at::MemoryFormat format = input.suggest_memory_format();
  return format == at::MemoryFormat::Contiguous ? weight.suggest_memory_format() : format;
}

}  // namespace

const Rules conv_rules([](Registry& r) {
  r.add("aten::convolution", convolution).on_cpu = convolution_on_host;
  r.add("aten::convolution_backward", convolution_backward).on_cpu = convolution_backward_on_host;
  r.add("aten::conv_tbc", conv_tbc);

  r.all("aten::convolution") = {.checks_call = check_convolution, .layout = convolution_layout};
});

}  // namespace torch_xla::ops
