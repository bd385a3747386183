// C++ exceptions as the Python exceptions that users expect, with and without PyTorch's dispatcher
// in between.
#include <cstdio>

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include "pjrt/plugin.h"
#include "python/init.h"
#include "util/error.h"
#include "util/hooks.h"

namespace torch_xla::python {
namespace {

// PyTorch's bindings know these types; any other exception becomes a RuntimeError there.
void throw_torch_error(util::ErrorKind kind, const std::string& message) {
  const c10::SourceLocation here = {__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  switch (kind) {
    case util::ErrorKind::Runtime:
      throw c10::Error(here, message);
    case util::ErrorKind::Value:
      throw c10::ValueError(here, message);
    case util::ErrorKind::Type:
      throw c10::TypeError(here, message);
    case util::ErrorKind::Index:
      throw c10::IndexError(here, message);
    case util::ErrorKind::NotImplemented:
      throw c10::NotImplementedError(here, message);
    case util::ErrorKind::OutOfMemory:
      throw c10::OutOfMemoryError(here, message);
  }
}

PyObject* out_of_memory() {
  static const pybind11::handle type =
      pybind11::object(pybind11::module_::import("torch").attr("OutOfMemoryError")).release();
  return type.ptr();
}

PyObject* linalg_error() {
  static const pybind11::handle type =
      pybind11::object(pybind11::module_::import("torch").attr("linalg").attr("LinAlgError"))
          .release();
  return type.ptr();
}

// Lets the process end with the status of a failure, once the interpreter has ended: of exceptions
// in functions of `atexit` it only prints the text.
void fail_at_exit() {
  static const int once = Py_AtExit([] {
    std::fflush(nullptr);
    _exit(1);
  });
  TXLA_CHECK(once == 0, "xla: expected room for a function that runs at exit, got none.");
}

}  // namespace

void init_errors(pybind11::module_& m) {
  util::hooks.throw_error = &throw_torch_error;
  m.def("_fail_at_exit", &fail_at_exit);
  pybind11::register_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const c10::ValueError& e) {
      PyErr_SetString(PyExc_ValueError, e.what_without_backtrace());
    } catch (const c10::TypeError& e) {
      PyErr_SetString(PyExc_TypeError, e.what_without_backtrace());
    } catch (const c10::IndexError& e) {
      PyErr_SetString(PyExc_IndexError, e.what_without_backtrace());
    } catch (const c10::NotImplementedError& e) {
      PyErr_SetString(PyExc_NotImplementedError, e.what_without_backtrace());
    } catch (const c10::OutOfMemoryError& e) {
      PyErr_SetString(out_of_memory(), e.what_without_backtrace());
    } catch (const c10::LinAlgError& e) {
      PyErr_SetString(linalg_error(), e.what_without_backtrace());
    } catch (const c10::Error& e) {
      PyErr_SetString(PyExc_RuntimeError, e.what_without_backtrace());
    } catch (const pjrt::Error& e) {
      const bool no_memory = e.code() == PJRT_Error_Code_RESOURCE_EXHAUSTED;
      PyErr_SetString(no_memory ? out_of_memory() : PyExc_RuntimeError, e.what());
    }
  });
}

}  // namespace torch_xla::python
