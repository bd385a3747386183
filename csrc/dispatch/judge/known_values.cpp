#include "dispatch/judge/known_values.h"

#include <ATen/ops/from_blob.h>

#include "dispatch/calls/computed_views.h"
#include "executor/step/external_memory.h"
#include "lazy/tensor.h"

namespace torch_xla::dispatch {

std::optional<at::Tensor> known_values(const at::Tensor& tensor) {
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

}  // namespace torch_xla::dispatch
