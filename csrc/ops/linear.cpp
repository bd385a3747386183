// A layer's product with its weights, and its gradients.
#include <array>
#include <optional>
#include <string>
#include <tuple>

#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>

#include "ops/common.h"
#include "ops/contraction.h"
#include "ops/host_rules.h"
#include "ops/matmul.h"
#include "ops/notation.h"
#include "ops/rules.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Value;
using hlo::Values;

// The letters of an input with `rank` dimensions, the last of which is `last`.
std::string input_letters(int64_t rank, char last) {
  std::string letters;
  for (int64_t i = 0; i + 1 < rank; ++i) letters += static_cast<char>('A' + i);
  return letters + last;
}

Values linear(Lowering& l) {
  const Value x = l.in(0), w = l.in(1);
  const std::string in = input_letters(x.rank(), 'k');
  const bool vector_weight = w.rank() == 1;
  std::string out = input_letters(x.rank(), 'n');
  if (vector_weight) out.pop_back();
  Value y = contract(x, in, w, vector_weight ? "k" : "nk", out);
  if (l.has(2)) y = y + hlo::broadcast_to(cast(l.in(2), y.dtype()), y.dims());
  return result(l, y);
}

// By PyTorch's kernel where that is faster.
Values linear_on_host(Lowering& l) {
  if (l.in(1).rank() == 1) return xla_code(l);
  const std::optional<Value> bias = l.has(2) ? std::optional(l.in(2)) : std::nullopt;
  const std::optional<Value> y = host_product({l.in(0)}, {l.in(1), true}, bias);
  return y ? Values{hlo::reshape(*y, l.out().dims)} : xla_code(l);
}

// (input, grad, weight, wanted gradients)
template <bool OnHost>
Values linear_backward(Lowering& l) {
  const Value x = conjugate(l.in(0)), grad = l.in(1), w = conjugate(l.in(2));
  const std::string in = input_letters(x.rank(), 'k');
  const std::string out = input_letters(x.rank(), 'n');
  const auto on_host = [](const Factor& left, const Factor& right) {
    return OnHost ? host_product(left, right) : std::nullopt;
  };
  Values grads(3);
  if (is_wanted(l, 0)) {
    const std::optional<Value> product = on_host({grad}, {w});
    grads[0] = product ? hlo::reshape(*product, x.dims()) : contract(grad, out, w, "nk", in);
  }
  if (is_wanted(l, 1)) {
    const std::optional<Value> product = on_host({grad, true}, {x});
    grads[1] = product ? *product : contract(grad, out, x, in, "nk");
  }
  if (is_wanted(l, 2)) {
    grads[2] = reduce_sum(cast(grad, accumulator(grad.dtype())), all_dims(grad.rank() - 1));
  }
  return results(l, grads);
}

// PyTorch has this operator for other devices alone.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_backward_on_cpu(const at::Tensor& input,
                                                                      const at::Tensor& grad,
                                                                      const at::Tensor& weight,
                                                                      std::array<bool, 3> wanted) {
  const auto rows = [](const at::Tensor& t) { return t.reshape({-1, t.size(-1)}); };
  std::tuple<at::Tensor, at::Tensor, at::Tensor> grads;
  if (wanted[0]) std::get<0>(grads) = at::matmul(grad, weight.conj());
  if (wanted[1]) std::get<1>(grads) = at::mm(rows(grad).t(), rows(input).conj());
  if (wanted[2]) std::get<2>(grads) = rows(grad).sum(0);
  return grads;
}

}  // namespace

namespace rules {

const RuleFunction linear = ops::linear;
const RuleFunction linear_on_host = ops::linear_on_host;

}  // namespace rules

const Rules linear_rules([](Registry& r) {
  r.add("aten::linear_backward", linear_backward<false>).on_cpu = linear_backward<true>;
  r.one("aten::linear_backward").reference =
      c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(linear_backward_on_cpu));
});

}  // namespace torch_xla::ops
