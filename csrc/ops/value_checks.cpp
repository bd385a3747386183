#include "ops/value_checks.h"

namespace torch_xla::ops {
namespace {

template <class T>
bool leaves(const at::Tensor& indices, IndexRange range) {
  const T* data = indices.const_data_ptr<T>();
  bool outside = false;
  for (int64_t i = 0; i < indices.numel(); ++i) {
    const auto index = static_cast<int64_t>(data[i]);
    outside |= (index < range.first || index >= range.end) && index != range.ignored;
  }
  return outside;
}

}  // namespace

bool leaves(const KnownArguments& a, const c10::IValue& indices, IndexRange range) {
  if (!indices.isTensor() || !indices.toTensor().defined()) return false;
  const at::Tensor& given = indices.toTensor();
  const at::ScalarType dtype = given.scalar_type();
  if (given.numel() == 0 || (dtype != at::kLong && dtype != at::kInt)) return false;
  const std::optional<at::Tensor> known = a.known(given);
  if (!known) return false;
  const at::Tensor rows = known->contiguous();
  return dtype == at::kLong ? leaves<int64_t>(rows, range) : leaves<int32_t>(rows, range);
}

void on_one_device(const Arguments& a) {
  const at::Tensor *number = nullptr, *other = nullptr;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].isTensor() || !a.tensor(i).defined()) continue;
    const bool is_number = a.tensor(i).is_cpu() && a.tensor(i).dim() == 0;
    (is_number ? number : other) = &a.tensor(i);
  }
  TORCH_CHECK(number == nullptr || other == nullptr || other->is_cpu(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              other == nullptr ? at::Device(at::kCPU) : other->device(), " and cpu! Move the one ",
              "of the CPU with .to('xla').");
}

bool exceeds(const KnownArguments& a, const c10::IValue& v, double least, double most) {
  if (!v.isTensor() || v.toTensor().numel() == 0) return false;
  const std::optional<at::Tensor> known = a.known(v.toTensor());
  if (!known) return false;
  const auto [smallest, largest] = known->aminmax();
  return !(smallest.item<double>() >= least && largest.item<double>() <= most);
}

}  // namespace torch_xla::ops
