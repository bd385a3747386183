// Rearranges values: the steps that the shape, padding and indexing rules are written in. What the
// shape_* files share; shape_util.cpp holds it.
// Every function is static data movement; none depends on runtime numbers.
#pragma once

#include <cstdint>
#include <span>

#include "ops/lowering.h"

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

// Takes sliding windows of dimension `dim`, which becomes (count, size): element (i, k) comes from
// position i * step + k * dilation.
hlo::Value windows(const hlo::Value& x, int64_t dim, int64_t size, int64_t step,
                   int64_t dilation = 1);
// Transposes `windows`: adds up dimensions `dim` and `dim` + 1 into one of `length`.
hlo::Value overlap_add(const hlo::Value& x, int64_t dim, int64_t length, int64_t step,
                       int64_t dilation = 1);

// Writes `update` over x at `starts` (constants) and keeps all other elements.
hlo::Value overwrite(const hlo::Value& x, const hlo::Value& update,
                     std::span<const int64_t> starts);

}  // namespace torch_xla::ops
