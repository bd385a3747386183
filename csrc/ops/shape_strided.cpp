// as_strided: a value seen through its memory. The operand is a whole tensor, whose memory is its
// elements in the order of its own strides.
#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>

#include "lazy/operator.h"
#include "ops/common.h"
#include "ops/gather.h"
#include "ops/lowering.h"
#include "ops/meta.h"
#include "ops/rearrange.h"
#include "ops/rules.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

// Elements of memory that sizes and strides span.
int64_t span_of(const Dims& sizes, const Dims& strides) {
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return last + 1;
}

// Returns whether the bits of two values differ: unlike numbers, nan is itself and 0.0 is not -0.0.
Value differs(const Value& x, const Value& y) {
  if (hlo::is_complex(x.dtype())) {
    return differs(hlo::real(x), hlo::real(y)) | differs(hlo::imag(x), hlo::imag(y));
  }
  if (!hlo::is_float(x.dtype())) return hlo::not_equal(x, y);
  const size_t width = hlo::bit_width(x.dtype());
  const DType bits = width == 64   ? DType::U64
                     : width == 32 ? DType::U32
                     : width == 16 ? DType::U16
                                   : DType::U8;
  return hlo::not_equal(hlo::bitcast_convert(x, x.type().with(bits)),
                        hlo::bitcast_convert(y, y.type().with(bits)));
}

// A window on flat memory: element (i, j, ...) is at i * strides[0] + j * strides[1] + ...
// When each stride is a multiple of the next smaller one and rows do not overlap, it is memory cut
// into boxes of which a corner is kept: only reshapes and slices.
class StridedWindow {
 public:
  StridedWindow(Dims sizes, Dims strides) : sizes_(std::move(sizes)), strides_(std::move(strides)) {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      if (sizes_[i] == 1) continue;
      if (strides_[i] == 0) {
        repeated_ = true;
      } else {
        order_.push_back(static_cast<int64_t>(i));
      }
    }
    std::stable_sort(order_.begin(), order_.end(),
                     [&](int64_t a, int64_t b) { return strides_[a] > strides_[b]; });
    for (size_t k = 0; k + 1 < order_.size(); ++k) {
      const int64_t outer = strides_[order_[k]], inner = strides_[order_[k + 1]];
      nested_ = nested_ && outer % inner == 0 && sizes_[order_[k + 1]] * inner <= outer;
    }
    int64_t above = 0;
    for (size_t k = 0; k < order_.size(); ++k) {
      const int64_t stride = strides_[order_[k]];
      box_.push_back(k == 0 ? sizes_[order_[0]] : above / stride);
      corner_.push_back(sizes_[order_[k]]);
      above = stride;
    }
    box_.push_back(order_.empty() ? 1 : above);
    corner_.push_back(1);
  }

  Value read(const Value& memory) const {
    if (!nested_) return hlo::reshape(take_rows(memory, 0, positions(memory.builder())), sizes_);
    const Value boxes = hlo::reshape(resized(memory, box_elements()), box_);
    const Dims zeros(box_.size(), 0), ones(box_.size(), 1);
    const Value kept = remove_dim(hlo::slice(boxes, zeros, corner_, ones), box_.size() - 1);
    // Back to the order of the dimensions; those that were left out are broadcast.
    std::vector<int64_t> by_dim(order_.size());
    std::iota(by_dim.begin(), by_dim.end(), 0);
    std::sort(by_dim.begin(), by_dim.end(),
              [&](int64_t a, int64_t b) { return order_[a] < order_[b]; });
    Dims mapping = order_;
    std::sort(mapping.begin(), mapping.end());
    return hlo::broadcast_in_dim(hlo::transpose(kept, by_dim), sizes_, mapping);
  }

  // The memory with those elements of `update` written that are not what the window shows.
  Value write_changes(const Value& memory, const Value& update) const {
    if (nested_ && !repeated_) return write(memory, update);
    const Value position = positions(memory.builder());
    const Value outside = hlo::splat_int(memory.builder(), memory.dim(0), position.type());
    const Value changed = differs(update, read(memory));
    return scatter_rows(memory, 0, flatten(hlo::select(changed, position, outside)),
                        flatten(update), replace);
  }

  // The memory with `update` written through the window.
  Value write(const Value& memory, const Value& update) const {
    if (!nested_ || repeated_) {
      return scatter_rows(memory, 0, flatten(positions(memory.builder())), flatten(update),
                          replace);
    }
    std::vector<int64_t> permutation = order_;
    for (int64_t i = 0; i < update.rank(); ++i) {
      if (std::find(order_.begin(), order_.end(), i) == order_.end()) permutation.push_back(i);
    }
    const Value corner = hlo::reshape(hlo::transpose(update, permutation), corner_);
    const int64_t covered = std::min(box_elements(), memory.dim(0));
    const Value boxes = hlo::reshape(resized(memory, box_elements()), box_);
    const Value written = flatten(overwrite(boxes, corner, Dims(box_.size(), 0)));
    const std::array<Value, 2> parts = {hlo::slice_dim(written, 0, 0, covered),
                                        hlo::slice_dim(memory, 0, covered, memory.dim(0))};
    return hlo::concatenate(parts, 0);
  }

 private:
  int64_t box_elements() const {
    return std::accumulate(box_.begin(), box_.end(), int64_t{1}, std::multiplies<>());
  }
  static Value resized(const Value& memory, int64_t length) {
    return pad_dim(memory, 0, 0, length - memory.dim(0));
  }
  Value positions(hlo::Builder& b) const {
    const hlo::Type type{DType::S64, sizes_};
    Value position = hlo::zero(b, type);
    for (size_t i = 0; i < sizes_.size(); ++i) {
      if (sizes_[i] == 1 || strides_[i] == 0) continue;
      position = position +
                 hlo::iota(b, type, static_cast<int64_t>(i)) * hlo::splat_int(b, strides_[i], type);
    }
    return position;
  }

  Dims sizes_, strides_;
  std::vector<int64_t> order_;  // dimensions that move in memory, the largest stride first
  Dims box_, corner_;
  bool nested_ = true;
  bool repeated_ = false;  // one place in memory is seen several times
};

// The order of the elements of a tensor of this geometry in memory.
struct MemoryOrder {
  const lazy::Geometry& geometry;
  int64_t elements = span_of(geometry.sizes, geometry.strides);

  Value to_memory(const Value& x) const {
    if (geometry.contiguous || x.type().elements() == 0) return flatten(x);
    const Value blank = hlo::zero(x.builder(), {x.dtype(), {elements}});
    return StridedWindow(geometry.sizes, geometry.strides).write(blank, x);
  }
  Value from_memory(const Value& memory) const {
    if (geometry.contiguous || geometry.numel == 0) return hlo::reshape(memory, geometry.sizes);
    return StridedWindow(geometry.sizes, geometry.strides).read(memory);
  }
};

struct Window {
  Dims sizes, strides;
  int64_t offset;

  Window(const Lowering& l, size_t first) : sizes(l.ints(first)), strides(l.ints(first + 1)) {
    offset = l.has(first + 2) ? l.integer(first + 2) : 0;
  }
};

Values as_strided(Lowering& l) {
  const Window w(l, 1);
  if (l.out().elements() == 0) return {hlo::zero(l.b, l.out())};
  const Value memory = MemoryOrder{l.geometry(0)}.to_memory(l.in(0));
  const Value tail = hlo::slice_dim(memory, 0, w.offset, memory.dim(0));
  return {StridedWindow(w.sizes, w.strides).read(tail)};
}

// PyTorch writes into a copy, which has the layout of the source unless that repeats elements.
const lazy::Geometry& copied(const lazy::Geometry& source) {
  for (size_t i = 0; i < source.sizes.size(); ++i) {
    if (source.strides[i] == 0 && source.sizes[i] > 1) {
      return *lazy::intern(source.dtype, source.sizes,
                           at::infer_dense_strides(source.sizes, source.strides));
    }
  }
  return source;
}

// aten::as_strided_scatter, and torch_xla::as_strided_update, which leaves alone what is unchanged:
// an element that the window shows several times was written where it has changed.
template <bool kOnlyChanges>
Values as_strided_scatter(Lowering& l) {
  const Window w(l, 2);
  const Value x = l.in(0);
  const Value src = hlo::broadcast_to(cast(l.in(1), x.dtype()), w.sizes);
  if (src.type().elements() == 0) return {x};
  const MemoryOrder order{kOnlyChanges ? l.geometry(0) : copied(l.geometry(0))};
  const Value memory = order.to_memory(x);
  const Value tail = hlo::slice_dim(memory, 0, w.offset, memory.dim(0));
  const StridedWindow window(w.sizes, w.strides);
  const std::array<Value, 2> parts = {
      hlo::slice_dim(memory, 0, 0, w.offset),
      kOnlyChanges ? window.write_changes(tail, src) : window.write(tail, src)};
  return {order.from_memory(hlo::concatenate(parts, 0))};
}

// (self, src, size, stride, storage_offset)
void check_as_strided_scatter(const Arguments& a) {
  const at::Tensor self = a.tensor(0);
  const c10::IValue& offset = a[4];
  const auto* window = lazy::intern(self.scalar_type(), a[2].toIntVector(), a[3].toIntVector());
  // A tensor that repeats elements is copied first, and so has all of them.
  const bool repeats = at::has_internal_overlap(self) == at::MemOverlap::Yes;
  check_window(*window, offset.isNone() ? 0 : offset.toInt(),
               repeats ? self.nbytes() : self.storage().nbytes());
  // As the write through a view of these strides is refused.
  at::assert_no_internal_overlap(
      at::detail::empty_strided_meta(window->sizes, window->strides, self.scalar_type()));
}

}  // namespace

namespace rules {

const RuleFunction as_strided = ops::as_strided;
const RuleFunction as_strided_update = ops::as_strided_scatter<true>;

}  // namespace rules

const Rules shape_strided_rules([](Registry& r) {
  r.add("aten::as_strided_scatter", as_strided_scatter<false>);

  r.all("aten::as_strided_scatter").checks_call = check_as_strided_scatter;
});

}  // namespace torch_xla::ops
