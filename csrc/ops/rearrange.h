// Rearranges values: the steps that the rules of shapes, padding and indices are written in. Every
// function is static data movement; none depends on runtime numbers.
#pragma once

#include <cstdint>
#include <span>

#include "hlo/ops.h"

namespace torch_xla::ops {

hlo::Value insert_dim(const hlo::Value& x, int64_t dim);  // a dimension of size 1 before `dim`
hlo::Value remove_dim(const hlo::Value& x, int64_t dim);  // a dimension of size 1
hlo::Value move_dim(const hlo::Value& x, int64_t from, int64_t to);
// Split dimension `dim` into `sizes`, and merge the `count` dimensions from `dim` into one.
hlo::Value split_dim(const hlo::Value& x, int64_t dim, const hlo::Dims& sizes);
hlo::Value merge_dims(const hlo::Value& x, int64_t dim, int64_t count);
hlo::Value flatten(const hlo::Value& x);
hlo::Value at_least_1d(const hlo::Value& x);

// Pads one dimension with zeros (false), or with `filler`; negative amounts crop.
hlo::Value pad_dim(const hlo::Value& x, int64_t dim, int64_t low, int64_t high,
                   int64_t interior = 0);
hlo::Value pad_dim(const hlo::Value& x, const hlo::Value& filler, int64_t dim, int64_t low,
                   int64_t high, int64_t interior = 0);
// Joins values of one type along a new dimension.
hlo::Value stack(std::span<const hlo::Value> parts, int64_t dim);

// Writes `update` over x at `starts` (constants) and keeps all other elements.
hlo::Value overwrite(const hlo::Value& x, const hlo::Value& update,
                     std::span<const int64_t> starts);

}  // namespace torch_xla::ops
