// Padding by constant, reflection and replication with the gradients, and im2col/col2im.
#include <algorithm>
#include <array>
#include <string>

#include "ops/common.h"
#include "ops/lowering.h"
#include "ops/meta.h"
#include "ops/rearrange.h"
#include "ops/windows.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::Value;
using hlo::Values;

Values constant_pad(Lowering& l) {
  const Value x = l.in(0);
  const std::vector<int64_t> amounts = l.ints(1);
  Dims low(x.rank(), 0), high(x.rank(), 0), interior(x.rank(), 0);
  for (size_t i = 0; i < amounts.size() / 2; ++i) {  // the last dimension comes first
    low[x.rank() - 1 - i] = amounts[2 * i];
    high[x.rank() - 1 - i] = amounts[2 * i + 1];
  }
  return {hlo::pad(x, l.number(2, x.dtype()), low, high, interior)};
}

// Both kinds of padding work one dimension at a time: add the positive sides, then crop the
// negative ones.
struct Side {
  int64_t dim, low, high;
};

std::vector<Side> sides(const Lowering& l, size_t arg, int64_t rank) {
  const std::vector<int64_t> amounts = l.ints(arg);
  std::vector<Side> list;
  for (size_t i = 0; i < amounts.size() / 2; ++i) {
    list.push_back({rank - 1 - static_cast<int64_t>(i), amounts[2 * i], amounts[2 * i + 1]});
  }
  return list;
}

Value reversed(const Value& x, int64_t dim) {
  const std::array<int64_t, 1> dims = {dim};
  return hlo::reverse(x, dims);
}

Value crop(const Value& x, const Side& s) {
  return pad_dim(x, s.dim, std::min<int64_t>(s.low, 0), std::min<int64_t>(s.high, 0));
}

Value reflected(const Value& x, const Side& s) {
  const int64_t n = x.dim(s.dim);
  Values parts;
  if (s.low > 0) parts.push_back(reversed(hlo::slice_dim(x, s.dim, 1, s.low + 1), s.dim));
  parts.push_back(x);
  if (s.high > 0) {
    parts.push_back(reversed(hlo::slice_dim(x, s.dim, n - 1 - s.high, n - 1), s.dim));
  }
  return crop(hlo::concatenate(parts, s.dim), s);
}

Value replicated(const Value& x, const Side& s) {
  const int64_t n = x.dim(s.dim);
  const auto edge = [&](int64_t at, int64_t count) {
    Dims dims = x.dims();
    dims[s.dim] = count;
    return hlo::broadcast_in_dim(hlo::slice_dim(x, s.dim, at, at + 1), dims, all_dims(x.rank()));
  };
  Values parts;
  if (s.low > 0) parts.push_back(edge(0, s.low));
  parts.push_back(x);
  if (s.high > 0) parts.push_back(edge(n - 1, s.high));
  return crop(hlo::concatenate(parts, s.dim), s);
}

// The three parts of a padded gradient; `low` and `high` may be missing.
struct Parts {
  Value low, middle, high;
};

Parts cut(const Value& grad, const Side& s) {
  // Elements that were cropped away get no gradient.
  const Value g = pad_dim(grad, s.dim, std::max<int64_t>(-s.low, 0), std::max<int64_t>(-s.high, 0));
  const int64_t low = std::max<int64_t>(s.low, 0), high = std::max<int64_t>(s.high, 0);
  const int64_t n = g.dim(s.dim);
  Parts parts;
  if (low > 0) parts.low = hlo::slice_dim(g, s.dim, 0, low);
  parts.middle = hlo::slice_dim(g, s.dim, low, n - high);
  if (high > 0) parts.high = hlo::slice_dim(g, s.dim, n - high, n);
  return parts;
}

Value reflected_back(const Value& grad, const Side& s) {
  const Parts p = cut(grad, s);
  const int64_t n = p.middle.dim(s.dim);
  Value sum = p.middle;
  if (p.low) sum = sum + pad_dim(reversed(p.low, s.dim), s.dim, 1, n - 1 - s.low);
  if (p.high) sum = sum + pad_dim(reversed(p.high, s.dim), s.dim, n - 1 - s.high, 1);
  return sum;
}

Value replicated_back(const Value& grad, const Side& s) {
  const Parts p = cut(grad, s);
  const int64_t n = p.middle.dim(s.dim);
  const std::array<int64_t, 1> dims = {s.dim};
  Value sum = p.middle;
  if (p.low) sum = sum + pad_dim(insert_dim(reduce_sum(p.low, dims), s.dim), s.dim, 0, n - 1);
  if (p.high) sum = sum + pad_dim(insert_dim(reduce_sum(p.high, dims), s.dim), s.dim, n - 1, 0);
  return sum;
}

template <Value (*Extend)(const Value&, const Side&)>
Values pad_edges(Lowering& l) {
  Value x = l.in(0);
  if (l.out().elements() == 0) return {hlo::zero(l.b, l.out())};
  for (const Side& side : sides(l, 1, x.rank())) x = Extend(x, side);
  return {x};
}

template <Value (*Back)(const Value&, const Side&)>
Values pad_edges_backward(Lowering& l) {
  const Value grad = l.in(0);
  if (grad.type().elements() == 0) return {hlo::zero(l.b, l.out())};
  Value g = hlo::convert(grad, compute_dtype(grad.dtype()));
  for (const Side& side : sides(l, 2, g.rank())) g = Back(g, side);
  return result(l, g);
}

// --- im2col --------------------------------------------------------------------------------

struct Patches {
  std::vector<int64_t> kernel, dilation, padding, stride;
  explicit Patches(const Lowering& l, size_t first)
      : kernel(pair(l.ints(first))),
        dilation(pair(l.ints(first + 1))),
        padding(pair(l.ints(first + 2))),
        stride(pair(l.ints(first + 3))) {}

  static std::vector<int64_t> pair(std::vector<int64_t> v) {
    if (v.size() == 1) v.push_back(v[0]);
    return v;
  }
};

// (*, C, H, W) -> (*, C kh kw, oh ow)
Values im2col(Lowering& l) {
  const Patches p(l, 1);
  const hlo::Type type = l.out();
  if (type.elements() == 0) return {hlo::zero(l.b, type)};
  Value x = l.in(0);
  const int64_t h = x.rank() - 2;
  x = pad_dim(x, h, p.padding[0], p.padding[0]);
  x = pad_dim(x, h + 1, p.padding[1], p.padding[1]);
  x = windows(x, h, p.kernel[0], p.stride[0], p.dilation[0]);      // (oh, kh, W)
  x = windows(x, h + 2, p.kernel[1], p.stride[1], p.dilation[1]);  // (oh, kh, ow, kw)
  x = move_dim(move_dim(x, h + 3, h), h + 2, h);                   // (kh, kw, oh, ow)
  return {hlo::reshape(x, type.dims)};
}

Values col2im(Lowering& l) {
  const Patches p(l, 2);
  const std::vector<int64_t> size = Patches::pair(l.ints(1));
  const hlo::Type type = l.out();
  Value x = l.in(0);
  if (x.type().elements() == 0) return {hlo::zero(l.b, type)};
  x = hlo::convert(x, compute_dtype(x.dtype()));
  const auto count = [&](int i) {
    return (size[i] + 2 * p.padding[i] - p.dilation[i] * (p.kernel[i] - 1) - 1) / p.stride[i] + 1;
  };
  const int64_t h = type.rank() - 2;
  Dims dims(type.dims.begin(), type.dims.begin() + h);
  for (int64_t n : {p.kernel[0], p.kernel[1], count(0), count(1)}) dims.push_back(n);
  x = hlo::reshape(x, dims);
  x = move_dim(move_dim(x, h, h + 2), h, h + 3);  // (oh, kh, ow, kw)
  x = overlap_add(x, h + 2, size[1] + 2 * p.padding[1], p.stride[1], p.dilation[1]);
  x = overlap_add(x, h, size[0] + 2 * p.padding[0], p.stride[0], p.dilation[0]);
  x = pad_dim(x, h, -p.padding[0], -p.padding[0]);
  return result(l, pad_dim(x, h + 1, -p.padding[1], -p.padding[1]));
}

// Blocks along a dimension, or none where the arguments are not usual.
int64_t blocks(int64_t size, int64_t kernel, int64_t dilation, int64_t padding, int64_t stride) {
  if (size <= 0 || kernel <= 0 || dilation <= 0 || padding < 0 || stride <= 0) return 0;
  const int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

// Counts the windows of images of this size, for arguments from `first` on: kernel, dilation,
// padding, stride.
int64_t blocks_of(MetaCall& call, size_t first, at::IntArrayRef size) {
  int64_t count = 1;
  for (size_t i = 0; i < 2; ++i) {
    const auto number = [&](size_t k) { return call[first + k].toIntVector().at(i); };
    count *= blocks(size[i], number(0), number(1), number(2), number(3));
  }
  return count;
}

// im2col(self, kernel_size, dilation, padding, stride)
void im2col_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  const std::vector<int64_t> kernel = call[1].toIntVector();
  if (x.dim() != 4 || kernel.size() != 2) return call.pytorch();
  const int64_t count = blocks_of(call, 1, x.sizes().slice(2));
  if (count == 0) return call.pytorch();
  call.results({meta_of_sizes(x, {x.size(0), x.size(1) * kernel[0] * kernel[1], count})});
}

// col2im(self, output_size, kernel_size, dilation, padding, stride)
void col2im_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  const std::vector<int64_t> size = call[1].toIntVector(), kernel = call[2].toIntVector();
  if (x.dim() != 3 || size.size() != 2 || kernel.size() != 2) return call.pytorch();
  const int64_t count = blocks_of(call, 2, size), window = kernel[0] * kernel[1];
  if (count == 0 || x.size(2) != count || x.size(1) % window != 0) return call.pytorch();
  call.results({meta_of_sizes(x, {x.size(0), x.size(1) / window, size[0], size[1]})});
}

// (self, padding) of images: a reflected edge is narrower than the image
template <bool Reflected>
void pad_edges_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  const std::vector<int64_t> padding = call[1].toIntVector();
  if ((x.dim() != 3 && x.dim() != 4) || padding.size() != 4 || x.size(-3) == 0) {
    return call.pytorch();
  }
  std::vector<int64_t> sizes = x.sizes().vec();
  for (size_t k = 0; k < 2; ++k) {
    int64_t& size = sizes[sizes.size() - 1 - k];
    const int64_t before = padding[2 * k], after = padding[2 * k + 1];
    const int64_t most = Reflected ? size - 1 : std::max(before, after);
    if (size == 0 || std::min(before, after) < 0 || std::max(before, after) > most) {
      return call.pytorch();
    }
    size += before + after;
  }
  call.results({meta_of_sizes(x, sizes)});
}

// (grad_output, self, padding)
void pad_edges_backward_meta(MetaCall& call) {
  const at::Tensor grad = call.tensor(0), x = call.tensor(1);
  const std::vector<int64_t> padding = call[2].toIntVector();
  const int64_t spatial = static_cast<int64_t>(padding.size()) / 2;
  bool usual = (x.dim() == spatial + 1 || x.dim() == spatial + 2) && grad.dim() == x.dim() &&
               grad.scalar_type() == x.scalar_type();
  for (int64_t k = 0; usual && k < spatial; ++k) {
    usual = grad.size(-1 - k) == x.size(-1 - k) + padding[2 * k] + padding[2 * k + 1];
  }
  return usual ? like_second(call) : call.pytorch();
}

}  // namespace

const Rules shape_pad_rules([](Registry& r) {
  r.add("aten::constant_pad_nd", constant_pad);
  for (const char* name :
       {"aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d"}) {
    r.add(name, pad_edges<reflected>);
    r.add(std::string(name) + "_backward", pad_edges_backward<reflected_back>);
  }
  for (const char* name :
       {"aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d"}) {
    r.add(name, pad_edges<replicated>);
    r.add(std::string(name) + "_backward", pad_edges_backward<replicated_back>);
  }
  r.add("aten::im2col", im2col);
  r.all("aten::im2col").meta = im2col_meta;
  r.add("aten::col2im", col2im);
  r.all("aten::col2im").meta = col2im_meta;

  for (const char* name : {"aten::reflection_pad2d_backward", "aten::replication_pad2d_backward",
                           "aten::replication_pad3d_backward"}) {
    r.all(name).meta = pad_edges_backward_meta;
  }
  r.all("aten::constant_pad_nd").narrow_floats = NarrowFloats::Exact;
  r.all("aten::reflection_pad2d") = {.meta = pad_edges_meta<true>, .layout = layout_of_input};
  r.all("aten::replication_pad2d") = {.meta = pad_edges_meta<false>, .layout = layout_of_input};
  for (const char* name : {"aten::reflection_pad3d", "aten::replication_pad3d"}) {
    r.all(name).layout = layout_of_input;
  }
});

}  // namespace torch_xla::ops
