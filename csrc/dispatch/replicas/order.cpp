#include "dispatch/replicas/order.h"

#include <map>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include "dispatch/replicas/agreement.h"
#include "executor/step/sync.h"
#include "lazy/lock.h"
#include "lazy/recording.h"
#include "lazy/tensor.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using Key = std::pair<Order, int>;  // and its device

std::map<Key, at::Tensor>& orders() {  // guarded by the graph lock
  static auto& all = *new std::map<Key, at::Tensor>;
  return all;
}

// Data from the start, so that the first program is that of the later steps.
lazy::Storage& storage_of(Order order, int device) {
  at::Tensor& kept = orders()[{order, device}];
  if (!kept.defined()) {
    const c10::Device xla(c10::DeviceType::XLA, static_cast<c10::DeviceIndex>(device));
    kept = at::zeros({}, at::kLong).to(xla);
  }
  return lazy::as_lazy(kept)->lazy_storage();
}

// The place of the order in the function that is being recorded; null: in none.
lazy::Value* order_in_function() {
  lazy::Recording* recording = lazy::Recording::current();
  if (recording == nullptr || recording->lends_state()) return nullptr;
  lazy::Value* order = recording->order_of_exchanges();
  TXLA_CHECK_KIND(util::ErrorKind::NotImplemented, order != nullptr,
                  "collectives: expected a step, or a graph of torch.compile, got the body of a "
                  "loop, a layer of scan, or an export, where replicas cannot exchange values. "
                  "Call the collective outside.");
  return order;
}

}  // namespace

const lazy::Geometry* geometry_of_order() {
  static const lazy::Geometry* geometry = lazy::intern_contiguous(at::kLong, {});
  return geometry;
}

lazy::Value read_order(int device, Order order) {
  if (const lazy::Value* of_function = order_in_function()) return *of_function;
  return storage_of(order, device).value();
}

void write_order(int device, lazy::Value next, Order order) {
  if (lazy::Value* of_function = order_in_function()) {
    *of_function = std::move(next);
  } else {
    storage_of(order, device).set_value(std::move(next));
  }
}

void launch_exchanges(Order order) {
  if (has_disagreement()) return;
  std::vector<at::Tensor> kept;
  {
    const lazy::GraphLock lock;
    if (lazy::Recording::current() != nullptr) return;  // of a function, which runs later
    for (const auto& [key, tensor] : orders()) {
      if (key.first == order) kept.push_back(tensor);
    }
  }
  for (const at::Tensor& tensor : kept) {
    executor::launch(tensor, tensor.device().index(),
                     {.of_run = "a wait for other processes", .program = "exchanges"});
  }
}

}  // namespace torch_xla::dispatch
