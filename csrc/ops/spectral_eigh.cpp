// Eigenvalues and eigenvectors of Hermitian matrices: small ones by Jacobi's rotations, larger ones
// are made tridiagonal by reflectors, and halves of that are put together (divide and conquer:
// Cuppen 1981; Gu and Eisenstat 1995).
#include <cmath>

#include "ops/common.h"
#include "ops/gather.h"
#include "ops/rearrange.h"
#include "ops/spectral.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Type;
using hlo::Value;
using hlo::Values;

// --- tridiagonal form ----------------------------------------------------------------------------

struct Tridiagonal {
  Value diagonal, beside;  // real [.., n]; the last of those beside the diagonal means nothing
  Reflectors q;            // A = Q T Q^H; the first vector begins in row 1
};

// x^H y for each row.
Value dot(const Value& x, const Value& y) {
  const std::vector<int64_t> last = {x.rank() - 1};
  return reduce_sum(conjugate(x) * y, last);
}
// sum of factor[j] * row j of x.
Value weighted_rows(const Value& factors, const Value& x) {
  return remove_dim(product(insert_dim(factors, factors.rank() - 1), x), x.rank() - 2);
}

// The matrix x - sum (v w^H + w v^H), where the rows of `v` and `w` are vectors: gives its column
// `i` and its product with a vector.
struct Reduced {
  Value x, v, w;
  Value column(const Value& i) const {
    const int64_t last = x.rank() - 1;
    const Value at_v = conjugate(pick(v, last, i)), at_w = conjugate(pick(w, last, i));
    return conjugate(pick(x, last - 1, i)) - weighted_rows(at_w, v) - weighted_rows(at_v, w);
  }
  Value times(const Value& y) const {
    const Value of_v = row_products(conjugate(v), y), of_w = row_products(conjugate(w), y);
    return row_products(x, y) - weighted_rows(of_w, v) - weighted_rows(of_v, w);
  }
  Value whole() const {
    return x - product(transposed(v), conjugate(w)) - product(transposed(w), conjugate(v));
  }
};

// As LAPACK's latrd: columns of a panel are reduced one by one, the rest of the matrix at the end.
Tridiagonal tridiagonal(const Value& given) {
  const int64_t n = rows_of(given), row_dim = given.rank() - 2, last = given.rank() - 1;
  const DType real = real_of(given).dtype();
  const Panels panels(n);
  const Dims batch = batch_of(given);
  const auto none = [&](DType dtype, std::initializer_list<int64_t> sizes) {
    return hlo::zero(given.builder(), {dtype, with(batch, sizes)});
  };
  const int64_t whole = panels.whole(), width = panels.width;
  const Value x = grown(given, whole, whole);
  const Values start = {x, none(real, {whole}), none(real, {whole}), zeros_like(x),
                        none(x.dtype(), {whole})};
  const Values end = repeat(panels.count, start, [&](const Value& k, auto s) -> Values {
    const Value first = k * static_cast<double>(width);
    const Value vectors = none(x.dtype(), {width, whole});
    const Values state = {s[0], vectors, vectors, s[1], s[2], s[4], first};
    const Values panel = repeat(width, state, [&](const Value& i, auto p) -> Values {
      const Reduced rest = {p[0], p[1], p[2]};
      const Value here = p[6] + i, column = rest.column(here);
      const Reflector h = reflector_of(column, here + 1.0);
      const Value y = rest.times(h.v);
      const Value half = hlo::abs(h.tau) * hlo::abs(h.tau) * real_of(dot(h.v, y)) * 0.5;
      const Value w = y * over(h.tau, y, {-1}) - h.v * over(cast(half, x.dtype()), h.v, {-1});
      const auto real_at = [&](const Value& c, const Value& at) {
        return real_of(pick(c, row_dim, at));
      };
      return {p[0],
              put(p[1], row_dim, i, h.v),
              put(p[2], row_dim, i, w),
              put(p[3], row_dim, here, real_at(column, here)),
              put(p[4], row_dim, here, real_at(h.stored, here + 1.0)),
              put(p[5], row_dim, here, h.tau),
              p[6]};
    });
    return {Reduced{panel[0], panel[1], panel[2]}.whole(), panel[3], panel[4],
            write(s[3], transposed(panel[1]), last, first), panel[5]};
  });
  const auto first_of = [&](const Value& v) { return hlo::slice_dim(v, row_dim, 0, n); };
  const Value below = hlo::slice_dim(first_of(end[3]), row_dim, 1, n);
  return {first_of(end[1]),
          first_of(end[2]),
          {hlo::slice_dim(below, last, 0, n - 1), hlo::slice_dim(end[4], row_dim, 0, n - 1)}};
}

// --- divide and conquer --------------------------------------------------------------------------

// Eigenvalues [.., n] and the eigenvectors as rows [.., n, n]; or, where they are not asked for,
// the first and last element of each, which is what putting halves together takes: [.., n, 2].
struct Solved {
  Value values, rows;
};

Value last_reduced(const Value& x, const hlo::Combine& combine, double start) {
  const std::vector<int64_t> last = {x.rank() - 1};
  return hlo::reduce(x, hlo::scalar(x.builder(), start, x.dtype()), last, combine);
}
// [.., m] over [.., m, m], along its rows or its columns.
Value each_row(const Value& x, int64_t columns) {
  Dims dims = x.dims();
  dims.push_back(columns);
  return hlo::broadcast_in_dim(x, dims, all_dims(x.rank()));
}
Value each_column(const Value& x, int64_t rows) {
  Dims dims = x.dims();
  dims.insert(dims.end() - 1, rows);
  const std::vector<int64_t> row_dim = {x.rank() - 1};
  return spread(x, dims, row_dim);
}

// diag(d) + rho z z^T, where d rises and rho is not negative.
struct Update {
  Value d, z, rho;  // [.., m], [.., m], [..]
  Value rows;       // [.., m, c]
};

// Where z is next to nothing, or d next to the same, an eigenvector is left as it is, after a
// rotation, with z = 0. The others end up in order and apart.
Update deflated(const Update& u, double epsilon) {
  const int64_t dim = u.d.rank() - 1, count = u.d.dim(dim);
  const Value size = last_reduced(hlo::abs(u.d), hlo::max, 0);
  const Value tolerance = hlo::max(size, u.rho) * (4 * epsilon);
  const Value small =
      hlo::less_equal(hlo::abs(u.z) * each_row(u.rho, count), each_row(tolerance, count));
  const Value z = hlo::select(small, zeros_like(u.z), u.z);
  const Value zero = hlo::scalar_int(u.d.builder(), 0, DType::S32);
  // The last one that may still be rotated is carried along.
  const Values start = {
      u.d, z, u.rows, pick(u.d, dim, zero), pick(z, dim, zero), pick(u.rows, dim, zero), tolerance};
  const Values end = repeat(count - 1, start, [&](const Value& i, auto s) -> Values {
    const Value next = i + 1.0;
    const Value &d = s[3], &w = s[4], &row = s[5];
    const Value d2 = pick(s[0], dim, next), w2 = pick(s[1], dim, next);
    const Value row2 = pick(s[2], dim, next);
    const Value length = hlo::sqrt(w * w + w2 * w2), none = hlo::equal(length, 0);
    const Value divisor = hlo::select(none, ones_like(length), length);
    const Value c = hlo::select(none, ones_like(w), w2 / divisor), sine = -(w / divisor);
    const Value close = hlo::less_equal(hlo::abs((d2 - d) * c * sine), s[6]);
    const auto wide = [&](const Value& v) { return each_row(v, row.dim(row.rank() - 1)); };
    const auto choose = [&](const Value& rotated, const Value& plain) {
      return hlo::select(plain.rank() == close.rank() ? close : wide(close), rotated, plain);
    };
    return {put(s[0], dim, i, choose(d * c * c + d2 * sine * sine, d)),
            put(s[1], dim, i, choose(zeros_like(w), w)),
            put(s[2], dim, i, choose(wide(c) * row + wide(sine) * row2, row)),
            choose(d * sine * sine + d2 * c * c, d2),
            choose(length, w2),
            choose(wide(c) * row2 - wide(sine) * row, row2),
            s[6]};
  });
  const Value at_end = hlo::scalar_int(u.d.builder(), count - 1, DType::S32);
  return {put(end[0], dim, at_end, end[3]), put(end[1], dim, at_end, end[4]), u.rho,
          put(end[2], dim, at_end, end[5])};
}

// An eigenvalue, as its distance from the nearer of the two poles between which it lies: only so
// are all differences of eigenvalues and poles exact.
struct Roots {
  Value origin, shift;  // [.., m]; nothing where z is 0
};

// 1 + rho sum z_j^2 / (d_j - origin - shift), which rises with the shift between poles.
Value secular(const Value& d, const Value& z, const Value& rho, const Roots& at) {
  const int64_t count = d.dim(d.rank() - 1);
  const Value distance =
      (each_row(d, count) - each_column(at.origin, count)) - each_column(at.shift, count);
  const Value active = each_row(hlo::not_equal(z, 0), count);
  const Value inverse = hlo::select(active, 1.0 / distance, zeros_like(distance));
  return each_row(rho, count) * weighted_rows(z * z, inverse) + 1.0;
}

// Bisection of the bits of the distance, which finds the last one of however small a number.
Roots secular_roots(const Update& u) {
  const int64_t count = u.d.dim(u.d.rank() - 1);
  const Value active = hlo::not_equal(u.z, 0);
  const Value infinite = hlo::highest(u.d.builder(), u.d.type());
  const Value poles = each_column(hlo::select(active, u.d, infinite), count);
  const Value behind = hlo::greater(column_positions(poles), row_positions(poles));
  const std::vector<int64_t> last = {poles.rank() - 1};
  const Value next =
      reduce_min(hlo::select(behind, poles, hlo::highest(u.d.builder(), poles.type())), last);
  const Value is_last = hlo::equal(next, infinite);
  const Value whole = each_row(u.rho * last_reduced(u.z * u.z, hlo::add, 0), count);
  const Value width = hlo::select(is_last, whole * 1.001, next - u.d);
  const Value middle = secular(u.d, u.z, u.rho, {u.d, width * 0.5});
  const Value left = is_last | hlo::greater_equal(middle, 0);
  const Value origin = hlo::select(left, u.d, next);
  const Value sign = hlo::select(left, ones_like(u.d), -ones_like(u.d));

  const bool wide = u.d.dtype() == DType::F64;
  const Type bits = u.d.type().with(wide ? DType::S64 : DType::S32);
  const auto number = [&](const Value& x) { return hlo::bitcast_convert(x, u.d.type()); };
  const Value least = hlo::like(u.d, wide ? 0x1p-1000 : 0x1p-120);
  const Values start = {hlo::bitcast_convert(least, bits),
                        hlo::bitcast_convert(hlo::select(is_last, width, width * 0.5), bits),
                        u.d,
                        u.z,
                        u.rho,
                        origin,
                        sign};
  const Values end = repeat(wide ? 63 : 31, start, [&](const Value&, auto s) -> Values {
    const Value middle = s[0] + (s[1] - s[0]) / hlo::splat_int(s[0].builder(), 2, bits);
    const Value f = secular(s[2], s[3], s[4], {s[5], s[6] * number(middle)});
    const Value is_above = hlo::greater_equal(f * s[6], 0);
    return {hlo::select(is_above, s[0], middle),
            hlo::select(is_above, middle, s[1]),
            s[2],
            s[3],
            s[4],
            s[5],
            s[6]};
  });
  return {origin, sign * number(end[1])};
}

Solved solve(const Update& u) {
  const int64_t count = u.d.dim(u.d.rank() - 1);
  const Roots roots = secular_roots(u);
  const Value active = hlo::not_equal(u.z, 0);
  const auto columns = [&](const Value& v) { return each_column(v, count); };
  const auto rows = [&](const Value& v) { return each_row(v, count); };
  // Row i of these is the eigenvalue's, column j the pole's.
  const Value both = columns(active) & rows(active);
  const Value distance = (columns(u.d) - rows(roots.origin)) - rows(roots.shift);
  const Value same = on_diagonal(distance), one = ones_like(distance);
  const Value apart = hlo::select(both & ~same, columns(u.d) - rows(u.d), one);
  // The z of which the eigenvalues found are the exact ones; so eigenvectors are orthogonal.
  const Value ratio = hlo::select(both, hlo::abs(distance / apart), one);
  const std::vector<int64_t> of_poles = {distance.rank() - 2};
  const Value squares =
      hlo::reduce(ratio, hlo::one(u.d.builder(), {u.d.dtype(), {}}), of_poles, hlo::mul);
  const Value size = hlo::sqrt(squares);
  const Value z = hlo::select(hlo::less(u.z, 0), -size, size);
  const Value raw = hlo::select(both, columns(z) / hlo::select(both, distance, one),
                                hlo::convert(same, u.d.dtype()));
  const Value vectors = raw / rows(hlo::sqrt(last_reduced(raw * raw, hlo::add, 0)));
  return {hlo::select(active, roots.origin + roots.shift, u.d), product(vectors, u.rows)};
}

// Two halves of size m each, in dimension -2 of the values, and what joins them.
Solved joined(const Solved& halves, const Value& beside, bool vectors, double epsilon,
              const Target& target) {
  const Value& rows = halves.rows;  // [.., 2, m, c]
  const int64_t half_dim = rows.rank() - 3, last = rows.rank() - 1;
  const int64_t m = rows.dim(last - 1), c = rows.dim(last);
  const auto half = [&](int64_t i) {
    return remove_dim(hlo::slice_dim(rows, half_dim, i, i + 1), half_dim);
  };
  const auto element = [&](const Value& x, int64_t i) {
    return remove_dim(hlo::slice_dim(x, last - 1, i, i + 1), last - 1);
  };
  const Value sign = hlo::select(hlo::less(beside, 0), -ones_like(beside), ones_like(beside));
  const Values zs = {element(half(0), c - 1), element(half(1), 0) * each_row(sign, m)};
  const int64_t kept = vectors ? c : 1;
  const Values wide = {pad_dim(hlo::slice_dim(half(0), last - 1, 0, kept), last - 1, 0, kept),
                       pad_dim(hlo::slice_dim(half(1), last - 1, c - kept, c), last - 1, kept, 0)};
  const Value both = hlo::concatenate(wide, last - 2);
  const Value values = merge_dims(halves.values, half_dim, 2);
  const auto [d, order] = sorted(values, /*descending=*/false);
  const Value z = take_along(hlo::concatenate(zs, last - 2), last - 2, order, target);
  const Value order_of_rows = each_row(order, both.dim(last - 1));
  const Update u = {d, z * std::sqrt(0.5), hlo::abs(beside) * 2.0,
                    take_along(both, last - 2, order_of_rows, target)};
  return solve(deflated(u, epsilon));
}

constexpr int64_t kLeaf = 16;

// Solves tridiagonal matrices whose size is kLeaf times a power of two.
Solved divide_and_conquer(const Value& diagonal, const Value& beside, bool vectors,
                          const Target& target) {
  const int64_t dim = diagonal.rank() - 1, n = diagonal.dim(dim);
  const double epsilon = epsilon_of(diagonal.dtype());
  // Without what joins the leaves, which is a matrix of rank one each.
  const Value position = last_positions(beside);
  const Value joins = hlo::equal(hlo::rem(position, hlo::like(position, kLeaf)), kLeaf - 1.0);
  const Value join = hlo::select(joins, hlo::abs(beside), zeros_like(beside));
  const Value torn = diagonal - join - pad_dim(join, dim, 1, -1);
  const auto leaves = [&](const Value& x) { return split_dim(x, dim, {n / kLeaf, kLeaf}); };
  const Value on = each_row(leaves(torn), kLeaf), off = each_row(leaves(beside), kLeaf);
  const Value distance = column_positions(on) - row_positions(on);
  const Value upper = hlo::select(hlo::equal(distance, 1), off, zeros_like(off));
  const Value leaf = hlo::select(hlo::equal(distance, 0), on, upper + transposed(upper));
  const Eigen found = eigen_by_rotations(leaf, target);
  const Value all = transposed(found.vectors);
  const Values ends = {hlo::slice_dim(all, dim + 2, 0, 1),
                       hlo::slice_dim(all, dim + 2, kLeaf - 1, kLeaf)};
  Solved solved = {found.values, vectors ? all : hlo::concatenate(ends, dim + 2)};
  for (int64_t half = kLeaf; half < n; half *= 2) {
    const int64_t count = n / (2 * half);
    const Value between = hlo::slice_dim(beside, dim, half - 1, n, 2 * half);
    solved =
        joined({split_dim(solved.values, dim, {count, 2}), split_dim(solved.rows, dim, {count, 2})},
               between, vectors, epsilon, target);
  }
  return {merge_dims(solved.values, dim, 2), remove_dim(solved.rows, dim)};
}

}  // namespace

Eigen eigen_of(const Value& x, bool vectors, const Target& target) {
  const int64_t n = rows_of(x), dim = x.rank() - 2;
  if (n <= 2 * kLeaf) return eigen_by_rotations(x, target);
  const Value bound = largest_column_sum(x);
  const Value scale = hlo::select(hlo::equal(bound, 0), ones_like(bound), bound);
  const Tridiagonal t = tridiagonal(x / over(cast(scale, x.dtype()), x, {-2, -1}));
  int64_t whole = kLeaf;
  while (whole < n) whole *= 2;
  // The padding has one eigenvalue, above a bound of all others: it is sorted away.
  const Value inside = hlo::slice_dim(t.beside, dim, 0, n - 1);
  const Value beside = pad_dim(inside, dim, 0, whole - n + 1);
  const Value on = pad_dim(t.diagonal, dim, 0, whole - n), off = hlo::abs(beside);
  const Value sums = hlo::abs(on) + off + pad_dim(off, dim, 1, -1);
  const Value above = each_row(last_reduced(sums, hlo::max, 0) * 1.25, whole);
  const Value is_added = hlo::greater_equal(last_positions(on), static_cast<double>(n));
  const Solved solved =
      divide_and_conquer(hlo::select(is_added, above, on), beside, vectors, target);
  const auto [all, order] = sorted(solved.values, /*descending=*/false);
  const Value values = hlo::slice_dim(all, dim, 0, n) * each_row(scale, n);
  if (!vectors) return {values, x};
  const Value z = transposed(take_along(hlo::slice_dim(solved.rows, dim + 1, 0, n), dim,
                                        each_row(hlo::slice_dim(order, dim, 0, n), n), target));
  const Value whole_z = cast(z, x.dtype());
  const Values parts = {hlo::slice_dim(whole_z, dim, 0, 1),
                        apply(t.q, hlo::slice_dim(whole_z, dim, 1, n), false)};
  return {values, hlo::concatenate(parts, dim)};
}

}  // namespace torch_xla::ops
