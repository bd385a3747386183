// Batch normalization on xla. PyTorch's schema hides that running statistics are written; what is
// recorded here tells.
#include <ATen/OpMathType.h>
#include <ATen/ops/_native_batch_norm_legit.h>
#include <ATen/ops/_native_batch_norm_legit_no_training.h>
#include <torch/library.h>

#include "debug/metrics.h"
#include "dispatch/views/resize.h"
#include "ops/meta.h"
#include "ops/norm.h"
#include "ops/rules.h"
#include "ops/value_checks.h"

namespace torch_xla::dispatch {
namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_batch_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var, bool training, double momentum, double eps) {
  static const debug::Counter counter("xla::native_batch_norm");
  counter.add();
  const bool has_statistics = running_mean && running_mean->defined();
  if (!has_statistics) {
    return at::_native_batch_norm_legit(input, weight, bias, training, momentum, eps);
  }
  if (!training) {
    return at::_native_batch_norm_legit_no_training(input, weight, bias, *running_mean,
                                                    *running_var, momentum, eps);
  }
  at::Tensor mean = *running_mean;
  at::Tensor variance = *running_var;
  return at::_native_batch_norm_legit(input, weight, bias, mean, variance, training, momentum, eps);
}

std::tuple<at::Tensor&, at::Tensor&, at::Tensor&> native_batch_norm_out(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var, bool training, double momentum, double eps,
    at::Tensor& out, at::Tensor& save_mean, at::Tensor& save_invstd) {
  const auto results = dispatch::native_batch_norm(input, weight, bias, running_mean, running_var,
                                                   training, momentum, eps);
  write_out("native_batch_norm", out, std::get<0>(results), {input});
  write_out("native_batch_norm", save_mean, std::get<1>(results), {input});
  write_out("native_batch_norm", save_invstd, std::get<2>(results), {input});
  return {out, save_mean, save_invstd};
}

std::tuple<at::Tensor&, at::Tensor&, at::Tensor&> native_batch_norm_legit_out(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, at::Tensor& running_mean, at::Tensor& running_var,
    bool training, double momentum, double eps, at::Tensor& out, at::Tensor& save_mean,
    at::Tensor& save_invstd) {
  return dispatch::native_batch_norm_out(input, weight, bias, running_mean, running_var, training,
                                         momentum, eps, out, save_mean, save_invstd);
}

// (input, weight, bias, [running_mean, running_var,] training, momentum, eps) -> (out, mean,
// invstd)
void batch_norm_meta(ops::MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  bool usual = x.is_floating_point() && x.dim() >= 2 && x.size(1) > 0;
  for (size_t i = 1; usual && i + 3 < call.size(); ++i) {
    usual = !call.has(i) || call.tensor(i).sizes() == at::IntArrayRef(x.size(1));
  }
  if (!usual) return call.pytorch();
  const at::ScalarType dtype = at::toOpMathType(x.scalar_type());
  const bool training = call[call.size() - 3].toBool();
  const int64_t channels = training ? x.size(1) : 0;
  const auto statistics = [&] { return ops::meta_of_sizes(dtype, {channels}); };
  call.results({ops::meta_of_sizes(x, x.sizes().vec()), statistics(), statistics()});
}

const ops::Rules batch_norm_rules([](ops::Registry& r) {
  // A momentum of 1/steps changes at each step.
  r.add("aten::_native_batch_norm_legit.no_stats", ops::rules::batch_norm_without_statistics)
      .dynamic_floats = {4};
  r.all("aten::_native_batch_norm_legit") = {.meta = batch_norm_meta,
                                             .layout = ops::batch_norm_layout,
                                             .checks_numbers = ops::on_one_device};
});

TORCH_LIBRARY_IMPL(aten, XLA, m) {
  m.impl("native_batch_norm", TORCH_FN(native_batch_norm));
  m.impl("native_batch_norm.out", TORCH_FN(native_batch_norm_out));
  m.impl("_native_batch_norm_legit.out", TORCH_FN(native_batch_norm_legit_out));
}

}  // namespace
}  // namespace torch_xla::dispatch
