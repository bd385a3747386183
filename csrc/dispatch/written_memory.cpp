#include "dispatch/written_memory.h"

#include <set>
#include <string_view>
#include <unordered_map>

#include <ATen/MemoryOverlap.h>

#include "lazy/tensor.h"

namespace torch_xla::dispatch {

WrittenMemory::WrittenMemory(const Plan& plan, bool elementwise) : plan_(plan) {
  static const std::set<std::string_view> kReadElsewhere = {
      "aten::cat",          "aten::gather",         "aten::index_add", "aten::index_copy",
      "aten::index_fill",   "aten::index_put",      "aten::put",       "aten::_index_put_impl",
      "aten::index_reduce", "aten::index_select",   "aten::scatter",   "aten::scatter_add",
      "aten::take",         "aten::scatter_reduce",
  };
  static const std::unordered_map<std::string_view, Warning> kWarnExpanded = {
      {"aten::index_fill", {"index_fill_", "tensor[mask] = scalar"}},
      {"aten::index_put", {"index_put_", "tensor[indices] = tensor"}},
      {"aten::_index_put_impl", {"index_put_", "tensor[indices] = tensor"}},
      {"aten::masked_fill", {"masked_fill_", "tensor[mask] = scalar"}},
  };
  const std::string_view name = plan.target->schema().name();
  if (elementwise) {
    reads_ = Reads::Elementwise;
  } else if (kReadElsewhere.contains(name)) {
    reads_ = Reads::Elsewhere;
  }
  if (const auto it = kWarnExpanded.find(name); it != kWarnExpanded.end()) {
    warns_expanded_ = it->second;
  }
}

void WrittenMemory::check_against(const at::Tensor& written, const at::Tensor& read) const {
  lazy::TensorImpl* to = lazy::as_lazy(written);
  lazy::TensorImpl* from = read.defined() ? lazy::as_lazy(read) : nullptr;
  if (from == nullptr || &from->lazy_storage() != &to->lazy_storage()) return;
  if (reads_ == Reads::Elsewhere) {
    at::assert_no_overlap(written, read);
  } else if (from != to) {
    at::assert_no_partial_overlap(written, read);
  }
}

void WrittenMemory::check(const torch::jit::Stack& stack, size_t base) const {
  if (reads_ == Reads::Anyhow && !warns_expanded_) return;
  for (const Plan::Write& w : plan_.writes) {
    const c10::IValue& v = stack[base + w.argument];
    if (!v.isTensor()) continue;
    const at::Tensor& written = v.toTensor();
    if (!lazy::is_lazy(written)) continue;
    if (!w.is_out && warns_expanded_ && at::has_internal_overlap(written) == at::MemOverlap::Yes) {
      TORCH_WARN("Use of ", warns_expanded_->name,
                 " on expanded tensors is deprecated. Please clone() the tensor before performing "
                 "this operation. This also applies to advanced indexing e.g. ",
                 warns_expanded_->statement);
    }
    if (reads_ == Reads::Anyhow) continue;
    for (size_t i = 0; i < plan_.arguments.size(); ++i) {
      if (i == static_cast<size_t>(w.argument)) continue;
      const c10::IValue& read = stack[base + i];
      if (read.isTensor()) {
        check_against(written, read.toTensor());
      } else if (read.isList() && reads_ == Reads::Elsewhere) {
        for (const c10::IValue& e : read.toListRef()) {
          if (e.isTensor()) check_against(written, e.toTensor());
        }
      }
    }
  }
}

}  // namespace torch_xla::dispatch
