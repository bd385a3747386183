// PyTorch looks at the quantiles that are asked for on the CPU only; the rest of the operators is
// its own.
#include <ATen/core/Tensor.h>
#include <ATen/ops/nanquantile_native.h>
#include <ATen/ops/quantile_native.h>
#include <torch/library.h>

#include "dispatch/judge/known_values.h"
#include "lazy/lock.h"
#include "ops/registry.h"

namespace torch_xla::dispatch {
namespace {

using at::Tensor;

using Quantile = Tensor(const Tensor&, const Tensor&, std::optional<int64_t>, bool,
                        std::string_view);

template <Quantile* of>
Tensor checked(const Tensor& self, const Tensor& q, std::optional<int64_t> dim, bool keepdim,
               std::string_view interpolation) {
  {
    const lazy::GraphLock lock;
    const std::optional<Tensor> known = known_values(q);
    TORCH_CHECK(!known || known->ge(0).logical_and_(known->le(1)).all().item<bool>(),
                "quantile() q values must be in the range [0, 1]");
  }
  return of(self, q, dim, keepdim, interpolation);
}

void register_quantiles(torch::Library& library) {
  library.impl("quantile", TORCH_FN(checked<at::native::quantile>));
  library.impl("nanquantile", TORCH_FN(checked<at::native::nanquantile>));
}

const ops::Rules quantile_rules([](ops::Registry& r) {
  for (const char* name : {"aten::quantile", "aten::nanquantile"}) {
    r.all(name).autocast = ops::Autocast::Float32;
  }
});

TORCH_LIBRARY_IMPL(aten, AutogradXLA, m) { register_quantiles(m); }
TORCH_LIBRARY_IMPL(aten, XLA, m) { register_quantiles(m); }

}  // namespace
}  // namespace torch_xla::dispatch
