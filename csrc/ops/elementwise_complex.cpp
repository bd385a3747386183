// Complex numbers, and the operators that only copy: identities and conversions.
#include <limits>
#include <numbers>

#include "ops/elementwise.h"

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

}  // namespace

void register_complex(Registry& r) {
  for (const char* name : {"aten::view_as_real", "aten::view_as_real_copy"}) {
    r.add(name, view_as_real);
  }
  for (const char* name : {"aten::view_as_complex", "aten::view_as_complex_copy"}) {
    r.add(name, view_as_complex);
  }
  for (const char* name :
       {"aten::_conj", "aten::_conj_copy", "aten::_conj_physical", "aten::conj_physical"}) {
    r.add(name, unary_rule<conjugate>);
  }
  for (const char* name : {"aten::_neg_view", "aten::_neg_view_copy"}) {
    r.add(name, unary_rule<hlo::neg>);
  }
  r.add("aten::complex", make_complex);
  r.add("aten::polar", polar);
  r.add("aten::angle", angle);
}

// Recorded whole on purpose: clone, complex, polar, and views that are read.
void register_copies(Registry& r) {
  r.add("aten::copy", copy);
  for (const char* name : {"aten::clone", "aten::alias", "aten::alias_copy", "aten::detach",
                           "aten::detach_copy", "aten::lift_fresh_copy"}) {
    r.add(name, identity);
  }
}

}  // namespace torch_xla::ops
