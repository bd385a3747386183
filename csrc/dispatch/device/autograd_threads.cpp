#include "dispatch/device/autograd_threads.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "executor/run/runtime.h"

namespace torch_xla::dispatch {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Has a backward pass that does nothing.
struct Nothing : torch::autograd::Function<Nothing> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& input) {
    return at::empty({0}, input.options());
  }
  static variable_list backward(AutogradContext*, const variable_list&) { return {at::Tensor()}; }
};

}  // namespace

void drain_autograd_threads() {
  executor::Runtime* runtime = executor::Runtime::get_if_made();
  if (runtime == nullptr) return;
  for (int i = 0; i < runtime->device_count(); ++i) {
    const at::Device device(at::kXLA, static_cast<c10::DeviceIndex>(i));
    // A thread takes its next task only once it has let go of the last; no tensor of this one is
    // known to Python.
    const at::Tensor input = at::empty({0}, device).requires_grad_();
    const at::Tensor output = Nothing::apply(input);
    torch::autograd::backward({output}, {at::empty({0}, device)});
  }
}

}  // namespace torch_xla::dispatch
