// User's computations: convolutions, and reductions and selections over windows.
#include <algorithm>
#include <array>

#include "ops/user_operation.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::Value;
using hlo::Values;

struct Padding {
  Dims low, high;
};

int64_t dilated(int64_t size, int64_t dilation) {
  return size == 0 ? 0 : (size - 1) * dilation + 1;
}

// Padding as pairs, or by XLA's name for it: "valid" adds nothing, "same" as much as gives one
// result for each stride.
Padding padding_of(const UserOperation& u, const Dims& sizes, const Dims& window,
                   const Dims& strides) {
  Padding p{Dims(sizes.size(), 0), Dims(sizes.size(), 0)};
  const std::string text = u.options.has("padding") ? u.options.text("padding") : "valid";
  if (text == "valid") return p;
  if (text == "same") {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const int64_t results = (sizes[i] + strides[i] - 1) / strides[i];
      const int64_t total = std::max<int64_t>((results - 1) * strides[i] + window[i] - sizes[i], 0);
      p.low[i] = total / 2;
      p.high[i] = total - total / 2;
    }
    return p;
  }
  const std::vector<int64_t> pairs = u.options.integers("padding");
  u.check(pairs.size() == sizes.size() * 2, "expected 'valid', 'same' or (low, high) padding for ",
          "each of ", sizes.size(), " dimensions, got '", text, "'.");
  for (size_t i = 0; i < sizes.size(); ++i) {
    p.low[i] = pairs[2 * i];
    p.high[i] = pairs[2 * i + 1];
  }
  return p;
}

Dims per_dimension(const UserOperation& u, std::string_view option, size_t count,
                   int64_t otherwise) {
  if (!u.options.has(option)) return Dims(count, otherwise);
  Dims all = u.options.integers(option);
  u.check(all.size() == count, "expected ", count, " numbers for '", option, "', got ", all.size(),
          ".");
  for (const int64_t n : all) u.check(n > 0, "expected positive ", option, ", got ", n, ".");
  return all;
}

// --- windows

hlo::Window window_of(const UserOperation& u, const char* sizes = "window_dimensions",
                      const char* strides = "window_strides") {
  const Dims& dims = u.in(0).dims();
  hlo::Window w(dims.size());
  w.sizes = per_dimension(u, sizes, dims.size(), 1);
  w.strides = per_dimension(u, strides, dims.size(), 1);
  Padding padding = padding_of(u, dims, w.sizes, w.strides);
  w.pad_low = std::move(padding.low);
  w.pad_high = std::move(padding.high);
  return w;
}

Values reduce_window(const UserOperation& u) {
  return {hlo::reduce_window(u.in(0), u.in(1), window_of(u), u.combine("computation"))};
}

Values max_pool(const UserOperation& u) {
  const Value& x = u.in(0);
  return {hlo::reduce_window(x, hlo::lowest(u.b(), {x.dtype(), {}}),
                             window_of(u, "kernel_size", "stride"), hlo::max)};
}

Values select_and_scatter(const UserOperation& u) {
  return {hlo::select_and_scatter(u.in(0), u.in(1), u.in(2), window_of(u),
                                  u.combine("select_computation"),
                                  u.combine("scatter_computation"))};
}

// --- convolutions

Dims at(const UserOperation& u, const Value& x, const Dims& places) {
  Dims sizes;
  for (const int64_t i : places) {
    u.check(i >= 0 && i < x.rank(), "expected dimensions of ", x.type().str(), ", got ", i, ".");
    sizes.push_back(x.dim(i));
  }
  return sizes;
}

// The positions of dimensions; without options, batch and feature stand before the spatial ones.
hlo::ConvDims conv_dims(const UserOperation& u) {
  Dims spatial;
  for (int64_t i = 2; i < u.in(0).rank(); ++i) spatial.push_back(i);
  const auto place = [&](const char* option, int64_t otherwise) {
    return u.options.has(option) ? u.options.integer(option) : otherwise;
  };
  const auto places = [&](const char* option) {
    return u.options.has(option) ? u.options.integers(option) : spatial;
  };
  return {.input_batch = place("input_batch_dimension", 0),
          .input_feature = place("input_feature_dimension", 1),
          .input_spatial = places("input_spatial_dimensions"),
          .kernel_input_feature = place("kernel_input_feature_dimension", 1),
          .kernel_output_feature = place("kernel_output_feature_dimension", 0),
          .kernel_spatial = places("kernel_spatial_dimensions"),
          .output_batch = place("output_batch_dimension", 0),
          .output_feature = place("output_feature_dimension", 1),
          .output_spatial = places("output_spatial_dimensions")};
}

hlo::Precision precision_of(const UserOperation& u, hlo::Precision otherwise) {
  if (!u.options.has("precision_config")) return otherwise;
  const std::string& text = u.options.text("precision_config");
  if (text == "default") return hlo::Precision::Default;
  if (text == "high") return hlo::Precision::High;
  u.check(text == "highest", "expected 'default', 'high' or 'highest' as precision_config, got '",
          text, "'.");
  return hlo::Precision::Highest;
}

Values convolution(const UserOperation& u) {
  const Value &x = u.in(0), &kernel = u.in(1);
  u.check(x.rank() >= 2 && kernel.rank() == x.rank() && x.dtype() == kernel.dtype(),
          "expected an input and a kernel of one rank from 2 on and one element type, got ",
          x.type().str(), " and ", kernel.type().str(), ".");
  const hlo::ConvDims dims = conv_dims(u);
  const size_t count = dims.input_spatial.size();
  u.check(static_cast<int64_t>(count) + 2 == x.rank() && dims.kernel_spatial.size() == count &&
              dims.output_spatial.size() == count,
          "expected ", x.rank() - 2, " spatial dimensions.");
  hlo::ConvOptions options;
  options.strides = per_dimension(u, "window_strides", count, 1);
  options.lhs_dilation = per_dimension(u, "lhs_dilation", count, 1);
  options.rhs_dilation = per_dimension(u, "rhs_dilation", count, 1);
  options.reversal.assign(count, false);
  if (u.options.has("feature_group_count")) {
    options.feature_groups = u.options.integer("feature_group_count");
  }
  if (u.options.has("batch_group_count")) {
    options.batch_groups = u.options.integer("batch_group_count");
  }
  Dims input = at(u, x, dims.input_spatial), window = at(u, kernel, dims.kernel_spatial);
  for (size_t i = 0; i < count; ++i) {
    input[i] = dilated(input[i], options.lhs_dilation[i]);
    window[i] = dilated(window[i], options.rhs_dilation[i]);
  }
  Padding padding = padding_of(u, input, window, options.strides);
  u.check(options.feature_groups > 0 && options.batch_groups > 0,
          "expected positive group counts, got ", options.feature_groups, " and ",
          options.batch_groups, ".");

  Dims result(static_cast<size_t>(x.rank()));
  const auto put = [&](int64_t place, int64_t size) {
    u.check(place >= 0 && place < x.rank(), "expected dimensions below ", x.rank(), ", got ", place,
            ".");
    result[place] = size;
  };
  put(dims.output_batch, at(u, x, {dims.input_batch})[0] / options.batch_groups);
  put(dims.output_feature, at(u, kernel, {dims.kernel_output_feature})[0]);
  for (size_t i = 0; i < count; ++i) {
    const int64_t padded = input[i] + padding.low[i] + padding.high[i];
    put(dims.output_spatial[i],
        padded < window[i] ? 0 : (padded - window[i]) / options.strides[i] + 1);
  }
  options.pad_low = std::move(padding.low);
  options.pad_high = std::move(padding.high);
  const hlo::Precision before = u.b().precision();
  u.b().set_precision(precision_of(u, before));
  const Value made = hlo::convolution(x, kernel, dims, options, {x.dtype(), result});
  u.b().set_precision(before);
  return {made};
}

}  // namespace

const UserLowerings& window_operations() {
  static const UserLowerings all = {
      {"Conv", convolution},
      {"ConvGeneral", convolution},
      {"ConvGeneralDilated", convolution},
      {"ConvWithGeneralDimensions", convolution},
      {"ConvWithGeneralPadding", convolution},
      {"MaxPool", max_pool},
      {"ReduceWindow", reduce_window},
      {"SelectAndScatter", select_and_scatter},
      {"SelectAndScatterWithGeneralPadding", select_and_scatter},
  };
  return all;
}

}  // namespace torch_xla::ops
