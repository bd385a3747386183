// Operations with regions or structured attributes.
#include <algorithm>
#include <array>
#include <numeric>

#include "hlo/check.h"
#include "hlo/limbs.h"
#include "hlo/ops.h"
#include "hlo/partition.h"

namespace torch_xla::hlo {
namespace {

Dims iota_dims(size_t rank) {
  Dims dims(rank);
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

std::string precision_attribute(Precision precision) {
  static constexpr std::array<std::string_view, 3> kNames = {"DEFAULT", "HIGH", "HIGHEST"};
  const std::string one = attr::stablehlo("precision", kNames[static_cast<size_t>(precision)]);
  return "[" + one + ", " + one + "]";
}

// Returns whether the target lacks matrix products and convolutions with this result.
bool lacks_products_of(DType result, const Builder& b) {
  return b.lacks().wide_products && is_integer(result) && bit_width(result) == 64;
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

const std::array<Type, 1> kPredicate = {Type{DType::Pred, {}}};

// Throws unless a region returns values of these types.
void check_results(std::string_view op, std::string_view region, const Values& results,
                   std::span<const Type> types) {
  TXLA_CHECK(results.size() == types.size(), op, ": expected ", types.size(), " results of its ",
             region, ", got ", results.size(), ".");
  for (size_t i = 0; i < types.size(); ++i) {
    TXLA_CHECK(results[i] && results[i].type() == types[i], op, ": expected ", types[i].str(),
               " as result ", i, " of its ", region, ", got ", show(results[i]), ".");
  }
}

// Operands that are reduced together: of the same dimensions, each with its initial scalar.
void check_reduced(std::string_view op, std::span<const Value> xs, std::span<const Value> inits) {
  TXLA_CHECK(!xs.empty() && xs.size() == inits.size(), op,
             ": expected operands and as many initial ", "values, got ", xs.size(), " and ",
             inits.size(), ".");
  for (size_t i = 0; i < xs.size(); ++i) {
    TXLA_CHECK(xs[i] && xs[i].dims() == xs[0].dims(), op,
               ": expected operands of the dimensions of ", show(xs[0]), ", got ", show(xs[i]),
               ".");
    TXLA_CHECK(inits[i] && inits[i].type() == scalar_of(xs[i]), op,
               ": expected an initial scalar of the type of ", show(xs[i]), ", got ",
               show(inits[i]), ".");
  }
}

void check_window(std::string_view op, const Value& x, const Window& w) {
  check_per_dim(op, "window size", x, w.sizes);
  check_per_dim(op, "stride", x, w.strides);
  check_per_dim(op, "base dilation", x, w.base_dilations);
  check_per_dim(op, "window dilation", x, w.window_dilations);
  check_per_dim(op, "low padding", x, w.pad_low);
  check_per_dim(op, "high padding", x, w.pad_high);
  for (size_t i = 0; i < w.sizes.size(); ++i) {
    TXLA_CHECK(
        w.sizes[i] > 0 && w.strides[i] > 0 && w.base_dilations[i] > 0 && w.window_dilations[i] > 0,
        op, ": expected positive sizes, strides and dilations in dimension ", i, ", got ",
        w.sizes[i], ", ", w.strides[i], ", ", w.base_dilations[i], " and ", w.window_dilations[i],
        ".");
  }
}

void check_indices(std::string_view op, const Value& indices, int64_t index_vector_dim) {
  TXLA_CHECK(indices && is_integer(indices.dtype()), op, ": expected integer indices, got ",
             show(indices), ".");
  TXLA_CHECK(index_vector_dim >= 0 && index_vector_dim <= indices.rank(), op,
             ": expected index_vector_dim in [0, ", indices.rank(), "], got ", index_vector_dim,
             ".");
}

bool is_sum(const Region& region) {
  const std::string_view text = region.text, add = "= \"stablehlo.add\"";
  return text.find(add) != std::string_view::npos && text.find("= \"") == text.rfind("= \"");
}

// A scatter, in a program that is partitioned. XLA's partitioner adds up the devices' sums, in even
// parts; with others, and with scatters that do not add, it has failed and made wrong values. There
// devices hold all that indices choose from, and split the windows.
Value scatter_apart(const Value& operand, const Value& indices, const Value& updates,
                    const ScatterDims& d, const Region& region, const Attributes& attributes) {
  Dims of_operand = uneven_dims(operand), of_indices = uneven_dims(indices),
       of_updates = uneven_dims(updates);
  if (!is_sum(region)) {
    const Dims& chosen = d.scatter_dims_to_operand_dims;
    of_operand.insert(of_operand.end(), chosen.begin(), chosen.end());
    of_indices = iota_dims(static_cast<size_t>(indices.rank()));
    for (int64_t i = 0; i < updates.rank(); ++i) {
      const bool is_window =
          std::ranges::find(d.update_window_dims, i) != d.update_window_dims.end();
      if (!is_window) of_updates.push_back(i);
    }
  }
  const Value made = operand.builder().op(
      "stablehlo.scatter",
      {unsplit(operand, of_operand), unsplit(indices, of_indices), unsplit(updates, of_updates)},
      operand.type(), attributes, std::span<const Region>(&region, 1));
  return unsplit(made, of_operand);
}

// Returns whether a scatter writes one window only.
bool is_single(const Value& indices, const ScatterDims& d) {
  if (!d.input_batching_dims.empty() || d.scatter_dims_to_operand_dims.empty()) return false;
  const int64_t numbers = static_cast<int64_t>(d.scatter_dims_to_operand_dims.size());
  return indices.type().elements() == numbers;
}

// The scatter of one window as one of two, the second of which lies outside and is not written.
Value scatter_two(const Value& operand, const Value& indices, const Value& updates,
                  const ScatterDims& d, const Combine& combine) {
  const int64_t numbers = static_cast<int64_t>(d.scatter_dims_to_operand_dims.size());
  ScatterDims two = d;
  two.index_vector_dim = 1;
  // Dimensions of the updates that stand for indices are 1; one is put before the window's.
  Dims window = {1};
  two.update_window_dims.clear();
  for (size_t i = 0; i < d.update_window_dims.size(); ++i) {
    window.push_back(updates.dim(d.update_window_dims[i]));
    two.update_window_dims.push_back(static_cast<int64_t>(i) + 1);
  }
  const Value inside = reshape(convert(indices, DType::S64), {1, numbers});
  const Value outside = splat_int(operand.builder(), -1, inside.type());
  const Value update = reshape(updates, window);
  const std::array<Value, 2> both_indices = {inside, outside}, both_updates = {update, update};
  return scatter(operand, concatenate(both_indices, 0), concatenate(both_updates, 0), two, combine);
}

Region combine_region(std::string_view op, Builder& b, std::span<const Value> inits,
                      const CombineMany& combine) {
  std::vector<Type> types;
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const Value& init : inits) types.push_back(init.type());
  }
  const size_t n = inits.size();
  return b.region(types, [&](std::span<const Value> args) {
    Values results = combine(args.subspan(0, n), args.subspan(n));
    check_results(op, "reduction", results, std::span<const Type>(types).first(n));
    return results;
  });
}

CombineMany many(const Combine& combine) {
  return [&combine](std::span<const Value> a, std::span<const Value> x) {
    return Values{combine(a[0], x[0])};
  };
}

// The dimensions along which windows move, which are not split: running sums, whose windows are as
// long as the dimension, were wrong.
Dims moved_dims(const Window& w) {
  Dims moved;
  for (size_t i = 0; i < w.sizes.size(); ++i) {
    if (w.sizes[i] != 1) moved.push_back(static_cast<int64_t>(i));
  }
  return moved;
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

}  // namespace

Values reduce(std::span<const Value> xs, std::span<const Value> inits,
              std::span<const int64_t> dims, const CombineMany& combine) {
  constexpr std::string_view kOp = "stablehlo.reduce";
  check_reduced(kOp, xs, inits);
  check_dims(kOp, xs[0], dims);
  Builder& b = xs[0].builder();
  Values operands(xs.begin(), xs.end());
  operands.insert(operands.end(), inits.begin(), inits.end());
  std::vector<Type> results;
  for (const Value& x : xs) results.push_back(x.type().with(dims_without(x.dims(), dims)));
  const Region region = combine_region(kOp, b, inits, combine);
  return b.op(kOp, operands, results, {{"dimensions", attr::array(dims)}},
              std::span<const Region>(&region, 1));
}

Value reduce(const Value& x, const Value& init, std::span<const int64_t> dims,
             const Combine& combine) {
  return reduce(std::span<const Value>(&x, 1), std::span<const Value>(&init, 1), dims,
                many(combine))[0];
}

Values reduce_window(std::span<const Value> xs, std::span<const Value> inits, const Window& w,
                     const CombineMany& combine) {
  constexpr std::string_view kOp = "stablehlo.reduce_window";
  check_reduced(kOp, xs, inits);
  check_window(kOp, xs[0], w);
  Builder& b = xs[0].builder();
  Values operands;
  for (const Value& x : xs) operands.push_back(unsplit(x, moved_dims(w)));
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
  const Region region = combine_region(kOp, b, inits, combine);
  Values made =
      b.op(kOp, operands, results, window_attributes(w, true), std::span<const Region>(&region, 1));
  for (Value& value : made) value = unsplit(value, moved_dims(w));
  return made;
}

Value reduce_window(const Value& x, const Value& init, const Window& window,
                    const Combine& combine) {
  return reduce_window(std::span<const Value>(&x, 1), std::span<const Value>(&init, 1), window,
                       many(combine))[0];
}

Value dot_general(const Value& lhs, const Value& rhs, const DotDims& d, DType result) {
  constexpr std::string_view kOp = "stablehlo.dot_general";
  const auto check_pairs = [&](std::string_view what, const Dims& left, const Dims& right) {
    check_dims(kOp, lhs, left);
    check_dims(kOp, rhs, right);
    bool fits = left.size() == right.size();
    for (size_t i = 0; fits && i < left.size(); ++i) fits = lhs.dim(left[i]) == rhs.dim(right[i]);
    TXLA_CHECK(fits, kOp, ": expected ", what, " dimensions of equal sizes, got ", show(left),
               " of ", show(lhs), " and ", show(right), " of ", show(rhs), ".");
  };
  check_elements(kOp, lhs);
  check_pairs("batch", d.lhs_batch, d.rhs_batch);
  check_pairs("contracted", d.lhs_contract, d.rhs_contract);
  if (lacks_products_of(result, lhs.builder())) {
    int64_t terms = 1;
    for (const int64_t dim : d.lhs_contract) terms *= lhs.dim(dim);
    return in_limbs(lhs, rhs, terms, result, [&](const Value& x, const Value& y) {
      return dot_general(x, y, d, DType::U32);
    });
  }
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
  const std::string numbers = "#stablehlo.dot<lhs_batching_dimensions = " + show(d.lhs_batch) +
                              ", rhs_batching_dimensions = " + show(d.rhs_batch) +
                              ", lhs_contracting_dimensions = " + show(d.lhs_contract) +
                              ", rhs_contracting_dimensions = " + show(d.rhs_contract) + ">";
  return lhs.builder().op(kOp, {lhs, rhs}, type,
                          {{"dot_dimension_numbers", numbers},
                           {"precision_config", precision_attribute(lhs.builder().precision())}});
}

namespace {

// XLA's partitioner gives wrong sums where a convolution's operands are split and one of them along
// what the windows move over, or where the windows of groups are. Images and kernels stay whole,
// and groups are computed by every device; a batch and plain channels may be split.
struct UnsplitConvolution {
  Value input, kernel;
  Dims of_result;
};

UnsplitConvolution unsplit_for_convolution(const Value& input, const Value& kernel,
                                           const ConvDims& d, const ConvOptions& o) {
  Dims of_input = d.input_spatial, of_kernel = d.kernel_spatial, of_result = d.output_spatial;
  if (o.feature_groups > 1 || o.batch_groups > 1) {
    of_input.push_back(d.input_feature);
    of_kernel.insert(of_kernel.end(), {d.kernel_input_feature, d.kernel_output_feature});
    of_result.push_back(d.output_feature);
  }
  if (o.batch_groups > 1) {
    of_input.push_back(d.input_batch);
    of_result.push_back(d.output_batch);
  }
  return {unsplit(input, of_input), unsplit(kernel, of_kernel), std::move(of_result)};
}

}  // namespace

Value convolution(const Value& lhs, const Value& rhs, const ConvDims& d, const ConvOptions& o,
                  const Type& result) {
  constexpr std::string_view kOp = "stablehlo.convolution";
  const size_t spatial = d.input_spatial.size();
  const auto check_rank = [&](std::string_view what, int64_t rank, const Dims& dims) {
    TXLA_CHECK(dims.size() == spatial && rank == static_cast<int64_t>(spatial) + 2, kOp,
               ": expected batch, feature and ", spatial, " spatial dimensions of the ", what,
               ", got rank ", rank, " and spatial dimensions ", show(dims), ".");
  };
  check_elements(kOp, lhs);
  check_rank("input", lhs.rank(), d.input_spatial);
  check_rank("kernel", rhs.rank(), d.kernel_spatial);
  check_rank("result", result.rank(), d.output_spatial);
  const auto filled = [&](std::string_view what, const Dims& given, int64_t value) {
    TXLA_CHECK(given.empty() || given.size() == spatial, kOp, ": expected ", what, " for ", spatial,
               " spatial dimensions, got ", show(given), ".");
    return given.empty() ? Dims(spatial, value) : given;
  };
  TXLA_CHECK(o.reversal.empty() || o.reversal.size() == spatial, kOp, ": expected reversals for ",
             spatial, " spatial dimensions, got ", o.reversal.size(), ".");
  TXLA_CHECK(o.feature_groups > 0 && o.batch_groups > 0 &&
                 lhs.dim(d.input_feature) == rhs.dim(d.kernel_input_feature) * o.feature_groups &&
                 lhs.dim(d.input_batch) % o.batch_groups == 0,
             kOp, ": expected a kernel and groups that divide the input's features and batch, got ",
             show(lhs), ", ", show(rhs), ", ", o.feature_groups, " feature groups and ",
             o.batch_groups, " batch groups.");
  const bool in_floats = lhs.builder().lacks().integer_convolutions && is_integer(result.dtype);
  if (in_floats || lacks_products_of(result.dtype, lhs.builder())) {
    const int64_t outputs = std::max<int64_t>(rhs.dim(d.kernel_output_feature), 1);
    const int64_t terms = rhs.type().elements() / outputs;
    return in_limbs(lhs, rhs, terms, result.dtype, [&](const Value& x, const Value& y) {
      if (!in_floats) return convolution(x, y, d, o, result.with(DType::U32));
      // float64 has room for the sums of limbs, which are below 2^32.
      const Value sums = convolution(convert(x, DType::F64), convert(y, DType::F64), d, o,
                                     result.with(DType::F64));
      return convert(sums, DType::U32);
    });
  }
  const std::string numbers =
      "#stablehlo.conv<raw input_batch_dimension = " + std::to_string(d.input_batch) +
      ", input_feature_dimension = " + std::to_string(d.input_feature) +
      ", input_spatial_dimensions = " + show(d.input_spatial) +
      ", kernel_input_feature_dimension = " + std::to_string(d.kernel_input_feature) +
      ", kernel_output_feature_dimension = " + std::to_string(d.kernel_output_feature) +
      ", kernel_spatial_dimensions = " + show(d.kernel_spatial) +
      ", output_batch_dimension = " + std::to_string(d.output_batch) +
      ", output_feature_dimension = " + std::to_string(d.output_feature) +
      ", output_spatial_dimensions = " + show(d.output_spatial) + ">";
  const Dims low = filled("low padding", o.pad_low, 0);
  const Dims high = filled("high padding", o.pad_high, 0);
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
  const UnsplitConvolution operands = unsplit_for_convolution(lhs, rhs, d, o);
  const Value made = lhs.builder().op(
      kOp, {operands.input, operands.kernel}, result,
      {{"window_strides", attr::array(filled("strides", o.strides, 1))},
       {"padding", attr::matrix(padding, 2)},
       {"lhs_dilation", attr::array(filled("input dilations", o.lhs_dilation, 1))},
       {"rhs_dilation", attr::array(filled("kernel dilations", o.rhs_dilation, 1))},
       {"window_reversal", reversal},
       {"dimension_numbers", numbers},
       {"feature_group_count", attr::i64(o.feature_groups)},
       {"batch_group_count", attr::i64(o.batch_groups)},
       {"precision_config", precision_attribute(lhs.builder().precision())}});
  return unsplit(made, operands.of_result);
}

Value gather(const Value& operand, const Value& indices, const GatherDims& d,
             std::span<const int64_t> slice_sizes, const Type& result, bool indices_are_sorted) {
  constexpr std::string_view kOp = "stablehlo.gather";
  check_indices(kOp, indices, d.index_vector_dim);
  check_per_dim(kOp, "slice size", operand, slice_sizes);
  TXLA_CHECK(result.dtype == operand.dtype(), kOp, ": expected a result of the type of ",
             show(operand), ", got ", result.str(), ".");
  const std::string numbers =
      "#stablehlo.gather<offset_dims = " + show(d.offset_dims) +
      ", collapsed_slice_dims = " + show(d.collapsed_slice_dims) +
      ", operand_batching_dims = " + show(d.operand_batching_dims) +
      ", start_indices_batching_dims = " + show(d.start_indices_batching_dims) +
      ", start_index_map = " + show(d.start_index_map) +
      ", index_vector_dim = " + std::to_string(d.index_vector_dim) + ">";
  return operand.builder().op(kOp, {operand, indices}, result,
                              {{"dimension_numbers", numbers},
                               {"slice_sizes", attr::array(slice_sizes)},
                               {"indices_are_sorted", attr::boolean(indices_are_sorted)}});
}

Value scatter(const Value& operand, const Value& indices, const Value& updates,
              const ScatterDims& d, const Combine& combine, bool indices_are_sorted,
              bool unique_indices) {
  constexpr std::string_view kOp = "stablehlo.scatter";
  check_indices(kOp, indices, d.index_vector_dim);
  TXLA_CHECK(updates && updates.dtype() == operand.dtype(), kOp,
             ": expected updates of the type of ", show(operand), ", got ", show(updates), ".");
  const std::string numbers =
      "#stablehlo.scatter<update_window_dims = " + show(d.update_window_dims) +
      ", inserted_window_dims = " + show(d.inserted_window_dims) +
      ", input_batching_dims = " + show(d.input_batching_dims) +
      ", scatter_indices_batching_dims = " + show(d.scatter_indices_batching_dims) +
      ", scatter_dims_to_operand_dims = " + show(d.scatter_dims_to_operand_dims) +
      ", index_vector_dim = " + std::to_string(d.index_vector_dim) + ">";
  Builder& b = operand.builder();
  // The compiler makes an update in place of it, which may read what it has overwritten; and whose
  // index, where the operand is split, is moved into a part that it is not of.
  const bool reads_itself = b.lacks().updates_from_self && updates.type().elements() > 1;
  if (is_single(indices, d) &&
      (b.mesh() != nullptr || (reads_itself && b.may_read(updates, operand)))) {
    return scatter_two(operand, indices, updates, d, combine);
  }
  const std::array<Type, 2> types = {scalar_of(operand), scalar_of(operand)};
  const Region region = b.region(types, [&](std::span<const Value> args) {
    Values results = {combine(args[0], args[1])};
    check_results(kOp, "update", results, std::span<const Type>(types).first(1));
    return results;
  });
  const Attributes attributes = {{"scatter_dimension_numbers", numbers},
                                 {"indices_are_sorted", attr::boolean(indices_are_sorted)},
                                 {"unique_indices", attr::boolean(unique_indices)}};
  if (b.mesh() != nullptr) {
    return scatter_apart(operand, indices, updates, d, region, attributes);
  }
  return b.op(kOp, {operand, indices, updates}, operand.type(), attributes,
              std::span<const Region>(&region, 1));
}

Value select_and_scatter(const Value& operand, const Value& source, const Value& init,
                         const Window& window, const Combine& select_fn,
                         const Combine& scatter_fn) {
  constexpr std::string_view kOp = "stablehlo.select_and_scatter";
  check_reduced(kOp, std::span<const Value>(&operand, 1), std::span<const Value>(&init, 1));
  check_window(kOp, operand, window);
  TXLA_CHECK(source && source.dtype() == operand.dtype() && source.rank() == operand.rank(), kOp,
             ": expected a source of the type and rank of ", show(operand), ", got ", show(source),
             ".");
  Builder& b = operand.builder();
  const std::array<Type, 2> types = {scalar_of(operand), scalar_of(operand)};
  const auto region_of = [&](std::string_view what, const Combine& combine, const Type& result) {
    return b.region(types, [&](std::span<const Value> args) {
      Values results = {combine(args[0], args[1])};
      check_results(kOp, what, results, std::span<const Type>(&result, 1));
      return results;
    });
  };
  const std::array<Region, 2> regions = {region_of("selection", select_fn, {DType::Pred, {}}),
                                         region_of("scatter", scatter_fn, types[0])};
  const Dims moved = moved_dims(window);
  return unsplit(b.op(kOp, {unsplit(operand, moved), unsplit(source, moved), init}, operand.type(),
                      window_attributes(window, false), regions),
                 moved);
}

Values sort(std::span<const Value> operands, int64_t dim, bool stable,
            const std::function<Value(std::span<const Value>)>& less) {
  constexpr std::string_view kOp = "stablehlo.sort";
  TXLA_CHECK(!operands.empty(), kOp, ": expected at least one operand, got none.");
  check_dim(kOp, operands[0], dim);
  Builder& b = operands[0].builder();
  std::vector<Type> arguments, results;
  for (const Value& x : operands) {
    TXLA_CHECK(x && x.dims() == operands[0].dims(), kOp,
               ": expected operands of the dimensions of ", show(operands[0]), ", got ", show(x),
               ".");
    arguments.push_back(scalar_of(x));
    arguments.push_back(scalar_of(x));
    results.push_back(x.type());
  }
  const Region region = b.region(arguments, [&](std::span<const Value> args) {
    Values order = {less(args)};
    check_results(kOp, "comparison", order, kPredicate);
    return order;
  });
  return b.op(kOp, operands, results,
              {{"dimension", attr::i64(dim)}, {"is_stable", attr::boolean(stable)}},
              std::span<const Region>(&region, 1));
}

Values conditional(const Value& pred, std::span<const Type> types,
                   const std::function<Values()>& on_true,
                   const std::function<Values()>& on_false) {
  constexpr std::string_view kOp = "stablehlo.if";
  TXLA_CHECK(pred && pred.type() == kPredicate[0], kOp, ": expected a predicate of type ",
             kPredicate[0].str(), ", got ", show(pred), ".");
  Builder& b = pred.builder();
  const auto branch = [&](const char* name, const std::function<Values()>& results) {
    return b.region({}, [&](std::span<const Value>) {
      Values given = results();
      check_results(kOp, name, given, types);
      return given;
    });
  };
  const std::array<Region, 2> regions = {branch("true branch", on_true),
                                         branch("false branch", on_false)};
  return b.op(kOp, std::span(&pred, 1), types, {}, regions);
}

Values while_loop(std::span<const Value> init,
                  const std::function<Value(std::span<const Value>)>& condition,
                  const std::function<Values(std::span<const Value>)>& body) {
  constexpr std::string_view kOp = "stablehlo.while";
  TXLA_CHECK(!init.empty() && init[0], kOp,
             ": expected at least one value to iterate on, got none.");
  Builder& b = init[0].builder();
  std::vector<Type> types;
  for (const Value& x : init) types.push_back(x.type());
  const std::array<Region, 2> regions = {b.region(types,
                                                  [&](std::span<const Value> args) {
                                                    Values go_on = {condition(args)};
                                                    check_results(kOp, "condition", go_on,
                                                                  kPredicate);
                                                    return go_on;
                                                  }),
                                         b.region(types, [&](std::span<const Value> args) {
                                           Values next = body(args);
                                           check_results(kOp, "body", next, types);
                                           return next;
                                         })};
  return b.op(kOp, init, types, {}, regions);
}

Value cholesky(const Value& x, bool lower) {
  constexpr const char* kOp = "stablehlo.cholesky";
  TXLA_CHECK(x.rank() >= 2 && x.dim(x.rank() - 1) == x.dim(x.rank() - 2), kOp,
             ": expected square matrices, got ", show(x), ".");
  return x.builder().op(kOp, {x}, x.type(), {{"lower", attr::boolean(lower)}});
}

Value triangular_solve(const Value& a, const Value& b, const TriangularOptions& o) {
  constexpr const char* kOp = "stablehlo.triangular_solve";
  const int64_t rank = a.rank();
  TXLA_CHECK(rank >= 2 && b.rank() == rank && a.dim(rank - 1) == a.dim(rank - 2) &&
                 a.dim(rank - 1) == b.dim(o.left ? rank - 2 : rank - 1),
             kOp, ": expected square matrices and right-hand sides that fit, got ", show(a),
             " and ", show(b), ".");
  return a.builder().op(kOp, {a, b}, b.type(),
                        {{"left_side", attr::boolean(o.left)},
                         {"lower", attr::boolean(o.lower)},
                         {"unit_diagonal", attr::boolean(o.unit_diagonal)},
                         {"transpose_a", attr::stablehlo("transpose", o.transpose_a)}});
}

Value fft(const Value& x, std::string_view kind, std::span<const int64_t> lengths) {
  constexpr const char* kOp = "stablehlo.fft";
  const bool from_real = kind == "RFFT", to_real = kind == "IRFFT";
  TXLA_CHECK(!lengths.empty() && lengths.size() <= 3 && std::ssize(lengths) <= x.rank(), kOp,
             ": expected one to three lengths and as many dimensions, got ", lengths.size(),
             " lengths and ", show(x), ".");
  TXLA_CHECK(is_complex(x.dtype()) != from_real, kOp, ": expected ", from_real ? "real" : "complex",
             " numbers for ", kind, ", got ", show(x), ".");
  Type result = x.type();
  if (from_real) {
    result = {x.dtype() == DType::F64 ? DType::C128 : DType::C64, x.dims()};
    result.dims.back() = lengths.back() / 2 + 1;
  } else if (to_real) {
    result = {real_part(x.dtype()), x.dims()};
    result.dims.back() = lengths.back();
  }
  Dims all(x.rank());  // the partitioner has no way to transform parts, and tries one
  std::iota(all.begin(), all.end(), 0);
  const Value made = x.builder().op(
      kOp, {unsplit(x, all)}, result,
      {{"fft_type", attr::stablehlo("fft_type", kind)}, {"fft_length", attr::array(lengths)}});
  return unsplit(made, all);
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
      std::string values = show(order);
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
      const auto [output, operand] = aliases[i];
      TXLA_CHECK(output >= 0 && output < std::ssize(results) && operand >= 0 &&
                     operand < std::ssize(operands) && results[output] == operand_types[operand],
                 "stablehlo.custom_call: ", target, ": expected an output and an operand of one ",
                 "type to share a buffer, got output ", output, " of ", results.size(),
                 " and operand ", operand, " of ", operands.size(), ".");
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
