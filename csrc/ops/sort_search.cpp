// Looking values up in sorted ones: searchsorted, bucketize, isin, and histc.
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>

#include <ATen/native/BucketizationUtils.h>
#include <ATen/ops/empty.h>

#include "ops/common.h"
#include "ops/gather.h"
#include "ops/meta.h"
#include "ops/rearrange.h"
#include "ops/sort.h"
#include "ops/value_checks.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

// The first position in `sequence` (its last dimension) whose element is not less than the value,
// or is greater when `right`. `sequence` has one dimension, or the values' leading ones. The steps
// are those of PyTorch's binary search, so that nan in the sequence gives the same positions.
Value lower_bound(const Value& sequence, const Value& values, bool right, const Target& target) {
  hlo::Builder& b = values.builder();
  const int64_t last = sequence.rank() - 1, n = sequence.dim(last);
  const hlo::Type type = values.type().with(DType::S64);
  Value low = hlo::zero(b, type), high = hlo::splat_int(b, n, type);
  if (type.elements() == 0 || n == 0) return low;
  const Value final = hlo::splat_int(b, n - 1, type), two = hlo::splat_int(b, 2, type);
  for (int step = std::bit_width(static_cast<uint64_t>(n)); step > 0; --step) {
    const Value middle = low + (high - low) / two;
    const Value at = hlo::min(middle, final);
    const Value found =
        sequence.rank() == 1 ? take_rows(sequence, 0, at) : take_along(sequence, last, at, target);
    const Value go_left = right ? hlo::greater(found, values) : hlo::greater_equal(found, values);
    const Value open = hlo::less(low, high);
    low = hlo::select(open & ~go_left, middle + 1, low);
    high = hlo::select(open & go_left, middle, high);
  }
  return low;
}

Values search(Lowering& l, size_t sequence_arg, size_t values_arg, bool right,
              const std::optional<Value>& sorter) {
  const DType dtype = to_hlo(l.promoted({sequence_arg, values_arg}));
  Value sequence = hlo::convert(l.in(sequence_arg), dtype);
  if (sorter) sequence = take_along(sequence, sequence.rank() - 1, *sorter, l.target());
  return result(l, lower_bound(sequence, hlo::convert(l.in(values_arg), dtype), right, l.target()));
}

Values searchsorted(Lowering& l) {
  const bool right = l.flag(3) || (l.has(4) && l.text(4) == "right");
  return search(l, 0, 1, right, l.has(5) ? std::optional(l.in(5)) : std::nullopt);
}

Values bucketize(Lowering& l) {
  const int64_t rank = l.in(1).rank();
  if (rank != 1) {
    throw std::invalid_argument("boundaries tensor must be 1 dimension, but got dim(" +
                                std::to_string(rank) + ").");
  }
  return search(l, 1, 0, l.flag(3), std::nullopt);
}

Values isin(Lowering& l) {
  const DType dtype = to_hlo(l.promoted({0, 1}));
  const Value elements = hlo::convert(l.in(0), dtype);
  const Value tests = flatten(hlo::convert(l.in(1), dtype));
  const hlo::Type type = l.out();
  if (type.elements() == 0) return {hlo::zero(l.b, type)};
  const int64_t n = tests.dim(0);
  Value found;
  if (n == 0) {
    found = hlo::zero(l.b, type);
  } else if (n <= 64) {
    // Few enough to compare with each.
    Dims wide = elements.dims();
    wide.push_back(n);
    const Dims last = {elements.rank()};
    const Value equal = hlo::equal(hlo::broadcast_in_dim(elements, wide, all_dims(elements.rank())),
                                   hlo::broadcast_in_dim(tests, wide, last));
    found = hlo::reduce(equal, hlo::scalar(l.b, 0, DType::Pred), last, hlo::logical_or);
  } else {
    const Value order = sorted(tests, 0, false, l.target()).values;
    const Value at = lower_bound(order, elements, false, l.target());
    const Value inside = hlo::min(at, hlo::splat_int(l.b, n - 1, at.type()));
    found = hlo::equal(take_rows(order, 0, inside), elements);
  }
  return {l.flag(3) ? ~found : found};
}

Values histc(Lowering& l) {
  const hlo::Type type = l.out();
  const Value x = flatten(l.in(0));
  if (type.elements() == 0 || x.dim(0) == 0) return {hlo::zero(l.b, type)};
  // PyTorch takes integers on CUDA alone; xla does on each platform.
  const DType wide = hlo::is_float(x.dtype()) ? compute_dtype(x.dtype()) : DType::S64;
  const Value values = hlo::convert(x, wide);
  Value low = l.number(2, wide), high = l.number(3, wide);
  // No range given: that of the data, widened where it has no width.
  const Dims all = {0};
  const Value unset = hlo::equal(low, high);
  const Value least = reduce_min(values, all), most = reduce_max(values, all);
  low = hlo::select(unset, least, low);
  high = hlo::select(unset, most, high);
  const Value flat = hlo::equal(low, high);
  low = hlo::select(flat, low - 1, low);
  high = hlo::select(flat, high + 1, high);

  const auto each = [&](const Value& v) { return hlo::broadcast_to(v, values.dims()); };
  const int64_t bins = type.dims[0];
  const Value inside = hlo::greater_equal(values, each(low)) & hlo::less_equal(values, each(high));
  const Value scaled = (values - each(low)) * static_cast<double>(bins) / each(high - low);
  Value bin = hlo::convert(hlo::select(inside, scaled, 0), DType::S64);
  bin = hlo::min(bin, hlo::splat_int(l.b, bins - 1, bin.type()));
  bin = hlo::select(inside, bin, static_cast<double>(bins));
  return result(l, scatter_rows(hlo::zero(l.b, {DType::S64, {bins}}), 0, bin,
                                hlo::one(l.b, bin.type()), hlo::add));
}

// --- What PyTorch's Meta kernels leave out ------------------------------------------------

// (self, bins): how many; or their edges.
void histogram(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  const c10::IValue& bins = call[1];
  const int64_t count = bins.isTensor() ? bins.toTensor().numel() - 1 : bins.toInt();
  TORCH_CHECK(count > 0, "torch.histogram(): bins must be > 0, but got ", count,
              " for dimension 0");
  call.results({meta_of_sizes(x, {count}), meta_of_sizes(x, {count + 1})});
}

std::vector<int64_t> bin_counts(const c10::IValue& bins) {
  if (bins.isIntList()) return bins.toIntVector();
  std::vector<int64_t> counts;
  for (const at::Tensor& edges : bins.toTensorVector()) counts.push_back(edges.numel() - 1);
  return counts;
}

void histogramdd(MetaCall& call) {
  call.results({meta_of_sizes(call.tensor(0), bin_counts(call[1]))});
}

void histogramdd_edges(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  c10::List<at::Tensor> edges;
  for (const int64_t count : bin_counts(call[1])) edges.push_back(meta_of_sizes(x, {count + 1}));
  call.results({edges});
}

// A tensor or number that is looked up.
at::Tensor looked_up(const c10::IValue& v, const at::Tensor& boundaries) {
  return v.isTensor() ? v.toTensor()
                      : at::native::searchsorted_scalar_tensor(v.toScalar(), boundaries.device());
}

at::Tensor places(const Arguments& a, size_t inputs, const at::Tensor& boundaries) {
  if (a.size() > inputs) return a.back().toTensor();
  return at::empty({0}, boundaries.options().dtype(a[2].toBool() ? at::kInt : at::kLong));
}

// (boundaries, self, out_int32, right, side, sorter), and perhaps out
void check_searchsorted(const Arguments& a) {
  const at::Tensor& boundaries = a.tensor(0);
  const c10::IValue& sorter = a[5];
  at::native::searchsorted_pre_check(boundaries, looked_up(a[1], boundaries),
                                     places(a, 6, boundaries), a[2].toBool(), a[3].toBool(),
                                     a[4].toOptional<std::string_view>(), {});
  if (sorter.isNone() || !sorter.toTensor().defined()) return;
  const at::Tensor& order = sorter.toTensor();
  TORCH_CHECK(order.sizes() == boundaries.sizes(),
              "torch.searchsorted(): boundary and sorter must have the same size, but got boundary "
              "tensor ",
              boundaries.sizes(), "and got sorter tensor ", order.sizes());
  TORCH_CHECK(order.scalar_type() == at::kLong,
              "torch.searchsorted(): sorter must be a tensor of long dtype but got dtype ",
              order.scalar_type());
}

// The check has let the call pass.
void searchsorted_meta(MetaCall& call) {
  const at::ScalarType dtype = call[2].toBool() ? at::kInt : at::kLong;
  const bool one = !call[1].isTensor();
  call.results({meta_of_sizes(dtype, one ? std::vector<int64_t>() : call.tensor(1).sizes().vec())});
}

// (self, boundaries, out_int32, right), and perhaps out
void check_bucketize(const Arguments& a) {
  const at::Tensor& boundaries = a.tensor(1);
  at::native::searchsorted_pre_check(boundaries, looked_up(a[0], boundaries),
                                     places(a, 4, boundaries), a[2].toBool(), a[3].toBool(),
                                     std::nullopt, {});
}

// (self, bins, min, max): where both are the same, the data has the ends
bool no_range(const KnownArguments& a) {
  const double least = a[2].toScalar().toDouble();
  return least == a[3].toScalar().toDouble() &&
         exceeds(a, a[0], -std::numeric_limits<double>::max(), std::numeric_limits<double>::max());
}

// histc(self, bins, min, max)
void histc_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  const bool real = x.is_floating_point() || c10::isIntegralType(x.scalar_type(), false);
  if (!real || call[1].toInt() <= 0) return in_any_order(call);
  call.results({meta_of_sizes(x, {call[1].toInt()})});
}

}  // namespace

const Rules sort_search_rules([](Registry& r) {
  r.add("aten::searchsorted.Tensor", searchsorted);
  r.add("aten::searchsorted.Scalar", searchsorted);
  r.add("aten::bucketize.Tensor", bucketize);
  r.add("aten::bucketize.Scalar", bucketize);
  r.add("aten::isin.Tensor_Tensor", isin);
  r.add("aten::isin.Tensor_Scalar", isin);
  r.add("aten::isin.Scalar_Tensor", isin);
  r.add("aten::histc", histc);

  r.all("aten::searchsorted") = {.meta = searchsorted_meta, .checks_call = check_searchsorted};
  r.all("aten::bucketize").checks_call = check_bucketize;
  // The C++ kernel of this one answers with shape [0], which its CPU kernel corrects.
  r.one("aten::isin.Scalar_Tensor").python_meta = true;
  r.all("aten::histc") = {.meta = histc_meta, .suspects_values = no_range, .takes_integers = true};
  r.all("aten::histogram").meta = histogram;
  r.all("aten::_histogramdd_from_bin_cts").meta = histogramdd;
  r.all("aten::_histogramdd_from_bin_tensors").meta = histogramdd;
  r.all("aten::_histogramdd_bin_edges").meta = histogramdd_edges;
});

}  // namespace torch_xla::ops
