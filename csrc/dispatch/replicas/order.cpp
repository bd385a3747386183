#include "dispatch/replicas/order.h"

#include <map>

#include <ATen/ops/zeros.h>

namespace torch_xla::dispatch {
namespace {

std::map<int, at::Tensor>& orders() {  // guarded by the graph lock
  static auto& all = *new std::map<int, at::Tensor>;
  return all;
}

}  // namespace

at::Tensor order_of_exchanges(int device) {
  at::Tensor& order = orders()[device];
  // Data, so that the first program is that of the later steps.
  if (!order.defined()) {
    order = at::zeros({}, at::kLong)
                .to(c10::Device(c10::DeviceType::XLA, static_cast<c10::DeviceIndex>(device)));
  }
  return order;
}

bool has_order_of_exchanges(int device) { return orders().contains(device); }

}  // namespace torch_xla::dispatch
