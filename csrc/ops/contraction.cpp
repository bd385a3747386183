#include "ops/contraction.h"

#include <algorithm>
#include <numeric>
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

// Makes one dimension of contracted ones that are neighbours in both operands.
void merge_contracted(Value& lhs, std::string& left, Value& rhs, std::string& right,
                      std::string_view result) {
  const auto merge = [](Value& x, std::string& letters, size_t at) {
    hlo::Dims dims = x.dims();
    dims[at] *= dims[at + 1];
    dims.erase(dims.begin() + static_cast<int64_t>(at) + 1);
    letters.erase(at + 1, 1);
    x = hlo::reshape(x, dims);
  };
  for (size_t i = 0; i + 1 < left.size();) {
    const std::string pair = left.substr(i, 2);
    const size_t j = right.find(pair);
    if (j == std::string::npos || has(result, pair[0]) || has(result, pair[1])) {
      ++i;
    } else {
      merge(lhs, left, i);
      merge(rhs, right, j);
    }
  }
}

// The product summed over what `letters`, those of the result, lack.
Value sum_of_products(const Value& lhs, std::string_view left, const Value& rhs,
                      std::string_view right, std::string_view letters) {
  std::string all(letters);
  for (const char c : left) {
    if (!has(letters, c)) all += c;
  }
  hlo::Dims dims(all.size());
  const auto place = [&](const Value& x, std::string_view own) {
    std::vector<int64_t> places;
    for (size_t i = 0; i < own.size(); ++i) {
      places.push_back(static_cast<int64_t>(all.find(own[i])));
      dims[places.back()] = x.dim(static_cast<int64_t>(i));
    }
    return places;
  };
  const std::vector<int64_t> of_left = place(lhs, left), of_right = place(rhs, right);
  const auto whole = [&](const Value& x, const std::vector<int64_t>& places) {
    return hlo::broadcast_in_dim(hlo::convert(x, accumulator(x.dtype())), dims, places);
  };
  std::vector<int64_t> summed(all.size() - letters.size());
  std::iota(summed.begin(), summed.end(), static_cast<int64_t>(letters.size()));
  return reduce_sum(hlo::mul(whole(lhs, of_left), whole(rhs, of_right)), summed);
}

}  // namespace

bool is_few_long_sums(const Extents& e, DType dtype) {
  constexpr int64_t kLong = 512;
  const bool few = e.left * e.right <= 4 || std::max(e.left, e.right) <= 3;
  const bool matrix_by_vector = e.left > 1 && e.right == 1;  // which it does well
  return few && !matrix_by_vector && e.contracted >= kLong && !hlo::is_integer(dtype) &&
         dtype != DType::Pred;
}

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
  // Devices that hold parts of several dimensions could not tell which part of the merged one.
  if (lhs.builder().lacks().several_contracted && lhs.builder().mesh() == nullptr) {
    merge_contracted(lhs, left, rhs, right, result_letters);
  }
  hlo::DotDims dims;
  Extents extents;
  std::string letters;  // of the product
  for (size_t i = 0; i < left.size(); ++i) {
    const size_t j = right.find(left[i]);
    if (j == std::string::npos) continue;
    const bool batch = has(result_letters, left[i]);
    (batch ? dims.lhs_batch : dims.lhs_contract).push_back(static_cast<int64_t>(i));
    (batch ? dims.rhs_batch : dims.rhs_contract).push_back(static_cast<int64_t>(j));
    if (batch) {
      letters += left[i];
    } else {
      extents.contracted *= lhs.dim(static_cast<int64_t>(i));
    }
  }
  const auto keep = [&](const Value& x, std::string_view own, std::string_view other) {
    int64_t kept = 1;
    for (size_t i = 0; i < own.size(); ++i) {
      if (has(other, own[i])) continue;
      letters += own[i];
      kept *= x.dim(static_cast<int64_t>(i));
    }
    return kept;
  };
  extents.left = keep(lhs, left, right);
  extents.right = keep(rhs, right, left);
  const Value product = is_few_long_sums(extents, lhs.dtype())
                            ? sum_of_products(lhs, left, rhs, right, letters)
                            : dot(lhs, rhs, dims);
  std::vector<int64_t> permutation;
  for (const char c : result_letters) {
    permutation.push_back(static_cast<int64_t>(letters.find(c)));
  }
  return hlo::transpose(product, permutation);
}

}  // namespace torch_xla::ops
