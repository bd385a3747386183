// Singular values by the polar factor, small problems by Jacobi's rotations, and the matrix
// exponential: for platforms whose programs cannot call LAPACK. CPU programs call it
// (Rule::on_cpu).
#include <algorithm>
#include <cmath>

#include <ATen/ops/empty.h>

#include "ops/common.h"
#include "ops/gather.h"
#include "ops/host_rules.h"
#include "ops/lowering.h"
#include "ops/meta.h"
#include "ops/rearrange.h"
#include "ops/spectral.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Type;
using hlo::Value;
using hlo::Values;

Value squares(const Value& x) { return real_of(conjugate(x) * x); }
Value sum_of_rows(const Value& x) {
  const std::vector<int64_t> rows = {x.rank() - 2};
  return reduce_sum(x, rows);
}

}  // namespace

Value largest_column_sum(const Value& x) {
  const std::vector<int64_t> columns = {x.rank() - 2};
  return reduce_max(sum_of_rows(hlo::abs(x)), columns);
}

namespace {

Value rows_from(const Value& x, int64_t begin, int64_t end) {
  return hlo::slice_dim(x, x.rank() - 2, begin, end);
}
Value columns_from(const Value& x, int64_t begin, int64_t end) {
  return hlo::slice_dim(x, x.rank() - 1, begin, end);
}
Value largest_of(const Value& x) { return x.rank() == 0 ? x : reduce_max(x, all_dims(x.rank())); }
Value real_over(const Value& columns, const Value& x) {
  return over(cast(columns, x.dtype()), x, {-2});
}

// --- one-sided rotations (Hestenes) ------------------------------------------------------------

// Two sets of columns, in which the first `rows` elements count, after each pair was turned such
// that it becomes orthogonal; and the distance of the worst pair from that.
struct Turned {
  Value left, right, worst;
};
Turned turn(const Value& left, const Value& right, int64_t rows, double tolerance) {
  const Value a = rows_from(left, 0, rows), b = rows_from(right, 0, rows);
  const Value alpha = sum_of_rows(squares(a)), beta = sum_of_rows(squares(b));
  const Value gamma = sum_of_rows(conjugate(a) * b);
  const Value size = hlo::abs(gamma), scale = hlo::sqrt(alpha) * hlo::sqrt(beta);
  const Value turns = hlo::greater(size, scale * tolerance);
  const Value one = ones_like(size);
  const Value divisor = hlo::select(turns, size, one);
  // The tangent of the smaller angle.
  const Value zeta = (beta - alpha) / (divisor * 2.0);
  const Value sign = hlo::select(hlo::less(zeta, 0), -one, one);
  const Value t = sign / (hlo::abs(zeta) + hlo::sqrt(zeta * zeta + 1.0));
  const Value c = one / hlo::sqrt(t * t + 1.0);
  const Value cosine = hlo::select(turns, c, one);
  const Value sine = hlo::select(turns, c * t, zeros_like(t));
  // The right column is turned in the complex plane first, so that gamma is real.
  const Value phase =
      hlo::select(turns, conjugate(gamma) / cast(divisor, gamma.dtype()), ones_like(gamma));
  const Value partner = right * over(phase, right, {-2});
  const Value c_all = real_over(cosine, left), s_all = real_over(sine, left);
  const Value measure =
      hlo::select(turns, size / hlo::select(hlo::equal(scale, 0), one, scale), zeros_like(size));
  return {c_all * left - s_all * partner, s_all * left + c_all * partner, largest_of(measure)};
}

// The next pairs of a tournament: the first column stays, the others go around.
std::pair<Value, Value> next_pairs(const Value& left, const Value& right) {
  const int64_t count = columns_of(left), dim = left.rank() - 1;
  if (count == 1) return {left, right};
  const Values tops = {columns_from(left, 0, 1), columns_from(right, 0, 1),
                       columns_from(left, 1, count - 1)};
  const Values bottoms = {columns_from(right, 1, count), columns_from(left, count - 1, count)};
  return {hlo::concatenate(tops, dim), hlo::concatenate(bottoms, dim)};
}

struct Orthogonal {
  Value columns;   // x times `rotation`: orthogonal to each other
  Value rotation;  // unitary
};

Orthogonal orthogonalize(const Value& x) {
  hlo::Builder& b = x.builder();
  const int64_t rows = rows_of(x), columns = columns_of(x), even = columns + columns % 2;
  const int64_t half = even / 2, column_dim = x.rank() - 1;
  // x over the identity: what turns the one turns the other.
  const Value padded = pad_dim(x, column_dim, 0, even - columns);
  const Value unit = identity_like(hlo::zero(b, {x.dtype(), with(batch_of(x), {even, even})}));
  const Values parts = {padded, unit};
  const Value whole = hlo::concatenate(parts, x.rank() - 2);
  const double tolerance = epsilon_of(x.dtype()) * std::sqrt(static_cast<double>(rows));
  constexpr double kSweeps = 40;  // some ten do
  const DType real = real_of(x).dtype();
  const Values start = {hlo::scalar_int(b, 0, DType::S32), hlo::scalar(b, 1, real),
                        columns_from(whole, 0, half), columns_from(whole, half, even)};
  const Values end = hlo::while_loop(
      start,
      [&](std::span<const Value> s) { return hlo::less(s[0], kSweeps) & hlo::greater(s[1], 0.0); },
      [&](std::span<const Value> s) -> Values {
        // Each column meets each other one once, and is back in its place.
        const Values swept =
            repeat(std::max<int64_t>(even - 1, 1), {hlo::scalar(b, 0, real), s[2], s[3]},
                   [&](const Value&, auto state) -> Values {
                     const Turned turned = turn(state[1], state[2], rows, tolerance);
                     const auto [left, right] = next_pairs(turned.left, turned.right);
                     return {hlo::max(state[0], turned.worst), left, right};
                   });
        return {s[0] + 1.0, swept[0], swept[1], swept[2]};
      });
  const Values both = {end[2], end[3]};
  const Value turned = columns_from(hlo::concatenate(both, column_dim), 0, columns);
  return {rows_from(turned, 0, rows), rows_from(turned, rows, rows + columns)};
}

}  // namespace

std::pair<Value, Value> sorted(const Value& values, bool descending) {
  const int64_t dim = values.rank() - 1;
  const Values given = {values, hlo::iota(values.builder(), values.type().with(DType::S32), dim)};
  const Values found = hlo::sort(given, dim, true, [&](std::span<const Value> e) {
    return descending ? hlo::greater(e[0], e[1]) : hlo::less(e[0], e[1]);
  });
  return {found[0], found[1]};
}

namespace {

Value columns_in(const Value& order, const Value& x, const Target& target) {
  return take_along(x, x.rank() - 1, over(order, x, {-2}), target);
}

// --- rules -------------------------------------------------------------------------------------

// --- singular values ---------------------------------------------------------------------------

// H of X = Q H, Q unitary, H not negative, for square matrices. Q by products of matrices alone:
// odd polynomials of X move its singular values to 1. The first one grows small ones fast, and
// keeps those once near 1 in 0.68 .. 1.21, so that none is lost beside others (Nakatsukasa and
// Higham 2012); the second one (Newton and Schulz) makes 1 of these. What is smaller than rounding
// errors of the largest need not get there: it is as small in H.
Value polar_factor(const Value& x) {
  const Value bound = hlo::sqrt(largest_column_sum(x)) * hlo::sqrt(largest_column_sum(adjoint(x)));
  const Value divisor = hlo::select(hlo::equal(bound, 0), ones_like(bound), bound);
  const auto polynomial = [](double first, double third, double fifth) {
    return [=](const Value&, std::span<const Value> s) -> Values {
      const Value gram = product(adjoint(s[0]), s[0]);
      return {s[0] * first + product(s[0], gram * third + product(gram, gram) * fifth)};
    };
  };
  const bool wide = real_of(x).dtype() == DType::F64;
  Values q = {x / over(cast(divisor, x.dtype()), x, {-2, -1})};
  q = repeat(wide ? 32 : 16, q, polynomial(3.4445, -4.7750, 2.0315));
  q = repeat(wide ? 4 : 3, q, polynomial(15.0 / 8, -10.0 / 8, 3.0 / 8));
  const Value h = product(adjoint(q[0]), x);
  return (h + adjoint(h)) * 0.5;
}

// U, S and V of a matrix that is not wider than high; U has `count` columns.
struct Singular {
  Value u, s, v;
};

Singular by_rotations(const Value& x, int64_t count, const Target& target) {
  const Orthogonal found = orthogonalize(x);
  const auto [values, order] = sorted(hlo::sqrt(sum_of_rows(squares(found.columns))), true);
  const Value columns = columns_in(order, found.columns, target);
  const Value none = hlo::equal(values, 0);
  const Value u = columns / real_over(hlo::select(none, ones_like(values), values), columns);
  // Columns of length zero, and those beyond the last, are made orthogonal to the others.
  const Value basis = orthonormal_basis(u, count);
  const Value is_none = over(none, u, {-2});
  const Value kept = hlo::select(is_none, columns_from(basis, 0, columns_of(u)), u);
  const Values parts = {kept, columns_from(basis, columns_of(u), count)};
  return {count == columns_of(u) ? kept : hlo::concatenate(parts, u.rank() - 1), values,
          columns_in(order, found.rotation, target)};
}

// H has X's singular values and right vectors V, and the columns of X V are orthogonal.
Singular by_polar_factor(const Value& x, int64_t count, bool vectors, const Target& target) {
  const Value triangle = triangle_of(x);
  const Eigen found = eigen_of(polar_factor(triangle), vectors, target);
  const std::vector<int64_t> of_values = {found.values.rank() - 1}, of_columns = {x.rank() - 1};
  const Value falling = hlo::reverse(found.values, of_values);
  const Value values = hlo::select(hlo::less(falling, 0), zeros_like(falling), falling);
  if (!vectors) return {x, values, x};
  const Value v = hlo::reverse(found.vectors, of_columns), columns = product(x, v);
  // Columns that are next to nothing have no direction of their own, but one that is orthogonal.
  const Value u = orthonormal_basis(columns, count);
  const Value along = real_of(sum_of_rows(conjugate(columns_from(u, 0, columns_of(x))) * columns));
  const Value sign = hlo::select(hlo::less(along, 0), -ones_like(along), ones_like(along));
  const Value signs = pad_dim(sign, hlo::scalar(x.builder(), 1, sign.dtype()), sign.rank() - 1, 0,
                              count - columns_of(x));
  return {u * real_over(signs, u), values, v};
}

Singular singular(const Value& x, int64_t count, bool vectors, const Target& target) {
  constexpr int64_t kSmall = 32;  // fewer columns are turned faster
  // Squares stay in the range of the dtype.
  const std::vector<int64_t> both = {x.rank() - 2, x.rank() - 1};
  const Value largest = reduce_max(hlo::abs(x), both);
  const Value scale = hlo::select(hlo::equal(largest, 0), ones_like(largest), largest);
  const Value scaled = x / over(cast(scale, x.dtype()), x, {-2, -1});
  const Singular found = columns_of(x) <= kSmall ? by_rotations(scaled, count, target)
                                                 : by_polar_factor(scaled, count, vectors, target);
  return {found.u,
          found.s * spread(scale, found.s.dims(), std::vector<int64_t>{found.s.rank() - 1}),
          found.v};
}

// aten::_linalg_svd(A, full_matrices, compute_uv, *, driver) -> (U, S, Vh)
Values svd(Lowering& l) {
  const Value x = l.in(0);
  const bool wide = rows_of(x) < columns_of(x), vectors = l.flag(2);
  const auto none = [&](size_t i) { return hlo::zero(l.b, l.out(i)); };
  if (x.type().elements() == 0) {
    if (!vectors) return {none(0), none(1), none(2)};
    return {identity_like(none(0)), none(1), identity_like(none(2))};
  }
  const Value high = wide ? adjoint(x) : x;
  const int64_t count = l.flag(1) && vectors ? rows_of(high) : columns_of(high);
  const Singular found = singular(high, count, vectors, l.target());
  if (!vectors) return {none(0), found.s, none(2)};
  return wide ? Values{found.v, found.s, adjoint(found.u)}
              : Values{found.u, found.s, adjoint(found.v)};
}

// Hermitian matrices of which one triangle is read.
Value hermitian(const Value& given, bool lower) {
  const Value row = row_positions(given), column = column_positions(given);
  const Value inside = lower ? hlo::greater(row, column) : hlo::less(row, column);
  const Value strict = hlo::select(inside, given, zeros_like(given));
  const Value on =
      hlo::select(on_diagonal(given), cast(real_of(given), given.dtype()), zeros_like(given));
  return strict + adjoint(strict) + on;
}

}  // namespace

// Moved up by a bound of their size, the eigenvalues are singular values of the same vectors.
Eigen eigen_by_rotations(const Value& x, const Target& target) {
  const Value bound = largest_column_sum(x);
  const Value up = identity_like(x) * over(cast(bound, x.dtype()), x, {-2, -1});
  const Value scale = hlo::select(hlo::equal(bound, 0), ones_like(bound), bound);
  const Value v = orthogonalize((x + up) / over(cast(scale, x.dtype()), x, {-2, -1})).rotation;
  const auto [values, order] = sorted(real_of(sum_of_rows(conjugate(v) * product(x, v))), false);
  return {values, columns_in(order, v, target)};
}

namespace {

// aten::_linalg_eigh(A, UPLO, compute_v) -> (eigenvalues, eigenvectors)
Values eigh(Lowering& l) {
  const Value x = l.in(0);
  if (x.type().elements() == 0) return {hlo::zero(l.b, l.out(0)), hlo::zero(l.b, l.out(1))};
  const std::string triangle = l.text(1);
  const Eigen found =
      eigen_of(hermitian(x, triangle == "L" || triangle == "l"), l.flag(2), l.target());
  return {found.values, l.flag(2) ? found.vectors : hlo::zero(l.b, l.out(1))};
}

// aten::linalg_pinv.atol_rtol_tensor(self, *, atol, rtol, hermitian): values up to the larger of
// atol and rtol times the largest count as zero.
Values pinv(Lowering& l) {
  const Value x = l.in(0);
  if (x.type().elements() == 0) return {hlo::zero(l.b, l.out())};
  const bool wide = rows_of(x) < columns_of(x);
  Value left, values, right;  // x = left values right^H
  if (l.flag(3)) {
    const Eigen found = eigen_of(hermitian(x, true), true, l.target());
    left = right = found.vectors;
    values = found.values;
  } else {
    const Value high = wide ? adjoint(x) : x;
    const Singular found = singular(high, columns_of(high), true, l.target());
    left = wide ? found.v : found.u;
    right = wide ? found.u : found.v;
    values = found.s;
  }
  const std::vector<int64_t> last = {values.rank() - 1};
  const Value size = hlo::abs(values), largest = reduce_max(size, last);
  const Value usual = hlo::like(
      largest, epsilon_of(x.dtype()) * static_cast<double>(std::max(rows_of(x), columns_of(x))));
  const auto given = [&](size_t arg) { return l.in(arg, largest.dtype(), largest.dims()); };
  const Value atol = l.has(1) ? given(1) : zeros_like(largest);
  const Value rtol = l.has(2)   ? given(2)
                     : l.has(1) ? hlo::select(hlo::greater(atol, 0), zeros_like(usual), usual)
                                : usual;
  const Value least = spread(hlo::max(atol, rtol * largest), values.dims(), last);
  const Value kept = hlo::greater(size, least);
  const Value inverse = hlo::select(
      kept, ones_like(values) / hlo::select(kept, values, ones_like(values)), zeros_like(values));
  return {product(right * real_over(inverse, right), adjoint(left))};
}

// aten::linalg_matrix_exp(self): a Taylor polynomial of the matrix over a power of two, squared as
// often.
Values matrix_exp(Lowering& l) {
  const Value x = l.in(0);
  if (x.type().elements() == 0) return {x};
  constexpr int64_t kDegree = 18;
  constexpr double kMostSquarings = 64;
  // The polynomial is exact to f64's last digit for norms up to 1.
  const Value norm = largest_column_sum(x);
  const Value above = hlo::max(norm, ones_like(norm));
  const Value squarings = hlo::min(hlo::unary("ceil", hlo::log(above) * (1 / std::log(2.0))),
                                   hlo::like(norm, kMostSquarings));
  const Value power = hlo::exp(squarings * std::log(2.0));
  const Value small =
      x / over(cast(hlo::unary("round_nearest_even", power), x.dtype()), x, {-2, -1});
  const Value unit = identity_like(x);
  Value sum = unit;
  for (int64_t k = kDegree; k > 0; --k) {
    sum = unit + product(small, sum) / hlo::like(x, static_cast<double>(k));
  }
  const Value most = largest_of(squarings);
  const Values end = hlo::while_loop(
      Values{zeros_like(most), most, squarings, sum},
      [&](std::span<const Value> s) { return hlo::less(s[0], s[1]); },
      [&](std::span<const Value> s) -> Values {
        const Value left = hlo::less(hlo::broadcast_to(s[0], s[2].dims()), s[2]);
        return {s[0] + 1.0, s[1], s[2],
                hlo::select(over(left, s[3], {-2, -1}), product(s[3], s[3]), s[3])};
      });
  return {end[3]};
}

// The CPU's kernel, which has the words, is shown a call that is refused here.
void eig_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  TORCH_CHECK(x.dim() >= 2 && x.size(-1) == x.size(-2) && (x.is_floating_point() || x.is_complex()),
              "torch.linalg.eig: expected square matrices.");
  const at::TensorOptions complex = x.options().dtype(at::toComplexType(x.scalar_type()));
  call.results(
      {at::empty(x.sizes().slice(0, x.dim() - 1), complex), at::empty(x.sizes(), complex).mT()});
}

void matrix_exp_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  const bool usual =
      x.dim() >= 2 && x.size(-1) == x.size(-2) && (x.is_floating_point() || x.is_complex());
  return usual ? like_first(call) : call.pytorch();
}

}  // namespace

const Rules spectral_svd_rules([](Registry& r) {
  r.add("aten::_linalg_svd", svd).on_cpu = faster_on_host<>;
  r.add("aten::_linalg_eigh", eigh).on_cpu = faster_on_host<>;
  r.add("aten::linalg_pinv.atol_rtol_tensor", pinv).on_cpu = faster_on_host<>;
  r.add("aten::linalg_matrix_exp", matrix_exp).on_cpu = faster_on_host<>;

  r.all("aten::linalg_eig") = {.meta = eig_meta, .autocast = Autocast::Float32};
  r.all("aten::linalg_matrix_exp") = {.meta = matrix_exp_meta, .autocast = Autocast::Float32};
  for (const char* name :
       {"aten::linalg_eigh", "aten::linalg_eigvals", "aten::linalg_eigvalsh", "aten::linalg_pinv",
        "aten::linalg_svd", "aten::linalg_svdvals", "aten::pinverse", "aten::svd"}) {
    r.all(name).autocast = Autocast::Float32;
  }
});

}  // namespace torch_xla::ops
