#include "python/ivalue.h"

#include <torch/csrc/jit/python/pybind_utils.h>

namespace torch_xla::python {

pybind11::object object_of(const c10::IValue& value) { return torch::jit::toPyObject(value); }

c10::IValue ivalue_of(pybind11::handle object, const c10::TypePtr& type) {
  return torch::jit::toIValue(object, type);
}

}  // namespace torch_xla::python
