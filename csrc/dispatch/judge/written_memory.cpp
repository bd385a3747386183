#include "dispatch/judge/written_memory.h"

#include <ATen/MemoryOverlap.h>

#include "lazy/tensor.h"

namespace torch_xla::dispatch {

WrittenMemory::WrittenMemory(const OperatorPlan& plan, bool elementwise) : plan_(plan) {
  if (elementwise) {
    reads_ = Reads::Elementwise;
  } else if (plan.target->traits->reads_elsewhere) {
    reads_ = Reads::Elsewhere;
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
  const std::optional<ops::Traits::Deprecated>& expanded = plan_.target->traits->writes_expanded;
  if (reads_ == Reads::Anyhow && !expanded) return;
  for (const OperatorPlan::Write& w : plan_.writes) {
    const c10::IValue& v = stack[base + w.argument];
    if (!v.isTensor()) continue;
    const at::Tensor& written = v.toTensor();
    if (!lazy::is_lazy(written)) continue;
    if (!w.is_out && expanded && at::has_internal_overlap(written) == at::MemOverlap::Yes) {
      TORCH_WARN("Use of ", expanded->name,
                 " on expanded tensors is deprecated. Please clone() the tensor before performing "
                 "this operation. This also applies to advanced indexing e.g. ",
                 expanded->statement);
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
