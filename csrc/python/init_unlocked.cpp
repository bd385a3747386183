// Tells util::Unlocked of the interpreter's lock.
#include <pybind11/pybind11.h>

#include "python/init.h"
#include "util/hooks.h"

namespace torch_xla::python {
namespace {

bool is_held() { return Py_IsInitialized() != 0 && PyGILState_Check() != 0; }
void* release() { return is_held() ? PyEval_SaveThread() : nullptr; }

void take(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

}  // namespace

void init_unlocked(pybind11::module_&) {
  util::hooks.holds_interpreter = &is_held;
  util::hooks.release_interpreter = &release;
  util::hooks.take_interpreter = &take;
}

}  // namespace torch_xla::python
