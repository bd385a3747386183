// Linear algebra that StableHLO has: Cholesky factors and triangular systems. On the CPU platform
// LAPACK is called instead (cpu_kernels.cpp), as for all other decompositions.
#include "ops/common.h"
#include "ops/lowering.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Value;
using hlo::Values;

// Batches of `x`, broadcast to those of the result.
Value with_batch(const Value& x, const hlo::Dims& result) {
  hlo::Dims dims(result.begin(), result.end() - 2);
  dims.insert(dims.end(), x.dims().end() - 2, x.dims().end());
  return hlo::broadcast_to(x, dims);
}

Value on_triangle(const Value& x, bool lower, bool diagonal_only = false) {
  const hlo::Type positions{DType::S64, x.dims()};
  const Value row = hlo::iota(x.builder(), positions, x.rank() - 2);
  const Value column = hlo::iota(x.builder(), positions, x.rank() - 1);
  const Value inside = diagonal_only ? hlo::equal(row, column)
                       : lower       ? hlo::greater_equal(row, column)
                                     : hlo::less_equal(row, column);
  return hlo::select(inside, x, hlo::zero(x.builder(), x.type()));
}

Value identity_like(const Value& x) {
  return on_triangle(hlo::one(x.builder(), x.type()), true, /*diagonal_only=*/true);
}

// aten::linalg_cholesky_ex(self, *, upper, check_errors) -> (L, info). A matrix that is not
// positive gives nan everywhere, not the order of its bad minor: info is 1. `check_errors` reads
// nothing.
Values cholesky_ex(Lowering& l) {
  const Value x = l.in(0);
  if (x.type().elements() == 0) return {hlo::zero(l.b, l.out(0)), hlo::zero(l.b, l.out(1))};
  const bool upper = l.flag(1);
  const Value factor = on_triangle(hlo::cholesky(x, !upper), !upper);
  const std::vector<int64_t> last_two = {x.rank() - 2, x.rank() - 1};
  const Value failed =
      reduce_max(hlo::convert(hlo::not_equal(factor, factor), DType::S32), last_two);
  return {factor, failed};
}

// aten::linalg_solve_triangular(self, B, *, upper, left, unitriangular)
Values solve_triangular(Lowering& l) {
  const hlo::Type type = l.out();
  if (type.elements() == 0) return {hlo::zero(l.b, type)};
  hlo::TriangularOptions options;
  options.lower = !l.flag(2);
  options.left = l.flag(3);
  options.unit_diagonal = l.flag(4);
  return {hlo::triangular_solve(with_batch(l.in(0), type.dims), with_batch(l.in(1), type.dims),
                                options)};
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
  return {hlo::triangular_solve(with_batch(a, type.dims), with_batch(l.in(0), type.dims), options),
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
  return {
      solve_factored(with_batch(l.in(1), type.dims), with_batch(l.in(0), type.dims), l.flag(2))};
}

// aten::cholesky_inverse(self, upper)
Values cholesky_inverse(Lowering& l) {
  const Value factor = l.in(0);
  if (factor.type().elements() == 0) return {factor};
  return {solve_factored(factor, identity_like(factor), l.flag(1))};
}

}  // namespace

void register_linalg(Registry& r) {
  r.add("aten::linalg_cholesky_ex", cholesky_ex);
  r.add("aten::linalg_solve_triangular", solve_triangular);
  r.add("aten::triangular_solve", triangular_solve);
  r.add("aten::_cholesky_solve_helper", cholesky_solve);
  r.add("aten::cholesky_inverse", cholesky_inverse);
}

}  // namespace torch_xla::ops
