#include "lazy/lock.h"

#include <mutex>

#include <Python.h>

namespace torch_xla::lazy {
namespace {

std::mutex& graph_mutex() {
  static auto& mutex = *new std::mutex;  // outlives static destructors that still hold tensors
  return mutex;
}

}  // namespace

thread_local int GraphLock::depth_ = 0;

void GraphLock::acquire() {
  if (graph_mutex().try_lock()) return;
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
    PyThreadState* state = PyEval_SaveThread();
    graph_mutex().lock();
    PyEval_RestoreThread(state);
    return;
  }
  graph_mutex().lock();
}

void GraphLock::release() { graph_mutex().unlock(); }

}  // namespace torch_xla::lazy
