#include "dispatch/replicas/order.h"

#include <map>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include "dispatch/replicas/groups.h"
#include "executor/step/sync.h"
#include "lazy/lock.h"
#include "lazy/recording.h"
#include "lazy/tensor.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

std::map<int, at::Tensor>& orders() {  // guarded by the graph lock
  static auto& all = *new std::map<int, at::Tensor>;
  return all;
}

// Data from the start, so that the first program is that of the later steps.
lazy::Storage& order_of(int device) {
  at::Tensor& order = orders()[device];
  if (!order.defined()) {
    const c10::Device xla(c10::DeviceType::XLA, static_cast<c10::DeviceIndex>(device));
    order = at::zeros({}, at::kLong).to(xla);
  }
  return lazy::as_lazy(order)->lazy_storage();
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

lazy::Value read_order(int device) {
  if (const lazy::Value* order = order_in_function()) return *order;
  return order_of(device).value();
}

void write_order(int device, lazy::Value next) {
  if (lazy::Value* order = order_in_function()) {
    *order = std::move(next);
  } else {
    order_of(device).set_value(std::move(next));
  }
}

void launch_exchanges() {
  if (has_disagreement()) return;
  std::vector<std::pair<int, lazy::Value>> waiting;
  {
    const lazy::GraphLock lock;
    if (lazy::Recording::current() != nullptr) return;  // of a function, which runs later
    for (const auto& [device, order] : orders()) {
      lazy::Value value = lazy::expect_lazy(order, "exchange").read();
      if (!value.node->is_data()) waiting.emplace_back(device, std::move(value));
    }
  }
  for (auto& [device, value] : waiting) {
    std::vector<lazy::Value> values = {std::move(value)};
    executor::materialize(values, device,
                          {.of_run = "a wait for other processes", .program = "exchanges"});
  }
}

}  // namespace torch_xla::dispatch
