// Elementwise operations and operations on shapes.
#include "hlo/ops.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "hlo/check.h"
#include "hlo/partition.h"

namespace torch_xla::hlo {
namespace {

// Start indices are scalars, one for each dimension.
void check_starts(std::string_view op, const Value& x, std::span<const Value> starts) {
  TXLA_CHECK(static_cast<int64_t>(starts.size()) == x.rank(), op,
             ": expected one start for each dimension of ", show(x), ", got ", starts.size(), ".");
  for (const Value& start : starts) {
    TXLA_CHECK(start && start.rank() == 0 && is_integer(start.dtype()) &&
                   start.dtype() == starts[0].dtype(),
               op, ": expected integer scalars of one type as starts, got ", show(start), ".");
  }
}

Value elementwise(std::string name, const Value& x) {
  TXLA_CHECK(x, name, ": expected an operand, got ", show(x), ".");
  check_elements(name, x);
  return x.builder().op(name, {x}, x.type());
}

Value elementwise(std::string name, const Value& x, const Value& y) {
  check_same_type(name, x, y);
  check_elements(name, x);
  return x.builder().op(name, {x, y}, x.type());
}

// The neighbour of each x towards y. CHLO's own makes programs that libtpu refuses.
Value double_after(const Value& x, const Value& y) {
  const auto constant = [&](double v) { return splat(x.builder(), v, x.type()); };
  const Value up = compare(Direction::LT, x, y);
  const Value bits = bitcast_convert(x, x.type().with(DType::S64));
  const Value one_bit = one(x.builder(), bits.type());
  const Value from_zero = compare(Direction::EQ, up, compare(Direction::GT, x, constant(0)));
  const Value next = select(from_zero, add(bits, one_bit), sub(bits, one_bit));
  const double least = std::numeric_limits<double>::denorm_min();
  const Value moved =
      select(compare(Direction::EQ, x, constant(0)), select(up, constant(least), constant(-least)),
             bitcast_convert(next, x.type()));
  const Value numbers = logical_and(compare(Direction::EQ, x, x), compare(Direction::EQ, y, y));
  const Value result = select(compare(Direction::EQ, x, y), y, moved);
  return select(numbers, result, add(x, y));
}

bool is_iota(std::span<const int64_t> dims) {
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

// Adds an operation that changes sizes of its operands.
Value resized(std::string_view op, Values operands, const Type& result,
              const Attributes& attributes = {}) {
  const Dims whole = unevenly_changed(operands, result);
  for (Value& x : operands) {
    if (x.rank() == std::ssize(result.dims)) x = unsplit(x, whole);
  }
  const auto made =
      operands[0].builder().op(op, operands, std::span<const Type>(&result, 1), attributes);
  return unsplit(made[0], whole);
}

bool all_zero(std::span<const int64_t> values) {
  return std::all_of(values.begin(), values.end(), [](int64_t v) { return v == 0; });
}

}  // namespace

// --- elementwise ---------------------------------------------------------------------------

Value unary(std::string_view name, const Value& x) {
  return elementwise("stablehlo." + std::string(name), x);
}
Value binary(std::string_view name, const Value& x, const Value& y) {
  // XLA makes a shift of x + x, which loses truth values.
  if (name == "add" && x.dtype() == DType::Pred) name = "or";
  return elementwise("stablehlo." + std::string(name), x, y);
}
Value chlo_unary(std::string_view name, const Value& x) {
  const Value y = elementwise("chlo." + std::string(name), x);
  if (name != "erf" || x.dtype() != DType::F32) return y;
  // XLA's own stops three units short of 1.
  const Value inside = compare(Direction::LT, abs(x), splat(x.builder(), 3.92, x.type()));
  return select(inside, y, unary("sign", x));
}
Value chlo_binary(std::string_view name, const Value& x, const Value& y) {
  if (name == "next_after" && x.dtype() == DType::F64) return double_after(x, y);
  return elementwise("chlo." + std::string(name), x, y);
}
Value abs(const Value& x) {
  return x.builder().op("stablehlo.abs", {x}, x.type().with(real_part(x.dtype())));
}

Value compare(Direction direction, const Value& x, const Value& y) {
  static constexpr std::array<std::string_view, 6> kNames = {"EQ", "NE", "LT", "LE", "GT", "GE"};
  check_same_type("stablehlo.compare", x, y);
  TXLA_CHECK(!is_complex(x.dtype()) || direction == Direction::EQ || direction == Direction::NE,
             "stablehlo.compare: expected EQ or NE for complex operands, which have no order, got ",
             kNames[static_cast<size_t>(direction)], " of ", show(x), ".");
  // Optional by the specification, but XLA's constant folding takes integers without it for
  // unsigned ones: -1 >= 0 becomes true.
  const bool is_signed = is_integer(x.dtype()) && !is_unsigned(x.dtype());
  const bool is_real_or_complex = is_float(x.dtype()) || is_complex(x.dtype());
  const std::string_view kind = is_real_or_complex ? "FLOAT" : is_signed ? "SIGNED" : "UNSIGNED";
  return x.builder().op(
      "stablehlo.compare", {x, y}, x.type().with(DType::Pred),
      {{"comparison_direction",
        attr::stablehlo("comparison_direction", kNames[static_cast<size_t>(direction)])},
       {"compare_type", attr::stablehlo("comparison_type", kind)}});
}

Value select(const Value& pred, const Value& on_true, const Value& on_false) {
  check_same_type("stablehlo.select", on_true, on_false);
  TXLA_CHECK(
      pred && pred.dtype() == DType::Pred && (pred.rank() == 0 || pred.dims() == on_true.dims()),
      "stablehlo.select: expected a condition of ", on_true.type().with(DType::Pred).str(),
      " or tensor<i1>, got ", show(pred), ".");
  return pred.builder().op("stablehlo.select", {pred, on_true, on_false}, on_true.type());
}

Value convert(const Value& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  if (is_complex(x.dtype()) && dtype == DType::Pred) {
    return compare(Direction::NE, x, zero(x.builder(), x.type()));
  }
  if (is_complex(x.dtype()) && !is_complex(dtype)) return convert(real(x), dtype);
  if (x.dtype() == DType::Pred && (is_float(dtype) || is_complex(dtype))) {
    // XLA makes y * convert(x) a choice between y and 0, which is wrong where y is nan or infinite.
    const Type type = x.type().with(dtype);
    return select(x, one(x.builder(), type), zero(x.builder(), type));
  }
  return x.builder().op("stablehlo.convert", {x}, x.type().with(dtype));
}

Value bitcast_convert(const Value& x, const Type& type) {
  if (x.dtype() == DType::F64 && type.dtype == DType::S64) {
    // libtpu's compiler takes the halves of the signed one for unsigned, and refuses the program.
    return convert(bitcast_convert(x, type.with(DType::U64)), DType::S64);
  }
  const auto from = static_cast<int64_t>(bit_width(x.dtype()));
  const auto to = static_cast<int64_t>(bit_width(type.dtype));
  Dims dims = x.dims();
  bool fits = true;
  if (from > to) {
    dims.push_back(from / to);
  } else if (from < to) {
    fits = !dims.empty() && dims.back() == to / from;
    if (fits) dims.pop_back();
  }
  TXLA_CHECK(fits && dims == type.dims, "stablehlo.bitcast_convert: expected a result of the same ",
             "bits as ", show(x), ", got ", type.str(),
             ". The narrower type has one dimension more, the last.");
  return x.builder().op("stablehlo.bitcast_convert", {x}, type);
}

Value is_finite(const Value& x) {
  TXLA_CHECK(x && is_float(x.dtype()), "stablehlo.is_finite: expected floats, got ", show(x), ".");
  return x.builder().op("stablehlo.is_finite", {x}, x.type().with(DType::Pred));
}

Value complex(const Value& real_part_value, const Value& imag_part) {
  check_same_type("stablehlo.complex", real_part_value, imag_part);
  const DType result = complex_of(real_part_value.dtype());
  TXLA_CHECK(is_complex(result) && result != real_part_value.dtype(),
             "stablehlo.complex: expected parts of f32 or f64, got ", show(real_part_value), ".");
  return real_part_value.builder().op("stablehlo.complex", {real_part_value, imag_part},
                                      real_part_value.type().with(result));
}

Value real(const Value& x) {
  if (!is_complex(x.dtype())) return x;
  return x.builder().op("stablehlo.real", {x}, x.type().with(real_part(x.dtype())));
}

Value imag(const Value& x) {
  if (!is_complex(x.dtype())) return zero(x.builder(), x.type());
  return x.builder().op("stablehlo.imag", {x}, x.type().with(real_part(x.dtype())));
}

Value clamp(const Value& low, const Value& x, const Value& high) {
  for (const Value& bound : {low, high}) {
    TXLA_CHECK(
        bound && bound.dtype() == x.dtype() && (bound.rank() == 0 || bound.dims() == x.dims()),
        "stablehlo.clamp: expected bounds of ", show(x), " or scalars of its type, got ",
        show(bound), ".");
  }
  return x.builder().op("stablehlo.clamp", {low, x, high}, x.type());
}

// --- shape ---------------------------------------------------------------------------------

Value broadcast_in_dim(const Value& x, const Dims& dims, std::span<const int64_t> mapping) {
  constexpr std::string_view kOp = "stablehlo.broadcast_in_dim";
  check_per_dim(kOp, "target dimension", x, mapping);
  for (size_t i = 0; i < mapping.size(); ++i) {
    const int64_t to = mapping[i];
    const bool fits = to >= 0 && to < static_cast<int64_t>(dims.size()) &&
                      (x.dim(i) == 1 || x.dim(i) == dims[to]) &&
                      std::count(mapping.begin(), mapping.end(), to) == 1;
    TXLA_CHECK(fits, kOp, ": expected dimensions of ", show(x), " that are 1 or those of ",
               show(dims), " they are mapped to, got the mapping ", show(mapping), ".");
  }
  if (x.dims() == dims && is_iota(mapping)) return x;
  return x.builder().op(kOp, {x}, x.type().with(dims),
                        {{"broadcast_dimensions", attr::array(mapping)}});
}

Value broadcast_to(const Value& x, const Dims& dims) {
  if (x.dims() == dims) return x;
  const int64_t offset = static_cast<int64_t>(dims.size()) - x.rank();
  TXLA_CHECK(offset >= 0, "broadcast_to: expected at least the dimensions of ", show(x), ", got ",
             show(dims), ".");
  Dims mapping;
  for (int64_t i = 0; i < x.rank(); ++i) mapping.push_back(i + offset);
  return broadcast_in_dim(x, dims, mapping);
}

Value reshape(const Value& x, const Dims& dims) {
  if (x.dims() == dims) return x;
  const Type type = x.type().with(dims);
  TXLA_CHECK(type.elements() == x.type().elements(),
             "stablehlo.reshape: expected as many elements ", "as ", show(x), " has, got ",
             show(dims), ".");
  const Value result = x.builder().op("stablehlo.reshape", {x}, type);
  const Builder::Row* row = x.builder().row_of(x);
  if (row != nullptr && std::ranges::equal(dims, std::span(row->whole.dims()).subspan(1))) {
    x.builder().set_row_of(result, *row);
  }
  return result;
}

namespace {

// The order of `rank` dimensions with the middle two swapped.
std::vector<int64_t> middle_swapped(int64_t rank) {
  std::vector<int64_t> order(rank);
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[rank / 2 - 1], order[rank / 2]);
  return order;
}

bool swaps_middle(std::span<const int64_t> permutation) {
  const auto rank = std::ssize(permutation);
  return rank % 2 == 0 && std::ranges::equal(permutation, middle_swapped(rank));
}

}  // namespace

Value transpose(const Value& x, std::span<const int64_t> permutation) {
  constexpr std::string_view kOp = "stablehlo.transpose";
  check_per_dim(kOp, "position", x, permutation);
  Dims dims;
  for (int64_t from : permutation) {
    TXLA_CHECK(from >= 0 && from < x.rank() &&
                   std::count(permutation.begin(), permutation.end(), from) == 1,
               kOp, ": expected a permutation of the dimensions of ", show(x), ", got ",
               show(permutation), ".");
    dims.push_back(x.dim(from));
  }
  if (is_iota(permutation)) return x;
  const Value result =
      x.builder().op(kOp, {x}, x.type().with(dims), {{"permutation", attr::array(permutation)}});
  if (swaps_middle(permutation)) x.builder().set_transposed_from(result, x);
  return result;
}

Value swap_middle(const Value& x) { return transpose(x, middle_swapped(x.rank())); }

Value reverse(const Value& x, std::span<const int64_t> dims) {
  check_dims("stablehlo.reverse", x, dims);
  if (dims.empty()) return x;
  return x.builder().op("stablehlo.reverse", {x}, x.type(), {{"dimensions", attr::array(dims)}});
}

Value slice(const Value& x, std::span<const int64_t> start, std::span<const int64_t> limit,
            std::span<const int64_t> stride) {
  constexpr std::string_view kOp = "stablehlo.slice";
  check_per_dim(kOp, "start", x, start);
  check_per_dim(kOp, "limit", x, limit);
  check_per_dim(kOp, "stride", x, stride);
  Dims dims;
  bool identity = true;
  for (size_t i = 0; i < start.size(); ++i) {
    TXLA_CHECK(start[i] >= 0 && start[i] <= limit[i] && limit[i] <= x.dim(i) && stride[i] > 0, kOp,
               ": expected 0 <= start <= limit <= size and a positive stride in dimension ", i,
               " of ", show(x), ", got start ", start[i], ", limit ", limit[i], ", stride ",
               stride[i], ".");
    dims.push_back((limit[i] - start[i] + stride[i] - 1) / stride[i]);
    identity = identity && start[i] == 0 && stride[i] == 1 && limit[i] == x.dim(i);
  }
  if (identity) return x;
  const Value result = resized(kOp, {x}, x.type().with(dims),
                               {{"start_indices", attr::array(start)},
                                {"limit_indices", attr::array(limit)},
                                {"strides", attr::array(stride)}});
  Dims row = x.dims();
  row[0] = 1;
  if (dims == row) x.builder().set_row_of(result, {x, start[0]});
  return result;
}

Value slice_dim(const Value& x, int64_t dim, int64_t start, int64_t limit, int64_t stride) {
  check_dim("stablehlo.slice", x, dim);
  Dims starts(x.rank(), 0), limits = x.dims(), strides(x.rank(), 1);
  starts[dim] = start;
  limits[dim] = limit;
  strides[dim] = stride;
  return slice(x, starts, limits, strides);
}

Value concatenate(std::span<const Value> parts, int64_t dim) {
  constexpr std::string_view kOp = "stablehlo.concatenate";
  TXLA_CHECK(!parts.empty(), kOp, ": expected at least one operand, got none.");
  check_dim(kOp, parts[0], dim);
  if (parts.size() == 1) return parts[0];
  Type type = parts[0].type();
  type.dims[dim] = 0;
  for (const Value& part : parts) {
    Type other = part.type();
    TXLA_CHECK(part && other.rank() == type.rank(), kOp, ": expected operands of rank ",
               type.rank(), ", got ", show(part), ".");
    other.dims[dim] = type.dims[dim];
    TXLA_CHECK(other == type, kOp, ": expected operands that differ in dimension ", dim,
               " only, got ", show(parts[0]), " and ", show(part), ".");
    type.dims[dim] += part.dim(dim);
  }
  // A compiler that simplifies what leads to an operand looks at all operands anew each time; and
  // but for the barrier it would make one operation of these.
  constexpr size_t kMost = 128;
  if (parts.size() > kMost) {
    Values joined;
    for (size_t i = 0; i < parts.size(); i += kMost) {
      const auto some = parts.subspan(i, std::min(kMost, parts.size() - i));
      joined.push_back(unary("optimization_barrier", concatenate(some, dim)));
    }
    return concatenate(joined, dim);
  }
  return resized(kOp, {parts.begin(), parts.end()}, type, {{"dimension", attr::i64(dim)}});
}

Value pad(const Value& x, const Value& padding_scalar, std::span<const int64_t> low,
          std::span<const int64_t> high, std::span<const int64_t> interior) {
  constexpr std::string_view kOp = "stablehlo.pad";
  check_per_dim(kOp, "low padding", x, low);
  check_per_dim(kOp, "high padding", x, high);
  check_per_dim(kOp, "interior padding", x, interior);
  TXLA_CHECK(padding_scalar && padding_scalar.type() == scalar_of(x), kOp,
             ": expected a scalar of the type of ", show(x), " as padding, got ",
             show(padding_scalar), ".");
  Dims dims;
  for (int64_t i = 0; i < x.rank(); ++i) {
    const int64_t inner = x.dim(i) == 0 ? 0 : (x.dim(i) - 1) * interior[i];
    dims.push_back(x.dim(i) + inner + low[i] + high[i]);
    TXLA_CHECK(interior[i] >= 0 && dims.back() >= 0, kOp, ": expected a size of at least 0 in ",
               "dimension ", i, " of ", show(x), ", got low ", low[i], ", high ", high[i],
               ", interior ", interior[i], ".");
  }
  if (all_zero(low) && all_zero(high) && all_zero(interior)) return x;
  Dims cut;  // in a program that is partitioned, such values were wrong where they were split
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (low[i] < 0 || high[i] < 0) cut.push_back(i);
  }
  const Value made = resized(kOp, {unsplit(x, cut), padding_scalar}, x.type().with(dims),
                             {{"edge_padding_low", attr::array(low)},
                              {"edge_padding_high", attr::array(high)},
                              {"interior_padding", attr::array(interior)}});
  return unsplit(made, cut);
}

Value dynamic_slice(const Value& x, std::span<const Value> starts, const Dims& sizes) {
  constexpr std::string_view kOp = "stablehlo.dynamic_slice";
  check_starts(kOp, x, starts);
  check_per_dim(kOp, "size", x, sizes);
  for (int64_t i = 0; i < x.rank(); ++i) {
    TXLA_CHECK(sizes[i] >= 0 && sizes[i] <= x.dim(i), kOp, ": expected sizes within ", show(x),
               ", got ", show(sizes), ".");
  }
  Values operands = {x};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return resized(kOp, std::move(operands), x.type().with(sizes),
                 {{"slice_sizes", attr::array(sizes)}});
}

namespace {

// dynamic_update_slice as a scatter of several windows, which compilers leave by itself and which
// writes in place as fast. The update has more than one element.
Value scattered(const Value& x, const Value& update, std::span<const Value> starts) {
  Builder& b = x.builder();
  // The windows lie along the first dimension of more than one element; what comes before it, and
  // every dimension that has a start, needs a position.
  int64_t first = 0, last = x.rank() - 1;
  while (update.dim(first) == 1) ++first;
  while (last > first && update.dim(last) == x.dim(last)) --last;
  const Type column{starts[0].dtype(), {update.dim(first), 1}};
  ScatterDims d;
  d.index_vector_dim = 1;
  Values columns;
  for (int64_t i = 0; i <= last; ++i) {
    const Value start = clamp(scalar_int(b, 0, column.dtype), starts[i],
                              scalar_int(b, x.dim(i) - update.dim(i), column.dtype));
    const Value at = broadcast_in_dim(start, column.dims, {});
    columns.push_back(i == first ? add(at, iota(b, column, 0)) : at);
    d.scatter_dims_to_operand_dims.push_back(i);
  }
  for (int64_t i = 0; i < x.rank(); ++i) {
    (i <= first ? d.inserted_window_dims : d.update_window_dims)
        .push_back(i <= first ? i : i - first);
  }
  const Value windows = reshape(update, {update.dims().begin() + first, update.dims().end()});
  const auto replace = [](const Value&, const Value& written) { return written; };
  return scatter(x, concatenate(columns, 1), windows, d, replace, true, true);
}

}  // namespace

Value dynamic_update_slice(const Value& x, const Value& update, std::span<const Value> starts) {
  constexpr std::string_view kOp = "stablehlo.dynamic_update_slice";
  check_starts(kOp, x, starts);
  bool fits = update && update.dtype() == x.dtype() && update.rank() == x.rank();
  for (int64_t i = 0; fits && i < x.rank(); ++i) fits = update.dim(i) <= x.dim(i);
  TXLA_CHECK(fits, kOp, ": expected an update within ", show(x), ", got ", show(update), ".");
  if (x.builder().lacks().updates_from_self && update.type().elements() > 1 &&
      x.builder().may_read(update, x)) {
    return scattered(x, update, starts);
  }
  Values operands = {x, update};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return resized(kOp, std::move(operands), x.type());
}

}  // namespace torch_xla::hlo
