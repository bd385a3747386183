#include "lazy/lock.h"

#include <mutex>

#include "util/unlocked.h"

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
  util::Unlocked unlocked;
  graph_mutex().lock();
  unlocked.end();
}

void GraphLock::release() { graph_mutex().unlock(); }

}  // namespace torch_xla::lazy
