#include "dispatch/value_checks.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_map>

#include <ATen/ops/from_blob.h>
#include <c10/core/WrapDimMinimal.h>

#include "dispatch/computed_views.h"
#include "executor/external_memory.h"
#include "lazy/tensor.h"

namespace torch_xla::dispatch {
namespace {

using at::Tensor;
using torch::jit::Stack;

struct Range {
  int64_t first, end;  // valid are first, .., end - 1
  int64_t ignored = std::numeric_limits<int64_t>::min();
};

template <class T>
bool leaves(const T* indices, int64_t count, Range range) {
  bool outside = false;
  for (int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<int64_t>(indices[i]);
    outside |= (index < range.first || index >= range.end) && index != range.ignored;
  }
  return outside;
}

// Whether some index that is known is outside of the range.
bool leaves(const c10::IValue& v, Range range) {
  if (!v.isTensor() || !v.toTensor().defined()) return false;
  const Tensor& given = v.toTensor();
  const at::ScalarType dtype = given.scalar_type();
  if (given.numel() == 0 || (dtype != at::kLong && dtype != at::kInt)) return false;
  const std::optional<Tensor> known = known_values(given);
  if (!known) return false;
  const Tensor indices = known->contiguous();
  return dtype == at::kLong ? leaves(indices.const_data_ptr<int64_t>(), indices.numel(), range)
                            : leaves(indices.const_data_ptr<int32_t>(), indices.numel(), range);
}

int64_t size(const Tensor& t, int64_t dim) { return t.dim() == 0 ? 1 : t.size(dim); }

// (self, dim, index, ..)
template <bool Negative = false>
bool along_dim(const Stack& stack, size_t base) {
  const Tensor& self = stack[base].toTensor();
  const int64_t end = size(self, c10::maybe_wrap_dim(stack[base + 1].toInt(), self.dim()));
  return leaves(stack[base + 2], {Negative ? -end : 0, end});
}

// (table, indices, ..)
bool rows(const Stack& stack, size_t base) {
  return leaves(stack[base + 1], {0, size(stack[base].toTensor(), 0)});
}

// (self, index, ..), of the flattened tensor
bool elements(const Stack& stack, size_t base) {
  const int64_t end = stack[base].toTensor().numel();
  return leaves(stack[base + 1], {-end, end});
}

// Whether the mask at `dim` of self is known, and not as many of its elements are true as values
// have rows. Values without rows, or with one, go everywhere.
bool miscounts(const Tensor& self, const Tensor& mask, int64_t dim, const Tensor& values) {
  const int64_t trailing = self.dim() - dim - mask.dim(), row = values.dim() - 1 - trailing;
  if (row < 0 || values.size(row) == 1) return false;
  const std::optional<Tensor> known = known_values(mask);
  return known && known->count_nonzero().item<int64_t>() != values.size(row);
}

// (self, indices, ..), one for each of the first dimensions; of index_put, values follow
bool positions(const Stack& stack, size_t base) {
  const Tensor& self = stack[base].toTensor();
  int64_t dim = 0;
  for (const c10::IValue& index : stack[base + 1].toListRef()) {
    const bool is_mask = index.isTensor() && (index.toTensor().scalar_type() == at::kBool ||
                                              index.toTensor().scalar_type() == at::kByte);
    if (!is_mask && leaves(index, {-self.size(dim), self.size(dim)})) return true;
    if (is_mask && miscounts(self, index.toTensor(), dim, stack[base + 2].toTensor())) return true;
    dim += is_mask ? index.toTensor().dim() : 1;
  }
  return false;
}

// (self, mask, source)
bool source_runs_out(const Stack& stack, size_t base) {
  const std::optional<Tensor> mask = known_values(stack[base + 1].toTensor());
  if (!mask || mask->numel() == 0) return false;
  const int64_t copies = std::max<int64_t>(stack[base].toTensor().numel() / mask->numel(), 1);
  return mask->count_nonzero().item<int64_t>() * copies > stack[base + 2].toTensor().numel();
}

// (scores [N, C, ..] or [C], target, weight, reduction, ignore_index, ..)
bool classes(const Stack& stack, size_t base) {
  const Tensor& scores = stack[base].toTensor();
  const int64_t end = scores.size(scores.dim() == 1 ? 0 : 1);
  return leaves(stack[base + 1], {0, end, stack[base + 4].toInt()});
}

// (scores [.., C], target, ..); `First` is the smallest target
template <int64_t First>
bool last_classes(const Stack& stack, size_t base) {
  return leaves(stack[base + 1], {First, size(stack[base].toTensor(), -1)});
}

// (weights [.., categories], ..)
bool no_distribution(const Stack& stack, size_t base) {
  const std::optional<Tensor> weights = known_values(stack[base].toTensor());
  if (!weights || weights->numel() == 0) return false;
  const Tensor sums = weights->sum(-1);
  return !(weights->min().item<double>() >= 0) || !(sums.min().item<double>() > 0) ||
         !(sums.max().item<double>() < std::numeric_limits<double>::infinity());
}

// Whether some element that is known is below `least` or above `most`, or nan.
bool exceeds(const c10::IValue& v, double least, double most) {
  if (!v.isTensor() || v.toTensor().numel() == 0) return false;
  const std::optional<Tensor> known = known_values(v.toTensor());
  if (!known) return false;
  const auto [smallest, largest] = known->aminmax();
  return !(smallest.item<double>() >= least && largest.item<double>() <= most);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargest = std::numeric_limits<double>::max();

// (mean, std, ..), one of them a tensor
bool deviations(const Stack& stack, size_t base) { return exceeds(stack[base + 1], 0, kInfinity); }

// (self, generator), (self, p, generator)
bool probabilities(const Stack& stack, size_t base) {
  const bool of_self = stack.size() - base < 3 || !stack[base + 1].isTensor();
  return !stack[base + 1].isDouble() && exceeds(stack[base + (of_self ? 0 : 1)], 0, 1);
}

// (self, bins, min, max): where both are the same, the data has the ends
bool no_range(const Stack& stack, size_t base) {
  const double least = stack[base + 2].toScalar().toDouble();
  return least == stack[base + 3].toScalar().toDouble() &&
         exceeds(stack[base], -kLargest, kLargest);
}

bool is_integer(const c10::IValue& v) {
  return v.isTensor() ? at::isIntegralType(v.toTensor().scalar_type(), /*includeBool=*/true)
                      : v.isInt() || v.isBool();
}

// (dividend, divisor, ..): integers, and a divisor of which some element may be zero. That of a
// narrow dividend has its low bits.
bool by_zero(const Stack& stack, size_t base) {
  const c10::IValue &dividend = stack[base], &divisor = stack[base + 1];
  if (!is_integer(dividend) || !is_integer(divisor)) return false;
  if (!divisor.isTensor() || divisor.toTensor().is_cpu()) {
    const int64_t number =
        divisor.isTensor() ? divisor.toTensor().item<int64_t>() : divisor.toScalar().toLong();
    const bool narrow = dividend.isTensor() && dividend.toTensor().scalar_type() != at::kBool;
    const size_t bits = narrow ? 8 * dividend.toTensor().element_size() : 64;
    return number << (64 - bits) == 0;
  }
  const std::optional<Tensor> known = known_values(divisor.toTensor());
  return known && known->numel() != 0 && known->count_nonzero().item<int64_t>() != known->numel();
}

// (table, indices, offsets, ..), of which the shapes are looked at as well
bool bags(const Stack& stack, size_t base) {
  const Tensor &table = stack[base].toTensor(), &indices = stack[base + 1].toTensor();
  const Tensor& offsets = stack[base + 2].toTensor();
  // PyTorch's CPU kernel takes these and writes beyond its memory.
  TORCH_CHECK(indices.dim() != 2, "embedding_bag: expected indices of one dimension, got ",
              indices.sizes(), ". Call torch.nn.functional.embedding_bag, which flattens them.");
  if (table.dim() != 2 || indices.dim() != 1 || offsets.dim() != 1 || rows(stack, base))
    return true;
  const std::optional<Tensor> known = known_values(offsets);
  if (!known || known->numel() == 0) return false;
  return known->select(0, 0).item<int64_t>() != 0 ||
         known->select(0, -1).item<int64_t>() > indices.numel();
}

// (data, reduce, lengths, indices, offsets, axis, unsafe, ..)
bool no_partition(const Stack& stack, size_t base) {
  const c10::IValue& given = stack[base + 2];
  if (stack[base + 6].toBool() || given.isNone() || given.toTensor().numel() == 0) return false;
  const std::optional<Tensor> lengths = known_values(given.toTensor());
  if (!lengths || lengths->dim() > stack[base].toTensor().dim()) return false;
  const int64_t all = stack[base].toTensor().size(lengths->dim() - 1);
  return lengths->min().item<int64_t>() < 0 || lengths->sum(-1).ne(all).any().item<bool>();
}

}  // namespace

std::optional<Tensor> known_values(const Tensor& tensor) {
  lazy::TensorImpl* impl = lazy::as_lazy(tensor);
  if (impl == nullptr || !shows_memory(*impl)) return std::nullopt;
  const void* memory = executor::peek(impl->lazy_storage().value());
  if (memory == nullptr) return std::nullopt;
  const auto offset = static_cast<size_t>(tensor.storage_offset()) * tensor.element_size();
  // from_blob wants memory that may be written to.
  char* first = const_cast<char*>(static_cast<const char*>(memory)) + offset;
  return at::from_blob(first, tensor.sizes(), tensor.strides(),
                       at::device(at::kCPU).dtype(tensor.scalar_type()));
}

ValueCheck value_check(const c10::OperatorHandle& op) {
  static const std::unordered_map<std::string_view, ValueCheck> kChecks = {
      {"aten::gather", along_dim<>},
      {"aten::scatter", along_dim<>},
      {"aten::scatter_add", along_dim<>},
      {"aten::scatter_reduce", along_dim<>},
      {"aten::index_select", along_dim<>},
      {"aten::index_add", along_dim<>},
      {"aten::index_copy", along_dim<>},
      {"aten::index_reduce", along_dim<>},
      {"aten::index_fill", along_dim<true>},
      {"aten::embedding", rows},
      {"aten::embedding_renorm", rows},
      {"aten::_embedding_bag", bags},
      {"aten::_embedding_bag_forward_only", bags},
      {"aten::take", elements},
      {"aten::put", elements},
      {"aten::index", positions},
      {"aten::index_put", positions},
      {"aten::nll_loss_forward", classes},
      {"aten::nll_loss2d_forward", classes},
      {"aten::multi_margin_loss", last_classes<0>},
      {"aten::multilabel_margin_loss_forward", last_classes<-1>},
      {"aten::multinomial", no_distribution},
      {"aten::masked_scatter", source_runs_out},
      {"aten::normal", deviations},
      {"aten::bernoulli", probabilities},
      {"aten::histc", no_range},
      {"aten::segment_reduce", no_partition},
      {"aten::floor_divide", by_zero},
      {"aten::remainder", by_zero},
      {"aten::fmod", by_zero},
  };
  if (op.schema().name() == "aten::div") {
    return op.schema().overload_name().ends_with("_mode") ? by_zero : nullptr;
  }
  const auto it = kChecks.find(op.schema().name());
  return it == kChecks.end() ? nullptr : it->second;
}

}  // namespace torch_xla::dispatch
