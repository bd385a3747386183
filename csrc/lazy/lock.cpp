#include "lazy/lock.h"

#include "util/lock_order.h"
#include "util/unlocked.h"

namespace torch_xla::lazy {
namespace {

util::Mutex& graph_mutex() {
  static auto& mutex =
      *new util::Mutex(util::Rank::Graph);  // outlives static destructors that still hold tensors
  return mutex;
}

}  // namespace

thread_local int GraphLock::depth_ = 0;

void GraphLock::acquire() {
  if (graph_mutex().try_lock()) return;
  util::Unlocked unlocked;
  util::about_to_wait_for(util::Rank::Graph);
  graph_mutex().lock();
  unlocked.end();
}

void GraphLock::release() { graph_mutex().unlock(); }

}  // namespace torch_xla::lazy
