// Householder's QR decomposition, and what is made of it, in loops over columns: for platforms
// whose programs cannot call LAPACK (cpu_kernels.cpp calls it on the CPU). Reflectors are LAPACK's:
// H = I - tau v v^H, where v is 0 above the diagonal, 1 on it and stored below it.
#include <algorithm>

#include <ATen/ops/empty.h>

#include "ops/common.h"
#include "ops/host/host_rules.h"
#include "ops/linalg.h"
#include "ops/lowering.h"
#include "ops/meta.h"
#include "ops/shape.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Type;
using hlo::Value;
using hlo::Values;

// x - tau v (v^H x), for each matrix.
Value reflected(const Value& x, const Value& v, const Value& tau) {
  const std::vector<int64_t> rows = {x.rank() - 2};
  const Value column = over(v, x, {-1});
  const Value shares = reduce_sum(conjugate(column) * x, rows);
  return x - over(tau, x, {-2, -1}) * column * over(shares, x, {-2});
}

struct Reflectors {
  Value vectors;  // below the diagonal; R on and above it
  Value tau;
};

Reflectors factor(const Value& x) {
  hlo::Builder& b = x.builder();
  const int64_t row_dim = x.rank() - 2, column_dim = x.rank() - 1;
  const int64_t steps = std::min(rows_of(x), columns_of(x));
  const Value no_tau = hlo::zero(b, {x.dtype(), with(batch_of(x), {steps})});
  if (x.type().elements() == 0) return {x, no_tau};
  const Values end = repeat(steps, {x, no_tau}, [&](const Value& i, auto s) -> Values {
    const Value& a = s[0];
    const Value column = pick(a, column_dim, i);
    const Value position = hlo::iota(b, {DType::S32, column.dims()}, row_dim);
    const Value here = hlo::broadcast_to(i, column.dims());
    const Value below = hlo::greater(position, here);
    const Value tail = hlo::select(below, column, zeros_like(column));
    const Value head = pick(column, row_dim, i);

    // Scaled, so that no square leaves the range of the dtype.
    const std::vector<int64_t> rows = {row_dim};
    const Value largest = reduce_max(
        hlo::abs(hlo::select(hlo::greater_equal(position, here), column, zeros_like(column))),
        rows);
    const Value scale = hlo::select(hlo::equal(largest, 0), hlo::like(largest, 1), largest);
    const auto square = [&](const Value& y, const Value& by) {
      const Value part = hlo::abs(y) / by;
      return part * part;
    };
    const Value rest = reduce_sum(square(tail, spread(scale, column.dims(), rows)), rows);
    const Value real_head = real_of(head);
    const Value norm = scale * hlo::sqrt(square(head, scale) + rest);
    const Value beta = hlo::select(hlo::less(real_head, 0), norm, -norm);
    // Nothing to reflect: H = I.
    Value done = hlo::equal(rest, 0);
    if (hlo::is_complex(x.dtype())) done = done & hlo::equal(hlo::imag(head), 0);
    const Value whole_beta = hlo::select(done, head, cast(beta, x.dtype()));
    const Value nonzero_beta = hlo::select(done, ones_like(head), whole_beta);
    const Value tau = hlo::select(done, zeros_like(head), (nonzero_beta - head) / nonzero_beta);
    const Value divisor = hlo::select(done, ones_like(head), head - nonzero_beta);
    const Value v = hlo::select(is_at(position, i), ones_like(column),
                                tail / spread(divisor, column.dims(), rows));

    // H^H from the left on the columns to the right.
    const Value at_column = column_positions(a);
    const Value reduced = reflected(a, v, conjugate(tau));
    const Value stored = hlo::select(
        below, v, hlo::select(is_at(position, i), spread(whole_beta, column.dims(), rows), column));
    const Value next = hlo::select(hlo::greater(at_column, hlo::broadcast_to(i, a.dims())), reduced,
                                   hlo::select(is_at(at_column, i), over(stored, a, {-1}), a));
    return {next, put(s[1], row_dim, i, tau)};
  });
  return {end[0], end[1]};
}

// Q x, or Q^H x, where Q is the product of the reflectors.
Value apply(const Reflectors& q, const Value& x, bool of_adjoint) {
  const int64_t steps = q.tau.dim(q.tau.rank() - 1);
  if (x.type().elements() == 0) return x;
  return repeat(steps, {x, q.vectors, q.tau}, [&](const Value& number, auto s) -> Values {
    const Value &vectors = s[1], &taus = s[2];
    const Value i = of_adjoint ? number : (steps - 1.0) - number;
    const Value column = pick(vectors, vectors.rank() - 1, i);
    const Value position = hlo::iota(x.builder(), {DType::S32, column.dims()}, column.rank() - 1);
    const Value below = hlo::greater(position, hlo::broadcast_to(i, column.dims()));
    const Value v = hlo::select(
        below, column, hlo::select(is_at(position, i), ones_like(column), zeros_like(column)));
    const Value tau = pick(taus, taus.rank() - 1, i);
    return {reflected(s[0], v, of_adjoint ? conjugate(tau) : tau), vectors, taus};
  })[0];
}

// The first columns of Q.
Value columns_of_product(const Reflectors& q, int64_t count) {
  const Value& v = q.vectors;
  const Type type{v.dtype(), with(batch_of(v), {rows_of(v), count})};
  return apply(q, identity_like(hlo::zero(v.builder(), type)), false);
}

// aten::geqrf(self) -> (a, tau)
Values geqrf(Lowering& l) {
  const Reflectors q = factor(l.in(0));
  return {q.vectors, q.tau};
}

// aten::linalg_householder_product(input, tau)
Values householder_product(Lowering& l) {
  return {columns_of_product({l.in(0), l.in(1)}, columns_of(l.in(0)))};
}

// aten::linalg_qr(A, mode) -> (Q, R)
Values linalg_qr(Lowering& l) {
  const Type q_type = l.out(0), r_type = l.out(1);
  const Reflectors q = factor(l.in(0));
  const int64_t rows = r_type.dims[r_type.dims.size() - 2];
  const Value r = on_triangle(hlo::slice_dim(q.vectors, q.vectors.rank() - 2, 0, rows),
                              /*lower=*/false);
  if (l.text(1) == "r") return {hlo::zero(l.b, q_type), r};
  return {columns_of_product(q, q_type.dims.back()), r};
}

// aten::ormqr(self, input2 = tau, input3, left, transpose)
Values ormqr(Lowering& l) {
  const Reflectors q = {l.in(0), l.in(1)};
  const Value x = l.in(2);
  const bool left = l.flag(3), of_adjoint = l.flag(4);
  return {left ? apply(q, x, of_adjoint) : adjoint(apply(q, adjoint(x), !of_adjoint))};
}

}  // namespace

Value orthonormal_basis(const Value& x, int64_t count) {
  return columns_of_product(factor(x), count);
}

namespace {

void geqrf_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  TORCH_CHECK(x.dim() >= 2, "torch.geqrf: input must have at least 2 dimensions.");
  std::vector<int64_t> tau(x.sizes().begin(), x.sizes().end() - 2);
  tau.push_back(std::min(x.size(-2), x.size(-1)));
  call.results({at::empty(x.mT().sizes(), x.options()).mT(), meta_of_sizes(x, tau)});
}

}  // namespace

const Rules registered([](Registry& r) {
  r.add("aten::geqrf", geqrf).on_cpu = faster_on_host<>;
  r.add("aten::linalg_householder_product", householder_product).on_cpu = faster_on_host<>;
  r.add("aten::linalg_qr", linalg_qr).on_cpu = faster_on_host<>;
  r.add("aten::ormqr", ormqr).on_cpu = faster_on_host<>;

  r.all("aten::geqrf") = {.meta = geqrf_meta, .autocast = Autocast::Float32};
  for (const char* name : {"aten::linalg_householder_product", "aten::linalg_qr", "aten::ormqr",
                           "aten::orgqr", "aten::qr"}) {
    r.all(name).autocast = Autocast::Float32;
  }
});

}  // namespace torch_xla::ops
