#include "hlo/ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>

#include "util/hash.h"

namespace torch_xla::hlo {
namespace {

// Every float prints as its bits: exact, and valid for nan and the infinities.
std::string float_literal(double value, DType dtype) {
  char text[32];
  if (dtype == DType::F64) {
    std::snprintf(text, sizeof text, "0x%016llX",
                  static_cast<unsigned long long>(std::bit_cast<uint64_t>(value)));
    return text;
  }
  if (dtype == DType::F32) {
    std::snprintf(text, sizeof text, "0x%08X", std::bit_cast<uint32_t>(static_cast<float>(value)));
    return text;
  }
  const bool is_bf16 = dtype == DType::BF16;
  const bool is_f16 = dtype == DType::F16;
  if (std::isnan(value)) return is_bf16 ? "0x7FC0" : is_f16 ? "0x7E00" : "0x7F";
  if (std::isinf(value)) {
    if (is_bf16) return value > 0 ? "0x7F80" : "0xFF80";
    if (is_f16) return value > 0 ? "0x7C00" : "0xFC00";
    return value > 0 ? "0x7C" : "0xFC";  // f8E5M2, the only 8-bit format with infinities here
  }
  std::snprintf(text, sizeof text, "%.17e", value);
  return text;
}

std::string literal(double value, DType dtype) {
  if (dtype == DType::Pred) return value != 0 ? "true" : "false";
  if (is_complex(dtype)) {
    const DType part = real_part(dtype);
    return "(" + float_literal(value, part) + "," + float_literal(0.0, part) + ")";
  }
  if (is_float(dtype)) return float_literal(value, dtype);
  return std::to_string(static_cast<int64_t>(value));
}

std::string literal_int(int64_t value, DType dtype) {
  if (dtype == DType::Pred) return value != 0 ? "true" : "false";
  if (is_float(dtype) || is_complex(dtype)) return literal(static_cast<double>(value), dtype);
  if (dtype == DType::U64) return std::to_string(static_cast<uint64_t>(value));
  return std::to_string(value);
}

// An array with no elements has no splat value.
Value dense_splat(Builder& b, const std::string& text, const Type& type) {
  return b.constant(type.elements() == 0 ? "" : text, type);
}

// A literal of any rank: printed flat, reshaped where it has several dimensions.
template <typename T>
Value dense(Builder& b, std::span<const T> values, const Type& type,
            std::string (*print)(T, DType)) {
  if (values.empty()) return b.constant("", type);
  if (type.dims.size() > 1) {
    return reshape(dense(b, values, {type.dtype, {static_cast<int64_t>(values.size())}}, print),
                   type.dims);
  }
  std::string text = type.dims.empty() ? "" : "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != 0) text += ", ";
    text += print(values[i], type.dtype);
  }
  if (!type.dims.empty()) text += "]";
  return b.constant(text, type);
}

Dims iota_dims(size_t rank) {
  Dims dims(rank);
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

std::string list(const Dims& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(values[i]);
  }
  return text + "]";
}

std::string precision_attribute(Precision precision) {
  static constexpr std::array<std::string_view, 3> kNames = {"DEFAULT", "HIGH", "HIGHEST"};
  const std::string one = attr::stablehlo("precision", kNames[static_cast<size_t>(precision)]);
  return "[" + one + ", " + one + "]";
}

Dims dims_without(const Dims& dims, std::span<const int64_t> removed) {
  Dims kept;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (std::find(removed.begin(), removed.end(), static_cast<int64_t>(i)) == removed.end()) {
      kept.push_back(dims[i]);
    }
  }
  return kept;
}

using CombineMany = std::function<Values(std::span<const Value>, std::span<const Value>)>;

Region combine_region(Builder& b, std::span<const Value> inits, const CombineMany& combine) {
  std::vector<Type> types;
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const Value& init : inits) types.push_back(init.type());
  }
  const size_t n = inits.size();
  return b.region(types, [&](std::span<const Value> args) {
    return combine(args.subspan(0, n), args.subspan(n));
  });
}

CombineMany many(const Combine& combine) {
  return [&combine](std::span<const Value> a, std::span<const Value> x) {
    return Values{combine(a[0], x[0])};
  };
}

Attributes window_attributes(const Window& w, bool with_dilations) {
  Dims padding;
  for (size_t i = 0; i < w.sizes.size(); ++i) {
    padding.push_back(w.pad_low[i]);
    padding.push_back(w.pad_high[i]);
  }
  Attributes attributes = {{"window_dimensions", attr::array(w.sizes)},
                           {"window_strides", attr::array(w.strides)},
                           {"padding", attr::matrix(padding, 2)}};
  if (with_dilations) {
    attributes.push_back({"base_dilations", attr::array(w.base_dilations)});
    attributes.push_back({"window_dilations", attr::array(w.window_dilations)});
  }
  return attributes;
}

Type scalar_of(const Value& x) { return {x.dtype(), {}}; }

}  // namespace

// --- constants -----------------------------------------------------------------------------

Value splat(Builder& b, double value, const Type& type) {
  return dense_splat(b, literal(value, type.dtype), type);
}
Value splat_int(Builder& b, int64_t value, const Type& type) {
  return dense_splat(b, literal_int(value, type.dtype), type);
}
Value scalar(Builder& b, double value, DType dtype) { return splat(b, value, {dtype, {}}); }
Value scalar_int(Builder& b, int64_t value, DType dtype) {
  return splat_int(b, value, {dtype, {}});
}
Value zero(Builder& b, const Type& type) { return splat_int(b, 0, type); }
Value one(Builder& b, const Type& type) { return splat_int(b, 1, type); }

Value lowest(Builder& b, const Type& type) {
  if (is_float(type.dtype)) return splat(b, -std::numeric_limits<double>::infinity(), type);
  if (type.dtype == DType::Pred || is_unsigned(type.dtype)) return zero(b, type);
  return splat_int(b, std::numeric_limits<int64_t>::min() >> (64 - bit_width(type.dtype)), type);
}

Value highest(Builder& b, const Type& type) {
  if (is_float(type.dtype)) return splat(b, std::numeric_limits<double>::infinity(), type);
  if (type.dtype == DType::Pred) return one(b, type);
  if (is_unsigned(type.dtype)) {
    return splat_int(b, static_cast<int64_t>(~uint64_t{0} >> (64 - bit_width(type.dtype))), type);
  }
  return splat_int(b, std::numeric_limits<int64_t>::max() >> (64 - bit_width(type.dtype)), type);
}

Value finite_highest(Builder& b, const Type& type) {
  switch (type.dtype) {
    case DType::F64:
      return splat(b, std::numeric_limits<double>::max(), type);
    case DType::F32:
      return splat(b, std::numeric_limits<float>::max(), type);
    case DType::BF16:
      return splat(b, 0x1.FEp127, type);
    case DType::F16:
      return splat(b, 65504.0, type);
    case DType::F8E5M2:
      return splat(b, 57344.0, type);
    case DType::F8E4M3FN:
      return splat(b, 448.0, type);
    default:
      return highest(b, type);
  }
}

Value dense_ints(Builder& b, std::span<const int64_t> values, const Type& type) {
  return dense(b, values, type, literal_int);
}
Value dense_floats(Builder& b, std::span<const double> values, const Type& type) {
  return dense(b, values, type, literal);
}

Value iota(Builder& b, const Type& type, int64_t dim) {
  return b.op("stablehlo.iota", {}, type, {{"iota_dimension", attr::i64(dim)}});
}

// --- elementwise ---------------------------------------------------------------------------

Value unary(std::string_view name, const Value& x) {
  return x.builder().op("stablehlo." + std::string(name), {x}, x.type());
}
Value binary(std::string_view name, const Value& x, const Value& y) {
  return x.builder().op("stablehlo." + std::string(name), {x, y}, x.type());
}
Value chlo_unary(std::string_view name, const Value& x) {
  return x.builder().op("chlo." + std::string(name), {x}, x.type());
}
Value chlo_binary(std::string_view name, const Value& x, const Value& y) {
  return x.builder().op("chlo." + std::string(name), {x, y}, x.type());
}
Value abs(const Value& x) {
  return x.builder().op("stablehlo.abs", {x}, x.type().with(real_part(x.dtype())));
}

Value compare(Direction direction, const Value& x, const Value& y) {
  static constexpr std::array<std::string_view, 6> kNames = {"EQ", "NE", "LT", "LE", "GT", "GE"};
  return x.builder().op(
      "stablehlo.compare", {x, y}, x.type().with(DType::Pred),
      {{"comparison_direction",
        attr::stablehlo("comparison_direction", kNames[static_cast<size_t>(direction)])}});
}

Value select(const Value& pred, const Value& on_true, const Value& on_false) {
  return pred.builder().op("stablehlo.select", {pred, on_true, on_false}, on_true.type());
}

Value convert(const Value& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  if (is_complex(x.dtype()) && !is_complex(dtype)) return convert(real(x), dtype);
  return x.builder().op("stablehlo.convert", {x}, x.type().with(dtype));
}

Value bitcast_convert(const Value& x, const Type& type) {
  return x.builder().op("stablehlo.bitcast_convert", {x}, type);
}
Value is_finite(const Value& x) {
  return x.builder().op("stablehlo.is_finite", {x}, x.type().with(DType::Pred));
}
Value complex(const Value& real_part_value, const Value& imag_part) {
  return real_part_value.builder().op(
      "stablehlo.complex", {real_part_value, imag_part},
      real_part_value.type().with(complex_of(real_part_value.dtype())));
}
Value real(const Value& x) {
  if (!is_complex(x.dtype())) return x;
  return x.builder().op("stablehlo.real", {x}, x.type().with(real_part(x.dtype())));
}
Value imag(const Value& x) {
  return x.builder().op("stablehlo.imag", {x}, x.type().with(real_part(x.dtype())));
}
Value clamp(const Value& low, const Value& x, const Value& high) {
  return x.builder().op("stablehlo.clamp", {low, x, high}, x.type());
}

// --- shape ---------------------------------------------------------------------------------

Value broadcast_in_dim(const Value& x, const Dims& dims, std::span<const int64_t> mapping) {
  if (x.dims() == dims) return x;
  return x.builder().op("stablehlo.broadcast_in_dim", {x}, x.type().with(dims),
                        {{"broadcast_dimensions", attr::array(mapping)}});
}

Value broadcast_to(const Value& x, const Dims& dims) {
  if (x.dims() == dims) return x;
  Dims mapping;
  const int64_t offset = static_cast<int64_t>(dims.size()) - x.rank();
  for (int64_t i = 0; i < x.rank(); ++i) mapping.push_back(i + offset);
  return broadcast_in_dim(x, dims, mapping);
}

Value reshape(const Value& x, const Dims& dims) {
  if (x.dims() == dims) return x;
  return x.builder().op("stablehlo.reshape", {x}, x.type().with(dims));
}

Value transpose(const Value& x, std::span<const int64_t> permutation) {
  Dims dims;
  bool identity = true;
  for (size_t i = 0; i < permutation.size(); ++i) {
    dims.push_back(x.dim(permutation[i]));
    identity = identity && permutation[i] == static_cast<int64_t>(i);
  }
  if (identity) return x;
  return x.builder().op("stablehlo.transpose", {x}, x.type().with(dims),
                        {{"permutation", attr::array(permutation)}});
}

Value reverse(const Value& x, std::span<const int64_t> dims) {
  if (dims.empty()) return x;
  return x.builder().op("stablehlo.reverse", {x}, x.type(), {{"dimensions", attr::array(dims)}});
}

Value slice(const Value& x, std::span<const int64_t> start, std::span<const int64_t> limit,
            std::span<const int64_t> stride) {
  Dims dims;
  bool identity = true;
  for (size_t i = 0; i < start.size(); ++i) {
    dims.push_back((limit[i] - start[i] + stride[i] - 1) / stride[i]);
    identity = identity && start[i] == 0 && stride[i] == 1 && limit[i] == x.dim(i);
  }
  if (identity) return x;
  return x.builder().op("stablehlo.slice", {x}, x.type().with(dims),
                        {{"start_indices", attr::array(start)},
                         {"limit_indices", attr::array(limit)},
                         {"strides", attr::array(stride)}});
}

Value slice_dim(const Value& x, int64_t dim, int64_t start, int64_t limit, int64_t stride) {
  Dims starts(x.rank(), 0), limits = x.dims(), strides(x.rank(), 1);
  starts[dim] = start;
  limits[dim] = limit;
  strides[dim] = stride;
  return slice(x, starts, limits, strides);
}

Value concatenate(std::span<const Value> parts, int64_t dim) {
  if (parts.size() == 1) return parts[0];
  Type type = parts[0].type();
  type.dims[dim] = 0;
  for (const Value& part : parts) type.dims[dim] += part.dim(dim);
  return parts[0].builder().op("stablehlo.concatenate", parts, std::span<const Type>(&type, 1),
                               {{"dimension", attr::i64(dim)}})[0];
}

Value pad(const Value& x, const Value& padding_scalar, std::span<const int64_t> low,
          std::span<const int64_t> high, std::span<const int64_t> interior) {
  Dims dims;
  for (int64_t i = 0; i < x.rank(); ++i) {
    const int64_t inner = x.dim(i) == 0 ? 0 : (x.dim(i) - 1) * interior[i];
    dims.push_back(x.dim(i) + inner + low[i] + high[i]);
  }
  if (dims == x.dims() && std::all_of(low.begin(), low.end(), [](int64_t v) { return v == 0; })) {
    return x;
  }
  return x.builder().op("stablehlo.pad", {x, padding_scalar}, x.type().with(dims),
                        {{"edge_padding_low", attr::array(low)},
                         {"edge_padding_high", attr::array(high)},
                         {"interior_padding", attr::array(interior)}});
}

Value dynamic_slice(const Value& x, std::span<const Value> starts, const Dims& sizes) {
  Values operands = {x};
  operands.insert(operands.end(), starts.begin(), starts.end());
  const Type type = x.type().with(sizes);
  return x.builder().op("stablehlo.dynamic_slice", operands, std::span<const Type>(&type, 1),
                        {{"slice_sizes", attr::array(sizes)}})[0];
}

Value dynamic_update_slice(const Value& x, const Value& update, std::span<const Value> starts) {
  Values operands = {x, update};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return x.builder().op("stablehlo.dynamic_update_slice", operands,
                        std::span<const Type>(&x.type(), 1))[0];
}

// --- structured ----------------------------------------------------------------------------

Values reduce(std::span<const Value> xs, std::span<const Value> inits,
              std::span<const int64_t> dims, const CombineMany& combine) {
  Builder& b = xs[0].builder();
  Values operands(xs.begin(), xs.end());
  operands.insert(operands.end(), inits.begin(), inits.end());
  std::vector<Type> results;
  for (const Value& x : xs) results.push_back(x.type().with(dims_without(x.dims(), dims)));
  const Region region = combine_region(b, inits, combine);
  return b.op("stablehlo.reduce", operands, results, {{"dimensions", attr::array(dims)}},
              std::span<const Region>(&region, 1));
}

Value reduce(const Value& x, const Value& init, std::span<const int64_t> dims,
             const Combine& combine) {
  return reduce(std::span<const Value>(&x, 1), std::span<const Value>(&init, 1), dims,
                many(combine))[0];
}

Values reduce_window(std::span<const Value> xs, std::span<const Value> inits, const Window& w,
                     const CombineMany& combine) {
  Builder& b = xs[0].builder();
  Values operands(xs.begin(), xs.end());
  operands.insert(operands.end(), inits.begin(), inits.end());
  Dims dims;
  for (size_t i = 0; i < w.sizes.size(); ++i) {
    const int64_t n = xs[0].dim(i);
    const int64_t padded =
        (n == 0 ? 0 : (n - 1) * w.base_dilations[i] + 1) + w.pad_low[i] + w.pad_high[i];
    const int64_t window = (w.sizes[i] - 1) * w.window_dilations[i] + 1;
    dims.push_back(padded < window ? 0 : (padded - window) / w.strides[i] + 1);
  }
  std::vector<Type> results;
  for (const Value& x : xs) results.push_back(x.type().with(dims));
  const Region region = combine_region(b, inits, combine);
  return b.op("stablehlo.reduce_window", operands, results, window_attributes(w, true),
              std::span<const Region>(&region, 1));
}

Value reduce_window(const Value& x, const Value& init, const Window& window,
                    const Combine& combine) {
  return reduce_window(std::span<const Value>(&x, 1), std::span<const Value>(&init, 1), window,
                       many(combine))[0];
}

Value dot_general(const Value& lhs, const Value& rhs, const DotDims& d, DType result,
                  Precision precision) {
  Type type{result, {}};
  for (int64_t dim : d.lhs_batch) type.dims.push_back(lhs.dim(dim));
  const auto append_free = [&](const Value& x, const Dims& batch, const Dims& contract) {
    for (int64_t i = 0; i < x.rank(); ++i) {
      const bool used = std::find(batch.begin(), batch.end(), i) != batch.end() ||
                        std::find(contract.begin(), contract.end(), i) != contract.end();
      if (!used) type.dims.push_back(x.dim(i));
    }
  };
  append_free(lhs, d.lhs_batch, d.lhs_contract);
  append_free(rhs, d.rhs_batch, d.rhs_contract);
  const std::string numbers = "#stablehlo.dot<lhs_batching_dimensions = " + list(d.lhs_batch) +
                              ", rhs_batching_dimensions = " + list(d.rhs_batch) +
                              ", lhs_contracting_dimensions = " + list(d.lhs_contract) +
                              ", rhs_contracting_dimensions = " + list(d.rhs_contract) + ">";
  return lhs.builder().op(
      "stablehlo.dot_general", {lhs, rhs}, type,
      {{"dot_dimension_numbers", numbers}, {"precision_config", precision_attribute(precision)}});
}

Value convolution(const Value& lhs, const Value& rhs, const ConvDims& d, const ConvOptions& o,
                  const Type& result) {
  const std::string numbers =
      "#stablehlo.conv<raw input_batch_dimension = " + std::to_string(d.input_batch) +
      ", input_feature_dimension = " + std::to_string(d.input_feature) +
      ", input_spatial_dimensions = " + list(d.input_spatial) +
      ", kernel_input_feature_dimension = " + std::to_string(d.kernel_input_feature) +
      ", kernel_output_feature_dimension = " + std::to_string(d.kernel_output_feature) +
      ", kernel_spatial_dimensions = " + list(d.kernel_spatial) +
      ", output_batch_dimension = " + std::to_string(d.output_batch) +
      ", output_feature_dimension = " + std::to_string(d.output_feature) +
      ", output_spatial_dimensions = " + list(d.output_spatial) + ">";
  const size_t spatial = d.input_spatial.size();
  const auto filled = [&](const Dims& given, int64_t value) {
    return given.empty() ? Dims(spatial, value) : given;
  };
  const Dims low = filled(o.pad_low, 0), high = filled(o.pad_high, 0);
  Dims padding;
  for (size_t i = 0; i < spatial; ++i) {
    padding.push_back(low[i]);
    padding.push_back(high[i]);
  }
  std::string reversal = "array<i1";
  for (size_t i = 0; i < spatial; ++i) {
    reversal += i == 0 ? ": " : ", ";
    reversal += attr::boolean(!o.reversal.empty() && o.reversal[i]);
  }
  reversal += ">";
  return lhs.builder().op("stablehlo.convolution", {lhs, rhs}, result,
                          {{"window_strides", attr::array(filled(o.strides, 1))},
                           {"padding", attr::matrix(padding, 2)},
                           {"lhs_dilation", attr::array(filled(o.lhs_dilation, 1))},
                           {"rhs_dilation", attr::array(filled(o.rhs_dilation, 1))},
                           {"window_reversal", reversal},
                           {"dimension_numbers", numbers},
                           {"feature_group_count", attr::i64(o.feature_groups)},
                           {"batch_group_count", attr::i64(o.batch_groups)},
                           {"precision_config", precision_attribute(o.precision)}});
}

Value gather(const Value& operand, const Value& indices, const GatherDims& d,
             std::span<const int64_t> slice_sizes, const Type& result, bool indices_are_sorted) {
  const std::string numbers =
      "#stablehlo.gather<offset_dims = " + list(d.offset_dims) +
      ", collapsed_slice_dims = " + list(d.collapsed_slice_dims) +
      ", operand_batching_dims = " + list(d.operand_batching_dims) +
      ", start_indices_batching_dims = " + list(d.start_indices_batching_dims) +
      ", start_index_map = " + list(d.start_index_map) +
      ", index_vector_dim = " + std::to_string(d.index_vector_dim) + ">";
  return operand.builder().op("stablehlo.gather", {operand, indices}, result,
                              {{"dimension_numbers", numbers},
                               {"slice_sizes", attr::array(slice_sizes)},
                               {"indices_are_sorted", attr::boolean(indices_are_sorted)}});
}

Value scatter(const Value& operand, const Value& indices, const Value& updates,
              const ScatterDims& d, const Combine& combine, bool indices_are_sorted,
              bool unique_indices) {
  const std::string numbers =
      "#stablehlo.scatter<update_window_dims = " + list(d.update_window_dims) +
      ", inserted_window_dims = " + list(d.inserted_window_dims) +
      ", input_batching_dims = " + list(d.input_batching_dims) +
      ", scatter_indices_batching_dims = " + list(d.scatter_indices_batching_dims) +
      ", scatter_dims_to_operand_dims = " + list(d.scatter_dims_to_operand_dims) +
      ", index_vector_dim = " + std::to_string(d.index_vector_dim) + ">";
  Builder& b = operand.builder();
  const std::array<Type, 2> types = {scalar_of(operand), scalar_of(operand)};
  const Region region = b.region(
      types, [&](std::span<const Value> args) { return Values{combine(args[0], args[1])}; });
  return b.op("stablehlo.scatter", {operand, indices, updates}, operand.type(),
              {{"scatter_dimension_numbers", numbers},
               {"indices_are_sorted", attr::boolean(indices_are_sorted)},
               {"unique_indices", attr::boolean(unique_indices)}},
              std::span<const Region>(&region, 1));
}

Value select_and_scatter(const Value& operand, const Value& source, const Value& init,
                         const Window& window, const Combine& select_fn,
                         const Combine& scatter_fn) {
  Builder& b = operand.builder();
  const std::array<Type, 2> types = {scalar_of(operand), scalar_of(operand)};
  const auto region_of = [&](const Combine& combine) {
    return b.region(types,
                    [&](std::span<const Value> args) { return Values{combine(args[0], args[1])}; });
  };
  const std::array<Region, 2> regions = {region_of(select_fn), region_of(scatter_fn)};
  return b.op("stablehlo.select_and_scatter", {operand, source, init}, operand.type(),
              window_attributes(window, false), regions);
}

Values sort(std::span<const Value> operands, int64_t dim, bool stable,
            const std::function<Value(std::span<const Value>)>& less) {
  Builder& b = operands[0].builder();
  std::vector<Type> arguments, results;
  for (const Value& x : operands) {
    arguments.push_back(scalar_of(x));
    arguments.push_back(scalar_of(x));
    results.push_back(x.type());
  }
  const Region region =
      b.region(arguments, [&](std::span<const Value> args) { return Values{less(args)}; });
  return b.op("stablehlo.sort", operands, results,
              {{"dimension", attr::i64(dim)}, {"is_stable", attr::boolean(stable)}},
              std::span<const Region>(&region, 1));
}

Values while_loop(std::span<const Value> init,
                  const std::function<Value(std::span<const Value>)>& condition,
                  const std::function<Values(std::span<const Value>)>& body) {
  Builder& b = init[0].builder();
  std::vector<Type> types;
  for (const Value& x : init) types.push_back(x.type());
  const std::array<Region, 2> regions = {
      b.region(types, [&](std::span<const Value> args) { return Values{condition(args)}; }),
      b.region(types, body)};
  return b.op("stablehlo.while", init, types, {}, regions);
}

std::pair<Value, Value> rng_bits(const Value& state, const Type& bits, std::string_view algorithm) {
  const std::array<Type, 2> types = {state.type(), bits};
  const Values results =
      state.builder().op("stablehlo.rng_bit_generator", std::span<const Value>(&state, 1), types,
                         {{"rng_algorithm", attr::stablehlo("rng_algorithm", algorithm)}});
  return {results[0], results[1]};
}

Values call(Builder& b, std::string_view function, std::span<const Value> operands,
            std::span<const Type> results) {
  return b.op("func.call", operands, results, {{"callee", attr::symbol(function)}});
}

Values custom_call(Builder& b, std::string_view target, std::span<const Value> operands,
                   std::span<const Type> results, std::string_view config, bool has_side_effect,
                   std::span<const std::pair<int64_t, int64_t>> aliases) {
  Attributes attributes = {{"call_target_name", attr::string(target)},
                           {"has_side_effect", attr::boolean(has_side_effect)},
                           {"api_version", attr::i32(4)},
                           {"backend_config", std::string(config)}};
  const auto layouts = [](auto types) {
    std::string text = "[";
    for (size_t i = 0; i < types.size(); ++i) {
      Dims order = iota_dims(types[i].dims.size());
      std::reverse(order.begin(), order.end());
      if (i != 0) text += ", ";
      std::string values = list(order);
      text += "dense<" + (order.empty() ? std::string() : values) + "> : tensor<" +
              std::to_string(order.size()) + "xindex>";
    }
    return text + "]";
  };
  std::vector<Type> operand_types;
  for (const Value& x : operands) operand_types.push_back(x.type());
  attributes.push_back({"operand_layouts", layouts(std::span<const Type>(operand_types))});
  attributes.push_back({"result_layouts", layouts(results)});
  if (!aliases.empty()) {
    std::string text = "[";
    for (size_t i = 0; i < aliases.size(); ++i) {
      if (i != 0) text += ", ";
      text += "#stablehlo.output_operand_alias<output_tuple_indices = ";
      text += results.size() == 1 ? "[]" : "[" + std::to_string(aliases[i].first) + "]";
      text += ", operand_index = " + std::to_string(aliases[i].second);
      text += ", operand_tuple_indices = []>";
    }
    attributes.push_back({"output_operand_aliases", text + "]"});
  }
  return b.op("stablehlo.custom_call", operands, results, attributes);
}

}  // namespace torch_xla::hlo
