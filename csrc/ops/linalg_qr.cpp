// Householder's QR decomposition, and what is made of it, in loops over panels and their columns:
// for platforms whose programs cannot call LAPACK. CPU programs call it (Rule::on_cpu).
#include <algorithm>

#include "ops/common.h"
#include "ops/host_rules.h"
#include "ops/linalg.h"
#include "ops/lowering.h"
#include "ops/meta.h"
#include "ops/rearrange.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Type;
using hlo::Value;
using hlo::Values;

}  // namespace

Reflector reflector_of(const Value& column, const Value& here) {
  const std::vector<int64_t> rows = {column.rank() - 1};
  const Value position = last_positions(column), is_here = is_at(position, here);
  const Value below = hlo::greater(position, hlo::broadcast_to(here, column.dims()));
  const Value tail = hlo::select(below, column, zeros_like(column));
  const Value head = pick(column, rows[0], here);

  // Scaled, so that no square leaves the range of the dtype.
  const Value largest =
      reduce_max(hlo::abs(hlo::select(below | is_here, column, zeros_like(column))), rows);
  const Value scale = hlo::select(hlo::equal(largest, 0), hlo::like(largest, 1), largest);
  const auto square = [&](const Value& y, const Value& by) {
    return hlo::square(hlo::abs(y) / by);
  };
  const Value rest = reduce_sum(square(tail, spread(scale, column.dims(), rows)), rows);
  const Value real_head = real_of(head);
  const Value norm = scale * hlo::sqrt(square(head, scale) + rest);
  const Value beta = hlo::select(hlo::less(real_head, 0), norm, -norm);
  // Nothing to reflect: H = I.
  Value done = hlo::equal(rest, 0);
  if (hlo::is_complex(column.dtype())) done = done & hlo::equal(hlo::imag(head), 0);
  const Value whole_beta = hlo::select(done, head, cast(beta, column.dtype()));
  const Value nonzero_beta = hlo::select(done, ones_like(head), whole_beta);
  const Value tau = hlo::select(done, zeros_like(head), (nonzero_beta - head) / nonzero_beta);
  const Value divisor = hlo::select(done, ones_like(head), head - nonzero_beta);
  const Value v =
      hlo::select(is_here, ones_like(column), tail / spread(divisor, column.dims(), rows));
  return {
      v, tau,
      hlo::select(below, v, hlo::select(is_here, spread(whole_beta, column.dims(), rows), column))};
}

Value row_products(const Value& x, const Value& vector) {
  return remove_dim(product(x, insert_dim(vector, vector.rank())), x.rank() - 1);
}

namespace {

// Columns `first`, .. of a matrix, each of them a row here, reduced one by one.
Reflectors factor_panel(const Value& x, const Value& first) {
  const int64_t column_dim = x.rank() - 2;
  const Value no_tau = hlo::zero(x.builder(), {x.dtype(), with(batch_of(x), {rows_of(x)})});
  const Values end = repeat(rows_of(x), {x, no_tau, first}, [&](const Value& i, auto s) -> Values {
    const Value& a = s[0];
    const Reflector h = reflector_of(pick(a, column_dim, i), s[2] + i);
    // H^H from the left on the columns to the right.
    const Value sums = row_products(a, conjugate(h.v));
    const Value shares = sums * over(conjugate(h.tau), sums, {-1});
    const Value reduced = a - over(shares, a, {-1}) * over(h.v, a, {-2});
    const Value at_column = row_positions(a);
    const Value next = hlo::select(hlo::greater(at_column, hlo::broadcast_to(i, a.dims())), reduced,
                                   hlo::select(is_at(at_column, i), over(h.stored, a, {-2}), a));
    return {next, put(s[1], column_dim, i, h.tau), s[2]};
  });
  return {end[0], end[1]};
}

// The reflectors of a panel, one after the other: I - V T V^H.
struct Block {
  Value v;  // [.., rows, width]
  Value t;  // triangular

  // `x` is a panel as it is factored: its reflectors lie below row `first` + i.
  Block(const Reflectors& panel, const Value& first) {
    const Value &x = panel.vectors, distance = column_positions(x) - row_positions(x);
    const Value here = hlo::broadcast_to(first, distance.dims());
    v = transposed(
        hlo::select(hlo::greater(distance, here), x,
                    hlo::select(hlo::equal(distance, here), ones_like(x), zeros_like(x))));
    // T = (1 / tau + the part of V^H V above the diagonal)^-1, where tau may be 0.
    const Value gram = product(adjoint(v), v), unit = identity_like(gram);
    const Value tau = over(panel.tau, gram, {-1});
    const Value above = on_triangle(gram, /*lower=*/false) * (1.0 - unit);
    hlo::TriangularOptions upper;
    upper.lower = false;
    upper.unit_diagonal = true;
    t = hlo::triangular_solve(unit + tau * above, tau * unit, upper);
  }

  // Q x or Q^H x.
  Value times(const Value& x, bool of_adjoint) const {
    return x - product(v, product(of_adjoint ? adjoint(t) : t, product(adjoint(v), x)));
  }
};

Reflectors factor(const Value& given) {
  const int64_t row_dim = given.rank() - 2, column_dim = given.rank() - 1;
  const int64_t columns = columns_of(given), steps = std::min(rows_of(given), columns);
  const Panels panels(steps);
  const Value no_tau =
      hlo::zero(given.builder(), {given.dtype(), with(batch_of(given), {panels.whole()})});
  if (given.type().elements() == 0) return {given, no_tau};
  const Value x = grown(given, rows_of(given), std::max(columns, panels.whole()));
  const Values end = repeat(panels.count, {x, no_tau}, [&](const Value& k, auto s) -> Values {
    const Value first = k * static_cast<double>(panels.width);
    const Reflectors panel =
        factor_panel(transposed(cut(s[0], column_dim, first, panels.width)), first);
    const Value column = column_positions(s[0]);
    const Value next = hlo::broadcast_to(first + static_cast<double>(panels.width), column.dims());
    const Value reduced =
        hlo::select(hlo::less(column, next), s[0], Block(panel, first).times(s[0], true));
    return {write(reduced, transposed(panel.vectors), column_dim, first),
            write(s[1], panel.tau, row_dim, first)};
  });
  return {grown(end[0], rows_of(given), columns),
          pad_dim(end[1], row_dim, 0, steps - panels.whole())};
}

}  // namespace

Value apply(const Reflectors& q, const Value& x, bool of_adjoint) {
  const int64_t last = q.tau.rank() - 1, steps = q.tau.dim(last);
  const Panels panels(steps);
  if (x.type().elements() == 0 || steps == 0) return x;
  const Value vectors =
      pad_dim(hlo::slice_dim(q.vectors, last + 1, 0, steps), last + 1, 0, panels.whole() - steps);
  const Value taus = pad_dim(q.tau, last, 0, panels.whole() - steps);
  return repeat(panels.count, {x, vectors, taus}, [&](const Value& number, auto s) -> Values {
    const Value k = of_adjoint ? number : (panels.count - 1.0) - number;
    const Value first = k * static_cast<double>(panels.width);
    const Reflectors panel = {transposed(cut(s[1], last + 1, first, panels.width)),
                              cut(s[2], last, first, panels.width)};
    return {Block(panel, first).times(s[0], of_adjoint), s[1], s[2]};
  })[0];
}

namespace {

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

Value triangle_of(const Value& x) {
  const int64_t steps = std::min(rows_of(x), columns_of(x));
  return on_triangle(hlo::slice_dim(factor(x).vectors, x.rank() - 2, 0, steps), /*lower=*/false);
}

namespace {

void geqrf_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  TORCH_CHECK(x.dim() >= 2, "torch.geqrf: input must have at least 2 dimensions.");
  std::vector<int64_t> tau(x.sizes().begin(), x.sizes().end() - 2);
  tau.push_back(std::min(x.size(-2), x.size(-1)));
  call.results({meta_of_columns(x), meta_of_sizes(x, tau)});
}

// Returns whether Householder's vectors and their factors tau fit.
bool are_reflectors(const at::Tensor& vectors, const at::Tensor& tau) {
  return vectors.dim() >= 2 && tau.dim() == vectors.dim() - 1 &&
         tau.scalar_type() == vectors.scalar_type() && tau.size(-1) <= vectors.size(-1) &&
         tau.sizes().slice(0, tau.dim() - 1) == vectors.sizes().slice(0, vectors.dim() - 2);
}

// (input, tau)
void householder_product_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  const bool usual = are_reflectors(x, call.tensor(1)) && x.size(-2) >= x.size(-1);
  if (!usual) return call.pytorch();
  call.results({meta_of_columns(x)});
}

// (self, input2 = tau, input3, left, transpose)
void ormqr_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0), tau = call.tensor(1), y = call.tensor(2);
  const bool usual = are_reflectors(x, tau) && y.dim() == x.dim() &&
                     y.scalar_type() == x.scalar_type() &&
                     y.sizes().slice(0, y.dim() - 2) == x.sizes().slice(0, x.dim() - 2);
  const int64_t side = call[3].toBool() ? -2 : -1;
  if (!usual || y.size(side) < tau.size(-1) || y.size(side) != x.size(-2)) return call.pytorch();
  call.results({meta_of_columns(y)});
}

}  // namespace

const Rules linalg_qr_rules([](Registry& r) {
  r.add("aten::geqrf", geqrf).on_cpu = faster_on_host<>;
  r.add("aten::linalg_householder_product", householder_product).on_cpu = faster_on_host<>;
  r.add("aten::linalg_qr", linalg_qr).on_cpu = faster_on_host<>;
  r.add("aten::ormqr", ormqr).on_cpu = faster_on_host<>;

  r.all("aten::geqrf") = {.meta = geqrf_meta, .autocast = Autocast::Float32};
  r.all("aten::linalg_householder_product") = {.meta = householder_product_meta,
                                               .autocast = Autocast::Float32};
  r.all("aten::ormqr") = {.meta = ormqr_meta, .autocast = Autocast::Float32};
  for (const char* name : {"aten::linalg_qr", "aten::orgqr", "aten::qr"}) {
    r.all(name).autocast = Autocast::Float32;
  }
});

}  // namespace torch_xla::ops
