// Arguments of operators as Python's objects, and back. One unit alone includes the headers for it,
// which take the compiler half a minute.
#pragma once

#include <ATen/core/ivalue.h>
#include <pybind11/pybind11.h>

namespace torch_xla::python {

pybind11::object object_of(const c10::IValue& value);
// Throws where the object is none of `type`.
c10::IValue ivalue_of(pybind11::handle object, const c10::TypePtr& type);

}  // namespace torch_xla::python
