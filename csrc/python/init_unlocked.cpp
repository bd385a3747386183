// Tells util::Unlocked of the interpreter's lock.
#include <pybind11/pybind11.h>

#include "python/init.h"
#include "util/unlocked.h"

namespace torch_xla::python {
namespace {

void* release() {
  const bool held = Py_IsInitialized() != 0 && PyGILState_Check() != 0;
  return held ? PyEval_SaveThread() : nullptr;
}

void take(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

}  // namespace

void init_unlocked(pybind11::module_&) { util::set_interpreter_lock({&release, &take}); }

}  // namespace torch_xla::python
