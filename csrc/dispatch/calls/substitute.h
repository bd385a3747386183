// Replaces the tensors among the arguments of a call.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>

namespace torch_xla::dispatch {

// Replaces each tensor, undefined ones too, by what `tensor` gives for it, and each device by
// `device`.
template <class F>
c10::IValue substitute(const c10::IValue& v, c10::Device device, F&& tensor) {
  if (v.isTensor()) return tensor(v.toTensor());
  if (v.isDevice()) return device;
  if (v.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& e : v.toListRef()) list.push_back(tensor(e.toTensor()));
    return list;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& e : v.toListRef()) {
      list.push_back(e.isNone() ? std::optional<at::Tensor>() : tensor(e.toTensor()));
    }
    return list;
  }
  return v;
}

}  // namespace torch_xla::dispatch
