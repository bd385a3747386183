#include "ops/host/host_product.h"

#include <algorithm>

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "ops/contraction.h"
#include "ops/host/host_rules.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Value;

// The call's next argument: the factor, or its transpose, cut along `dim` of what is asked for.
void give(HostCall& call, const Factor& f, bool transpose, int64_t dim) {
  const bool turn = transpose != f.transposed;
  const int64_t own = dim == HostCall::kWhole || !turn ? dim : 1 - dim;
  const bool across = f.transposed;
  const Value matrix =
      hlo::reshape(f.matrix, {across ? f.columns() : f.rows(), across ? f.rows() : f.columns()});
  turn ? call.transposed(matrix, own) : call.part(matrix, own);
}

// oneDNN's product by a transposed weight, where it is faster than MKL's though its result must be
// copied: it takes long to begin.
bool takes_onednn(DType dtype, const Extents& p, const Factor& left) {
  constexpr int64_t kMost = 1 << 22;  // the C library maps larger results anew each time
  static const bool found =
      c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""}).has_value();
  return kHasOneDnn && found && dtype == DType::F32 && !left.transposed && p.work() >= 1 << 22 &&
         std::min({p.left, p.right, p.contracted}) >= 16 && p.left * p.right <= kMost;
}

// XLA packs a right factor anew for each product, at a cost that counts where there are few rows,
// and gathers a left one that lies across what is contracted.
bool is_faster(DType dtype, const Extents& p, const Factor& left, const Factor& right) {
  if (p.work() == 0 || is_few_long_sums(p, dtype)) return false;
  if (is_narrow(dtype)) return multiplies(dtype);  // XLA widens them to f32 first
  if (dtype != DType::F32 && dtype != DType::F64) return false;
  if (takes_onednn(dtype, p, left)) return true;
  if (left.transposed) return p.work() >= 1 << 20 && p.contracted >= 256;
  return right.transposed && p.work() >= 1 << 17 && p.left * p.right <= 1024 * p.contracted;
}

}  // namespace

Factor factor_of(const Value& x) {
  const Value* from = x.builder().transposed_from(x);
  return from != nullptr ? Factor{*from, true} : Factor{x};
}

std::optional<Value> host_product(const Factor& left, const Factor& right,
                                  const std::optional<Value>& row) {
  const DType dtype = left.matrix.dtype();
  const Extents p{left.columns(), left.rows(), right.columns()};
  if (!choose_host(is_faster(dtype, p, left, right))) return std::nullopt;
  const bool onednn = takes_onednn(dtype, p, left);
  // Parts of the product's larger side. Of a factor with gaps in its memory, oneDNN's product is
  // ten thousand times slower.
  const bool by_rows = p.left >= p.right || (onednn && !right.transposed);
  const auto rows_cut = [&](int64_t dim) { return by_rows ? dim : HostCall::kWhole; };
  const auto columns_cut = [&](int64_t dim) { return by_rows ? HostCall::kWhole : dim; };
  HostCall call(left.matrix.builder(),
                onednn ? "mkldnn::_linear_pointwise"
                : row  ? "aten::addmm"
                       : "aten::mm",
                Fails::Never);
  if (row && !onednn) call.part(*row, columns_cut(0));
  give(call, left, false, rows_cut(0));
  if (onednn) {
    give(call, right, true, columns_cut(0));
    row ? call.part(*row, columns_cut(0)) : call.none();
    call.fixed("none").fixed(c10::List<int64_t>()).fixed("");  // what is done to the sum: nothing
  } else {
    give(call, right, false, columns_cut(1));
    if (row) call.fixed(1).fixed(1);  // beta, alpha
  }
  const std::optional<hlo::Type> type[] = {hlo::Type{dtype, {p.left, p.right}}};
  const int64_t cut[] = {by_rows ? 0 : 1};
  return call.results(type, cut)[0];
}

}  // namespace torch_xla::ops
