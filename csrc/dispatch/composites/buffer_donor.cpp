// xla::dynamo_set_buffer_donor_, donation by hand (executor/run/offers.h) as programs and graphs of
// torch.compile ask for it. Its schema is that of torch_xla 2.9.
#include <ATen/ops/clone.h>
#include <torch/library.h>

#include "executor/run/offers.h"
#include "lazy/tensor.h"

namespace torch_xla::dispatch {
namespace {

// By its schema the result shares no memory with the argument.
at::Tensor copy(const at::Tensor& t, bool /*should_donate*/) { return t.clone(); }

at::Tensor offer(const at::Tensor& t, bool should_donate) {
  {
    const lazy::GraphLock lock;
    executor::offer(lazy::expect_lazy(t, "dynamo_set_buffer_donor_").read(), should_donate);
  }
  return t.clone();
}

TORCH_LIBRARY_FRAGMENT(xla, m) {
  m.def("dynamo_set_buffer_donor_(Tensor t, bool should_donoate) -> Tensor");
}
TORCH_LIBRARY_IMPL(xla, XLA, m) { m.impl("dynamo_set_buffer_donor_", offer); }
TORCH_LIBRARY_IMPL(xla, CompositeExplicitAutograd, m) { m.impl("dynamo_set_buffer_donor_", copy); }
TORCH_LIBRARY_IMPL(xla, Autograd, m) {
  m.impl("dynamo_set_buffer_donor_", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace torch_xla::dispatch
