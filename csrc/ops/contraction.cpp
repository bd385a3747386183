#include "ops/contraction.h"

#include <string>

#include "ops/common.h"

namespace torch_xla::ops {

using hlo::DType;
using hlo::Value;

namespace {

bool has(std::string_view letters, char c) { return letters.find(c) != std::string_view::npos; }

// Sums the dimensions that neither the other operand nor the result has.
Value sum_alone(const Value& x, std::string& letters, std::string_view other,
                std::string_view result) {
  std::vector<int64_t> dims;
  std::string kept;
  for (size_t i = 0; i < letters.size(); ++i) {
    if (has(other, letters[i]) || has(result, letters[i])) {
      kept += letters[i];
    } else {
      dims.push_back(static_cast<int64_t>(i));
    }
  }
  letters = kept;
  return dims.empty() ? x : reduce_sum(hlo::convert(x, accumulator(x.dtype())), dims);
}

}  // namespace

DType accumulator(DType dtype) { return compute_dtype(dtype); }

Value dot(const Value& lhs, const Value& rhs, const hlo::DotDims& dims) {
  return hlo::dot_general(lhs, rhs, dims, accumulator(lhs.dtype()));
}

Value contract(const Value& lhs_in, std::string_view lhs_letters, const Value& rhs_in,
               std::string_view rhs_letters, std::string_view result_letters) {
  std::string left(lhs_letters), right(rhs_letters);
  Value lhs = sum_alone(lhs_in, left, rhs_letters, result_letters);
  Value rhs = sum_alone(rhs_in, right, lhs_letters, result_letters);
  if (lhs.dtype() != rhs.dtype()) {
    lhs = hlo::convert(lhs, accumulator(lhs.dtype()));
    rhs = hlo::convert(rhs, accumulator(rhs.dtype()));
  }
  hlo::DotDims dims;
  std::string letters;  // of the product
  for (size_t i = 0; i < left.size(); ++i) {
    const size_t j = right.find(left[i]);
    if (j == std::string::npos) continue;
    const bool batch = has(result_letters, left[i]);
    (batch ? dims.lhs_batch : dims.lhs_contract).push_back(static_cast<int64_t>(i));
    (batch ? dims.rhs_batch : dims.rhs_contract).push_back(static_cast<int64_t>(j));
    if (batch) letters += left[i];
  }
  for (const char c : left) {
    if (!has(right, c)) letters += c;
  }
  for (const char c : right) {
    if (!has(left, c)) letters += c;
  }
  const Value product = dot(lhs, rhs, dims);
  std::vector<int64_t> permutation;
  for (const char c : result_letters) {
    permutation.push_back(static_cast<int64_t>(letters.find(c)));
  }
  return hlo::transpose(product, permutation);
}

}  // namespace torch_xla::ops
