// Tells util::Unlocked of the interpreter's lock.
#include <pybind11/pybind11.h>

#include "python/init.h"
#include "util/interpreter.h"

namespace torch_xla::python {
namespace {

bool is_held() { return Py_IsInitialized() != 0 && PyGILState_Check() != 0; }
void* release() { return is_held() ? PyEval_SaveThread() : nullptr; }

void take(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

}  // namespace

void init_unlocked(pybind11::module_&) { util::set_interpreter_lock({&is_held, &release, &take}); }

}  // namespace torch_xla::python
