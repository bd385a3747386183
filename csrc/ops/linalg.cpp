// Linear algebra that StableHLO has: Cholesky factors and triangular systems. CPU programs call
// LAPACK instead (Rule::on_cpu).
#include "ops/linalg.h"

#include <ATen/ExpandUtils.h>

#include "ops/common.h"
#include "ops/host_rules.h"
#include "ops/lowering.h"
#include "ops/meta.h"

namespace torch_xla::ops {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

Value on_triangle(const Value& x, bool lower) {
  const Value row = row_positions(x), column = column_positions(x);
  const Value inside = lower ? hlo::greater_equal(row, column) : hlo::less_equal(row, column);
  return hlo::select(inside, x, zeros_like(x));
}

Value product(const Value& x, const Value& y) {
  hlo::DotDims dims;
  for (int64_t i = 0; i + 2 < x.rank(); ++i) {
    dims.lhs_batch.push_back(i);
    dims.rhs_batch.push_back(i);
  }
  dims.lhs_contract = {x.rank() - 1};
  dims.rhs_contract = {x.rank() - 2};
  return hlo::dot_general(x, y, dims, x.dtype());
}

Value over(const Value& value, const Value& x, std::initializer_list<int64_t> left_out) {
  std::vector<int64_t> dims;
  for (const int64_t dim : left_out) dims.push_back(x.rank() + dim);
  return spread(value, x.dims(), dims);
}

namespace {

Values starts_at(const Value& x, int64_t dim, const Value& i) {
  Values starts(static_cast<size_t>(x.rank()), hlo::scalar_int(x.builder(), 0, i.dtype()));
  starts[static_cast<size_t>(dim)] = i;
  return starts;
}

}  // namespace

Value cut(const Value& x, int64_t dim, const Value& first, int64_t count) {
  Dims sizes = x.dims();
  sizes[static_cast<size_t>(dim)] = count;
  return hlo::dynamic_slice(x, starts_at(x, dim, first), sizes);
}

Value write(const Value& x, const Value& part, int64_t dim, const Value& first) {
  return hlo::dynamic_update_slice(x, part, starts_at(x, dim, first));
}

Value pick(const Value& x, int64_t dim, const Value& i) {
  return remove_dim(cut(x, dim, i, 1), dim);
}

Value put(const Value& x, int64_t dim, const Value& i, const Value& element) {
  return write(x, insert_dim(element, dim), dim, i);
}

Value only(const Value& chosen, const Value& x, int64_t dim) {
  const std::vector<int64_t> dims = {dim};
  return reduce_sum(hlo::select(chosen, x, zeros_like(x)), dims);
}

Values repeat(int64_t count, Values state, const Round& round) {
  if (count == 0) return state;
  const Value none = hlo::scalar_int(state[0].builder(), 0, DType::S32);
  if (count == 1) return round(none, state);
  state.insert(state.begin(), none);
  const auto unfinished = [&](std::span<const Value> s) {
    return hlo::less(s[0], static_cast<double>(count));
  };
  const auto next = [&](std::span<const Value> s) {
    Values results = round(s[0], s.subspan(1));
    results.insert(results.begin(), s[0] + 1.0);
    return results;
  };
  state = hlo::while_loop(state, unfinished, next);
  state.erase(state.begin());
  return state;
}

namespace {

Value cholesky_factor(const Value& x, bool upper) {
  return on_triangle(hlo::cholesky(x, !upper), !upper);
}

// aten::linalg_cholesky_ex(self, *, upper, check_errors) -> (L, info). A matrix that is not
// positive gives nan everywhere, not the order of its bad minor: info is 1. `check_errors` reads
// nothing.
Values cholesky_ex(Lowering& l) {
  const Value x = l.in(0);
  if (x.type().elements() == 0) return {hlo::zero(l.b, l.out(0)), hlo::zero(l.b, l.out(1))};
  const Value factor = cholesky_factor(x, l.flag(1));
  const std::vector<int64_t> last_two = {x.rank() - 2, x.rank() - 1};
  const Value failed =
      reduce_max(hlo::convert(hlo::not_equal(factor, factor), DType::S32), last_two);
  return {factor, failed};
}

// aten::cholesky(self, upper): nan where it has none, and no error.
Values old_cholesky(Lowering& l) {
  if (l.out().elements() == 0) return {hlo::zero(l.b, l.out())};
  return {cholesky_factor(l.in(0), l.flag(1))};
}

// aten::linalg_solve_triangular(self, B, *, upper, left, unitriangular)
Values solve_triangular(Lowering& l) {
  const hlo::Type type = l.out();
  if (type.elements() == 0) return {hlo::zero(l.b, type)};
  hlo::TriangularOptions options;
  options.lower = !l.flag(2);
  options.left = l.flag(3);
  options.unit_diagonal = l.flag(4);
  return {hlo::triangular_solve(with_batch(l.in(0), batch_of(type)),
                                with_batch(l.in(1), batch_of(type)), options)};
}

// aten::triangular_solve(self, A, upper, transpose, unitriangular) -> (solution, A)
Values triangular_solve(Lowering& l) {
  const hlo::Type type = l.out(0);
  const Value a = hlo::broadcast_to(l.in(1), l.out(1).dims);
  if (type.elements() == 0) return {hlo::zero(l.b, type), a};
  hlo::TriangularOptions options;
  options.lower = !l.flag(2);
  options.transpose_a = l.flag(3) ? "TRANSPOSE" : "NO_TRANSPOSE";
  options.unit_diagonal = l.flag(4);
  return {hlo::triangular_solve(with_batch(a, batch_of(type)), with_batch(l.in(0), batch_of(type)),
                                options),
          a};
}

// x with A x = b, A = L L^H or U^H U.
Value solve_factored(const Value& factor, const Value& b, bool upper) {
  hlo::TriangularOptions plain, adjoint;
  plain.lower = adjoint.lower = !upper;
  adjoint.transpose_a = "ADJOINT";
  const Value half = hlo::triangular_solve(factor, b, upper ? adjoint : plain);
  return hlo::triangular_solve(factor, half, upper ? plain : adjoint);
}

// aten::_cholesky_solve_helper(self, A, upper)
Values cholesky_solve(Lowering& l) {
  const hlo::Type type = l.out();
  if (type.elements() == 0) return {hlo::zero(l.b, type)};
  return {solve_factored(with_batch(l.in(1), batch_of(type)), with_batch(l.in(0), batch_of(type)),
                         l.flag(2))};
}

// aten::cholesky_inverse(self, upper)
Values cholesky_inverse(Lowering& l) {
  const Value factor = l.in(0);
  if (factor.type().elements() == 0) return {factor};
  return {solve_factored(factor, identity_like(factor), l.flag(1))};
}

bool is_square(const at::Tensor& x) {
  return x.dim() >= 2 && x.size(-1) == x.size(-2) && (x.is_floating_point() || x.is_complex());
}

// (self, ..): the result has the places of LAPACK's.
void square_by_columns(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  if (!is_square(x)) return call.pytorch();
  call.results({meta_of_columns(x)});
}

void old_cholesky_meta(MetaCall& call) {
  return call.tensor(0).numel() == 0 ? like_first(call) : square_by_columns(call);
}

// (self, B, upper, left, unitriangular)
void solve_triangular_meta(MetaCall& call) {
  const at::Tensor a = call.tensor(0), b = call.tensor(1);
  const bool usual = is_square(a) && !a.is_conj() && b.dim() >= 2 &&
                     b.scalar_type() == a.scalar_type() &&
                     b.size(call[3].toBool() ? -2 : -1) == a.size(-1);
  if (!usual) return call.pytorch();
  std::vector<int64_t> sizes =
      at::infer_size(b.sizes().slice(0, b.dim() - 2), a.sizes().slice(0, a.dim() - 2));
  sizes.insert(sizes.end(), {b.size(-2), b.size(-1)});
  call.results({meta_of_columns(b.expand(sizes))});
}

}  // namespace

const Rules linalg_rules([](Registry& r) {
  r.add("aten::linalg_cholesky_ex", cholesky_ex).on_cpu = faster_on_host<>;
  r.add("aten::cholesky", old_cholesky).on_cpu = faster_on_host<>;
  r.add("aten::linalg_solve_triangular", solve_triangular).on_cpu = faster_on_host<Fails::Never>;
  r.add("aten::triangular_solve", triangular_solve).on_cpu = faster_on_host<Fails::Never>;
  r.add("aten::_cholesky_solve_helper", cholesky_solve).on_cpu = faster_on_host<>;
  r.add("aten::cholesky_inverse", cholesky_inverse).on_cpu = faster_on_host<>;

  r.all("aten::cholesky") = {.meta = old_cholesky_meta, .autocast = Autocast::Float32};
  r.all("aten::cholesky_inverse") = {.meta = square_by_columns, .autocast = Autocast::Float32};
  r.all("aten::linalg_solve_triangular") = {.meta = solve_triangular_meta,
                                            .autocast = Autocast::Float32};
  for (const char* name :
       {"aten::cholesky_solve", "aten::triangular_solve", "aten::linalg_cholesky",
        "aten::linalg_cholesky_ex", "aten::linalg_cond", "aten::linalg_matrix_rank"}) {
    r.all(name).autocast = Autocast::Float32;
  }
});

}  // namespace torch_xla::ops
