// C++ exceptions as the Python exceptions that users expect.
#include <pybind11/pybind11.h>

#include "pjrt/plugin.h"
#include "python/init.h"
#include "util/error.h"

namespace torch_xla::python {
namespace {

PyObject* exception_for(util::ErrorKind kind) {
  switch (kind) {
    case util::ErrorKind::Runtime:
      return PyExc_RuntimeError;
    case util::ErrorKind::Value:
      return PyExc_ValueError;
    case util::ErrorKind::Type:
      return PyExc_TypeError;
    case util::ErrorKind::Index:
      return PyExc_IndexError;
    case util::ErrorKind::NotImplemented:
      return PyExc_NotImplementedError;
    case util::ErrorKind::OutOfMemory:
      break;
  }
  static PyObject* out_of_memory = [] {
    pybind11::object type = pybind11::module_::import("torch").attr("OutOfMemoryError");
    return type.release().ptr();
  }();
  return out_of_memory;
}

}  // namespace

void init_errors(pybind11::module_&) {
  pybind11::register_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const util::Error& e) {
      PyErr_SetString(exception_for(e.kind()), e.what());
    } catch (const pjrt::Error& e) {
      const bool no_memory = e.code() == PJRT_Error_Code_RESOURCE_EXHAUSTED;
      PyErr_SetString(
          exception_for(no_memory ? util::ErrorKind::OutOfMemory : util::ErrorKind::Runtime),
          e.what());
    }
  });
}

}  // namespace torch_xla::python
