// bernoulli on xla: draws of 0 and 1, in the dtype of out= where that is given.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "ops/rules.h"
#include "ops/value_checks.h"

namespace torch_xla::dispatch {
namespace {

at::Tensor& bernoulli_out(const at::Tensor& self, std::optional<at::Generator> generator,
                          at::Tensor& out) {
  return out.resize_(self.sizes()).bernoulli_(self, std::move(generator));
}

// (self, p, generator)
void check_number(const ops::Arguments& a) {
  const double p = a[1].toScalar().toDouble();
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
}

// (self, generator), (self, p, generator)
bool are_no_probabilities(const ops::KnownArguments& a) {
  const bool of_self = a.size() < 3 || !a[1].isTensor();
  return ops::exceeds(a, a[of_self ? 0 : 1], 0, 1);
}

const ops::Rules bernoulli_rules([](ops::Registry& r) {
  r.add("aten::bernoulli", ops::rules::bernoulli);
  r.add("aten::bernoulli.Tensor", ops::rules::bernoulli_tensor);
  r.add("aten::bernoulli.p", ops::rules::bernoulli_number).dynamic_floats = {1};
  r.all("aten::bernoulli").suspects_values = are_no_probabilities;
  r.one("aten::bernoulli.p").checks_numbers = check_number;
});

TORCH_LIBRARY_IMPL(aten, XLA, m) { m.impl("bernoulli.out", TORCH_FN(bernoulli_out)); }

}  // namespace
}  // namespace torch_xla::dispatch
