// User's computations: elementwise operations, shapes, contractions, control flow, and XLA's way of
// broadcasting.
#include "ops/user_operation.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "lazy/function.h"
#include "ops/common.h"
#include "ops/registry.h"
#include "util/error.h"

namespace torch_xla::ops {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

// --- options -------------------------------------------------------------------------------

UserOptions::UserOptions(const c10::IValue& list) {
  const auto items = list.toListRef();
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    texts_.emplace(items[i].toStringRef(), items[i + 1].toStringRef());
  }
}

c10::IValue UserOptions::list() const {
  c10::List<std::string> items;
  for (const auto& [name, text] : texts_) {
    items.push_back(name);
    items.push_back(text);
  }
  return items;
}

const std::string& UserOptions::text(std::string_view name) const {
  const auto found = texts_.find(name);
  TXLA_CHECK(found != texts_.end(), "xla_builder: expected the option '", name,
             "', got none of this name.");
  return found->second;
}

std::vector<int64_t> UserOptions::integers(std::string_view name) const {
  const std::string& all = text(name);
  std::vector<int64_t> values;
  for (const char *at = all.data(), *end = at + all.size(); at < end; ++at) {
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(at, end, value);
    TXLA_CHECK(error == std::errc() && (stop == end || *stop == ','),
               "xla_builder: expected integers for '", name, "', got '", all, "'.");
    values.push_back(value);
    at = stop;
  }
  return values;
}

int64_t UserOptions::integer(std::string_view name) const {
  const std::vector<int64_t> values = integers(name);
  TXLA_CHECK(values.size() == 1, "xla_builder: expected one integer for '", name, "', got '",
             text(name), "'.");
  return values[0];
}

// --- element types -------------------------------------------------------------------------

namespace {

struct NamedType {
  std::string_view name;
  at::ScalarType dtype;
  DType hlo;
};
constexpr std::array kTypes = {
    NamedType{"pred", at::kBool, DType::Pred},
    NamedType{"s8", at::kChar, DType::S8},
    NamedType{"s16", at::kShort, DType::S16},
    NamedType{"s32", at::kInt, DType::S32},
    NamedType{"s64", at::kLong, DType::S64},
    NamedType{"u8", at::kByte, DType::U8},
    NamedType{"u16", at::kUInt16, DType::U16},
    NamedType{"u32", at::kUInt32, DType::U32},
    NamedType{"u64", at::kUInt64, DType::U64},
    NamedType{"bf16", at::kBFloat16, DType::BF16},
    NamedType{"f16", at::kHalf, DType::F16},
    NamedType{"f32", at::kFloat, DType::F32},
    NamedType{"f64", at::kDouble, DType::F64},
    NamedType{"c64", at::kComplexFloat, DType::C64},
    NamedType{"c128", at::kComplexDouble, DType::C128},
};

}  // namespace

at::ScalarType dtype_of_xla(std::string_view name) {
  const auto found = std::ranges::find(kTypes, name, &NamedType::name);
  TXLA_CHECK(found != kTypes.end(), "xla_builder: expected an element type such as 'f32' or ",
             "'pred', got '", name, "'. torch_xla.core.xla_builder.Type has them.");
  return found->dtype;
}

std::string xla_name(at::ScalarType dtype) {
  const auto found = std::ranges::find(kTypes, dtype, &NamedType::dtype);
  TXLA_CHECK(found != kTypes.end(), "xla_builder: expected a dtype that ",
             "torch_xla.core.xla_builder.Type names, got ", dtype, ".");
  return std::string(found->name);
}

at::ScalarType dtype_of_hlo(DType dtype) {
  const auto found = std::ranges::find(kTypes, dtype, &NamedType::hlo);
  TXLA_CHECK(found != kTypes.end(), "xla_builder: expected a type that PyTorch has, got ",
             hlo::name(dtype), ".");
  return found->dtype;
}

// --- operations ----------------------------------------------------------------------------

UserOperation::UserOperation(Lowering& lowering)
    : l(lowering), name(l.text(1)), options(l.attr(2)), operands(l.list(0)) {
  // XLA_USE_BF16 and its kin give other types than were declared.
  for (size_t i = 0; i < operands.size(); ++i) {
    operands[i] =
        hlo::convert(operands[i], lazy::to_hlo(l.signature().operands[i].geometry->dtype));
  }
}

const Value& UserOperation::in(size_t i) const {
  check(i < operands.size(), "expected at least ", i + 1, " operands, got ", operands.size(), ".");
  return operands[i];
}

Values UserOperation::run(std::string_view option, const Values& arguments) const {
  const auto region = static_cast<size_t>(options.integer(option));
  const lazy::Function& function = *l.signature().regions.at(region);
  check(function.parameters.size() == arguments.size(), option, ": expected a computation of ",
        arguments.size(), " parameters, got one of ", function.parameters.size(), ".");
  for (size_t i = 0; i < arguments.size(); ++i) {
    const lazy::Geometry& g = *function.parameters[i];
    const hlo::Type type{lazy::to_hlo(g.dtype), g.sizes};
    check(arguments[i].type() == type, option, ": expected a computation that takes ",
          arguments[i].type().str(), " as parameter ", i, ", got one that takes ", type.str(), ".");
  }
  Values results = l.region(region, arguments, {});
  for (size_t i = 0; i < results.size(); ++i) {
    results[i] =
        hlo::convert(results[i], lazy::to_hlo(function.geometry(function.results[i]).dtype));
  }
  return results;
}

hlo::Combine UserOperation::combine(std::string_view option) const {
  return [this, option = std::string(option)](const Value& a, const Value& b) {
    const Values results = run(option, {a, b});
    check(results.size() == 1, option, ": expected a computation of one result, got ",
          results.size(), ".");
    return results[0];
  };
}

namespace {

Dims iota(int64_t count) {
  Dims dims(static_cast<size_t>(count));
  for (size_t i = 0; i < dims.size(); ++i) dims[i] = static_cast<int64_t>(i);
  return dims;
}

std::vector<int64_t> integers_or(const UserOptions& options, std::string_view name,
                                 std::vector<int64_t> otherwise) {
  return options.has(name) ? options.integers(name) : otherwise;
}

Dims sizes_of(const UserOperation& u) {
  const Dims sizes = u.options.integers("sizes");
  for (const int64_t size : sizes) u.check(size >= 0, "expected sizes from 0 on, got ", size, ".");
  return sizes;
}

// XLA broadcasts scalars, and dimensions of size 1 between operands of one rank.
std::array<Value, 2> aligned(const UserOperation& u, const Value& x, const Value& y) {
  const auto shapes = [&] { return x.type().str() + " and " + y.type().str(); };
  u.check(x.dtype() == y.dtype(), "expected operands of one element type, got ", shapes(),
          ". Cast one of them.");
  if (x.dims() == y.dims()) return {x, y};
  Dims dims = x.rank() == 0 ? y.dims() : x.dims();
  if (x.rank() != 0 && y.rank() != 0) {
    bool fits = x.rank() == y.rank();
    for (int64_t i = 0; fits && i < x.rank(); ++i) {
      fits = x.dim(i) == y.dim(i) || x.dim(i) == 1 || y.dim(i) == 1;
      if (x.dim(i) == 1) dims[i] = y.dim(i);
    }
    u.check(fits, "expected operands of one shape, or a scalar, got ", shapes(),
            ". Bring one of them to the other's shape with broadcast_in_dim.");
  }
  return {hlo::broadcast_to(x, dims), hlo::broadcast_to(y, dims)};
}

template <Value (*function)(const Value&)>
Values unary(const UserOperation& u) {
  return {function(u.in(0))};
}

template <Value (*function)(const Value&, const Value&)>
Values binary(const UserOperation& u) {
  const auto [x, y] = aligned(u, u.in(0), u.in(1));
  return {function(x, y)};
}

// Defined by macros, since template arguments are no texts.
#define NAMED(function, text) \
  Value function##_(const Value& x) { return hlo::unary(text, x); }
#define CHLO(function, text) \
  Value function##_(const Value& x) { return hlo::chlo_unary(text, x); }
#define NAMED_BINARY(function, text) \
  Value function##_(const Value& x, const Value& y) { return hlo::binary(text, x, y); }
NAMED(cbrt, "cbrt")
NAMED(ceil, "ceil")
NAMED(clz, "count_leading_zeros")
NAMED(cosine, "cosine")
NAMED(expm1, "exponential_minus_one")
NAMED(floor, "floor")
NAMED(log1p, "log_plus_one")
NAMED(popcnt, "popcnt")
NAMED(round_even, "round_nearest_even")
NAMED(round_away, "round_nearest_afz")
NAMED(sine, "sine")
CHLO(acos, "acos")
CHLO(acosh, "acosh")
CHLO(asin, "asin")
CHLO(asinh, "asinh")
CHLO(atan, "atan")
CHLO(atanh, "atanh")
CHLO(cosh, "cosh")
CHLO(erf, "erf")
CHLO(erfc, "erfc")
CHLO(erf_inv, "erf_inv")
CHLO(sinh, "sinh")
CHLO(tan, "tan")
NAMED_BINARY(atan2, "atan2")
NAMED_BINARY(shift_left, "shift_left")
NAMED_BINARY(shift_right, "shift_right_arithmetic")
NAMED_BINARY(shift_right_logical, "shift_right_logical")
#undef NAMED
#undef CHLO
#undef NAMED_BINARY

template <hlo::Direction direction>
Values compare(const UserOperation& u) {
  const auto [x, y] = aligned(u, u.in(0), u.in(1));
  return {hlo::compare(direction, x, y)};
}

Values select(const UserOperation& u) {
  const auto [x, y] = aligned(u, u.in(1), u.in(2));
  return {hlo::select(u.in(0), x, y)};
}

Values clamp(const UserOperation& u) { return {hlo::clamp(u.in(0), u.in(1), u.in(2))}; }

Values convert(const UserOperation& u) {
  const DType to = lazy::to_hlo(dtype_of_xla(u.options.text("to_type")));
  return {hlo::convert(u.in(0), to)};
}

void check_numbers(const UserOperation& u) {
  u.check(u.in(0).dtype() != DType::Pred, "expected numbers, got ", u.in(0).type().str(),
          ". Cast them first.");
}

Values abs(const UserOperation& u) {
  check_numbers(u);
  return {hlo::is_unsigned(u.in(0).dtype()) ? u.in(0) : hlo::abs(u.in(0))};
}

Values sign(const UserOperation& u) {
  check_numbers(u);
  const Value& x = u.in(0);
  if (!hlo::is_unsigned(x.dtype())) return {hlo::unary("sign", x)};
  return {hlo::min(x, hlo::one(u.b(), x.type()))};
}

Values bitcast(const UserOperation& u) {
  const DType to = lazy::to_hlo(dtype_of_xla(u.options.text("to_type")));
  if (to == u.in(0).dtype()) return {u.in(0)};
  // The compiler knows no others; of truth values it ends the process.
  for (const DType dtype : {to, u.in(0).dtype()}) {
    u.check(hlo::is_integer(dtype) || hlo::is_float(dtype), "expected integers or floats, got ",
            u.in(0).type().str(), " to be ", u.options.text("to_type"), ".");
  }
  const auto from_bits = static_cast<int64_t>(hlo::bit_width(u.in(0).dtype()));
  const auto to_bits = static_cast<int64_t>(hlo::bit_width(to));
  Dims dims = u.in(0).dims();
  if (from_bits > to_bits) dims.push_back(from_bits / to_bits);
  if (from_bits < to_bits && !dims.empty()) dims.pop_back();
  return {hlo::bitcast_convert(u.in(0), {to, dims})};
}

// --- constants

Values constant(const UserOperation& u) {
  const hlo::Type type{lazy::to_hlo(dtype_of_xla(u.options.text("type"))), sizes_of(u)};
  const std::string& hex = u.options.text("bytes");
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    uint8_t byte = 0;
    std::from_chars(&hex[i], &hex[i] + 2, byte, 16);
    bytes.push_back(static_cast<char>(byte));
  }
  const auto expected = static_cast<size_t>(type.elements()) * hlo::byte_size(type.dtype);
  u.check(bytes.size() == expected, "expected ", expected, " bytes for ", type.str(), ", got ",
          bytes.size(), ".");
  return {hlo::dense_bytes(u.b(), bytes, type)};
}

Values iota_of(const UserOperation& u) {
  const hlo::Type type{lazy::to_hlo(dtype_of_xla(u.options.text("type"))), sizes_of(u)};
  const int64_t dim = u.options.integer("iota_dimension");
  u.check(dim >= 0 && dim < type.rank(), "expected iota_dimension in [0, ", type.rank(), "), got ",
          dim, ".");
  return {hlo::iota(u.b(), type, dim)};
}

// --- shapes

Values reshape(const UserOperation& u) {
  Value x = u.in(0);
  if (u.options.has("dimensions")) x = hlo::transpose(x, u.options.integers("dimensions"));
  return {hlo::reshape(x, sizes_of(u))};
}

Values broadcast(const UserOperation& u) {
  Dims dims = sizes_of(u), mapping;
  for (const int64_t size : u.in(0).dims()) {
    mapping.push_back(static_cast<int64_t>(dims.size()));
    dims.push_back(size);
  }
  return {hlo::broadcast_in_dim(u.in(0), dims, mapping)};
}

Values broadcast_in_dim(const UserOperation& u) {
  return {hlo::broadcast_in_dim(u.in(0), sizes_of(u), u.options.integers("dimensions"))};
}

Values slice(const UserOperation& u) {
  const Dims ones(u.in(0).dims().size(), 1);
  return {hlo::slice(u.in(0), u.options.integers("start_indices"),
                     u.options.integers("limit_indices"), integers_or(u.options, "strides", ones))};
}

Values slice_in_dim(const UserOperation& u) {
  const int64_t dim = u.options.integer("dimno");
  u.check(dim >= 0 && dim < u.in(0).rank(), "expected dimno in [0, ", u.in(0).rank(), "), got ",
          dim, ".");
  return {hlo::slice_dim(u.in(0), dim, u.options.integer("start_index"),
                         u.options.integer("limit_index"),
                         u.options.has("stride") ? u.options.integer("stride") : 1)};
}

// Start indices as scalars: those from operand `first` on, or the elements of one list.
Values starts(const UserOperation& u, size_t first) {
  Values all(u.operands.begin() + static_cast<int64_t>(std::min(first, u.operands.size())),
             u.operands.end());
  if (all.size() != 1 || all[0].rank() != 1) return all;
  Values elements;
  for (int64_t i = 0; i < all[0].dim(0); ++i) {
    elements.push_back(hlo::reshape(hlo::slice_dim(all[0], 0, i, i + 1), {}));
  }
  return elements;
}

Values dynamic_slice(const UserOperation& u) {
  return {hlo::dynamic_slice(u.in(0), starts(u, 1), u.options.integers("slice_sizes"))};
}
Values dynamic_update_slice(const UserOperation& u) {
  return {hlo::dynamic_update_slice(u.in(0), u.in(1), starts(u, 2))};
}

Values transpose(const UserOperation& u) {
  return {hlo::transpose(u.in(0), u.options.integers("permutation"))};
}
Values reverse(const UserOperation& u) {
  return {hlo::reverse(u.in(0), u.options.integers("dimensions"))};
}
Values concatenate(const UserOperation& u) {
  u.in(0);
  return {hlo::concatenate(u.operands, u.options.integer("dimension"))};
}

// Its option holds low, high and interior padding by turns.
Values pad(const UserOperation& u) {
  const Dims config = u.options.integers("config");
  u.check(config.size() == u.in(0).dims().size() * 3, "expected (low, high, interior) for each ",
          "dimension of ", u.in(0).type().str(), ", got ", config.size(), " numbers.");
  Dims low, high, interior;
  for (size_t i = 0; i < config.size(); i += 3) {
    low.push_back(config[i]);
    high.push_back(config[i + 1]);
    interior.push_back(config[i + 2]);
  }
  return {hlo::pad(u.in(0), u.in(1), low, high, interior)};
}

int64_t dimension_of(const UserOperation& u) {
  const int64_t dim = u.options.integer("dimension");
  u.check(dim >= 0 && dim < u.in(0).rank(), "expected a dimension of ", u.in(0).type().str(),
          ", got ", dim, ".");
  return dim;
}

Values dimension_size(const UserOperation& u) {
  return {hlo::scalar_int(u.b(), u.in(0).dim(dimension_of(u)), DType::S32)};
}

Values gather(const UserOperation& u) {
  const hlo::GatherDims dims{.offset_dims = u.options.integers("offset_dims"),
                             .collapsed_slice_dims = u.options.integers("collapsed_slice_dims"),
                             .operand_batching_dims = {},
                             .start_indices_batching_dims = {},
                             .start_index_map = u.options.integers("start_index_map"),
                             .index_vector_dim = u.options.integer("index_vector_dim")};
  const Value &x = u.in(0), &indices = u.in(1);
  Dims sizes = x.dims();
  for (const int64_t dim : dims.collapsed_slice_dims) {
    u.check(dim >= 0 && dim < x.rank(), "expected collapsed_slice_dims of ", x.type().str(),
            ", got ", dim, ".");
    sizes[dim] = 1;
  }
  sizes = integers_or(u.options, "slice_sizes", sizes);
  u.check(sizes.size() == x.dims().size(), "expected a slice size for each dimension of ",
          x.type().str(), ", got ", sizes.size(), ".");
  // Dimensions of a slice stand at offset_dims, those of the indices, without the vectors, between.
  Dims slice, batch;
  const auto is_in = [](const Dims& list, int64_t i) { return std::ranges::count(list, i) != 0; };
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (!is_in(dims.collapsed_slice_dims, i)) slice.push_back(sizes[i]);
  }
  for (int64_t i = 0; i < indices.rank(); ++i) {
    if (i != dims.index_vector_dim) batch.push_back(indices.dim(i));
  }
  u.check(slice.size() == dims.offset_dims.size(), "expected ", slice.size(),
          " offset_dims, one for each dimension of a slice, got ", dims.offset_dims.size(), ".");
  Dims result;
  const auto rank = static_cast<int64_t>(slice.size() + batch.size());
  auto next_slice = slice.begin(), next_batch = batch.begin();
  for (int64_t i = 0; i < rank; ++i) {
    const bool of_slice = is_in(dims.offset_dims, i);
    u.check(of_slice ? next_slice != slice.end() : next_batch != batch.end(),
            "expected offset_dims below ", rank, ", each once.");
    result.push_back(of_slice ? *next_slice++ : *next_batch++);
  }
  return {hlo::gather(x, indices, dims, sizes, {x.dtype(), result},
                      u.options.flag("indices_are_sorted"))};
}

Values scatter(const UserOperation& u) {
  const hlo::ScatterDims dims{
      .update_window_dims = u.options.integers("update_window_dims"),
      .inserted_window_dims = u.options.integers("inserted_window_dims"),
      .input_batching_dims = {},
      .scatter_indices_batching_dims = {},
      .scatter_dims_to_operand_dims = u.options.integers("scatter_dims_to_operand_dims"),
      .index_vector_dim = u.options.integer("index_vector_dim")};
  return {hlo::scatter(u.in(0), u.in(1), u.in(2), dims, u.combine("computation"),
                       u.options.flag("indices_are_sorted"), u.options.flag("unique_indices"))};
}

// --- contractions and reductions

Values dot(const UserOperation& u) {
  const Value &x = u.in(0), &y = u.in(1);
  u.check(x.dtype() == y.dtype() && x.rank() >= 1 && x.rank() <= 2 && y.rank() >= 1 &&
              y.rank() <= 2 && x.dims().back() == y.dim(0),
          "expected vectors or matrices of one element type that share a dimension, got ",
          x.type().str(), " and ", y.type().str(), ".");
  return {hlo::dot_general(
      x, y, {.lhs_batch = {}, .rhs_batch = {}, .lhs_contract = {x.rank() - 1}, .rhs_contract = {0}},
      x.dtype())};
}

Values dot_general(const UserOperation& u) {
  const hlo::DotDims dims{.lhs_batch = integers_or(u.options, "lhs_batch_dimensions", {}),
                          .rhs_batch = integers_or(u.options, "rhs_batch_dimensions", {}),
                          .lhs_contract = u.options.integers("lhs_contracting_dimensions"),
                          .rhs_contract = u.options.integers("rhs_contracting_dimensions")};
  const DType result = u.options.has("preferred_element_type")
                           ? lazy::to_hlo(dtype_of_xla(u.options.text("preferred_element_type")))
                           : u.in(0).dtype();
  return {hlo::dot_general(u.in(0), u.in(1), dims, result)};
}

Values reduce(const UserOperation& u) {
  return {
      hlo::reduce(u.in(0), u.in(1), u.options.integers("dimensions"), u.combine("computation"))};
}
Values reduce_all(const UserOperation& u) {
  return {hlo::reduce(u.in(0), u.in(1), iota(u.in(0).rank()), u.combine("computation"))};
}

Values sort(const UserOperation& u) {
  const int64_t rank = u.in(0).rank();
  int64_t dim = u.options.has("dimension") ? u.options.integer("dimension") : -1;
  if (dim < 0) dim += rank;
  u.check(dim >= 0 && dim < rank, "expected a dimension of ", u.in(0).type().str(), ".");
  return hlo::sort(u.operands, dim, u.options.flag("is_stable"), [&](std::span<const Value> both) {
    const Values results = u.run("comparator", {both.begin(), both.end()});
    u.check(results.size() == 1, "comparator: expected one result, got ", results.size(), ".");
    return results[0];
  });
}

// A computation of scalars, for each element.
Values map(const UserOperation& u) {
  const hlo::Type& type = u.in(0).type();
  std::vector<hlo::Type> scalars;
  for (const Value& x : u.operands) {
    u.check(x.dims() == type.dims, "expected operands of one shape, got ", type.str(), " and ",
            x.type().str(), ".");
    scalars.push_back({x.dtype(), {}});
  }
  DType result = type.dtype;
  const hlo::Region region = u.b().region(scalars, [&](std::span<const Value> elements) {
    const Values results = u.run("computation", {elements.begin(), elements.end()});
    u.check(results.size() == 1 && results[0].rank() == 0,
            "computation: expected a scalar as its result, got ", results.size(), " results.");
    result = results[0].dtype();
    return results;
  });
  const std::array<hlo::Type, 1> types = {type.with(result)};
  return u.b().op("stablehlo.map", u.operands, types,
                  {{"dimensions", hlo::attr::array(iota(type.rank()))}}, {&region, 1});
}

Values triangular_solve(const UserOperation& u) {
  const Value &x = u.in(0), &y = u.in(1);
  const auto is_batch = [&](int64_t rank) {
    return std::equal(x.dims().begin(), x.dims().begin() + rank, y.dims().begin());
  };
  u.check(hlo::is_float(x.dtype()) || hlo::is_complex(x.dtype()),
          "expected floats or complex numbers, got ", x.type().str(), ".");
  u.check(x.dtype() == y.dtype() && x.rank() == y.rank() && x.rank() >= 2 && is_batch(x.rank() - 2),
          "expected matrices of one element type and equal dimensions before the last two, got ",
          x.type().str(), " and ", y.type().str(), ".");
  const bool left = !u.options.has("left_side") || u.options.flag("left_side");
  const hlo::TriangularOptions options{
      .left = left,
      .lower = u.options.flag("lower"),
      .unit_diagonal = u.options.flag("unit_diagonal"),
      .transpose_a = u.options.flag("transpose_a") ? "TRANSPOSE" : "NO_TRANSPOSE"};
  return {hlo::triangular_solve(u.in(0), u.in(1), options)};
}

// --- control flow: tuples come as their elements

// Operands by the tuples that they come in.
std::vector<Values> grouped(const UserOperation& u) {
  std::vector<Values> groups;
  auto next = u.operands.begin();
  for (const int64_t count : u.options.integers("counts")) {
    groups.emplace_back(next, next + count);
    next += count;
  }
  return groups;
}

Values call(const UserOperation& u) { return u.run("computation", u.operands); }

Values conditional(const UserOperation& u) {
  const std::vector<Values> given = grouped(u);
  u.check(given.size() == 3 && given[0].size() == 1 &&
              given[0][0].type() == hlo::Type({DType::Pred, {}}),
          "expected a scalar predicate and an operand for each branch.");
  std::vector<hlo::Type> types;
  for (const char* branch : {"true_computation", "false_computation"}) {
    const auto& function = u.l.signature().regions.at(u.options.integer(branch));
    std::vector<hlo::Type> own;
    for (const lazy::Ref& result : function->results) {
      const lazy::Geometry& g = function->geometry(result);
      own.push_back({lazy::to_hlo(g.dtype), g.sizes});
    }
    u.check(types.empty() || own == types, "expected branches that give the same shapes.");
    types = own;
  }
  return hlo::conditional(
      given[0][0], types, [&] { return u.run("true_computation", given[1]); },
      [&] { return u.run("false_computation", given[2]); });
}

Values while_loop(const UserOperation& u) {
  return hlo::while_loop(
      u.operands,
      [&](std::span<const Value> carried) {
        const Values results = u.run("condition_computation", {carried.begin(), carried.end()});
        u.check(results.size() == 1, "condition_computation: expected one result, got ",
                results.size(), ".");
        return results[0];
      },
      [&](std::span<const Value> carried) {
        return u.run("body_computation", {carried.begin(), carried.end()});
      });
}

// A function of StableHLO text. Its results are "type rank sizes" one after the other, as `types`
// between spaces, and numbers.
Values module_function(const UserOperation& u) {
  std::vector<hlo::Type> types;
  const std::vector<int64_t> sizes = u.options.integers("result_sizes");
  auto next = sizes.begin();
  std::string_view names = u.options.text("result_types");
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(' '));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    u.check(next != sizes.end() && *next >= 0 && *next < sizes.end() - next,
            "expected the rank and the sizes of each result.");
    const int64_t rank = *next++;
    types.push_back({lazy::to_hlo(dtype_of_xla(name)), Dims(next, next + rank)});
    next += rank;
  }
  const std::string& name = u.options.text("function");
  u.b().private_text(name, u.options.text("text"));
  return hlo::call(u.b(), name, u.operands, types);
}

Values set_dimension_size(const UserOperation& u) {
  util::fail(
      util::ErrorKind::NotImplemented, "xla_builder: ", u.name,
      ": expected arrays of fixed sizes; no program here has others. Keep the size beside the "
      "array, and mask what lies beyond it with select.");
}

const UserLowerings& operations() {
  static const UserLowerings all = {
      {"Abs", abs},
      {"Acos", unary<acos_>},
      {"Acosh", unary<acosh_>},
      {"Asin", unary<asin_>},
      {"Asinh", unary<asinh_>},
      {"Atan", unary<atan_>},
      {"Atanh", unary<atanh_>},
      {"Cbrt", unary<cbrt_>},
      {"Ceil", unary<ceil_>},
      {"Clz", unary<clz_>},
      {"Conj", unary<conjugate>},
      {"Cos", unary<cosine_>},
      {"Cosh", unary<cosh_>},
      {"Erf", unary<erf_>},
      {"Erfc", unary<erfc_>},
      {"ErfInv", unary<erf_inv_>},
      {"Exp", unary<hlo::exp>},
      {"Expm1", unary<expm1_>},
      {"Floor", unary<floor_>},
      {"Imag", unary<hlo::imag>},
      {"IsFinite", unary<hlo::is_finite>},
      {"Log", unary<hlo::log>},
      {"Log1p", unary<log1p_>},
      {"Logistic", unary<hlo::logistic>},
      {"Neg", unary<hlo::neg>},
      {"Not", unary<hlo::logical_not>},
      {"PopulationCount", unary<popcnt_>},
      {"Real", unary<hlo::real>},
      {"Round", unary<round_away_>},
      {"RoundNearestEven", unary<round_even_>},
      {"Rsqrt", unary<hlo::rsqrt>},
      {"Sign", sign},
      {"Sin", unary<sine_>},
      {"Sinh", unary<sinh_>},
      {"Sqrt", unary<hlo::sqrt>},
      {"Tan", unary<tan_>},
      {"Tanh", unary<hlo::tanh>},

      {"Add", binary<hlo::add>},
      {"And", binary<hlo::logical_and>},
      {"Atan2", binary<atan2_>},
      {"Complex", binary<hlo::complex>},
      {"Div", binary<hlo::div>},
      {"Max", binary<hlo::max>},
      {"Min", binary<hlo::min>},
      {"Mul", binary<hlo::mul>},
      {"Or", binary<hlo::logical_or>},
      {"Pow", binary<hlo::pow>},
      {"Rem", binary<hlo::rem>},
      {"ShiftLeft", binary<shift_left_>},
      {"ShiftRightArithmetic", binary<shift_right_>},
      {"ShiftRightLogical", binary<shift_right_logical_>},
      {"Sub", binary<hlo::sub>},
      {"Xor", binary<hlo::logical_xor>},
      {"Eq", compare<hlo::Direction::EQ>},
      {"Ge", compare<hlo::Direction::GE>},
      {"Gt", compare<hlo::Direction::GT>},
      {"Le", compare<hlo::Direction::LE>},
      {"Lt", compare<hlo::Direction::LT>},
      {"Ne", compare<hlo::Direction::NE>},

      {"BitCast", bitcast},
      {"Clamp", clamp},
      {"Convert", convert},
      {"Select", select},

      {"Constant", constant},
      {"Iota", iota_of},

      {"Broadcast", broadcast},
      {"BroadcastInDim", broadcast_in_dim},
      {"Concat", concatenate},
      {"DynamicReshape", reshape},
      {"DynamicSlice", dynamic_slice},
      {"DynamicUpdateSlice", dynamic_update_slice},
      {"Gather", gather},
      {"GetDimensionSize", dimension_size},
      {"Pad", pad},
      {"Reshape", reshape},
      {"Rev", reverse},
      {"Scatter", scatter},
      {"SetDimensionSize", set_dimension_size},
      {"Slice", slice},
      {"SliceInDim", slice_in_dim},
      {"Transpose", transpose},

      {"Dot", dot},
      {"DotGeneral", dot_general},
      {"Map", map},
      {"Reduce", reduce},
      {"ReduceAll", reduce_all},
      {"Sort", sort},
      {"TriangularSolve", triangular_solve},

      {"Call", call},
      {"Conditional", conditional},
      {"ModuleFunction", module_function},
      {"While", while_loop},
  };
  return all;
}

Values user_operation(Lowering& l) {
  const UserOperation u(l);
  auto found = operations().find(u.name);
  if (found == operations().end()) {
    found = window_operations().find(u.name);
    TXLA_CHECK(found != window_operations().end(), "xla_builder: expected the name of an ",
               "operation, such as 'Add' or 'ReduceWindow', got '", u.name, "'.");
  }
  return found->second(u);
}

const Rules user_operation_rules([](Registry& r) { r.add(kUserOperation, user_operation); });

}  // namespace
}  // namespace torch_xla::ops
