// Joining, repeating and reordering: cat, stack, repeat, flip, roll, rot90, block_diag and the
// channel shuffles.
#include <algorithm>
#include <array>

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

Values cat(Lowering& l) {
  const hlo::Type type = l.out();
  if (type.elements() == 0) return {hlo::zero(l.b, type)};
  const int64_t dim = wrap_dim(l.integer(1), type.rank());
  Values parts;
  for (const Value& part : l.list(0)) {
    // PyTorch skips tensors of shape (0,) whatever the rank of the others.
    if (part.type().elements() != 0) parts.push_back(cast(part, type.dtype));
  }
  return {hlo::concatenate(parts, dim)};
}

Values stack_tensors(Lowering& l) {
  const hlo::Type type = l.out();
  if (type.elements() == 0) return {hlo::zero(l.b, type)};
  Values parts;
  for (const Value& part : l.list(0)) parts.push_back(cast(part, type.dtype));
  return {stack(parts, wrap_dim(l.integer(1), type.rank()))};
}

Values repeat(Lowering& l) {
  const Dims counts = l.ints(1);
  const Value x = l.in(0);
  const size_t lead = counts.size() - x.dims().size();
  Dims wide, mapping;
  for (size_t i = 0; i < counts.size(); ++i) {
    wide.push_back(counts[i]);
    if (i < lead) continue;
    mapping.push_back(static_cast<int64_t>(wide.size()));
    wide.push_back(x.dims()[i - lead]);
  }
  return {hlo::reshape(hlo::broadcast_in_dim(x, wide, mapping), l.out().dims)};
}

// torch_xla::runs(repeats, size): position i of the result holds the number of runs that end before
// it.
Values repeat_interleave(Lowering& l) {
  const hlo::Type type = l.out();
  const Value repeats = l.in(0);
  if (type.elements() == 0) return {hlo::zero(l.b, type)};
  const Value ends = running_sum(hlo::convert(repeats, DType::S64), 0);
  // Each run adds one at the position where it ends; a run that ends with the result is dropped.
  const hlo::Type counts{DType::S64, type.dims};
  const Value steps =
      scatter_rows(hlo::zero(l.b, counts), 0, ends, hlo::one(l.b, ends.type()), hlo::add);
  return {hlo::convert(running_sum(steps, 0), type.dtype)};
}

Values flip(Lowering& l) {
  const Value x = l.in(0);
  std::vector<int64_t> dims = l.ints(1);
  if (x.rank() == 0) return {x};
  for (int64_t& dim : dims) dim = wrap_dim(dim, x.rank());
  return {hlo::reverse(x, dims)};
}

Value rolled(const Value& x, int64_t dim, int64_t shift) {
  const int64_t n = x.dim(dim);
  if (n == 0) return x;
  const int64_t cut = ((-shift % n) + n) % n;
  if (cut == 0) return x;
  const std::array<Value, 2> parts = {hlo::slice_dim(x, dim, cut, n),
                                      hlo::slice_dim(x, dim, 0, cut)};
  return hlo::concatenate(parts, dim);
}

Values roll(Lowering& l) {
  Value x = l.in(0);
  const std::vector<int64_t> shifts = l.ints(1), dims = l.ints(2);
  if (dims.empty()) return {hlo::reshape(rolled(flatten(x), 0, shifts.at(0)), x.dims())};
  for (size_t i = 0; i < dims.size(); ++i) {
    if (x.rank() != 0) x = rolled(x, wrap_dim(dims[i], x.rank()), shifts.at(i));
  }
  return {x};
}

Values rot90(Lowering& l) {
  const Value x = l.in(0);
  const std::vector<int64_t> dims = l.ints(2);
  const int64_t a = wrap_dim(dims.at(0), x.rank()), b = wrap_dim(dims.at(1), x.rank());
  const int64_t turns = ((l.integer(1) % 4) + 4) % 4;
  const auto flipped = [](const Value& v, std::initializer_list<int64_t> which) {
    return hlo::reverse(v, std::span<const int64_t>(which.begin(), which.size()));
  };
  std::vector<int64_t> order = all_dims(x.rank());
  std::swap(order[a], order[b]);
  switch (turns) {
    case 1:
      return {hlo::transpose(flipped(x, {b}), order)};
    case 2:
      return {flipped(x, {a, b})};
    case 3:
      return {hlo::transpose(flipped(x, {a}), order)};
    default:
      return {x};
  }
}

Values block_diag(Lowering& l) {
  const hlo::Type type = l.out();
  Values rows;
  int64_t column = 0;
  for (const Value& block : l.list(0)) {
    Dims dims = block.dims();
    while (dims.size() < 2) dims.insert(dims.begin(), 1);
    const Value x = hlo::reshape(cast(block, type.dtype), dims);
    rows.push_back(pad_dim(x, 1, column, type.dims[1] - column - dims[1]));
    column += dims[1];
  }
  if (type.elements() == 0) return {hlo::zero(l.b, type)};
  return {hlo::concatenate(rows, 0)};
}

// --- channels and pixels -------------------------------------------------------------------

// (*, C r r, H, W) -> (*, C, H r, W r)
Values pixel_shuffle(Lowering& l) {
  const Value x = l.in(0);
  const hlo::Type type = l.out();
  if (type.elements() == 0) return {hlo::zero(l.b, type)};
  const int64_t r = l.integer(1), channel = x.rank() - 3;
  const Value cut = split_dim(x, channel, {x.dim(channel) / (r * r), r, r});
  // (*, C, r1, r2, H, W) -> (*, C, H, r1, W, r2)
  std::vector<int64_t> order = all_dims(cut.rank());
  const int64_t c = channel;
  order[c + 1] = c + 3;
  order[c + 2] = c + 1;
  order[c + 3] = c + 4;
  order[c + 4] = c + 2;
  return {hlo::reshape(hlo::transpose(cut, order), type.dims)};
}

Values pixel_unshuffle(Lowering& l) {
  const Value x = l.in(0);
  const hlo::Type type = l.out();
  if (type.elements() == 0) return {hlo::zero(l.b, type)};
  const int64_t r = l.integer(1), c = x.rank() - 3;
  Dims dims(x.dims().begin(), x.dims().begin() + c + 1);
  for (int64_t i : {x.dim(c + 1) / r, r, x.dim(c + 2) / r, r}) dims.push_back(i);
  // (*, C, H, r1, W, r2) -> (*, C, r1, r2, H, W)
  std::vector<int64_t> order = all_dims(static_cast<int64_t>(dims.size()));
  order[c + 1] = c + 2;
  order[c + 2] = c + 4;
  order[c + 3] = c + 1;
  order[c + 4] = c + 3;
  return {hlo::reshape(hlo::transpose(hlo::reshape(x, dims), order), type.dims)};
}

Values channel_shuffle(Lowering& l) {
  const Value x = l.in(0);
  const int64_t groups = l.integer(1);
  if (x.type().elements() == 0) return {x};
  const Value cut = split_dim(x, 1, {groups, x.dim(1) / groups});
  return {merge_dims(move_dim(cut, 1, 2), 1, 2)};
}

// (input, shifts, dims): two parts are joined, of which an empty one is row-major. Without dims the
// elements are a row.
at::MemoryFormat roll_layout(const Arguments& a) {
  const at::Tensor input = a.tensor(0);
  const std::vector<int64_t> shifts = a[1].toIntVector(), dims = a[2].toIntVector();
  bool moves = !dims.empty();
  for (size_t i = 0; i < dims.size() && i < shifts.size(); ++i) {
    const int64_t size = input.size(dims[i]);
    moves = moves && size != 0 && shifts[i] % size != 0;
  }
  return moves ? input.suggest_memory_format() : at::MemoryFormat::Contiguous;
}

// (self, groups)
void channel_shuffle_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  const int64_t groups = call[1].toInt();
  if (x.dim() < 3 || groups <= 0 || x.size(1) % groups != 0) return call.pytorch();
  like_first(call);
}

}  // namespace

namespace rules {

const RuleFunction runs = ops::repeat_interleave;

}  // namespace rules

const Rules shape_join_rules([](Registry& r) {
  r.add("aten::cat", cat);
  r.add("aten::stack", stack_tensors);
  r.add("aten::repeat", repeat);
  r.add("aten::flip", flip);
  r.add("aten::roll", roll);
  r.add("aten::rot90", rot90);
  r.add("aten::block_diag", block_diag);
  r.add("aten::pixel_shuffle", pixel_shuffle);
  r.add("aten::pixel_unshuffle", pixel_unshuffle);
  r.add("aten::channel_shuffle", channel_shuffle);
  r.add("aten::native_channel_shuffle", channel_shuffle);

  r.all("aten::cat").reads_elsewhere = true;
  r.all("aten::flip").checks_call = dims_of_a_bitset;
  r.all("aten::roll").layout = roll_layout;
  for (const char* name :
       {"aten::pixel_shuffle", "aten::pixel_unshuffle", "aten::native_channel_shuffle"}) {
    r.all(name).layout = layout_of_input;
  }
  r.all("aten::channel_shuffle") = {.meta = channel_shuffle_meta, .layout = layout_of_input};
});

}  // namespace torch_xla::ops
