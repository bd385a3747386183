// Complex numbers, and the operators that only copy: identities and conversions.
#include <limits>
#include <numbers>

#include <ATen/ops/empty_like.h>

#include "ops/elementwise.h"
#include "ops/meta.h"
#include "ops/rules.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

Value last_dim_of_one(const Value& x) {
  Dims dims = x.dims();
  dims.push_back(1);
  return hlo::reshape(x, dims);
}

Values view_as_real(Lowering& l) {
  const Value x = l.in(0);
  const Values parts = {last_dim_of_one(hlo::real(x)), last_dim_of_one(hlo::imag(x))};
  return {hlo::concatenate(parts, x.rank())};
}

Values view_as_complex(Lowering& l) {
  const Value x = l.in(0);
  const int64_t last = x.rank() - 1;
  const auto part = [&](int64_t i) {
    return hlo::reshape(hlo::slice_dim(x, last, i, i + 1), l.out().dims);
  };
  return {hlo::complex(part(0), part(1))};
}

Values make_complex(Lowering& l) {
  const DType part = hlo::real_part(l.out().dtype);
  return {hlo::complex(operand(l, 0, part), operand(l, 1, part))};
}

Values polar(Lowering& l) {
  const DType part = hlo::real_part(l.out().dtype);
  const Value size = operand(l, 0, part);
  const Value angle = operand(l, 1, part);
  return {hlo::complex(size * hlo::cos(angle), size * hlo::sin(angle))};
}

Values angle(Lowering& l) {
  const Value x = l.in(0);
  if (hlo::is_complex(x.dtype())) return result(l, hlo::atan2(hlo::imag(x), hlo::real(x)));
  const Value y = cast(x, compute_dtype(l.out().dtype));
  const Value straight = hlo::select(hlo::less(y, 0), std::numbers::pi, hlo::like(y, 0));
  return result(l, hlo::select(hlo::is_nan(y), y, straight));
}

Values identity(Lowering& l) { return result(l, l.in(0)); }
// copy(self, src): src in the dtype and the shape of self.
Values copy(Lowering& l) { return result(l, l.in(1)); }

// (real, imag), and perhaps out
void check_complex(const Arguments& a) {
  const at::ScalarType real = a.tensor(0).scalar_type();
  const at::ScalarType imag = a.tensor(1).scalar_type();
  TORCH_CHECK(real == imag, "Expected object of scalar type ", real, " but got scalar type ", imag,
              " for second argument");
  if (a.size() < 3) return;
  const at::ScalarType out = a.tensor(2).scalar_type();
  TORCH_CHECK(out == at::toComplexType(real), "Expected object of scalar type ",
              at::toComplexType(real), " but got scalar type ", out, " for argument 'out'");
}

// (real, imag) or (abs, angle)
void complex_of_pair(MetaCall& call) {
  const at::Tensor x = call.tensor(0), y = call.tensor(1);
  const at::ScalarType dtype = x.scalar_type();
  const bool usual = dtype == at::kHalf || dtype == at::kFloat || dtype == at::kDouble;
  if (!usual || y.scalar_type() != dtype) return call.pytorch();
  call.results({meta_of_elementwise({x, y}, c10::toComplexType(dtype))});
}

void conj_physical_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  if (!x.is_complex()) return call.pytorch();
  call.results({at::empty_like(x)});
}

// PyTorch's code for all devices calls kernels that there are none of for Meta tensors.
void conj_physical_in_place_meta(MetaCall& call) { call.results({call.tensor(0)}); }

// (input): absolute values and the like keep their strides, but not this of complex elements.
at::MemoryFormat angle_layout(const Arguments& a) {
  return a.tensor(0).is_complex() ? at::MemoryFormat::Contiguous : at::MemoryFormat::Preserve;
}

void angle_meta(MetaCall& call) {
  const bool integers = c10::isIntegralType(call.tensor(0).scalar_type(), true);
  return integers ? call.pytorch() : parts_like_first(call);
}

}  // namespace

namespace rules {

const RuleFunction copy = ops::copy;
const RuleFunction view_as_real = ops::view_as_real;
const RuleFunction view_as_complex = ops::view_as_complex;
const RuleFunction conj = ops::unary_rule<conjugate>;
const RuleFunction neg_view = ops::unary_rule<hlo::neg>;

}  // namespace rules

const Rules elementwise_complex_rules([](Registry& r) {
  r.add("aten::view_as_real_copy", view_as_real);
  r.add("aten::view_as_complex_copy", view_as_complex);
  for (const char* name : {"aten::_conj_copy", "aten::_conj_physical", "aten::conj_physical"}) {
    r.add(name, unary_rule<conjugate>);
  }
  r.add("aten::_neg_view_copy", unary_rule<hlo::neg>);
  r.add("aten::complex", make_complex);
  r.add("aten::polar", polar);
  r.add("aten::angle", angle);

  // Recorded whole on purpose.
  for (const char* name :
       {"aten::clone", "aten::alias_copy", "aten::detach_copy", "aten::lift_fresh_copy"}) {
    r.add(name, identity);
  }

  r.all("aten::clone").made_like = true;
  r.all("aten::complex") = {.meta = complex_of_pair, .checks_call = check_complex};
  r.all("aten::polar") = {.meta = complex_of_pair, .autocast = Autocast::Float32};
  r.all("aten::angle") = {.meta = angle_meta, .layout = angle_layout};
  r.all("aten::_conj_physical").meta = conj_physical_meta;
  r.all("aten::conj_physical") = {.meta_in_place = conj_physical_in_place_meta,
                                  .writes_repeated = true};
});

}  // namespace torch_xla::ops
