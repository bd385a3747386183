#include "hlo/check.h"

#include <algorithm>

namespace torch_xla::hlo {

std::string show(const Value& x) { return x ? x.type().str() : "a value that was never built"; }

std::string show(std::span<const int64_t> dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(dims[i]);
  }
  return text + "]";
}

void check_same_type(std::string_view op, const Value& x, const Value& y) {
  TXLA_CHECK(x && y && x.type() == y.type(), op, ": expected two operands of one type, got ",
             show(x), " and ", show(y), ". Convert or broadcast one of them.");
}

void check_dim(std::string_view op, const Value& x, int64_t dim) {
  TXLA_CHECK(x && dim >= 0 && dim < x.rank(), op, ": expected a dimension of ", show(x), ", got ",
             dim, ".");
}

void check_dims(std::string_view op, const Value& x, std::span<const int64_t> dims) {
  for (int64_t dim : dims) {
    check_dim(op, x, dim);
    TXLA_CHECK(std::count(dims.begin(), dims.end(), dim) == 1, op,
               ": expected each dimension once, got ", show(dims), ".");
  }
}

void check_per_dim(std::string_view op, std::string_view what, const Value& x,
                   std::span<const int64_t> given) {
  TXLA_CHECK(x && static_cast<int64_t>(given.size()) == x.rank(), op, ": expected one ", what,
             " for each dimension of ", show(x), ", got ", show(given), ".");
}

}  // namespace torch_xla::hlo
