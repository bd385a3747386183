// A fixed linear map along one dimension, held as a few weighted taps for each output:
// interpolation, averages over windows, and (transposed) their gradients.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/lowering.h"

namespace torch_xla::ops {

struct Tap {
  int64_t index;
  double weight;
};

struct Taps {
  int64_t inputs = 0;
  std::vector<std::vector<Tap>> outputs;  // the taps of each output, by rising index

  int64_t size() const { return static_cast<int64_t>(outputs.size()); }
  int64_t most() const;  // taps of the output that has the most
  // Returns the map of the gradient.
  Taps transposed() const;
};

// Applies the map along `dim` of x, whose dtype is f32 or f64. An element that is infinite or nan
// reaches only the outputs that have it among their taps, unless an output has many taps.
hlo::Value apply_taps(const hlo::Value& x, int64_t dim, const Taps& taps);
// Applies one map to each of the last dimensions.
hlo::Value apply_taps(hlo::Value x, std::span<const Taps> taps);

// Takes x at fixed positions along `dim`.
hlo::Value take_fixed(const hlo::Value& x, int64_t dim, std::span<const int64_t> positions);
// Spreads a vector of constants over `dims` along dimension `dim`.
hlo::Value constant_along(hlo::Builder& b, std::span<const int64_t> values, hlo::DType dtype,
                          const hlo::Dims& dims, int64_t dim);

}  // namespace torch_xla::ops
