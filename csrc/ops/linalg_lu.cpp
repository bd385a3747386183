// LU factors with partial pivoting, and what is made of them, in loops over panels and their
// columns: for platforms whose programs cannot call LAPACK. CPU programs call it (Rule::on_cpu).
#include <algorithm>

#include "ops/common.h"
#include "ops/gather.h"
#include "ops/host_rules.h"
#include "ops/linalg.h"
#include "ops/lowering.h"
#include "ops/rearrange.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Type;
using hlo::Value;
using hlo::Values;

// --- factors -----------------------------------------------------------------------------------

struct Factors {
  Value lu;      // L below the diagonal, which is 1 there, and U
  Value pivots;  // s32, from 1: row i was exchanged with this one
  Value info;    // s32: the first column without a pivot, from 1; 0 where there is none
};

// The magnitude by which LAPACK compares complex numbers.
Value magnitude(const Value& x) {
  return hlo::is_complex(x.dtype()) ? hlo::abs(hlo::real(x)) + hlo::abs(hlo::imag(x)) : hlo::abs(x);
}

// Columns `first`, .. of a matrix, each of them a row here, and what has become of them.
struct Panel {
  Value columns;  // [.., width, rows]
  Value pivots;   // s32, from 0: rows exchanged with row `first`, the one after it, ..
  Value order;    // s32 [.., rows]: where each row comes from
  Value info;
};

// The first of the largest elements of a column from row `here` on.
Value pivot_row(const Value& column, const Value& here) {
  const std::vector<int64_t> rows = {column.rank() - 1};
  const Value size = magnitude(column), position = last_positions(column);
  const Value below = hlo::greater_equal(position, over(here, column, {-1}));
  const Value candidates = hlo::select(below, size, -1);
  const Value largest = spread(reduce_max(candidates, rows), size.dims(), rows);
  const Value none = hlo::like(position, static_cast<double>(column.dim(rows[0])));
  return reduce_min(hlo::select(below & ~hlo::less(candidates, largest), position, none), rows);
}

// Factors a panel column by column. Columns from `steps` on have no pivot.
Panel factor_panel(const Value& x, const Value& first, const Value& info, int64_t steps, bool pivot,
                   const Target& target) {
  const int64_t column_dim = x.rank() - 2, row_dim = x.rank() - 1;
  const Dims batch = batch_of(x);
  const Value pivots = hlo::zero(x.builder(), {DType::S32, with(batch, {rows_of(x)})});
  const Value order = last_positions(remove_dim(hlo::slice_dim(x, column_dim, 0, 1), column_dim));
  const Values start = {x, pivots, order, info, first};
  const Values end = repeat(rows_of(x), start, [&](const Value& i, auto s) -> Values {
    const Value& a = s[0];
    const Value diagonal = s[4] + i, here = hlo::broadcast_to(diagonal, batch);
    const Value is_step = hlo::less(here, static_cast<double>(steps));
    const Value column = pick(a, column_dim, i);
    const Value row = pivot ? hlo::select(is_step, pivot_row(column, here), here) : here;

    // Both rows that are exchanged, as columns of the panel.
    const auto at_row = [&](const Value& y) {
      const Value one = hlo::slice_dim(y, y.rank() - 1, 0, 1);
      const Value places = hlo::broadcast_in_dim(row, one.dims(), all_dims(row.rank()));
      return remove_dim(take_along(y, y.rank() - 1, places, target), y.rank() - 1);
    };
    const Value chosen = at_row(a), replaced = pick(a, row_dim, diagonal);
    const auto exchange = [&](const Value& y, const Value& from_row, const Value& from_here) {
      const Value position = last_positions(y);
      const std::vector<int64_t> rows = {y.rank() - 1};
      const Value is_row =
          hlo::equal(position, hlo::broadcast_in_dim(row, y.dims(), all_dims(row.rank())));
      return hlo::select(is_at(position, diagonal), spread(from_row, y.dims(), rows),
                         hlo::select(is_row, spread(from_here, y.dims(), rows), y));
    };
    const Value exchanged = exchange(a, chosen, replaced);

    const Value head = pick(chosen, column_dim, i);
    const Value is_zero = hlo::equal(head, zeros_like(head));
    const Value divisor = hlo::select(is_zero, ones_like(head), head);
    const Value multipliers = pick(exchanged, column_dim, i) / over(divisor, column, {-1});
    const Value below = hlo::greater(column_positions(a), hlo::broadcast_to(diagonal, a.dims()));
    const Value at_column = row_positions(a);
    const Value right = hlo::greater(at_column, hlo::broadcast_to(i, a.dims()));
    const Value multiplier = over(multipliers, a, {-2});
    const Value reduced = exchanged - over(chosen, a, {-1}) * multiplier;
    const Value next = hlo::select(below & right, reduced,
                                   hlo::select(below & is_at(at_column, i), multiplier, exchanged));
    const Value fails = hlo::equal(s[3], zeros_like(s[3])) & is_zero & is_step;
    return {next, put(s[1], column_dim, i, row),
            exchange(s[2], at_row(s[2]), pick(s[2], column_dim, diagonal)),
            hlo::select(fails, here + 1.0, s[3]), s[4]};
  });
  return {end[0], end[1], end[2], end[3]};
}

Value take_rows_in(const Value& order, const Value& x, const Target& target) {
  const std::vector<int64_t> last = {x.rank() - 1};
  Dims dims = batch_of(x);
  dims.push_back(rows_of(x));
  return take_along(x, x.rank() - 2, spread(hlo::broadcast_to(order, dims), x.dims(), last),
                    target);
}

// Panel by panel: the rows of a panel's pivots are reduced by a triangular system, what is below
// and to the right of them by a product.
Factors factor(const Value& given, const Target& target, bool pivot = true) {
  hlo::Builder& b = given.builder();
  const int64_t row_dim = given.rank() - 2, column_dim = given.rank() - 1;
  const int64_t rows = rows_of(given), columns = columns_of(given);
  const int64_t steps = std::min(rows, columns);
  const Panels panels(steps);
  const Dims batch = batch_of(given);
  const Value no_pivots = hlo::zero(b, {DType::S32, with(batch, {panels.whole()})});
  const Value no_info = hlo::zero(b, {DType::S32, batch});
  if (given.type().elements() == 0) return {given, no_pivots, no_info};

  const Value x = grown(given, std::max(rows, panels.whole()), std::max(columns, panels.whole()));
  const Values start = {x, no_pivots, no_info};
  const Values end = repeat(panels.count, start, [&](const Value& k, auto s) -> Values {
    const Value first = k * static_cast<double>(panels.width), next = first + panels.width;
    const Panel panel = factor_panel(transposed(cut(s[0], column_dim, first, panels.width)), first,
                                     s[2], steps, pivot, target);
    const Value l = transposed(panel.columns);
    const Value a =
        write(pivot ? take_rows_in(panel.order, s[0], target) : s[0], l, column_dim, first);
    const Values done = {write(s[1], panel.pivots + 1.0, row_dim, first), panel.info};
    if (panels.count == 1 && columns_of(x) == panels.width) return {a, done[0], done[1]};

    const Value top = cut(a, row_dim, first, panels.width);
    hlo::TriangularOptions unit_lower;
    unit_lower.unit_diagonal = true;
    const auto from = [&](const Value& positions, const Value& i) {
      return hlo::greater_equal(positions, hlo::broadcast_to(i, positions.dims()));
    };
    const Value solved =
        hlo::triangular_solve(cut(l, row_dim, first, panels.width), top, unit_lower);
    const Value u = hlo::select(from(column_positions(top), next), solved, top);
    const Value reduced = a - product(l, u);
    const Value rest = from(row_positions(a), next) & from(column_positions(a), next);
    return {write(hlo::select(rest, reduced, a), u, row_dim, first), done[0], done[1]};
  });
  return {grown(end[0], rows, columns), pad_dim(end[1], row_dim, 0, steps - panels.whole()),
          end[2]};
}

// [.., rows]: where each row of L U comes from.
Value permutation(const Value& pivots, int64_t rows) {
  hlo::Builder& b = pivots.builder();
  const int64_t dim = pivots.rank() - 1, steps = pivots.dim(dim);
  Dims dims = pivots.dims();
  dims[static_cast<size_t>(dim)] = rows;
  const Value order = hlo::iota(b, {DType::S32, dims}, dim);
  if (order.type().elements() == 0) return order;
  return repeat(steps, {order, pivots}, [&](const Value& i, auto s) -> Values {
    const Value& from = s[0];
    const std::vector<int64_t> last = {dim};
    const Value positions = hlo::iota(b, {DType::S32, dims}, dim);
    const Value other = spread(pick(s[1], dim, i) - 1.0, dims, last);
    const Value is_other = hlo::equal(positions, other);
    const Value here = spread(pick(from, dim, i), dims, last);
    const Value there = spread(only(is_other, from, dim), dims, last);
    return {hlo::select(is_at(positions, i), there, hlo::select(is_other, here, from)), s[1]};
  })[0];
}

Value lower_of(const Value& lu) {
  const int64_t steps = std::min(rows_of(lu), columns_of(lu));
  const Value x = hlo::slice_dim(lu, lu.rank() - 1, 0, steps);
  return hlo::select(on_diagonal(x), ones_like(x), on_triangle(x, /*lower=*/true));
}
Value upper_of(const Value& lu) {
  const int64_t steps = std::min(rows_of(lu), columns_of(lu));
  return on_triangle(hlo::slice_dim(lu, lu.rank() - 2, 0, steps), /*lower=*/false);
}
// P with P L U = A.
Value matrix_of(const Value& order, DType dtype) {
  const int64_t rows = order.dim(order.rank() - 1);
  Dims dims = order.dims();
  dims.push_back(rows);
  const std::vector<int64_t> row_dim = {order.rank() - 1};
  const Value from = spread(order, dims, row_dim);
  return hlo::convert(
      hlo::equal(from, hlo::iota(order.builder(), {DType::S32, dims}, order.rank() - 1)), dtype);
}

Value inverse_of(const Value& order) {
  const Value p = matrix_of(order, DType::S32);  // [.., r, c]: whether c comes from r
  return only(hlo::greater(p, 0.0), column_positions(p), p.rank() - 1);
}

// X with A X = B, A^H X = B, X A = B or X A^H = B, where P L U = A.
Value solve(const Value& lu, const Value& pivots, const Value& b, bool left, bool of_adjoint,
            const Target& target) {
  if (b.type().elements() == 0) return b;
  if (!left) return adjoint(solve(lu, pivots, adjoint(b), true, !of_adjoint, target));
  const Value factors = with_batch(lu, batch_of(b));
  const Value order = permutation(pivots, rows_of(lu));
  hlo::TriangularOptions lower, upper;
  lower.unit_diagonal = true;
  upper.lower = false;
  if (!of_adjoint) {
    const Value half = hlo::triangular_solve(factors, take_rows_in(order, b, target), lower);
    return hlo::triangular_solve(factors, half, upper);
  }
  lower.transpose_a = upper.transpose_a = "ADJOINT";
  const Value half = hlo::triangular_solve(factors, b, upper);
  return take_rows_in(inverse_of(order), hlo::triangular_solve(factors, half, lower), target);
}

// --- rules -------------------------------------------------------------------------------------

// For determinants PyTorch factors the transpose where that is how the matrix lies in LAPACK's
// memory; their formulas of gradients know.
Factors factor_of_determinant(const Lowering& l) {
  const bool transpose = l.geometry(0).contiguous && !hlo::is_complex(l.in(0).dtype());
  return factor(transpose ? transposed(l.in(0)) : l.in(0), l.target());
}

Value product_along(const Value& x, int64_t dim) {
  const std::vector<int64_t> dims = {dim};
  return hlo::reduce(x, hlo::one(x.builder(), {x.dtype(), {}}), dims, hlo::mul);
}
// 1 or -1 for each matrix: the determinant of P.
Value parity(const Factors& f, DType dtype) {
  const int64_t last = f.pivots.rank() - 1;
  const Value places = hlo::iota(f.pivots.builder(), f.pivots.type(), last) + 1.0;
  const Value moved = hlo::convert(hlo::not_equal(f.pivots, places), dtype);
  return product_along(1.0 - moved * 2.0, last);
}

// aten::linalg_lu_factor_ex(A, *, pivot, check_errors) -> (LU, pivots, info)
Values lu_factor_ex(Lowering& l) {
  const Factors f = factor(l.in(0), l.target(), l.flag(1));
  return {f.lu, f.pivots, f.info};
}

Values unpacked(Lowering& l, const Value& lu, const Value& pivots, bool data, bool order) {
  const auto none = [&](size_t i) { return hlo::zero(l.b, l.out(i)); };
  return {order ? matrix_of(permutation(pivots, rows_of(lu)), l.out(0).dtype) : none(0),
          data ? lower_of(lu) : none(1), data ? upper_of(lu) : none(2)};
}

// aten::linalg_lu(A, *, pivot) -> (P, L, U)
Values linalg_lu(Lowering& l) {
  const Factors f = factor(l.in(0), l.target(), l.flag(1));
  return unpacked(l, f.lu, f.pivots, true, l.flag(1));
}
// aten::lu_unpack(LU_data, LU_pivots, unpack_data, unpack_pivots) -> (P, L, U)
Values lu_unpack(Lowering& l) { return unpacked(l, l.in(0), l.in(1), l.flag(2), l.flag(3)); }

// aten::_linalg_det(A) -> (result, LU, pivots)
Values det(Lowering& l) {
  const Factors f = factor_of_determinant(l);
  const Value values = diagonal(f.lu);
  return {product_along(values, values.rank() - 1) * parity(f, values.dtype()), f.lu, f.pivots};
}

// aten::_linalg_slogdet(A) -> (sign, logabsdet, LU, pivots)
Values slogdet(Lowering& l) {
  const Factors f = factor_of_determinant(l);
  const Value values = diagonal(f.lu);
  const int64_t last = values.rank() - 1;
  const std::vector<int64_t> dims = {last};
  const Value sign = product_along(hlo::unary("sign", values), last) * parity(f, values.dtype());
  return {sign, reduce_sum(hlo::log(hlo::abs(values)), dims), f.lu, f.pivots};
}

// aten::_linalg_solve_ex(A, B, *, left, check_errors) -> (result, LU, pivots, info)
Values solve_ex(Lowering& l) {
  const Factors f = factor(l.in(0), l.target());
  const Type type = l.out();
  const bool vector = type.rank() == l.in(0).rank() - 1;
  Value b = vector ? insert_dim(l.in(1), l.in(1).rank()) : l.in(1);
  const Dims batch(type.dims.begin(), type.dims.end() - (vector ? 1 : 2));
  const Value x =
      solve(f.lu, f.pivots, with_batch(b, batch), l.flag(2), /*of_adjoint=*/false, l.target());
  return {hlo::reshape(x, type.dims), f.lu, f.pivots, f.info};
}

// aten::linalg_inv_ex(A, *, check_errors) -> (inverse, info)
Values inv_ex(Lowering& l) {
  const Value x = l.in(0);
  const Factors f = factor(x, l.target());
  return {solve(f.lu, f.pivots, identity_like(x), true, false, l.target()), f.info};
}

// aten::linalg_lu_solve(LU, pivots, B, *, left, adjoint)
Values lu_solve(Lowering& l) {
  const Dims& dims = l.out().dims;
  const Value b = with_batch(l.in(2), Dims(dims.begin(), dims.end() - 2));
  return {solve(l.in(0), l.in(1), b, l.flag(3), l.flag(4), l.target())};
}

}  // namespace

const Rules linalg_lu_rules([](Registry& r) {
  r.add("aten::linalg_lu_factor_ex", lu_factor_ex).on_cpu = faster_on_host<>;
  r.add("aten::linalg_lu", linalg_lu).on_cpu = faster_on_host<>;
  r.add("aten::lu_unpack", lu_unpack).on_cpu = faster_on_host<>;
  r.add("aten::_linalg_det", det).on_cpu = faster_on_host_as_laid_out;
  r.add("aten::_linalg_slogdet", slogdet).on_cpu = faster_on_host_as_laid_out;
  r.add("aten::_linalg_solve_ex", solve_ex).on_cpu = faster_on_host_as_laid_out;
  r.add("aten::linalg_inv_ex", inv_ex).on_cpu = faster_on_host<>;
  r.add("aten::linalg_lu_solve", lu_solve).on_cpu = faster_on_host<>;

  for (const char* name :
       {"aten::inverse", "aten::lu_solve", "aten::_lu_with_info", "aten::linalg_det",
        "aten::linalg_inv", "aten::linalg_inv_ex", "aten::linalg_lu", "aten::linalg_lu_factor",
        "aten::linalg_slogdet", "aten::linalg_solve", "aten::linalg_tensorinv",
        "aten::linalg_tensorsolve"}) {
    r.all(name).autocast = Autocast::Float32;
  }
});

}  // namespace torch_xla::ops
