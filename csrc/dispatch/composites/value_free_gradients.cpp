// Gradients whose formula in PyTorch suits no program, since it reads values on the way (is there a
// zero? a nan?) or makes a sparse tensor: here the same answers in one program.
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_embedding_bag_backward_ops.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumprod.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/max.h>
#include <ATen/ops/median.h>
#include <ATen/ops/min.h>
#include <ATen/ops/nanmedian.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "dispatch/calls/composite.h"
#include "ops/meta.h"
#include "ops/rules.h"

namespace torch_xla::dispatch {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using Keys = c10::DispatchKeySet;
using OptionalDtype = std::optional<at::ScalarType>;

bool wants_gradient(const Tensor& self, OptionalDtype dtype = std::nullopt) {
  if (dtype && !at::isFloatingType(*dtype) && !at::isComplexType(*dtype)) return false;
  return wants_own_gradient(self);
}

Tensor converted(const Tensor& self, OptionalDtype dtype) {
  return dtype && *dtype != self.scalar_type() ? self.to(*dtype) : self;
}

// --- max, min, median of all ---------------------------------------------------------------

using OfAll = Tensor (*)(const Tensor&);

// The gradient is shared evenly by all elements that are equal to the result.
template <OfAll of_all>
struct SelectedOfAll : Function<SelectedOfAll<of_all>> {
  static Tensor forward(AutogradContext* context, const Tensor& self) {
    const at::AutoDispatchBelowADInplaceOrView below;
    Tensor result = of_all(self);
    context->save_for_backward({self, result});
    return result;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (!grads[0].defined()) return {Tensor()};
    const variable_list saved = context->get_saved_variables();
    const Tensor self = saved[0].detach(), result = saved[1].detach();
    const Tensor chosen = at::where(result.isnan(), self.isnan(), self.eq(result));
    return {at::where(chosen, grads[0] / chosen.sum(), 0)};
  }
};

template <class Op, OfAll of_all>
Tensor selected_of_all(Keys keys, const Tensor& self) {
  return wants_gradient(self) ? SelectedOfAll<of_all>::apply(self) : by_pytorch<Op>(keys, self);
}

// --- prod ----------------------------------------------------------------------------------

// The product by halves, of differentiable calls only: right for any number of zeros, and as often
// as it is differentiated. Of one element it is that element, as a call that has a derivative.
Tensor product_by_halves(Tensor x, int64_t dim) {
  if (x.size(dim) == 1) return x.pow(1);
  while (x.size(dim) > 1) {
    const int64_t half = x.size(dim) / 2;
    Tensor halved = x.narrow(dim, 0, half) * x.narrow(dim, half, half);
    if (x.size(dim) % 2 != 0) halved = at::cat({halved, x.narrow(dim, 2 * half, 1)}, dim);
    x = halved;
  }
  return x;
}

// Along one dimension.
struct Product : Function<Product> {
  static Tensor forward(AutogradContext* context, const Tensor& self, int64_t dim, bool keepdim) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({self});
    context->saved_data["dim"] = dim;
    context->saved_data["keepdim"] = keepdim;
    return at::prod(self, dim, keepdim);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor()};
    const Tensor self = context->get_saved_variables()[0];
    const int64_t dim = context->saved_data["dim"].toInt();
    const bool kept = context->saved_data["keepdim"].toBool();
    const Tensor grad = kept ? grads[0] : grads[0].unsqueeze(dim);
    if (at::GradMode::is_enabled() && self.size(dim) > 0) {
      std::vector<Tensor> results(1);
      const auto formula = [dim](const Tensors& x) -> Tensors {
        return {product_by_halves(x[0], dim)};
      };
      differentiable_gradients(formula, {self}, {grad}, results);
      return {results[0], Tensor(), Tensor()};
    }
    // The others' product: of the elements that are not zero, over this one; none where another
    // element is zero.
    const Tensor zero = self.eq(0);
    const Tensor divisor = at::where(zero, 1, self);
    const Tensor others = at::prod(divisor, dim, true) / divisor;
    const Tensor no_other_zero = zero.sum(dim, true).eq(zero);
    return {grad * at::where(no_other_zero, others, 0).conj(), Tensor(), Tensor()};
  }
};

Tensor prod(Keys keys, const Tensor& self, OptionalDtype dtype) {
  if (!wants_gradient(self, dtype)) return by_pytorch<at::_ops::prod>(keys, self, dtype);
  const Tensor x = converted(self, dtype);
  return x.dim() == 0 ? x.clone() : Product::apply(x.reshape({-1}), 0, /*keepdim=*/false);
}

Tensor prod_dim(Keys keys, const Tensor& self, int64_t dim, bool keepdim, OptionalDtype dtype) {
  if (!wants_gradient(self, dtype)) {
    return by_pytorch<at::_ops::prod_dim_int>(keys, self, dim, keepdim, dtype);
  }
  const Tensor x = converted(self, dtype);
  if (x.dim() != 0) return Product::apply(x, dim, keepdim);
  at::maybe_wrap_dim(dim, /*dim_post_expr=*/int64_t{0});
  return x.clone();
}

// --- cumprod -------------------------------------------------------------------------------

// Running products of differentiable calls only, each step doubling the reach.
Tensor running_product(Tensor x, int64_t dim) {
  const int64_t n = x.size(dim);
  for (int64_t reach = 1; reach < n; reach *= 2) {
    const Tensor later = x.narrow(dim, reach, n - reach), earlier = x.narrow(dim, 0, n - reach);
    x = at::cat({x.narrow(dim, 0, reach), later * earlier}, dim);
  }
  return x;
}

struct RunningProduct : Function<RunningProduct> {
  static Tensor forward(AutogradContext* context, const Tensor& self, int64_t dim) {
    const at::AutoDispatchBelowADInplaceOrView below;
    Tensor result = at::cumprod(self, dim);
    context->save_for_backward({self, result});
    context->saved_data["dim"] = dim;
    return result;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (!grads[0].defined()) return {Tensor(), Tensor()};
    const variable_list saved = context->get_saved_variables();
    const Tensor& self = saved[0];
    const int64_t dim = context->saved_data["dim"].toInt();
    if (at::GradMode::is_enabled() && self.numel() > 0) {
      std::vector<Tensor> results(1);
      const auto formula = [dim](const Tensors& x) -> Tensors {
        return {running_product(x[0], dim)};
      };
      differentiable_gradients(formula, {self}, {grads[0]}, results);
      return {results[0], Tensor()};
    }
    const Tensor x = self.conj(), grad = grads[0];
    const Tensor zero = x.eq(0);
    const Tensor zeros = zero.cumsum(dim);
    // Before the first zero: the products from here on, each over this element.
    const Tensor before = zeros.eq(0);
    const Tensor divisor = at::where(before, x, 1);
    const Tensor products = at::where(before, grad * saved[1].conj(), 0);
    const Tensor ahead = products.flip(dim).cumsum(dim).flip(dim) / divisor;
    // At the first zero: all that comes before, times the products from there to the second zero.
    // Beyond it nothing changes any product.
    const Tensor until_second = zeros.eq(1);
    const Tensor first = until_second.logical_and(zero);
    const Tensor after = at::where(until_second.logical_and(zero.logical_not()), x, 1).cumprod(dim);
    const Tensor total = at::where(until_second, grad * after, 0).sum(dim, /*keepdim=*/true);
    const Tensor at_zero = at::prod(divisor, dim, /*keepdim=*/true) * total;
    return {at::where(before, ahead, at::where(first, at_zero, 0)), Tensor()};
  }
};

Tensor cumprod(Keys keys, const Tensor& self, int64_t dim, OptionalDtype dtype) {
  if (!wants_gradient(self, dtype)) return by_pytorch<at::_ops::cumprod>(keys, self, dim, dtype);
  const Tensor x = converted(self, dtype);
  if (x.dim() != 0) return RunningProduct::apply(x, dim);
  at::maybe_wrap_dim(dim, /*dim_post_expr=*/int64_t{0});
  return x.clone();
}

Tensor& cumprod_(Keys keys, Tensor& self, int64_t dim, OptionalDtype dtype) {
  // The gradient needs the values that are overwritten.
  if (wants_gradient(self, dtype))
    return self.copy_(dispatch::cumprod(keys, self.clone(), dim, dtype));
  by_pytorch<at::_ops::cumprod_>(keys, self, dim, dtype);
  return self;
}

// --- masked_fill ---------------------------------------------------------------------------

// PyTorch selects the gradients under the mask for the value; `where` sums them in place.
bool fills_with_gradient(const Tensor& mask, const Tensor& value) {
  return wants_gradient(value) && value.dim() == 0 && mask.scalar_type() == at::kBool;
}

// A complex number without an imaginary part fills real tensors, any other is refused: only its
// value tells.
bool value_decides(const Tensor& self, const Tensor& value) {
  return value.is_complex() && value.dim() == 0 && !self.is_complex() && !wants_gradient(value);
}

Tensor masked_fill(Keys keys, const Tensor& self, const Tensor& mask, const Tensor& value) {
  if (value_decides(self, value)) return self.masked_fill(mask, value.item());
  if (!fills_with_gradient(mask, value)) {
    return by_pytorch<at::_ops::masked_fill_Tensor>(keys, self, mask, value);
  }
  return at::where(mask, value.to(self.options()), self);
}

Tensor& masked_fill_(Keys keys, Tensor& self, const Tensor& mask, const Tensor& value) {
  if (value_decides(self, value)) return self.masked_fill_(mask, value.item());
  if (fills_with_gradient(mask, value))
    return self.copy_(dispatch::masked_fill(keys, self, mask, value));
  by_pytorch<at::_ops::masked_fill__Tensor>(keys, self, mask, value);
  return self;
}

// --- tables of embeddings ------------------------------------------------------------------

// There are no sparse tensors here: `sparse=True` gives the same gradient, dense.
Tensor embedding_sparse_backward(const Tensor& grad, const Tensor& indices, int64_t num_weights,
                                 int64_t padding_idx, bool scale_grad_by_freq) {
  return at::embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq);
}

Tensor embedding_bag_backward(Keys keys, const Tensor& grad, const Tensor& indices,
                              const Tensor& offsets, const Tensor& offset2bag,
                              const Tensor& bag_size, const Tensor& maximum_indices,
                              c10::SymInt num_weights, bool scale_grad_by_freq, int64_t mode,
                              bool /*sparse*/, const std::optional<Tensor>& per_sample_weights,
                              int64_t padding_idx) {
  return by_pytorch<at::_ops::_embedding_bag_backward>(
      keys, grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights,
      scale_grad_by_freq, mode,
      /*sparse=*/false, per_sample_weights, padding_idx);
}

// --- shapes --------------------------------------------------------------------------------

// (self), of all elements
template <const char* const& name>
void extreme_of_none(const ops::Arguments& a) {
  TORCH_CHECK(a.back().toTensor().numel() != 0, name,
              "(): Expected reduction dim to be specified for input.numel() == 0. Specify the "
              "reduction dim with the 'dim' argument.");
}
constexpr const char* kMax = "max";
constexpr const char* kMin = "min";

// (self, mask, value): PyTorch's Python function takes no complex number for a real tensor. The
// CPU's kernel takes those without an imaginary part, and so does the check of numbers here.
void fill_with_any_number(ops::MetaCall& call) {
  if (call.has(2)) {
    const int64_t dims = call.tensor(2).dim();
    TORCH_CHECK(dims == 0,
                "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
                dims, " dimension(s).");
  }
  if (call[2].isComplexDouble() && !call.tensor(0).is_complex()) call[2] = int64_t{0};
  call.pytorch();
}

// (grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, ..)
void embedding_bag_backward_meta(ops::MetaCall& call) {
  const Tensor grad = call.tensor(0);
  if (!grad.is_floating_point() || grad.dim() != 2) return call.pytorch();
  call.results({ops::meta_of_sizes(grad, {call[6].toInt(), grad.size(1)})});
}

const ops::Rules value_free_gradients_rules([](ops::Registry& r) {
  namespace rules = ops::rules;
  r.all("aten::_embedding_bag_backward").meta = embedding_bag_backward_meta;
  r.add("aten::max", rules::max_of_all);
  r.add("aten::min", rules::min_of_all);
  r.add("aten::max.dim", rules::max_along);
  r.add("aten::min.dim", rules::min_along);
  r.one("aten::max").checks_call = extreme_of_none<kMax>;
  r.one("aten::min").checks_call = extreme_of_none<kMin>;
  r.add("aten::median", rules::median_of_all);
  r.add("aten::median.dim", rules::median_along);
  r.one("aten::median").meta = ops::in_any_order;
  for (const char* name : {"aten::median.dim", "aten::nanmedian.dim"}) {
    r.one(name).meta = ops::value_and_position<1>;
  }
  r.add("aten::nanmedian", rules::nanmedian_of_all);
  r.add("aten::nanmedian.dim", rules::nanmedian_along);
  r.add("aten::prod", rules::prod_of_all);
  r.add("aten::prod.dim_int", rules::prod_along);
  r.one("aten::prod.dim_int").dtype_of_out = true;
  r.add("aten::cumprod", rules::cumprod);
  r.all("aten::cumprod").dtype_of_out = true;
  for (const char* name : {"aten::masked_fill.Scalar", "aten::masked_fill.Tensor"}) {
    r.add(name, rules::masked_fill);
  }
  r.all("aten::masked_fill") = {
      .meta = fill_with_any_number,
      .narrow_floats = ops::NarrowFloats::Exact,
      .writes_repeated = true,
      .writes_expanded = ops::Traits::Deprecated{"masked_fill_", "tensor[mask] = scalar"}};
});

}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradXLA, m) {
  m.impl("embedding_sparse_backward", TORCH_FN(embedding_sparse_backward));
  m.impl("_embedding_bag_backward", TORCH_FN(embedding_bag_backward));
  m.impl("masked_fill.Tensor", TORCH_FN(masked_fill));
  m.impl("masked_fill_.Tensor", TORCH_FN(masked_fill_));
  m.impl("max", TORCH_FN((selected_of_all<at::_ops::max, at::max>)));
  m.impl("min", TORCH_FN((selected_of_all<at::_ops::min, at::min>)));
  m.impl("median", TORCH_FN((selected_of_all<at::_ops::median, at::median>)));
  m.impl("nanmedian", TORCH_FN((selected_of_all<at::_ops::nanmedian, at::nanmedian>)));
  m.impl("prod", TORCH_FN(prod));
  m.impl("prod.dim_int", TORCH_FN(prod_dim));
  m.impl("cumprod", TORCH_FN(cumprod));
  m.impl("cumprod_", TORCH_FN(cumprod_));
}

}  // namespace torch_xla::dispatch
